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

}
