#include "paged_attention.cuh"

extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {
  const size_t row = query_offset(problem, blockIdx.y, blockIdx.x);
  for (int d = threadIdx.x; d < problem.head_dim; d += 32) output[row + d] += in.query[row + d];
}
