// A moving average over rows that are prefetched with cuda_pipeline's primitives.
#include <cuda_pipeline.h>

extern "C" __global__ void pipeline_stencil(const float* in, float* out, int rows, int columns) {
  __shared__ __align__(16) float buffer[3][256 + 8];
  const float* strip = in + (size_t)blockIdx.x * rows * columns;
  auto fetch = [&](int row) {
    if (row < rows) {
      for (int c = threadIdx.x * 4; c < columns; c += blockDim.x * 4)
        __pipeline_memcpy_async(&buffer[row % 3][c], &strip[row * columns + c], 16);
    }
    __pipeline_commit();
  };
  fetch(0);
  fetch(1);
  for (int row = 0; row < rows; ++row) {
    __pipeline_wait_prior(1);
    __syncthreads();
    for (int c = threadIdx.x; c < columns; c += blockDim.x) {
      float left = buffer[row % 3][max(c - 1, 0)], right = buffer[row % 3][min(c + 1, columns - 1)];
      out[((size_t)blockIdx.x * rows + row) * columns + c] = (left + buffer[row % 3][c] + right) / 3.0f;
    }
    fetch(row + 2);
  }
}
