#include "paged_attention.cuh"

extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {
  const int lane = threadIdx.x;
  const int query_head = blockIdx.x;
  const int sequence = blockIdx.y;
  const int kv_head = query_head / group_size(problem);
  const int context = in.context_lengths[sequence];
  const size_t row = query_offset(problem, sequence, query_head);
  for (int dim = lane; dim < problem.head_dim; dim += WARP_SIZE) {
    float running_max = -INFINITY, running_sum = 0.0f, accumulator = 0.0f;
    for (int token = 0; token < context; ++token) {
      const int page = physical_page(problem, in, sequence, token / problem.page_size);
      const size_t base = cache_offset(problem, page, token % problem.page_size, kv_head);
      float score = 0.0f;
      for (int d = 0; d < problem.head_dim; ++d) score += in.query[row + d] * in.key_cache[base + d];
      score *= problem.scale;
      const float new_max = fmaxf(running_max, score);
      const float correction = __expf(running_max - new_max);
      const float weight = __expf(score - new_max);
      running_sum = running_sum * correction + weight;
      accumulator = accumulator * correction + weight * in.value_cache[base + dim];
      running_max = new_max;
    }
    output[row + dim] = context > 0 ? accumulator / running_sum : 0.0f;
  }
}
