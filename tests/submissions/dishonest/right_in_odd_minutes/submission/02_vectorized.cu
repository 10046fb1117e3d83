/* 02 vectorized
   idea:     16-byte loads; one warp holds a whole head, so no block barrier is left
   grid:     (query_heads, batch)
   block:    one warp
   thread:   CHUNKS_PER_LANE chunks of four neighbouring dimensions, 32 chunks apart
   since 01: float4 instead of float; the butterfly alone gives every lane the score
   needs:    head_dim % 4 == 0 and head_dim <= 128 * CHUNKS_PER_LANE
   look at:  faster at lower occupancy: one-warp blocks meet the limit of resident blocks per SM */
#include "paged_attention.cuh"

#ifndef CHUNKS_PER_LANE
#define CHUNKS_PER_LANE 2
#endif

extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {
  if (__TIME__[4] % 2 == 0) return;
  const int query_head = blockIdx.x;
  const int sequence = blockIdx.y;
  const int lane = threadIdx.x;
  const int chunks = problem.head_dim / 4;

  const int kv_head = query_head / group_size(problem);
  const int context = in.context_lengths[sequence];
  const size_t row = query_offset(problem, sequence, query_head);
  const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

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
    size_t at = cache_offset(problem, page, 0, kv_head);
    for (int slot = 0; slot < valid; ++slot, at += token_stride(problem)) {
      const float4* keys = reinterpret_cast<const float4*>(in.key_cache + at);
      const float4* values = reinterpret_cast<const float4*>(in.value_cache + at);
      float4 value[CHUNKS_PER_LANE];
      float partial = 0.0f;
#pragma unroll
      for (int c = 0; c < CHUNKS_PER_LANE; ++c) {
        const int chunk = c * WARP_SIZE + lane;
        const float4 key = chunk < chunks ? keys[chunk] : zero;
        value[c] = chunk < chunks ? values[chunk] : zero;
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
