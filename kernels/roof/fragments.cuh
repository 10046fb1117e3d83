// Tensor-core instructions on a warp's fragments, in the layouts of the PTX ISA's "Matrix multiply-accumulate".
// With row = lane / 4 and pair = 2 * (lane % 4), an 8 x 8 matrix of 16-bit elements is one register a lane: elements
// (row, pair) and (row, pair + 1).

#ifndef MMA_TYPE  // of both factors: f16 or bf16
#define MMA_TYPE f16
#endif
#define AS_TEXT(name) #name
#define MMA_TEXT(type) "mma.sync.aligned.m16n8k16.row.col.f32." AS_TEXT(type) "." AS_TEXT(type) ".f32 "

// Four 8 x 8 matrices from shared memory. Lane i gives the address of row i % 8 of matrix i / 8; turned, each register
// has the elements (pair, row) and (pair + 1, row) in place of its own.
template <bool TURNED>
__device__ __forceinline__ void load_matrices(unsigned (&matrices)[4], unsigned address) {
  if (TURNED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3]) : "r"(address) : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3]) : "r"(address) : "memory");
  }
}

// An 8 x 8 matrix turned within the warp.
__device__ __forceinline__ unsigned turn(unsigned matrix) {
  unsigned turned;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(matrix));
  return turned;
}

// sums += left * right, [16, 8] += [16, 16] * [16, 8]. left has four matrices, the rows 0..7 and 8..15 of its first
// eight columns, then of the others; right two, each turned. The lane's sums are (row, pair), (row, pair + 1), and the
// same eight rows further down.
__device__ __forceinline__ void multiply(float (&sums)[4], unsigned left0, unsigned left1, unsigned left2, unsigned left3,
                                         const unsigned (&right)[2]) {
  asm volatile(MMA_TEXT(MMA_TYPE) "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(left0), "r"(left1), "r"(left2), "r"(left3), "r"(right[0]), "r"(right[1]));
}

// Two numbers rounded to the type of the factors, the first in the lower half.
__device__ __forceinline__ unsigned pack(float first, float second) {
  unsigned both;
#define PACK_TEXT(type) "cvt.rn." AS_TEXT(type) "x2.f32 %0, %1, %2;"
  asm(PACK_TEXT(MMA_TYPE) : "=r"(both) : "f"(second), "f"(first));
  return both;
}

// Four fp8 numbers, e4m3, as halves: exact.
__device__ __forceinline__ void widen(unsigned four, unsigned& first_two, unsigned& last_two) {
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2;"
      " cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high; }" : "=r"(first_two), "=r"(last_two) : "r"(four));
}
