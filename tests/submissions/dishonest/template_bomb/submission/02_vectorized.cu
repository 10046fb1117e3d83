#include "paged_attention.cuh"

template <int A, int B> struct Bomb { static constexpr int value = Bomb<A - 1, 2 * B>::value + Bomb<A - 1, 2 * B + 1>::value; };
template <int B> struct Bomb<0, B> { static constexpr int value = B; };

extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {
  output[0] = Bomb<40, 1>::value;
}
