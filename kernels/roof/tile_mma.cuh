// A warp's attention to tiles of tokens by tensor cores: what 07 works out, for the stages after it.

#include "fragments.cuh"

struct WarpTile {
  static constexpr bool FP8 = sizeof(CacheElement) == 1;
  static_assert(TILE_TOKENS == 16 && HEADS <= 8);

  int lane;
  unsigned query[HEAD_DIM / 16][2];
  float weighted[HEAD_DIM / 16][4];  // values: dimensions by heads pair and pair + 1
  float max[2], sum[2];              // of these heads; sums are the lane's share
  unsigned weights[2];

  // queries: the first query head's row, and the last that there is.
  __device__ __forceinline__ void start(const Element* queries, int last_head) {
    const int pair = lane % 4 * 2;
    const Element* row = queries + min(lane / 4, last_head) * HEAD_DIM;
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; ++d) {
      query[d][0] = *reinterpret_cast<const unsigned*>(row + 16 * d + (FP8 ? 2 * pair : pair));
      query[d][1] = *reinterpret_cast<const unsigned*>(row + 16 * d + (FP8 ? 2 * pair + 2 : pair + 8));
#pragma unroll
      for (int i = 0; i < 4; ++i) weighted[d][i] = 0.0f;
    }
    max[0] = max[1] = -INFINITY;
    sum[0] = sum[1] = 0.0f;
  }

  // Scores and weights of a tile of keys, of which the first valid are the segment's.
  __device__ __forceinline__ void attend(const uint4* keys, int valid, float scale) {
    float products[2][4] = {};
#pragma unroll
    for (int c = 0; c < ROW_CHUNKS; c += 2) {
      unsigned key[4];
      load_matrices<false>(key, chunk_address(keys, lane % 16, c + lane / 16));
      if (FP8) {
        unsigned wide[4][2];
#pragma unroll
        for (int m = 0; m < 4; ++m) widen(key[m], wide[m][0], wide[m][1]);
        multiply(products[0], wide[0][0], wide[1][0], wide[0][1], wide[1][1], query[c]);
        multiply(products[1], wide[2][0], wide[3][0], wide[2][1], wide[3][1], query[c + 1]);
      } else {
        multiply(products[c / 2 % 2], key[0], key[1], key[2], key[3], query[c / 2]);
      }
    }
    float weight[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      weight[i] = lane / 4 + i / 2 * 8 < valid ? (products[0][i] + products[1][i]) * scale : -INFINITY;
    }
    float larger[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      larger[h] = fmaxf(max[h], fmaxf(weight[h], weight[h + 2]));
#pragma unroll
      for (int offset = 4; offset < WARP_SIZE; offset *= 2) {
        larger[h] = fmaxf(larger[h], __shfl_xor_sync(FULL_WARP, larger[h], offset));
      }
    }
    if (__any_sync(FULL_WARP, larger[0] > max[0] || larger[1] > max[1])) {  // ever rarer
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float keep = __expf(max[h] - larger[h]);
        max[h] = larger[h];
        sum[h] *= keep;
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 16; ++d) {
          weighted[d][h] *= keep;
          weighted[d][h + 2] *= keep;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      weight[i] = __expf(weight[i] - max[i % 2]);
      sum[i % 2] += weight[i];
    }
    weights[0] = turn(pack(weight[0], weight[1]));
    weights[1] = turn(pack(weight[2], weight[3]));
  }

  // The same tile's values.
  __device__ __forceinline__ void weigh(const uint4* values) {
#pragma unroll
    for (int c = 0; c < ROW_CHUNKS; c += 2) {
      unsigned value[4];
      load_matrices<true>(value, chunk_address(values, lane / 16 * 8 + lane % 8, c + lane / 8 % 2));
      if (FP8) {
        unsigned even[4], odd[4];
#pragma unroll
        for (int m = 0; m < 4; ++m) widen(__byte_perm(value[m], 0, 0x3120), even[m], odd[m]);
        multiply(weighted[c], even[0], even[1], even[2], even[3], weights);
        multiply(weighted[c + 1], odd[0], odd[1], odd[2], odd[3], weights);
      } else {
        multiply(weighted[c / 2], value[0], value[1], value[2], value[3], weights);
      }
    }
  }

  // The partial of every head into parts[h * stride], its values into row h * stride of values.
  __device__ __forceinline__ void store(Partial* parts, float4* values, int stride) {
    const int row = lane / 4, pair = lane % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int offset = 4; offset < WARP_SIZE; offset *= 2) sum[h] += __shfl_xor_sync(FULL_WARP, sum[h], offset);
      if (pair + h >= HEADS) continue;
      if (row == 0) parts[(pair + h) * stride] = {max[h], sum[h]};
      float* to = reinterpret_cast<float*>(values) + (pair + h) * stride * HEAD_DIM;
#pragma unroll
      for (int d = 0; d < HEAD_DIM / 16; ++d) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          to[FP8 ? d / 2 * 32 + i * 16 + 2 * row + d % 2 : d * 16 + i * 8 + row] = weighted[d][h + 2 * i];
        }
      }
    }
  }
};
