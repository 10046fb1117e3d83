// The most fp32 arithmetic that a GPU reaches: CHAINS independent chains of fused multiply-adds per thread, nothing
// loaded. Every link needs the one before, so none can be left out; the store never happens in practice.
#ifndef CHAINS
#define CHAINS 8
#endif
#define LINKS 32  // of each chain in one round of the loop

extern "C" __global__ void fp32_peak(float* sink, float factor, int rounds) {
  float chain[CHAINS];
#pragma unroll
  for (int c = 0; c < CHAINS; ++c) chain[c] = threadIdx.x + c;
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int link = 0; link < LINKS; ++link) {
#pragma unroll
      for (int c = 0; c < CHAINS; ++c) chain[c] = fmaf(chain[c], factor, 1.0f);
    }
  }
  float folded = 0;
#pragma unroll
  for (int c = 0; c < CHAINS; ++c) folded += chain[c];
  if (folded == -1.0f) sink[blockIdx.x] = folded;  // factor is positive: no chain goes below zero
}
