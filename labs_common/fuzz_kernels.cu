// What `palab bench fuzz` mutates beside the stages: short kernels that between them use most of what is simulated.
// Each begins with a line "// kernel: name". All have the same parameters, arrays of 256 elements, and one block.

// kernel: reduce
#define COUNT 96
__device__ float twice(float x) { return x + x; }
extern "C" __global__ void k(const float* in, const int* numbers, float* out, int* slots) {
  __shared__ float partial[COUNT];
  const int t = threadIdx.x;
  float sum = 0.0f;
  for (int i = t; i < 256; i += blockDim.x) sum += in[i];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  partial[t % COUNT] = twice(sum);
  __syncthreads();
  if (t == 0) out[0] = partial[0] + partial[blockDim.x - 1];
  __syncthreads();
  out[1 + t] = partial[(t + 1) % blockDim.x] / 3.0f;
}

// kernel: branches
extern "C" __global__ void k(const float* in, const int* numbers, float* out, int* slots) {
  const int t = threadIdx.x;
  int value = numbers[t];
  int steps = 0;
  while (value > 1 && steps < 40) {
    value = value % 2 == 0 ? value / 2 : 3 * value + 1;
    ++steps;
    if (steps == 7 && t % 3 == 0) break;
  }
  switch (t & 7) {
    case 0: slots[t] = steps; break;
    case 1: slots[t] = -steps; break;
    case 2: slots[t] = steps * value; break;
    case 3: return;
    case 4: slots[t] = steps << (value & 31);
    case 5: slots[t] += value; break;
    case 6: slots[t] = (unsigned)value >> 3; break;
    default: slots[t] = value - steps;
  }
  out[t] = sqrtf(in[t] * in[t] + 1.0f) * __expf(-fabsf(in[t])) + floorf(in[t]);
}

// kernel: vectors
extern "C" __global__ void k(const float* in, const int* numbers, float* out, int* slots) {
  extern __shared__ float4 tile[];
  const int t = threadIdx.x;
  const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const float4 a = t < 48 ? reinterpret_cast<const float4*>(in)[t] : zero;
  tile[t] = a;
  __syncthreads();
  const float4 b = tile[t ^ 1];
  float local[8];
  for (int i = 0; i < 8; ++i) local[(i + t) % 8] = b.x * i + b.y;
  float4 c = make_float4(a.x * b.x, a.y + b.y, fmaxf(a.z, b.z), local[numbers[t] & 7]);
  __stcs(reinterpret_cast<float4*>(out) + t % 64, c);
  reinterpret_cast<int2*>(slots)[t] = make_int2(__float2int_rn(c.x), __float_as_int(c.y));
}

// kernel: atomics
__device__ int counter;
extern "C" __global__ void k(const float* in, const int* numbers, float* out, int* slots) {
  __shared__ int bins[16];
  const int t = threadIdx.x;
  if (t < 16) bins[t] = 0;
  __syncthreads();
  atomicAdd(&bins[numbers[t] & 15], 1);
  atomicMax(&slots[200], numbers[t]);
  atomicAdd(&counter, 1);
  __syncthreads();
  if (t < 16) slots[t] = bins[t];
  if (t == 0) slots[100] = atomicExch(&counter, 0);
  unsigned ballot = __ballot_sync(0xffffffffu, in[t] > 0.0f);
  slots[128 + t] = __popc(ballot) + __ffs(ballot) + __any_sync(0xffffffffu, numbers[t] == 3);
  out[t] = atomicCAS(&slots[201], 0, 5) + __reduce_add_sync(0xffffffffu, numbers[t]);
}

// kernel: wide
extern "C" __global__ void k(const float* in, const int* numbers, float* out, int* slots) {
  const int t = threadIdx.x;
  const long long a = (long long)numbers[t] * 1000003;
  const unsigned long long b = (unsigned long long)a >> (numbers[t + 1] & 63);
  const double d = in[t] * 1.5 + numbers[t];
  out[t] = (float)(d / (numbers[t + 2] | 1));
  slots[t] = (int)(a / (numbers[t + 3] | 1)) ^ (int)(b % 77) ^ (int)__umulhi((unsigned)a, 12345u);
  slots[t + 96] = __byte_perm(numbers[t], numbers[t + 1], 0x3715) + __brev(numbers[t]) + __clz(numbers[t])
                + (short)numbers[t] * (unsigned char)numbers[t + 1];
  if (t == 31) printf("t %d d %f s %s\n", t, d, "x");
}

// kernel: halves
#include <cuda_fp16.h>
extern "C" __global__ void k(const float* in, const int* numbers, float* out, int* slots) {
  __shared__ half kept[128];
  const int t = threadIdx.x;
  kept[t] = __float2half(in[t]);
  __syncthreads();
  const half2 pair = __halves2half2(kept[t], kept[(t + 1) % blockDim.x]);
  const half2 product = __hfma2(pair, pair, pair);
  out[t] = __low2float(product) - __high2float(product);
  reinterpret_cast<half*>(slots)[t] = __hmul(kept[t], __float2half(0.5f));
}

// kernel: copies
extern "C" __global__ void k(const float* in, const int* numbers, float* out, int* slots) {
  __shared__ float4 ring[2][96];
  const int t = threadIdx.x;
  for (int stage = 0; stage < 2; ++stage) {
    const unsigned to = __cvta_generic_to_shared(&ring[stage][t]);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(in + 4 * (t % 64)) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  asm volatile("cp.async.wait_group 1;" ::: "memory");
  __syncthreads();
  out[t] = ring[0][(t + 3) % blockDim.x].y;
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  out[t + 96] = ring[1][t].x;
}

// kernel: warps
extern "C" __global__ void k(const float* in, const int* numbers, float* out, int* slots) {
  const int t = threadIdx.x, lane = t % 32;
  float best = in[t];
  for (int width = 1; width < 32; width *= 2) {
    const float other = __shfl_down_sync(0xffffffffu, best, width, 16);
    if (lane % (2 * width) == 0) best = fmaxf(best, other);
  }
  if (lane < 16) {
    const int v = __shfl_sync(0x0000ffffu, numbers[t], lane ^ 5);
    slots[t] = v + __match_any_sync(0x0000ffffu, numbers[t] & 3);
  }
  __syncwarp();
  out[t] = best + __shfl_up_sync(0xffffffffu, in[t], 1);
  if (__all_sync(0xffffffffu, lane >= 0)) slots[t + 100] = __activemask();
}
