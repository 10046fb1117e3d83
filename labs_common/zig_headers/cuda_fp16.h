// half and half2 for a clang that comes without CUDA's headers: storage, conversions, arithmetic, comparisons and
// exchanges. Each gives the instruction that NVIDIA's header gives, by inline PTX: clang's own would flush the
// denormals of half too, and fuse. What is not here is unknown by name.
#line 5 "cuda_fp16.h"
#pragma once

struct __align__(2) __half {
  unsigned short raw;
  __half() = default;
  LAB_MEMBER __half(float v) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(raw) : "f"(v)); }
  LAB_MEMBER __half(double v) { asm("cvt.rn.f16.f64 %0, %1;" : "=h"(raw) : "d"(v)); }
  LAB_MEMBER __half(int v) { asm("cvt.rn.f16.s32 %0, %1;" : "=h"(raw) : "r"(v)); }
  LAB_MEMBER __half(unsigned v) { asm("cvt.rn.f16.u32 %0, %1;" : "=h"(raw) : "r"(v)); }
  LAB_MEMBER __half(long long v) { asm("cvt.rn.f16.s64 %0, %1;" : "=h"(raw) : "l"(v)); }
  LAB_MEMBER __half(unsigned long long v) { asm("cvt.rn.f16.u64 %0, %1;" : "=h"(raw) : "l"(v)); }
  LAB_MEMBER operator float() const {
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(raw));
    return v;
  }
};
typedef __half half;
typedef __half __nv_half;

struct __align__(4) __half2 {
  __half x, y;
  __half2() = default;
  LAB_MEMBER __half2(__half x, __half y) : x(x), y(y) {}
};
typedef __half2 half2;

struct __half_raw {
  unsigned short x;
};

LAB_FUNCTION unsigned short __half_as_ushort(__half v) { return v.raw; }
LAB_FUNCTION short __half_as_short(__half v) { return (short)v.raw; }
LAB_FUNCTION __half __ushort_as_half(unsigned short bits) { return __builtin_bit_cast(__half, bits); }
LAB_FUNCTION __half __short_as_half(short bits) { return __builtin_bit_cast(__half, bits); }
LAB_FUNCTION unsigned lab_bits(__half2 v) { return __builtin_bit_cast(unsigned, v); }
LAB_FUNCTION __half2 lab_half2(unsigned bits) { return __builtin_bit_cast(__half2, bits); }

// ---- conversions

LAB_FUNCTION float __half2float(__half v) { return v; }
LAB_FUNCTION __half __float2half(float v) { return v; }
LAB_FUNCTION __half __float2half_rn(float v) { return v; }
LAB_FUNCTION __half __float2half_rz(float v) {
  __half result;
  asm("cvt.rz.f16.f32 %0, %1;" : "=h"(result.raw) : "f"(v));
  return result;
}
LAB_FUNCTION __half __double2half(double v) { return v; }
LAB_FUNCTION __half __int2half_rn(int v) { return v; }
LAB_FUNCTION __half __uint2half_rn(unsigned v) { return v; }
LAB_FUNCTION int __half2int_rn(__half v) {
  int result;
  asm("cvt.rni.s32.f16 %0, %1;" : "=r"(result) : "h"(v.raw));
  return result;
}
LAB_FUNCTION int __half2int_rz(__half v) {
  int result;
  asm("cvt.rzi.s32.f16 %0, %1;" : "=r"(result) : "h"(v.raw));
  return result;
}
LAB_FUNCTION __half2 __floats2half2_rn(float x, float y) {
  unsigned result;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(y), "f"(x));  // the first source is the upper half
  return lab_half2(result);
}
LAB_FUNCTION __half2 __float22half2_rn(float2 v) { return __floats2half2_rn(v.x, v.y); }
LAB_FUNCTION __half2 __float2half2_rn(float v) { return __half2(v, v); }
LAB_FUNCTION float2 __half22float2(__half2 v) { return {(float)v.x, (float)v.y}; }
LAB_FUNCTION __half2 __half2half2(__half v) { return __half2(v, v); }
LAB_FUNCTION __half2 __halves2half2(__half x, __half y) { return __half2(x, y); }
LAB_FUNCTION __half2 make_half2(__half x, __half y) { return __half2(x, y); }
LAB_FUNCTION __half __low2half(__half2 v) { return v.x; }
LAB_FUNCTION __half __high2half(__half2 v) { return v.y; }
LAB_FUNCTION float __low2float(__half2 v) { return v.x; }
LAB_FUNCTION float __high2float(__half2 v) { return v.y; }
LAB_FUNCTION __half2 __low2half2(__half2 v) { return __half2(v.x, v.x); }
LAB_FUNCTION __half2 __high2half2(__half2 v) { return __half2(v.y, v.y); }
LAB_FUNCTION __half2 __lowhigh2highlow(__half2 v) { return __half2(v.y, v.x); }

