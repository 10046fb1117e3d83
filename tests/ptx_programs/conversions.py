"""cvt between floats of 8, 16, 32 and 64 bits and integers; expected from tables of all values, and NumPy."""

from __future__ import annotations

import numpy as np

from .program import bf16, each, from_bf16, lanes, pair, signed, words

RNG = np.random.default_rng(51)
F = (RNG.standard_normal(32) * 10.0 ** RNG.integers(-3, 3, 32)).astype(np.float32)
G = (RNG.standard_normal(32) * 10.0 ** RNG.integers(-3, 3, 32)).astype(np.float32)
H, K = F.astype(np.float16), G.astype(np.float16)
A, L = words(52), words(53, dtype="u8")
EIGHTHS = (RNG.integers(-4000, 4000, 32) / 8).astype(np.float16)


def decoded(exponent_bits: int, bias: int) -> np.ndarray:
    """The values of the 128 patterns without a sign, as if none were special."""
    fraction_bits = 7 - exponent_bits
    codes = np.arange(128)
    exponent, fraction = codes >> fraction_bits, codes & ((1 << fraction_bits) - 1)
    unit = 2.0**-fraction_bits
    return np.where(
        exponent == 0, fraction * unit * 2.0 ** (1 - bias), (1 + fraction * unit) * 2.0 ** (exponent - bias)
    )


# Source: PTX ISA, "Alternate Floating-Point Data Formats": e4m3 has one NaN, 0x7f; e5m2 is as IEEE 754
E4M3, E5M2 = decoded(4, 7), decoded(5, 15)
FINITE = {"e4m3": E4M3[:0x7F], "e5m2": E5M2[:0x7C]}


def byte_of(value: float, kind: str) -> int:
    """The nearest finite value's code, ties to the even code (satfinite)."""
    table = FINITE[kind]
    distance = np.abs(table - abs(float(value)))
    near = np.flatnonzero(distance == distance.min())
    code = int(next((c for c in near if c % 2 == 0), near[0]))
    return code | (0x80 if np.signbit(value) else 0)


def two_bytes(high: np.ndarray, low: np.ndarray, kind: str) -> np.ndarray:
    return np.array(
        [byte_of(h, kind) << 8 | byte_of(x, kind) for h, x in zip(high, low, strict=True)], np.uint16
    )


def half_of(codes: np.ndarray, kind: str) -> np.ndarray:
    """f16 of fp8 codes."""
    table = (E4M3 if kind == "e4m3" else E5M2)[codes & 0x7F]
    return np.where(codes & 0x80, -table, table).astype(np.float16)


def finite(kind: str) -> np.ndarray:
    """32 codes without NaN and infinity, of either sign."""
    return RNG.integers(0, len(FINITE[kind]), 32) | RNG.integers(0, 2, 32) << 7


def towards_zero(x: np.ndarray) -> np.ndarray:
    """f32 to f16, bits beyond cut."""
    near = x.astype(np.float16)
    return np.where(np.abs(near.astype(np.float32)) > np.abs(x), np.nextafter(near, np.float16(0)), near)


def cut_bf16(x: np.ndarray) -> np.ndarray:
    return (x.view(np.uint32) >> 16).astype(np.uint16)


C4, D4, C5, D5 = finite("e4m3"), finite("e4m3"), finite("e5m2"), finite("e5m2")

