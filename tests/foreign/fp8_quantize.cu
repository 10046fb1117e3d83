// Rows scaled to the range of e4m3 by their largest element, quantised and given back.
#include <cuda_fp16.h>
#include <cuda_fp8.h>

extern "C" __global__ void fp8_quantize(const float* x, __nv_fp8_storage_t* q, float* scales, float* back, int n) {
  __shared__ float warp_max[4];
  const float* row = x + blockIdx.x * n;
  float amax = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) amax = fmaxf(amax, fabsf(row[i]));
  for (int d = 16; d; d /= 2) amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, d));
  if (threadIdx.x % 32 == 0) warp_max[threadIdx.x / 32] = amax;
  __syncthreads();
  amax = fmaxf(fmaxf(warp_max[0], warp_max[1]), fmaxf(warp_max[2], warp_max[3]));
  float scale = amax / 448.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    __nv_fp8_storage_t code = __nv_cvt_float_to_fp8(row[i] / scale, __NV_SATFINITE, __NV_E4M3);
    q[blockIdx.x * n + i] = code;
    back[blockIdx.x * n + i] = __half2float(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)) * scale;
  }
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
}
