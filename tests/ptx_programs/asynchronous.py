"""cp.async: data become visible at the wait, groups in order, bytes beyond the source size are zero.

Source of the expected values: PTX ISA, cp.async, cp.async.commit_group, cp.async.wait_group.
"""

from __future__ import annotations

import numpy as np

from .program import lanes, words

A = words(81)
T = np.arange(32, dtype=np.uint32)
FOUR = words(82, 128)
TILE = ".shared .align 16 .b8 tile[2048];\n"
PLACE = "mov.u32 %r40, tile; mad.lo.u32 %r41, %r0, 4, %r40; mad.wide.u32 %d10, %r0, 4, m;\n"
PLACE16 = "mov.u32 %r40, tile; mad.lo.u32 %r41, %r0, 16, %r40; mad.wide.u32 %d10, %r0, 16, m;\n"
COMMIT, WAIT = "cp.async.commit_group;", "cp.async.wait_group"


def kept(array: np.ndarray) -> dict:
    return {"m": (array, array)}


PROGRAMS = [
    lanes(
        "a word a thread, awaited by wait_all",
        f"{PLACE}cp.async.ca.shared.global [%r41], [%d10], 4; cp.async.wait_all; ld.shared.u32 y, [%r41];",
        outputs={"y": A},
        memory=kept(A),
        before=TILE,
    ),
    lanes(
        "sixteen bytes past L1, other threads' after a barrier",
        f"{PLACE16}cp.async.cg.shared.global [%r41], [%d10], 16; {COMMIT} {WAIT} 0; bar.sync 0;\n"
        "xor.b32 %r5, %r0, 31;\n"
        "mad.lo.u32 %r5, %r5, 16, %r40; ld.shared.v4.u32 {%r6, %r7, %r8, %r9}, [%r5];\n"
        "add.u32 y, %r6, %r9; add.u32 z, %r7, %r8;",
        outputs={
            "y": (FOUR[::4] + FOUR[3::4])[::-1].copy(),
            "z": (FOUR[1::4] + FOUR[2::4])[::-1].copy(),
        },
        memory=kept(FOUR),
        before=TILE,
    ),
    lanes(
        "a store before the copy is overwritten at the wait",
        f"{PLACE}st.shared.u32 [%r41], 5; cp.async.ca.shared.global [%r41], [%d10], 4; {COMMIT} {WAIT} 0;\n"
        "ld.shared.u32 y, [%r41];",
        outputs={"y": A},
        memory=kept(A),
        before=TILE,
    ),
    lanes(
        "the source is read when the copy is issued or before the wait ends",
        f"{PLACE}ld.global.u32 %r5, [%d10]; cp.async.ca.shared.global [%r41], [%d10], 4;\n"
        f"{COMMIT} {WAIT} 0;\n"
        "ld.shared.u32 %r6, [%r41]; sub.u32 y, %r6, %r5; st.global.u32 [%d10], 1; ld.shared.u32 z, [%r41];",
        outputs={"y": np.zeros(32, np.uint32), "z": A},
        memory={"m": (A, np.ones(32, np.uint32))},
        before=TILE,
    ),
    lanes(
        "zfill: bytes beyond the source size are zero",
        f"{PLACE16}and.b32 %r5, %r0, 3; shl.b32 %r5, %r5, 2;\n"
        "cp.async.cg.shared.global [%r41], [%d10], 16, %r5; cp.async.wait_all;\n"
        "ld.shared.u32 y, [%r41]; ld.shared.u32 z, [%r41+4]; ld.shared.u32 v, [%r41+12];",
        outputs={
            "y": np.where(T % 4 >= 1, FOUR[::4], 0).astype(np.uint32),
            "z": np.where(T % 4 >= 2, FOUR[1::4], 0).astype(np.uint32),
            "v": np.zeros(32, np.uint32),
        },
        memory=kept(FOUR),
        before=TILE,
    ),
    lanes(
        "zfill of four and eight bytes by a literal",
        f"{PLACE16}cp.async.ca.shared.global [%r41], [%d10], 4, 0;\n"
        "cp.async.ca.shared.global [%r41+8], [%d10+8], 8, 4;\n"
        "cp.async.wait_all; ld.shared.u32 y, [%r41]; ld.shared.u32 z, [%r41+8];\n"
        "ld.shared.u32 v, [%r41+12];",
        outputs={"y": np.zeros(32, np.uint32), "z": FOUR[2::4].copy(), "v": np.zeros(32, np.uint32)},
        memory=kept(FOUR),
        before=TILE,
    ),
    lanes(
        "the older of two groups has landed, the newer is awaited later",
        f"{PLACE16}cp.async.ca.shared.global [%r41], [%d10], 4;\n"
        f"{COMMIT} cp.async.ca.shared.global [%r41+4], [%d10+4], 4; {COMMIT}\n"
        f"{WAIT} 1; ld.shared.u32 y, [%r41]; {WAIT} 0; ld.shared.u32 z, [%r41+4];",
        outputs={"y": FOUR[::4].copy(), "z": FOUR[1::4].copy()},
        memory=kept(FOUR),
        before=TILE,
    ),
    lanes(
        "an empty group counts as one",
        f"{PLACE16}cp.async.ca.shared.global [%r41], [%d10], 4; {COMMIT} {COMMIT} {WAIT} 1;\n"
        "ld.shared.u32 y, [%r41];",
        outputs={"y": FOUR[::4].copy()},
        memory=kept(FOUR),
        before=TILE,
    ),
    lanes(
        "a pipeline of two stages sums a column",
        "mov.u32 %r40, tile; mad.lo.u32 %r41, %r0, 4, %r40; mad.wide.u32 %d10, %r0, 4, m; mov.u32 y, 0;\n"
        "mov.u32 %r5, 0;\n"
        f"cp.async.ca.shared.global [%r41], [%d10], 4; {COMMIT}\n"
        "LOOP: add.u32 %r6, %r5, 1; setp.ge.u32 %p1, %r6, 4; @%p1 bra LAST; and.b32 %r7, %r6, 1;\n"
        "mad.lo.u32 %r8, %r7, 128, %r41;\n"
        f"add.u64 %d10, %d10, 128; cp.async.ca.shared.global [%r8], [%d10], 4;\nLAST: {COMMIT} {WAIT} 1;\n"
        "and.b32 %r7, %r5, 1; mad.lo.u32 %r8, %r7, 128, %r41; ld.shared.u32 %r9, [%r8];\n"
        "add.u32 y, y, %r9;\n"
        "add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 4; @%p2 bra LOOP;",
        outputs={"y": FOUR.reshape(4, 32).sum(0, dtype=np.uint32)},
        memory=kept(FOUR),
        before=TILE,
    ),
    lanes(
        "a predicated copy leaves the other lanes' words",
        f"{PLACE}st.shared.u32 [%r41], 77; setp.lt.u32 %p1, %r0, 9;\n"
        "@%p1 cp.async.ca.shared.global [%r41], [%d10], 4; cp.async.wait_all;\n"
        "ld.shared.u32 y, [%r41];",
        outputs={"y": np.where(T < 9, A, 77).astype(np.uint32)},
        memory=kept(A),
        before=TILE,
    ),
]
