// 5 x 5 convolution with the filter in constant memory and a halo in shared memory.
#define RADIUS 2
#define TILE 16
__constant__ float filter[2 * RADIUS + 1][2 * RADIUS + 1] = {{1, 4, 6, 4, 1},
                                                             {4, 16, 24, 16, 4},
                                                             {6, 24, 36, 24, 6},
                                                             {4, 16, 24, 16, 4},
                                                             {1, 4, 6, 4, 1}};

extern "C" __global__ void convolution(const float* image, float* result, int width, int height) {
  __shared__ float tile[TILE + 2 * RADIUS][TILE + 2 * RADIUS];
  int x0 = blockIdx.x * TILE - RADIUS, y0 = blockIdx.y * TILE - RADIUS;
  for (int y = threadIdx.y; y < TILE + 2 * RADIUS; y += TILE)
    for (int x = threadIdx.x; x < TILE + 2 * RADIUS; x += TILE) {
      int gx = min(max(x0 + x, 0), width - 1), gy = min(max(y0 + y, 0), height - 1);
      tile[y][x] = image[gy * width + gx];
    }
  __syncthreads();
  int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
  if (x >= width || y >= height) return;
  float sum = 0.0f;
  for (int dy = 0; dy <= 2 * RADIUS; ++dy)
    for (int dx = 0; dx <= 2 * RADIUS; ++dx) sum += filter[dy][dx] * tile[threadIdx.y + dy][threadIdx.x + dx];
  result[y * width + x] = sum / 256.0f;
}
