// Sum of an array: sequential addressing in shared memory, two elements a thread on the way in.
extern "C" __global__ void reduce_tree(const float* input, float* partial, unsigned n) {
  extern __shared__ float data[];
  unsigned tid = threadIdx.x;
  unsigned i = blockIdx.x * (blockDim.x * 2) + threadIdx.x;
  data[tid] = (i < n ? input[i] : 0.0f) + (i + blockDim.x < n ? input[i + blockDim.x] : 0.0f);
  __syncthreads();
  for (unsigned s = blockDim.x / 2; s > 0; s >>= 1) {
    if (tid < s) data[tid] += data[tid + s];
    __syncthreads();
  }
  if (tid == 0) partial[blockIdx.x] = data[0];
}
