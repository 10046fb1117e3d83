#include "paged_attention.cuh"

#define PASTE(a, b) a##b
#if PASTE(__has_, include)("/etc/passwd")
#error "there is such a file"
#endif
extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {
}
