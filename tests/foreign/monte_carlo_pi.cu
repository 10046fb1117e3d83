// Points in the unit circle by PCG, 64-bit state, counted exactly.
__device__ unsigned pcg(unsigned long long& state) {
  unsigned long long old = state;
  state = old * 6364136223846793005ULL + 1442695040888963407ULL;
  unsigned shifted = (unsigned)(((old >> 18u) ^ old) >> 27u);
  unsigned rot = (unsigned)(old >> 59u);
  return (shifted >> rot) | (shifted << ((-rot) & 31));
}

extern "C" __global__ void monte_carlo_pi(int per_thread, unsigned long long* hits) {
  unsigned long long state = 0x853c49e6748fea9bULL + blockIdx.x * blockDim.x + threadIdx.x;
  pcg(state);
  unsigned inside = 0;
  for (int i = 0; i < per_thread; ++i) {
    unsigned long long x = pcg(state) >> 4, y = pcg(state) >> 4;
    inside += x * x + y * y < (1ULL << 56);
  }
  inside = __reduce_add_sync(0xffffffffu, inside);
  if (threadIdx.x % 32 == 0) atomicAdd(hits, (unsigned long long)inside);
}
