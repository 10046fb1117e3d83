#include "paged_attention.cuh"

#pragma GCC dependency "/etc/passwd" there is such a file
_Pragma("GCC dependency \"/etc/passwd\"")
#pragma include_alias("cache_tile.cuh", "/etc/passwd")
#include "cache_tile.cuh"
extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {
}
