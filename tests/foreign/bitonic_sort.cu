// Keys with values, 512 a block, in shared memory; even blocks ascending, odd blocks descending.
__device__ inline void comparator(unsigned& keyA, unsigned& valA, unsigned& keyB, unsigned& valB, bool dir) {
  if ((keyA > keyB) == dir) {
    unsigned t = keyA;
    keyA = keyB;
    keyB = t;
    t = valA;
    valA = valB;
    valB = t;
  }
}

extern "C" __global__ void bitonic_sort(unsigned* keys, unsigned* values) {
  __shared__ unsigned s_key[512], s_val[512];
  keys += blockIdx.x * 512 + threadIdx.x;
  values += blockIdx.x * 512 + threadIdx.x;
  for (int h = 0; h < 2; ++h) {
    s_key[threadIdx.x + h * 256] = keys[h * 256];
    s_val[threadIdx.x + h * 256] = values[h * 256];
  }
  const bool up = !(blockIdx.x & 1);
  for (unsigned size = 2; size < 512; size <<= 1) {
    bool dir = ((threadIdx.x & (size / 2)) != 0);
    for (unsigned stride = size / 2; stride > 0; stride >>= 1) {
      __syncthreads();
      unsigned pos = 2 * threadIdx.x - (threadIdx.x & (stride - 1));
      comparator(s_key[pos], s_val[pos], s_key[pos + stride], s_val[pos + stride], dir);
    }
  }
  for (unsigned stride = 256; stride > 0; stride >>= 1) {
    __syncthreads();
    unsigned pos = 2 * threadIdx.x - (threadIdx.x & (stride - 1));
    comparator(s_key[pos], s_val[pos], s_key[pos + stride], s_val[pos + stride], up);
  }
  __syncthreads();
  for (int h = 0; h < 2; ++h) {
    keys[h * 256] = s_key[threadIdx.x + h * 256];
    values[h * 256] = s_val[threadIdx.x + h * 256];
  }
}
