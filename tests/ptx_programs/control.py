"""Branches, loops, predicated instructions, named registers, nested scopes; expected in Python."""

from __future__ import annotations

import numpy as np

from .program import each, lanes, signed, words

A, B = words(61), words(62)
T = np.arange(32, dtype=np.uint32)
T64 = np.arange(64, dtype=np.uint32)


def fibonacci(n: int) -> int:
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


def primes_below(n: int) -> int:
    return sum(all(k % d for d in range(2, k)) for k in range(2, n))


PROGRAMS = [
    lanes(
        "predicated instructions keep the other lanes' values",
        "mov.u32 y, 1; setp.lt.u32 %p1, t, 10; @%p1 mov.u32 y, 2; @!%p1 add.u32 y, y, t;\n"
        "setp.gt.u32 %p2, t, 20;\n"
        "@%p2 mul.lo.u32 y, y, 3;",
        {"t": T},
        {"y": each(lambda t: 2 if t < 10 else (t + 1) * (3 if t > 20 else 1), T)},
    ),
    lanes(
        "a predicated store and load touch no other lane's memory",
        "mov.u32 y, 7; setp.eq.u32 %p1, t, 3; mov.u64 %d5, 16; @%p1 mov.u64 %d5, m;\n"
        "@%p1 ld.global.u32 y, [%d5];\n"
        "@%p1 st.global.u32 [%d5+4], t;",
        {"t": T},
        {"y": np.where(T == 3, 99, 7).astype(np.uint32)},
        memory={"m": (np.array([99, 0], np.uint32), np.array([99, 3], np.uint32))},
    ),
    lanes(
        "a predicated division by zero in other lanes does no harm",
        "setp.ne.u32 %p1, t, 0; mov.u32 y, 5; @%p1 div.u32 y, a, t; @!%p1 not.b32 y, y;",
        {"a": A, "t": T % 4},
        {"y": each(lambda a, t: a // t if t else ~5, A, T % 4)},
    ),
    lanes(
        "predicates combined by logic",
        "setp.lt.s32 %p1, a, b; setp.gt.and.u32 %p2, a, b, %p1; setp.eq.or.u32 %p3|%p4, a, 0, %p2;\n"
        "xor.pred %p5, %p3, %p1;\n"
        "not.pred %p6, %p4; selp.u32 %r5, 1, 0, %p5; selp.u32 %r6, 2, 0, %p6; selp.u32 %r7, 4, 0, %p2;\n"
        "or.b32 y, %r5, %r6; or.b32 y, y, %r7;",
        {"a": A, "b": B},
        {
            "y": each(
                lambda a, b: (
                    ((a == 0 or (a > b and signed(a) < signed(b))) ^ (signed(a) < signed(b)))
                    | 2 * (not (a != 0 or (a > b and signed(a) < signed(b))))
                    | 4 * (a > b and signed(a) < signed(b))
                ),
                A,
                B,
            )
        },
    ),
    lanes(
        "slct chooses by sign",
        "slct.u32.s32 y, a, b, a; slct.s32.f32 %r5, a, b, %f1; mov.f32 %f2, 0fbf800000;\n"
        "slct.b32.f32 z, a, b, %f2;",
        {"a": A, "b": B},
        {"y": np.where(A.view(np.int32) >= 0, A, B), "z": B},
    ),
    lanes(
        "named registers and a name for each scope",
        "{ .reg .b32 sum; .reg .b32 term; mov.b32 sum, t; { .reg .b32 term; mul.lo.u32 term, t, 10;\n"
        "add.u32 sum, sum, term; }\n"
        "mov.b32 term, 1000; add.u32 y, sum, term; }\n{ .reg .b64 sum; cvt.u64.u32 sum, t;\n"
        "shl.b64 sum, sum, 33;\n"
        "mov.b64 z, sum; }",
        {"t": T},
        {"y": 11 * T + 1000, "z": T.astype(np.uint64) << np.uint64(33)},
    ),
    lanes(
        "labels of a nested scope are its own",
        "mov.u32 y, 0; mov.u32 %r5, t;\n{ LOOP: setp.eq.u32 %p1, %r5, 0; @%p1 bra OUT; add.u32 y, y, 2;\n"
        "sub.u32 %r5, %r5, 1; bra LOOP; OUT: }\n{ .reg .b32 k; mov.u32 k, 3;\nLOOP: add.u32 y, y, 100;\n"
        "sub.u32 k, k, 1;\n"
        "setp.ne.u32 %p1, k, 0; @%p1 bra LOOP; }",
        {"t": T},
        {"y": 2 * T + 300},
    ),
    lanes(
        "registers of ranges that overlap in name",
        ".reg .b32 %rr<4>; .reg .b64 %rd<12>;\nmov.u32 %rr1, 5; mov.u64 %rd11, 7; mov.u64 %rd1, 9;\n"
        "cvt.u32.u64 %rr2, %rd11; cvt.u32.u64 %rr3, %rd1; mad.lo.u32 y, %rr2, %rr3, %rr1; add.u32 y, y, t;",
        {"t": T},
        {"y": T + 68},
    ),
    lanes(
        "a loop of its own length in each lane",
        "mov.u32 y, 0; mov.u32 %r5, 1; mov.u32 %r6, 0;\nLOOP: setp.ge.u32 %p1, %r6, t; @%p1 bra DONE;\n"
        "add.u32 %r7, y, %r5;\n"
        "mov.u32 y, %r5; mov.u32 %r5, %r7; add.u32 %r6, %r6, 1; bra LOOP;\nDONE:",
        {"t": T},
        {"y": each(fibonacci, T)},
    ),
    lanes(
        "loops in loops count primes",
        "mov.u32 y, 0; mov.u32 %r5, 2;\nNEXT: setp.ge.u32 %p1, %r5, t; @%p1 bra DONE; mov.u32 %r6, 2;\n"
        "DIVIDE: setp.ge.u32 %p2, %r6, %r5; @%p2 bra PRIME; rem.u32 %r7, %r5, %r6;\n"
        "setp.eq.u32 %p3, %r7, 0;\n"
        "@%p3 bra COMPOSITE; add.u32 %r6, %r6, 1; bra DIVIDE;\nPRIME: add.u32 y, y, 1;\n"
        "COMPOSITE: add.u32 %r5, %r5, 1; bra NEXT;\nDONE:",
        {"t": T},
        {"y": each(primes_below, T)},
    ),
    lanes(
        "a branch table",
        "and.b32 %r5, t, 3;\nTABLE: .branchtargets ADD, SUB, MUL, NONE;\nbrx.idx %r5, TABLE;\n"
        "ADD: add.u32 y, a, t; bra JOIN;\nSUB: sub.u32 y, a, t; bra JOIN;\nMUL: mul.lo.u32 y, a, t;\n"
        "bra JOIN;\n"
        "NONE: mov.u32 y, a;\nJOIN: xor.b32 y, y, 1;",
        {"a": A, "t": T},
        {"y": each(lambda a, t: [a + t, a - t, a * t, a][t % 4] ^ 1, A, T)},
    ),
    lanes(
        "lanes exit early, others go on",
        "mov.u64 %d6, m; mad.wide.u32 %d6, t, 4, %d6; st.global.u32 [%d6], 1; setp.ge.u32 %p1, t, 12;\n"
        "@%p1 exit;\n"
        "st.global.u32 [%d6], 2; setp.ge.u32 %p2, t, 6; @%p2 ret; st.global.u32 [%d6], 3;",
        {"t": T},
        memory={"m": (np.zeros(32, np.uint32), np.repeat([3, 2, 1], [6, 6, 20]).astype(np.uint32))},
    ),
    lanes(
        "special registers of two blocks of 32 threads",
        "mov.u32 %r5, %ntid.x; mov.u32 %r6, %nctaid.x; mov.u32 %r7, %ctaid.x; mov.u32 %r8, %laneid;\n"
        "mov.u32 %r9, %warpid;\n"
        "mad.lo.u32 y, %r7, 1000, %r8; mad.lo.u32 y, %r6, 10000, y; mad.lo.u32 y, %r5, 100000, y;\n"
        "add.u32 y, y, %r9;",
        {},
        {"y": 3220000 + T64 // 32 * 1000 + T64 % 32},
        grid=2,
    ),
    lanes(
        "lane masks",
        "mov.u32 y, %lanemask_lt; mov.u32 z, %lanemask_ge; mov.u32 %r5, %lanemask_eq;\n"
        "mov.u32 %r6, %lanemask_le;\n"
        "add.u32 v, %r5, %r6; mov.u32 u, %lanemask_gt;",
        {},
        {
            "y": each(lambda t: (1 << t) - 1, T),
            "z": each(lambda t: -(1 << t), T),
            "v": each(lambda t: (1 << t) + (2 << t) - 1, T),
            "u": each(lambda t: -(2 << t), T),
        },
    ),
    lanes(
        "binary search in a table",
        "mov.u32 y, 0; mov.u32 %r5, 32;\nLOOP: shr.u32 %r6, %r5, 1; add.u32 %r7, y, %r6;\n"
        "mad.wide.u32 %d5, %r7, 4, m;\n"
        "ld.global.u32 %r8, [%d5]; setp.le.u32 %p1, %r8, a; @%p1 mov.u32 y, %r7; sub.u32 %r5, %r5, %r6;\n"
        "setp.gt.u32 %p2, %r5, 1; @%p2 bra LOOP;",
        {"a": T * 35},
        {"y": each(lambda a: max(k for k in range(32) if k * k <= a), T * 35)},
        memory={"m": (T * T, T * T)},
    ),
]
