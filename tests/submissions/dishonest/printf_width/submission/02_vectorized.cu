#include "paged_attention.cuh"

extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {
  printf("%99999999999d %*d %n %s\n", 1, 5, 3, (char*)0x1234);
}
