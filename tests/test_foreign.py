"""Kernels as other courses write them (tests/foreign), on both engines, against NumPy; nothing is reported.

Each function launches one file and gives (what came out, what NumPy says, tolerance) triples; tolerance 0 is
equality.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from labs_common.compiler import compile_ptx
from labs_common.simt import cupy_like as xp
from labs_common.source import Source

FOREIGN = Path(__file__).parent / "foreign"
I32 = np.int32


class Bench:
    """One file's kernel on one engine; collects findings."""

    def __init__(self, name: str, engine: str):
        text = (FOREIGN / f"{name}.cu").read_text(encoding="utf-8")
        self.module = xp.RawModule(compile_ptx(Source(f"{name}.cu", text)), engine=engine)
        self.kernel = self.module.get_function(name)
        self.rng = np.random.default_rng(len(name))
        self.findings = []

    def __call__(self, grid, block, *args, shared: int = 0) -> None:
        self.kernel(grid, block, args, shared_mem=shared)
        self.findings += self.module.last_launch.findings

    def normal(self, *shape) -> np.ndarray:
        return self.rng.normal(size=shape).astype(np.float32)

    def integers(self, low, high, *shape, dtype=np.int32) -> np.ndarray:
        return self.rng.integers(low, high, shape).astype(dtype)


def reduce_tree(run):
    x = run.normal(1000)
    out = xp.zeros(4, np.float32)
    run(4, 128, xp.asarray(x), out, np.uint32(1000), shared=512)
    padded = np.zeros(1024)
    padded[:1000] = x
    yield out.get(), padded.reshape(4, 256).sum(1), 1e-4


def reduce_atomics(run):
    a, b = run.normal(2, 3000)
    dot, most = xp.zeros(1, np.float64), xp.full(1, -1e30, np.float32)
    run(5, 96, xp.asarray(a), xp.asarray(b), dot, most, I32(3000))
    yield dot.get(), [a.astype(np.float64) @ b], 1e-9
    yield most.get(), [a.max()], 0


def scan_hillis_steele(run):
    x = run.integers(-(2**31), 2**31, 700)
    out = xp.zeros(700, np.int64)
    run(3, 256, xp.asarray(x), out, I32(700))
    blocks = [np.cumsum(x[k : k + 256].astype(np.int64)) for k in range(0, 700, 256)]
    yield out.get(), np.concatenate(blocks), 0


def scan_blelloch(run):
    x = run.normal(2, 512)
    out = xp.zeros((2, 512), np.float32)
    run(2, 256, out, xp.asarray(x), I32(512), shared=4 * (512 + 16))
    exact = np.cumsum(x.astype(np.float64), 1)
    yield out.get(), np.hstack([np.zeros((2, 1)), exact[:, :-1]]), 1e-4


def transpose(run):
    x = run.rng.normal(size=(70, 45))
    out = xp.zeros((45, 70), np.float64)
    run((2, 3), (32, 8), out, xp.asarray(x), I32(45), I32(70))
    yield out.get(), x.T, 0


def matmul_registers(run):
    a, b, c = run.normal(128, 48), run.normal(48, 64), run.normal(128, 64)
    out = xp.asarray(c)
    sizes = (I32(128), I32(64), I32(48))
    run((1, 2), 256, *sizes, np.float32(0.5), xp.asarray(a), xp.asarray(b), np.float32(-2), out)
    yield out.get(), 0.5 * (a.astype(np.float64) @ b) - 2.0 * c, 1e-4


def softmax_online(run):
    x = 5 * run.normal(7, 75)
    out = xp.zeros((7, 75), np.float32)
    run(2, (32, 4), xp.asarray(x), out, I32(7), I32(75))
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    yield out.get(), e / e.sum(1, keepdims=True), 1e-5


def layernorm_welford(run):
    x, gamma, beta = 3 + run.normal(4, 300), run.normal(300), run.normal(300)
    out = xp.zeros((4, 300), np.float32)
    arrays = [xp.asarray(a) for a in (x, gamma, beta)]
    run(4, 128, *arrays, out, I32(300), np.float32(1e-5))
    wide = x.astype(np.float64)
    normal = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    yield out.get(), normal * gamma + beta, 1e-4


def histogram(run):
    data = run.integers(0, 256, 8000, dtype=np.uint8)
    bins = xp.zeros(256, np.uint32)
    run(3, 128, xp.asarray(data), I32(2000), bins)
    yield bins.get(), np.bincount(data, minlength=256), 0


