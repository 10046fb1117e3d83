// Work-efficient exclusive scan with padding against bank conflicts.
#define PAD(n) ((n) + ((n) >> 5))

extern "C" __global__ void scan_blelloch(float* g_odata, const float* g_idata, int n) {
  extern __shared__ float temp[];
  int thid = threadIdx.x, offset = 1;
  int ai = thid, bi = thid + n / 2;
  temp[PAD(ai)] = g_idata[blockIdx.x * n + ai];
  temp[PAD(bi)] = g_idata[blockIdx.x * n + bi];
  for (int d = n >> 1; d > 0; d >>= 1) {
    __syncthreads();
    if (thid < d) {
      int a = PAD(offset * (2 * thid + 1) - 1), b = PAD(offset * (2 * thid + 2) - 1);
      temp[b] += temp[a];
    }
    offset *= 2;
  }
  if (thid == 0) temp[PAD(n - 1)] = 0;
  for (int d = 1; d < n; d *= 2) {
    offset >>= 1;
    __syncthreads();
    if (thid < d) {
      int a = PAD(offset * (2 * thid + 1) - 1), b = PAD(offset * (2 * thid + 2) - 1);
      float t = temp[a];
      temp[a] = temp[b];
      temp[b] += t;
    }
  }
  __syncthreads();
  g_odata[blockIdx.x * n + ai] = temp[PAD(ai)];
  g_odata[blockIdx.x * n + bi] = temp[PAD(bi)];
}
