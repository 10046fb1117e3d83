"""What the machine code of stage 09 takes: instructions, counted by Nsight Compute, and registers, by ptxas.

Neither follows from the source: ptxas weighs one against the other anew for every kernel. In fp8 with
head_dim 128, pages of 16 and three slots, a token costs 22 warp instructions in blocks of one set of heads
and 18 in those of two; in fp16 with head_dim 128, pages of 8 in NHD and two slots, a thread has 128 registers
in blocks of one set and 150 in those of two, of which only one fits. ``roof_count`` makes both tables, for
sm_90: to change the kernel is to count again, even if it is a line outside its loop.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import NamedTuple

from labs_common.problem import FP8, Problem

INSTRUCTIONS = Path(__file__).with_name("roof_instructions.csv")
REGISTERS = Path(__file__).with_name("roof_registers.csv")
KINDS = ("float32", "half", "fp8")  # of code: fp16 and bf16 are alike
HEAD_DIMS = (64, 96, 128, 192, 256)  # of kernels that were counted
FILE_REGISTERS = 65_536  # of a multiprocessor
BLOCK_THREADS = 256

Key = tuple[str | int, ...]


class MachineCode(NamedTuple):
    """Of one kernel.

    Attributes:
        instructions: of a warp, for one token of one set of heads.
        registers: of a thread.
    """

    instructions: float
    registers: int

    @property
    def blocks(self) -> int:
        """That a multiprocessor's registers hold; a thread's come by eight."""
        return FILE_REGISTERS // (BLOCK_THREADS * -(-self.registers // 8) * 8)


def kind(problem: Problem) -> str:
    """Of code, one of `KINDS`."""
    return {"float32": "float32", FP8: "fp8"}.get(problem.dtype, "half")


def sets_and_heads(problem: Problem) -> tuple[int, int]:
    """Sets of a group, and query heads of each, which a warp attends for."""
    sets = -(-problem.group_size // 8)
    return sets, -(-problem.group_size // sets)


def instructions_key(problem: Problem, block_heads: int, ring_slots: int) -> Key:
    """What instructions depend on: kind, head_dim, heads of a set, sets of a block, page size, slots, layout.

    On tensor cores a set has eight heads, used or not: 0. In fp32 tiles are of eight tokens and lie in one
    page of any size, otherwise pages of eight make two of a tile: 8, or 16 for all others; in fp32 layouts
    were not counted apart: "any". A head_dim that was not counted counts as the next one that was.
    """
    head_dim = next(size for size in HEAD_DIMS if size >= problem.head_dim)
    if problem.dtype == "float32":
        return "float32", head_dim, sets_and_heads(problem)[1], block_heads, 16, ring_slots, "any"
    page_size = min(16, problem.page_size)
    return kind(problem), head_dim, 0, block_heads, page_size, ring_slots, problem.layout


def registers_key(problem: Problem, block_heads: int, ring_slots: int) -> Key:
    """What registers depend on: as instructions, and always heads of a set, sets of a group and layout."""
    which, head_dim, _, _, page_size, slots, _ = instructions_key(problem, block_heads, ring_slots)
    sets, heads = sets_and_heads(problem)
    return which, head_dim, heads, block_heads, page_size, slots, problem.layout, sets


@functools.cache
def table(path: Path) -> dict[Key, float]:
    """Lines of a table by all columns but the last, which is the number."""
    with path.open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    return {
        tuple(int(word) if word.isdigit() else word for word in words): float(number)
        for *words, number in rows
    }


def machine_code(problem: Problem, block_heads: int, ring_slots: int) -> MachineCode | None:
    """Of the kernel that attends to a problem; None where a block of an H200 has no room for such a ring.

    Args:
        problem: one that stage 09 takes.
        block_heads: sets that share a block.
        ring_slots: two to four.
    """
    instructions = table(INSTRUCTIONS).get(instructions_key(problem, block_heads, ring_slots))
    registers = table(REGISTERS).get(registers_key(problem, block_heads, ring_slots))
    if instructions is None or registers is None:
        return None
    return MachineCode(instructions, int(registers))