def half_dot(run):
    a, b = (run.normal(3, 512) / 8).astype(np.float16), (run.normal(3, 512) / 8).astype(np.float16)
    out, scaled = xp.zeros(3, np.float32), xp.zeros(3, np.float16)
    run(3, 32, xp.asarray(a), xp.asarray(b), out, scaled, I32(512))
    exact = (a.astype(np.float64) * b.astype(np.float64)).sum(1)
    yield out.get(), exact, 2e-2
    yield scaled.get(), (out.get().astype(np.float16) * np.float16(0.5)), 0


def bf16_saxpy(run):
    x, y = ((run.normal(100).view(np.uint32) >> 16).astype(np.uint16) for _ in range(2))
    out, exact = xp.asarray(y), xp.zeros(100, np.float32)
    run(4, 32, I32(100), np.float32(1.5), xp.asarray(x), out, exact)
    wide = [(v.astype(np.uint32) << 16).view(np.float32) for v in (x, y)]
    total = np.float32(1.5) * wide[0] + wide[1]  # exact products, one rounding as in fmaf
    yield exact.get(), total, 1e-6
    bits = exact.get().view(np.uint32)
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    yield out.get(), nearest, 0


def mma_gemm(run):
    a, b = (run.normal(n, 96).astype(np.float16) for n in (64, 96))
    out = xp.zeros((64, 96), np.float32)
    run((3, 2), 128, xp.asarray(a), xp.asarray(b), out, I32(96), I32(96))
    yield out.get(), a.astype(np.float64) @ b.astype(np.float64).T, 1e-4


def cub_block(run):
    keys = run.rng.integers(0, 2**32, 256, dtype=np.uint32)
    device, prefix, total = xp.asarray(keys), xp.zeros(128, I32), xp.zeros(1, np.uint32)
    run(1, 128, device, prefix, total)
    ordered = np.sort(keys)
    odd = (ordered & 1).reshape(128, 2).sum(1)
    yield device.get(), ordered, 0
    yield prefix.get(), np.cumsum(odd) - odd, 0
    yield total.get(), [(keys[0::2] ^ keys[1::2]).sum(dtype=np.uint32)], 0


def cub_warp(run):
    x = run.normal(64)
    best, running, segments = xp.zeros(8, np.float32), xp.zeros(64, I32), xp.zeros(64, np.float32)
    run(1, 64, xp.asarray(x), best, running, segments)
    yield best.get(), x.reshape(8, 8).max(1), 0
    yield running.get(), np.cumsum((x > 0).reshape(2, 32), 1).ravel(), 0
    heads = [k for k in range(64) if k % 5 == 0 or k % 32 == 0]
    ends = [min((h for h in heads if h > k), default=64) for k in heads]
    wanted = [x[k:e].astype(np.float64).sum() for k, e in zip(heads, ends, strict=True)]
    yield segments.get()[heads], wanted, 1e-5


def cooperative_tiles(run):
    x = run.integers(0, 1000, 128)
    sums, votes = xp.zeros(16, I32), xp.zeros(8, I32)
    found, count = xp.full(128, -1, I32), xp.zeros(1, I32)
    run(2, 64, xp.asarray(x), sums, votes, found, count, I32(128))
    yield sums.get(), x.reshape(16, 8).sum(1), 0
    tiles = x.reshape(8, 16)
    yield votes.get(), (tiles & 1).sum(1) * 1000 + tiles.max(1), 0
    hits = np.flatnonzero(x % 7 == 3)
    yield count.get(), [len(hits)], 0
    yield np.sort(found.get()[: len(hits)]), hits, 0


def convolution(run):
    image = run.normal(40, 50)
    out = xp.zeros((40, 50), np.float32)
    run((4, 3), (16, 16), xp.asarray(image), out, I32(50), I32(40))
    one = np.array([1, 4, 6, 4, 1]) / 16
    padded = np.pad(image.astype(np.float64), 2, mode="edge")
    rows = sum(one[k] * padded[:, k : k + 50] for k in range(5))
    yield out.get(), sum(one[k] * rows[k : k + 40] for k in range(5)), 1e-5


