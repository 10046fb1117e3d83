// Layer normalisation of a row per block; mean and variance by Welford's merge.
struct Moments {
  float mean, m2, count;
};

__device__ Moments join(Moments a, Moments b) {
  if (b.count == 0.0f) return a;
  float n = a.count + b.count, delta = b.mean - a.mean;
  return {a.mean + delta * b.count / n, a.m2 + b.m2 + delta * delta * a.count * b.count / n, n};
}

__device__ Moments warp_join(Moments v) {
  for (int d = 16; d > 0; d /= 2) {
    Moments o = {__shfl_xor_sync(~0u, v.mean, d), __shfl_xor_sync(~0u, v.m2, d), __shfl_xor_sync(~0u, v.count, d)};
    v = join(v, o);
  }
  return v;
}

extern "C" __global__ void layernorm_welford(const float* x, const float* gamma, const float* beta, float* y, int n,
                                             float eps) {
  __shared__ Moments shared[32];
  const float* row = x + blockIdx.x * n;
  Moments v = {0.0f, 0.0f, 0.0f};
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    v.count += 1.0f;
    float delta = row[i] - v.mean;
    v.mean += delta / v.count;
    v.m2 += delta * (row[i] - v.mean);
  }
  v = warp_join(v);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane == 0) shared[warp] = v;
  __syncthreads();
  if (warp == 0) {
    v = lane < blockDim.x / 32 ? shared[lane] : Moments{0.0f, 0.0f, 0.0f};
    v = warp_join(v);
    if (lane == 0) shared[0] = v;
  }
  __syncthreads();
  float mean = shared[0].mean, scale = rsqrtf(shared[0].m2 / n + eps);
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = (row[i] - mean) * scale * gamma[i] + beta[i];
}
