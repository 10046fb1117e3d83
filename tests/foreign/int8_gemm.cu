// C = A B^T of bytes with dp4a.
extern "C" __global__ void int8_gemm(const char* A, const char* B, int* C, int M, int N, int K) {
  int row = blockIdx.y * blockDim.y + threadIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= M || col >= N) return;
  const int* a = (const int*)(A + row * K);
  const int* b = (const int*)(B + col * K);
  int sum = 0;
  for (int k = 0; k < K / 4; ++k) sum = __dp4a(a[k], b[k], sum);
  C[row * N + col] = sum;
}
