/* 01 cooperative
   idea:     the threads of a block share one dot product: a butterfly in each warp, then shared memory
   grid:     (query_heads, batch)
   block:    head_dim threads, rounded up to whole warps
   thread:   one dimension of query, key, value and output
   since 00: a score is computed once per block, not once per thread; two barriers per token
   needs:    head_dim <= 256
   look at:  the same DRAM bytes in far less time; now loads and barriers are what it waits for */
#include "paged_attention.cuh"

constexpr int MAX_WARPS = 8;

extern "C" __global__ void paged_attention_cooperative(Problem problem, Inputs in, float* output) {
  const int query_head = blockIdx.x;
  const int sequence = blockIdx.y;
  const int dim = threadIdx.x;
  const int lane = threadIdx.x % WARP_SIZE;
  const int warp = threadIdx.x / WARP_SIZE;
  const int warps = blockDim.x / WARP_SIZE;
  const bool owns_dim = dim < problem.head_dim;  // the others stay: barriers and shuffles need them

  const int kv_head = query_head / group_size(problem);
  const int context = in.context_lengths[sequence];
  const size_t row = query_offset(problem, sequence, query_head);
  const float query = owns_dim ? in.query[row + dim] : 0.0f;

  __shared__ float warp_sums[2][MAX_WARPS];
  int turn = 0;

  float running_max = -INFINITY;
  float running_sum = 0.0f;
  float accumulator = 0.0f;
  // BEGIN SOLUTION
  for (int start = 0; start < context; start += problem.page_size) {
    const int page = physical_page(problem, in, sequence, start / problem.page_size);
    const int valid = min(problem.page_size, context - start);
    size_t at = cache_offset(problem, page, 0, kv_head) + dim;
    for (int slot = 0; slot < valid; ++slot, at += token_stride(problem)) {
      const float key = owns_dim ? in.key_cache[at] : 0.0f;
      const float value = owns_dim ? in.value_cache[at] : 0.0f;

      const float partial = warp_sum(query * key);
      if (lane == 0) warp_sums[turn][warp] = partial;
      __syncthreads();  // every warp's sum is in shared memory
      float score = 0.0f;
#pragma unroll 1  // one load a turn, as written: unrolled, the compiler merges four into one
      for (int w = 0; w < warps; ++w) score += warp_sums[turn][w];
      score *= problem.scale;
      turn ^= 1;  // two tokens on, every thread has passed the next barrier

      const float new_max = fmaxf(running_max, score);
      const float correction = __expf(running_max - new_max);
      const float weight = __expf(score - new_max);
      running_sum = running_sum * correction + weight;
      accumulator = accumulator * correction + weight * value;
      running_max = new_max;
    }
  }
  // END SOLUTION

  if (owns_dim) output[row + dim] = context > 0 ? accumulator / running_sum : 0.0f;
}
