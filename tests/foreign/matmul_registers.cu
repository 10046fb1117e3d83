// C = alpha A B + beta C, a 64 x 64 tile a block, 4 x 4 results a thread; M, N multiples of 64, K of 16.
extern "C" __global__ void __launch_bounds__(256) matmul_registers(int M, int N, int K, float alpha, const float* A,
                                                                   const float* B, float beta, float* C) {
  __shared__ __align__(16) float As[16][64 + 4], Bs[16][64];
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  A += blockIdx.y * 64 * K;
  B += blockIdx.x * 64;
  float acc[4][4] = {{0.0f}};
  for (int k0 = 0; k0 < K; k0 += 16) {
    const int row = threadIdx.x / 4, col = threadIdx.x % 4 * 4;
    float4 a = *(const float4*)&A[row * K + k0 + col];
    As[col + 0][row] = a.x;
    As[col + 1][row] = a.y;
    As[col + 2][row] = a.z;
    As[col + 3][row] = a.w;
    *(float4*)&Bs[threadIdx.x / 16][threadIdx.x % 16 * 4] =
        *(const float4*)&B[(k0 + threadIdx.x / 16) * N + threadIdx.x % 16 * 4];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 16; ++k) {
      float4 av = *(float4*)&As[k][ty * 4];
      float4 bv = *(float4*)&Bs[k][tx * 4];
      float ar[4] = {av.x, av.y, av.z, av.w}, br[4] = {bv.x, bv.y, bv.z, bv.w};
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) acc[i][j] += ar[i] * br[j];
    }
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) {
      float* c = &C[(blockIdx.y * 64 + ty * 4 + i) * N + blockIdx.x * 64 + tx * 4 + j];
      *c = alpha * acc[i][j] + beta * *c;
    }
}
