"""f16 and bf16, scalar and packed: expected as the exact f64 value rounded once."""

from __future__ import annotations

import numpy as np

from .program import bf16, from_bf16, lanes, pair

RNG = np.random.default_rng(41)
A, B, C, D = (RNG.integers(-512, 512, (4, 32)) / 64).astype(np.float16)
P, Q, R, S = bf16(RNG.standard_normal((4, 32)) * 4)  # bf16 bit patterns
ONE, TWO = 0x3F80, 0x4000  # bf16
BIG = np.full(32, 60000, np.float16)
NAN = np.tile(np.array([1, np.nan, -1, 3], np.float16), 8)


def h(x) -> np.ndarray:
    """f64 values rounded to f16."""
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float64).astype(np.float16)


def w(x: np.ndarray) -> np.ndarray:
    """Exactly as f64: f16, or the bits of bf16."""
    return (from_bf16(x) if x.dtype == np.uint16 else x).astype(np.float64)


def to_bf16(x: np.ndarray) -> np.ndarray:
    """f64 values rounded once to bf16: to f32 towards zero, the last bit telling the rest, then to bf16."""
    single = x.astype(np.float32)
    away = np.abs(single.astype(np.float64)) > np.abs(x)
    single = np.where(away, np.nextafter(single, np.float32(0)), single)
    sticky = single.astype(np.float64) != x
    return bf16((single.view(np.uint32) | sticky.astype(np.uint32)).view(np.float32))


AB, CD = pair(A, B), pair(C, D)
PQ, RS = pair(P, Q), pair(R, S)

