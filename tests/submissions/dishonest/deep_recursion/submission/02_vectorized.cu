#include "paged_attention.cuh"

__device__ __noinline__ float down(int n, float* p) { return n == 0 ? *p : down(n - 1, p) * 1.5f + p[n % 2]; }

extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {
  output[0] = down(problem.batch + 1000000, output);
}
