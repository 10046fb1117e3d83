// Stage 05's two kernels, as plain as they can be: a thread owns two neighbouring dimensions of a query head.
#include "cache_tile.cuh"

#include <cuda_fp16.h>

struct Partials {
  float2* part;   // [batch, query_heads, partitions], maximum and sum
  float* values;  // [batch, query_heads, partitions, head_dim]
};

extern "C" __global__ void paged_attention_partitioned_gqa(Problem problem, Inputs in, half* output, Partials partials,
                                                           int partitions) {
  const int start = blockIdx.z * PARTITION_TOKENS;
  const int end = min(start + PARTITION_TOKENS, in.context_lengths[blockIdx.y]);
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll 1
  for (int h = threadIdx.x / WARP_SIZE; h < GROUP_SIZE && start < end; h += blockDim.x / WARP_SIZE) {
    const int head = blockIdx.x * GROUP_SIZE + h;
    const half2* query = reinterpret_cast<const half2*>(in.query + query_offset(problem, blockIdx.y, head));
    float max = -INFINITY, sum = 0.0f;
    float2 weighted[2] = {};
#pragma unroll 1
    for (int token = start; token < end; ++token) {
      const int page = physical_page(problem, in, blockIdx.y, token / PAGE_SIZE);
      const size_t at = cache_offset(problem, page, token % PAGE_SIZE, blockIdx.x);
      const half2* key = reinterpret_cast<const half2*>(in.key_cache + at);
      const half2* value = reinterpret_cast<const half2*>(in.value_cache + at);
      float partial = 0.0f;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int pair = c * WARP_SIZE + lane;
        const float2 q = __half22float2(query[pair]), k = __half22float2(key[pair]);
        partial += q.x * k.x + q.y * k.y;
      }
      const float score = warp_sum(partial) * problem.scale;
      const float new_max = fmaxf(max, score);
      const float keep = __expf(max - new_max), weight = __expf(score - new_max);
      max = new_max;
      sum = sum * keep + weight;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float2 v = __half22float2(value[c * WARP_SIZE + lane]);
        weighted[c].x = weighted[c].x * keep + weight * v.x;
        weighted[c].y = weighted[c].y * keep + weight * v.y;
      }
    }
    const size_t entry = ((size_t)blockIdx.y * problem.query_heads + head) * partitions + blockIdx.z;
    if (lane == 0) partials.part[entry] = make_float2(max, sum);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      reinterpret_cast<float2*>(partials.values + entry * HEAD_DIM)[c * WARP_SIZE + lane] = weighted[c];
    }
  }
}

extern "C" __global__ void paged_attention_partitioned_gqa_merge(Problem problem, Inputs in, half* output,
                                                                 Partials partials, int partitions) {
  const int used = (in.context_lengths[blockIdx.y] + PARTITION_TOKENS - 1) / PARTITION_TOKENS;
  const size_t query = (size_t)blockIdx.y * problem.query_heads + blockIdx.x;
  const int dim = threadIdx.y * blockDim.x + threadIdx.x;
  if (dim >= HEAD_DIM) return;
  float max = -INFINITY, sum = 0.0f, value = 0.0f;
  for (int i = 0; i < used; ++i) {
    const float2 part = partials.part[query * partitions + i];
    const float new_max = fmaxf(max, part.x);
    const float keep = __expf(max - new_max), take = __expf(part.x - new_max);
    max = new_max;
    sum = sum * keep + part.y * take;
    value = value * keep + partials.values[(query * partitions + i) * HEAD_DIM + dim] * take;
  }
  output[query * HEAD_DIM + dim] = __float2half(sum > 0.0f ? value / sum : 0.0f);
}
