"""atom and red in global and shared memory; sums that do not depend on the order of the threads."""

from __future__ import annotations

import functools
import operator

import numpy as np

from .program import bf16, lanes, pair, signed, words

A = words(91)
L = words(92, dtype="u8")
T = np.arange(32, dtype=np.uint32)
T64 = np.arange(64, dtype=np.uint32)
CELL = ".shared .align 16 .b8 cell[64];\n"
CLEAR = "setp.eq.u32 %p9, %r0, 0; @%p9 st.shared.v4.u32 [cell], {0, 0, 0, 0}; bar.sync 0;\n"


def cells(*values, dtype=np.uint32) -> np.ndarray:
    return np.array(values, dtype)


def zeros(count: int, dtype=np.uint32) -> np.ndarray:
    return np.zeros(count, dtype)


def fold(operation, array) -> int:
    return functools.reduce(operation, array.tolist())


PROGRAMS = [
    lanes(
        "tickets are all different and their count is right",
        "atom.global.add.u32 %r5, [m], 1; mad.wide.u32 %d5, %r5, 4, m;\n"
        "atom.global.add.u32 %r6, [%d5+4], %r2; add.u32 y, %r6, 5;",
        outputs={"y": np.full(64, 5, np.uint32)},
        memory={"m": (zeros(65), np.concatenate([[64], T64]).astype(np.uint32))},
    ),
    lanes(
        "red adds, takes the extremes and combines bits",
        "red.global.add.u32 [m], a; red.global.max.u32 [m+4], a; red.global.min.s32 [m+8], a;\n"
        "red.global.or.b32 [m+12], a;\n"
        "red.global.and.b32 [m+16], a; red.global.xor.b32 [m+20], a;",
        {"a": A[8:] | np.uint32(1)},
        memory={
            "m": (
                cells(0, 0, 5, 0, 0xFFFFFFFF, 0),
                cells(
                    *(
                        v & 0xFFFFFFFF
                        for v in (
                            fold(operator.add, A[8:] | np.uint32(1)),
                            fold(max, A[8:] | np.uint32(1)),
                            min(5, *(signed(int(v) | 1) for v in A[8:])),
                            fold(operator.or_, A[8:] | np.uint32(1)),
                            fold(operator.and_, A[8:] | np.uint32(1)),
                            fold(operator.xor, A[8:] | np.uint32(1)),
                        )
                    )
                ),
            )
        },
    ),
    lanes(
        "64-bit sums and extremes",
        "atom.global.add.u64 %d5, [m], a; atom.global.max.u64 %d6, [m+8], a;\n"
        "red.global.min.s64 [m+16], a; red.global.xor.b64 [m+24], a;",
        {"a": L},
        memory={
            "m": (
                zeros(4, np.uint64),
                cells(
                    *(
                        v % 2**64
                        for v in (
                            fold(operator.add, L),
                            fold(max, L),
                            min(signed(int(v), 64) for v in L),
                            fold(operator.xor, L),
                        )
                    ),
                    dtype=np.uint64,
                ),
            )
        },
    ),
    lanes(
        "a histogram in shared memory",
        f"{CLEAR}and.b32 %r5, a, 3; mov.u32 %r6, cell; mad.lo.u32 %r7, %r5, 4, %r6;\n"
        "red.shared.add.u32 [%r7], 1; bar.sync 0;\n"
        "ld.shared.u32 y, [%r7];",
        {"a": A},
        {"y": np.bincount(A & 3, minlength=4)[A & 3].astype(np.uint32)},
        before=CELL,
    ),
    lanes(
        "inc wraps at its limit, dec at zero",
        "atom.global.inc.u32 %r5, [m], 4; atom.global.dec.u32 %r6, [m+4], 9; add.u32 %r7, %r5, %r6;\n"
        "red.global.add.u32 [m+8], %r7;",
        outputs={},
        memory={
            "m": (
                cells(0, 3, 0),
                # 32 steps: 0 1 2 3 4 0 ...; 3 2 1 0 9 8 ...
                cells(
                    32 % 5,
                    (3 - 32) % 10,
                    sum(k % 5 for k in range(32)) + sum((3 - k) % 10 for k in range(32)),
                ),
            )
        },
    ),
    lanes(
        "exchange hands the values around",
        "add.u32 %r5, %r0, 1; atom.global.exch.b32 %r6, [m], %r5; red.global.add.u32 [m+4], %r6;\n"
        "atom.global.exch.b32 %r7, [m], 0;\n"
        "red.global.add.u32 [m+4], %r7;",
        memory={"m": (cells(100, 0), cells(0, 100 + 32 * 33 // 2))},
    ),
    lanes(
        "compare and swap by hand multiplies",
        "rem.u32 %r4, %r0, 3; add.u32 %r4, %r4, 1;\nAGAIN: ld.volatile.global.u32 %r5, [m];\n"
        "mul.lo.u32 %r6, %r5, %r4;\n"
        "atom.global.cas.b32 %r7, [m], %r5, %r6; setp.ne.u32 %p1, %r7, %r5; @%p1 bra AGAIN;",
        memory={"m": (cells(1), cells(2**11 * 3**10 % 2**32))},
    ),
    lanes(
        "64-bit compare and swap happens once",
        "cvt.u64.u32 %d5, %r0; add.u64 %d5, %d5, 1000; atom.global.cas.b64 %d6, [m], 7, %d5;\n"
        "setp.eq.u64 %p1, %d6, 7;\n"
        "selp.u32 %r5, 1, 0, %p1; red.global.add.u32 [n], %r5; setp.ne.u64 %p2, %d6, 7; @%p2 bra LATE;\n"
        "atom.global.exch.b64 %d7, [m], 1;\n"
        "LATE: mov.u32 %r6, 0;",
        memory={"m": (cells(7, dtype=np.uint64), cells(1, dtype=np.uint64)), "n": (cells(0), cells(1))},
    ),
    lanes(
        "f32 and f64 sums of numbers that any order adds exactly",
        "cvt.rn.f32.u32 %f1, %r0; mul.f32 %f1, %f1, 0f3e800000; red.global.add.f32 [m], %f1;\n"
        "cvt.f64.f32 %g1, %f1;\n"
        "atom.global.add.f64 %g2, [n], %g1;",
        memory={
            "m": (zeros(1, np.float32), cells(124, dtype=np.float32)),
            "n": (zeros(1, np.float64), cells(124, dtype=np.float64)),
        },
    ),
    lanes(
        "packed f16 sums",
        "mov.b32 %r5, 0x3c003800; red.global.add.noftz.f16x2 [m], %r5; mov.b16 %h1, 0x4000;\n"
        "atom.global.add.noftz.f16 %h2, [m+4], %h1;",
        memory={
            "m": (
                zeros(2),
                cells(
                    int(pair(np.array([16], np.float16), np.array([32], np.float16))[0]),
                    int(np.array(64, np.float16).view(np.uint16)),
                ),
            )
        },
    ),
    lanes(
        "packed bf16 sums",
        "mov.b32 %r5, 0x3f804000; red.global.add.noftz.bf16x2 [m], %r5;\n"
        "atom.global.add.noftz.bf16x2 %r6, [m+4], %r5; mov.u32 %r7, 0;",
        memory={"m": (zeros(2), np.repeat(pair(bf16([64]), bf16([32])), 2))},
    ),
    lanes(
        "atomics on shared memory by a generic address",
        f"{CLEAR}mov.u64 %d5, cell; cvta.shared.u64 %d5, %d5; atom.add.u32 %r5, [%d5], a;\n"
        "red.max.u32 [%d5+4], a; bar.sync 0;\n"
        "ld.shared.u32 y, [cell]; ld.shared.u32 z, [cell+4];",
        {"a": A},
        {
            "y": np.full(32, fold(operator.add, A) & 0xFFFFFFFF, np.uint32),
            "z": np.full(32, A.max(), np.uint32),
        },
        before=CELL,
    ),
    lanes(
        "predicated atomics count the odd lanes",
        "and.b32 %r5, a, 1; setp.eq.u32 %p1, %r5, 1; mov.u32 %r6, 0;\n"
        "@%p1 atom.global.add.u32 %r6, [m], 1; @!%p1 red.global.add.u32 [m+4], 1;",
        {"a": A},
        memory={"m": (zeros(2), cells(int((A & 1).sum()), int(32 - (A & 1).sum())))},
    ),
    lanes(
        "a scope and an order change no value",
        "atom.relaxed.gpu.global.add.u32 %r5, [m], 2; atom.acq_rel.cta.global.or.b32 %r6, [m+4], 8;\n"
        "red.release.sys.global.add.u32 [m+8], 3;\n"
        "fence.acq_rel.gpu; membar.gl;",
        memory={"m": (zeros(3), cells(64, 8, 96))},
    ),
    lanes(
        "the last block to arrive is one",
        "bar.sync 0; setp.ne.u32 %p1, %r0, 0; @%p1 bra DONE; membar.gl; atom.global.inc.u32 %r5, [m], 3;\n"
        "setp.ne.u32 %p2, %r5, 3;\n"
        "@%p2 bra DONE; red.global.add.u32 [m+4], 1;\nDONE: mov.u32 y, 6;",
        outputs={"y": np.full(128, 6, np.uint32)},
        memory={"m": (zeros(2), cells(0, 1))},
        grid=4,
    ),
]
