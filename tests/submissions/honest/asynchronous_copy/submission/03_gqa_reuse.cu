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

__device__ __forceinline__ void copy_async(float4* to, const float4* from) {
  const unsigned address = __cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

extern "C" __global__ void paged_attention_gqa_reuse(Problem problem, Inputs in, float* output, int tile_tokens) {
  const int kv_head = blockIdx.x;
  const int sequence = blockIdx.y;
  const int lane = threadIdx.x % WARP_SIZE;
  const int warp = threadIdx.x / WARP_SIZE;
  const int warps = blockDim.x / WARP_SIZE;
  const int chunks = problem.head_dim / 4;

  const int query_head = kv_head * group_size(problem) + warp;
  const int context = in.context_lengths[sequence];
  const size_t row = query_offset(problem, sequence, query_head);
  const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

  extern __shared__ float4 tile[];
  float4* key_shared = tile;                            // [tile_tokens, chunks]
  float4* value_shared = tile + tile_tokens * chunks;  // [tile_tokens, chunks]

  float4 query[CHUNKS_PER_LANE], accumulator[CHUNKS_PER_LANE];
#pragma unroll
  for (int c = 0; c < CHUNKS_PER_LANE; ++c) {
    const int chunk = c * WARP_SIZE + lane;
    query[c] = chunk < chunks ? reinterpret_cast<const float4*>(in.query + row)[chunk] : zero;
    accumulator[c] = zero;
  }
  float running_max = -INFINITY;
  float running_sum = 0.0f;

  // BEGIN SOLUTION
  for (int start = 0; start < context; start += problem.page_size) {
    const int page = physical_page(problem, in, sequence, start / problem.page_size);
    const int valid = min(problem.page_size, context - start);
    for (int first = 0; first < valid; first += tile_tokens) {  // one round where a page fits in the tile
      const int tokens = min(tile_tokens, valid - first);
      for (int token = warp; token < tokens; token += warps) {  // each warp copies whole rows
        const size_t base = cache_offset(problem, page, first + token, kv_head);
        for (int chunk = lane; chunk < chunks; chunk += WARP_SIZE) {
          copy_async(&key_shared[token * chunks + chunk], reinterpret_cast<const float4*>(in.key_cache + base) + chunk);
          copy_async(&value_shared[token * chunks + chunk], reinterpret_cast<const float4*>(in.value_cache + base) + chunk);
        }
      }
      asm volatile("cp.async.wait_all;" ::: "memory");
      __syncthreads();  // the tile is complete

      for (int token = 0; token < tokens; ++token) {
        float4 value[CHUNKS_PER_LANE];
        float partial = 0.0f;
#pragma unroll
        for (int c = 0; c < CHUNKS_PER_LANE; ++c) {
          const int chunk = c * WARP_SIZE + lane;
          const float4 key = chunk < chunks ? key_shared[token * chunks + chunk] : zero;
          value[c] = chunk < chunks ? value_shared[token * chunks + chunk] : zero;
          partial += dot(query[c], key);
        }
        const float score = warp_sum(partial) * problem.scale;

        const float new_max = fmaxf(running_max, score);
        const float correction = __expf(running_max - new_max);
        const float weight = __expf(score - new_max);
        running_sum = running_sum * correction + weight;
        running_max = new_max;
#pragma unroll
        for (int c = 0; c < CHUNKS_PER_LANE; ++c) {
          accumulator[c] = rescale_add(accumulator[c], correction, weight, value[c]);
        }
      }
      __syncthreads();  // every warp is done with the tile; it may be overwritten
    }
  }
  // END SOLUTION

  const float inverse = context > 0 ? 1.0f / running_sum : 0.0f;
#pragma unroll
  for (int c = 0; c < CHUNKS_PER_LANE; ++c) {
    const int chunk = c * WARP_SIZE + lane;
    if (chunk < chunks) {
      reinterpret_cast<float4*>(output + row)[chunk] = rescale_add(accumulator[c], inverse, 0.0f, zero);
    }
  }
}
