/* 08 balanced_plan
   idea:     as many blocks as multiprocessors, each with an equal run of tiles, on from one sequence to the next
   grid:     (blocks); the merge (query_heads, batch)
   block:    8 warps; the merge (head_dim / 4, MERGE_ROWS) threads
   thread:   as in 07, or 06 in fp32, for one key/value head; BLOCK_HEADS of them share a block, page by page
   since 07: the host cuts the work; the ring flows over from segment to segment; whole segments need no merge
   needs:    a plan for these context lengths
   look at:  a ragged batch in the time of a uniform one; whole waves; bytes of partials */
#include "page_ring.cuh"
#include "partials.cuh"

#ifndef GROUP_SIZE
#define GROUP_SIZE 4
#endif
#ifndef BLOCK_HEADS  // sets of query heads that share a block
#define BLOCK_HEADS 1
#endif

constexpr int WARPS = 8;
constexpr int THREADS = WARPS * WARP_SIZE;
constexpr int MERGE_ROWS = 8;                                    // threads that share a column in the merge
constexpr int HEAD_SETS = (GROUP_SIZE + 7) / 8;                  // groups of more than 8 heads are two sets
constexpr int HEADS = (GROUP_SIZE + HEAD_SETS - 1) / HEAD_SETS;  // query heads of a set, which is a warp's
constexpr int TOKEN_WARPS = WARPS / BLOCK_HEADS;                 // that share the tokens of a set

#ifdef MMA_TYPE
#include "tile_mma.cuh"
#else
#include "tile_fma.cuh"
#endif

// A segment as the host plans it.
struct PlannedSegment {
  int sequence, first, end;  // tokens
  int head_group;            // of BLOCK_HEADS sets of query heads
  int piece, pieces;         // this segment among those of the same sequence and sets
  int first_partial;         // of them all: [BLOCK_HEADS * HEADS, pieces]
  int unused;                // 32 bytes in all
};

struct Work {
  Partials partials;
  const PlannedSegment* segments;  // block after block
  const int* block_segments;       // [blocks + 1], where each block's begin
  const int2* pieces;              // [batch, query_heads / GROUP_SIZE * HEAD_SETS / BLOCK_HEADS]: first_partial, pieces
};

// The segments of a block, for a warp's ring.
struct BlockSegments {
  const PlannedSegment* segment;
  const PlannedSegment* end;
  int block_set;

  __device__ __forceinline__ bool next(Segment& next) {
    if (segment == end) return false;
    next = {segment->sequence, segment->first, segment->end, (segment->head_group * BLOCK_HEADS + block_set) / HEAD_SETS};
    ++segment;
    return true;
  }
};

// Where the warps of one set wait for each other.
__device__ __forceinline__ void wait_for_set() {
  if (TOKEN_WARPS > 1) __syncthreads();
  else __syncwarp();
}

extern "C" __global__ void __launch_bounds__(THREADS)
    paged_attention_balanced_plan(Problem problem, Inputs in, Element* output, Work work, float value_scale) {
  extern __shared__ __align__(128) uint4 shared[];  // rings [WARPS, RING_SLOTS, TILE_CHUNKS], then values [BLOCK_HEADS, HEADS, TOKEN_WARPS, COLUMNS]
  __shared__ Partial all_parts[BLOCK_HEADS][HEADS][TOKEN_WARPS];
  const int warp = threadIdx.x / WARP_SIZE;
  const int lane = threadIdx.x % WARP_SIZE;
  const int block_set = warp % BLOCK_HEADS;
  const int token_warp = warp / BLOCK_HEADS;
  Partial(&parts)[HEADS][TOKEN_WARPS] = all_parts[block_set];
  float4* values = reinterpret_cast<float4*>(shared + WARPS * RING_SLOTS * TILE_CHUNKS) +
                   block_set * HEADS * TOKEN_WARPS * COLUMNS;

  // BEGIN SOLUTION
  const PlannedSegment* segment = work.segments + work.block_segments[blockIdx.x];
  const PlannedSegment* end = work.segments + work.block_segments[blockIdx.x + 1];
  PageRing<BlockSegments, TOKEN_WARPS> ring(problem, in, {segment, end, block_set}, shared + warp * RING_SLOTS * TILE_CHUNKS,
                                            token_warp, lane);
  WarpTile tiles;
  tiles.lane = lane;
  for (; segment < end; ++segment) {
    const int sequence = segment->sequence;
    const int set = segment->head_group * BLOCK_HEADS + block_set;
    const int group_head = set % HEAD_SETS * HEADS;  // of the group
    const int first_head = set / HEAD_SETS * GROUP_SIZE + group_head;
    const int last_head = min(HEADS, GROUP_SIZE - group_head) - 1;  // of the set
    tiles.start(in.query + query_offset(problem, sequence, first_head), last_head);
    for (int tile = segment->first + token_warp * TILE_TOKENS; tile < segment->end; tile += TOKEN_WARPS * TILE_TOKENS) {
      tiles.attend(ring.wait(), segment->end - tile, problem.scale);
      ring.template release<false>();
      tiles.weigh(ring.wait());
      ring.template release<true>();
    }

    tiles.store(&parts[0][token_warp], values + token_warp * COLUMNS, TOKEN_WARPS);
    wait_for_set();
    for (int item = token_warp * WARP_SIZE + lane; item <= last_head * COLUMNS + COLUMNS - 1;
         item += TOKEN_WARPS * WARP_SIZE) {
      const int h = item / COLUMNS, column = item % COLUMNS;
      float4 merged;
      const Partial part = merge(parts[h], values + h * TOKEN_WARPS * COLUMNS + column, 0, TOKEN_WARPS, 1, merged);
      if (segment->pieces == 1) {
        write_output(output + query_offset(problem, sequence, first_head + h) + 4 * column, part, merged,
                     value_scale);
      } else {
        const size_t entry =
            segment->first_partial + (size_t)(block_set * HEADS + h) * segment->pieces + segment->piece;
        work.partials.values[entry * COLUMNS + column] = merged;
        if (column == 0) work.partials.part[entry] = part;
      }
    }
    wait_for_set();  // before the next segment's partials take their place
  }
  // END SOLUTION
}

extern "C" __global__ void __launch_bounds__(COLUMNS * MERGE_ROWS)
    paged_attention_balanced_plan_merge(Problem problem, Inputs in, Element* output, Work work, float value_scale) {
  const int set = blockIdx.x / GROUP_SIZE * HEAD_SETS + blockIdx.x % GROUP_SIZE / HEADS;
  const int sets = problem.kv_heads * HEAD_SETS;
  const int2 pieces = work.pieces[(blockIdx.y * sets + set) / BLOCK_HEADS];
  if (pieces.y == 1) return;  // written already
  const int row = set % BLOCK_HEADS * HEADS + blockIdx.x % GROUP_SIZE % HEADS;
  const size_t query = (size_t)blockIdx.y * problem.query_heads + blockIdx.x;
  merge_row<MERGE_ROWS>(work.partials, pieces.x + (size_t)row * pieces.y, pieces.y, output + query * HEAD_DIM, value_scale);
}
