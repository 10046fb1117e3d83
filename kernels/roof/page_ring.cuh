// A warp's own ring of tiles in shared memory: keys and values by turns, each copied while earlier ones are used.
// No other warp touches it, so that nothing in the loop waits for a whole block.

#ifdef ELEMENT
#include <cuda_bf16.h>
#endif
#include "cache_tile.cuh"

#ifndef CACHE_ELEMENT  // of the cache; queries and output are Elements
#define CACHE_ELEMENT Element
#endif
#ifndef TILE_TOKENS  // rows of a tile
#define TILE_TOKENS 16
#endif
#ifndef RING_SLOTS  // tiles in flight or in use
#define RING_SLOTS 4
#endif
#ifndef EVICT_FIRST  // whether L2 lets go of the cache's lines first: nobody reads them twice
#define EVICT_FIRST 0
#endif
#ifndef KV_HEADS  // fixed, so that the rows of a page are at fixed distances
#define KV_HEADS 8
#endif
using CacheElement = CACHE_ELEMENT;

constexpr int ROW_CHUNK = 16 / sizeof(CacheElement);   // elements of the cache in 16 bytes
constexpr int ROW_CHUNKS = HEAD_DIM / ROW_CHUNK;       // in one token's key or value
constexpr int TILE_CHUNKS = TILE_TOKENS * ROW_CHUNKS;  // in a tile
constexpr int TILE_COPIES = TILE_CHUNKS / WARP_SIZE;   // 16-byte copies of a lane for one tile
constexpr int SLOT_CHUNKS = LAYOUT == NHD ? KV_HEADS * ROW_CHUNKS : ROW_CHUNKS;  // from a token's row to the next one's
constexpr int TILE_PAGES = TILE_TOKENS > PAGE_SIZE ? TILE_TOKENS / PAGE_SIZE : 1;  // that a tile lies in
static_assert(TILE_CHUNKS % WARP_SIZE == 0 && (TILE_TOKENS % PAGE_SIZE == 0 || PAGE_SIZE % TILE_TOKENS == 0));

// Where a chunk of a row lies in a tile. Eight neighbouring rows have the same column in eight different places of 16
// bytes, modulo 128, so that eight lanes reading a column meet no bank twice; eight reading a row meet none anyway.
__device__ __forceinline__ constexpr int tile_chunk(int row, int column) {
  constexpr int SPREAD = ROW_CHUNKS % 8 == 0 ? 8 : ROW_CHUNKS % 4 == 0 ? 4 : ROW_CHUNKS % 2 == 0 ? 2 : 1;
  return row * ROW_CHUNKS + (column ^ row / (8 / SPREAD) % SPREAD);
}

// The address of a chunk of a tile, as instructions on shared memory take it.
__device__ __forceinline__ unsigned chunk_address(const uint4* tile, int row, int column) {
  return static_cast<unsigned>(__cvta_generic_to_shared(tile)) + 16 * tile_chunk(row, column);
}

// A run of one sequence's tokens. It begins where a tile does.
struct Segment {
  int sequence;
  int first;  // token
  int end;    // tokens from here on are not the segment's, and never read
  int kv_head;
};

// Copies what a warp reads of one segment after the other: the tiles first, first + WARPS, ... of each.
// Segments is a type with bool next(Segment&), false where there is none left.
template <class Segments, int WARPS>
struct PageRing {
  const Problem& problem;
  const Inputs& in;
  Segments segments;
  uint4* slots;  // [RING_SLOTS, TILE_CHUNKS] in shared memory, the warp's own, on a line of 128 bytes as rows are
  int warp, lane;

  int oldest = 0;        // slot that is used next, and then filled again
  Segment segment = {};  // of the tile that is copied next
  int token = 0;         // its first
  int pages = 0;         // lane i knows the page i % TILE_PAGES of the tile i / TILE_PAGES after this one,
  int known = 0;         // for so many tiles: this is the next of them
#if EVICT_FIRST
  unsigned long long policy;
#endif

  __device__ __forceinline__ PageRing(const Problem& problem, const Inputs& in, Segments segments, uint4* slots,
                                      int warp, int lane)
      : problem(problem), in(in), segments(segments), slots(slots), warp(warp), lane(lane) {
#if EVICT_FIRST
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
#endif
    enter_segment();
#pragma unroll
    for (int slot = 0; slot < RING_SLOTS; ++slot) {
      if (slot % 2 == 0) copy<false>(slot);
      else copy<true>(slot);
    }
  }

