/* 03 gqa_reuse
   idea:     a page is staged in shared memory once and serves every query head of its group
   grid:     (kv_heads, batch)
   block:    one warp per query head of the group
   thread:   in staging, 16 bytes of a row; in attention, CHUNKS_PER_LANE chunks as in 02
   since 02: a block owns a key/value head; two block barriers per tile of tokens
   needs:    head_dim % 4 == 0, head_dim <= 128 * CHUNKS_PER_LANE, tile_tokens keys and values in shared memory
   look at:  a group's worth fewer global requests; shared memory decides how many blocks fit on an SM */
#include "paged_attention.cuh"

#ifndef CHUNKS_PER_LANE
#define CHUNKS_PER_LANE 2
#endif

extern "C" __global__ void paged_attention_gqa_reuse(Problem problem, Inputs in, float* output, int tile_tokens) {
  const int kv_head = blockIdx.x;
  const int sequence = blockIdx.y;
  const int lane = threadIdx.x % WARP_SIZE;
  const int warp = threadIdx.x / WARP_SIZE;
  const int warps = blockDim.x / WARP_SIZE;
  const int chunks = problem.head_dim / 4;

  const int context = in.context_lengths[sequence];
  const size_t row = query_offset(problem, sequence, kv_head * group_size(problem));
  const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

  extern __shared__ float4 tile[];
  float4* key_shared = tile;                            // [tile_tokens, chunks]
  float4* value_shared = tile + tile_tokens * chunks;  // [tile_tokens, chunks]

  float4 query[8][CHUNKS_PER_LANE], accumulator[8][CHUNKS_PER_LANE];
  float running_max[8], running_sum[8];
  for (int h = 0; h < warps; ++h) {
    running_max[h] = -INFINITY;
    running_sum[h] = 0.0f;
  for (int c = 0; c < CHUNKS_PER_LANE; ++c) {
    const int chunk = c * WARP_SIZE + lane;
    query[h][c] = chunk < chunks ? reinterpret_cast<const float4*>(in.query + row)[h * chunks + chunk] : zero;
    accumulator[h][c] = zero;
  }
  }

  // BEGIN SOLUTION
  for (int start = 0; start < context; start += problem.page_size) {
    const int page = physical_page(problem, in, sequence, start / problem.page_size);
    const int valid = min(problem.page_size, context - start);
    for (int first = 0; first < valid; first += tile_tokens) {  // one round where a page fits in the tile
      const int tokens = min(tile_tokens, valid - first);
      for (int token = warp; token < tokens; token += warps) {  // each warp copies whole rows
        const size_t base = cache_offset(problem, page, first + token, kv_head);
        for (int chunk = lane; chunk < chunks; chunk += WARP_SIZE) {
          key_shared[token * chunks + chunk] = reinterpret_cast<const float4*>(in.key_cache + base)[chunk];
          value_shared[token * chunks + chunk] = reinterpret_cast<const float4*>(in.value_cache + base)[chunk];
        }
      }
      __syncthreads();  // the tile is complete

      for (int token = 0; warp == 0 && token < tokens; ++token) {
        for (int h = 0; h < warps; ++h) {
        float4 value[CHUNKS_PER_LANE];
        float partial = 0.0f;
#pragma unroll
        for (int c = 0; c < CHUNKS_PER_LANE; ++c) {
          const int chunk = c * WARP_SIZE + lane;
          const float4 key = chunk < chunks ? key_shared[token * chunks + chunk] : zero;
          value[c] = chunk < chunks ? value_shared[token * chunks + chunk] : zero;
          partial += dot(query[h][c], key);
        }
        const float score = warp_sum(partial) * problem.scale;

        const float new_max = fmaxf(running_max[h], score);
        const float correction = __expf(running_max[h] - new_max);
        const float weight = __expf(score - new_max);
        running_sum[h] = running_sum[h] * correction + weight;
        running_max[h] = new_max;
#pragma unroll
        for (int c = 0; c < CHUNKS_PER_LANE; ++c) {
          accumulator[h][c] = rescale_add(accumulator[h][c], correction, weight, value[c]);
        }
        }
      }
      __syncthreads();  // every warp is done with the tile; it may be overwritten
    }
  }
  // END SOLUTION

  for (int h = 0; warp == 0 && h < warps; ++h) {
  const float inverse = context > 0 ? 1.0f / running_sum[h] : 0.0f;
#pragma unroll
  for (int c = 0; c < CHUNKS_PER_LANE; ++c) {
    const int chunk = c * WARP_SIZE + lane;
    if (chunk < chunks) {
      reinterpret_cast<float4*>(output + row)[h * chunks + chunk] = rescale_add(accumulator[h][c], inverse, 0.0f, zero);
    }
  }
  }
}
