"""What the machine code of stage 09 takes: ``roof_code.csv``, counted by Nsight Compute on an H200.

Neither follows from the source: ptxas weighs registers against instructions anew for every kernel. In fp16
with head_dim 128 a ring of three slots costs 24 warp instructions a token where one of two costs 16, and in
fp32 with head_dim 128 and seven heads two blocks fit into the registers with three slots, one with two.
``roof_count`` makes the table; to change a kernel's loop is to count again.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import NamedTuple

from labs_common.problem import FP8, Problem

TABLE = Path(__file__).with_name("roof_code.csv")
KINDS = ("float32", "half", "fp8")  # of code: fp16 and bf16 are alike
REGISTERS = 65_536  # of a multiprocessor
BLOCK_THREADS = 256


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
        return REGISTERS // (BLOCK_THREADS * -(-self.registers // 8) * 8)


Key = tuple[str, int, int, int, int]


def kind(problem: Problem) -> str:
    """Of code, one of `KINDS`."""
    return {"float32": "float32", FP8: "fp8"}.get(problem.dtype, "half")


def key(problem: Problem, heads: int, ring_slots: int) -> Key:
    """What code depends on: kind, head_dim, query heads of a set, page size, slots of a ring.

    On tensor cores a set has eight heads, used or not: 0. In fp32 tiles are of eight tokens and lie in one
    page of any size, otherwise pages of eight make two of a tile: 8, or 16 for all others.
    """
    fp32 = problem.dtype == "float32"
    page_size = 16 if fp32 else min(16, problem.page_size)
    return kind(problem), problem.head_dim, heads if fp32 else 0, page_size, ring_slots


@functools.cache
def table() -> dict[Key, MachineCode]:
    """All that was counted, by `key`."""
    with TABLE.open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    return {
        (code, *map(int, sizes)): MachineCode(float(instructions), int(registers))
        for code, *sizes, instructions, registers in rows
    }


def machine_code(problem: Problem, heads: int, ring_slots: int) -> MachineCode | None:
    """Of the kernel that attends to a problem; None where no block has room for such a ring.

    Args:
        problem: one that stage 09 takes.
        heads: query heads of a set.
        ring_slots: two to four.
    """
    return table().get(key(problem, heads, ring_slots))
