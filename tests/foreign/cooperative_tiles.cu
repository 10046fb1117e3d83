#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

// Sums over tiles of 8, votes of tiles of 16, and an aggregated atomic of the threads that found something.
extern "C" __global__ void cooperative_tiles(const int* data, int* sums, int* votes, int* found, int* count, int n) {
  auto block = cg::this_thread_block();
  int i = block.group_index().x * block.size() + block.thread_rank();
  auto tile8 = cg::tiled_partition<8>(block);
  auto tile16 = cg::tiled_partition<16>(block);
  int value = i < n ? data[i] : 0;
  int sum = cg::reduce(tile8, value, cg::plus<int>());
  if (tile8.thread_rank() == 0) sums[i / 8] = sum;
  int largest = cg::reduce(tile16, value, cg::greater<int>());
  unsigned odd = tile16.ballot(value & 1);
  if (tile16.thread_rank() == 0) votes[i / 16] = __popc(odd) * 1000 + largest;
  block.sync();
  if (value % 7 == 3) {
    auto active = cg::coalesced_threads();
    int place = 0;
    if (active.thread_rank() == 0) place = atomicAdd(count, active.size());
    place = active.shfl(place, 0);
    found[place + active.thread_rank()] = i;
  }
}
