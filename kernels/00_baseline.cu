/* 00 baseline
   idea:     every thread computes whole attention for the one output dimension it owns
   grid:     (query_heads, batch)
   block:    head_dim threads, rounded up to whole warps
   thread:   one output dimension; it repeats every dot product by itself
   since --: the starting point
   needs:    head_dim <= 256
   look at:  compute and L1 throughput near their limit, DRAM nearly idle: head_dim times too much work */
#include "paged_attention.cuh"

extern "C" __global__ void paged_attention_baseline(Problem problem, Inputs in, float* output) {
  const int query_head = blockIdx.x;
  const int sequence = blockIdx.y;
  const int dim = threadIdx.x;
  if (dim >= problem.head_dim) return;  // safe: no barrier and no shuffle below

  const int kv_head = query_head / group_size(problem);
  const int context = in.context_lengths[sequence];
  const float* query = in.query + query_offset(problem, sequence, query_head);

  float running_max = -INFINITY;
  float running_sum = 0.0f;
  float accumulator = 0.0f;
  // BEGIN SOLUTION
  for (int token = 0; token < context; ++token) {
    const int page = physical_page(problem, in, sequence, token / problem.page_size);
    const size_t base = cache_offset(problem, page, token % problem.page_size, kv_head);

    float score = 0.0f;
    for (int d = 0; d < problem.head_dim; ++d) {
      score += query[d] * in.key_cache[base + d];
    }
    score *= problem.scale;

    // Online softmax: a new maximum rescales what was summed under the old one.
    const float new_max = fmaxf(running_max, score);
    const float correction = __expf(running_max - new_max);
    const float weight = __expf(score - new_max);
    running_sum = running_sum * correction + weight;
    accumulator = accumulator * correction + weight * in.value_cache[base + dim];
    running_max = new_max;
  }
  // END SOLUTION

  output[query_offset(problem, sequence, query_head) + dim] = context > 0 ? accumulator / running_sum : 0.0f;
}
