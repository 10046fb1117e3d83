"""CUDA C++ as students write it: compiled by NVRTC, run by both engines, held against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from labs_common.compiler import compile_ptx, compile_resources
from labs_common.simt import cupy_like as xp
from labs_common.simt.errors import Fault, TrapError
from labs_common.source import Source

RNG = np.random.default_rng(3)


@pytest.fixture(params=["numpy", "llvm"])
def engine(request) -> str:
    return request.param


def launch(text: str, engine: str, args: tuple, block=128, grid=1, shared=0) -> xp.RawModule:
    """Compile `k` of a text and run it; the module, for its last launch."""
    module = xp.RawModule(compile_ptx(Source("student.cu", text)), engine=engine)
    module.get_function("k")(grid, block, args, shared_mem=shared)
    return module


def test_block_softmax_with_shared_memory(engine):
    text = """
extern "C" __global__ void k(const float* in, float* out, int columns) {
  extern __shared__ float partial[];
  const float* row = in + blockIdx.x * columns;
  float best = -3.4e38f;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) best = fmaxf(best, row[c]);
  partial[threadIdx.x] = best;
  for (int s = blockDim.x / 2; s > 0; s >>= 1) {
    __syncthreads();
    if (threadIdx.x < s) partial[threadIdx.x] = fmaxf(partial[threadIdx.x], partial[threadIdx.x + s]);
  }
  __syncthreads();
  best = partial[0];
  __syncthreads();
  float sum = 0;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) sum += expf(row[c] - best);
  partial[threadIdx.x] = sum;
  for (int s = blockDim.x / 2; s > 0; s >>= 1) {
    __syncthreads();
    if (threadIdx.x < s) partial[threadIdx.x] += partial[threadIdx.x + s];
  }
  __syncthreads();
  for (int c = threadIdx.x; c < columns; c += blockDim.x)
    out[blockIdx.x * columns + c] = expf(row[c] - best) / partial[0];
}"""
    rows = RNG.normal(size=(5, 300)).astype(np.float32)
    out = xp.full((5, 300), np.nan, np.float32)

    module = launch(text, engine, (xp.asarray(rows), out, np.int32(300)), grid=5, shared=512)

    e = np.exp(rows.astype(np.float64) - rows.max(1, keepdims=True))
    assert np.abs(out.get() - e / e.sum(1, keepdims=True)).max() < 1e-6
    assert module.last_launch.findings == []


def test_tiled_matrix_product(engine):
    text = """
extern "C" __global__ void k(const float* a, const float* b, float* c, int n) {
  __shared__ float ta[16][16], tb[16][17];
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int t = 0; t < (n + 15) / 16; ++t) {
    int ka = t * 16 + threadIdx.x, kb = t * 16 + threadIdx.y;
    ta[threadIdx.y][threadIdx.x] = row < n && ka < n ? a[row * n + ka] : 0;
    tb[threadIdx.y][threadIdx.x] = column < n && kb < n ? b[kb * n + column] : 0;
    __syncthreads();
    for (int k = 0; k < 16; ++k) sum += ta[threadIdx.y][k] * tb[k][threadIdx.x];
    __syncthreads();
  }
  if (row < n && column < n) c[row * n + column] = sum;
}"""
    n = 37
    a, b = (RNG.normal(size=(n, n)).astype(np.float32) for _ in range(2))
    c = xp.zeros((n, n), np.float32)

    module = launch(text, engine, (xp.asarray(a), xp.asarray(b), c, np.int32(n)), block=(16, 16), grid=(3, 3))

    assert np.abs(c.get() - a.astype(np.float64) @ b).max() < 1e-4
    assert module.last_launch.findings == []


def test_histogram_with_shared_and_global_atomics(engine):
    text = """
