#include "paged_attention.cuh"

extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {
  asm volatile(".loc 1 987654 0");
  output[1ull << 40] = 1.0f;
}
