// A tile of tokens in shared memory, [tokens, chunks of 16 bytes], gathered from a cache of any layout.
// The plan fixes sizes and layout when it compiles, so that addresses need no divisions and loops no ends.

#include "paged_attention.cuh"

#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#ifndef PAGE_SIZE
#define PAGE_SIZE 16
#endif
#ifndef LAYOUT
#define LAYOUT NHD
#endif

constexpr int NHD = 0;     // [pages, page_size, kv_heads, head_dim]
constexpr int HND = 1;     // [pages, kv_heads, page_size, head_dim]
constexpr int PACKED = 2;  // keys [pages, kv_heads, head_dim / x, page_size, x], values [pages, kv_heads, head_dim, page_size]

constexpr int CHUNK = 16 / sizeof(Element);  // elements of the widest access; x of the packed layout
constexpr int CHUNKS = HEAD_DIM / CHUNK;     // in one token's key or value

__device__ constexpr int power_of_two(int least) { return least <= 1 ? 1 : 2 * power_of_two((least + 1) / 2); }

// The elements of a chunk in fp32.
__device__ __forceinline__ void unpack(uint4 chunk, float* values) {
  const Element* elements = reinterpret_cast<const Element*>(&chunk);
#pragma unroll
  for (int i = 0; i < CHUNK; ++i) values[i] = static_cast<float>(elements[i]);
}

// Sums values[i] over LANES lanes for every i at once: lane i ends with the i-th sum. Each exchange halves what is left
// to sum, so that it takes LANES - 1 shuffles in all, where a sum at a time takes log2(LANES) for each.
// Of every SLOTS values only the first USED exist; the lanes of the others end with one of the sums, whichever.
template <int SLOTS, int USED, int LANES>
__device__ __forceinline__ float transpose_sum(float (&values)[LANES]) {
#pragma unroll
  for (int offset = LANES / 2; offset > 0; offset /= 2) {
    const bool upper = threadIdx.x & offset;
#pragma unroll
    for (int i = 0; i < LANES / 2; ++i) {  // a fixed bound: values must stay in registers
      if (i < offset && i % SLOTS < USED) {
        const float low = values[i];
        const float high = (i + offset) % SLOTS < USED ? values[i + offset] : low;
        values[i] = (upper ? high : low) + __shfl_xor_sync(FULL_WARP, upper ? low : high, offset);
      }
    }
  }
  return values[0];
}

// Starts to copy 16 bytes from global to shared memory without passing registers. They are there for this thread after
// wait_for_copies, for other threads after a barrier besides.
__device__ __forceinline__ void copy_async(uint4* shared, const uint4* global) {
#if __CUDA_ARCH__ >= 800
  const unsigned address = __cvta_generic_to_shared(shared);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
#else
  *shared = *global;
#endif
}

__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Where a block finds the tokens of its head. A row is one token's key or value; rows are counted in 32 bits, which
// reach further than any GPU's memory.
struct TokenRun {
  const unsigned* page_rows;  // the row of slot 0 in each page of the run, in shared memory
  unsigned first_page;        // logical page of page_rows[0]
  unsigned slot_rows;         // rows from one slot to the next: kv_heads in NHD, else 1
  unsigned end;               // tokens from here on are not the block's, and never read

  __device__ __forceinline__ unsigned page_row(unsigned token) const {
    return page_rows[token / PAGE_SIZE - first_page];
  }
};

__device__ __forceinline__ unsigned first_row(const Problem& problem, unsigned page, unsigned kv_head) {
  return LAYOUT == NHD ? page * PAGE_SIZE * problem.kv_heads + kv_head : (page * problem.kv_heads + kv_head) * PAGE_SIZE;
}

// Every thread of the block starts its share of copying keys, or values that lie as keys do, into a tile.
// In place of tokens past the end comes the last one again, since a weight of 0 times what lies there might be NaN.
template <int TOKENS, int THREADS>
__device__ __forceinline__ void copy_rows(const TokenRun& run, const Element* cache, unsigned start, uint4* tile) {
  // Neighbours take neighbouring bytes: the chunks of a row, or in PACKED first both tokens of a 32-byte sector.
  constexpr int SIDE_BY_SIDE = LAYOUT == PACKED ? 2 : 1;
  constexpr int ROWS = THREADS / (SIDE_BY_SIDE * CHUNKS) * SIDE_BY_SIDE;  // that the block copies at once
  const unsigned chunk = threadIdx.x / SIDE_BY_SIDE % CHUNKS;
  const unsigned first = threadIdx.x / (SIDE_BY_SIDE * CHUNKS) * SIDE_BY_SIDE + threadIdx.x % SIDE_BY_SIDE;
  if (first >= ROWS) return;
  const uint4* from = reinterpret_cast<const uint4*>(cache) + chunk * (LAYOUT == PACKED ? PAGE_SIZE : 1);
  uint4* to = tile + first * CHUNKS + chunk;
#pragma unroll
  for (unsigned row = 0; row < TOKENS; row += ROWS) {
    if (TOKENS % ROWS != 0 && first + row >= TOKENS) break;
    const unsigned token = min(start + first + row, run.end - 1);
    const unsigned slot = token % PAGE_SIZE;
    const size_t offset = LAYOUT == PACKED ? (size_t)run.page_row(token) * CHUNKS + slot
                                           : (size_t)(run.page_row(token) + slot * run.slot_rows) * CHUNKS;
    copy_async(to + row * CHUNKS, from + offset);
  }
}

// The same for values of the packed layout. A chunk there is one dimension of CHUNK tokens; it is turned on its way
// through registers, so that this copy is done when the function returns.
template <int TOKENS, int THREADS>
__device__ __forceinline__ void copy_turned(const TokenRun& run, const Element* cache, unsigned start, uint4* tile) {
  Element* turned = reinterpret_cast<Element*>(tile);
  for (unsigned item = threadIdx.x; item < TOKENS * CHUNKS; item += THREADS) {
    const unsigned row = (item / (2 * HEAD_DIM) * 2 + item % 2) * CHUNK;  // neighbours share a sector, as above
    const unsigned dim = item / 2 % HEAD_DIM;
    const unsigned token = start + row;
    uint4 chunk = make_uint4(0, 0, 0, 0);
    if (token < run.end) {
      const size_t element = (size_t)run.page_row(token) * HEAD_DIM + dim * PAGE_SIZE + token % PAGE_SIZE;
      chunk = *reinterpret_cast<const uint4*>(cache + element);
    }
    const Element* elements = reinterpret_cast<const Element*>(&chunk);
#pragma unroll
    for (unsigned i = 0; i < CHUNK; ++i) {
      turned[(row + i) * HEAD_DIM + dim] = token + i < run.end ? elements[i] : static_cast<Element>(0.0f);
    }
  }
}

template <int TOKENS, int THREADS>
__device__ __forceinline__ void copy_keys(const TokenRun& run, const Inputs& in, unsigned start, uint4* tile) {
  copy_rows<TOKENS, THREADS>(run, in.key_cache, start, tile);
}

template <int TOKENS, int THREADS>
__device__ __forceinline__ void copy_values(const TokenRun& run, const Inputs& in, unsigned start, uint4* tile) {
  if constexpr (LAYOUT == PACKED) {
    copy_turned<TOKENS, THREADS>(run, in.value_cache, start, tile);
  } else {
    copy_rows<TOKENS, THREADS>(run, in.value_cache, start, tile);
  }
}