def nbody(run):
    bodies = np.abs(run.normal(100, 4))
    out = xp.zeros((100, 3), np.float32)
    run(2, 64, xp.asarray(bodies), out, I32(100), shared=1024)
    wide = bodies.astype(np.float64)
    r = wide[None, :, :3] - wide[:, None, :3]
    weight = wide[None, :, 3] / ((r**2).sum(2) + 1e-3) ** 1.5
    yield out.get() / 1e3, (weight[:, :, None] * r).sum(1) / 1e3, 1e-4


def game_of_life(run):
    now = run.integers(0, 2, 33, 47, dtype=np.uint8)
    device, other = xp.asarray(now), xp.zeros((33, 47), np.uint8)
    for _ in range(3):
        run(4, 96, device, other, I32(47), I32(33))
        device, other = other, device
        around = sum(np.roll(now, (dy, dx), (0, 1)) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx)
        now = ((around == 3) | ((around == 2) & (now == 1))).astype(np.uint8)
    yield device.get(), now, 0


def bitonic_sort(run):
    keys = run.integers(0, 1000, 1024, dtype=np.uint32)
    values = np.arange(1024, dtype=np.uint32)
    k, v = xp.asarray(keys), xp.asarray(values)
    run(2, 256, k, v)
    yield k.get(), np.concatenate([np.sort(keys[:512]), np.sort(keys[512:])[::-1]]), 0
    yield keys[v.get()], k.get(), 0
    yield np.sort(v.get()), values, 0


def spmv_csr(run):
    dense = run.rng.normal(size=(40, 60)) * (run.rng.random((40, 60)) < 0.3)
    dense[7] = 0
    pointers = np.concatenate([[0], np.cumsum((dense != 0).sum(1))]).astype(I32)
    columns, data = np.nonzero(dense)[1].astype(I32), dense[dense != 0]
    x, y = run.rng.normal(size=60), run.rng.normal(size=40)
    out = xp.asarray(y)
    arrays = [xp.asarray(a) for a in (pointers, columns, data, x)]
    run(10, 128, I32(40), *arrays, out)
    yield out.get(), y + dense @ x, 1e-12


def mandelbrot(run):
    out = xp.zeros((30, 40), I32)
    step = 3.0 / 40
    run((3, 4), (16, 8), out, I32(40), I32(30), np.float64(-2.2), np.float64(-1.2), np.float64(step), I32(60))
    cx, cy = np.meshgrid(-2.2 + np.arange(40) * step, -1.2 + np.arange(30) * step)
    x, y, count = np.zeros_like(cx), np.zeros_like(cx), np.zeros((30, 40), I32)
    alive = np.ones((30, 40), bool)
    for _ in range(60):
        xx, yy = x * x, y * y
        alive &= ~(xx + yy > 4)
        xy = x * y
        x, y = np.where(alive, (xx - yy) + cx, x), np.where(alive, (xy + xy) + cy, y)
        count += alive
    yield out.get(), count, 0


def warp_multisplit(run):
    keys = run.rng.integers(0, 2**32, 96, dtype=np.uint32)
    grouped, sizes = xp.zeros(96, np.uint32), xp.zeros((3, 8), I32)
    run(1, 96, xp.asarray(keys), grouped, sizes)
    warps = keys.reshape(3, 32)
    stable = [w[np.argsort(w & 7, kind="stable")] for w in warps]
    yield grouped.get(), np.concatenate(stable), 0
    yield sizes.get(), [np.bincount(w & 7, minlength=8) for w in warps], 0


def string_search(run):
    text = run.rng.choice(np.frombuffer(b"ab", np.uint8), 1000).tobytes()
    pattern = b"abba"
    first, count = xp.full(1, 2**31 - 1, I32), xp.zeros(1, np.uint64)
    arrays = [xp.asarray(np.frombuffer(t, np.uint8)) for t in (text, pattern)]
    run(8, 128, arrays[0], I32(1000), arrays[1], I32(4), first, count)
    places = [k for k in range(997) if text[k : k + 4] == pattern]
    yield first.get(), [places[0]], 0
    yield count.get(), [len(places)], 0


def monte_carlo_pi(run):
    hits = xp.zeros(1, np.uint64)
    run(2, 64, I32(20), hits)
    total, mask = 0, 2**64 - 1
    for thread in range(128):
        state = 0x853C49E6748FEA9B + thread

        def draw():
            nonlocal state
            old = state
            state = (old * 6364136223846793005 + 1442695040888963407) & mask
            shifted, rot = ((old >> 18 ^ old) >> 27) & 0xFFFFFFFF, old >> 59
            return (shifted >> rot | shifted << (-rot & 31)) & 0xFFFFFFFF

        draw()
        for _ in range(20):
            x, y = draw() >> 4, draw() >> 4
            total += x * x + y * y < 2**56
    yield hits.get(), [total], 0