PROGRAMS = [
    lanes(
        "f16 sum, difference and product",
        "add.f16 y, a, b; sub.rn.f16 z, a, c; mul.f16 v, y, z;",
        {"a": A, "b": B, "c": C},
        {"y": h(w(A) + w(B)), "z": h(w(A) - w(C)), "v": h(w(h(w(A) + w(B))) * w(h(w(A) - w(C))))},
    ),
    lanes(
        "f16 fma rounds once",
        "fma.rn.f16 y, a, b, c; mul.rn.f16 %h1, a, b; add.rn.f16 z, %h1, c; neg.f16 v, y;",
        {"a": A, "b": B, "c": C},
        {
            "y": h(w(A) * w(B) + w(C)),
            "z": h(w(h(w(A) * w(B))) + w(C)),
            "v": -h(w(A) * w(B) + w(C)),
        },
    ),
    lanes(
        "f16 relu and saturation",
        "fma.rn.relu.f16 y, a, b, c; fma.rn.sat.f16 z, a, b, c; add.sat.f16 v, y, z;",
        {"a": A, "b": B, "c": C},
        {
            "y": h(np.maximum(w(A) * w(B) + w(C), 0)),
            "z": h(np.clip(w(A) * w(B) + w(C), 0, 1)),
            "v": h(
                np.clip(
                    w(h(np.maximum(w(A) * w(B) + w(C), 0))) + w(h(np.clip(w(A) * w(B) + w(C), 0, 1))), 0, 1
                )
            ),
        },
    ),
    lanes(
        "f16 overflow is infinite",
        "add.f16 y, a, a; mul.f16 z, a, b; abs.f16 v, z;",
        {"a": BIG, "b": np.tile([-2, 2], 16).astype(np.float16)},
        {
            "y": np.full(32, np.inf, np.float16),
            "z": np.tile([-np.inf, np.inf], 16).astype(np.float16),
            "v": np.full(32, np.inf, np.float16),
        },
    ),
    lanes(
        "f16 minima pass by NaN",
        "min.f16 y, a, b; max.f16 z, a, b; setp.le.f16 %p1, y, z; selp.u32 n, 1, 0, %p1;",
        {"a": NAN, "b": A},
        {"y": np.fmin(NAN, A), "z": np.fmax(NAN, A), "n": np.ones(32, np.uint32)},
    ),
    lanes(
        "f16 comparisons",
        "setp.lt.f16 %p1, a, b; setp.geu.f16 %p2, a, b; selp.u32 %r5, 1, 0, %p1; selp.u32 %r6, 2, 0, %p2;\n"
        "add.u32 y, %r5, %r6;",
        {"a": NAN, "b": A},
        {"y": np.where(NAN < A, 1, 2).astype(np.uint32)},
    ),
    lanes(
        "f16x2 sum, difference and product",
        "add.f16x2 y, a, b; sub.f16x2 z, a, b; mul.f16x2 v, a, b;",
        {"a": AB, "b": CD},
        {
            "y": pair(h(w(A) + w(C)), h(w(B) + w(D))),
            "z": pair(h(w(A) - w(C)), h(w(B) - w(D))),
            "v": pair(h(w(A) * w(C)), h(w(B) * w(D))),
        },
    ),
    lanes(
        "f16x2 fma",
        "fma.rn.f16x2 y, a, b, a; fma.rn.relu.f16x2 z, a, b, b; fma.rn.sat.f16x2 v, a, b, a;",
        {"a": AB, "b": CD},
        {
            "y": pair(h(w(A) * w(C) + w(A)), h(w(B) * w(D) + w(B))),
            "z": pair(h(np.maximum(w(A) * w(C) + w(C), 0)), h(np.maximum(w(B) * w(D) + w(D), 0))),
            "v": pair(h(np.clip(w(A) * w(C) + w(A), 0, 1)), h(np.clip(w(B) * w(D) + w(B), 0, 1))),
        },
    ),
    lanes(
        "f16x2 dot product of a lane",
        "{ .reg .b16 low, high; mul.rn.f16x2 %r5, a, b; mov.b32 {low, high}, %r5;\n"
        "add.rn.f16 y, low, high; }\n"
        "{ .reg .b16 low; .reg .f32 f; mov.b16 low, y; cvt.f32.f16 f, low; mul.f32 z, f, 0f40000000; }",
        {"a": AB, "b": CD},
        {
            "y": h(w(h(w(A) * w(C))) + w(h(w(B) * w(D)))),
            "z": (2 * w(h(w(h(w(A) * w(C))) + w(h(w(B) * w(D)))))).astype(np.float32),
        },
    ),
    lanes(
        "f16x2 signs and minima",
        "neg.f16x2 y, a; abs.f16x2 z, y; min.f16x2 v, a, b; max.f16x2 u, a, b;",
        {"a": AB, "b": CD},
        {
            "y": AB ^ np.uint32(0x80008000),
            "z": AB & np.uint32(0x7FFF7FFF),
            "v": pair(np.minimum(A, C), np.minimum(B, D)),
            "u": pair(np.maximum(A, C), np.maximum(B, D)),
        },
    ),
    lanes(
        "f16x2 comparison gives two predicates",
        "setp.gt.f16x2 %p1|%p2, a, b; selp.u32 %r5, 1, 0, %p1; selp.u32 %r6, 2, 0, %p2;\n"
        "add.u32 y, %r5, %r6;\n"
        "set.gt.f16x2.f16x2 z, a, b;",
        {"a": AB, "b": CD},
        {
            "y": ((A > C) + 2 * (B > D)).astype(np.uint32),
            "z": pair((A > C).astype(np.float16), (B > D).astype(np.float16)),
        },
    ),
    lanes(
        "f16 sum of a loop",
        "mov.b16 y, 0; mov.u32 %r5, 0;\nLOOP: add.rn.f16 y, y, a; add.u32 %r5, %r5, 1;\n"
        "setp.lt.u32 %p1, %r5, 4; @%p1 bra LOOP;",
        {"a": A},
        {"y": h(w(A) * 4)},
    ),
    lanes(
        "f16 powers of two",
        "cvt.rn.f16.s32 %h1, n; ex2.approx.f16 y, %h1; mul.f16 z, y, y;",
        {"n": np.tile(np.arange(-6, 7), 3)[:32].astype(np.int32)},
        {
            "y": np.exp2(np.tile(np.arange(-6, 7), 3)[:32]).astype(np.float16),
            "z": np.exp2(2 * np.tile(np.arange(-6, 7), 3)[:32]).astype(np.float16),
        },
    ),
    lanes(
        "bf16 fma rounds once",
        "fma.rn.bf16 y, a, b, c; fma.rn.relu.bf16 z, a, b, c; neg.bf16 v, y;",
        {"a": P, "b": Q, "c": R},
        {
            "y": to_bf16(w(P) * w(Q) + w(R)),
            "z": to_bf16(np.maximum(w(P) * w(Q) + w(R), 0)),
            "v": to_bf16(w(P) * w(Q) + w(R)) ^ np.uint16(0x8000),
        },
    ),
    lanes(
        "bf16 sum, difference and product",
        "add.rn.bf16 y, a, b; sub.rn.bf16 z, a, b; mul.rn.bf16 v, a, b;",
        {"a": P, "b": Q},
        {"y": to_bf16(w(P) + w(Q)), "z": to_bf16(w(P) - w(Q)), "v": to_bf16(w(P) * w(Q))},
    ),
    lanes(
        "bf16 sum as fma by one, as sm_80 does it",
        f"mov.b16 %h1, {ONE}; fma.rn.bf16 y, a, %h1, b; mov.b16 %h2, {TWO}; fma.rn.bf16 z, y, %h2, c;",
        {"a": P, "b": Q, "c": R},
        {"y": to_bf16(w(P) + w(Q)), "z": to_bf16(2 * w(to_bf16(w(P) + w(Q))) + w(R))},
    ),
    lanes(
        "bf16x2 sum, product and fma",
        "add.rn.bf16x2 y, a, b; mul.rn.bf16x2 z, a, b; fma.rn.bf16x2 v, a, b, y;",
        {"a": PQ, "b": RS},
        {
            "y": pair(to_bf16(w(P) + w(R)), to_bf16(w(Q) + w(S))),
            "z": pair(to_bf16(w(P) * w(R)), to_bf16(w(Q) * w(S))),
            "v": pair(
                to_bf16(w(P) * w(R) + w(to_bf16(w(P) + w(R)))), to_bf16(w(Q) * w(S) + w(to_bf16(w(Q) + w(S))))
            ),
        },
    ),
    lanes(
        "bf16x2 minima and comparisons",
        "min.bf16x2 y, a, b; max.bf16x2 z, a, b; setp.lt.bf16x2 %p1|%p2, a, b; selp.u32 %r5, 1, 0, %p1;\n"
        "selp.u32 %r6, 2, 0, %p2; add.u32 n, %r5, %r6;",
        {"a": PQ, "b": RS},
        {
            "y": pair(bf16(np.minimum(w(P), w(R))), bf16(np.minimum(w(Q), w(S)))),
            "z": pair(bf16(np.maximum(w(P), w(R))), bf16(np.maximum(w(Q), w(S)))),
            "n": ((w(P) < w(R)) + 2 * (w(Q) < w(S))).astype(np.uint32),
        },
    ),
]
