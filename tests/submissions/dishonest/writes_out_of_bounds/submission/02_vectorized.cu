#include "paged_attention.cuh"

extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {
  output[(size_t)problem.batch * problem.query_heads * problem.head_dim + 4096 + threadIdx.x] = 1.0f;
}
