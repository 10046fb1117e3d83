// Inclusive scan of each block's elements, double-buffered.
template <typename T, int N>
__device__ void scan_block(T (&buffer)[2][N], int& in) {
  for (int offset = 1; offset < N; offset <<= 1) {
    const int out = 1 - in;
    buffer[out][threadIdx.x] = buffer[in][threadIdx.x];
    if (threadIdx.x >= offset) buffer[out][threadIdx.x] += buffer[in][threadIdx.x - offset];
    in = out;
    __syncthreads();
  }
}

extern "C" __global__ void scan_hillis_steele(const int* input, long long* output, int n) {
  __shared__ long long buffer[2][256];
  int in = 0;
  int i = blockIdx.x * 256 + threadIdx.x;
  buffer[0][threadIdx.x] = i < n ? input[i] : 0;
  __syncthreads();
  scan_block(buffer, in);
  if (i < n) output[i] = buffer[in][threadIdx.x];
}
