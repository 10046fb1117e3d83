#include "paged_attention.cuh"

#include <cuda_fp16.h>

extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {
  const int lane = threadIdx.x;
  const int query_head = blockIdx.x;
  const int sequence = blockIdx.y;
  const int kv_head = query_head / group_size(problem);
  const int context = in.context_lengths[sequence];
  const size_t row = query_offset(problem, sequence, query_head);
  half accumulator[8];
  for (int i = 0; i < 8; ++i) accumulator[i] = __float2half(0.0f);
  float running_max = -INFINITY;
  float running_sum = 0.0f;
  for (int token = 0; token < context; ++token) {
    const int page = physical_page(problem, in, sequence, token / problem.page_size);
    const size_t base = cache_offset(problem, page, token % problem.page_size, kv_head);
    half partial = __float2half(0.0f);
    for (int i = 0; i < 8; ++i) {
      const int dim = 32 * i + lane;
      if (dim < problem.head_dim) {
        partial = __hfma(__float2half(in.query[row + dim]), __float2half(in.key_cache[base + dim]), partial);
      }
    }
    const float score = warp_sum(__half2float(partial)) * problem.scale;
    const float new_max = fmaxf(running_max, score);
    const float correction = __expf(running_max - new_max);
    const float weight = __expf(score - new_max);
    running_sum = running_sum * correction + weight;
    running_max = new_max;
    for (int i = 0; i < 8; ++i) {
      const int dim = 32 * i + lane;
      if (dim < problem.head_dim) {
        const half value = __hmul(__float2half(weight), __float2half(in.value_cache[base + dim]));
        accumulator[i] = __hfma(accumulator[i], __float2half(correction), value);
      }
    }
  }
  for (int i = 0; i < 8; ++i) {
    const int dim = 32 * i + lane;
    if (dim < problem.head_dim) {
      output[row + dim] = context > 0 ? __half2float(accumulator[i]) / running_sum : 0.0f;
    }
  }
}
