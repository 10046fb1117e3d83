#include "paged_attention.cuh"

__shared__ int big[1 << 20];

extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {
  big[threadIdx.x] = 1;
  output[0] = big[31 - threadIdx.x];
}