  // The oldest tile, complete: keys and values by turns.
  __device__ __forceinline__ const uint4* wait() const {
    asm volatile("cp.async.wait_group %0;" ::"n"(RING_SLOTS - 1) : "memory");
    __syncwarp();  // also what other lanes copied
    return slots + oldest * TILE_CHUNKS;
  }

  // The warp is done with the oldest tile, which held values or keys: its slot is filled again.
  template <bool VALUES>
  __device__ __forceinline__ void release() {
    __syncwarp();
    copy<(RING_SLOTS % 2 == 0) == VALUES>(oldest);
    oldest = oldest + 1 == RING_SLOTS ? 0 : oldest + 1;
  }

 private:
  __device__ __forceinline__ void enter_segment() {
    token = 0;
    segment.end = 0;
    while (token >= segment.end && segments.next(segment)) token = segment.first + warp * TILE_TOKENS;
    if (token < segment.end) find_pages();
  }

  __device__ __forceinline__ void find_pages() {
    const int mine = token + lane / TILE_PAGES * WARPS * TILE_TOKENS + lane % TILE_PAGES * PAGE_SIZE;
    pages = mine < segment.end ? physical_page(problem, in, segment.sequence, mine / PAGE_SIZE) : 0;
    known = 0;
  }

  // A group is committed even where no tile is left: wait() counts groups.
  template <bool VALUES>
  __device__ __forceinline__ void copy(int slot) {
    if (token < segment.end) {
      const uint4* cache = reinterpret_cast<const uint4*>(VALUES ? in.value_cache : in.key_cache);
      if (token + TILE_TOKENS <= segment.end) copy_rows<true>(cache, slots + slot * TILE_CHUNKS);
      else copy_rows<false>(cache, slots + slot * TILE_CHUNKS);
      if (VALUES) next_tile();
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  // The lanes copy neighbouring chunks, so that an instruction reads 512 bytes of whole rows. Of a tile that is not
  // whole, rows past the end become zeros: a weight of 0 times what lies there might be NaN.
  template <bool WHOLE>
  __device__ __forceinline__ void copy_rows(const uint4* cache, const uint4* tile) const {
    const uint4* page = page_start(cache, known * TILE_PAGES) + token % PAGE_SIZE * SLOT_CHUNKS;
    const uint4* mine = page + lane / ROW_CHUNKS * SLOT_CHUNKS + lane % ROW_CHUNKS;
#pragma unroll
    for (int c = 0; c < TILE_COPIES; ++c) {
      const int chunk = c * WARP_SIZE + lane;
      const int row = chunk / ROW_CHUNKS, column = chunk % ROW_CHUNKS;
      const unsigned to = chunk_address(tile, row, column);
      const uint4* from;
      if (TILE_PAGES > 1) {
        page = page_start(cache, known * TILE_PAGES + row / PAGE_SIZE);
        from = page + row % PAGE_SIZE * SLOT_CHUNKS + column;
      } else if (WARP_SIZE % ROW_CHUNKS == 0 || ROW_CHUNKS % WARP_SIZE == 0) {  // at a fixed distance
        from = mine + c * WARP_SIZE / ROW_CHUNKS * SLOT_CHUNKS + c * WARP_SIZE % ROW_CHUNKS;
      } else {
        from = page + row * SLOT_CHUNKS + column;
      }
      const int bytes = WHOLE || token + row < segment.end ? 16 : 0;
#if EVICT_FIRST
      asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;"
                   ::"r"(to), "l"(from), "r"(bytes), "l"(policy) : "memory");
#else
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
#endif
    }
  }

  // The head's row of slot 0, in the page that some lane knows.
  __device__ __forceinline__ const uint4* page_start(const uint4* cache, int knowing_lane) const {
    const unsigned page = __shfl_sync(FULL_WARP, pages, knowing_lane);
    const unsigned row = LAYOUT == NHD ? page * PAGE_SIZE * KV_HEADS + segment.kv_head
                                       : (page * KV_HEADS + segment.kv_head) * PAGE_SIZE;
    return cache + (size_t)row * ROW_CHUNKS;
  }

  __device__ __forceinline__ void next_tile() {
    token += WARPS * TILE_TOKENS;
    if (token >= segment.end) enter_segment();
    else if (++known == WARP_SIZE / TILE_PAGES) find_pages();
  }
};
