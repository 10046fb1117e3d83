// European option prices, call and put.
__device__ __noinline__ float cdf(float d) { return 0.5f * erfcf(-d * 0.70710678f); }

extern "C" __global__ void black_scholes(float2* prices, const float* s, const float* x, const float* t, float r,
                                         float v, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float root = sqrtf(t[i]);
  float d1 = (logf(s[i] / x[i]) + (r + 0.5f * v * v) * t[i]) / (v * root), d2 = d1 - v * root;
  float discounted = x[i] * expf(-r * t[i]);
  prices[i] = make_float2(s[i] * cdf(d1) - discounted * cdf(d2), discounted * cdf(-d2) - s[i] * cdf(-d1));
}
