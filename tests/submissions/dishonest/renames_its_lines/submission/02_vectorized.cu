#include "paged_attention.cuh"

extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {

#line 1 "/etc/passwd"
  undefined_thing(1);
}