// ---- arithmetic

#define LAB_BINARY(name, name2, instruction)                                                               \
  LAB_FUNCTION __half name(__half a, __half b) {                                                           \
    __half result;                                                                                         \
    asm(instruction ".f16 %0, %1, %2;" : "=h"(result.raw) : "h"(a.raw), "h"(b.raw));                       \
    return result;                                                                                         \
  }                                                                                                        \
  LAB_FUNCTION __half2 name2(__half2 a, __half2 b) {                                                       \
    unsigned result;                                                                                       \
    asm(instruction ".f16x2 %0, %1, %2;" : "=r"(result) : "r"(lab_bits(a)), "r"(lab_bits(b)));             \
    return lab_half2(result);                                                                              \
  }
LAB_BINARY(__hadd, __hadd2, "add")
LAB_BINARY(__hsub, __hsub2, "sub")
LAB_BINARY(__hmul, __hmul2, "mul")
LAB_BINARY(__hadd_rn, __hadd2_rn, "add.rn")
LAB_BINARY(__hsub_rn, __hsub2_rn, "sub.rn")
LAB_BINARY(__hmul_rn, __hmul2_rn, "mul.rn")
LAB_BINARY(__hmax, __hmax2, "max")
LAB_BINARY(__hmin, __hmin2, "min")
#undef LAB_BINARY

LAB_FUNCTION __half __hfma(__half a, __half b, __half c) {
  __half result;
  asm("fma.rn.f16 %0, %1, %2, %3;" : "=h"(result.raw) : "h"(a.raw), "h"(b.raw), "h"(c.raw));
  return result;
}
LAB_FUNCTION __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  unsigned result;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(lab_bits(a)), "r"(lab_bits(b)), "r"(lab_bits(c)));
  return lab_half2(result);
}
LAB_FUNCTION __half __hneg(__half v) { return __ushort_as_half(v.raw ^ 0x8000u); }
LAB_FUNCTION __half __habs(__half v) { return __ushort_as_half(v.raw & 0x7fffu); }
LAB_FUNCTION __half2 __hneg2(__half2 v) { return lab_half2(lab_bits(v) ^ 0x80008000u); }
LAB_FUNCTION __half2 __habs2(__half2 v) { return lab_half2(lab_bits(v) & 0x7fff7fffu); }
LAB_FUNCTION __half __hdiv(__half a, __half b) { return (float)a / (float)b; }

#define LAB_OPERATOR(op, name, name2)                                                                      \
  LAB_FUNCTION __half operator op(const __half& a, const __half& b) { return name(a, b); }                 \
  LAB_FUNCTION __half2 operator op(const __half2& a, const __half2& b) { return name2(a, b); }             \
  LAB_FUNCTION __half& operator op##=(__half& a, const __half& b) { return a = name(a, b); }               \
  LAB_FUNCTION __half2& operator op##=(__half2& a, const __half2& b) { return a = name2(a, b); }
