"""f32: one rounding each, flushing, saturation, comparisons; expected from NumPy and exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from .program import lanes

RNG = np.random.default_rng(21)
A, B, C = RNG.standard_normal((3, 32)).astype(np.float32) * np.float32(8)
TINY = np.full(32, 2.0**-130, np.float32) * np.arange(1, 33, dtype=np.float32)  # subnormal up to 16 of them
ODD = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2.0**-149] * 4, np.float32)
ODD2 = np.repeat(np.array([1, np.nan, -2, 0], np.float32), 8)


def nearest(x: Fraction) -> np.float32:
    """The nearest f32: from the two neighbours of a first guess, ties to even."""
    guess = np.float32(float(x))
    around = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return min(around, key=lambda v: (abs(Fraction(float(v)) - x), int(v.view(np.uint32)) & 1))


def directed(x: Fraction, up: bool) -> np.float32:
    """The least f32 not below x, or the greatest not above it."""
    guess = nearest(x)
    if up:
        return guess if Fraction(float(guess)) >= x else np.nextafter(guess, np.float32(np.inf))
    return guess if Fraction(float(guess)) <= x else np.nextafter(guess, np.float32(-np.inf))


def exact(function, *arrays):
    """Exact values, lane by lane."""
    return [function(*(Fraction(float(v)) for v in values)) for values in zip(*arrays, strict=True)]


def flush(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)


PROGRAMS = [
    lanes(
        "sum, difference and product",
        "add.f32 y, a, b; sub.rn.f32 z, y, c; mul.f32 w, y, z;",
        {"a": A, "b": B, "c": C},
        {"y": A + B, "z": A + B - C, "w": (A + B) * (A + B - C)},
    ),
    lanes(
        "fma rounds once, mul and add twice",
        "fma.rn.f32 y, a, b, c; mul.rn.f32 %f1, a, b; add.rn.f32 z, %f1, c; neg.f32 %f2, %f1;\n"
        "fma.rn.f32 w, a, b, %f2;",
        {"a": A, "b": B, "c": C},
        {
            "y": np.array([nearest(v) for v in exact(lambda a, b, c: a * b + c, A, B, C)]),
            "z": A * B + C,
            "w": np.array([nearest(v) for v in exact(lambda a, b, p: a * b - p, A, B, A * B)]),
        },
    ),
    lanes(
        "sums rounded down, up and towards zero",
        "add.rm.f32 y, a, b; add.rp.f32 z, a, b; add.rz.f32 w, a, b;",
        {"a": A, "b": B * np.float32(1e-4)},
        {
            "y": np.array([directed(v, False) for v in exact(lambda a, b: a + b, A, B * np.float32(1e-4))]),
            "z": np.array([directed(v, True) for v in exact(lambda a, b: a + b, A, B * np.float32(1e-4))]),
            "w": np.array([directed(v, v < 0) for v in exact(lambda a, b: a + b, A, B * np.float32(1e-4))]),
        },
    ),
    lanes(
        "an interval of a quotient",
        "div.rm.f32 y, a, b; div.rp.f32 z, a, b; div.rn.f32 w, a, b;",
        {"a": A, "b": B},
        {
            "y": np.array([directed(v, False) for v in exact(lambda a, b: a / b, A, B)]),
            "z": np.array([directed(v, True) for v in exact(lambda a, b: a / b, A, B)]),
            "w": A / B,
        },
    ),
    lanes(
        "reciprocal and square root are exact roundings",
        "abs.f32 %f1, a; sqrt.rn.f32 y, %f1; rcp.rn.f32 z, a; mul.rn.f32 w, y, z;",
        {"a": A},
        {
            "y": np.sqrt(np.abs(A)),
            "z": np.float32(1) / A,
            "w": np.sqrt(np.abs(A)) * (np.float32(1) / A),
        },
    ),
    lanes(
        "subnormal numbers are kept, or flushed by ftz",
        "add.f32 y, a, a; add.ftz.f32 z, a, a; mul.ftz.f32 w, a, 0f4b800000;",
        {"a": TINY},
        {"y": TINY + TINY, "z": flush(flush(TINY) * 2), "w": flush(TINY) * np.float32(2.0**24)},
    ),
    lanes(
        "saturation to the unit interval",
        "add.sat.f32 y, a, b; mul.sat.f32 z, a, b; fma.rn.sat.f32 w, a, b, 0f3f000000;",
        {"a": A / 8, "b": B / 8},
        {
            "y": np.clip(A / 8 + B / 8, 0, 1) + np.float32(0),
            "z": np.clip((A / 8) * (B / 8), 0, 1) + np.float32(0),
            "w": np.array(
                [
                    nearest(max(min(v, Fraction(1)), Fraction(0)))
                    for v in exact(lambda a, b: a * b + Fraction(1, 2), A / 8, B / 8)
                ]
            ),
        },
    ),
    lanes(
        "min and max return the number beside a NaN",
        "min.f32 %f1, a, b; max.f32 %f2, a, b; setp.nan.f32 %p1, %f1, %f2; selp.u32 y, 1, 0, %p1;\n"
        "setp.eq.f32 %p2, %f1, a; selp.u32 z, 1, 0, %p2; min.NaN.f32 %f3, a, b;\n"
        "testp.notanumber.f32 %p3, %f3;\n"
        "selp.u32 w, 1, 0, %p3;",
        {"a": ODD, "b": ODD2},
        {
            "y": (np.isnan(ODD) & np.isnan(ODD2)).astype(np.uint32),
            "z": (np.fmin(ODD, ODD2) == ODD).astype(np.uint32),
            "w": (np.isnan(ODD) | np.isnan(ODD2)).astype(np.uint32),
        },
    ),
    lanes(
        "ordered and unordered comparisons",
        "setp.lt.f32 %p1, a, b; setp.ltu.f32 %p2, a, b; setp.num.f32 %p3, a, b; selp.u32 %r5, 1, 0, %p1;\n"
        "selp.u32 %r6, 2, 0, %p2; selp.u32 %r7, 4, 0, %p3; or.b32 y, %r5, %r6; or.b32 y, y, %r7;",
        {"a": ODD, "b": ODD2},
        {
            "y": (
                (ODD < ODD2)
                + 2 * ((ODD < ODD2) | np.isnan(ODD) | np.isnan(ODD2))
                + 4 * ~(np.isnan(ODD) | np.isnan(ODD2))
            ).astype(np.uint32)
        },
    ),
    lanes(
        "classes of numbers",
        "testp.finite.f32 %p1, a; testp.infinite.f32 %p2, a; testp.normal.f32 %p3, a;\n"
        "testp.subnormal.f32 %p4, a; selp.u32 %r5, 1, 0, %p1; selp.u32 %r6, 2, 0, %p2;\n"
        "selp.u32 %r7, 4, 0, %p3;\n"
        "selp.u32 %r8, 8, 0, %p4; add.u32 y, %r5, %r6; add.u32 y, y, %r7; add.u32 y, y, %r8;",
        {"a": ODD},
        {"y": np.array([1, 1, 2, 2, 0, 5, 5, 9] * 4, np.uint32)},
    ),
    lanes(
        "signs are copied, negated and taken away",
        "copysign.f32 y, a, b; neg.f32 z, y; abs.f32 w, z;",
        {"a": A, "b": B},
        {"y": np.copysign(B, A), "z": -np.copysign(B, A), "w": np.abs(B)},
    ),
    lanes(
        "powers of two by ex2, exact for whole numbers",
        "cvt.rn.f32.s32 %f1, n; ex2.approx.f32 y, %f1; lg2.approx.f32 z, y; mul.f32 w, y, 0f40000000;",
        {"n": np.arange(-16, 16, dtype=np.int32)},
        {
            "y": np.exp2(np.arange(-16, 16)).astype(np.float32),
            "z": np.arange(-16, 16).astype(np.float32),
            "w": np.exp2(np.arange(-15, 17)).astype(np.float32),
        },
    ),
    lanes(
        "Newton's square root",
        "mov.f32 y, 0f40000000; mov.u32 %r5, 0;\nLOOP: div.rn.f32 %f1, a, y; add.rn.f32 %f1, %f1, y;\n"
        "mul.rn.f32 y, %f1, 0f3f000000; add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 20; @%p1 bra LOOP;\n"
        "mul.rn.f32 %f2, y, y; cvt.rni.s32.f32 z, %f2;",
        {"a": np.arange(1, 33, dtype=np.float32) ** 2},
        {"y": np.arange(1, 33, dtype=np.float32), "z": np.arange(1, 33, dtype=np.int32) ** 2},
    ),
    lanes(
        "Kahan's sum keeps what a plain sum loses",
        "mov.f32 %f1, a; mov.f32 %f2, 0f00000000; mov.f32 %f5, a; mov.u32 %r5, 0;\n"
        "LOOP: sub.rn.f32 %f3, 0f3f800000, %f2; add.rn.f32 %f4, %f1, %f3; sub.rn.f32 %f6, %f4, %f1;\n"
        "sub.rn.f32 %f2, %f6, %f3; mov.f32 %f1, %f4; add.rn.f32 %f5, %f5, 0f3f800000;\n"
        "add.u32 %r5, %r5, 1;\n"
        "setp.lt.u32 %p1, %r5, 64; @%p1 bra LOOP;\nmov.f32 y, %f1; mov.f32 z, %f5;",
        {"a": np.full(32, 2.0**25, np.float32)},
        {"y": np.full(32, 2.0**25 + 64, np.float32), "z": np.full(32, 2.0**25, np.float32)},
    ),
    lanes(
        "set gives all ones or one",
        "set.lt.u32.f32 y, a, b; set.ge.f32.f32 z, a, b; set.ne.s32.f32 w, a, b;",
        {"a": A, "b": B},
        {
            "y": np.where(A < B, np.uint32(0xFFFFFFFF), np.uint32(0)),
            "z": (A >= B).astype(np.float32),
            "w": np.where(A != B, np.int32(-1), np.int32(0)),
        },
    ),
    lanes(
        "rounding to whole numbers in five ways",
        "cvt.rni.f32.f32 y, a; cvt.rzi.f32.f32 z, a; cvt.rmi.f32.f32 w, a; cvt.rpi.f32.f32 v, a;",
        {"a": (np.arange(-16, 16) / 4).astype(np.float32)},
        {
            "y": np.rint(np.arange(-16, 16) / 4).astype(np.float32),
            "z": np.trunc(np.arange(-16, 16) / 4).astype(np.float32),
            "w": np.floor(np.arange(-16, 16) / 4).astype(np.float32),
            "v": np.ceil(np.arange(-16, 16) / 4).astype(np.float32),
        },
    ),
]
