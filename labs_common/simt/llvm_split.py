"""The finer basic blocks of stepped code: all warps come to a shared access before any goes past it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from .program import Program, awaits_copies, liveness


def _notices(program: Program, i: int) -> bool:
    """Whether an instruction may show in which order warps run: it accesses shared memory, or is atomic."""
    access = program.access.get(i)
    if access is None:
        return awaits_copies(program.instructions[i])
    return access.space in ("shared", "generic") or access.operation in ("atom", "red", "cp")


def split_at_accesses(program: Program) -> tuple[Program, list[int]]:
    """The program with a basic block for each access that other warps may notice; and where each one begins.

    Stepped code runs all warps up to such an access before any goes past it, as lanes in lockstep do.
    """
    parts: list[list[tuple[int, int]]] = []
    for block in program.blocks:
        cuts = [i for i in range(block.start + 1, block.stop) if _notices(program, i)]
        edges = [block.start, *cuts, block.stop]
        parts.append(list(pairwise(edges)))
    first = [0]
    for part in parts:
        first.append(first[-1] + len(part))
    blocks = []
    executed, charged = list(program.executed_in), list(program.charged)
    for block, part in zip(program.blocks, parts, strict=True):
        for k, (start, stop) in enumerate(part):
            n = first[block.index] + k
            last = k == len(part) - 1
            blocks.append(
                replace(
                    block,
                    index=n,
                    start=start,
                    stop=stop,
                    kind=block.kind if last else "fall",
                    targets=tuple(first[t] for t in block.targets) if last else (n + 1,),
                    predicate=block.predicate if last else None,
                    guard=block.guard and last,
                    waits=block.waits if k == 0 else "",
                )
            )
            for i in range(start, stop):
                executed[i] = n
                charged[i] = n if program.charged[i] == block.index else first[program.charged[i]]
    split = replace(program, blocks=blocks, executed_in=executed, charged=charged)
    split.live_in, split.live_out = liveness(split, lambda register: register)
    return split, first[:-1]


def sharing_blocks(program: Program) -> set[int]:
    """Blocks whose place among other warps' blocks may show: they access shared memory, or are atomic."""
    return {place for i, place in enumerate(program.executed_in) if _notices(program, i)}