def fp8_quantize(run):
    x = run.normal(3, 200)
    codes, scales = xp.zeros((3, 200), np.uint8), xp.zeros(3, np.float32)
    back = xp.zeros((3, 200), np.float32)
    run(3, 128, xp.asarray(x), codes, scales, back, I32(200))
    yield scales.get(), np.abs(x).max(1) / np.float32(448), 1e-9
    yield back.get(), x, 0.14  # half a step of 2^-3 below the largest of about 3
    code = codes.get().astype(np.int64)
    exponent, fraction = code >> 3 & 15, code & 7
    size = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    values = np.where(code >> 7 == 1, -size, size)
    yield back.get(), values * scales.get()[:, None], 1e-6
    yield np.abs(values).max(1), [448.0] * 3, 0


def black_scholes(run):
    s, x, t = (run.rng.uniform(*limits, 150).astype(np.float32) for limits in ((5, 30), (1, 100), (0.25, 10)))
    out = xp.zeros((150, 2), np.float32)
    arrays = [xp.asarray(a) for a in (s, x, t)]
    run(3, 64, out, *arrays, np.float32(0.02), np.float32(0.3), I32(150))
    s, x, t = (a.astype(np.float64) for a in (s, x, t))
    d1 = (np.log(s / x) + (0.02 + 0.045) * t) / (0.3 * np.sqrt(t))
    cdf = np.vectorize(lambda d: 0.5 * math.erfc(-d / math.sqrt(2)))
    d2, discounted = d1 - 0.3 * np.sqrt(t), x * np.exp(-0.02 * t)
    call, put = s * cdf(d1) - discounted * cdf(d2), discounted * cdf(-d2) - s * cdf(-d1)
    yield out.get(), np.stack([call, put], 1), 1e-3


def bfs_frontier(run):
    count = 60
    graph = [np.flatnonzero(run.rng.random(count) < 0.06) for _ in range(count)]
    offsets = np.concatenate([[0], np.cumsum([len(g) for g in graph])]).astype(I32)
    edges = xp.asarray(np.concatenate(graph).astype(I32))
    start = np.full(count, -1, I32)
    start[0] = 0
    level, frontier, size, depth = xp.asarray(start), xp.zeros(count, I32), 1, 1
    device_offsets = xp.asarray(offsets)
    while size:
        following, found = xp.zeros(count, I32), xp.zeros(1, I32)
        run(2, 32, device_offsets, edges, frontier, I32(size), following, found, level, I32(depth))
        frontier, size, depth = following, int(found.get()[0]), depth + 1
    expected, todo = {0: 0}, [0]
    for vertex in todo:
        for other in graph[vertex].tolist():
            if other not in expected:
                expected[other] = expected[vertex] + 1
                todo.append(other)
    yield level.get(), [expected.get(v, -1) for v in range(count)], 0


def int8_gemm(run):
    a, b = (run.integers(-128, 128, n, 64, dtype=np.int8) for n in (20, 33))
    out = xp.zeros((20, 33), I32)
    run((3, 2), (16, 16), xp.asarray(a), xp.asarray(b), out, I32(20), I32(33), I32(64))
    yield out.get(), a.astype(np.int64) @ b.astype(np.int64).T, 0


def pipeline_stencil(run):
    x = run.normal(2, 6, 256)
    out = xp.zeros((2, 6, 256), np.float32)
    run(2, 64, xp.asarray(x), out, I32(6), I32(256))
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1)), mode="edge")
    yield out.get(), (padded[..., :-2] + padded[..., 1:-1] + padded[..., 2:]) / 3, 1e-6


KERNELS = {f.stem: globals()[f.stem] for f in sorted(FOREIGN.glob("*.cu"))}


def test_there_are_at_least_twenty():
    assert len(KERNELS) >= 20


@pytest.mark.parametrize("engine", ["numpy", "llvm"])
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_of_another_course_runs_and_is_right(name, engine):
    bench = Bench(name, engine)

    for got, expected, tolerance in KERNELS[name](bench):
        got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
        assert got.shape == expected.shape
        assert np.abs(got - expected).max() <= tolerance * max(1.0, np.abs(expected).max())
    assert bench.findings == []
