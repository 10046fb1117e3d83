/* 06 async_ring
   idea:     each warp keeps several tiles in flight in a ring of its own, and waits for nobody else
   grid:     (kv_heads, batch, partitions); the merge (query_heads, batch)
   block:    8 warps; the merge (head_dim / 4, MERGE_ROWS) threads
   thread:   16-byte chunks of its warp's tokens for all the warp's query heads, then the score of one token and head
   since 05: a ring a warp in place of a tile a block; no block barrier until the partition is done
   needs:    cp.async (compute capability 8.0); page_size 8 or a multiple of 16; NHD or HND
   look at:  DRAM throughput; long scoreboard and barrier stalls, which the ring trades for issue slots */
#include "page_ring.cuh"
#include "partials.cuh"

#ifndef GROUP_SIZE
#define GROUP_SIZE 4
#endif
#ifndef PARTITION_TOKENS
#define PARTITION_TOKENS 512
#endif

constexpr int WARPS = 8;
constexpr int THREADS = WARPS * WARP_SIZE;
constexpr int MERGE_ROWS = 8;                                    // threads that share a column in the merge
constexpr int HEAD_SETS = (GROUP_SIZE + 7) / 8;                  // groups of more than 8 heads take two warps a tile
constexpr int HEADS = (GROUP_SIZE + HEAD_SETS - 1) / HEAD_SETS;  // query heads of a warp
constexpr int TOKEN_WARPS = WARPS / HEAD_SETS;                   // that share the tokens
constexpr int HEAD_SLOTS = power_of_two(HEADS > WARP_SIZE / TILE_TOKENS ? HEADS : WARP_SIZE / TILE_TOKENS);
constexpr int STEP_TOKENS = WARP_SIZE / HEAD_SLOTS;              // tokens whose scores fill the lanes of a warp
constexpr int STEPS = TILE_TOKENS / STEP_TOKENS;
constexpr int ROW_LANES = ROW_CHUNKS >= WARP_SIZE ? WARP_SIZE : power_of_two(ROW_CHUNKS > HEAD_SLOTS ? ROW_CHUNKS : HEAD_SLOTS);
constexpr int ROW_TOKENS = ROW_LANES / HEAD_SLOTS;               // tokens of a step that ROW_LANES lanes attend to
constexpr int LANE_CHUNKS = (ROW_CHUNKS + ROW_LANES - 1) / ROW_LANES;  // chunks of a row that a lane owns
constexpr int LANE_DIMS = LANE_CHUNKS * ROW_CHUNK;

// The block's partition, which is all that its warps attend to.
struct OnePartition {
  Segment segment;
  bool left;

  __device__ __forceinline__ bool next(Segment& next) {
    if (!left) return false;
    next = segment;
    left = false;
    return true;
  }
};

// The lane's share of a row; zeros past its end. Query rows lie in order, tiles as tile_chunk says.
template <bool TILE>
__device__ __forceinline__ void load_row(const uint4* rows, int row, int row_lane, float (&elements)[LANE_DIMS]) {
#pragma unroll
  for (int c = 0; c < LANE_CHUNKS; ++c) {
    const int column = c * ROW_LANES + row_lane;
    const uint4* chunk = rows + (TILE ? tile_chunk(row, column) : row * ROW_CHUNKS + column);
    unpack(column < ROW_CHUNKS ? *chunk : make_uint4(0, 0, 0, 0), elements + c * ROW_CHUNK);
  }
}

