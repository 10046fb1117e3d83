#include "paged_attention.cuh"

extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {
  __shared__ float small[4];
  const unsigned to = (unsigned)__cvta_generic_to_shared(small) + 1048576u;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16; cp.async.wait_all;" ::"r"(to), "l"(in.query) : "memory");
  unsigned a, b, c, d;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(to));
  output[0] = __uint_as_float(a ^ b ^ c ^ d);
}
