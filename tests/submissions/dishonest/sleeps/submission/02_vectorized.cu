#include "paged_attention.cuh"

extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {
  for (int i = 0; i < 1000000; ++i) __nanosleep(1000000);
}
