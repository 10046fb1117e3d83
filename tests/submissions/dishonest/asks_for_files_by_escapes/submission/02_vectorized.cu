#include "paged_attention.cuh"

#if __has_\u0069nclude("/etc/passwd")
#error "there is such a file"
#endif
extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {
}
