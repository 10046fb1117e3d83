"""Loops that wait for memory to change: which branches back are turns of a spin.

Threads of a GPU make progress independently of each other ("Independent Thread Scheduling"), but the
engines run the lowest basic block first: a lane that spins on a flag would keep the lane that sets it from
running. So at the branch back of such a loop a lane lets all others go first. Other loops keep their order,
and with it their counts.
"""

from __future__ import annotations

from .parse import Immediate, Instruction
from .program import Program, writes

_SHARED_SPACES = ("global", "shared", "generic")


def _observes(program: Program, i: int) -> bool:
    """Whether an instruction reads what other threads may write."""
    access = program.access.get(i)
    return access is not None and access.operation in ("ld", "atom") and access.space in _SHARED_SPACES


def _acts(instruction: Instruction) -> bool:
    """Whether a turn of the loop with this instruction may change memory, time after time."""
    opcode, modifiers = instruction.opcode, instruction.modifiers
    if opcode == "atom" and any(m in ("add", "inc", "dec") for m in modifiers):
        return not (isinstance(instruction.operands[2], Immediate) and instruction.operands[2].value == 0)
    return opcode in ("st", "red", "cp", "call", "stmatrix", "bar", "barrier")


def spinning_branches(program: Program) -> frozenset[tuple[int, int]]:
    """(block, target) of branches back to the head of a loop that carries nothing from turn to turn.

    Such a loop reads memory, writes none and changes no register that its next turn reads: only another
    thread can end it.
    """
    found = set()
    for block in program.blocks:
        for target in block.targets:
            if target > block.index:
                continue
            body = program.blocks[target : block.index + 1]
            numbers = [i for b in body for i in range(b.start, b.stop)]
            instructions = [program.instructions[i] for i in numbers]
            carried = program.live_in[target]
            if (
                any(_observes(program, i) for i in numbers)
                and not any(b.waits for b in body)
                and not any(_acts(instruction) for instruction in instructions)
                and not any(
                    carried >> r.index & 1 for instruction in instructions for r in writes(instruction)
                )
            ):
                found.add((block.index, target))
    return frozenset(found)
