// A warp's attention to tiles of tokens by multiply-add, exact in fp32: what 06 works out, for the stages after it.

struct WarpTile {
  static constexpr int HEAD_SLOTS = power_of_two(HEADS > WARP_SIZE / TILE_TOKENS ? HEADS : WARP_SIZE / TILE_TOKENS);
  static constexpr int STEP_TOKENS = WARP_SIZE / HEAD_SLOTS;  // tokens whose scores fill the lanes of a warp
  static constexpr int STEPS = TILE_TOKENS / STEP_TOKENS;
  static constexpr int ROW_LANES =
      ROW_CHUNKS >= WARP_SIZE ? WARP_SIZE : power_of_two(ROW_CHUNKS > HEAD_SLOTS ? ROW_CHUNKS : HEAD_SLOTS);
  static constexpr int ROW_TOKENS = ROW_LANES / HEAD_SLOTS;  // tokens of a step that ROW_LANES lanes attend to
  static constexpr int LANE_CHUNKS = (ROW_CHUNKS + ROW_LANES - 1) / ROW_LANES;  // chunks of a row that a lane owns
  static constexpr int LANE_DIMS = LANE_CHUNKS * ROW_CHUNK;

  int lane;
  float query[HEADS][LANE_DIMS];
  float weighted[HEADS][LANE_DIMS];  // values
  Partial running;                   // of head lane % HEAD_SLOTS; the sum is the lane's share
  float weight[STEPS];               // of token lane / HEAD_SLOTS of each step, for that head

  // queries: the first query head's row, and the last that there is.
  __device__ __forceinline__ void start(const Element* queries, int last_head) {
    running = {-INFINITY, 0.0f};
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
      const uint4* row = reinterpret_cast<const uint4*>(queries + min(h, last_head) * HEAD_DIM);
#pragma unroll
      for (int c = 0; c < LANE_CHUNKS; ++c) {
        const int column = c * ROW_LANES + lane % ROW_LANES;
        unpack(column < ROW_CHUNKS ? row[column] : make_uint4(0, 0, 0, 0), query[h] + c * ROW_CHUNK);
      }
#pragma unroll
      for (int d = 0; d < LANE_DIMS; ++d) weighted[h][d] = 0.0f;
    }
  }

  // Scores and weights of a tile of keys, of which the first valid are the segment's.
  __device__ __forceinline__ void attend(const uint4* keys, int valid, float scale) {
    float larger = running.max;
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      float products[ROW_LANES];
#pragma unroll
      for (int t = 0; t < ROW_TOKENS; ++t) {
        float key[LANE_DIMS];
        load_row(keys, row(s, t), key);
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
          float& product = products[t * HEAD_SLOTS + h];
          product = 0.0f;
#pragma unroll
          for (int d = 0; d < LANE_DIMS; ++d) product += query[h][d] * key[d];
        }
      }
      weight[s] = transpose_sum<HEAD_SLOTS, HEADS>(products) * scale;  // a score as yet
      if (s * STEP_TOKENS + lane / HEAD_SLOTS >= valid) weight[s] = -INFINITY;
      larger = fmaxf(larger, weight[s]);
    }
#pragma unroll
    for (int offset = HEAD_SLOTS; offset < WARP_SIZE; offset *= 2) {
      larger = fmaxf(larger, __shfl_xor_sync(FULL_WARP, larger, offset));
    }
    if (__any_sync(FULL_WARP, larger > running.max)) {  // ever rarer
      const float keep = __expf(running.max - larger);
      running.max = larger;
      running.sum *= keep;
#pragma unroll
      for (int h = 0; h < HEADS; ++h) {
        const float factor = __shfl_sync(FULL_WARP, keep, h);
#pragma unroll
        for (int d = 0; d < LANE_DIMS; ++d) weighted[h][d] *= factor;
      }
    }
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      weight[s] = __expf(weight[s] - running.max);
      running.sum += weight[s];
    }
  }

  // The same tile's values.
  __device__ __forceinline__ void weigh(const uint4* values) {
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
#pragma unroll
      for (int t = 0; t < ROW_TOKENS; ++t) {
        float value[LANE_DIMS];
        load_row(values, row(s, t), value);
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
          const float share = __shfl_sync(FULL_WARP, weight[s], row(0, t) * HEAD_SLOTS + h);
#pragma unroll
          for (int d = 0; d < LANE_DIMS; ++d) weighted[h][d] += share * value[d];
        }
      }
    }
  }

  // The partial of every head into parts[h * stride], its values into row h * stride of values.
  __device__ __forceinline__ void store(Partial* parts, float4* values, int stride) {
#pragma unroll
    for (int offset = HEAD_SLOTS; offset < WARP_SIZE; offset *= 2) {
      running.sum += __shfl_xor_sync(FULL_WARP, running.sum, offset);
    }
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
      if (lane == h) parts[h * stride] = running;
#pragma unroll
      for (int d = 0; d < LANE_DIMS; ++d) {
        for (int offset = ROW_LANES; offset < WARP_SIZE; offset *= 2) {  // lanes that own the same dimensions
          weighted[h][d] += __shfl_xor_sync(FULL_WARP, weighted[h][d], offset);
        }
      }
#pragma unroll
      for (int d = 0; d < LANE_DIMS; d += 4) {
        const int column = ((d / ROW_CHUNK * ROW_LANES + lane % ROW_LANES) * ROW_CHUNK + d % ROW_CHUNK) / 4;
        if (lane < ROW_LANES && column < COLUMNS) {
          values[h * stride * COLUMNS + column] = reinterpret_cast<const float4&>(weighted[h][d]);
        }
      }
    }
  }

 private:
  // The lane's t-th row of a step.
  __device__ __forceinline__ int row(int step, int t) const {
    return step * STEP_TOKENS + lane / ROW_LANES * ROW_TOKENS + t;
  }

  __device__ __forceinline__ void load_row(const uint4* tile, int row, float (&elements)[LANE_DIMS]) {
#pragma unroll
    for (int c = 0; c < LANE_CHUNKS; ++c) {
      const int column = c * ROW_LANES + lane % ROW_LANES;
      unpack(column < ROW_CHUNKS ? tile[tile_chunk(row, column)] : make_uint4(0, 0, 0, 0), elements + c * ROW_CHUNK);
    }
  }
};
