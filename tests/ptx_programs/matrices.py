"""ldmatrix, stmatrix, movmatrix and mma.sync; fragments by the PTX ISA's figures, products by NumPy in f64.

Elements are small integers and halves, so every sum is exact whatever its order.
"""

from __future__ import annotations

import numpy as np

from .program import Program, bf16, lanes, pair

T = np.arange(32)
G, Q = T >> 2, T % 4  # groupID and threadID_in_group of the ISA's figures
NUMBERS = np.arange(256, dtype=np.uint16)  # of four 8 by 8 matrices, row after row
TILE = ".shared .align 16 .b8 tile[1024];\n"
# the 512 bytes at m into the tile, and %r42: the address of row %r0 of its 32 rows
FILL = (
    "mov.u32 %r40, tile; mad.lo.u32 %r42, %r0, 16, %r40; mad.wide.u32 %d10, %r0, 16, m;\n"
    "ld.global.v4.u32 {%r44, %r45, %r46, %r47}, [%d10];\n"
    "st.shared.v4.u32 [%r42], {%r44, %r45, %r46, %r47}; bar.warp.sync 0xffffffff;\n"
)
RNG = np.random.default_rng(111)


def row_pair(matrix: int) -> np.ndarray:
    """What lane k gets of a matrix of NUMBERS: the elements 2 (k % 4) and the next of row k / 4."""
    first = 64 * matrix + 8 * G + 2 * Q
    return pair(first.astype(np.uint16), (first + 1).astype(np.uint16))


def column_pair(matrix: int) -> np.ndarray:
    """The same of the transposed matrix."""
    first = 64 * matrix + 8 * (2 * Q) + G
    return pair(first.astype(np.uint16), (first + 8).astype(np.uint16))


def numbers() -> dict:
    return {"m": (NUMBERS, NUMBERS)}


def encode(kind: str, matrix: np.ndarray) -> np.ndarray:
    return matrix.astype(np.float16).view(np.uint16) if kind == "f16" else bf16(matrix)


def fragments_a(bits: np.ndarray) -> list[np.ndarray]:
    """Registers of a 16 by k matrix: rows G and G + 8 of columns 2Q.., then of columns 2Q + 8.."""
    registers = []
    for column in range(0, bits.shape[1], 8):
        for row in (0, 8):
            registers.append(pair(bits[G + row, column + 2 * Q], bits[G + row, column + 2 * Q + 1]))
    return registers


def fragments_b(bits: np.ndarray) -> list[np.ndarray]:
    """Registers of a k by 8 matrix: rows 2Q and 2Q + 1 of column G, then 8 rows further."""
    return [pair(bits[row + 2 * Q, G], bits[row + 2 * Q + 1, G]) for row in range(0, bits.shape[0], 8)]


