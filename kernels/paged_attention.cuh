// What every stage shares: the problem, its arrays, and how a token is found in the paged cache.

#ifndef INFINITY  // NVRTC has no <cmath>
#define INFINITY __int_as_float(0x7f800000)
#endif

#ifdef ELEMENT  // of query, cache and output: half where a stage's plan says so
#include <cuda_fp16.h>
#else
#define ELEMENT float
#endif
using Element = ELEMENT;

constexpr int WARP_SIZE = 32;
constexpr unsigned FULL_WARP = 0xffffffffu;

struct Problem {
  int batch, query_heads, kv_heads, head_dim, page_size, max_pages;
  float scale;  // factor on every score, 1/sqrt(head_dim)
};

struct Inputs {
  const Element* query;        // [batch, query_heads, head_dim]
  const Element* key_cache;    // [pages, page_size, kv_heads, head_dim], or as the problem's layout has it
  const Element* value_cache;  // [pages, page_size, kv_heads, head_dim], the same
  const int* block_tables;     // [batch, max_pages], the physical page of each logical page
  const int* context_lengths;  // [batch]
};

// Query heads that share one key/value head.
__device__ __forceinline__ int group_size(const Problem& problem) {
  return problem.query_heads / problem.kv_heads;
}

// First element of a query or output row. 64 bits: large batches pass 2^31 elements.
__device__ __forceinline__ size_t query_offset(const Problem& problem, int sequence, int query_head) {
  return ((size_t)sequence * problem.query_heads + query_head) * problem.head_dim;
}

// First element of one token's key or value. 64 bits: a cache of 16 GB passes 2^31 elements.
__device__ __forceinline__ size_t cache_offset(const Problem& problem, int page, int slot, int kv_head) {
  return (((size_t)page * problem.page_size + slot) * problem.kv_heads + kv_head) * problem.head_dim;
}

// Elements from one token's key or value to the next one's, within a page.
__device__ __forceinline__ size_t token_stride(const Problem& problem) {
  return (size_t)problem.kv_heads * problem.head_dim;
}

// Physical page of a sequence's logical page.
__device__ __forceinline__ int physical_page(const Problem& problem, const Inputs& in, int sequence, int page) {
  return in.block_tables[(size_t)sequence * problem.max_pages + page];
}

// Sum over the warp by a butterfly: after five exchanges every lane holds it. All 32 lanes must call.
__device__ __forceinline__ float warp_sum(float value) {
  for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(FULL_WARP, value, offset);
  }
  return value;
}

__device__ __forceinline__ float dot(float4 a, float4 b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

// accumulator * correction + weight * value, in four neighbouring dimensions.
__device__ __forceinline__ float4 rescale_add(float4 accumulator, float correction, float weight, float4 value) {
  return make_float4(accumulator.x * correction + weight * value.x, accumulator.y * correction + weight * value.y,
                     accumulator.z * correction + weight * value.z, accumulator.w * correction + weight * value.w);
}
