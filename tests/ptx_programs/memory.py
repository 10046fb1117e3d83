"""State spaces: .global, .shared, .const, .local, generic addresses, vectors, narrow types."""

from __future__ import annotations

import numpy as np

from .program import each, lanes, words

A, B = words(71), words(72)
L = words(73, dtype="u8")
T = np.arange(32, dtype=np.uint32)
T64 = np.arange(64, dtype=np.uint32)
F = (np.arange(32) / 4).astype(np.float32)
TILE = ".shared .align 16 .b8 tile[512];\n"
OWN = "mov.u32 %r40, tile; mad.lo.u32 %r41, %r0, 4, %r40;\n"  # this thread's word of the tile

PROGRAMS = [
    lanes(
        "a tile in shared memory reversed",
        f"{OWN}st.shared.u32 [%r41], a; bar.sync 0; sub.u32 %r5, 63, %r0; mad.lo.u32 %r6, %r5, 4, %r40;\n"
        "ld.shared.u32 y, [%r6];",
        {"a": T64 * 7},
        {"y": (T64 * 7)[::-1].copy()},
        before=TILE,
    ),
    lanes(
        "a sum over a block by halving",
        f"{OWN}st.shared.u32 [%r41], a; mov.u32 %r5, 32;\nLOOP: bar.sync 0; setp.ge.u32 %p1, %r0, %r5;\n"
        "@%p1 bra SKIP;\n"
        "mad.lo.u32 %r6, %r5, 4, %r41; ld.shared.u32 %r7, [%r6]; ld.shared.u32 %r8, [%r41];\n"
        "add.u32 %r8, %r8, %r7;\n"
        "st.shared.u32 [%r41], %r8;\nSKIP: shr.u32 %r5, %r5, 1; setp.ne.u32 %p2, %r5, 0; @%p2 bra LOOP;\n"
        "bar.sync 0; ld.shared.u32 y, [tile];",
        {"a": T64},
        {"y": np.full(64, 2016, np.uint32)},
        before=TILE,
    ),
    lanes(
        "an array in local memory indexed by a register",
        ".local .align 4 .b8 array[32];\nmov.u64 %d5, array; mov.u32 %r5, 0;\n"
        "FILL: mad.wide.u32 %d6, %r5, 4, %d5; mad.lo.u32 %r6, %r5, 100, t; st.local.u32 [%d6], %r6;\n"
        "add.u32 %r5, %r5, 1;\n"
        "setp.lt.u32 %p1, %r5, 8; @%p1 bra FILL;\nand.b32 %r7, t, 7; mad.wide.u32 %d6, %r7, 4, %d5;\n"
        "ld.local.u32 y, [%d6];\n"
        "ld.local.u32 z, [array+12];",
        {"t": T},
        {"y": T % 8 * 100 + T, "z": T + 300},
    ),
    lanes(
        "local memory through a generic address",
        ".local .align 8 .b8 cell[16];\nmov.u64 %d5, cell; cvta.local.u64 %d6, %d5; st.u32 [%d6+4], t;\n"
        "ld.local.u32 %r5, [cell+4];\n"
        "isspacep.local %p1, %d6; isspacep.global %p2, %d6; selp.u32 %r6, 100, 0, %p1;\n"
        "selp.u32 %r7, 1000, 0, %p2;\n"
        "add.u32 y, %r5, %r6; add.u32 y, y, %r7;",
        {"t": T},
        {"y": T + 100},
    ),
    lanes(
        "a table in constant memory",
        "and.b32 %r5, t, 3; mov.u64 %d5, table; mad.wide.u32 %d6, %r5, 4, %d5; ld.const.u32 y, [%d6];\n"
        "ld.const.u32 %r6, [table+8];\n"
        "cvta.const.u64 %d7, %d6; ld.u32 %r7, [%d7]; add.u32 z, %r6, %r7;",
        {"t": T},
        {"y": each(lambda t: [2, 3, 5, 7][t % 4], T), "z": each(lambda t: 5 + [2, 3, 5, 7][t % 4], T)},
        before=".const .align 4 .u32 table[4] = {2, 3, 5, 7};\n",
    ),
    lanes(
        "constant vectors and bytes",
        "ld.const.v2.u32 {%r5, %r6}, [pair]; ld.const.u8 %h1, [letters+1]; cvt.u32.u16 %r7, %h1;\n"
        "mad.lo.u32 y, t, %r5, %r6;\n"
        "add.u32 y, y, %r7;",
        {"t": T},
        {"y": 11 * T + 13 + 98},
        before=".const .align 8 .u32 pair[2] = {11, 13};\n.const .align 1 .b8 letters[3] = {97, 98, 99};\n",
    ),
    lanes(
        "a module's global variable is read and written",
        "ld.global.u32 %r5, [start]; add.u32 y, %r5, t; setp.eq.u32 %p1, t, 0;\n"
        "@%p1 st.global.u32 [result+4], y;\n"
        "bar.warp.sync 0xffffffff; ld.global.u32 z, [result+4];",
        {"t": T},
        {"y": T + 40, "z": np.full(32, 40, np.uint32)},
        before=".global .align 4 .u32 start = 40;\n.global .align 4 .u32 result[2];\n",
    ),
    lanes(
        "a global pointer to another global",
        "ld.global.u64 %d5, [link]; ld.u32 %r5, [%d5]; ld.global.u32 %r6, [numbers+8];\n"
        "mad.lo.u32 y, %r5, t, %r6;",
        {"t": T},
        {"y": 20 * T + 30},
        before=".global .align 4 .u32 numbers[3] = {10, 20, 30};\n"
        ".global .align 8 .u64 link = generic(numbers)+4;\n",
    ),
    lanes(
        "generic addresses of three spaces in one load",
        ".local .align 4 .b8 mine[4];\nst.local.u32 [mine], 111; st.shared.u32 [tile], 222;\n"
        "bar.warp.sync 0xffffffff;\n"
        "mov.u64 %d5, mine; cvta.local.u64 %d5, %d5; mov.u64 %d6, tile; cvta.shared.u64 %d6, %d6;\n"
        "cvta.to.global.u64 %d7, m;\n"
        "rem.u32 %r5, t, 3; setp.eq.u32 %p1, %r5, 0; setp.eq.u32 %p2, %r5, 1;\n"
        "selp.b64 %d8, %d5, %d6, %p1; selp.b64 %d8, m, %d8, %p2;\n"
        "ld.u32 y, [%d8];",
        {"t": T},
        {"y": each(lambda t: [111, 333, 222][t % 3], T)},
        memory={"m": (np.array([333], np.uint32), np.array([333], np.uint32))},
        before=TILE,
    ),
    lanes(
        "shared memory by a generic address and back",
        f"{OWN}mov.u64 %d5, tile; cvta.shared.u64 %d6, %d5; mad.wide.u32 %d7, %r0, 4, %d6;\n"
        "st.u32 [%d7], a; bar.sync 0;\n"
        "cvta.to.shared.u64 %d8, %d7; ld.shared.u32 y, [%d8]; isspacep.shared %p1, %d7;\n"
        "selp.u32 z, 1, 0, %p1;",
        {"a": A},
        {"y": A, "z": np.ones(32, np.uint32)},
        before=TILE,
    ),
    lanes(
        "vectors of four words swap ends",
        "mad.wide.u32 %d5, t, 16, m; ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%d5];\n"
        "st.global.v4.u32 [%d5], {%r8, %r7, %r6, %r5};",
        {"t": T},
        memory={
            "m": (
                np.arange(128, dtype=np.uint32),
                np.arange(128, dtype=np.uint32).reshape(32, 4)[:, ::-1].copy().ravel(),
            )
        },
    ),
    lanes(
        "vectors of two doubles and of four bytes",
        "mad.wide.u32 %d5, t, 16, m; ld.global.v2.f64 {%g1, %g2}, [%d5]; add.f64 y, %g1, %g2;\n"
        "ld.global.v4.u8 {%h1, %h2, %h3, %h4}, [%d5+4]; cvt.u32.u16 %r5, %h4; cvt.u32.u16 %r6, %h3;\n"
        "mad.lo.u32 z, %r5, 256, %r6;",
        {"t": T},
        {
            "y": np.arange(32) * 4.0 + 1,
            "z": (np.arange(0, 64, 2, dtype=np.float64).view(np.uint64) >> np.uint64(48)).astype(np.uint32),
        },
        memory={"m": (np.arange(64, dtype=np.float64), np.arange(64, dtype=np.float64))},
    ),
    lanes(
        "narrow loads extend by their sign",
        "mad.wide.u32 %d5, t, 4, m; ld.global.s8 y, [%d5+3]; ld.global.u8 z, [%d5+3];\n"
        "ld.global.s16 v, [%d5]; ld.global.u16 u, [%d5];",
        {"t": T},
        {
            "y": (A.view(np.int32) >> 24),
            "z": A >> 24,
            "v": (A & 0xFFFF).astype(np.uint16).view(np.int16).astype(np.int32),
            "u": A & np.uint32(0xFFFF),
        },
        memory={"m": (A, A)},
    ),
    lanes(
        "narrow stores leave their neighbours",
        "mad.wide.u32 %d5, t, 4, m; st.global.u8 [%d5+1], t; mov.u32 %r5, 0xabcd;\n"
        "st.global.u16 [%d5+2], %r5; ld.global.u32 y, [%d5];",
        {"t": T},
        {"y": (A & np.uint32(0xFF)) | T << 8 | np.uint32(0xABCD0000)},
        memory={"m": (A, (A & np.uint32(0xFF)) | T << 8 | np.uint32(0xABCD0000))},
    ),
    lanes(
        "a transpose through a padded tile",
        "shr.u32 %r5, %r0, 3; and.b32 %r6, %r0, 7; mad.lo.u32 %r7, %r5, 9, %r6;\n"
        "mad.lo.u32 %r8, %r6, 9, %r5;\n"
        "mov.u32 %r9, tile; mad.lo.u32 %r7, %r7, 4, %r9; mad.lo.u32 %r8, %r8, 4, %r9;\n"
        "st.shared.u32 [%r7], a; bar.sync 0;\n"
        "ld.shared.u32 y, [%r8];",
        {"a": T64},
        {"y": T64.reshape(8, 8).T.copy().ravel()},
        before=TILE,
    ),
    lanes(
        "an absolute sum through volatile and cached accesses",
        f"{OWN}st.volatile.shared.f32 [%r41], a; bar.sync 0; ld.volatile.shared.f32 %f1, [%r41];\n"
        "ld.global.nc.f32 %f2, [m];\n"
        "ld.global.ca.f32 %f3, [m+4]; fma.rn.f32 y, %f1, %f2, %f3;",
        {"a": F},
        {"y": F * 2 + 3},
        memory={"m": (np.array([2, 3], np.float32), np.array([2, 3], np.float32))},
        before=TILE,
    ),
]
