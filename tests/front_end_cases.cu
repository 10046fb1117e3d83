/* What both front ends must make the same of: bodies of a kernel with a block of 64 threads.

   in[128], numbers[128]: random floats and ints; x, y, i, j: this thread's first and second of each; t: the thread.
   out[64] and bits[64] are compared. A line that begins with two slashes begins a case. */

// fma and rounding
out[t] = __fmaf_rn(x, y, 0.5f) + __fadd_rn(x, y) * __fmul_rn(x, y) - __fsub_rn(x, y);

// division
out[t] = x / y + __fdiv_rn(x, y) + __frcp_rn(x) + __fdividef(x, y) + fdividef(y, x);

// roots
out[t] = sqrtf(fabsf(x)) + rsqrtf(fabsf(y)) + __fsqrt_rn(fabsf(x)) + sqrt(fabsf(y));

// fast exponentials
out[t] = __expf(x) + exp2f(y) + exp2(x) + __exp10f(y);

// fast logarithms
out[t] = __logf(fabsf(x)) + __log2f(fabsf(y)) + __log10f(fabsf(x));

// fast powers and angles
out[t] = __powf(fabsf(x), y) + __sinf(x) + __cosf(y) + __saturatef(x);

// extrema of floats
out[t] = fmaxf(x, y) + fminf(x, 1.0f) * max(x, y) - min(x, y) + fmax(x, y);

// extrema of NaN
out[t] = fmaxf(x, __int_as_float(0x7fc00000)) + fminf(__int_as_float(0x7fc00000), y);

// extrema of integers
bits[t] = max(i, j) + 3 * min(i, j) + max(7u, (unsigned)i) + (unsigned)min(5ll, (long long)j);

// whole numbers
out[t] = floorf(x) + 2 * ceilf(x) + 4 * truncf(x) + 8 * rintf(x) + 16 * roundf(x);

// halves
const float h = i + 0.5f; out[t] = rintf(h) + 2 * roundf(h) + 4 * roundf(-h) + 8 * roundf(0.49999997f);

// classes
bits[t] = isnan(x / 0.0f - x / 0.0f) + 2 * isinf(x / 0.0f) + 4 * isfinite(x) + 8 * (signbit(x) != 0);

// absolute
out[t] = fabs(x) + abs(y) + copysignf(x, y); bits[t] = abs(i) + (unsigned)abs((long long)j);

// conversions to integers
bits[t] = __float2int_rn(x) + 3 * __float2int_rz(x) + 5 * __float2int_ru(y) + 7 * __float2int_rd(y);

// conversions to unsigned
bits[t] = __float2uint_rn(x) + 3 * __float2uint_rz(y) + (unsigned)x;

// conversions to floats
out[t] = __int2float_rn(i * 16777217) + __int2float_rz(i * 33554435) + __uint2float_ru(j);

// bit patterns
bits[t] = __float_as_int(x) + __float_as_uint(y); out[t] = __int_as_float(i) + __uint_as_float(j);

// counting bits
bits[t] = __popc(i) + 64 * __clz(i) + 4096 * __ffs(j) + 262144 * __popcll((unsigned long long)i << 7);

// no bits
bits[t] = __clz(0) + 64 * __ffs(0) + 4096 * __clzll(0) + 262144 * __ffsll(i);

// moving bits
bits[t] = __brev(i) + __byte_perm(i, j, 0x5410 + t) + __funnelshift_l(i, j, t) + __funnelshift_r(i, j, t);

// products
bits[t] = __mulhi(i * 99991, j * 77777) + __umulhi(i * 99991u, j * 77777u) + __mul24(i, j);

// shuffles
out[t] = __shfl_sync(~0u, x, t / 3) + 2 * __shfl_up_sync(~0u, x, 3) + 4 * __shfl_down_sync(~0u, x, 5) + 8 * __shfl_xor_sync(~0u, x, 9);
bits[t] = __shfl_sync(~0u, i, 7) + __shfl_xor_sync(~0u, (unsigned)j, 1);

// narrow shuffles
out[t] = __shfl_sync(~0u, x, 3, 8) + 2 * __shfl_up_sync(~0u, x, 3, 16) + 4 * __shfl_down_sync(~0u, x, 5, 8) + 8 * __shfl_xor_sync(~0u, x, 1, 4);

// wide shuffles
const double d = x * 3.0; const long long l = ((long long)i << 33) + j;
out[t] = __shfl_xor_sync(~0u, d, 4) / 7.0; bits[t] = __shfl_sync(~0u, l, t ^ 3) >> 20;

// votes
bits[t] = __ballot_sync(~0u, x > 0) + __any_sync(~0u, i == 5) + 2 * __all_sync(~0u, i < 9999) + __activemask();

// matches
int all; bits[t] = __match_any_sync(~0u, i & 3) + __match_all_sync(~0u, i & 8, &all) + all;

