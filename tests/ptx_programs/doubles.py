"""f64: one rounding in each of four directions, comparisons, conversions; expected from exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from .program import each, lanes

RNG = np.random.default_rng(31)
A, B, C = RNG.standard_normal((3, 32)) * 10.0 ** RNG.integers(-3, 4, (3, 32))
N = np.arange(1, 33, dtype=np.uint32)


def rounded(x: Fraction, mode: str) -> float:
    """An exact number of moderate size rounded to f64."""
    guess = x.numerator / x.denominator  # Python rounds the quotient of integers to nearest
    if mode == "rn" or Fraction(guess) == x:
        return guess
    up = mode == "rp" or (mode == "rz" and x < 0)
    if up:
        return guess if Fraction(guess) > x else math.nextafter(guess, math.inf)
    return guess if Fraction(guess) < x else math.nextafter(guess, -math.inf)


def all_ways(function, *arrays) -> dict[str, np.ndarray]:
    """Outputs rn, rz, rm and rp of an exact function."""
    values = [
        function(*(Fraction(v) for v in lane)) for lane in zip(*(a.tolist() for a in arrays), strict=True)
    ]
    return {mode: np.array([rounded(v, mode) for v in values]) for mode in ("rn", "rz", "rm", "rp")}


def each_way(instruction: str) -> str:
    """An instruction with a %-sign for its rounding, in four ways."""
    return " ".join(instruction.replace("%R", mode) for mode in ("rn", "rz", "rm", "rp"))


def square_root(x: Fraction, mode: str) -> float:
    """The exact square root rounded, decided by squares."""
    guess = math.sqrt(float(x))
    low, high = math.nextafter(guess, 0), math.nextafter(guess, math.inf)
    below = max(v for v in (low, guess) if Fraction(v) ** 2 <= x)
    above = min(v for v in (guess, high) if Fraction(v) ** 2 >= x)
    return {"rn": guess, "rz": below, "rm": below, "rp": above}[mode]


def harmonic(first: int, mode: str) -> float:
    """1/first + ... of eight terms, each step rounded."""
    total = 0.0
    for k in range(first, first + 8):
        total = rounded(Fraction(total) + Fraction(rounded(Fraction(1, k), mode)), mode)
    return total


PROGRAMS = [
    lanes(
        "sums rounded in four directions",
        each_way("add.%R.f64 %R, a, b;"),
        {"a": A, "b": B},
        all_ways(lambda a, b: a + b, A, B),
    ),
    lanes(
        "differences rounded in four directions",
        each_way("sub.%R.f64 %R, a, b;"),
        {"a": A, "b": B * 1e-6},
        all_ways(lambda a, b: a - b, A, B * 1e-6),
    ),
    lanes(
        "products rounded in four directions",
        each_way("mul.%R.f64 %R, a, b;"),
        {"a": A, "b": B},
        all_ways(lambda a, b: a * b, A, B),
    ),
    lanes(
        "fused products and sums rounded in four directions",
        each_way("fma.%R.f64 %R, a, b, c;"),
        {"a": A, "b": B, "c": C},
        all_ways(lambda a, b, c: a * b + c, A, B, C),
    ),
    lanes(
        "quotients rounded in four directions",
        each_way("div.%R.f64 %R, a, b;"),
        {"a": A, "b": B},
        all_ways(lambda a, b: a / b, A, B),
    ),
    lanes(
        "reciprocals rounded in four directions",
        each_way("rcp.%R.f64 %R, a;"),
        {"a": A},
        all_ways(lambda a: 1 / a, A),
    ),
    lanes(
        "square roots rounded in four directions",
        "abs.f64 %g1, a; " + each_way("sqrt.%R.f64 %R, %g1;"),
        {"a": A},
        {
            m: np.array([square_root(Fraction(abs(v)), m) for v in A.tolist()])
            for m in ("rn", "rz", "rm", "rp")
        },
    ),
    lanes(
        "an interval sum encloses the exact one",
        "mov.f64 low, 0d0000000000000000; mov.f64 high, low; cvt.rn.f64.u32 %g1, n; mov.u32 %r5, 0;\n"
        "LOOP: rcp.rm.f64 %g2, %g1; rcp.rp.f64 %g3, %g1; add.rm.f64 low, low, %g2;\n"
        "add.rp.f64 high, high, %g3;\n"
        "add.f64 %g1, %g1, 0d3FF0000000000000; add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 8;\n"
        "@%p1 bra LOOP;\n"
        "setp.lt.f64 %p2, low, high; selp.u32 y, 1, 0, %p2;",
        {"n": N},
        {
            **{
                name: np.array([harmonic(n, mode) for n in N.tolist()])
                for name, mode in (("low", "rm"), ("high", "rp"))
            },
            "y": np.ones(32, np.uint32),
        },
    ),
    lanes(
        "an exact zero is negative only when rounding down",
        "neg.f64 %g1, a; add.rn.f64 y, a, %g1; add.rm.f64 z, a, %g1; add.rz.f64 w, a, %g1;",
        {"a": A},
        {"y": np.zeros(32), "z": np.full(32, -0.0), "w": np.zeros(32)},
    ),
    lanes(
        "overflow goes to infinity or to the greatest number",
        "mov.f64 %g1, 0d7FEFFFFFFFFFFFFF; mul.rn.f64 y, %g1, a;\n"
        "mul.rz.f64 z, %g1, a;\nmul.rm.f64 w, %g1, a;",
        {"a": np.tile([2.0, -2.0], 16)},
        {
            "y": np.tile([np.inf, -np.inf], 16),
            "z": np.tile([np.finfo(float).max, -np.finfo(float).max], 16),
            "w": np.tile([np.finfo(float).max, -np.inf], 16),
        },
    ),
    lanes(
        "f64 polynomial by fma",
        "mov.f64 %g1, 0d3FE0000000000000; fma.rn.f64 %g1, %g1, a, 0d3FF0000000000000;\n"
        "fma.rn.f64 y, %g1, a, 0d3FF0000000000000; neg.f64 z, y;",
        {"a": np.arange(32) / 8},
        {
            "y": (np.arange(32) / 8) ** 2 / 2 + np.arange(32) / 8 + 1,
            "z": -((np.arange(32) / 8) ** 2 / 2 + np.arange(32) / 8 + 1),
        },
    ),
    lanes(
        "f64 minima, comparisons and choice",
        "min.f64 %g1, a, b; max.f64 %g2, a, b; setp.gt.f64 %p1, a, c; selp.f64 y, %g1, %g2, %p1;\n"
        "copysign.f64 z, y, c;",
        {"a": A, "b": B, "c": C},
        {
            "y": np.where(A > C, np.minimum(A, B), np.maximum(A, B)),
            "z": np.copysign(C, np.where(A > C, np.minimum(A, B), np.maximum(A, B))),
        },
    ),
    lanes(
        "f64 to integers and back",
        "cvt.rzi.s64.f64 i, a; cvt.rn.f64.s64 y, i; sub.f64 z, a, y; cvt.rni.s32.f64 k, a;",
        {"a": A * 100},
        {
            "i": np.trunc(A * 100).astype(np.int64),
            "y": np.trunc(A * 100) + 0.0,
            "z": A * 100 - np.trunc(A * 100),
            "k": np.rint(A * 100).astype(np.int32),
        },
    ),
    lanes(
        "the halves of an f64",
        "mov.b64 {%r5, %r6}, a; and.b32 %r7, %r6, 0x7fffffff; mov.b64 y, {%r5, %r7};\n"
        "bfe.u32 e, %r6, 20, 11;",
        {"a": A},
        {
            "y": np.abs(A),
            "e": ((A.view(np.uint64) >> np.uint64(52)) & np.uint64(0x7FF)).astype(np.uint32),
        },
    ),
    lanes(
        "f64 product error by fma",
        "mul.rn.f64 y, a, b; neg.f64 %g1, y; fma.rn.f64 z, a, b, %g1;",
        {"a": A, "b": B},
        {
            "y": A * B,
            "z": each(lambda a, b: float(Fraction(a) * Fraction(b) - Fraction(a * b)), A, B, dtype="f8"),
        },
    ),
]
