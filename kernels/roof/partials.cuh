// Attention over some of the tokens, kept so that it merges with attention over others: what 05 works out, for the
// stages after it.

// What combine needs. The weighted values, sum of exp(score - max) * value, lie beside it; they take its scales.
struct Partial {
  float max;  // of the scores, -INFINITY where there is no token
  float sum;  // of exp(score - max)
};

constexpr int COLUMNS = HEAD_DIM / 4;  // of four dimensions

// Scratch, an entry for every run of tokens that some query head attends to.
struct Partials {
  Partial* part;   // [entries]
  float4* values;  // [entries, COLUMNS], not divided by the sum
};

__device__ __forceinline__ Partial combine(Partial a, Partial b, float& scale_a, float& scale_b) {
  const float max = fmaxf(a.max, b.max);
  scale_a = a.max == max ? 1.0f : __expf(a.max - max);  // not -INFINITY minus -INFINITY
  scale_b = b.max == max ? 1.0f : __expf(b.max - max);
  return {max, scale_a * a.sum + scale_b * b.sum};
}

// Merges partials first, first + step, ... below count, and one column of their values.
__device__ __forceinline__ Partial merge(const Partial* parts, const float4* values, int first, int count, int step,
                                         float4& merged) {
  Partial whole = {-INFINITY, 0.0f};
  merged = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
  for (int i = first; i < count; i += step) {
    float keep, take;
    whole = combine(whole, parts[i], keep, take);
    merged = rescale_add(merged, keep, take, values[(size_t)i * COLUMNS]);
  }
  return whole;
}

// Four dimensions of an output row, times a factor; zeros where there was no token.
__device__ __forceinline__ void write_output(Element* output, Partial whole, float4 values, float factor) {
  const float inverse = whole.sum > 0.0f ? factor / whole.sum : 0.0f;
  output[0] = static_cast<Element>(values.x * inverse);
  output[1] = static_cast<Element>(values.y * inverse);
  output[2] = static_cast<Element>(values.z * inverse);
  output[3] = static_cast<Element>(values.w * inverse);
}

// A block of (COLUMNS, ROWS) threads merges count partials that lie one after the other, into one output row.
template <int ROWS>
__device__ __forceinline__ void merge_row(const Partials& partials, size_t first, int count, Element* output,
                                          float factor) {
  const int column = threadIdx.x;
  const int row = threadIdx.y;
  __shared__ Partial row_parts[ROWS];
  __shared__ float4 row_values[ROWS][COLUMNS];

  float4 merged;
  Partial part = merge(partials.part + first, partials.values + first * COLUMNS + column, row, count, ROWS, merged);
  row_values[row][column] = merged;
  if (column == 0) row_parts[row] = part;
  __syncthreads();
  if (row > 0) return;
  part = merge(row_parts, row_values[0] + column, 0, ROWS, 1, merged);
  write_output(output + 4 * column, part, merged, factor);
}
