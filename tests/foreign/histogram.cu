// 256 bins of bytes, read four at a time, counted in shared memory.
extern "C" __global__ void histogram(const uchar4* data, int quads, unsigned* bins) {
  __shared__ unsigned local[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < quads; i += blockDim.x * gridDim.x) {
    uchar4 q = data[i];
    atomicAdd(&local[q.x], 1);
    atomicAdd(&local[q.y], 1);
    atomicAdd(&local[q.z], 1);
    atomicAdd(&local[q.w], 1);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x)
    if (local[i]) atomicAdd(&bins[i], local[i]);
}
