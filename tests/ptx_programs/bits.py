"""Bit fields: shifts, shf, prmt, lop3, bfe, bfi, popc, clz, bfind, brev; expected in Python's integers."""

from __future__ import annotations

import numpy as np

from .program import each, lanes, signed, words

A, B, C = words(11), words(12), words(13)
L, M = words(14, dtype="u8"), words(15, dtype="u8")
N = np.arange(0, 96, 3, dtype=np.uint32)  # shift amounts, some beyond the width
T = np.arange(32, dtype=np.uint32)


def extract(a: int, at: int, length: int, width: int) -> int:
    """bfe of an unsigned number: bits beyond the width are zero."""
    return a >> at & ((1 << length) - 1) if at < width else 0


def extract_signed(a: int, at: int, length: int, width: int) -> int:
    """bfe of a signed number: bits beyond the width, and beyond the field, are the field's sign."""
    if length == 0:
        return 0
    sign = a >> min(at + length - 1, width - 1) & 1
    inside = max(min(length, width - at), 0)
    field = a >> at & ((1 << inside) - 1)
    return field - (sign << inside)


def insert(a: int, b: int, at: int, length: int, width: int) -> int:
    """bfi: the low `length` bits of a in place of those of b from `at` on."""
    mask = ((1 << length) - 1) << at & ((1 << width) - 1)
    return b & ~mask | a << at & mask


def permuted(a: int, b: int, selectors: int) -> int:
    """prmt: four bytes out of b:a, or their sign."""
    bytes_ = (b << 32 | a).to_bytes(8, "little")
    result = 0
    for k in range(4):
        selector = selectors >> 4 * k & 15
        byte = bytes_[selector & 7]
        result |= ((0xFF if byte & 0x80 else 0) if selector & 8 else byte) << 8 * k
    return result


def reverse(a: int, width: int = 32) -> int:
    return int(f"{a:0{width}b}"[::-1], 2)


def highest(a: int) -> int:
    return a.bit_length() - 1


def morton(x: int, y: int) -> int:
    return sum((x >> k & 1) << 2 * k | (y >> k & 1) << 2 * k + 1 for k in range(16))


def xorshift(a: int) -> int:
    for shift in (13, -17, 5):
        a ^= (a << shift if shift > 0 else a >> -shift) & 0xFFFFFFFF
    return a


def gray_back(a: int) -> int:
    for shift in (16, 8, 4, 2, 1):
        a ^= a >> shift
    return a


