#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

extern "C" __global__ void __launch_bounds__(128) cub_block(unsigned* keys, int* prefix, unsigned* total) {
  using Sort = cub::BlockRadixSort<unsigned, 128, 2>;
  using Scan = cub::BlockScan<int, 128>;
  using Reduce = cub::BlockReduce<unsigned, 128>;
  __shared__ union {
    typename Sort::TempStorage sort;
    typename Scan::TempStorage scan;
    typename Reduce::TempStorage reduce;
  } storage;
  unsigned mine[2] = {keys[threadIdx.x * 2], keys[threadIdx.x * 2 + 1]};
  unsigned sum = Reduce(storage.reduce).Sum(mine[0] ^ mine[1]);
  __syncthreads();
  Sort(storage.sort).Sort(mine);
  __syncthreads();
  int odd = (mine[0] & 1) + (mine[1] & 1), before;
  Scan(storage.scan).ExclusiveSum(odd, before);
  keys[threadIdx.x * 2] = mine[0];
  keys[threadIdx.x * 2 + 1] = mine[1];
  prefix[threadIdx.x] = before;
  if (threadIdx.x == 0) *total = sum;
}
