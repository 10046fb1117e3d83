#include "paged_attention.cuh"

// A warp is four groups of eight lanes. Group g takes tokens g, g + 4, ...; a lane owns every eighth chunk.
constexpr int GROUPS = 4;
constexpr int LANES = WARP_SIZE / GROUPS;
constexpr int MAX_CHUNKS = 8;  // of a lane: head_dim 256

extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {
  const int lane = threadIdx.x % LANES;
  const int group = threadIdx.x / LANES;
  const int query_head = blockIdx.x;
  const int sequence = blockIdx.y;
  const int chunks = problem.head_dim / 4;
  const int kv_head = query_head / group_size(problem);
  const int context = in.context_lengths[sequence];
  const size_t row = query_offset(problem, sequence, query_head);
  const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

  float4 query[MAX_CHUNKS], accumulator[MAX_CHUNKS];
#pragma unroll
  for (int c = 0; c < MAX_CHUNKS; ++c) {
    const int chunk = c * LANES + lane;
    query[c] = chunk < chunks ? reinterpret_cast<const float4*>(in.query + row)[chunk] : zero;
    accumulator[c] = zero;
  }
  float running_max = -INFINITY;
  float running_sum = 0.0f;

  for (int first = 0; first < context; first += GROUPS) {
    const int token = first + group;
    const bool valid = token < context;
    const int page = valid ? physical_page(problem, in, sequence, token / problem.page_size) : 0;
    const size_t at = cache_offset(problem, page, token % problem.page_size, kv_head);
    const float4* keys = reinterpret_cast<const float4*>(in.key_cache + at);
    const float4* values = reinterpret_cast<const float4*>(in.value_cache + at);
    float partial = 0.0f;
#pragma unroll
    for (int c = 0; c < MAX_CHUNKS; ++c) {
      const int chunk = c * LANES + lane;
      if (valid && chunk < chunks) partial += dot(query[c], keys[chunk]);
    }
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2) partial += __shfl_xor_sync(FULL_WARP, partial, offset);
    if (!valid) continue;
    const float score = partial * problem.scale;
    const float new_max = fmaxf(running_max, score);
    const float correction = __expf(running_max - new_max);
    const float weight = __expf(score - new_max);
    running_sum = running_sum * correction + weight;
    running_max = new_max;
#pragma unroll
    for (int c = 0; c < MAX_CHUNKS; ++c) {
      const int chunk = c * LANES + lane;
      if (chunk < chunks) accumulator[c] = rescale_add(accumulator[c], correction, weight, values[chunk]);
    }
  }
  __syncwarp();

  // The groups' softmax states become one: the same lane of each group holds the same chunks.
  float whole_max = running_max;
#pragma unroll
  for (int offset = LANES; offset < WARP_SIZE; offset *= 2) {
    whole_max = fmaxf(whole_max, __shfl_xor_sync(FULL_WARP, whole_max, offset));
  }
  const float correction = running_max == -INFINITY ? 0.0f : __expf(running_max - whole_max);
  running_sum *= correction;
#pragma unroll
  for (int offset = LANES; offset < WARP_SIZE; offset *= 2) {
    running_sum += __shfl_xor_sync(FULL_WARP, running_sum, offset);
  }
  const float inverse = running_sum > 0.0f ? 1.0f / running_sum : 0.0f;
#pragma unroll
  for (int c = 0; c < MAX_CHUNKS; ++c) {
    float4 sum = rescale_add(accumulator[c], correction * inverse, 0.0f, zero);
#pragma unroll
    for (int offset = LANES; offset < WARP_SIZE; offset *= 2) {
      sum.x += __shfl_xor_sync(FULL_WARP, sum.x, offset);
      sum.y += __shfl_xor_sync(FULL_WARP, sum.y, offset);
      sum.z += __shfl_xor_sync(FULL_WARP, sum.z, offset);
      sum.w += __shfl_xor_sync(FULL_WARP, sum.w, offset);
    }
    const int chunk = c * LANES + lane;
    if (group == 0 && chunk < chunks) reinterpret_cast<float4*>(output + row)[chunk] = sum;
  }
}
