"""Integers of 16, 32 and 64 bits: sums, products, quotients, carries; expected in Python's integers."""

from __future__ import annotations

import math

import numpy as np

from .program import each, lanes, signed, words

A, B, C = words(1), words(2), words(3)
SMALL = np.arange(32, dtype=np.uint32)
L, M = words(4, dtype="u8"), words(5, dtype="u8")
H, K = words(6, dtype="u2"), words(7, dtype="u2")


def quotient(a: int, b: int) -> int:
    """Towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def collatz(n: int) -> int:
    steps = 0
    while n > 1:
        n = 3 * n + 1 if n % 2 else n // 2
        steps += 1
    return steps


def dots(a: int, b: int, signed_a: bool, signed_b: bool) -> int:
    """The sum of the products of four bytes each."""
    kinds = ("little", signed_a), ("little", signed_b)
    parts = [
        [int.from_bytes(byte, order, signed=s) for byte in zip(v.to_bytes(4, "little"))]
        for v, (order, s) in zip((a, b), kinds, strict=True)
    ]
    return sum(x * y for x, y in zip(*parts, strict=True))


PROGRAMS = [
    lanes(
        "linear combination modulo 2^32",
        "mul.lo.u32 %r5, a, 1664525; add.u32 %r5, %r5, 1013904223; mad.lo.u32 y, %r5, b, a;",
        {"a": A, "b": B},
        {"y": each(lambda a, b: (a * 1664525 + 1013904223) * b + a, A, B)},
    ),
    lanes(
        "product in two halves",
        "mul.lo.u32 low, a, b; mul.hi.u32 high, a, b; mul.wide.u32 %d5, a, b; mov.b64 {%r5, %r6}, %d5;\n"
        "xor.b32 %r5, %r5, low; xor.b32 %r6, %r6, high; or.b32 same, %r5, %r6;",
        {"a": A, "b": B},
        {
            "low": each(lambda a, b: a * b, A, B),
            "high": each(lambda a, b: a * b >> 32, A, B),
            "same": np.zeros(32, np.uint32),
        },
    ),
    lanes(
        "signed product in two halves",
        "mul.lo.s32 low, a, b; mul.hi.s32 high, a, b; neg.s32 %r5, a; mul.hi.s32 other, %r5, b;",
        {"a": A, "b": B},
        {
            "low": each(lambda a, b: a * b, A, B),
            "high": each(lambda a, b: signed(a) * signed(b) >> 32, A, B),
            "other": each(lambda a, b: signed(-a) * signed(b) >> 32, A, B),
        },
    ),
    lanes(
        "mad.hi adds to the upper half",
        "mad.hi.u32 %r5, a, b, c; mad.hi.s32 %r6, a, b, c; sub.u32 y, %r5, %r6;",
        {"a": A, "b": B, "c": C},
        {"y": each(lambda a, b, c: (a * b >> 32) - (signed(a) * signed(b) >> 32), A, B, C)},
    ),
    lanes(
        "mad.wide accumulates in 64 bits",
        "cvt.u64.u32 %d5, c; mad.wide.u32 %d6, a, b, %d5; mad.wide.s32 y, a, b, %d6;",
        {"a": A, "b": B, "c": C},
        {"y": each(lambda a, b, c: a * b + c + signed(a) * signed(b), A, B, C, dtype="u8")},
    ),
    lanes(
        "unsigned division by a number that is not zero",
        "or.b32 %r5, b, 1; div.u32 q, a, %r5; rem.u32 r, a, %r5; mad.lo.u32 back, q, %r5, r;",
        {"a": A, "b": B},
        {
            "q": each(lambda a, b: a // (b | 1), A, B),
            "r": each(lambda a, b: a % (b | 1), A, B),
            "back": A,
        },
    ),
    lanes(
        "signed division truncates",
        "or.b32 %r5, b, 2; shr.s32 %r6, a, 7; div.s32 q, %r6, %r5; rem.s32 r, %r6, %r5;",
        {"a": A, "b": B},
        {
            "q": each(lambda a, b: quotient(signed(a) >> 7, signed(b | 2)), A, B),
            "r": each(
                lambda a, b: (signed(a) >> 7) - signed(b | 2) * quotient(signed(a) >> 7, signed(b | 2)), A, B
            ),
        },
    ),
    lanes(
        "division by constants",
        "div.u32 %r5, a, 10; mul.lo.u32 %r6, %r5, 10; sub.u32 digit, a, %r6; div.u32 week, a, 7;\n"
        "rem.u32 day, a, 7;",
        {"a": A},
        {"digit": A % 10, "week": A // 7, "day": A % 7},
    ),
    lanes(
        "clamp by min and max",
        "min.s32 %r5, a, 1000; max.s32 %r5, %r5, -1000; min.u32 %r6, b, 50; max.u32 %r6, %r6, 9;\n"
        "add.s32 y, %r5, %r6;",
        {"a": A, "b": B},
        {"y": each(lambda a, b: max(min(signed(a), 1000), -1000) + max(min(b, 50), 9), A, B)},
    ),
    lanes(
        "absolute difference three ways",
        "sad.u32 u, a, b, 5; sad.s32 s, a, b, 5; sub.s32 %r5, a, b; abs.s32 wrapped, %r5;",
        {"a": A, "b": B},
        {
            "u": each(lambda a, b: abs(a - b) + 5, A, B),
            "s": each(lambda a, b: abs(signed(a) - signed(b)) + 5, A, B),
            "wrapped": each(lambda a, b: abs(signed(a - b)), A, B),
        },
    ),
    lanes(
        "saturating sums",
        "add.sat.s32 up, a, b; sub.sat.s32 down, a, b; add.s32 plain, a, b;",
        {"a": A, "b": B},
        {
            "up": each(lambda a, b: max(-(2**31), min(2**31 - 1, signed(a) + signed(b))), A, B),
            "down": each(lambda a, b: max(-(2**31), min(2**31 - 1, signed(a) - signed(b))), A, B),
            "plain": each(lambda a, b: a + b, A, B),
        },
    ),
    lanes(
        "products of 24 bits",
        "mul24.lo.u32 %r5, a, b; mul24.hi.u32 %r6, a, b; mad24.lo.s32 %r7, a, b, c;\n"
        "xor.b32 y, %r5, %r6; mov.b32 z, %r7;",
        {"a": A & 0x7FFFFF, "b": B & 0x7FFFFF, "c": C},
        {
            "y": each(
                lambda a, b: (a * b & 0xFFFFFFFF) ^ (a * b >> 16 & 0xFFFFFFFF), A & 0x7FFFFF, B & 0x7FFFFF
            ),
            "z": each(lambda a, b, c: a * b + c, A & 0x7FFFFF, B & 0x7FFFFF, C),
        },
    ),
    lanes(
        "sum of 96 bits with carries",
        "add.cc.u32 y, a, b; addc.cc.u32 z, b, c; addc.u32 w, c, a;",
        {"a": A, "b": B, "c": C},
        {
            "y": each(lambda a, b, c: a + b, A, B, C),
            "z": each(lambda a, b, c: ((b << 32 | a) + (c << 32 | b)) >> 32, A, B, C),
            "w": each(lambda a, b, c: ((c << 64 | b << 32 | a) + (a << 64 | c << 32 | b)) >> 64, A, B, C),
        },
    ),
    lanes(
        "difference of 64 bits in words",
        "mov.b64 {%r5, %r6}, a; mov.b64 {%r7, %r8}, b; sub.cc.u32 %r9, %r5, %r7; subc.u32 %r10, %r6, %r8;\n"
        "mov.b64 y, {%r9, %r10};",
        {"a": L, "b": M},
        {"y": each(lambda a, b: a - b, L, M, dtype="u8")},
    ),
    lanes(
        "product of 64 by 32 bits by mad.cc",
        "mov.b64 {%r5, %r6}, a; mul.lo.u32 %r7, %r5, b; mul.hi.u32 %r8, %r5, b;\n"
        "mad.lo.cc.u32 %r8, %r6, b, %r8; madc.hi.u32 top, %r6, b, 0; mov.b64 y, {%r7, %r8};",
        {"a": L, "b": B},
        {
            "y": each(lambda a, b: a * b, L, B, dtype="u8"),
            "top": each(lambda a, b: a * b >> 64, L, B),
        },
    ),
    lanes(
        "16-bit arithmetic wraps at 16 bits",
        "mul.lo.u16 %h1, a, b; add.u16 %h2, %h1, 40000; sub.s16 %h3, %h2, b; mov.b16 y, %h3;",
        {"a": H, "b": K},
        {"y": each(lambda a, b: a * b + 40000 - b, H, K, dtype="u2")},
    ),
    lanes(
        "16-bit products widen",
        "mul.wide.u16 %r5, a, b; mul.wide.s16 %r6, a, b; mad.wide.u16 y, a, b, %r6; sub.u32 z, %r5, %r6;",
        {"a": H, "b": K},
        {
            "y": each(lambda a, b: a * b + signed(a, 16) * signed(b, 16), H, K),
            "z": each(lambda a, b: a * b - signed(a, 16) * signed(b, 16), H, K),
        },
    ),
    lanes(
        "16-bit minimum, shift and absolute value",
        "min.s16 %h1, a, b; max.u16 %h2, a, b; abs.s16 %h3, %h1; shr.u16 %h4, %h2, 3; add.u16 y, %h3, %h4;",
        {"a": H, "b": K},
        {"y": each(lambda a, b: abs(min(signed(a, 16), signed(b, 16))) + (max(a, b) >> 3), H, K, dtype="u2")},
    ),
    lanes(
        "remainders of the Collatz steps",
        "mov.u32 y, 0;\nLOOP: setp.le.u32 %p1, a, 1; @%p1 bra DONE; and.b32 %r5, a, 1;\n"
        "setp.eq.u32 %p2, %r5, 1; shr.u32 %r6, a, 1; mad.lo.u32 %r7, a, 3, 1; selp.b32 a, %r7, %r6, %p2;\n"
        "add.u32 y, y, 1; bra LOOP;\nDONE:",
        {"a": SMALL + 1},
        {"y": each(collatz, SMALL + 1)},
    ),
    lanes(
        "square root digit by digit",
        "mov.u32 y, 0; mov.u32 %r5, 32768;\nLOOP: or.b32 %r6, y, %r5; mul.lo.u32 %r7, %r6, %r6;\n"
        "setp.le.u32 %p1, %r7, a; selp.b32 y, %r6, y, %p1; shr.u32 %r5, %r5, 1; setp.ne.u32 %p2, %r5, 0;\n"
        "@%p2 bra LOOP;",
        {"a": A},
        {"y": each(math.isqrt, A)},
    ),
    lanes(
        "greatest common divisor",
        "mov.u32 %r5, a; or.b32 %r6, b, 1;\nLOOP: setp.eq.u32 %p1, %r6, 0; @%p1 bra DONE;\n"
        "rem.u32 %r7, %r5, %r6; mov.u32 %r5, %r6; mov.u32 %r6, %r7; bra.uni LOOP;\nDONE: mov.u32 y, %r5;",
        {"a": A, "b": B},
        {"y": each(lambda a, b: math.gcd(a, b | 1), A, B)},
    ),
    lanes(
        "64-bit linear generator",
        "mul.lo.u64 %d5, a, 6364136223846793005; add.u64 %d5, %d5, 1442695040888963407;\n"
        "shr.u64 %d6, %d5, 33; xor.b64 y, %d5, %d6;",
        {"a": L},
        {
            "y": each(
                lambda a: (s := (a * 6364136223846793005 + 1442695040888963407) % 2**64) ^ s >> 33,
                L,
                dtype="u8",
            )
        },
    ),
    lanes(
        "64-bit product in two halves",
        "mul.hi.u64 high, a, b; mul.lo.u64 low, a, b; mul.hi.s64 signed_high, a, b;",
        {"a": L, "b": M},
        {
            "high": each(lambda a, b: a * b >> 64, L, M, dtype="u8"),
            "low": each(lambda a, b: a * b, L, M, dtype="u8"),
            "signed_high": each(lambda a, b: signed(a, 64) * signed(b, 64) >> 64, L, M, dtype="u8"),
        },
    ),
    lanes(
        "64-bit division",
        "or.b64 %d5, b, 3; div.u64 q, a, %d5; rem.u64 r, a, %d5; shr.s64 %d6, a, 9; div.s64 s, %d6, %d5;",
        {"a": L, "b": M},
        {
            "q": each(lambda a, b: a // (b | 3), L, M, dtype="u8"),
            "r": each(lambda a, b: a % (b | 3), L, M, dtype="u8"),
            "s": each(lambda a, b: quotient(signed(a, 64) >> 9, signed(b | 3, 64)), L, M, dtype="u8"),
        },
    ),
    lanes(
        "64-bit minimum and magnitude",
        "min.s64 %d5, a, b; max.u64 %d6, a, b; abs.s64 %d7, %d5; sub.u64 y, %d6, %d7; neg.s64 z, y;",
        {"a": L, "b": M},
        {
            "y": each(lambda a, b: max(a, b) - abs(min(signed(a, 64), signed(b, 64))), L, M, dtype="u8"),
            "z": each(lambda a, b: abs(min(signed(a, 64), signed(b, 64))) - max(a, b), L, M, dtype="u8"),
        },
    ),
    lanes(
        "64-bit shifts are clamped at 64",
        "shl.b64 y, a, n; shr.u64 z, a, n; shr.s64 w, a, n;",
        {"a": L, "n": np.arange(0, 96, 3, dtype=np.uint32)},
        {
            "y": each(lambda a, n: a << n, L, 3 * SMALL, dtype="u8"),
            "z": each(lambda a, n: a >> n, L, 3 * SMALL, dtype="u8"),
            "w": each(lambda a, n: signed(a, 64) >> n, L, 3 * SMALL, dtype="u8"),
        },
    ),
    lanes(
        "64-bit comparison chooses",
        "setp.lt.u64 %p1, a, b; setp.lt.s64 %p2, a, b; selp.u64 %d5, a, b, %p1; selp.b64 %d6, a, b, %p2;\n"
        "xor.b64 y, %d5, %d6;",
        {"a": L, "b": M},
        {"y": each(lambda a, b: min(a, b) ^ (a if signed(a, 64) < signed(b, 64) else b), L, M, dtype="u8")},
    ),
    lanes(
        "64-bit sum and carry",
        "add.cc.u64 y, a, b; addc.u64 carry, 0, 0; sub.cc.u64 z, a, b; subc.u64 borrow, 0, 0;",
        {"a": L, "b": M},
        {
            "y": each(lambda a, b: a + b, L, M, dtype="u8"),
            "carry": each(lambda a, b: a + b >> 64, L, M, dtype="u8"),
            "z": each(lambda a, b: a - b, L, M, dtype="u8"),
            "borrow": each(lambda a, b: -(a < b), L, M, dtype="u8"),
        },
    ),
    lanes(
        "dot products of bytes",
        "dp4a.u32.u32 y, a, b, c; dp4a.s32.u32 z, a, b, y; dp4a.s32.s32 w, a, b, z;",
        {"a": A, "b": B, "c": C},
        {
            "y": each(lambda a, b, c: c + dots(a, b, False, False), A, B, C),
            "z": each(lambda a, b, c: c + dots(a, b, False, False) + dots(a, b, True, False), A, B, C),
            "w": each(
                lambda a, b, c: (
                    c + dots(a, b, False, False) + dots(a, b, True, False) + dots(a, b, True, True)
                ),
                A,
                B,
                C,
            ),
        },
    ),
    lanes(
        "polynomial by Horner",
        "mad.lo.u32 %r5, a, a, a; mad.lo.u32 %r5, %r5, a, 7; add.u32 y, %r5, b;",
        {"a": A, "b": B},
        {"y": each(lambda a, b: (a * a + a) * a + 7 + b, A, B)},
    ),
]
