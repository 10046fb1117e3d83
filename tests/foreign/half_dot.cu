// Row dot products in half2 with float accumulation of each eighth.
#include <cuda_fp16.h>

extern "C" __global__ void half_dot(const half* a, const half* b, float* out, half* scaled, int n) {
  const half2* pa = reinterpret_cast<const half2*>(a + (size_t)blockIdx.x * n);
  const half2* pb = reinterpret_cast<const half2*>(b + (size_t)blockIdx.x * n);
  float total = 0.0f;
  for (int i = threadIdx.x; i < n / 2; i += 32 * 4) {
    half2 sum = __float2half2_rn(0.0f);
    for (int j = i; j < n / 2 && j < i + 128; j += 32) sum = __hfma2(pa[j], pb[j], sum);
    total += __low2float(sum) + __high2float(sum);
  }
  for (int d = 16; d; d /= 2) total += __shfl_xor_sync(0xffffffffu, total, d);
  if (threadIdx.x == 0) {
    out[blockIdx.x] = total;
    scaled[blockIdx.x] = __hmul(__float2half(total), __float2half(0.5f));
  }
}