PROGRAMS = [
    lanes(
        "f32 to f16 and back",
        "cvt.rn.f16.f32 y, a; cvt.f32.f16 z, y; sub.f32 v, a, z; cvt.rz.f16.f32 u, a;",
        {"a": F},
        {
            "y": F.astype(np.float16),
            "z": F.astype(np.float16).astype(np.float32),
            "v": F - F.astype(np.float16).astype(np.float32),
            "u": towards_zero(F),
        },
    ),
    lanes(
        "f32 to bf16 and back",
        "cvt.rn.bf16.f32 y, a; cvt.rz.bf16.f32 z, a; cvt.f32.bf16 v, y; cvt.rn.relu.bf16.f32 u, a;",
        {"a": F},
        {
            "y": bf16(F),
            "z": cut_bf16(F),
            "v": from_bf16(bf16(F)),
            "u": bf16(np.where(F < 0, np.float32(0), F)),
        },
    ),
    lanes(
        "two f32 packed into f16x2 and unpacked",
        "cvt.rn.f16x2.f32 y, a, b; mov.b32 {%h1, %h2}, y; cvt.f32.f16 z, %h1; cvt.f32.f16 v, %h2;",
        {"a": F, "b": G},
        {
            "y": pair(K, H),
            "z": K.astype(np.float32),
            "v": H.astype(np.float32),
        },
    ),
    lanes(
        "two f32 packed into bf16x2",
        "cvt.rn.bf16x2.f32 y, a, b; cvt.rn.relu.bf16x2.f32 z, a, b; cvt.rz.bf16x2.f32 %r5, a, b;\n"
        "xor.b32 v, y, %r5;",
        {"a": F, "b": G},
        {
            "y": pair(bf16(G), bf16(F)),
            "z": pair(bf16(np.maximum(G, np.float32(0))), bf16(np.maximum(F, np.float32(0)))),
            "v": pair(bf16(G), bf16(F)) ^ pair(cut_bf16(G), cut_bf16(F)),
        },
    ),
    lanes(
        "two f32 to e4m3 and back as f16",
        "cvt.rn.satfinite.e4m3x2.f32 y, a, b; cvt.rn.f16x2.e4m3x2 z, y; mov.b32 {%h1, %h2}, z;\n"
        "cvt.f32.f16 v, %h2;",
        {"a": F, "b": G},
        {
            "y": two_bytes(F, G, "e4m3"),
            "z": pair(
                half_of(two_bytes(F, G, "e4m3") & 0xFF, "e4m3"), half_of(two_bytes(F, G, "e4m3") >> 8, "e4m3")
            ),
            "v": half_of(two_bytes(F, G, "e4m3") >> 8, "e4m3").astype(np.float32),
        },
    ),
    lanes(
        "two f32 to e5m2 and back as f16",
        "cvt.rn.satfinite.e5m2x2.f32 y, a, b; cvt.rn.f16x2.e5m2x2 z, y; mov.b32 {%h1, %h2}, z;\n"
        "cvt.f32.f16 v, %h1;",
        {"a": F, "b": G},
        {
            "y": two_bytes(F, G, "e5m2"),
            "z": pair(
                half_of(two_bytes(F, G, "e5m2") & 0xFF, "e5m2"), half_of(two_bytes(F, G, "e5m2") >> 8, "e5m2")
            ),
            "v": half_of(two_bytes(F, G, "e5m2") & 0xFF, "e5m2").astype(np.float32),
        },
    ),
    lanes(
        "fp8 beyond the greatest number saturates",
        "mul.f32 %f1, a, 0f49742400; cvt.rn.satfinite.e4m3x2.f32 y, %f1, a; neg.f32 %f2, %f1;\n"
        "cvt.rn.satfinite.e5m2x2.f32 z, %f2, a;",
        {"a": np.abs(F) + 1},
        {
            "y": two_bytes((np.abs(F) + 1) * np.float32(1e6), np.abs(F) + 1, "e4m3"),
            "z": two_bytes(-(np.abs(F) + 1) * np.float32(1e6), np.abs(F) + 1, "e5m2"),
        },
    ),
    lanes(
        "f16x2 to e4m3 with relu",
        "cvt.rn.satfinite.e4m3x2.f16x2 y, a; cvt.rn.satfinite.relu.e4m3x2.f16x2 z, a; xor.b16 v, y, z;",
        {"a": pair(H, K)},
        {
            "y": two_bytes(K, H, "e4m3"),
            "z": two_bytes(np.maximum(K, 0) + np.float16(0), np.maximum(H, 0) + np.float16(0), "e4m3"),
            "v": two_bytes(K, H, "e4m3")
            ^ two_bytes(np.maximum(K, 0) + np.float16(0), np.maximum(H, 0) + np.float16(0), "e4m3"),
        },
    ),
    lanes(
        "f16x2 to e5m2 with relu",
        "cvt.rn.satfinite.e5m2x2.f16x2 y, a; cvt.rn.satfinite.relu.e5m2x2.f32 z, b, b;\n"
        "cvt.u32.u16 %r5, z; popc.b32 v, %r5;",
        {"a": pair(H, K), "b": F},
        {
            "y": two_bytes(K, H, "e5m2"),
            "z": two_bytes(np.maximum(F, 0) + np.float32(0), np.maximum(F, 0) + np.float32(0), "e5m2"),
            "v": each(
                lambda z: z.bit_count(),
                two_bytes(np.maximum(F, 0) + np.float32(0), np.maximum(F, 0) + np.float32(0), "e5m2"),
            ),
        },
    ),
    lanes(
        "every e4m3 product with its scale in f16",
        "cvt.u16.u32 %h1, n; cvt.rn.f16x2.e4m3x2 %r5, %h1; mov.b32 {%h2, %h3}, %r5;\n"
        "mul.rn.f16 y, %h2, %h3;\n"
        "cvt.rn.relu.f16x2.e4m3x2 z, %h1;",
        {"n": (C4 | D4 << 8).astype(np.uint32)},
        {
            "y": (half_of(C4, "e4m3").astype(np.float64) * half_of(D4, "e4m3").astype(np.float64)).astype(
                np.float16
            ),
            "z": pair(
                np.maximum(half_of(C4, "e4m3"), 0) + np.float16(0),
                np.maximum(half_of(D4, "e4m3"), 0) + np.float16(0),
            ),
        },
    ),
    lanes(
        "e5m2 to f16 is a shift by a byte",
        "cvt.u16.u32 %h1, n; cvt.rn.f16x2.e5m2x2 y, %h1; shl.b32 %r5, n, 8; and.b32 %r5, %r5, 0xff00;\n"
        "shr.u32 %r6, n, 8; shl.b32 %r6, %r6, 24; or.b32 z, %r5, %r6;",
        {"n": (C5 | D5 << 8).astype(np.uint32)},
        {
            "y": pair(half_of(C5, "e5m2"), half_of(D5, "e5m2")),
            "z": ((C5 << 8 & 0xFF00) | D5 << 24).astype(np.uint32),
        },
    ),
    lanes(
        "f32 to tf32 drops thirteen bits",
        "cvt.rna.tf32.f32 y, a; and.b32 z, y, 0x1fff; xor.b32 v, y, 1;",
        {"a": F},
        {
            "y": (F.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000),
            "z": np.zeros(32, np.uint32),
            "v": ((F.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)) ^ np.uint32(1),
        },
    ),
    lanes(
        "narrow integers cut and extend",
        "cvt.u8.u32 %h1, a; cvt.s32.s8 y, %h1; cvt.u16.u32 %h2, a; cvt.s64.s16 z, %h2; cvt.u32.u8 v, %h1;",
        {"a": A},
        {
            "y": each(lambda a: signed(a, 8), A),
            "z": each(lambda a: signed(a, 16), A, dtype="u8"),
            "v": A & np.uint32(0xFF),
        },
    ),
    lanes(
        "saturating conversions of integers",
        "cvt.sat.s8.s32 %h1, a; cvt.s32.s8 y, %h1; cvt.sat.u16.s32 %h2, a; cvt.u32.u16 z, %h2;\n"
        "cvt.sat.s32.s64 v, b;",
        {"a": A, "b": L},
        {
            "y": each(lambda a: max(-128, min(127, signed(a))), A),
            "z": each(lambda a: max(0, min(65535, signed(a))), A),
            "v": each(lambda b: max(-(2**31), min(2**31 - 1, signed(b, 64))), L),
        },
    ),
    lanes(
        "f32 to integers clamps and takes NaN as zero",
        "cvt.rni.s32.f32 y, a; cvt.rzi.u32.f32 z, a; cvt.rpi.s64.f32 v, a; cvt.rmi.u8.f32 %h1, a;\n"
        "cvt.u32.u8 u, %h1;",
        {"a": np.tile(np.array([2.5, -2.5, 3e9, -3e9, np.nan, 255.5, 1e20, -0.5], np.float32), 4)},
        {
            "y": np.tile(np.array([2, -2, 2**31 - 1, -(2**31), 0, 256, 2**31 - 1, 0], np.int32), 4),
            "z": np.tile(np.array([2, 0, 3000000000, 0, 0, 255, 2**32 - 1, 0], np.uint32), 4),
            "v": np.tile(
                np.array([3, -2, 3000000000, -3000000000, -(2**63), 256, 2**63 - 1, 0], np.int64), 4
            ),
            "u": np.tile(np.array([2, 0, 255, 0, 0, 255, 255, 0], np.uint32), 4),
        },
    ),
    lanes(
        "integers to f32 in four roundings",
        "cvt.rn.f32.u32 y, a; cvt.rz.f32.u32 z, a; cvt.rp.f32.u32 v, a; cvt.rm.f32.s32 u, a;",
        {"a": A},
        {
            "y": A.astype(np.float32),
            "z": each(
                lambda a: a >> max(a.bit_length() - 24, 0) << max(a.bit_length() - 24, 0), A, dtype="f4"
            ),
            "v": each(
                lambda a: -(-a >> max(a.bit_length() - 24, 0) << max(a.bit_length() - 24, 0)), A, dtype="f4"
            ),
            "u": each(
                lambda a: (
                    signed(a)
                    >> max(abs(signed(a)).bit_length() - 24, 0)
                    << max(abs(signed(a)).bit_length() - 24, 0)
                ),
                A,
                dtype="f4",
            ),
        },
    ),
    lanes(
        "f16 to integers and integers to f16",
        "cvt.rni.s32.f16 y, a; cvt.rn.f16.s32 z, y; cvt.rzi.s16.f16 %h1, a; cvt.s32.s16 v, %h1;",
        {"a": EIGHTHS},
        {
            "y": np.rint(EIGHTHS.astype(np.float64)).astype(np.int32),
            "z": np.rint(EIGHTHS.astype(np.float64)).astype(np.float16),
            "v": np.trunc(EIGHTHS.astype(np.float64)).astype(np.int32),
        },
    ),
    lanes(
        "f64 to f32 and f16",
        "cvt.f64.f32 %g1, a; mul.f64 %g1, %g1, 0d3FF0000010000001; cvt.rn.f32.f64 y, %g1;\n"
        "cvt.rz.f32.f64 z, %g1;\n"
        "cvt.rn.f16.f64 v, %g1;",
        {"a": F},
        {
            "y": (F.astype(np.float64) * np.uint64(0x3FF0000010000001).view(np.float64)).astype(np.float32),
            "z": F,
            "v": (F.astype(np.float64) * np.uint64(0x3FF0000010000001).view(np.float64)).astype(np.float16),
        },
    ),
]
