// __nv_bfloat16 for a clang that comes without CUDA's headers: storage, conversions, and arithmetic by way of fp32.
// What is not here is unknown by name.
#line 4 "cuda_bf16.h"
#pragma once

struct __align__(2) __nv_bfloat16 {
  unsigned short raw;
  __nv_bfloat16() = default;
  LAB_MEMBER __nv_bfloat16(float v) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(raw) : "f"(v)); }
  LAB_MEMBER operator float() const { return __uint_as_float((unsigned)raw << 16); }
};
typedef __nv_bfloat16 nv_bfloat16;

struct __align__(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
  __nv_bfloat162() = default;
  LAB_MEMBER __nv_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) : x(x), y(y) {}
};
typedef __nv_bfloat162 nv_bfloat162;

LAB_FUNCTION float __bfloat162float(__nv_bfloat16 v) { return v; }
LAB_FUNCTION __nv_bfloat16 __float2bfloat16(float v) { return v; }
LAB_FUNCTION __nv_bfloat16 __float2bfloat16_rn(float v) { return v; }
LAB_FUNCTION unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.raw; }
LAB_FUNCTION __nv_bfloat16 __ushort_as_bfloat16(unsigned short v) { return __builtin_bit_cast(__nv_bfloat16, v); }
LAB_FUNCTION __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  unsigned result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(y), "f"(x));  // the first source is the upper half
  return __builtin_bit_cast(__nv_bfloat162, result);
}
LAB_FUNCTION __nv_bfloat162 __float22bfloat162_rn(float2 v) { return __floats2bfloat162_rn(v.x, v.y); }
LAB_FUNCTION float2 __bfloat1622float2(__nv_bfloat162 v) { return {(float)v.x, (float)v.y}; }
LAB_FUNCTION __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return __nv_bfloat162(x, y); }
LAB_FUNCTION __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
LAB_FUNCTION __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
LAB_FUNCTION float __low2float(__nv_bfloat162 v) { return v.x; }
LAB_FUNCTION float __high2float(__nv_bfloat162 v) { return v.y; }
