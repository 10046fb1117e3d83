// What CUDA C++ knows before the first line of a kernel file, for a clang that comes without CUDA's headers.
//
// NVRTC has all of this built in. A function here gives the same PTX as NVRTC's with -ftz=true where that is one
// instruction; where NVRTC takes a routine of CUDA's libdevice, the comment says what stands here instead. What
// there is no routine for is declared unavailable at the end: using it is an error that names it.
#define __host__ __attribute__((host))
// For the host too: NVRTC lets the constants of a file call its constexpr __device__ functions, clang only then.
#define __device__ __attribute__((host, device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __grid_constant__ __attribute__((grid_constant))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __CUDACC_RTC__ 1  // code that asks how it is compiled takes the same path as under NVRTC

// nodebug: its instructions belong to the line that calls it, as NVRTC's built-in functions do.
#define LAB_MEMBER __device__ __forceinline__ __attribute__((nodebug))
#define LAB_FUNCTION static LAB_MEMBER

typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef long clock_t;

// ---- vector types

#define LAB_VECTORS(name, T, align2, align4)                                                               \
  struct name##1 { T x; };                                                                                 \
  struct __align__(align2) name##2 { T x, y; };                                                            \
  struct name##3 { T x, y, z; };                                                                           \
  struct __align__(align4) name##4 { T x, y, z, w; };                                                      \
  LAB_FUNCTION name##1 make_##name##1(T x) { return {x}; }                                                 \
  LAB_FUNCTION name##2 make_##name##2(T x, T y) { return {x, y}; }                                         \
  LAB_FUNCTION name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                 \
  LAB_FUNCTION name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

LAB_VECTORS(char, signed char, 2, 4)
LAB_VECTORS(uchar, unsigned char, 2, 4)
LAB_VECTORS(short, short, 4, 8)
LAB_VECTORS(ushort, unsigned short, 4, 8)
LAB_VECTORS(int, int, 8, 16)
LAB_VECTORS(uint, unsigned, 8, 16)
LAB_VECTORS(long, long, 16, 16)
LAB_VECTORS(ulong, unsigned long, 16, 16)
LAB_VECTORS(longlong, long long, 16, 16)
LAB_VECTORS(ulonglong, unsigned long long, 16, 16)
LAB_VECTORS(float, float, 8, 16)
LAB_VECTORS(double, double, 16, 16)

struct dim3 {
  unsigned x, y, z;
  __host__ __device__ constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  __host__ __device__ constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  __host__ __device__ constexpr operator uint3() const { return {x, y, z}; }
};

// ---- where a thread is