LAB_OPERATOR(+, __hadd, __hadd2)
LAB_OPERATOR(-, __hsub, __hsub2)
LAB_OPERATOR(*, __hmul, __hmul2)
#undef LAB_OPERATOR
LAB_FUNCTION __half operator/(const __half& a, const __half& b) { return __hdiv(a, b); }
LAB_FUNCTION __half& operator/=(__half& a, const __half& b) { return a = __hdiv(a, b); }
LAB_FUNCTION __half operator-(const __half& v) { return __hneg(v); }
LAB_FUNCTION __half2 operator-(const __half2& v) { return __hneg2(v); }

// ---- comparisons; false where one is NaN, except for !=

#define LAB_COMPARISON(name, op, condition)                                                                \
  LAB_FUNCTION bool name(__half a, __half b) {                                                             \
    int result;                                                                                            \
    asm("{.reg .pred p; setp." condition ".f16 p, %1, %2; selp.s32 %0, 1, 0, p;}"                          \
        : "=r"(result) : "h"(a.raw), "h"(b.raw));                                                          \
    return result;                                                                                         \
  }                                                                                                        \
  LAB_FUNCTION bool operator op(const __half& a, const __half& b) { return name(a, b); }
LAB_COMPARISON(__heq, ==, "eq")
LAB_COMPARISON(__hne, !=, "neu")
LAB_COMPARISON(__hlt, <, "lt")
LAB_COMPARISON(__hle, <=, "le")
LAB_COMPARISON(__hgt, >, "gt")
LAB_COMPARISON(__hge, >=, "ge")
#undef LAB_COMPARISON
LAB_FUNCTION bool __hisnan(__half v) { return (v.raw & 0x7fffu) > 0x7c00u; }
LAB_FUNCTION int __hisinf(__half v) { return (v.raw & 0x7fffu) != 0x7c00u ? 0 : v.raw & 0x8000u ? -1 : 1; }

// ---- functions, by way of fp32

LAB_FUNCTION __half hexp(__half v) { return __expf(v); }
LAB_FUNCTION __half hexp2(__half v) { return exp2f(v); }
LAB_FUNCTION __half hlog(__half v) { return __logf(v); }
LAB_FUNCTION __half hsqrt(__half v) { return sqrtf(v); }
LAB_FUNCTION __half hrsqrt(__half v) { return rsqrtf(v); }
LAB_FUNCTION __half hrcp(__half v) { return 1.0f / (float)v; }

// ---- exchanges, loads and stores

#define LAB_EXCHANGE(name, Lane)                                                                           \
  LAB_FUNCTION __half2 name(unsigned mask, __half2 v, Lane lane, int width = 32) {                         \
    return lab_half2(name(mask, lab_bits(v), lane, width));                                                \
  }                                                                                                        \
  LAB_FUNCTION __half name(unsigned mask, __half v, Lane lane, int width = 32) {                           \
    return __ushort_as_half((unsigned short)name(mask, (unsigned)v.raw, lane, width));                     \
  }
LAB_EXCHANGE(__shfl_sync, int)
LAB_EXCHANGE(__shfl_up_sync, unsigned)
LAB_EXCHANGE(__shfl_down_sync, unsigned)
LAB_EXCHANGE(__shfl_xor_sync, int)
#undef LAB_EXCHANGE

#define LAB_LOADS(name)                                                                                    \
  LAB_FUNCTION __half name(const __half* p) { return __ushort_as_half(name((const unsigned short*)p)); }   \
  LAB_FUNCTION __half2 name(const __half2* p) { return lab_half2(name((const unsigned*)p)); }
LAB_LOADS(__ldg)
LAB_LOADS(__ldca)
LAB_LOADS(__ldcg)
LAB_LOADS(__ldcs)
#undef LAB_LOADS
#define LAB_STORES(name)                                                                                   \
  LAB_FUNCTION void name(__half* p, __half v) { name((unsigned short*)p, v.raw); }                         \
  LAB_FUNCTION void name(__half2* p, __half2 v) { name((unsigned*)p, lab_bits(v)); }
LAB_STORES(__stcg)
LAB_STORES(__stcs)
#undef LAB_STORES