PROGRAMS = [
    lanes(
        "shifts are clamped at 32",
        "shl.b32 y, a, n; shr.u32 z, a, n; shr.s32 w, a, n;",
        {"a": A, "n": N},
        {
            "y": each(lambda a, n: a << n, A, N),
            "z": each(lambda a, n: a >> n, A, N),
            "w": each(lambda a, n: signed(a) >> n, A, N),
        },
    ),
    lanes(
        "rotation by funnel shifts",
        "shf.l.wrap.b32 y, a, a, n; shf.r.wrap.b32 z, a, a, n; xor.b32 w, y, z;",
        {"a": A, "n": N},
        {
            "y": each(lambda a, n: a << n % 32 | a >> (32 - n % 32), A, N),
            "z": each(lambda a, n: a >> n % 32 | a << (32 - n % 32), A, N),
            "w": each(
                lambda a, n: (a << n % 32 | a >> (32 - n % 32)) ^ (a >> n % 32 | a << (32 - n % 32)), A, N
            ),
        },
    ),
    lanes(
        "64-bit shift by funnel shifts that clamp",
        "mov.b64 {%r5, %r6}, a; shf.r.clamp.b32 y, %r5, %r6, n; shf.l.clamp.b32 z, %r5, %r6, n;",
        {"a": L, "n": N},
        {
            "y": each(lambda a, n: a >> min(n, 32), L, N),
            "z": each(lambda a, n: a << min(n, 32) >> 32, L, N),
        },
    ),
    lanes(
        "bytes reversed by prmt and by shifts",
        "prmt.b32 y, a, 0, 0x0123; shl.b32 %r5, a, 24; shr.u32 %r6, a, 24; and.b32 %r7, a, 0xff00;\n"
        "shl.b32 %r7, %r7, 8; shr.u32 %r8, a, 8; and.b32 %r8, %r8, 0xff00; or.b32 z, %r5, %r6;\n"
        "or.b32 z, z, %r7; or.b32 z, z, %r8;",
        {"a": A},
        {"y": A.byteswap(), "z": A.byteswap()},
    ),
    lanes(
        "prmt takes selectors from a register",
        "and.b32 %r5, c, 0x7777; prmt.b32 y, a, b, %r5; prmt.b32 z, a, b, c;",
        {"a": A, "b": B, "c": C},
        {
            "y": each(lambda a, b, c: permuted(a, b, c & 0x7777), A, B, C),
            "z": each(permuted, A, B, C),
        },
    ),
    lanes(
        "prmt spreads signs",
        "prmt.b32 y, a, b, 0xba98; prmt.b32 z, a, b, 0x8180;\n"
        "prmt.b32 %r5, a, b, 0x7531;\nxor.b32 w, %r5, y;",
        {"a": A, "b": B},
        {
            "y": each(lambda a, b: permuted(a, b, 0xBA98), A, B),
            "z": each(lambda a, b: permuted(a, b, 0x8180), A, B),
            "w": each(lambda a, b: permuted(a, b, 0x7531) ^ permuted(a, b, 0xBA98), A, B),
        },
    ),
    lanes(
        "prmt extracts four bytes forward and backward",
        "prmt.b32.f4e y, a, b, n; prmt.b32.b4e z, a, b, n; xor.b32 w, y, z;",
        {"a": A, "b": B, "n": T % 4},
        {
            "y": each(lambda a, b, n: (b << 32 | a) >> 8 * n, A, B, T % 4),
            # Source: PTX ISA, prmt, mode b4e: d.b3..d.b0 of selector n are bytes n-3, n-2, n-1, n of 8
            "z": each(lambda a, b, n: permuted(a, b, [0x5670, 0x6701, 0x7012, 0x0123][n]), A, B, T % 4),
            "w": each(
                lambda a, b, n: (b << 32 | a) >> 8 * n ^ permuted(a, b, [0x5670, 0x6701, 0x7012, 0x0123][n]),
                A,
                B,
                T % 4,
            ),
        },
    ),
    lanes(
        "prmt replicates bytes and halves",
        "prmt.b32.rc8 y, a, b, n; prmt.b32.rc16 z, a, b, n; prmt.b32.ecl w, a, b, n;\n"
        "prmt.b32.ecr v, a, b, n;",
        {"a": A, "b": B, "n": T % 4},
        {
            "y": each(lambda a, n: 0x01010101 * (a >> 8 * n & 0xFF), A, T % 4),
            "z": each(lambda a, n: 0x00010001 * (a >> 16 * (n % 2) & 0xFFFF), A, T % 4),
            # edge clamp to the left: byte k is byte max(k, n); to the right: byte min(k, n)
            "w": each(lambda a, n: sum((a >> 8 * max(k, n) & 0xFF) << 8 * k for k in range(4)), A, T % 4),
            "v": each(lambda a, n: sum((a >> 8 * min(k, n) & 0xFF) << 8 * k for k in range(4)), A, T % 4),
        },
    ),
    lanes(
        "lop3 as choice, majority and parity",
        "lop3.b32 y, a, b, c, 0xca; lop3.b32 z, a, b, c, 0xe8; lop3.b32 w, a, b, c, 0x96;",
        {"a": A, "b": B, "c": C},
        {"y": A & B | ~A & C, "z": A & B | A & C | B & C, "w": A ^ B ^ C},
    ),
    lanes(
        "lop3 with literals masks and inverts",
        "lop3.b32 y, a, 0xff00ff, b, 0xea; lop3.b32 z, y, -1, c, 0x48; not.b32 w, z;",
        {"a": A, "b": B, "c": C},
        {
            "y": A & np.uint32(0xFF00FF) | B,
            "z": (A & np.uint32(0xFF00FF) | B) ^ C,
            "w": ~((A & np.uint32(0xFF00FF) | B) ^ C),
        },
    ),
    lanes(
        "logic of 16 and 64 bits",
        "cvt.u16.u32 %h1, b; not.b16 %h2, %h1; and.b16 %h2, %h2, 0x0ff0; cvt.u64.u16 %d5, %h2;\n"
        "xor.b64 %d6, a, %d5; not.b64 %d6, %d6; or.b64 y, %d6, 6;",
        {"a": L, "b": B},
        {"y": each(lambda a, b: ~(a ^ ~b & 0x0FF0) | 6, L, B, dtype="u8")},
    ),
    lanes(
        "cnot is one for zero only",
        "cnot.b32 %r5, a; cnot.b64 %d5, b; cvt.u32.u64 %r6, %d5; mad.lo.u32 y, %r5, 2, %r6;",
        {"a": A, "b": L},
        {"y": each(lambda a, b: 2 * (a == 0) + (b == 0), A, L)},
    ),
    lanes(
        "bfe of unsigned and signed fields",
        "and.b32 %r5, n, 31; bfe.u32 y, a, %r5, 7; bfe.s32 z, a, %r5, 7; bfe.u32 w, a, 3, n;",
        {"a": A, "n": N},
        {
            "y": each(lambda a, n: extract(a, n % 32, 7, 32), A, N),
            "z": each(lambda a, n: extract_signed(a, n % 32, 7, 32), A, N),
            "w": each(lambda a, n: extract(a, 3, n, 32), A, N),
        },
    ),
    lanes(
        "bfe of 64 bits",
        "bfe.u64 y, a, n, 20; bfe.s64 z, a, n, 20; sub.u64 w, y, z;",
        {"a": L, "n": N % 64},
        {
            "y": each(lambda a, n: extract(a, n, 20, 64), L, N % 64, dtype="u8"),
            "z": each(lambda a, n: extract_signed(a, n, 20, 64), L, N % 64, dtype="u8"),
            "w": each(
                lambda a, n: extract(a, n, 20, 64) - extract_signed(a, n, 20, 64), L, N % 64, dtype="u8"
            ),
        },
    ),
    lanes(
        "bfi inserts, cut at the top",
        "and.b32 %r5, n, 31; bfi.b32 y, a, b, %r5, 9; bfi.b32 z, a, b, 4, 0; bfi.b32 w, y, z, 16, 16;",
        {"a": A, "b": B, "n": N},
        {
            "y": each(lambda a, b, n: insert(a, b, n % 32, 9, 32), A, B, N),
            "z": B,
            "w": each(lambda a, b, n: insert(insert(a, b, n % 32, 9, 32), b, 16, 16, 32), A, B, N),
        },
    ),
    lanes(
        "bfi of 64 bits swaps two fields",
        "bfe.u64 %d5, a, 8, 24; bfe.u64 %d6, a, 32, 24; bfi.b64 %d7, %d6, a, 8, 24;\n"
        "bfi.b64 y, %d5, %d7, 32, 24;",
        {"a": L},
        {
            "y": each(
                lambda a: insert(
                    extract(a, 8, 24, 64), insert(extract(a, 32, 24, 64), a, 8, 24, 64), 32, 24, 64
                ),
                L,
                dtype="u8",
            )
        },
    ),
    lanes(
        "population counts",
        "popc.b32 y, a; popc.b64 %r5, b; xor.b32 %r6, a, %r5; popc.b32 %r6, %r6; add.u32 z, %r5, %r6;",
        {"a": A, "b": L},
        {
            "y": each(lambda a: a.bit_count(), A),
            "z": each(lambda a, b: b.bit_count() + (a ^ b.bit_count()).bit_count(), A, L),
        },
    ),
    lanes(
        "leading and trailing zeros",
        "clz.b32 y, a; clz.b64 z, b; brev.b32 %r5, a; clz.b32 w, %r5;",
        {"a": A, "b": L},
        {
            "y": each(lambda a: 32 - a.bit_length(), A),
            "z": each(lambda b: 64 - b.bit_length(), L),
            "w": each(lambda a: (a & -a).bit_length() - 1 if a else 32, A),
        },
    ),
    lanes(
        "bfind of unsigned and signed numbers",
        "bfind.u32 y, a; bfind.s32 z, a; bfind.u64 w, b; bfind.shiftamt.u32 v, a;",
        {"a": A, "b": L},
        {
            "y": each(highest, A),
            "z": each(lambda a: highest(~signed(a) if signed(a) < 0 else a), A),
            "w": each(highest, L),
            "v": each(lambda a: 31 - highest(a) if a else -1, A),
        },
    ),
    lanes(
        "bits reversed",
        "brev.b32 y, a; brev.b64 z, b; brev.b32 %r5, y; xor.b32 w, %r5, a;",
        {"a": A, "b": L},
        {
            "y": each(reverse, A),
            "z": each(lambda b: reverse(b, 64), L, dtype="u8"),
            "w": np.zeros(32, np.uint32),
        },
    ),
    lanes(
        "bit masks and sign extensions",
        "and.b32 %r5, n, 31; bmsk.clamp.b32 y, 0, %r5; szext.clamp.s32 z, a, %r5;\n"
        "szext.clamp.u32 w, a, %r5;",
        {"a": A, "n": N},
        {
            "y": each(lambda n: (1 << n % 32) - 1, N),
            "z": each(lambda a, n: extract_signed(a, 0, n % 32, 32), A, N),
            "w": each(lambda a, n: extract(a, 0, n % 32, 32), A, N),
        },
    ),
    lanes(
        "Morton order of two numbers",
        "and.b32 %r5, a, 0xffff; and.b32 %r6, b, 0xffff; mov.u32 y, 0; mov.u32 %r7, 0;\n"
        "LOOP: bfe.u32 %r8, %r5, %r7, 1; bfe.u32 %r9, %r6, %r7, 1; shl.b32 %r10, %r7, 1;\n"
        "bfi.b32 y, %r8, y, %r10, 1; add.u32 %r10, %r10, 1; bfi.b32 y, %r9, y, %r10, 1;\n"
        "add.u32 %r7, %r7, 1; setp.lt.u32 %p1, %r7, 16; @%p1 bra LOOP;",
        {"a": A, "b": B},
        {"y": each(morton, A, B)},
    ),
    lanes(
        "xorshift generator",
        "shl.b32 %r5, a, 13; xor.b32 %r6, a, %r5; shr.u32 %r5, %r6, 17; xor.b32 %r6, %r6, %r5;\n"
        "shl.b32 %r5, %r6, 5; xor.b32 y, %r6, %r5;",
        {"a": A},
        {"y": each(xorshift, A)},
    ),
    lanes(
        "Gray code and back",
        "shr.u32 %r5, a, 1; xor.b32 y, a, %r5; shr.u32 %r6, y, 16; xor.b32 %r7, y, %r6;\n"
        "shr.u32 %r6, %r7, 8;\n"
        "xor.b32 %r7, %r7, %r6; shr.u32 %r6, %r7, 4; xor.b32 %r7, %r7, %r6; shr.u32 %r6, %r7, 2;\n"
        "xor.b32 %r7, %r7, %r6; shr.u32 %r6, %r7, 1; xor.b32 z, %r7, %r6;",
        {"a": A},
        {"y": A ^ A >> 1, "z": A},
    ),
    lanes(
        "lowest set bit by negation",
        "neg.s32 %r5, a; and.b32 y, a, %r5; sub.u32 %r6, y, 1; popc.b32 %r7, %r6; bfind.u32 z, y;\n"
        "setp.eq.u32 %p1, a, 0; selp.u32 w, 99, %r7, %p1;",
        {"a": A},
        {
            "y": each(lambda a: a & -a, A),
            "z": each(lambda a: highest(a & -a), A),
            "w": each(lambda a: highest(a & -a) if a else 99, A),
        },
    ),
    lanes(
        "words packed and unpacked by mov",
        "mov.b32 {%h1, %h2}, a; mov.b32 y, {%h2, %h1}; mov.b64 {%r5, %r6}, b; mov.b64 z, {%r6, %r5};\n"
        "mov.b64 {%h3, %h4, %h5, %h6}, b; mov.b64 w, {%h6, %h5, %h4, %h3};",
        {"a": A, "b": L},
        {
            "y": A << 16 | A >> 16,
            "z": L << np.uint64(32) | L >> np.uint64(32),
            "w": L.view(np.uint16).reshape(-1, 4)[:, ::-1].copy().view(np.uint64).ravel(),
        },
    ),
    lanes(
        "dot products of 16-bit by 8-bit parts",
        "dp2a.lo.u32.u32 y, a, b, c; dp2a.hi.u32.u32 z, a, b, c; sub.u32 w, z, y;",
        {"a": A, "b": B, "c": C},
        {
            "y": each(lambda a, b, c: c + (a & 0xFFFF) * (b & 0xFF) + (a >> 16) * (b >> 8 & 0xFF), A, B, C),
            "z": each(lambda a, b, c: c + (a & 0xFFFF) * (b >> 16 & 0xFF) + (a >> 16) * (b >> 24), A, B, C),
            "w": each(
                lambda a, b: (
                    (a & 0xFFFF) * ((b >> 16 & 0xFF) - (b & 0xFF)) + (a >> 16) * ((b >> 24) - (b >> 8 & 0xFF))
                ),
                A,
                B,
            ),
        },
    ),
]