#define LAB_COORDINATES(name, sreg, Whole)                                                                 \
  struct lab_##name {                                                                                      \
    __declspec(property(get = get_x)) unsigned x;                                                          \
    __declspec(property(get = get_y)) unsigned y;                                                          \
    __declspec(property(get = get_z)) unsigned z;                                                          \
    LAB_FUNCTION unsigned get_x() { return __nvvm_read_ptx_sreg_##sreg##_x(); }       \
    LAB_FUNCTION unsigned get_y() { return __nvvm_read_ptx_sreg_##sreg##_y(); }       \
    LAB_FUNCTION unsigned get_z() { return __nvvm_read_ptx_sreg_##sreg##_z(); }       \
    __device__ __forceinline__ operator Whole() const { return {get_x(), get_y(), get_z()}; }              \
  };                                                                                                       \
  extern const __device__ __attribute__((weak)) lab_##name name;

LAB_COORDINATES(threadIdx, tid, uint3)
LAB_COORDINATES(blockIdx, ctaid, uint3)
LAB_COORDINATES(blockDim, ntid, dim3)
LAB_COORDINATES(gridDim, nctaid, dim3)
static constexpr int warpSize = 32;

// ---- barriers and fences; __syncthreads is clang's own

LAB_FUNCTION int __syncthreads_count(int predicate) { return __nvvm_bar0_popc(predicate); }
LAB_FUNCTION int __syncthreads_and(int predicate) { return __nvvm_bar0_and(predicate); }
LAB_FUNCTION int __syncthreads_or(int predicate) { return __nvvm_bar0_or(predicate); }
LAB_FUNCTION void __syncwarp(unsigned mask = 0xffffffffu) { __nvvm_bar_warp_sync(mask); }
LAB_FUNCTION void __threadfence_block() { __nvvm_membar_cta(); }
LAB_FUNCTION void __threadfence() { __nvvm_membar_gl(); }
LAB_FUNCTION void __threadfence_system() { __nvvm_membar_sys(); }

// ---- exchanges within a warp

// The last operand of shfl: the segment's mask in bits 8 to 12, the clamp in bits 0 to 4.
#define LAB_SHUFFLE(name, mode, Lane, clamp)                                                               \
  LAB_FUNCTION int name(unsigned mask, int value, Lane lane, int width = 32) {                             \
    return __nvvm_shfl_sync_##mode##_i32(mask, value, lane, (32 - width) << 8 | clamp);                    \
  }                                                                                                        \
  LAB_FUNCTION unsigned name(unsigned mask, unsigned value, Lane lane, int width = 32) {                   \
    return name(mask, (int)value, lane, width);                                                            \
  }                                                                                                        \
  LAB_FUNCTION float name(unsigned mask, float value, Lane lane, int width = 32) {                         \
    return __builtin_bit_cast(float, name(mask, __builtin_bit_cast(int, value), lane, width));             \
  }                                                                                                        \
  LAB_FUNCTION unsigned long long name(unsigned mask, unsigned long long value, Lane lane, int width = 32) { \
    const unsigned low = name(mask, (unsigned)value, lane, width);                                         \
    return (unsigned long long)name(mask, (unsigned)(value >> 32), lane, width) << 32 | low;               \
  }                                                                                                        \
  LAB_FUNCTION long long name(unsigned mask, long long value, Lane lane, int width = 32) {                 \
    return name(mask, (unsigned long long)value, lane, width);                                             \
  }                                                                                                        \
  LAB_FUNCTION unsigned long name(unsigned mask, unsigned long value, Lane lane, int width = 32) {         \
    return name(mask, (unsigned long long)value, lane, width);                                             \
  }                                                                                                        \
  LAB_FUNCTION long name(unsigned mask, long value, Lane lane, int width = 32) {                           \
    return name(mask, (unsigned long long)value, lane, width);                                             \
  }                                                                                                        \
  LAB_FUNCTION double name(unsigned mask, double value, Lane lane, int width = 32) {                       \
    return __builtin_bit_cast(double, name(mask, __builtin_bit_cast(unsigned long long, value), lane, width)); \
  }

LAB_SHUFFLE(__shfl_sync, idx, int, 31)
LAB_SHUFFLE(__shfl_up_sync, up, unsigned, 0)
LAB_SHUFFLE(__shfl_down_sync, down, unsigned, 31)
LAB_SHUFFLE(__shfl_xor_sync, bfly, int, 31)

LAB_FUNCTION int __all_sync(unsigned mask, int predicate) { return __nvvm_vote_all_sync(mask, predicate != 0); }
LAB_FUNCTION int __any_sync(unsigned mask, int predicate) { return __nvvm_vote_any_sync(mask, predicate != 0); }
LAB_FUNCTION int __uni_sync(unsigned mask, int predicate) { return __nvvm_vote_uni_sync(mask, predicate != 0); }
LAB_FUNCTION unsigned __ballot_sync(unsigned mask, int predicate) {
  return __nvvm_vote_ballot_sync(mask, predicate != 0);
}
LAB_FUNCTION unsigned __activemask() { return __nvvm_activemask(); }

#define LAB_MATCH(T, bits)                                                                                 \
  LAB_FUNCTION unsigned __match_any_sync(unsigned mask, T value) {                                         \
    return __nvvm_match_any_sync_i##bits(mask, __builtin_bit_cast(lab_bits##bits, value));                 \
  }                                                                                                        \
  LAB_FUNCTION unsigned __match_all_sync(unsigned mask, T value, int* all) {                               \
    return __nvvm_match_all_sync_i##bits##p(mask, __builtin_bit_cast(lab_bits##bits, value), all);         \
  }
typedef unsigned lab_bits32;
typedef unsigned long long lab_bits64;
LAB_MATCH(int, 32)
LAB_MATCH(unsigned, 32)
LAB_MATCH(float, 32)
LAB_MATCH(long, 64)
LAB_MATCH(unsigned long, 64)
LAB_MATCH(long long, 64)
LAB_MATCH(unsigned long long, 64)
LAB_MATCH(double, 64)

LAB_FUNCTION int __reduce_add_sync(unsigned mask, int value) { return __nvvm_redux_sync_add(value, mask); }
LAB_FUNCTION unsigned __reduce_add_sync(unsigned mask, unsigned value) { return __nvvm_redux_sync_add(value, mask); }
LAB_FUNCTION int __reduce_min_sync(unsigned mask, int value) { return __nvvm_redux_sync_min(value, mask); }
LAB_FUNCTION unsigned __reduce_min_sync(unsigned mask, unsigned value) { return __nvvm_redux_sync_umin(value, mask); }
LAB_FUNCTION int __reduce_max_sync(unsigned mask, int value) { return __nvvm_redux_sync_max(value, mask); }
LAB_FUNCTION unsigned __reduce_max_sync(unsigned mask, unsigned value) { return __nvvm_redux_sync_umax(value, mask); }
LAB_FUNCTION unsigned __reduce_and_sync(unsigned mask, unsigned value) { return __nvvm_redux_sync_and(value, mask); }
LAB_FUNCTION unsigned __reduce_or_sync(unsigned mask, unsigned value) { return __nvvm_redux_sync_or(value, mask); }
LAB_FUNCTION unsigned __reduce_xor_sync(unsigned mask, unsigned value) { return __nvvm_redux_sync_xor(value, mask); }

// ---- atomics: by inline PTX, since clang's builtins for them order memory more strictly than CUDA's functions do

#define LAB_ATOMIC(name, op, suffix, T, C)                                                                 \
  LAB_FUNCTION T name(T* address, T value) {                                                               \
    T old;                                                                                                 \
    asm volatile("atom." #op "." suffix " %0, [%1], %2;" : "=" C(old) : "l"(address), C(value) : "memory"); \
    return old;                                                                                            \
  }
LAB_ATOMIC(atomicAdd, add, "s32", int, "r")
LAB_ATOMIC(atomicAdd, add, "u32", unsigned, "r")
LAB_ATOMIC(atomicAdd, add, "u64", unsigned long long, "l")
LAB_ATOMIC(atomicAdd, add, "f32", float, "f")
LAB_ATOMIC(atomicAdd, add, "f64", double, "d")
LAB_ATOMIC(atomicMin, min, "s32", int, "r")
LAB_ATOMIC(atomicMin, min, "u32", unsigned, "r")
LAB_ATOMIC(atomicMin, min, "s64", long long, "l")
LAB_ATOMIC(atomicMin, min, "u64", unsigned long long, "l")
LAB_ATOMIC(atomicMax, max, "s32", int, "r")
LAB_ATOMIC(atomicMax, max, "u32", unsigned, "r")
LAB_ATOMIC(atomicMax, max, "s64", long long, "l")
LAB_ATOMIC(atomicMax, max, "u64", unsigned long long, "l")
LAB_ATOMIC(atomicAnd, and, "b32", int, "r")
LAB_ATOMIC(atomicAnd, and, "b32", unsigned, "r")
LAB_ATOMIC(atomicAnd, and, "b64", unsigned long long, "l")
LAB_ATOMIC(atomicOr, or, "b32", int, "r")
LAB_ATOMIC(atomicOr, or, "b32", unsigned, "r")
LAB_ATOMIC(atomicOr, or, "b64", unsigned long long, "l")
LAB_ATOMIC(atomicXor, xor, "b32", int, "r")
LAB_ATOMIC(atomicXor, xor, "b32", unsigned, "r")
LAB_ATOMIC(atomicXor, xor, "b64", unsigned long long, "l")
LAB_ATOMIC(atomicExch, exch, "b32", int, "r")
LAB_ATOMIC(atomicExch, exch, "b32", unsigned, "r")
LAB_ATOMIC(atomicExch, exch, "b32", float, "f")
LAB_ATOMIC(atomicExch, exch, "b64", unsigned long long, "l")
LAB_ATOMIC(atomicInc, inc, "u32", unsigned, "r")
LAB_ATOMIC(atomicDec, dec, "u32", unsigned, "r")
LAB_FUNCTION int atomicSub(int* address, int value) { return atomicAdd(address, -value); }
LAB_FUNCTION unsigned atomicSub(unsigned* address, unsigned value) { return atomicAdd(address, 0u - value); }

#define LAB_COMPARE_AND_SWAP(T, bits, C)                                                                   \
  LAB_FUNCTION T atomicCAS(T* address, T expected, T value) {                                              \
    T old;                                                                                                 \
    asm volatile("atom.cas.b" #bits " %0, [%1], %2, %3;"                                                   \
                 : "=" C(old) : "l"(address), C(expected), C(value) : "memory");                           \
    return old;                                                                                            \
  }
LAB_COMPARE_AND_SWAP(int, 32, "r")
LAB_COMPARE_AND_SWAP(unsigned, 32, "r")
LAB_COMPARE_AND_SWAP(unsigned long long, 64, "l")

// ---- loads and stores with cache hints

#define LAB_LOAD(name, op, T, suffix, C, R)                                                                \
  LAB_FUNCTION T name(const T* address) {                                                                  \
    R value;                                                                                               \
    asm volatile("ld.global." op "." suffix " %0, [%1];" : "=" C(value) : "l"(address));                   \
    return (T)value;                                                                                       \
  }
#define LAB_LOAD2(name, op, T, suffix, C)                                                                  \
  LAB_FUNCTION T name(const T* address) {                                                                  \
    T v;                                                                                                   \
    asm volatile("ld.global." op ".v2." suffix " {%0,%1}, [%2];" : "=" C(v.x), "=" C(v.y) : "l"(address)); \
    return v;                                                                                              \
  }
#define LAB_LOAD4(name, op, T, suffix, C)                                                                  \
  LAB_FUNCTION T name(const T* address) {                                                                  \
    T v;                                                                                                   \
    asm volatile("ld.global." op ".v4." suffix " {%0,%1,%2,%3}, [%4];"                                     \
                 : "=" C(v.x), "=" C(v.y), "=" C(v.z), "=" C(v.w) : "l"(address));                         \
    return v;                                                                                              \
  }
#define LAB_LOADS(name, op)                                                                                \
  LAB_LOAD(name, op, char, "s8", "r", int)                                                                 \
  LAB_LOAD(name, op, signed char, "s8", "r", int)                                                          \
  LAB_LOAD(name, op, unsigned char, "u8", "r", unsigned)                                                   \
  LAB_LOAD(name, op, short, "s16", "h", short)                                                             \
  LAB_LOAD(name, op, unsigned short, "u16", "h", unsigned short)                                           \
  LAB_LOAD(name, op, int, "s32", "r", int)                                                                 \
  LAB_LOAD(name, op, unsigned, "u32", "r", unsigned)                                                       \
  LAB_LOAD(name, op, long, "s64", "l", long)                                                               \
  LAB_LOAD(name, op, unsigned long, "u64", "l", unsigned long)                                             \
  LAB_LOAD(name, op, long long, "s64", "l", long long)                                                     \
  LAB_LOAD(name, op, unsigned long long, "u64", "l", unsigned long long)                                   \
  LAB_LOAD(name, op, float, "f32", "f", float)                                                             \
  LAB_LOAD(name, op, double, "f64", "d", double)                                                           \
  LAB_LOAD2(name, op, int2, "s32", "r")                                                                    \
  LAB_LOAD2(name, op, uint2, "u32", "r")                                                                   \
  LAB_LOAD2(name, op, float2, "f32", "f")                                                                  \
  LAB_LOAD2(name, op, double2, "f64", "d")                                                                 \
  LAB_LOAD2(name, op, longlong2, "s64", "l")                                                               \
  LAB_LOAD2(name, op, ulonglong2, "u64", "l")                                                              \
  LAB_LOAD4(name, op, int4, "s32", "r")                                                                    \
  LAB_LOAD4(name, op, uint4, "u32", "r")                                                                   \
  LAB_LOAD4(name, op, float4, "f32", "f")
LAB_LOADS(__ldg, "nc")
LAB_LOADS(__ldca, "ca")
LAB_LOADS(__ldcg, "cg")
LAB_LOADS(__ldcs, "cs")
LAB_LOADS(__ldlu, "lu")
LAB_LOADS(__ldcv, "cv")

#define LAB_STORE(name, op, T, suffix, C)                                                                  \
  LAB_FUNCTION void name(T* address, T value) {                                                            \
    asm volatile("st.global." op "." suffix " [%0], %1;" ::"l"(address), C(value) : "memory");             \
  }
#define LAB_STORE2(name, op, T, suffix, C)                                                                 \
  LAB_FUNCTION void name(T* address, T v) {                                                                \
    asm volatile("st.global." op ".v2." suffix " [%0], {%1,%2};" ::"l"(address), C(v.x), C(v.y) : "memory"); \
  }
#define LAB_STORE4(name, op, T, suffix, C)                                                                 \
  LAB_FUNCTION void name(T* address, T v) {                                                                \
    asm volatile("st.global." op ".v4." suffix " [%0], {%1,%2,%3,%4};"                                     \
                 ::"l"(address), C(v.x), C(v.y), C(v.z), C(v.w) : "memory");                               \
  }
#define LAB_STORES(name, op)                                                                               \
  LAB_STORE(name, op, short, "s16", "h")                                                                   \
  LAB_STORE(name, op, unsigned short, "u16", "h")                                                          \
  LAB_STORE(name, op, int, "s32", "r")                                                                     \
  LAB_STORE(name, op, unsigned, "u32", "r")                                                                \
  LAB_STORE(name, op, long long, "s64", "l")                                                               \
  LAB_STORE(name, op, unsigned long long, "u64", "l")                                                      \
  LAB_STORE(name, op, float, "f32", "f")                                                                   \
  LAB_STORE(name, op, double, "f64", "d")                                                                  \
  LAB_STORE2(name, op, int2, "s32", "r")                                                                   \
  LAB_STORE2(name, op, uint2, "u32", "r")                                                                  \
  LAB_STORE2(name, op, float2, "f32", "f")                                                                 \
  LAB_STORE2(name, op, double2, "f64", "d")                                                                \
  LAB_STORE4(name, op, int4, "s32", "r")                                                                   \
  LAB_STORE4(name, op, uint4, "u32", "r")                                                                  \
  LAB_STORE4(name, op, float4, "f32", "f")
LAB_STORES(__stwb, "wb")
LAB_STORES(__stcg, "cg")
LAB_STORES(__stcs, "cs")
LAB_STORES(__stwt, "wt")

// ---- addresses

LAB_FUNCTION size_t __cvta_generic_to_shared(const void* p) {
  return (size_t)(const __attribute__((address_space(3))) void*)p;
}
LAB_FUNCTION size_t __cvta_generic_to_global(const void* p) {
  return (size_t)(const __attribute__((address_space(1))) void*)p;
}
LAB_FUNCTION void* __cvta_shared_to_generic(size_t p) { return (void*)(__attribute__((address_space(3))) void*)p; }
LAB_FUNCTION void* __cvta_global_to_generic(size_t p) { return (void*)(__attribute__((address_space(1))) void*)p; }
LAB_FUNCTION unsigned __isShared(const void* p) { return __nvvm_isspacep_shared(p); }
LAB_FUNCTION unsigned __isGlobal(const void* p) { return __nvvm_isspacep_global(p); }

// ---- bits

LAB_FUNCTION int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
LAB_FUNCTION unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
LAB_FUNCTION float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
LAB_FUNCTION float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
LAB_FUNCTION long long __double_as_longlong(double x) { return __builtin_bit_cast(long long, x); }
LAB_FUNCTION double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }
LAB_FUNCTION int __popc(unsigned x) { return __builtin_popcount(x); }
LAB_FUNCTION int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
LAB_FUNCTION int __clz(int x) { return x ? __builtin_clz(x) : 32; }
LAB_FUNCTION int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
LAB_FUNCTION int __ffs(int x) { return __builtin_ffs(x); }
LAB_FUNCTION int __ffsll(long long x) { return __builtin_ffsll(x); }
LAB_FUNCTION unsigned __brev(unsigned x) { return __builtin_bitreverse32(x); }
LAB_FUNCTION unsigned long long __brevll(unsigned long long x) { return __builtin_bitreverse64(x); }
LAB_FUNCTION unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) { return __nvvm_prmt(x, y, selector & 0x7777); }
LAB_FUNCTION unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  unsigned result;
  asm("shf.l.wrap.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(shift));
  return result;
}
LAB_FUNCTION unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  unsigned result;
  asm("shf.r.wrap.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(shift));
  return result;
}
LAB_FUNCTION int __mul24(int x, int y) { return __nvvm_mul24_i(x, y); }
LAB_FUNCTION unsigned __umul24(unsigned x, unsigned y) { return __nvvm_mul24_ui(x, y); }
LAB_FUNCTION int __mulhi(int x, int y) { return __nvvm_mulhi_i(x, y); }
LAB_FUNCTION unsigned __umulhi(unsigned x, unsigned y) { return __nvvm_mulhi_ui(x, y); }

// ---- arithmetic in fp32

LAB_FUNCTION float __fadd_rn(float x, float y) { return __nvvm_add_rn_ftz_f(x, y); }
LAB_FUNCTION float __fsub_rn(float x, float y) { return __nvvm_add_rn_ftz_f(x, -y); }
LAB_FUNCTION float __fmul_rn(float x, float y) { return __nvvm_mul_rn_ftz_f(x, y); }
LAB_FUNCTION float __fmaf_rn(float x, float y, float z) { return __nvvm_fma_rn_ftz_f(x, y, z); }
LAB_FUNCTION float __fdiv_rn(float x, float y) { return __nvvm_div_rn_ftz_f(x, y); }
LAB_FUNCTION float __frcp_rn(float x) { return __nvvm_rcp_rn_ftz_f(x); }
LAB_FUNCTION float __fsqrt_rn(float x) { return __nvvm_sqrt_rn_ftz_f(x); }
LAB_FUNCTION float __frsqrt_rn(float x) { return __nvvm_rsqrt_approx_ftz_f(x); }
LAB_FUNCTION float __fdividef(float x, float y) { return __nvvm_div_approx_ftz_f(x, y); }
LAB_FUNCTION float __saturatef(float x) { return __nvvm_saturate_ftz_f(x); }
LAB_FUNCTION float __expf(float x) { return __nvvm_ex2_approx_ftz_f(x * 1.44269504f); }
LAB_FUNCTION float __exp10f(float x) { return __nvvm_ex2_approx_ftz_f(x * 3.32192809f); }
LAB_FUNCTION float __log2f(float x) { return __nvvm_lg2_approx_ftz_f(x); }
LAB_FUNCTION float __logf(float x) { return __nvvm_lg2_approx_ftz_f(x) * 0.693147181f; }
LAB_FUNCTION float __log10f(float x) { return __nvvm_lg2_approx_ftz_f(x) * 0.301029996f; }
LAB_FUNCTION float __powf(float x, float y) { return __nvvm_ex2_approx_ftz_f(y * __nvvm_lg2_approx_ftz_f(x)); }
LAB_FUNCTION float __sinf(float x) { return __nvvm_sin_approx_ftz_f(x); }
LAB_FUNCTION float __cosf(float x) { return __nvvm_cos_approx_ftz_f(x); }
LAB_FUNCTION float rsqrtf(float x) { return __nvvm_rsqrt_approx_ftz_f(x); }
LAB_FUNCTION float sqrtf(float x) { return __nvvm_sqrt_rn_ftz_f(x); }
LAB_FUNCTION float exp2f(float x) { return __nvvm_ex2_approx_ftz_f(x); }
LAB_FUNCTION float fabsf(float x) { return __builtin_fabsf(x); }
LAB_FUNCTION float fmaf(float x, float y, float z) { return __nvvm_fma_rn_ftz_f(x, y, z); }
LAB_FUNCTION float fminf(float x, float y) { return __builtin_fminf(x, y); }
LAB_FUNCTION float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
LAB_FUNCTION float copysignf(float x, float y) { return __builtin_copysignf(x, y); }
LAB_FUNCTION float floorf(float x) { return __builtin_floorf(x); }
LAB_FUNCTION float ceilf(float x) { return __builtin_ceilf(x); }
LAB_FUNCTION float truncf(float x) { return __builtin_truncf(x); }
LAB_FUNCTION float rintf(float x) { return __builtin_rintf(x); }
LAB_FUNCTION float nearbyintf(float x) { return __builtin_rintf(x); }
LAB_FUNCTION float roundf(float x) {  // half away from zero, without a rounding error of x + 0.5
  const float whole = __builtin_truncf(x);
  return __builtin_fabsf(x - whole) >= 0.5f ? whole + __builtin_copysignf(1.0f, x) : whole;
}
LAB_FUNCTION float fdividef(float x, float y) { return x / y; }
LAB_FUNCTION bool isnan(float x) { return __builtin_isnan(x); }
LAB_FUNCTION bool isinf(float x) { return __builtin_isinf(x); }
LAB_FUNCTION bool isfinite(float x) { return __builtin_isfinite(x); }
LAB_FUNCTION bool signbit(float x) { return __builtin_signbit(x); }

// In place of libdevice's: x = n ln 2 + r, 2^n by ex2 which is exact there, 2^(r log2 e) by ex2. Within 3 ulp.
LAB_FUNCTION float expf(float x) {
  const float n = fminf(fmaxf(rintf(x * 1.44269504f), -126.0f), 127.0f);
  const float r = fmaf(n, 1.90465421e-9f, fmaf(n, -0.693147182f, x));
  return __nvvm_ex2_approx_ftz_f(r * 1.44269504f) * __nvvm_ex2_approx_ftz_f(n);
}
// In place of libdevice's: x = m 2^n with m in [sqrt(1/2), sqrt 2), then the series of atanh((m - 1) / (m + 1)).
LAB_FUNCTION float logf(float x) {
  const int bits = __float_as_int(x);
  if (!(x > 0.0f) || bits >= 0x7f800000) return __nvvm_lg2_approx_ftz_f(x);  // NaN, -INFINITY or INFINITY
  const int shifted = bits - 0x3f3504f3;
  const float n = shifted >> 23;
  const float m = __int_as_float((shifted & 0x007fffff) + 0x3f3504f3);
  const float s = (m - 1.0f) / (m + 1.0f), z = s * s;
  const float series = fmaf(z, fmaf(z, fmaf(z, 0.142857143f, 0.2f), 0.333333333f), 1.0f);
  return fmaf(n, 0.693147182f, fmaf(n, -1.90465421e-9f, 2.0f * s * series));
}

// ---- fp64

LAB_FUNCTION double sqrt(double x) { return __nvvm_sqrt_rn_d(x); }
LAB_FUNCTION double fabs(double x) { return __builtin_fabs(x); }
LAB_FUNCTION double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
LAB_FUNCTION double fmin(double x, double y) { return __builtin_fmin(x, y); }
LAB_FUNCTION double fmax(double x, double y) { return __builtin_fmax(x, y); }
LAB_FUNCTION double floor(double x) { return __builtin_floor(x); }
LAB_FUNCTION double ceil(double x) { return __builtin_ceil(x); }
LAB_FUNCTION double trunc(double x) { return __builtin_trunc(x); }
LAB_FUNCTION double rint(double x) { return __builtin_rint(x); }
LAB_FUNCTION bool isnan(double x) { return __builtin_isnan(x); }
LAB_FUNCTION bool isinf(double x) { return __builtin_isinf(x); }
LAB_FUNCTION bool isfinite(double x) { return __builtin_isfinite(x); }

// ---- overloads of C++ for float

LAB_FUNCTION float exp(float x) { return expf(x); }
LAB_FUNCTION float exp2(float x) { return exp2f(x); }
LAB_FUNCTION float log(float x) { return logf(x); }
LAB_FUNCTION float sqrt(float x) { return sqrtf(x); }
LAB_FUNCTION float rsqrt(float x) { return rsqrtf(x); }
LAB_FUNCTION float fabs(float x) { return fabsf(x); }
LAB_FUNCTION float abs(float x) { return fabsf(x); }
LAB_FUNCTION float fma(float x, float y, float z) { return fmaf(x, y, z); }
LAB_FUNCTION float fmin(float x, float y) { return fminf(x, y); }
LAB_FUNCTION float fmax(float x, float y) { return fmaxf(x, y); }
LAB_FUNCTION float floor(float x) { return floorf(x); }
LAB_FUNCTION float ceil(float x) { return ceilf(x); }
LAB_FUNCTION float trunc(float x) { return truncf(x); }
LAB_FUNCTION float rint(float x) { return rintf(x); }
LAB_FUNCTION float round(float x) { return roundf(x); }
LAB_FUNCTION double abs(double x) { return fabs(x); }
LAB_FUNCTION int abs(int x) { return x < 0 ? -x : x; }
LAB_FUNCTION long abs(long x) { return x < 0 ? -x : x; }
LAB_FUNCTION long long abs(long long x) { return x < 0 ? -x : x; }

#define LAB_MIN_MAX(R, A, B)                                                                               \
  LAB_FUNCTION constexpr R min(A x, B y) { return (R)x < (R)y ? (R)x : (R)y; }                             \
  LAB_FUNCTION constexpr R max(A x, B y) { return (R)x < (R)y ? (R)y : (R)x; }
LAB_MIN_MAX(int, int, int)
LAB_MIN_MAX(unsigned, unsigned, unsigned)
LAB_MIN_MAX(unsigned, int, unsigned)
LAB_MIN_MAX(unsigned, unsigned, int)
LAB_MIN_MAX(long, long, long)
LAB_MIN_MAX(unsigned long, unsigned long, unsigned long)
LAB_MIN_MAX(unsigned long, long, unsigned long)
LAB_MIN_MAX(unsigned long, unsigned long, long)
LAB_MIN_MAX(long long, long long, long long)
LAB_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
LAB_MIN_MAX(unsigned long long, long long, unsigned long long)
LAB_MIN_MAX(unsigned long long, unsigned long long, long long)
LAB_FUNCTION float min(float x, float y) { return fminf(x, y); }
LAB_FUNCTION float max(float x, float y) { return fmaxf(x, y); }
LAB_FUNCTION double min(double x, double y) { return fmin(x, y); }
LAB_FUNCTION double max(double x, double y) { return fmax(x, y); }
LAB_FUNCTION double min(float x, double y) { return __builtin_fmin(x, y); }
LAB_FUNCTION double max(float x, double y) { return __builtin_fmax(x, y); }
LAB_FUNCTION double min(double x, float y) { return __builtin_fmin(x, y); }
LAB_FUNCTION double max(double x, float y) { return __builtin_fmax(x, y); }

// ---- conversions: rn to the nearest even, rz towards zero, ru up, rd down

#define LAB_CONVERSIONS(mode, clang)                                                                              \
  LAB_FUNCTION int __float2int_##mode(float x) { return __nvvm_f2i_##clang##_ftz(x); }                      \
  LAB_FUNCTION unsigned __float2uint_##mode(float x) { return __nvvm_f2ui_##clang##_ftz(x); }               \
  LAB_FUNCTION long long __float2ll_##mode(float x) { return __nvvm_f2ll_##clang##_ftz(x); }                \
  LAB_FUNCTION float __int2float_##mode(int x) { return __nvvm_i2f_##clang(x); }                            \
  LAB_FUNCTION float __uint2float_##mode(unsigned x) { return __nvvm_ui2f_##clang(x); }                     \
  LAB_FUNCTION float __double2float_##mode(double x) { return __nvvm_d2f_##clang##_ftz(x); }
LAB_CONVERSIONS(rn, rn)
LAB_CONVERSIONS(rz, rz)
LAB_CONVERSIONS(ru, rp)
LAB_CONVERSIONS(rd, rm)

// ---- time, traps, printf, assert

LAB_FUNCTION clock_t clock() { return __nvvm_read_ptx_sreg_clock(); }
LAB_FUNCTION long long clock64() { return __nvvm_read_ptx_sreg_clock64(); }
LAB_FUNCTION void __trap() { asm volatile("trap;"); }
LAB_FUNCTION void __nanosleep(unsigned ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns)); }