extern "C" __global__ void k(const unsigned char* data, unsigned* bins, int n) {
  __shared__ unsigned own[256];
  for (int b = threadIdx.x; b < 256; b += blockDim.x) own[b] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&own[data[i]], 1u);
  __syncthreads();
  for (int b = threadIdx.x; b < 256; b += blockDim.x) if (own[b]) atomicAdd(&bins[b], own[b]);
}"""
    data = RNG.integers(0, 256, 3001).astype(np.uint8)
    bins = xp.zeros(256, np.uint32)

    module = launch(text, engine, (xp.asarray(data), bins, np.int32(3001)), block=96, grid=4)

    assert bins.get().tolist() == np.bincount(data, minlength=256).tolist()
    assert module.last_launch.findings == []


def test_last_block_finishes_a_reduction(engine):
    text = """
__device__ unsigned done = 0;
extern "C" __global__ void k(const float* in, float* partial, float* out) {
  float v = in[blockIdx.x * 32 + threadIdx.x];
  for (int s = 16; s > 0; s /= 2) v += __shfl_down_sync(0xffffffffu, v, s);
  __shared__ bool last;
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = v;
    __threadfence();
    last = atomicAdd(&done, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float sum = 0;
    for (int b = 0; b < gridDim.x; ++b) sum += ((volatile float*)partial)[b];
    *out = sum;
  }
}"""
    values = RNG.integers(0, 100, 32 * 17).astype(np.float32)
    out = xp.zeros(1, np.float32)

    launch(text, engine, (xp.asarray(values), xp.zeros(17, np.float32), out), block=32, grid=17)

    assert out.get()[0] == values.sum()


def test_half_precision_dot_products(engine):
    text = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void k(const __half2* a, const __half2* b, float* out,
                             __nv_bfloat16* rounded, int pairs) {
  __half2 sum = __float2half2_rn(0.f);
  for (int i = 0; i < pairs; ++i) sum = __hfma2(a[threadIdx.x * pairs + i], b[i], sum);
  float total = __low2float(sum) + __high2float(sum);
  out[threadIdx.x] = total;
  rounded[threadIdx.x] = __float2bfloat16(total);
}"""
    a = RNG.integers(-8, 9, (40, 16)).astype(np.float16)
    b = RNG.integers(-8, 9, 16).astype(np.float16)
    out, rounded = xp.zeros(40, np.float32), xp.zeros(40, np.uint16)

    launch(text, engine, (xp.asarray(a), xp.asarray(b), out, rounded, np.int32(8)), block=40)

    expected = a.astype(np.float64) @ b.astype(np.float64)  # small integers: exact in half precision
    assert out.get().tolist() == expected.tolist()
    back = (rounded.get().astype(np.uint32) << 16).view(np.float32)
    assert (np.abs(back - expected) <= np.abs(expected) * 2**-8).all()


def test_local_arrays_structs_recursion_free_calls_and_switches(engine):
    text = """
struct Pair { int key; double weight; };
__device__ __noinline__ Pair larger(Pair a, Pair b) { return a.weight > b.weight ? a : b; }
__constant__ int order[4] = {2, 0, 3, 1};
extern "C" __global__ void k(const double* w, int* keys, double* weights, int n, Pair start) {
  Pair pairs[4];
  for (int i = 0; i < 4; ++i) { pairs[i].key = i; pairs[i].weight = w[threadIdx.x * 4 + i]; }
  Pair best = start;
  for (int i = 0; i < n; ++i) best = larger(best, pairs[order[i & 3]]);
  switch (threadIdx.x & 3) {
    case 0: best.key += 100; break;
    case 1: best.key *= 7; break;
    case 2: best.weight = -best.weight; break;
    default: best.weight /= 3; break;
  }
  keys[threadIdx.x] = best.key;
  weights[threadIdx.x] = best.weight;
}"""
    w = RNG.normal(size=(20, 4))
    keys, weights = xp.zeros(20, np.int32), xp.zeros(20, np.float64)
    start = np.array((9, -0.1), np.dtype([("key", np.int32), ("weight", np.float64)], align=True))[()]

    launch(text, engine, (xp.asarray(w), keys, weights, np.int32(4), start), block=20)

    for t in range(20):
        key, weight = (int(w[t].argmax()), w[t].max()) if w[t].max() > -0.1 else (9, -0.1)
        expected = [(key + 100, weight), (key * 7, weight), (key, -weight), (key, weight / 3)][t % 4]
        assert (keys.get()[t], weights.get()[t]) == expected


