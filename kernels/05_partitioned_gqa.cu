/* 05 partitioned_gqa
   idea:     split the context (04) and share each page (03); one combine merges lanes, warps and partitions
   grid:     (kv_heads, batch, partitions); the merge (query_heads, batch)
   block:    4 warps; the merge (head_dim / 4, MERGE_ROWS) threads
   thread:   16-byte chunks of the warp's tokens for all its query heads, then the score of one token and head
   since 04: a block serves a whole group of query heads; keys arrive while values are used, and the other way round
   needs:    head_dim a multiple of 16 bytes and <= 256, groups of <= 16; sizes are fixed when it compiles
   look at:  the bytes of 03 with the parallelism of 04; how many query heads use a key once it is in registers */
#include "cache_tile.cuh"

#ifndef GROUP_SIZE
#define GROUP_SIZE 4
#endif
#ifndef TILE_TOKENS
#define TILE_TOKENS 32
#endif
#ifndef PARTITION_TOKENS
#define PARTITION_TOKENS 512
#endif

constexpr int WARPS = 4;
constexpr int THREADS = WARPS * WARP_SIZE;
constexpr int MERGE_ROWS = 8;                                      // threads that share a column in the merge
constexpr int COLUMNS = HEAD_DIM / 4;                              // of four dimensions
constexpr int HEAD_SETS = (GROUP_SIZE + 7) / 8;                    // groups of more than 8 heads take two warps a token
constexpr int HEADS = (GROUP_SIZE + HEAD_SETS - 1) / HEAD_SETS;    // query heads of a warp
constexpr int WARP_TOKENS = TILE_TOKENS * HEAD_SETS / WARPS;       // tokens of a tile that a warp attends to
constexpr int HEAD_SLOTS = power_of_two(HEADS > WARP_SIZE / WARP_TOKENS ? HEADS : WARP_SIZE / WARP_TOKENS);
constexpr int STEP_TOKENS = WARP_SIZE / HEAD_SLOTS;                // tokens whose scores fill the lanes of a warp
constexpr int STEPS = WARP_TOKENS / STEP_TOKENS;
constexpr int ROW_LANES = CHUNKS >= WARP_SIZE ? WARP_SIZE : power_of_two(CHUNKS > HEAD_SLOTS ? CHUNKS : HEAD_SLOTS);
constexpr int ROW_TOKENS = ROW_LANES / HEAD_SLOTS;                 // tokens of a step that ROW_LANES lanes attend to
constexpr int LANE_CHUNKS = (CHUNKS + ROW_LANES - 1) / ROW_LANES;  // chunks of a row that a lane owns
constexpr int LANE_DIMS = LANE_CHUNKS * CHUNK;
constexpr int PARTITION_PAGES = (PARTITION_TOKENS + PAGE_SIZE - 2) / PAGE_SIZE + 1;

// Attention over some of the tokens, as it takes to merge it with attention over others. The weighted values, sum of
// exp(score - max) * value, lie beside it, spread over threads; they take the scales that combine gives.
struct Partial {
  float max;  // of the scores, -INFINITY where there is no token
  float sum;  // of exp(score - max)
};

// Scratch, an entry for every (sequence, query head, partition) with a token.
struct Partials {
  Partial* part;   // [batch, query_heads, partitions]
  float4* values;  // [batch, query_heads, partitions, COLUMNS], not divided by the sum
};

// The block's entry for a query head of its group.
__device__ __forceinline__ size_t partial_entry(const Problem& problem, int head, int partitions) {
  const size_t query = (size_t)blockIdx.y * problem.query_heads + blockIdx.x * GROUP_SIZE + head;
  return query * partitions + blockIdx.z;
}

__device__ __forceinline__ Partial combine(Partial a, Partial b, float& scale_a, float& scale_b) {
  // BEGIN SOLUTION
  const float max = fmaxf(a.max, b.max);
  scale_a = a.max == max ? 1.0f : __expf(a.max - max);  // not -INFINITY minus -INFINITY
  scale_b = b.max == max ? 1.0f : __expf(b.max - max);
  return {max, scale_a * a.sum + scale_b * b.sum};
  // END SOLUTION
}

// Merges partials first, first + step, ... below count, and one column of their values.
__device__ __forceinline__ Partial merge(const Partial* parts, const float4* values, int first, int count, int step,
                                         float4& merged) {
  Partial whole = {-INFINITY, 0.0f};
  merged = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
  for (int i = first; i < count; i += step) {
    float keep, take;
    whole = combine(whole, parts[i], keep, take);
    merged = rescale_add(merged, keep, take, values[i * COLUMNS]);
  }
  return whole;
}

