// A warp per row, maximum and sum in one pass, merged by a butterfly.
struct __align__(8) MD {
  float m, d;
};

__device__ __forceinline__ MD merge(MD a, MD b) {
  bool first = a.m > b.m;
  MD big = first ? a : b, small = first ? b : a;
  big.d += small.d * __expf(small.m - big.m);
  return big;
}

extern "C" __global__ void softmax_online(const float* x, float* y, int rows, int columns) {
  int row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  x += (size_t)row * columns;
  y += (size_t)row * columns;
  MD state = {-1e30f, 0.0f};
  for (int c = threadIdx.x; c < columns; c += 32) state = merge(state, {x[c], 1.0f});
  for (int offset = 16; offset > 0; offset >>= 1) {
    MD other;
    other.m = __shfl_xor_sync(0xffffffff, state.m, offset);
    other.d = __shfl_xor_sync(0xffffffff, state.d, offset);
    state = merge(state, other);
  }
  for (int c = threadIdx.x; c < columns; c += 32) y[c] = __expf(x[c] - state.m) / state.d;
}