def test_math_library_functions(engine):
    text = """
extern "C" __global__ void k(const float* x, float* out) {
  float v = x[threadIdx.x];
  float* o = out + threadIdx.x * 10;
  o[0] = expf(v); o[1] = logf(v); o[2] = sinf(v); o[3] = cosf(v); o[4] = powf(v, 1.7f);
  o[5] = sqrtf(v); o[6] = rsqrtf(v); o[7] = tanhf(v); o[8] = erff(v); o[9] = atan2f(v, 2.f);
}"""
    x = np.linspace(0.1, 20, 64).astype(np.float32)
    out = xp.zeros((64, 10), np.float32)

    launch(text, engine, (xp.asarray(x), out), block=64)

    functions = (math.exp, math.log, math.sin, math.cos, lambda v: v**1.7, math.sqrt,
                 lambda v: v**-0.5, math.tanh, math.erf, lambda v: math.atan2(v, 2))  # fmt: skip
    expected = np.array([[f(float(v)) for f in functions] for v in x])
    assert (np.abs(out.get() - expected) <= 2e-6 * np.maximum(np.abs(expected), 1)).all()


def test_integer_arithmetic_of_every_width(engine):
    text = """
extern "C" __global__ void k(const long long* a, const long long* b, long long* out) {
  long long x = a[threadIdx.x], y = b[threadIdx.x];
  long long* o = out + threadIdx.x * 8;
  o[0] = x / y; o[1] = x % y; o[2] = __mul64hi(x, y); o[3] = (int)x / (int)y;
  o[4] = (unsigned)x % (unsigned)y;
  o[5] = __popcll(x) + __clzll(y) + __ffsll(x); o[6] = (short)x * (signed char)y; o[7] = x >> (y & 63);
}"""
    a = RNG.integers(-(2**62), 2**62, 50) * 2 + 1
    b = RNG.integers(-(2**40), 2**40, 50) * 2 + 1
    out = xp.zeros((50, 8), np.int64)

    launch(text, engine, (xp.asarray(a), xp.asarray(b), out), block=50)

    def cut(v: int, bits: int) -> int:
        return (v + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)

    def quotient(p: int, q: int) -> int:
        return abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1)

    for t in range(50):
        x, y = int(a[t]), int(b[t])
        u = x % 2**64
        ffs = (u & -u).bit_length()
        assert out.get()[t].tolist() == [
            quotient(x, y),
            x - y * quotient(x, y),
            x * y >> 64,
            quotient(cut(x, 32), cut(y, 32)),
            x % 2**32 % (y % 2**32),
            u.bit_count() + 64 - (y % 2**64).bit_length() + ffs,
            cut(x, 16) * cut(y, 8),
            x >> (y % 64),
        ]


def test_cooperative_groups_and_cub(engine):
    text = """
#include <cooperative_groups.h>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
namespace cg = cooperative_groups;
extern "C" __global__ void k(const int* in, int* tiles, int* sum, int* scan) {
  using Reduce = cub::BlockReduce<int, 128>;
  using Scan = cub::BlockScan<int, 128>;
  __shared__ union { Reduce::TempStorage reduce; Scan::TempStorage scan; } storage;
  auto block = cg::this_thread_block();
  auto tile = cg::tiled_partition<8>(block);
  int v = in[threadIdx.x], t = v;
  for (int s = tile.size() / 2; s > 0; s /= 2) t += tile.shfl_down(t, s);
  if (tile.thread_rank() == 0) tiles[threadIdx.x / 8] = t;
  int total = Reduce(storage.reduce).Sum(v);
  if (threadIdx.x == 0) *sum = total;
  block.sync();
  int before;
  Scan(storage.scan).ExclusiveSum(v, before);
  scan[threadIdx.x] = before;
}"""
    values = RNG.integers(-1000, 1000, 128).astype(np.int32)
    tiles, total, scan = xp.zeros(16, np.int32), xp.zeros(1, np.int32), xp.zeros(128, np.int32)

    launch(text, engine, (xp.asarray(values), tiles, total, scan))

    assert tiles.get().tolist() == values.reshape(16, 8).sum(1).tolist()
    assert total.get()[0] == values.sum()
    assert scan.get().tolist() == (np.cumsum(values) - values).tolist()


