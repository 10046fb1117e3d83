/* 05 partitioned_gqa, reduced by CUB
   idea:     the same combine as the operator of cub::WarpReduce and cub::BlockReduce, at each of the three levels
   grid:     (kv_heads, batch, partitions); the merge (query_heads, batch, head_dim / 4)
   block:    4 warps; the merge 128 threads
   thread:   as in 05; in the merges, one partial and four dimensions of its weighted values
   since 05: CUB's logical warps are neighbouring lanes, and only the first of them gets the result
   look at:  shuffles for the values that a hand-written merge keeps in the thread that owns them */
#include "05_partitioned_gqa.cu"

// cub/cub.cuh as a whole holds host code that NVRTC refuses.
#include <cub/block/block_reduce.cuh>
#include <cub/warp/warp_reduce.cuh>

constexpr int TOKEN_WARPS = WARPS / HEAD_SETS;  // warps that attend with the same query heads

// A partial with the thread's slice of its weighted values: the compound that CUB reduces.
struct Slice {
  Partial part;
  float4 values;
};

struct Combine {
  __device__ Partial operator()(Partial a, Partial b) const {
    float scale_a, scale_b;
    return combine(a, b, scale_a, scale_b);
  }
  __device__ Slice operator()(const Slice& a, const Slice& b) const {
    float scale_a, scale_b;
    const Partial part = combine(a.part, b.part, scale_a, scale_b);
    return {part, rescale_add(a.values, scale_a, scale_b, b.values)};
  }
};

__device__ __forceinline__ Slice empty_slice() { return {{-INFINITY, 0.0f}, make_float4(0.0f, 0.0f, 0.0f, 0.0f)}; }

__device__ __forceinline__ Partial from_lane(Partial part, int lane) {
  return {__shfl_sync(FULL_WARP, part.max, lane), __shfl_sync(FULL_WARP, part.sum, lane)};
}

using LaneReduce = cub::WarpReduce<Partial, STEP_TOKENS>;
using WarpMerge = cub::WarpReduce<Slice, TOKEN_WARPS>;
using PartitionMerge = cub::BlockReduce<Slice, THREADS>;

// Level 1: the lanes of a head lie HEAD_SLOTS apart; they are brought side by side and back again.
struct CubLanes {
  LaneReduce::TempStorage* storage;

  __device__ __forceinline__ Partial operator()(Partial part) const {
    const int lane = threadIdx.x % WARP_SIZE;
    part = from_lane(part, lane % STEP_TOKENS * HEAD_SLOTS + lane / STEP_TOKENS);
    part = LaneReduce(storage[threadIdx.x / STEP_TOKENS]).Reduce(part, Combine());
    return from_lane(part, lane % HEAD_SLOTS * STEP_TOKENS);
  }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    paged_attention_partitioned_gqa_cub(Problem problem, Inputs in, Element* output, Partials partials, int partitions) {
  extern __shared__ uint4 tiles[];
  __shared__ Partial warp_parts[HEADS][WARPS];
  __shared__ LaneReduce::TempStorage lane_storage[THREADS / STEP_TOKENS];
  __shared__ WarpMerge::TempStorage merge_storage[THREADS / TOKEN_WARPS];
  const int start = blockIdx.z * PARTITION_TOKENS;
  const int end = min(start + PARTITION_TOKENS, in.context_lengths[blockIdx.y]);
  if (start >= end) return;
  attend(problem, in, start, end, tiles, warp_parts, CubLanes{lane_storage});

  // Level 2: neighbouring lanes take the partials of the warps, for one head and column.
  const float4* warp_values = reinterpret_cast<const float4*>(tiles);
  const int place = threadIdx.x / TOKEN_WARPS;
  for (int first = 0; first < GROUP_SIZE * COLUMNS; first += THREADS / TOKEN_WARPS) {
    const int item = first + place, head = item / COLUMNS, column = item % COLUMNS;
    Slice slice = empty_slice();
    if (item < GROUP_SIZE * COLUMNS) {
      const int warp = threadIdx.x % TOKEN_WARPS * HEAD_SETS + head / HEADS;
      slice = {warp_parts[head % HEADS][warp], warp_values[(head % HEADS * WARPS + warp) * COLUMNS + column]};
    }
    slice = WarpMerge(merge_storage[place]).Reduce(slice, Combine());
    if (item < GROUP_SIZE * COLUMNS && threadIdx.x % TOKEN_WARPS == 0) {
      const size_t entry = partial_entry(problem, head, partitions);
      partials.values[entry * COLUMNS + column] = slice.values;
      if (column == 0) partials.part[entry] = slice.part;
    }
  }
}

// Level 3: a block streams the partials of one head and reduces one column of them.
extern "C" __global__ void __launch_bounds__(THREADS)
    paged_attention_partitioned_gqa_cub_merge(Problem problem, Inputs in, Element* output, Partials partials,
                                              int partitions) {
  __shared__ PartitionMerge::TempStorage storage;
  const int column = blockIdx.z;
  const int used = (in.context_lengths[blockIdx.y] + PARTITION_TOKENS - 1) / PARTITION_TOKENS;
  const size_t query = (size_t)blockIdx.y * problem.query_heads + blockIdx.x;
  Slice slice = empty_slice();
  for (int i = threadIdx.x; i < used; i += THREADS) {
    const size_t entry = query * partitions + i;
    slice = Combine()(slice, {partials.part[entry], partials.values[entry * COLUMNS + column]});
  }
  slice = PartitionMerge(storage).Reduce(slice, Combine());
  if (threadIdx.x == 0) write_output(output + query * HEAD_DIM + 4 * column, slice.part, slice.values);
}
