/* 07 tensor_core
   idea:     tensor cores multiply: scores K q^T and outputs V^T P^T, 16 tokens by 8 query heads at a time
   grid:     (kv_heads, batch, partitions); the merge (query_heads, batch)
   block:    8 warps; the merge (head_dim / 4, MERGE_ROWS) threads
   thread:   two tokens' scores for two query heads; sums of its share of the dimensions for the same two
   since 06: mma in place of FMA and shuffles; weights rounded to 16 bits; an fp8 cache, whose queries stay exact
   needs:    16-bit queries; an fp8 cache compute capability 8.9
   look at:  warp instructions a token; issue active, which no longer keeps the ring waiting */
#include "page_ring.cuh"
#include "partials.cuh"
#include "fragments.cuh"

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
constexpr int HEADS = (GROUP_SIZE + HEAD_SETS - 1) / HEAD_SETS;  // query heads of a warp, columns of its products
constexpr int TOKEN_WARPS = WARPS / HEAD_SETS;                   // that share the tokens
constexpr bool FP8 = sizeof(CacheElement) == 1;
static_assert(TILE_TOKENS == 16);

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

extern "C" __global__ void __launch_bounds__(THREADS)
    paged_attention_tensor_core(Problem problem, Inputs in, Element* output, Partials partials, int partitions,
                                float value_scale) {
  extern __shared__ __align__(128) uint4 rings[];  // [WARPS, RING_SLOTS, TILE_CHUNKS], then the warps' values
  __shared__ Partial warp_parts[HEADS][WARPS];
  const int kv_head = blockIdx.x;
  const int sequence = blockIdx.y;
  const int start = blockIdx.z * PARTITION_TOKENS;
  const int end = min(start + PARTITION_TOKENS, in.context_lengths[sequence]);
  if (start >= end) return;
  const int warp = threadIdx.x / WARP_SIZE;
  const int lane = threadIdx.x % WARP_SIZE;
  const int row = lane / 4;                         // of a fragment
  const int pair = lane % 4 * 2;                    // its first column
  const int first_head = warp % HEAD_SETS * HEADS;  // of the group
  const int token_warp = warp / HEAD_SETS;

  // Of query head row, turned. A product does not mind in which order it adds, so that with an fp8 cache the lane takes
  // the four dimensions that it gets in one register of keys.
  unsigned query[HEAD_DIM / 16][2];
  const int head = min(first_head + row, GROUP_SIZE - 1);  // columns past the last head repeat it, and are not written
  const Element* query_row = in.query + query_offset(problem, sequence, kv_head * GROUP_SIZE + head);
#pragma unroll
  for (int d = 0; d < HEAD_DIM / 16; ++d) {
    query[d][0] = *reinterpret_cast<const unsigned*>(query_row + 16 * d + (FP8 ? 2 * pair : pair));
    query[d][1] = *reinterpret_cast<const unsigned*>(query_row + 16 * d + (FP8 ? 2 * pair + 2 : pair + 8));
  }
  float weighted[HEAD_DIM / 16][4] = {};  // values: dimensions by heads pair and pair + 1
  float max[2] = {-INFINITY, -INFINITY};  // of heads pair and pair + 1
  float sum[2] = {};                      // the lane's share

  // BEGIN SOLUTION
  PageRing<OnePartition, TOKEN_WARPS> ring(problem, in, {{sequence, start, end, kv_head}, true},
                                           rings + warp * RING_SLOTS * TILE_CHUNKS, token_warp, lane);
  for (int tile = start + token_warp * TILE_TOKENS; tile < end; tile += TOKEN_WARPS * TILE_TOKENS) {
    const uint4* keys = ring.wait();
    float products[2][4] = {};  // tokens by heads, in two chains: each multiplication waits for the one before
#pragma unroll
    for (int c = 0; c < ROW_CHUNKS; c += 2) {
      unsigned key[4];
      load_matrices<false>(key, chunk_address(keys, lane % 16, c + lane / 16));
      if (FP8) {
        unsigned wide[4][2];
#pragma unroll
        for (int m = 0; m < 4; ++m) widen(key[m], wide[m][0], wide[m][1]);
        multiply(products[0], wide[0][0], wide[1][0], wide[0][1], wide[1][1], query[c]);
        multiply(products[1], wide[2][0], wide[3][0], wide[2][1], wide[3][1], query[c + 1]);
      } else {
        multiply(products[c / 2 % 2], key[0], key[1], key[2], key[3], query[c / 2]);
      }
    }
    ring.template release<false>();

    float weight[4];  // of tokens row and row + 8, for heads pair and pair + 1
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool valid = tile + row + i / 2 * 8 < end;
      weight[i] = valid ? (products[0][i] + products[1][i]) * problem.scale : -INFINITY;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float larger = fmaxf(max[h], fmaxf(weight[h], weight[h + 2]));
#pragma unroll
      for (int offset = 4; offset < WARP_SIZE; offset *= 2) {
        larger = fmaxf(larger, __shfl_xor_sync(FULL_WARP, larger, offset));
      }
      const float keep = __expf(max[h] - larger);
      max[h] = larger;
      weight[h] = __expf(weight[h] - larger);
      weight[h + 2] = __expf(weight[h + 2] - larger);
      sum[h] = sum[h] * keep + weight[h] + weight[h + 2];
#pragma unroll
      for (int d = 0; d < HEAD_DIM / 16; ++d) {
        weighted[d][h] *= keep;
        weighted[d][h + 2] *= keep;
      }
    }
    const unsigned weights[2] = {turn(pack(weight[0], weight[1])), turn(pack(weight[2], weight[3]))};

    const uint4* values = ring.wait();
#pragma unroll
    for (int c = 0; c < ROW_CHUNKS; c += 2) {
      unsigned value[4];  // tokens 0..7 of two chunks, then tokens 8..15
      load_matrices<true>(value, chunk_address(values, lane / 16 * 8 + lane % 8, c + lane / 8 % 2));
      if (FP8) {  // each register has two dimensions of two tokens: even dimensions in one product, odd in another
        unsigned even[4], odd[4];
#pragma unroll
        for (int m = 0; m < 4; ++m) widen(__byte_perm(value[m], 0, 0x3120), even[m], odd[m]);
        multiply(weighted[c], even[0], even[1], even[2], even[3], weights);
        multiply(weighted[c + 1], odd[0], odd[1], odd[2], odd[3], weights);
      } else {
        multiply(weighted[c / 2], value[0], value[1], value[2], value[3], weights);
      }
    }
    ring.template release<true>();
  }
  // END SOLUTION

  __syncthreads();                                       // every warp is done with its ring
  float* warp_values = reinterpret_cast<float*>(rings);  // [HEADS, WARPS, HEAD_DIM], in their place
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int offset = 4; offset < WARP_SIZE; offset *= 2) sum[h] += __shfl_xor_sync(FULL_WARP, sum[h], offset);
    if (pair + h >= HEADS) continue;
    if (row == 0) warp_parts[pair + h][warp] = {max[h], sum[h]};
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; ++d) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int dim = FP8 ? d / 2 * 32 + i * 16 + 2 * row + d % 2 : d * 16 + i * 8 + row;
        warp_values[((pair + h) * WARPS + warp) * HEAD_DIM + dim] = weighted[d][h + 2 * i];
      }
    }
  }
  __syncthreads();
  for (int item = threadIdx.x; item < GROUP_SIZE * COLUMNS; item += THREADS) {
    const int head = item / COLUMNS, column = item % COLUMNS, h = head % HEADS;
    const size_t entry = ((size_t)sequence * problem.query_heads + kv_head * GROUP_SIZE + head) * partitions + blockIdx.z;
    float4 merged;
    const Partial part = merge(warp_parts[h], reinterpret_cast<const float4*>(rings) + h * WARPS * COLUMNS + column,
                               head / HEADS, WARPS, HEAD_SETS, merged);
    partials.values[entry * COLUMNS + column] = merged;
    if (column == 0) partials.part[entry] = part;
  }
}

extern "C" __global__ void __launch_bounds__(COLUMNS * MERGE_ROWS)
    paged_attention_tensor_core_merge(Problem problem, Inputs in, Element* output, Partials partials, int partitions,
                                      float value_scale) {
  const size_t query = (size_t)blockIdx.y * problem.query_heads + blockIdx.x;
  const int used = (in.context_lengths[blockIdx.y] + PARTITION_TOKENS - 1) / PARTITION_TOKENS;
  merge_row<MERGE_ROWS>(partials, query * partitions, used, output + query * HEAD_DIM, value_scale);
}
