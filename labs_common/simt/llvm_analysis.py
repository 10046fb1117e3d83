"""What the code generator wants to know of a program before it emits: which registers need a lane each.

In *uniform* code all living lanes of a warp are at the same instruction, so a register whose value depends
on nothing lane-specific is one scalar. That is a guess about the program, never an assumption about the run:
when lanes come together again after a divergence, the generated code compares them before it goes back to
scalars.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .parse import Address, Immediate, Negated, Register, Special, Symbol
from .program import Block, Program, reads, writes

_LANE_SPECIALS = ("tid.", "laneid", "lanemask_")
# results differ from lane to lane
_LANE_OPCODES = frozenset(("shfl", "match", "atom", "elect", "mma", "ldmatrix", "movmatrix"))
_WARP_OPCODES = frozenset(("vote", "activemask", "redux"))  # one result for the lanes that take part
REGION_LIMIT = 96  # instructions of a branch's arm that is run under a mask in place


@dataclass(frozen=True)
class Region:
    """The blocks between a divergent branch and the block `join` where all its lanes meet again."""

    branch: int
    join: int
    blocks: tuple[int, ...]


@dataclass
class Analysis:
    """vectors: indices of registers that need a lane each in uniform code. regions: by branch block.

    constants: register index -> Immediate or Symbol it always equals; computed: other launch constants.
    chain: block -> the block whose uniform executions count it. enterable: blocks where a warp whose lanes
    have met again may go on in uniform code.
    """

    vectors: set[int] = field(default_factory=set)
    regions: dict[int, Region] = field(default_factory=dict)
    constants: dict[int, Immediate | Symbol] = field(default_factory=dict)
    computed: set[int] = field(default_factory=set)
    chain: Chains = field(default_factory=lambda: Chains())
    enterable: list[int] = field(default_factory=list)
    flushed: set[int] = field(default_factory=set)
    skipped: set[int] = field(default_factory=set)  # instructions that are aliases or launch constants
    saved: int = 0  # registers that live across blocks and have a slot, as bits


def analyse(program: Program) -> Analysis:
    """See Analysis."""
    result = Analysis()
    result.computed = {r.index for i in program.launch_constants for r in writes(program.instructions[i])}
    result.constants = {
        index: value for index, value in program.aliases.items() if isinstance(value, Immediate | Symbol)
    }
    result.computed -= set(result.constants)
    result.skipped = set(program.launch_constants)
    for index in program.aliases:
        if index not in result.computed:  # (a launch constant may be an alias too, of another one)
            result.skipped.update(program.definitions[index])
    joins = post_dominators(program.blocks)
    _find_vectors(program, result, joins)
    _find_regions(program, result, joins)
    result.chain = chains(program)
    _find_flushed(program, result)
    headers = {t for b in program.blocks for t in b.targets if t <= b.index}
    apart = {
        joins[b.index]
        for b in program.blocks
        if b.kind in ("branch", "indexed") and b.index not in result.regions and _varies(program, result, b)
    }
    waiting = {b.index for b in program.blocks if b.waits == "block"}
    inside = {n for region in result.regions.values() for n in region.blocks}
    result.enterable = sorted(({0} | headers | apart | waiting) - inside - {-1})
    for live in program.resolved_live[0]:
        result.saved |= live
    return result


def post_dominators(blocks: list[Block]) -> list[int]:
    """For each block the nearest block that every path from it to the end passes; -1: the end itself."""
    count = len(blocks)
    end = count
    successors = [list(b.targets) or [end] for b in blocks] + [[]]
    predecessors: list[list[int]] = [[] for _ in range(count + 1)]
    for n, targets in enumerate(successors):
        for t in targets:
            predecessors[t].append(n)
    # reverse post-order of the reversed graph
    order, seen, stack = [], {end}, [(end, iter(predecessors[end]))]
    while stack:
        node, children = stack[-1]
        for child in children:
            if child not in seen:
                seen.add(child)
                stack.append((child, iter(predecessors[child])))
                break
        else:
            stack.pop()
            order.append(node)
    order.reverse()
    position = {n: k for k, n in enumerate(order)}
    immediate: dict[int, int] = {end: end}

    def meet(a: int, b: int) -> int:
        while a != b:
            while position[a] > position[b]:
                a = immediate[a]
            while position[b] > position[a]:
                b = immediate[b]
        return a

    changed = True
    while changed:
        changed = False
        for n in order[1:]:
            known = [t for t in successors[n] if t in immediate]
            if not known:
                continue
            new = known[0]
            for t in known[1:]:
                new = meet(new, t)
            if immediate.get(n) != new:
                immediate[n] = new
                changed = True
    return [-1 if immediate.get(n, end) == end else immediate[n] for n in range(count)]


def between(blocks: list[Block], start: int, join: int) -> set[int]:
    """Blocks that can be reached from `start` without passing `join`, start itself left out."""
    seen: set[int] = set()
    todo = [t for t in blocks[start].targets if t != join]
    while todo:
        n = todo.pop()
        if n not in seen:
            seen.add(n)
            todo.extend(t for t in blocks[n].targets if t != join)
    return seen


def _varies(program: Program, analysis: Analysis, block: Block) -> bool:
    return isinstance(block.predicate, Register) and block.predicate.index in analysis.vectors


def _find_vectors(program: Program, analysis: Analysis, joins: list[int]) -> None:
    vectors = analysis.vectors
    predecessors = _predecessors(program)
    live_in, live_out = program.resolved_live
    changed = True
    while changed:
        size = len(vectors)
        for i, instruction in enumerate(program.instructions):
            if program.executed_in[i] < 0:
                continue
            targets = [r for r in writes(instruction) if r.index not in vectors]
            if targets and _lane_specific(program, analysis, i):
                vectors.update(r.index for r in targets)
        for block in program.blocks:
            if block.kind not in ("branch", "indexed") or not _varies(program, analysis, block):
                continue
            join = joins[block.index]
            if join < 0:
                continue
            inside = between(program.blocks, block.index, join)
            in_place = _fits(program, block.index, join, inside, predecessors)
            for n in inside:
                local = live_in[join]
                if in_place:
                    local |= live_in[n] | live_out[n]
                for i in range(program.blocks[n].start, program.blocks[n].stop):
                    for register in writes(program.instructions[i]):
                        # what crosses a block's end inside the arm may be another value in the other arm
                        if local >> register.index & 1:
                            vectors.add(register.index)
        changed = len(vectors) != size
    vectors.difference_update(analysis.constants)
    vectors.difference_update(analysis.computed)


def _lane_specific(program: Program, analysis: Analysis, i: int) -> bool:
    instruction = program.instructions[i]
    if instruction.opcode in _LANE_OPCODES:
        return True
    if instruction.opcode in _WARP_OPCODES:
        return False
    access = program.access.get(i)
    if access is not None and access.space in ("local", "generic"):
        return True
    for operand in instruction.operands[1:]:
        if isinstance(operand, Special) and operand.name.startswith(_LANE_SPECIALS):
            return True
        if isinstance(operand, Negated) and operand.register.index in analysis.vectors:
            return True
        if (
            isinstance(operand, Address)
            and isinstance(operand.base, Register)
            and operand.base.index in analysis.vectors
        ):
            return True
    if instruction.opcode in ("bar", "barrier"):
        return False
    return any(r.index in analysis.vectors for r in reads(instruction))


def _predecessors(program: Program) -> dict[int, set[int]]:
    result: dict[int, set[int]] = {b.index: set() for b in program.blocks}
    for block in program.blocks:
        for t in block.targets:
            result[t].add(block.index)
    return result


def _fits(
    program: Program, branch: int, join: int, inside: set[int], predecessors: dict[int, set[int]]
) -> bool:
    """Whether the blocks between a branch and its join can be run under a mask in place.

    Forward branches only, entered from the branch only, nothing to wait for, nobody exits: then running them
    in order is what the scheduling rule (lowest block first) would do.
    """
    members = [program.blocks[k] for k in inside]
    return (
        program.blocks[branch].kind == "branch"
        and join >= 0
        and all(branch < m.index < join for m in members)
        and all(m.kind in ("fall", "branch") and not m.waits for m in members)
        and all(t > m.index for m in members for t in m.targets)
        and all(predecessors[m.index] <= inside | {branch} for m in members)
        and sum(m.stop - m.start for m in members) <= REGION_LIMIT
    )


def _find_regions(program: Program, analysis: Analysis, joins: list[int]) -> None:
    predecessors = _predecessors(program)
    taken: set[int] = set()
    for block in program.blocks:
        n, join = block.index, joins[block.index]
        if block.kind != "branch" or join < 0 or n in taken or not _varies(program, analysis, block):
            continue
        inside = between(program.blocks, n, join)
        if _fits(program, n, join, inside, predecessors):
            analysis.regions[n] = Region(n, join, tuple(sorted(inside)))
            taken |= inside


class Chains(dict[int, int]):
    """Block -> the first block of its chain: blocks that uniform code runs one after the other, counted once.

    previous: the block before a block in its chain.
    """

    def __init__(self) -> None:
        super().__init__()
        self.previous: dict[int, int] = {}


def chains(program: Program) -> Chains:
    """The chains of a program."""
    result = Chains()
    predecessors = _predecessors(program)
    for block in program.blocks:
        n = block.index
        before = predecessors[n]
        result[n] = n
        if n and len(before) == 1 and block.waits != "block":
            (p,) = before
            if p < n and program.blocks[p].kind == "fall":
                result[n] = result[p]
                result.previous[n] = p
    return result


_FLUSHING = frozenset(
    ("add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "min", "max")
)


def _find_flushed(program: Program, analysis: Analysis) -> None:
    """Registers that never hold a subnormal f32: results of .ftz instructions and their copies."""
    flushed = {r.index for r in program.registers if r.type in ("f32", "b32")}
    changed = True
    while changed:
        before = len(flushed)
        for i, instruction in enumerate(program.instructions):
            if program.executed_in[i] < 0:
                continue
            targets = [r.index for r in writes(instruction) if r.index in flushed]
            if targets and not _gives_flushed(instruction, flushed, analysis):
                flushed.difference_update(targets)
        changed = len(flushed) != before
    analysis.flushed = flushed


def _gives_flushed(instruction, flushed: set[int], analysis: Analysis) -> bool:
    mods = instruction.modifiers
    if instruction.opcode in _FLUSHING and "ftz" in mods and mods[-1] == "f32":
        return True
    if instruction.opcode == "mov" and len(instruction.operands) == 2:
        sources = [instruction.operands[1]]
    elif instruction.opcode == "selp":
        sources = list(instruction.operands[1:3])
    elif instruction.opcode == "shfl":
        sources = [instruction.operands[1]]
    else:
        return False
    for source in sources:
        if isinstance(source, Immediate):
            if source.kind != "f32" or 0 < source.value & 0x7FFFFFFF < 0x00800000:
                return False
        elif not isinstance(source, Register) or source.index not in flushed:
            return False
    return True