// The lane's share of a row of HEAD_DIM elements; zeros past its end.
__device__ __forceinline__ void load_row(const uint4* row, int row_lane, float (&elements)[LANE_DIMS]) {
#pragma unroll
  for (int c = 0; c < LANE_CHUNKS; ++c) {
    const int chunk = c * ROW_LANES + row_lane;
    unpack(chunk < CHUNKS ? row[chunk] : make_uint4(0, 0, 0, 0), elements + c * CHUNK);
  }
}

// The lanes of a head, lane % HEAD_SLOTS, merge their partials by a butterfly: all of them end with the whole.
struct MergeLanes {
  __device__ __forceinline__ Partial operator()(Partial part) const {
    float keep, take;
#pragma unroll
    for (int offset = HEAD_SLOTS; offset < WARP_SIZE; offset *= 2) {
      const Partial other = {__shfl_xor_sync(FULL_WARP, part.max, offset), __shfl_xor_sync(FULL_WARP, part.sum, offset)};
      part = combine(part, other, keep, take);
    }
    return part;
  }
};

// Each warp attends with its query heads to its tokens of the partition; its partials are left in shared memory.
template <class Lanes>
__device__ __forceinline__ void attend(const Problem& problem, const Inputs& in, int start, int end, uint4* tiles,
                                       Partial (&warp_parts)[HEADS][WARPS], Lanes merge_lanes) {
  const int kv_head = blockIdx.x;
  const int sequence = blockIdx.y;
  const int warp = threadIdx.x / WARP_SIZE;
  const int lane = threadIdx.x % WARP_SIZE;
  const int row_lane = lane % ROW_LANES;
  const int first_head = warp % HEAD_SETS * HEADS;        // of the group
  const int warp_token = warp / HEAD_SETS * WARP_TOKENS;  // of a tile
  const int row_token = lane / ROW_LANES * ROW_TOKENS;    // of a step
  uint4* keys = tiles;                                    // [TILE_TOKENS, CHUNKS]
  uint4* values = tiles + TILE_TOKENS * CHUNKS;           // [TILE_TOKENS, CHUNKS]

  __shared__ unsigned page_rows[PARTITION_PAGES];
  const int first_page = start / PAGE_SIZE;
  for (int page = first_page + threadIdx.x; page * PAGE_SIZE < end; page += THREADS) {
    page_rows[page - first_page] = first_row(problem, physical_page(problem, in, sequence, page), kv_head);
  }
  const unsigned slot_rows = LAYOUT == NHD ? problem.kv_heads : 1;
  const TokenRun run = {page_rows, (unsigned)first_page, slot_rows, (unsigned)end};

  float query[HEADS][LANE_DIMS];
  float weighted[HEADS][LANE_DIMS] = {};  // values
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
    const int head = kv_head * GROUP_SIZE + min(first_head + h, GROUP_SIZE - 1);
    load_row(reinterpret_cast<const uint4*>(in.query + query_offset(problem, sequence, head)), row_lane, query[h]);
  }
  Partial running = {-INFINITY, 0.0f};  // of head lane % HEAD_SLOTS
  __syncthreads();                      // the pages are known

  // BEGIN SOLUTION
  copy_keys<TILE_TOKENS, THREADS>(run, in, start, keys);
  for (int tile = start; tile < end; tile += TILE_TOKENS) {
    wait_for_copies();
    __syncthreads();  // the keys are complete, and every warp is done with the values of the tile before
    copy_values<TILE_TOKENS, THREADS>(run, in, tile, values);

    float score[STEPS], keep, take;
    Partial part = {-INFINITY, 0.0f};
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      float products[ROW_LANES];
#pragma unroll
      for (int t = 0; t < ROW_TOKENS; ++t) {
        float key[LANE_DIMS];
        load_row(keys + (warp_token + s * STEP_TOKENS + row_token + t) * CHUNKS, row_lane, key);
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
      const bool valid = tile + warp_token + s * STEP_TOKENS + lane / HEAD_SLOTS < end;
      if (!valid) score[s] = -INFINITY;
      part = combine(part, {score[s], valid ? 1.0f : 0.0f}, keep, take);
    }
    running = combine(running, merge_lanes(part), keep, take);
    if (__any_sync(FULL_WARP, keep != 1.0f)) {  // a larger maximum: ever rarer
#pragma unroll
      for (int h = 0; h < HEADS; ++h) {
        const float scale = __shfl_sync(FULL_WARP, keep, h);
#pragma unroll
        for (int d = 0; d < LANE_DIMS; ++d) weighted[h][d] *= scale;
      }
    }

    wait_for_copies();
    __syncthreads();  // the values are complete, and every warp is done with the keys
    if (tile + TILE_TOKENS < end) copy_keys<TILE_TOKENS, THREADS>(run, in, tile + TILE_TOKENS, keys);

#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      const float weight = score[s] == -INFINITY ? 0.0f : __expf(score[s] - running.max);
#pragma unroll
      for (int t = 0; t < ROW_TOKENS; ++t) {
        float value[LANE_DIMS];
        load_row(values + (warp_token + s * STEP_TOKENS + row_token + t) * CHUNKS, row_lane, value);
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
          const float share = __shfl_sync(FULL_WARP, weight, (row_token + t) * HEAD_SLOTS + h);
#pragma unroll
          for (int d = 0; d < LANE_DIMS; ++d) weighted[h][d] += share * value[d];
        }
      }
    }
  }
  // END SOLUTION

  __syncthreads();                                         // every warp is done with the tiles
  float4* warp_values = reinterpret_cast<float4*>(tiles);  // [HEADS, WARPS, COLUMNS], in their place
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
      const int column = ((d / CHUNK * ROW_LANES + row_lane) * CHUNK + d % CHUNK) / 4;
      if (lane < ROW_LANES && column < COLUMNS) {
        warp_values[(h * WARPS + warp) * COLUMNS + column] = reinterpret_cast<const float4&>(weighted[h][d]);
      }
    }
  }
  __syncthreads();
}