// The lanes of a head, lane % HEAD_SLOTS, merge their partials by a butterfly: all of them end with the whole.
__device__ __forceinline__ Partial merge_lanes(Partial part) {
  float keep, take;
#pragma unroll
  for (int offset = HEAD_SLOTS; offset < WARP_SIZE; offset *= 2) {
    const Partial other = {__shfl_xor_sync(FULL_WARP, part.max, offset), __shfl_xor_sync(FULL_WARP, part.sum, offset)};
    part = combine(part, other, keep, take);
  }
  return part;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    paged_attention_async_ring(Problem problem, Inputs in, Element* output, Partials partials, int partitions) {
  extern __shared__ __align__(128) uint4 rings[];  // [WARPS, RING_SLOTS, TILE_CHUNKS], then the warps' values
  __shared__ Partial warp_parts[HEADS][WARPS];
  const int kv_head = blockIdx.x;
  const int sequence = blockIdx.y;
  const int start = blockIdx.z * PARTITION_TOKENS;
  const int end = min(start + PARTITION_TOKENS, in.context_lengths[sequence]);
  if (start >= end) return;
  const int warp = threadIdx.x / WARP_SIZE;
  const int lane = threadIdx.x % WARP_SIZE;
  const int row_lane = lane % ROW_LANES;
  const int row_token = lane / ROW_LANES * ROW_TOKENS;  // of a step
  const int first_head = warp % HEAD_SETS * HEADS;      // of the group
  const int token_warp = warp / HEAD_SETS;

  float query[HEADS][LANE_DIMS];
  float weighted[HEADS][LANE_DIMS] = {};  // values
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
    const int head = kv_head * GROUP_SIZE + min(first_head + h, GROUP_SIZE - 1);
    load_row<false>(reinterpret_cast<const uint4*>(in.query + query_offset(problem, sequence, head)), 0, row_lane, query[h]);
  }
  Partial running = {-INFINITY, 0.0f};  // of head lane % HEAD_SLOTS

  // BEGIN SOLUTION
  PageRing<OnePartition, TOKEN_WARPS> ring(problem, in, {{sequence, start, end, kv_head}, true},
                                           rings + warp * RING_SLOTS * TILE_CHUNKS, token_warp, lane);
  for (int tile = start + token_warp * TILE_TOKENS; tile < end; tile += TOKEN_WARPS * TILE_TOKENS) {
    const uint4* keys = ring.wait();
    float score[STEPS], keep, take;
    Partial part = {-INFINITY, 0.0f};
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      float products[ROW_LANES];
#pragma unroll
      for (int t = 0; t < ROW_TOKENS; ++t) {
        float key[LANE_DIMS];
        load_row<true>(keys, s * STEP_TOKENS + row_token + t, row_lane, key);
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
          float& product = products[t * HEAD_SLOTS + h];
          product = 0.0f;
#pragma unroll
          for (int d = 0; d < LANE_DIMS; ++d) product += query[h][d] * key[d];
        }
      }
      // The lane now stands for a token and a head: lane / HEAD_SLOTS of the step, lane % HEAD_SLOTS of the warp.
      score[s] = transpose_sum<HEAD_SLOTS, HEADS>(products) * problem.scale;
      const bool valid = tile + s * STEP_TOKENS + lane / HEAD_SLOTS < end;
      if (!valid) score[s] = -INFINITY;
      part = combine(part, {score[s], valid ? 1.0f : 0.0f}, keep, take);
    }
    ring.template release<false>();
    running = combine(running, merge_lanes(part), keep, take);
    if (__any_sync(FULL_WARP, keep != 1.0f)) {  // a larger maximum: ever rarer
#pragma unroll
      for (int h = 0; h < HEADS; ++h) {
        const float scale = __shfl_sync(FULL_WARP, keep, h);
#pragma unroll
        for (int d = 0; d < LANE_DIMS; ++d) weighted[h][d] *= scale;
      }
    }

    const uint4* values = ring.wait();
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      const float weight = score[s] == -INFINITY ? 0.0f : __expf(score[s] - running.max);
#pragma unroll
      for (int t = 0; t < ROW_TOKENS; ++t) {
        float value[LANE_DIMS];
        load_row<true>(values, s * STEP_TOKENS + row_token + t, row_lane, value);
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
          const float share = __shfl_sync(FULL_WARP, weight, (row_token + t) * HEAD_SLOTS + h);
#pragma unroll
          for (int d = 0; d < LANE_DIMS; ++d) weighted[h][d] += share * value[d];
        }
      }
    }
    ring.template release<true>();
  }
  // END SOLUTION

  __syncthreads();                                         // every warp is done with its ring
  float4* warp_values = reinterpret_cast<float4*>(rings);  // [HEADS, WARPS, COLUMNS], in their place
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
    if (lane == h) warp_parts[h][warp] = running;
#pragma unroll
    for (int d = 0; d < LANE_DIMS; ++d) {
      for (int offset = ROW_LANES; offset < WARP_SIZE; offset *= 2) {  // lanes that own the same dimensions
        weighted[h][d] += __shfl_xor_sync(FULL_WARP, weighted[h][d], offset);
      }
    }
#pragma unroll
    for (int d = 0; d < LANE_DIMS; d += 4) {
      const int column = ((d / ROW_CHUNK * ROW_LANES + row_lane) * ROW_CHUNK + d % ROW_CHUNK) / 4;
      if (lane < ROW_LANES && column < COLUMNS) {
        warp_values[(h * WARPS + warp) * COLUMNS + column] = reinterpret_cast<const float4&>(weighted[h][d]);
      }
    }
  }
  __syncthreads();
  for (int item = threadIdx.x; item < GROUP_SIZE * COLUMNS; item += THREADS) {
    const int head = item / COLUMNS, column = item % COLUMNS, h = head % HEADS;
    const size_t query_row = (size_t)sequence * problem.query_heads + kv_head * GROUP_SIZE + head;
    const size_t entry = query_row * partitions + blockIdx.z;
    float4 merged;
    const Partial part =
        merge(warp_parts[h], warp_values + h * WARPS * COLUMNS + column, head / HEADS, WARPS, HEAD_SETS, merged);
    partials.values[entry * COLUMNS + column] = merged;
    if (column == 0) partials.part[entry] = part;
  }
}

extern "C" __global__ void __launch_bounds__(COLUMNS * MERGE_ROWS)
    paged_attention_async_ring_merge(Problem problem, Inputs in, Element* output, Partials partials, int partitions) {
  const size_t query = (size_t)blockIdx.y * problem.query_heads + blockIdx.x;
  const int used = (in.context_lengths[blockIdx.y] + PARTITION_TOKENS - 1) / PARTITION_TOKENS;
  merge_row<MERGE_ROWS>(partials, query * partitions, used, output + query * HEAD_DIM, 1.0f);
}
