// D = A B^T in fp16 on tensor cores: 32 x 32 a block of 4 warps, tiles copied asynchronously, two buffers.
#include <cuda_fp16.h>

constexpr int BM = 32, BN = 32, BK = 32, STRIDE = BK + 8;

__device__ __forceinline__ void copy16(half* shared, const half* global) {
  unsigned to = (unsigned)__cvta_generic_to_shared(shared);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(global));
}

__device__ __forceinline__ void load_matrix(unsigned (&r)[4], const half* row) {
  unsigned at = (unsigned)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}

__device__ __forceinline__ void load_tile(half (*tile)[STRIDE], const half* matrix, int row0, int k0, int ld) {
  int row = threadIdx.x / 4, chunk = threadIdx.x % 4 * 8;
  copy16(&tile[row][chunk], matrix + (size_t)(row0 + row) * ld + k0 + chunk);
}

extern "C" __global__ void __launch_bounds__(128) mma_gemm(const half* A, const half* B, float* D, int N, int K) {
  __shared__ __align__(16) half As[2][BM][STRIDE], Bs[2][BN][STRIDE];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int wm = warp / 2 * 16, wn = warp % 2 * 16;
  float acc[2][4] = {};
  load_tile(As[0], A, blockIdx.y * BM, 0, K);
  load_tile(Bs[0], B, blockIdx.x * BN, 0, K);
  asm volatile("cp.async.commit_group;\n");
  for (int k0 = 0, stage = 0; k0 < K; k0 += BK, stage ^= 1) {
    if (k0 + BK < K) {
      load_tile(As[stage ^ 1], A, blockIdx.y * BM, k0 + BK, K);
      load_tile(Bs[stage ^ 1], B, blockIdx.x * BN, k0 + BK, K);
    }
    asm volatile("cp.async.commit_group;\n");
    asm volatile("cp.async.wait_group 1;\n");
    __syncthreads();
#pragma unroll
    for (int kk = 0; kk < BK; kk += 16) {
      unsigned a[4], b[4];
      load_matrix(a, &As[stage][wm + lane % 16][kk + lane / 16 * 8]);
      load_matrix(b, &Bs[stage][wn + lane % 8 + lane / 16 * 8][kk + lane / 8 % 2 * 8]);
#pragma unroll
      for (int n = 0; n < 2; ++n)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};\n"
                     : "+f"(acc[n][0]), "+f"(acc[n][1]), "+f"(acc[n][2]), "+f"(acc[n][3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[2 * n]), "r"(b[2 * n + 1]));
    }
    __syncthreads();
  }
  const int row = blockIdx.y * BM + wm + lane / 4, col = blockIdx.x * BN + wn + lane % 4 * 2;
  for (int n = 0; n < 2; ++n) {
    *(float2*)&D[row * N + col + 8 * n] = make_float2(acc[n][0], acc[n][1]);
    *(float2*)&D[(row + 8) * N + col + 8 * n] = make_float2(acc[n][2], acc[n][3]);
  }
}
