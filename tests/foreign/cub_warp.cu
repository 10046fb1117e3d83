#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>

struct Larger {
  __device__ float operator()(float a, float b) const { return a > b ? a : b; }
};

extern "C" __global__ void cub_warp(const float* values, float* best_of_8, int* running, float* segments) {
  using Reduce8 = cub::WarpReduce<float, 8>;
  using Scan = cub::WarpScan<int>;
  using Reduce = cub::WarpReduce<float>;
  __shared__ typename Reduce8::TempStorage small[8];
  __shared__ typename Scan::TempStorage scans[2];
  __shared__ typename Reduce::TempStorage whole[2];
  int warp = threadIdx.x / 32, tile = threadIdx.x / 8;
  float value = values[threadIdx.x];
  float best = Reduce8(small[tile]).Reduce(value, Larger());
  if (threadIdx.x % 8 == 0) best_of_8[tile] = best;
  int sum;
  Scan(scans[warp]).InclusiveSum(value > 0.0f ? 1 : 0, sum);
  running[threadIdx.x] = sum;
  float head = Reduce(whole[warp]).HeadSegmentedSum(value, threadIdx.x % 5 == 0);
  segments[threadIdx.x] = head;
}
