// A torus of bytes, one generation a launch.
extern "C" __global__ void game_of_life(const unsigned char* now, unsigned char* next, int width, int height) {
  for (int cell = blockIdx.x * blockDim.x + threadIdx.x; cell < width * height; cell += blockDim.x * gridDim.x) {
    int x = cell % width, y = cell / width;
    int left = (x + width - 1) % width, right = (x + 1) % width;
    int up = (y + height - 1) % height * width, down = (y + 1) % height * width;
    int here = y * width;
    int alive = now[up + left] + now[up + x] + now[up + right] + now[here + left] + now[here + right] +
                now[down + left] + now[down + x] + now[down + right];
    next[cell] = alive == 3 || (alive == 2 && now[cell]) ? 1 : 0;
  }
}
