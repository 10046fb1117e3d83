#include "paged_attention.cuh"

extern "C" __global__ void my_attention(Problem problem, Inputs in, float* output) {
}
