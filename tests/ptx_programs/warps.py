"""Warp-wide instructions: shfl, vote, match, redux, activemask, elect, bar.warp.sync, bar.red."""

from __future__ import annotations

import numpy as np

from .program import each, lanes, signed, words

A = words(101)
T = np.arange(32, dtype=np.uint32)
T64 = np.arange(64, dtype=np.uint32)
FULL = "0xffffffff"
F = (np.arange(32) / 2).astype(np.float32)
ODD = np.uint32(0xAAAAAAAA)


def every(value: int, count: int = 32) -> np.ndarray:
    return np.full(count, value & 0xFFFFFFFF, np.uint32)


def bitset(condition: np.ndarray) -> int:
    return sum(1 << k for k in np.flatnonzero(condition).tolist())


PROGRAMS = [
    lanes(
        "a sum over the warp by butterflies",
        "mov.u32 y, a;\n"
        + "\n".join(
            f"shfl.sync.bfly.b32 %r5, y, {d}, 31, {FULL}; add.u32 y, y, %r5;" for d in (16, 8, 4, 2, 1)
        ),
        {"a": A},
        {"y": every(int(A.sum(dtype=np.uint64)))},
    ),
    lanes(
        "a maximum of f32 over halves of the warp",
        "mov.f32 y, a;\n"
        + "\n".join(
            f"mov.b32 %r5, y; shfl.sync.down.b32 %r6, %r5, {d}, 0x101f, {FULL}; mov.b32 %f1, %r6;\n"
            "max.f32 y, y, %f1;"
            for d in (8, 4, 2, 1)
        )
        + f"\nand.b32 %r7, %r0, 16; mov.b32 %r8, y; shfl.sync.idx.b32 %r9, %r8, %r7, 31, {FULL};\n"
        "mov.b32 y, %r9;",
        {"a": F},
        {"y": np.repeat([7.5, 15.5], 16).astype(np.float32)},
    ),
    lanes(
        "an inclusive scan",
        "mov.u32 y, a;\n"
        + "\n".join(
            f"shfl.sync.up.b32 %r5|%p1, y, {d}, 0, {FULL};\n@%p1 add.u32 y, y, %r5;" for d in (1, 2, 4, 8, 16)
        ),
        {"a": A},
        {"y": np.cumsum(A, dtype=np.uint32)},
    ),
    lanes(
        "a gather by a lane number in a register",
        f"and.b32 %r5, a, 31; shfl.sync.idx.b32 y, %r0, %r5, 31, {FULL};\n"
        f"shfl.sync.idx.b32 z, a, y, 31, {FULL}; sub.u32 z, z, y;",
        {"a": A},
        {"y": A & np.uint32(31), "z": A[A & 31] - (A & np.uint32(31))},
    ),
    lanes(
        "a 64-bit exchange in two words",
        f"mov.b64 {{%r5, %r6}}, a; shfl.sync.bfly.b32 %r5, %r5, 1, 31, {FULL};\n"
        f"shfl.sync.bfly.b32 %r6, %r6, 1, 31, {FULL};\n"
        "mov.b64 y, {%r5, %r6};",
        {"a": words(102, dtype="u8")},
        {"y": words(102, dtype="u8").reshape(16, 2)[:, ::-1].copy().ravel()},
    ),
    lanes(
        "half of the lanes shuffle among themselves",
        "setp.ge.u32 %p1, %r0, 16; mov.u32 y, 0;\n"
        "@%p1 bra HIGH;\nshfl.sync.bfly.b32 y, a, 15, 31, 0x0000ffff; bra JOIN;\n"
        "HIGH: shfl.sync.bfly.b32 y, a, 3, 31, 0xffff0000;\nJOIN: add.u32 y, y, 1;",
        {"a": T},
        {"y": np.where(T < 16, T ^ 15, T ^ 3).astype(np.uint32) + np.uint32(1)},
    ),
    lanes(
        "ballot, and the rank of a lane among those",
        f"and.b32 %r5, a, 1; setp.eq.u32 %p1, %r5, 1; vote.sync.ballot.b32 y, %p1, {FULL};\n"
        "mov.u32 %r6, %lanemask_lt;\n"
        "and.b32 %r7, y, %r6; popc.b32 z, %r7;",
        {"a": A},
        {
            "y": every(bitset(A & 1)),
            "z": each(lambda t: (bitset(A & 1) & ((1 << t) - 1)).bit_count(), T),
        },
    ),
    lanes(
        "any, all and uni of several conditions",
        "setp.eq.u32 %p1, %r0, 30; setp.lt.u32 %p2, %r0, 32;\n"
        f"setp.ge.u32 %p3, %r0, 99;\nvote.sync.any.pred %p4, %p1, {FULL};\n"
        f"vote.sync.all.pred %p5, %p1, {FULL}; vote.sync.all.pred %p6, %p2, {FULL};\n"
        f"vote.sync.uni.pred %p7, %p3, {FULL};\n"
        f"vote.sync.uni.pred %p8, !%p1, {FULL}; selp.u32 %r5, 1, 0, %p4; selp.u32 %r6, 2, 0, %p5;\n"
        "selp.u32 %r7, 4, 0, %p6;\n"
        "selp.u32 %r8, 8, 0, %p7; selp.u32 %r9, 16, 0, %p8; add.u32 y, %r5, %r6; add.u32 y, y, %r7;\n"
        "add.u32 y, y, %r8; add.u32 y, y, %r9;",
        outputs={"y": every(1 + 4 + 8)},
    ),
    lanes(
        "votes of a part of the warp",
        "and.b32 %r5, %r0, 1; setp.eq.u32 %p1, %r5, 0; mov.u32 y, 0;\n"
        "@%p1 bra EVEN;\nsetp.gt.u32 %p2, %r0, 15;\n"
        "vote.sync.ballot.b32 y, %p2, 0xaaaaaaaa; vote.sync.any.pred %p3, %p1, 0xaaaaaaaa;\n"
        "@%p3 mov.u32 y, 9;\n"
        "EVEN: add.u32 y, y, 1;",
        outputs={"y": np.where(T % 2 == 1, 0xAAAA0000, 0).astype(np.uint32) + np.uint32(1)},
    ),
    lanes(
        "match.any finds lanes with the same value",
        f"rem.u32 %r5, a, 5; match.any.sync.b32 y, %r5, {FULL}; popc.b32 z, y; brev.b32 %r6, y;\n"
        "clz.b32 v, %r6;",
        {"a": A},
        {
            "y": each(lambda a: bitset(a % 5 == A % 5), A),
            "z": each(lambda a: int((a % 5 == A % 5).sum()), A),
            "v": each(lambda a: int(np.flatnonzero(a % 5 == A % 5)[0]), A),
        },
    ),
    lanes(
        "match.all of equal and of different values, and of 64 bits",
        f"mov.u32 %r5, 12; match.all.sync.b32 %r6|%p1, %r5, {FULL};\n"
        f"match.all.sync.b32 %r7|%p2, %r0, {FULL}; shr.u32 %r8, %r0, 4;\n"
        f"cvt.u64.u32 %d5, %r8; shl.b64 %d5, %d5, 40; match.any.sync.b64 z, %d5, {FULL};\n"
        "selp.u32 %r9, 1, 0, %p1;\n"
        "selp.u32 %r10, 2, 0, %p2; add.u32 y, %r9, %r10; add.u32 y, y, %r7; xor.b32 v, %r6, z;",
        outputs={
            "y": every(1),
            "z": np.where(T < 16, 0xFFFF, 0xFFFF0000).astype(np.uint32),
            "v": np.where(T < 16, 0xFFFF0000, 0xFFFF).astype(np.uint32),
        },
    ),
    lanes(
        "redux of sums, extremes and bits",
        f"redux.sync.add.u32 y, a, {FULL}; redux.sync.min.s32 z, a, {FULL};\n"
        f"redux.sync.max.u32 v, a, {FULL};\n"
        f"redux.sync.and.b32 %r5, a, {FULL}; redux.sync.or.b32 %r6, a, {FULL};\n"
        f"redux.sync.xor.b32 %r7, a, {FULL};\n"
        "sub.u32 %r6, %r6, %r5; add.u32 u, %r6, %r7;",
        {"a": A},
        {
            "y": every(int(A.sum(dtype=np.uint64))),
            "z": every(min(signed(int(v)) for v in A)),
            "v": every(int(A.max())),
            "u": every(
                int(np.bitwise_or.reduce(A)) - int(np.bitwise_and.reduce(A)) + int(np.bitwise_xor.reduce(A))
            ),
        },
    ),
    lanes(
        "redux of a part of the warp",
        "and.b32 %r5, %r0, 7; setp.eq.u32 %p1, %r5, 7; mov.u32 y, 3;\n"
        "@!%p1 bra REST;\nredux.sync.add.u32 y, %r0, 0x80808080;\nREST: add.u32 y, y, 1;",
        outputs={"y": np.where(T % 8 == 7, 7 + 15 + 23 + 31, 3).astype(np.uint32) + np.uint32(1)},
    ),
    lanes(
        "activemask of lanes that have not exited",
        "setp.ge.u32 %p1, %r0, 20; mov.u64 %d5, m; mad.wide.u32 %d5, %r0, 4, %d5; @%p1 exit;\n"
        "activemask.b32 %r5; st.global.u32 [%d5], %r5;",
        memory={"m": (np.zeros(32, np.uint32), np.where(T < 20, 0xFFFFF, 0).astype(np.uint32))},
    ),
    lanes(
        "the elected lane adds for its warp",
        f"redux.sync.add.u32 %r5, %r2, {FULL}; elect.sync %r6|%p1, {FULL};\n"
        "@%p1 red.global.add.u32 [m], %r5; add.u32 y, %r6, 4;",
        outputs={"y": every(4, 64)},
        memory={"m": (np.zeros(1, np.uint32), np.array([2016], np.uint32))},
    ),
    lanes(
        "bar.warp.sync orders stores of a warp",
        "mov.u32 %r40, tile; mad.lo.u32 %r41, %r0, 4, %r40; st.shared.u32 [%r41], a;\n"
        f"bar.warp.sync {FULL}; xor.b32 %r5, %r0, 1;\n"
        f"mad.lo.u32 %r6, %r5, 4, %r40; ld.shared.u32 y, [%r6]; bar.warp.sync {FULL};\n"
        "st.shared.u32 [%r41], y;",
        {"a": A},
        {"y": A.reshape(16, 2)[:, ::-1].copy().ravel()},
        before=".shared .align 4 .b8 tile[128];\n",
    ),
    lanes(
        "bar.warp.sync of the lanes of one branch",
        "setp.lt.u32 %p1, %r0, 8; mov.u32 %r40, tile; mad.lo.u32 %r41, %r0, 4, %r40; mov.u32 y, 0;\n"
        "@!%p1 bra REST;\n"
        "st.shared.u32 [%r41], %r0; bar.warp.sync 0xff; xor.b32 %r5, %r0, 7;\n"
        "mad.lo.u32 %r6, %r5, 4, %r40; ld.shared.u32 y, [%r6];\nREST: add.u32 y, y, 10;",
        outputs={"y": np.where(T < 8, T ^ 7, 0).astype(np.uint32) + np.uint32(10)},
        before=".shared .align 4 .b8 tile[128];\n",
    ),
    lanes(
        "bar.red counts and combines over the block",
        "and.b32 %r5, %r0, 3; setp.eq.u32 %p1, %r5, 0; bar.red.popc.u32 y, 0, %p1;\n"
        "setp.lt.u32 %p2, %r0, 64; bar.red.and.pred %p3, 0, %p2;\n"
        "setp.eq.u32 %p4, %r0, 70; bar.red.or.pred %p5, 0, %p4; selp.u32 %r6, 1, 0, %p3;\n"
        "selp.u32 %r7, 2, 0, %p5; add.u32 z, %r6, %r7;",
        outputs={"y": every(16, 64), "z": every(1, 64)},
    ),
    lanes(
        "named barriers hand a value from one warp to the other",
        "setp.ge.u32 %p1, %r0, 32; @%p1 bra CONSUMER;\nmov.u32 %r40, tile; mad.lo.u32 %r41, %r0, 4, %r40;\n"
        "mul.lo.u32 %r5, %r0, 3; st.shared.u32 [%r41], %r5;\n"
        "bar.arrive 1, 64; mov.u32 y, 1; bra DONE;\nCONSUMER: bar.sync 1, 64; mov.u32 %r40, tile;\n"
        "mad.lo.u32 %r41, %r0, 4, %r40;\n"
        "ld.shared.u32 y, [%r41+-128];\nDONE: add.u32 y, y, 1;",
        outputs={"y": np.where(T64 < 32, 1, (T64 - 32) * 3).astype(np.uint32) + np.uint32(1)},
        before=".shared .align 4 .b8 tile[128];\n",
    ),
]
