"""Matrix instructions of a warp: where fragments lie, and mma, ldmatrix, stmatrix and movmatrix in NumPy.

Fragments as the PTX ISA draws them: with g = lane / 4 and t = lane % 4, and `per` elements in a 32-bit
register, register 2c + h of A holds row g + 8h and columns 4 * per * c + per * t + (0 .. per - 1); register c
of B holds column g and those rows; C and D hold row g + 8h and columns 2t, 2t + 1.

The ISA leaves order and precision of mma's sum open ("at least single precision"). Here products and sum are
f64, from C on in ascending k, rounded once at the end; a tensor core keeps fewer bits, so the last bits of
an fp32 result differ from a GPU's. Integer sums wrap.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from . import vector_math as vm
from .parse import TYPE_BYTES
from .vector_math import DTYPES

if TYPE_CHECKING:
    from .numpy_engine import Batch, Lanes

M, N = 16, 8
# element type of A and B -> (accumulators, depths k)
_KINDS = {
    "f16": (("f32", "f16"), (8, 16)),
    "bf16": (("f32",), (8, 16)),
    "tf32": (("f32",), (4, 8)),
    "e4m3": (("f32",), (32,)),
    "e5m2": (("f32",), (32,)),
    "s8": (("s32",), (16, 32)),
    "u8": (("s32",), (16, 32)),
}


@dataclass(frozen=True)
class Product:
    """D[16, 8] = A[16, k] B[k, 8] + C of one mma instruction; the PTX types of their elements."""

    k: int
    a: str
    b: str
    accumulator: str

    @property
    def per(self) -> int:
        """Elements of A or B in one register."""
        return 4 // TYPE_BYTES[self.a]

    @property
    def registers(self) -> tuple[int, int, int]:
        """Registers of A, B, and C or D that a thread holds."""
        depth = self.k // (4 * self.per)
        return 2 * depth, depth, 2 if self.accumulator == "f16" else 4

    @property
    def sources(self) -> tuple[str, ...]:
        """PTX types of the source registers."""
        a, b, c = self.registers
        return ("b32",) * (a + b) + (self.register_type,) * c

    @property
    def register_type(self) -> str:
        """PTX type of a register of C or D."""
        return "b32" if self.accumulator == "f16" else self.accumulator

    def place_a(self, k: int) -> tuple[int, int, int]:
        """(register of rows 0 to 7, t, part) of column k of A; rows 8 to 15 are one register on."""
        block, rest = divmod(k, 4 * self.per)
        return 2 * block, rest // self.per, rest % self.per

    def place_b(self, k: int) -> tuple[int, int, int]:
        """(register, t, part) of row k of B."""
        block, rest = divmod(k, 4 * self.per)
        return block, rest // self.per, rest % self.per


@functools.cache
def product(modifiers: tuple[str, ...]) -> Product | None:
    """The mma that a list of modifiers asks for, or None where it is not simulated."""
    if modifiers[:2] != ("sync", "aligned") or len(modifiers) != 9 or modifiers[3:5] != ("row", "col"):
        return None
    d, a, b, c = modifiers[5:]
    kinds = _KINDS.get(a)
    if kinds is None or c != d or c not in kinds[0]:
        return None
    if a != b and not {a, b} <= {"s8", "u8"} and not {a, b} <= {"e4m3", "e5m2"}:
        return None
    k = next((k for k in kinds[1] if modifiers[2] == f"m{M}n{N}k{k}"), 0)
    return Product(k, a, b, d) if k else None


def _element_function(type_: str) -> Callable:
    """uint array of bit patterns -> values, f64 or (integers) s32."""
    if type_ in ("s8", "u8"):
        return lambda bits: bits.astype(np.uint8).view(DTYPES[type_]).astype(np.int32)
    if type_ == "f16":
        return lambda bits: bits.astype(np.uint16).view(np.float16).astype(np.float64)
    if type_ == "e5m2":
        return lambda bits: (bits << np.uint32(8)).astype(np.uint16).view(np.float16).astype(np.float64)
    if type_ == "e4m3":
        table = vm.compiled(vm.from_fp8("e4m3x2"), ("f16x2",), ("e4m3x2",))(np.arange(256, dtype=np.uint16))
        halves = (table & np.uint32(0xFFFF)).astype(np.uint16).view(np.float16).astype(np.float64)
        return lambda bits: halves[bits]
    if type_ == "bf16":
        return lambda bits: (bits << np.uint32(16)).view(np.float32).astype(np.float64)
    return lambda bits: (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


_elements = functools.cache(_element_function)


def _rows(registers: list[np.ndarray], warps: int) -> list[np.ndarray]:
    """Registers as [warp, lane]."""
    return [np.broadcast_to(r, 32 * warps).reshape(warps, 32) for r in registers]


def _matrix(registers: list[np.ndarray], warps: int, type_: str, per: int, columns: bool) -> np.ndarray:
    """Registers that hold rows g and some columns (columns: the other way round) as [warp, 8, depth]."""
    parts = []
    width = np.uint32(32 // per)
    for register in _rows(registers, warps):
        bits = register.astype(np.uint32).reshape(warps, 8, 4, 1)
        shifted = bits >> (np.arange(per, dtype=np.uint32) * width)
        if per > 1:
            shifted = shifted & np.uint32((1 << int(width)) - 1)
        parts.append(_elements(type_)(np.ascontiguousarray(shifted)).reshape(warps, 8, 4 * per))
    joined = np.concatenate(parts, 2)
    return joined.transpose(0, 2, 1) if columns else joined


@functools.cache
def _to_half() -> Callable:
    return vm.compiled(lambda e, x: vm.narrow(e, x, "f16"), ("f16",), ("f64",))


def multiply(batch: Batch, lanes: Lanes, i: int, mode: tuple[str, ...], results: int, *registers):
    """mma.sync of whole warps: the registers of D."""
    what = product(mode)
    count_a, count_b, _ = what.registers
    warps = lanes.warps
    a, b, c = registers[:count_a], registers[count_a : count_a + count_b], registers[count_a + count_b :]
    upper = _matrix(list(a[0::2]), warps, what.a, what.per, False)
    lower = _matrix(list(a[1::2]), warps, what.a, what.per, False)
    a_matrix = np.concatenate((upper, lower), 1)
    b_matrix = _matrix(list(b), warps, what.b, what.per, True)
    half, integer = what.accumulator == "f16", what.accumulator == "s32"
    wide = np.int32 if integer else np.float64
    total = np.empty((warps, M, N), wide)
    for h in range(2):
        if half:
            total[:, 8 * h : 8 * h + 8] = _matrix([c[h]], warps, "f16", 2, False)
            continue
        pair = [r.reshape(warps, 8, 4) for r in _rows(c[2 * h : 2 * h + 2], warps)]
        total[:, 8 * h : 8 * h + 8] = np.stack(pair, 3).reshape(warps, 8, N)
    for k in range(what.k):
        total += a_matrix[:, :, k, None] * b_matrix[:, k, None, :]
    made = []
    for h in range(2):
        pairs = total[:, 8 * h : 8 * h + 8].reshape(warps * 8 * 4, 2)
        columns = [np.ascontiguousarray(pairs[:, k]) for k in range(2)]
        if half:
            low, high = (_to_half()(column).astype(np.uint32) for column in columns)
            made.append(low | high << np.uint32(16))
        else:
            made += [column.astype(DTYPES[what.accumulator]) for column in columns]
    return made[0] if len(made) == 1 else tuple(made)


# ---- 8 x 8 matrices of 16-bit elements: lane 4 r + c / 2 holds columns c, c + 1 of row r


def matrices(modifiers: tuple[str, ...]) -> int:
    """How many matrices an ldmatrix or stmatrix moves."""
    return next((int(m[1:]) for m in modifiers if m in ("x1", "x2", "x4")), 0)


def transposed(register: np.ndarray) -> np.ndarray:
    """The register of each lane after every warp's 8 x 8 matrix was transposed."""
    halves = np.ascontiguousarray(register.astype(np.uint32)).view(np.uint16).reshape(-1, 8, 8)
    return np.ascontiguousarray(halves.transpose(0, 2, 1)).reshape(-1).view(np.uint32)