// reductions
bits[t] = __reduce_add_sync(~0u, i) + __reduce_max_sync(~0u, j) + __reduce_min_sync(~0u, (unsigned)j) + __reduce_or_sync(~0u, (unsigned)i);

// barriers that count
bits[t] = __syncthreads_count(i > 4) + 128 * __syncthreads_and(i > -99) + 256 * __syncthreads_or(x > 1e9f);

// atomics on integers
atomicAdd(bits, 3u); atomicMax((int*)bits + 1, i); atomicMin(bits + 2, (unsigned)j);
atomicOr(bits + 3, 1u << (t & 31)); atomicAnd(bits + 4, ~(1u << (t & 15)));
atomicXor(bits + 5, (unsigned)i); atomicInc(bits + 6, 50u); atomicSub((int*)bits + 7, 2);

// atomics on floats
atomicAdd(out, 0.25f); atomicExch(out + 1, 2.0f); atomicCAS(bits, 0u, 7u);

// wide atomics
atomicAdd((unsigned long long*)bits, 1ull << 31);
atomicMax((unsigned long long*)bits + 1, (unsigned long long)j << 20);

// cached loads
out[t] = __ldg(in + t) + __ldcs(in + t + 1) + __ldcg(in + t + 2) + __ldca(in + t + 3);
bits[t] = __ldg(numbers + t) + __ldcv(numbers + t);

// wide loads
const float4 v = __ldg((const float4*)in + t / 4); const int2 w = __ldcs((const int2*)numbers + t / 2);
out[t] = v.x + 2 * v.y + 4 * v.z + 8 * v.w; bits[t] = w.x + 3 * w.y;

// stores with hints
__stcs(out + t, x); __stcg(bits + t, (unsigned)i);
if (t == 0) __stwt((float4*)out, make_float4(x, y, 1, 2));

// vector types
const float4 v = {x, y}; const uint2 w = make_uint2(i, j); const int3 a = {1, 2, 3}; float4 b = v;
b.z += a.y; out[t] = v.x + v.w + b.z + (&b.x)[1];
bits[t] = w.x * w.y + sizeof(float4) + alignof(float2) + sizeof(double3);

// chosen vectors
const float4 z = make_float4(1, 2, 3, 4); const float4 v = t % 3 ? ((const float4*)in)[t / 8] : z;
out[t] = v.x - v.y + v.z * v.w;

// coordinates
const dim3 whole = blockDim;
bits[t] = threadIdx.x + 100 * blockIdx.x + 10000 * whole.x + gridDim.x + warpSize + whole.z;

// shared addresses
__shared__ float s[64]; s[t] = x; __syncthreads(); unsigned a = __cvta_generic_to_shared(s + (t ^ 5));
float v; asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(a)); out[t] = v;
bits[t] = __isShared(s) + 2 * __isGlobal(in);

// fp64
const double d = x;
out[t] = sqrt(fabs(d)) + fma(d, 3.0, 1.0) + fmax(d, 2.0) - floor(d / 3.0) + ceil(d) + (float)max(d, y);

// fences
__threadfence(); __threadfence_block(); __syncwarp(); out[t] = x; bits[t] = i;

/* The same after cuda_fp16.h and cuda_bf16.h. */

// half conversions
out[t] = __half2float(__float2half(x)) + (float)half(i) + __half2float(__float2half_rz(y));
bits[t] = __half_as_ushort(half(x));

// half arithmetic
const half a = x, b = y;
out[t] = float(a + b) + float(a * b) - float(a - b) + float(a / b) + float(__hfma(a, b, a));

// half denormals
const half a = x * 1e-7f, b = y * 1e-7f;
bits[t] = __half_as_ushort(a + b) + __half_as_ushort(__hmax(a, b)) + __half_as_ushort(-a);

// half comparisons
const half a = x, b = y;
bits[t] = (a < b) + 2 * (a >= b) + 4 * __heq(a, a) + 8 * __hne(a, b) + 16 * __hisnan(a);

// half pairs
const half2 a = __floats2half2_rn(x, y), b = __half2half2(half(y));
const float2 s = __half22float2(__hfma2(a, b, a));
out[t] = s.x + 3 * s.y + __low2float(__hadd2(a, b)) + __high2float(a * b); bits[t] = sizeof(half2);

// half exchanges
const half a = x; out[t] = float(__shfl_xor_sync(~0u, a, 5)) + float(__ldg((const half*)in + t));
((half*)bits)[t] = a;

// half integers
const half a = x; bits[t] = __half2int_rn(a) + 3 * __half2int_rz(a) + 5 * (a > half(1)); half c = x;
c += a; out[t] = c;

// bfloat16
const __nv_bfloat16 a = __float2bfloat16(x); out[t] = __bfloat162float(a);
bits[t] = __bfloat16_as_ushort(a);
