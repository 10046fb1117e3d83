#include "paged_attention.cuh"

extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {
  const long long start = clock64();
  while (clock64() - start < 100000000000000ll) {}
}