def move(batch: Batch, lanes: Lanes, i: int, mode, results: int, register: np.ndarray) -> np.ndarray:
    """movmatrix.trans"""
    return transposed(np.broadcast_to(register, lanes.n))


def _row_lanes(lanes: Lanes, count: int, address: np.ndarray) -> tuple[Lanes, np.ndarray]:
    """The lanes whose addresses count, 8 for each matrix, and those addresses."""
    where = np.flatnonzero(lanes.lane < 8 * count)
    return lanes.subset(where), np.ascontiguousarray(np.broadcast_to(address, lanes.n)[where])


def load(batch: Batch, lanes: Lanes, i: int, mode, results: int, address: np.ndarray):
    """ldmatrix of whole warps."""
    memory, access = batch.memory, batch.program.access[i]
    count = matrices(mode)
    rows, at = _row_lanes(lanes, count, address)
    data = np.empty((rows.n, access.count), np.uint32)
    for space, sub, inside, positions in memory.split(rows, i, at, access.space):
        words = memory.read(sub, i, access, space, inside)
        data[slice(None) if positions is None else positions] = np.stack(words, 1)
    data = data.reshape(lanes.warps, count, 32)
    made = [np.ascontiguousarray(data[:, m]).reshape(-1) for m in range(count)]
    made = [transposed(m) for m in made] if "trans" in mode else made
    return made[0] if count == 1 else tuple(made)


def store(batch: Batch, lanes: Lanes, i: int, mode, results: int, address: np.ndarray, *registers) -> None:
    """stmatrix of whole warps."""
    memory, access = batch.memory, batch.program.access[i]
    count = matrices(mode)
    rows, at = _row_lanes(lanes, count, address)
    values = [np.broadcast_to(r, lanes.n).astype(np.uint32) for r in registers]
    values = [transposed(v) for v in values] if "trans" in mode else values
    data = np.stack([v.reshape(-1, 32) for v in values], 1).reshape(-1, access.count)
    for space, sub, inside, positions in memory.split(rows, i, at, access.space):
        here = data if positions is None else data[positions]
        words = [np.ascontiguousarray(here[:, k]) for k in range(access.count)]
        memory.write(sub, i, access, space, inside, words)
