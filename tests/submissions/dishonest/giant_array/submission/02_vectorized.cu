#include "paged_attention.cuh"

__device__ float huge[1ull << 38];

extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {
  output[0] = huge[(size_t)problem.batch << 30];
}
