// Dot product and maximum with warp shuffles, one atomic per warp; grid-stride loop.
__device__ float atomic_max_float(float* address, float value) {
  int* bits = (int*)address;
  int old = *bits, assumed;
  while (value > __int_as_float(old)) {
    assumed = old;
    old = atomicCAS(bits, assumed, __float_as_int(value));
    if (old == assumed) break;
  }
  return __int_as_float(old);
}

extern "C" __global__ void reduce_atomics(const float* a, const float* b, double* dot, float* most, int n) {
  double sum = 0.0;
  float best = -1e30f;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    sum += (double)a[i] * b[i];
    best = fmaxf(best, a[i]);
  }
#pragma unroll
  for (int d = 16; d; d >>= 1) {
    sum += __shfl_down_sync(~0u, sum, d);
    best = fmaxf(best, __shfl_down_sync(~0u, best, d));
  }
  if ((threadIdx.x & 31) == 0) {
    atomicAdd(dot, sum);
    atomic_max_float(most, best);
  }
}
