"""A PTX program of the table: its text, the arrays it gets, and what they must hold afterwards.

`lanes` writes what every program needs around its body: a thread loads its element of each input into the
register of that name, and stores its element of each output. `memory` arrays come as a pointer instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from simt_helpers import HEADER, PREAMBLE

FILE = '.file 1 "/lab/kernels/program.cu"\n'
# dtype -> (type of the register, type of the load and the store)
_TYPES = {"u1": ("b16", "u8"), "i1": ("b16", "s8"), "u2": ("b16", "u16"), "i2": ("b16", "s16"),
          "f2": ("b16", "u16"), "u4": ("b32", "u32"), "i4": ("b32", "s32"), "f4": ("f32", "f32"),
          "u8": ("b64", "u64"), "i8": ("b64", "s64"), "f8": ("f64", "f64")}  # fmt: skip


@dataclass(frozen=True)
class Program:
    """One program. expected: the arrays after the launch; printed: its printf output; error: what ends it."""

    name: str
    body: str
    text: str
    arrays: tuple[np.ndarray, ...]
    expected: tuple[np.ndarray, ...]
    block: int
    grid: int
    printed: str = ""
    error: str = ""

    @property
    def instructions(self) -> int:
        """Instructions of the body: what was written by hand."""
        return sum(1 for part in self.body.replace("{", ";").split(";") if _is_instruction(part))


def _is_instruction(statement: str) -> bool:
    text = statement.split(":")[-1].strip().lstrip("}").strip()
    return bool(text) and not text.startswith(".")


def _types(array: np.ndarray) -> tuple[str, str]:
    return _TYPES[array.dtype.str[1:]]


def lanes(
    name: str,
    body: str,
    inputs: dict[str, np.ndarray] | None = None,
    outputs: dict[str, np.ndarray] | None = None,
    *,
    memory: dict[str, tuple[np.ndarray, np.ndarray]] | None = None,
    before: str = "",
    grid: int = 1,
    printed: str = "",
    error: str = "",
) -> Program:
    """A program over threads; %r0 is the thread, %r1 the block, %r2 the thread's number in the grid.

    inputs and outputs have one element per thread of the grid; memory is name -> (before, after); `before`
    stands at module level.
    """
    inputs, outputs, memory = inputs or {}, outputs or {}, memory or {}
    threads = len(next(iter((*inputs.values(), *outputs.values())))) if inputs or outputs else 32
    pointers = [*inputs, *outputs, *memory]
    params = ", ".join(f".param .u64 p_{n}" for n in pointers)
    head = ["mov.u32 %r0, %tid.x;", "mov.u32 %r1, %ctaid.x;", "mov.u32 %r2, %ntid.x;"]
    head.append("mad.lo.u32 %r2, %r1, %r2, %r0;")
    tail = []
    for n, array in (*inputs.items(), *outputs.items()):
        head.append(f".reg .{_types(array)[0]} {n};")
    for n, array in inputs.items():
        head.append(f"ld.param.u64 %d39, [p_{n}];\nmad.wide.u32 %d39, %r2, {array.itemsize}, %d39;")
        head.append(f"ld.global.{_types(array)[1]} {n}, [%d39];")
    for n, array in outputs.items():
        tail.append(f"ld.param.u64 %d39, [p_{n}];\nmad.wide.u32 %d39, %r2, {array.itemsize}, %d39;")
        tail.append(f"st.global.{_types(array)[1]} [%d39], {n};")
    for n in memory:
        head.append(f".reg .b64 {n};\nld.param.u64 {n}, [p_{n}];")
    lines = "\n".join([*head, body, *tail, "ret;"])
    text = f"{HEADER}{before}\n.visible .entry k({params})\n{{{PREAMBLE}{lines}\n}}\n{FILE}"
    arrays = (
        *inputs.values(),
        *(np.zeros_like(a) for a in outputs.values()),
        *(m[0] for m in memory.values()),
    )
    expected = (*inputs.values(), *outputs.values(), *(m[1] for m in memory.values()))
    return Program(name, body, text, arrays, expected, threads // grid, grid, printed, error)


def each(function: Callable, *arrays: np.ndarray, dtype: str = "u4") -> np.ndarray:
    """function of Python numbers for each element; integer results are cut to the dtype's width."""
    kind = np.dtype(dtype)
    made = [function(*values) for values in zip(*(a.tolist() for a in arrays), strict=True)]
    if kind.kind == "f":
        return np.array(made, kind)
    width = 8 * kind.itemsize
    return np.array([int(v) & ((1 << width) - 1) for v in made], f"u{kind.itemsize}").view(kind)


def words(seed: int, count: int = 32, dtype: str = "u4") -> np.ndarray:
    """Random integers of every bit, the awkward ones first."""
    width = 8 * np.dtype(dtype).itemsize
    edge = [0, 1, (1 << width) - 1, 1 << (width - 1), (1 << (width - 1)) - 1, 2, 31, 1 << (width // 2)]
    rng = np.random.default_rng(seed)
    bits = [*edge, *(int.from_bytes(rng.bytes(width // 8), "little") for _ in range(count))][:count]
    return rng.permutation(np.array(bits, f"u{width // 8}")).view(dtype)


def signed(value: int, width: int = 32) -> int:
    """A bit pattern as a two's complement number."""
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


def bf16(values) -> np.ndarray:
    """bf16 bit patterns of numbers that f32 holds: to nearest, ties to even."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits) -> np.ndarray:
    """The numbers of bf16 bit patterns, as f32."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def pair(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Two 16-bit elements in a word, the first one low."""
    low, high = (np.ascontiguousarray(a).view(np.uint16).astype(np.uint32) for a in (low, high))
    return low | high << 16
