/* 09 memory_roof
   idea:     the last points: lines that L2 lets go first, whole sequences where they fill the GPU, a merge of cuts alone
   grid:     (blocks); the merge (BLOCK_HEADS * HEADS, merges), or none
   block:    8 warps; the merge (head_dim / 4, MERGE_ROWS) threads
   thread:   as in 08
   since 08: lines are evicted first; sequences may stay whole; a block knows its first segment; a merge of cuts begins early
   needs:    as 08
   look at:  DRAM throughput; what is left is the first tile's latency, the last blocks' end and the merge */
#include "page_ring.cuh"
#include "partials.cuh"

#ifndef GROUP_SIZE
#define GROUP_SIZE 4
#endif
#ifndef BLOCK_HEADS  // sets of query heads that share a block
#define BLOCK_HEADS 1
#endif
#ifndef MERGE_ROWS  // threads that share a column in the merge
#define MERGE_ROWS 8
#endif

constexpr int WARPS = 8;
constexpr int THREADS = WARPS * WARP_SIZE;
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
  int next;                  // so many further on is the block's next one; 0: there is none
};

// Segments of the same sequence and sets of heads, whose partials a merge puts together; none of an empty sequence.
struct PlannedMerge {
  int sequence, head_group;
  int first_partial, pieces;
};

struct Work {
  Partials partials;
  const PlannedSegment* segments;  // each block's first, so that a block knows where it begins, then all others
  const PlannedMerge* merges;
};

// The segments of a block, for a warp's ring.
struct BlockSegments {
  const PlannedSegment* segment;
  int block_set;

  __device__ __forceinline__ bool next(Segment& next) {
    if (!segment) return false;
    next = {segment->sequence, segment->first, segment->end, (segment->head_group * BLOCK_HEADS + block_set) / HEAD_SETS};
    segment = segment->next ? segment + segment->next : nullptr;
    return true;
  }
};

// Where the warps of one set wait for each other.
__device__ __forceinline__ void wait_for_set() {
  if (TOKEN_WARPS > 1) __syncthreads();
  else __syncwarp();
}

// Programmatic dependent launch: the merge begins beside the attention, and waits for its end where it needs its results.
__device__ __forceinline__ void let_merge_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ void wait_for_attention() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS)
    paged_attention_memory_roof(Problem problem, Inputs in, Element* output, Work work, float value_scale) {
  extern __shared__ __align__(128) uint4 shared[];  // rings [WARPS, RING_SLOTS, TILE_CHUNKS], then values [BLOCK_HEADS, HEADS, TOKEN_WARPS, COLUMNS]
  __shared__ Partial all_parts[BLOCK_HEADS][HEADS][TOKEN_WARPS];
  const int warp = threadIdx.x / WARP_SIZE;
  const int lane = threadIdx.x % WARP_SIZE;
  const int block_set = warp % BLOCK_HEADS;
  const int token_warp = warp / BLOCK_HEADS;
  Partial(&parts)[HEADS][TOKEN_WARPS] = all_parts[block_set];
  float4* values = reinterpret_cast<float4*>(shared + WARPS * RING_SLOTS * TILE_CHUNKS) +
                   block_set * HEADS * TOKEN_WARPS * COLUMNS;

  let_merge_begin();
  const PlannedSegment* segment = work.segments + blockIdx.x;
  PageRing<BlockSegments, TOKEN_WARPS> ring(problem, in, {segment, block_set}, shared + warp * RING_SLOTS * TILE_CHUNKS,
                                            token_warp, lane);
  WarpTile tiles;
  tiles.lane = lane;
  for (int next = 1; next; segment += next) {  // 1: anything but 0, until the segment says
    next = segment->next;
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
      // BEGIN SOLUTION
      if (segment->pieces == 1) {
        write_output(output + query_offset(problem, sequence, first_head + h) + 4 * column, part, merged,
                     value_scale);
      } else {
        const size_t entry =
            segment->first_partial + (size_t)(block_set * HEADS + h) * segment->pieces + segment->piece;
        work.partials.values[entry * COLUMNS + column] = merged;
        if (column == 0) work.partials.part[entry] = part;
      }
      // END SOLUTION
    }
    wait_for_set();  // before the next segment's partials take their place
  }
}

extern "C" __global__ void __launch_bounds__(COLUMNS * MERGE_ROWS)
    paged_attention_memory_roof_merge(Problem problem, Inputs in, Element* output, Work work, float value_scale) {
  const PlannedMerge planned = work.merges[blockIdx.y];
  wait_for_attention();
  // BEGIN SOLUTION
  const int set = planned.head_group * BLOCK_HEADS + blockIdx.x / HEADS;
  const int group_head = set % HEAD_SETS * HEADS + blockIdx.x % HEADS;
  if (group_head >= GROUP_SIZE) return;
  const int head = set / HEAD_SETS * GROUP_SIZE + group_head;
  merge_row<MERGE_ROWS>(work.partials, planned.first_partial + (size_t)blockIdx.x * planned.pieces, planned.pieces,
                        output + query_offset(problem, planned.sequence, head), value_scale);
  // END SOLUTION
}