// The block's partials: the warps' merged, for every query head of the group.
__device__ __forceinline__ void write_partials(const Problem& problem, const uint4* tiles,
                                               const Partial (&warp_parts)[HEADS][WARPS], const Partials& partials,
                                               int partitions) {
  const float4* warp_values = reinterpret_cast<const float4*>(tiles);
  for (int item = threadIdx.x; item < GROUP_SIZE * COLUMNS; item += THREADS) {
    const int head = item / COLUMNS, column = item % COLUMNS, h = head % HEADS;
    const size_t entry = partial_entry(problem, head, partitions);
    float4 merged;
    const Partial part =
        merge(warp_parts[h], warp_values + h * WARPS * COLUMNS + column, head / HEADS, WARPS, HEAD_SETS, merged);
    partials.values[entry * COLUMNS + column] = merged;
    if (column == 0) partials.part[entry] = part;
  }
}

// Four dimensions of an output row; zeros where there was no token.
__device__ __forceinline__ void write_output(Element* output, Partial whole, float4 values) {
  const float inverse = whole.sum > 0.0f ? 1.0f / whole.sum : 0.0f;
  output[0] = static_cast<Element>(values.x * inverse);
  output[1] = static_cast<Element>(values.y * inverse);
  output[2] = static_cast<Element>(values.z * inverse);
  output[3] = static_cast<Element>(values.w * inverse);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    paged_attention_partitioned_gqa(Problem problem, Inputs in, Element* output, Partials partials, int partitions) {
  extern __shared__ uint4 tiles[];
  __shared__ Partial warp_parts[HEADS][WARPS];
  const int start = blockIdx.z * PARTITION_TOKENS;
  const int end = min(start + PARTITION_TOKENS, in.context_lengths[blockIdx.y]);
  if (start >= end) return;
  attend(problem, in, start, end, tiles, warp_parts, MergeLanes());
  write_partials(problem, tiles, warp_parts, partials, partitions);
}

extern "C" __global__ void __launch_bounds__(COLUMNS * MERGE_ROWS)
    paged_attention_partitioned_gqa_merge(Problem problem, Inputs in, Element* output, Partials partials,
                                          int partitions) {
  const int column = threadIdx.x;
  const int row = threadIdx.y;
  const int used = (in.context_lengths[blockIdx.y] + PARTITION_TOKENS - 1) / PARTITION_TOKENS;
  const size_t query = (size_t)blockIdx.y * problem.query_heads + blockIdx.x;
  const size_t first = query * partitions;
  __shared__ Partial row_parts[MERGE_ROWS];
  __shared__ float4 row_values[MERGE_ROWS][COLUMNS];

  // BEGIN SOLUTION
  float4 merged;
  Partial part = merge(partials.part + first, partials.values + first * COLUMNS + column, row, used, MERGE_ROWS, merged);
  row_values[row][column] = merged;
  if (column == 0) row_parts[row] = part;
  __syncthreads();
  if (row > 0) return;
  part = merge(row_parts, row_values[0] + column, 0, MERGE_ROWS, 1, merged);
  write_output(output + query * HEAD_DIM + 4 * column, part, merged);
  // END SOLUTION
}