def test_struct_parameter_indexed_at_run_time(engine):
    text = """
struct Table { int values[6]; };
extern "C" __global__ void k(const __grid_constant__ Table table, const int* which, int* out) {
  out[threadIdx.x] = table.values[which[threadIdx.x]];
}"""
    table = np.array(([3, 1, 4, 1, 5, 9],), np.dtype([("values", np.int32, 6)], align=True))[()]
    which = np.array([5, 0, 2, 2], np.int32)
    out = xp.zeros(4, np.int32)

    launch(text, engine, (table, xp.asarray(which), out), block=4)

    assert out.get().tolist() == [9, 3, 4, 4]


def test_printf_and_assert(engine, capsys):
    text = """
extern "C" __global__ void k(int n) {
  if (threadIdx.x < 2) printf("thread %d of %s: %.3f %lld\\n", threadIdx.x, "k", 1.5f * n, 1ll << 40);
  assert(n < 10);
}"""
    launch(text, engine, (np.int32(3),), block=4)

    assert capsys.readouterr().out == "".join(f"thread {t} of k: 4.500 1099511627776\n" for t in range(2))
    with pytest.raises(TrapError, match=r"student\.cu:4: assertion `n < 10` failed"):
        launch(text, engine, (np.int32(30),), block=4)


def test_faults_are_on_the_students_line(engine):
    text = """
__device__ float read(const float* p, int i) {
  return p[i];
}
extern "C" __global__ void k(const float* in, float* out) {
  out[threadIdx.x] = read(in, threadIdx.x + 1);
}"""
    with pytest.raises(Fault) as caught:
        launch(text, engine, (xp.zeros(32, np.float32), xp.zeros(32, np.float32)), block=32)

    finding = caught.value.finding
    assert finding.file.endswith("student.cu") and finding.line == 3
    assert finding.thread == (31, 0, 0)


def test_race_after_a_missing_barrier(engine):
    text = """
extern "C" __global__ void k(const float* in, float* out) {
  __shared__ float tile[64];
  tile[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = tile[63 - threadIdx.x];
}"""
    module = xp.RawModule(compile_ptx(Source("student.cu", text)), engine=engine)
    args = (xp.asarray(np.arange(64, dtype=np.float32)), xp.zeros(64, np.float32))
    try:  # the word may not even have been written yet
        module.get_function("k")(1, 64, args)
        findings = module.last_launch.findings
    except Fault as fault:
        findings = [fault.finding]

    assert {f.tool for f in findings} <= {"racecheck", "initcheck"} and findings
    assert {f.line for f in findings} == {5}


@pytest.mark.parametrize("align", [16, 128])
@pytest.mark.parametrize("order", ["abcd", "acbd", "bacd", "bdca", "cdab", "dcba"])
def test_dynamic_shared_memory_begins_where_ptxas_puts_it(order, align):
    """Behind the static arrays, which ptxas says take so much; on it depends what a copy costs."""
    arrays = {
        "a": "char a[3]; a[t % 3] = t;",
        "b": "float4 b[2]; b[t % 2].x = t;",
        "c": "short c[5]; c[t % 5] = t;",
        "d": "double d[3]; d[t % 3] = t;",
    }
    text = f"""
extern "C" __global__ void k(float* out) {{
  extern __shared__ __align__({align}) unsigned dynamic[];
  const int t = threadIdx.x;
  {"".join(f"__shared__ {arrays[name]}" for name in order)}
  dynamic[t] = t;
  __syncthreads();
  out[t] = a[(t + 1) % 3] + b[(t + 1) % 2].x + c[(t + 1) % 5] + d[(t + 1) % 3] + dynamic[t + 1];
}}
"""
    kernel = xp.RawModule(compile_ptx(Source("student.cu", text))).get_function("k")

    static = compile_resources(Source("student.cu", text))["k"].shared_bytes

    assert static % align == 0
    assert kernel.program.dynamic_offset == static