extern "C" __device__ int printf(const char* format, ...);
extern "C" __device__ __attribute__((noreturn)) void __assertfail(const void* message, const void* file, unsigned line,
                                                                  const void* function, size_t char_size);
#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
#define assert(condition) \
  ((condition) ? (void)0 : __assertfail(#condition, __FILE__, __LINE__, __PRETTY_FUNCTION__, sizeof(char)))
#endif

// ---- what only libdevice has: known by name, so that the error says why

#define LAB_MISSING(name)                                                                                  \
  template <class... Arguments>                                                                            \
  __device__ __attribute__((unavailable("it is a routine of CUDA's libdevice, which the zig front end has not"))) \
  float name(Arguments...);
LAB_MISSING(sinf)
LAB_MISSING(cosf)
LAB_MISSING(tanf)
LAB_MISSING(sincosf)
LAB_MISSING(asinf)
LAB_MISSING(acosf)
LAB_MISSING(atanf)
LAB_MISSING(atan2f)
LAB_MISSING(sinhf)
LAB_MISSING(coshf)
LAB_MISSING(tanhf)
LAB_MISSING(erff)
LAB_MISSING(erfcf)
LAB_MISSING(powf)
LAB_MISSING(log2f)
LAB_MISSING(log10f)
LAB_MISSING(log1pf)
LAB_MISSING(exp10f)
LAB_MISSING(expm1f)
LAB_MISSING(cbrtf)
LAB_MISSING(fmodf)
LAB_MISSING(ldexpf)
LAB_MISSING(frexpf)
LAB_MISSING(pow)
LAB_MISSING(sin)
LAB_MISSING(cos)
LAB_MISSING(tanh)

#undef LAB_VECTORS
#undef LAB_COORDINATES
#undef LAB_SHUFFLE
#undef LAB_MATCH
#undef LAB_ATOMIC
#undef LAB_COMPARE_AND_SWAP
#undef LAB_LOAD
#undef LAB_LOAD2
#undef LAB_LOAD4
#undef LAB_LOADS
#undef LAB_STORE
#undef LAB_STORE2
#undef LAB_STORE4
#undef LAB_STORES
#undef LAB_MIN_MAX
#undef LAB_CONVERSIONS
#undef LAB_MISSING