def product(k: int, kind: str, result: str) -> Program:
    """D = A B + C of one warp, fragments loaded from inputs; then each element of D times two."""
    a = RNG.integers(-8, 9, (16, k)) / 2
    b = RNG.integers(-8, 9, (k, 8)) / 2
    c = RNG.integers(-8, 9, (16, 8)).astype(float)
    d = a @ b + c
    inputs = {f"a{n}": r for n, r in enumerate(fragments_a(encode(kind, a)))}
    inputs |= {f"b{n}": r for n, r in enumerate(fragments_b(encode(kind, b)))}
    places = [(G + 8 * (n // 2), 2 * Q + n % 2) for n in range(4)]
    lists = ", ".join(f"a{n}" for n in range(k // 4)), ", ".join(f"b{n}" for n in range(k // 8))
    if result == "f32":
        inputs |= {f"c{n}": c[p].astype(np.float32) for n, p in enumerate(places)}
        outputs = {f"d{n}": (2 * d[p]).astype(np.float32) for n, p in enumerate(places)}
        sums, targets = "c0, c1, c2, c3", "d0, d1, d2, d3"
        after = " ".join(f"add.f32 d{n}, d{n}, d{n};" for n in range(4))
    else:
        halves = [x.astype(np.float16) for x in (c, 2 * d)]
        made = [[pair(x[places[n]], x[places[n + 1]]) for n in (0, 2)] for x in halves]
        inputs |= {f"c{n}": r for n, r in enumerate(made[0])}
        outputs = {f"d{n}": r for n, r in enumerate(made[1])}
        sums, targets = "c0, c1", "d0, d1"
        after = "add.f16x2 d0, d0, d0; add.f16x2 d1, d1, d1;"
    name = f"mma.sync.aligned.m16n8k{k}.row.col.{result}.{kind}.{kind}.{result}"
    body = f"{name} {{{targets}}}, {{{lists[0]}}}, {{{lists[1]}}}, {{{sums}}};\n{after}"
    return lanes(f"product of {kind} with k = {k} in {result}", body, inputs, outputs)


def chained() -> Program:
    """A product with k = 16 as two with k = 8 into the same sums."""
    a, b = RNG.integers(-8, 9, (16, 16)) / 2, RNG.integers(-8, 9, (16, 8)) / 2
    inputs = {f"a{n}": r for n, r in enumerate(fragments_a(encode("f16", a)))}
    inputs |= {f"b{n}": r for n, r in enumerate(fragments_b(encode("f16", b)))}
    outputs = {f"d{n}": (a @ b)[G + 8 * (n // 2), 2 * Q + n % 2].astype(np.float32) for n in range(4)}
    half = "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {d0, d1, d2, d3}"
    body = " ".join(f"mov.f32 d{n}, 0f00000000;" for n in range(4))
    body += (
        f"\n{half}, {{a0, a1}}, {{b0}}, {{d0, d1, d2, d3}};\n{half}, {{a2, a3}}, {{b1}}, {{d0, d1, d2, d3}};"
    )
    return lanes("a product in two halves of k", body, inputs, outputs)


def from_shared() -> Program:
    """A by ldmatrix.x4, B (stored row after row) by ldmatrix.x2.trans, and their product."""
    a, b = RNG.integers(-8, 9, (16, 16)) / 2, RNG.integers(-8, 9, (16, 8)) / 2
    stored = np.concatenate([encode("f16", a).ravel(), encode("f16", b).ravel()])
    body = (
        "mov.u32 %r40, tile; mov.u32 %r5, 0;\nCOPY: mad.lo.u32 %r6, %r0, 4, %r5;\n"
        "mad.wide.u32 %d10, %r6, 1, m; ld.global.u32 %r7, [%d10];\n"
        "add.u32 %r8, %r40, %r6; st.shared.u32 [%r8], %r7; add.u32 %r5, %r5, 128;\n"
        "setp.lt.u32 %p1, %r5, 768; @%p1 bra COPY;\n"
        "bar.warp.sync 0xffffffff; and.b32 %r9, %r0, 15; mad.lo.u32 %r10, %r9, 32, %r40;\n"
        "and.b32 %r11, %r0, 16; add.u32 %r10, %r10, %r11;\n"
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r20, %r21, %r22, %r23}, [%r10];\n"
        "mad.lo.u32 %r12, %r9, 16, %r40;\n"
        "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r24, %r25}, [%r12+512];\n"
        "mov.f32 %f1, 0f00000000;\n"
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {d0, d1, d2, d3}, "
        "{%r20, %r21, %r22, %r23}, {%r24, %r25}, {%f1, %f1, %f1, %f1};"
    )
    outputs = {f"d{n}": (a @ b)[G + 8 * (n // 2), 2 * Q + n % 2].astype(np.float32) for n in range(4)}
    return lanes(
        "a product of matrices in shared memory",
        body,
        {},
        outputs,
        memory={"m": (stored, stored)},
        before=TILE,
    )


PROGRAMS = [
    lanes(
        "ldmatrix of one matrix and of its transpose",
        f"{FILL}and.b32 %r5, %r0, 7; mad.lo.u32 %r6, %r5, 16, %r40;\n"
        f"ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{y}}, [%r6];\n"
        "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {z}, [%r6+128];",
        outputs={"y": row_pair(0), "z": column_pair(1)},
        memory=numbers(),
        before=TILE,
    ),
    lanes(
        "ldmatrix of two matrices and of four",
        f"{FILL}and.b32 %r5, %r0, 15; mad.lo.u32 %r6, %r5, 16, %r40;\n"
        f"ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{y, z}}, [%r6];\n"
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {a, b, c, d}, [%r42];",
        outputs={
            **{"y": row_pair(0), "z": row_pair(1)},
            **{name: row_pair(k) for k, name in enumerate("abcd")},
        },
        memory=numbers(),
        before=TILE,
    ),
    lanes(
        "ldmatrix of four transposed matrices",
        f"{FILL}ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{a, b, c, d}}, [%r42]; xor.b32 y, a, d;",
        outputs={
            **{name: column_pair(k) for k, name in enumerate("abcd")},
            "y": column_pair(0) ^ column_pair(3),
        },
        memory=numbers(),
        before=TILE,
    ),
    lanes(
        "ldmatrix takes rows in any order",
        f"{FILL}and.b32 %r5, %r0, 7; sub.u32 %r5, 7, %r5; mad.lo.u32 %r6, %r5, 16, %r40;\n"
        f"ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{y}}, [%r6];",
        outputs={"y": row_pair(0).reshape(8, 4)[::-1].copy().ravel()},
        memory=numbers(),
        before=TILE,
    ),
    lanes(
        "stmatrix writes what ldmatrix transposed",
        f"{FILL}and.b32 %r5, %r0, 7; mad.lo.u32 %r6, %r5, 16, %r40;\n"
        f"ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {{%r7}}, [%r6];\n"
        "stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%r6+512], {%r7}; bar.warp.sync 0xffffffff;\n"
        "mad.lo.u32 %r8, %r0, 4, %r40; ld.shared.u32 y, [%r8+512];",
        outputs={"y": NUMBERS[:64].view(np.uint32).copy()},
        memory=numbers(),
        before=TILE,
    ),
    lanes(
        "movmatrix twice gives the matrix back",
        "movmatrix.sync.aligned.m8n8.trans.b16 y, a; movmatrix.sync.aligned.m8n8.trans.b16 z, y;\n"
        "xor.b32 v, a, y;",
        {"a": row_pair(0)},
        {"y": column_pair(0), "z": row_pair(0), "v": row_pair(0) ^ column_pair(0)},
    ),
    product(8, "f16", "f32"),
    product(8, "f16", "f16"),
    product(8, "bf16", "f32"),
    product(16, "f16", "f32"),
    product(16, "f16", "f16"),
    product(16, "bf16", "f32"),
    chained(),
    from_shared(),
]
