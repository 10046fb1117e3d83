/* 05 partitioned_gqa, merged by the last block to finish
   idea:     one launch: the last block of a sequence and key/value head finds all partials written and merges them
   grid:     (kv_heads, batch, partitions), as in 05
   block:    4 warps
   thread:   as in 05; in the merge, columns of four dimensions
   since 05: a counter per sequence and key/value head in place of the second launch
   look at:  the tail, when one block merges what a whole grid merged before */
#include "05_partitioned_gqa.cu"

struct CountedPartials {
  Partials partials;
  unsigned* arrived;  // [batch, kv_heads], zero before the launch, and again after it
};

extern "C" __global__ void __launch_bounds__(THREADS)
    paged_attention_partitioned_gqa_last_block(Problem problem, Inputs in, Element* output, CountedPartials counted,
                                               int partitions) {
  extern __shared__ uint4 tiles[];
  __shared__ Partial warp_parts[HEADS][WARPS];
  const Partials partials = counted.partials;
  const int context = in.context_lengths[blockIdx.y];
  const int used = (context + PARTITION_TOKENS - 1) / PARTITION_TOKENS;
  const int start = blockIdx.z * PARTITION_TOKENS;
  if (blockIdx.z > 0 && start >= context) return;  // an empty sequence's first block stays, to write its zeros
  if (start < context) {
    attend(problem, in, start, min(start + PARTITION_TOKENS, context), tiles, warp_parts, MergeLanes());
    write_partials(problem, tiles, warp_parts, partials, partitions);
  }

  // A fence before the arrival and one after it: who sees every arrival sees every partial.
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicInc(&counted.arrived[blockIdx.y * problem.kv_heads + blockIdx.x], max(used, 1) - 1) == max(used, 1) - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  for (int item = threadIdx.x; item < GROUP_SIZE * COLUMNS; item += THREADS) {
    const int head = blockIdx.x * GROUP_SIZE + item / COLUMNS, column = item % COLUMNS;
    const size_t query = (size_t)blockIdx.y * problem.query_heads + head;
    const size_t first = query * partitions;
    float4 merged;
    const Partial whole = merge(partials.part + first, partials.values + first * COLUMNS + column, 0, used, 1, merged);
    write_output(output + query * HEAD_DIM + 4 * column, whole, merged);
  }
}
