// Iterations until escape, in double with every operation rounded by itself.
extern "C" __global__ void mandelbrot(int* out, int width, int height, double x0, double y0, double step, int limit) {
  int px = blockIdx.x * blockDim.x + threadIdx.x, py = blockIdx.y * blockDim.y + threadIdx.y;
  if (px >= width || py >= height) return;
  double cx = __dadd_rn(x0, __dmul_rn(px, step)), cy = __dadd_rn(y0, __dmul_rn(py, step)), x = 0, y = 0;
  int n = 0;
  while (n < limit) {
    double xx = __dmul_rn(x, x), yy = __dmul_rn(y, y);
    if (__dadd_rn(xx, yy) > 4.0) break;
    double xy = __dmul_rn(x, y);
    x = __dadd_rn(__dsub_rn(xx, yy), cx);
    y = __dadd_rn(__dadd_rn(xy, xy), cy);
    ++n;
  }
  out[py * width + px] = n;
}
