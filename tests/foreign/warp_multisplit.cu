// Groups each warp's keys by bucket: match, count of lanes below, and a stable place for every key.
extern "C" __global__ void warp_multisplit(const unsigned* keys, unsigned* grouped, int* sizes) {
  int lane = threadIdx.x & 31, warp = (blockIdx.x * blockDim.x + threadIdx.x) >> 5;
  unsigned key = keys[warp * 32 + lane];
  unsigned bucket = key & 7;
  unsigned peers = __match_any_sync(0xffffffff, bucket);
  unsigned below;
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(below));
  int start = 0;
  for (int b = 0; b < 8; ++b) {
    int count = __popc(__ballot_sync(0xffffffff, bucket == b));
    if (b < bucket) start += count;
    if (lane == b) sizes[warp * 8 + b] = count;
  }
  grouped[warp * 32 + start + __popc(peers & below)] = key;
  int together = __reduce_add_sync(peers, 1);
  if (together != __popc(peers)) grouped[warp * 32] = 0xdeadbeef;
}
