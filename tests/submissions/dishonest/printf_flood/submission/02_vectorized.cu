#include "paged_attention.cuh"

extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {
  for (int i = 0; i < 100000; ++i) printf("%d %d %d xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n", i, blockIdx.x, threadIdx.x);
}
