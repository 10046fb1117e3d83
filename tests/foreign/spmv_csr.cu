// Sparse matrix times vector, a warp per row; volatile shared memory with warp syncs for the reduction.
extern "C" __global__ void spmv_csr(int rows, const int* ptr, const int* indices, const double* data, const double* x,
                                    double* y) {
  __shared__ volatile double vals[128];
  int thread_id = blockDim.x * blockIdx.x + threadIdx.x;
  int row = thread_id / 32, lane = thread_id & 31;
  if (row >= rows) return;
  double sum = 0;
  for (int jj = ptr[row] + lane; jj < ptr[row + 1]; jj += 32) sum += data[jj] * x[indices[jj]];
  vals[threadIdx.x] = sum;
  __syncwarp();
  for (int s = 16; s > 0; s /= 2) {
    if (lane < s) vals[threadIdx.x] += vals[threadIdx.x + s];
    __syncwarp();
  }
  if (lane == 0) y[row] += vals[threadIdx.x];
}
