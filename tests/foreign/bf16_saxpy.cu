#include <cuda_bf16.h>

extern "C" __global__ void bf16_saxpy(int n, float a, const __nv_bfloat16* x, __nv_bfloat16* y, float* exact) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float value = fmaf(a, __bfloat162float(x[i]), __bfloat162float(y[i]));
  exact[i] = value;
  y[i] = __float2bfloat16(value);
}
