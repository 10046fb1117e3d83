"""A kernel of a parsed module as a `Program`: calls inlined, basic blocks in scheduling order, liveness.

What both engines may rely on:

- A *counted lane-instruction* is an instruction of `Program.instructions` times its active lanes. Aliases and
  launch constants say what need not be computed; they never change what is counted. `charged[i]` is the
  block whose executions count instruction i; `executed_in[i]` is the block whose lanes carry it out. They
  differ only for a predicated instruction, which sits alone in a block entered by its true lanes.
- Blocks are numbered so that running the lowest number first reconverges lanes at joins and after loops
  (loops are contiguous, everything else is topological; ties by position in the text).
- A block with `waits` starts with an instruction at which lanes may have to wait for others (a barrier, a
  shuffle, a vote ...). It is entered by fall-through or a branch like any other.
- Device functions are inlined: a `ret` of one is a jump, call parameters live in the thread's local frame.
  Calls that remain (`call` with `Builtin`) are printf, assertfail and the like.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from .errors import LaunchError, PtxError, UnsupportedError
from .memory import WINDOW
from .parse import (
    TYPE_BYTES,
    Address,
    Function,
    Group,
    Immediate,
    Instruction,
    Label,
    Module,
    Negated,
    Pair,
    Register,
    Special,
    Symbol,
    Targets,
    Variable,
    Vector,
    layout,
)

BUILTINS = ("vprintf", "__assertfail")
MAX_INSTRUCTIONS = 400_000  # after inlining

# opcodes that write no register; every other one writes its first operand
_NO_RESULT = frozenset(
    {"st", "red", "bra", "brx", "ret", "exit", "trap", "brkpt", "bar", "barrier", "membar", "fence"}
    | {"nanosleep", "prefetch", "prefetchu", "call", "cp", "pmevent", "discard", "applypriority"}
    | {"griddepcontrol", "setmaxnreg", "stmatrix", "mbarrier", "wgmma", "tcgen05", "multimem"}
)
# they take the carry flag, or give it with .cc
_CARRIES = {"addc": True, "subc": True, "madc": True, "add": False, "sub": False, "mad": False}
_WARP_WAIT = frozenset(
    ("shfl", "vote", "match", "redux", "elect", "mma", "wmma", "ldmatrix", "stmatrix", "movmatrix")
)
_ENDS = frozenset(("bra", "brx", "ret", "exit", "trap"))
_UNIFORM_SPECIALS = ("ntid.", "nctaid.", "nwarpid", "nsmid", "total_smem_size", "dynamic_smem_size")


@dataclass(frozen=True)
class Block:
    """Instructions start..stop of the program; the last may be a bra, brx, ret, exit or trap.

    kind says how the block is left: "fall" -> targets[0]; "branch": where `predicate` (negated: is false)
    -> targets[0], else targets[1]; "indexed": targets[value of `predicate`]; "exit"; "trap".
    guard is True where the branch only stands for the predicate of the next block's single instruction.
    """

    index: int
    start: int
    stop: int
    kind: str
    targets: tuple[int, ...] = ()
    predicate: Register | None = None
    negated: bool = False
    guard: bool = False
    waits: str = ""  # "warp": shuffles and the like; "block": bar.sync and the like


@dataclass(frozen=True)
class Access:
    """The memory operand of a ld, st, atom, red or cp.async. space "generic" needs a look at each address.

    width is the bytes of one element, count the vector length; counted is False for parameters of inlined
    calls (space "local" then). static is a byte offset within the space where no register is involved.
    destination is the shared address that a cp.async writes to; the rest is about what it reads.
    """

    space: str
    operation: str
    type: str
    width: int
    count: int
    address: Address
    static: int | None
    counted: bool
    destination: Address | None = None


@dataclass
class Program:
    """One kernel, ready for an engine. See the module's docstring for the rules."""

    entry: str
    target: str
    instructions: list[Instruction]
    blocks: list[Block]
    registers: list[Register]
    params: list[Variable]
    param_offsets: dict[str, int]
    param_bytes: int
    shared_static: int  # bytes of static shared memory
    dynamic_offset: int  # where extern shared arrays begin
    local_bytes: int  # per thread
    symbols: dict[str, tuple[str, int]]  # name -> (space, byte offset); not the module's global/const ones
    variables: dict[str, Variable]  # the module's .global and .const variables by name
    directives: dict[str, tuple[int, ...]]
    executed_in: list[int] = field(default_factory=list)  # -1: never reached
    charged: list[int] = field(default_factory=list)
    live_in: list[int] = field(default_factory=list)  # per block, a bit per register index
    live_out: list[int] = field(default_factory=list)
    access: dict[int, Access] = field(default_factory=dict)

    def address_of(self, symbol: Symbol, module_addresses: dict[str, int]) -> int:
        """The address a Symbol stands for: in its own space (shared, local), else generic."""
        if symbol.name in self.symbols:
            space, offset = self.symbols[symbol.name]
            return offset + symbol.offset + (WINDOW["param"] if space == "param" else 0)
        return module_addresses[symbol.name] + symbol.offset

    def space_of(self, symbol: Symbol) -> str:
        """The state space of a Symbol."""
        return (
            self.symbols[symbol.name][0] if symbol.name in self.symbols else self.variables[symbol.name].space
        )

    @cached_property
    def definitions(self) -> dict[int, list[int]]:
        """Register index -> the reached instructions that write it."""
        result: dict[int, list[int]] = {}
        for i, instruction in enumerate(self.instructions):
            if self.executed_in[i] >= 0:
                for register in writes(instruction):
                    result.setdefault(register.index, []).append(i)
        return result

    @cached_property
    def aliases(self) -> dict[int, Register | Immediate | Symbol]:
        """Register index -> what holds the same bits wherever it is read: single-definition mov and cvta.

        A source register is itself defined once, and the copy is never live where that register is about to
        be redefined (as after a loop's back edge). Chains are followed to their end.
        """
        found: dict[int, Register | Immediate | Symbol] = {}
        for index, places in self.definitions.items():
            if len(places) != 1:
                continue
            i = places[0]
            instruction = self.instructions[i]
            source = _copied(instruction)
            if source is None or self._is_guarded(i):
                continue
            if isinstance(source, Register):
                origin = self.definitions.get(source.index, [])
                if len(origin) != 1 or source.index == index:
                    continue
                block = self.executed_in[origin[0]]
                if self.live_in[block] >> index & 1 or (block == self.executed_in[i] and origin[0] > i):
                    continue
                if TYPE_BYTES[source.type] != TYPE_BYTES[self.registers[index].type]:
                    continue
            found[index] = source
        for index, source in found.items():
            seen = {index}
            while isinstance(source, Register) and source.index in found and source.index not in seen:
                seen.add(source.index)
                source = found[source.index]
            found[index] = source
        return found

    @cached_property
    def resolved_live(self) -> tuple[list[int], list[int]]:
        """live_in and live_out where aliases are read at their source and launch constants not at all."""
        constant = {r.index for i in self.launch_constants for r in writes(self.instructions[i])}

        def resolve(register: Register) -> Register | None:
            source = self.aliases.get(register.index, register)
            return source if isinstance(source, Register) and source.index not in constant else None

        return liveness(self, resolve)

    def _is_guarded(self, i: int) -> bool:
        return self.executed_in[i] != self.charged[i]

    @cached_property
    def launch_constants(self) -> list[int]:
        """Instructions whose results are the same for every thread of a launch, in evaluation order.

        Their registers have this one definition and depend on literals, parameters, grid and block size only.
        They are counted where they stand, and need computing once per launch.
        """
        known: set[int] = set()
        order: list[int] = []
        single = {index: places[0] for index, places in self.definitions.items() if len(places) == 1}
        candidates = sorted(set(single.values()))
        changed = True
        while changed:
            changed = False
            for i in candidates:
                instruction = self.instructions[i]
                if i in known or self._is_guarded(i) or not self._constant(i, instruction):
                    continue
                sources = reads(instruction)
                if all(single.get(r.index, -1) in known for r in sources) and all(
                    single.get(r.index) == i for r in writes(instruction)
                ):
                    known.add(i)
                    order.append(i)
                    changed = True
        return order

    def _constant(self, i: int, instruction: Instruction) -> bool:
        if instruction.opcode == "ld":
            access = self.access[i]
            return access.space == "param" and access.static is not None
        if instruction.opcode in _NO_RESULT or instruction.opcode in _WARP_WAIT:
            return False
        if instruction.opcode in ("atom", "activemask", "call", "isspacep"):
            return False
        return all(
            o.name.startswith(_UNIFORM_SPECIALS) for o in instruction.operands if isinstance(o, Special)
        )


def _copied(instruction: Instruction) -> Register | Immediate | Symbol | None:
    """The operand whose bits a plain mov or an identity cvta copies."""
    if instruction.guard or len(instruction.operands) != 2:
        return None
    target, source = instruction.operands
    if not isinstance(target, Register) or not isinstance(source, Register | Immediate | Symbol):
        return None
    if instruction.opcode == "mov":
        if target.type == "pred":
            return None
        return source
    if instruction.opcode == "cvta" and isinstance(source, Register):
        spaces = [m for m in instruction.modifiers if m in ("global", "const", "param")]
        return source if spaces else None
    return None


def _registers(operand) -> list[Register]:
    if isinstance(operand, Register):
        return [operand]
    if isinstance(operand, Address):
        return [operand.base] if isinstance(operand.base, Register) else []
    if isinstance(operand, Negated):
        return [operand.register]
    if isinstance(operand, Pair):
        return _registers(operand.first) + _registers(operand.second)
    if isinstance(operand, Vector | Group):
        return [r for element in operand.elements for r in _registers(element)]
    return []


def has_result(instruction: Instruction) -> bool:
    """Whether the first operand is written."""
    if instruction.opcode in ("bar", "barrier"):
        return "red" in instruction.modifiers
    return instruction.opcode not in _NO_RESULT and bool(instruction.operands)


def writes(instruction: Instruction) -> list[Register]:
    """The registers that the instruction writes."""
    return _registers(instruction.operands[0]) if has_result(instruction) else []


def reads(instruction: Instruction) -> list[Register]:
    """The registers that the instruction reads, its guard included."""
    sources = instruction.operands[1:] if has_result(instruction) else instruction.operands
    result = [r for operand in sources for r in _registers(operand)]
    if instruction.guard:
        result.append(instruction.guard[0])
    return result


def waits(instruction: Instruction) -> str:
    """ "warp" or "block" where lanes may have to wait at this instruction, else ""."""
    if instruction.opcode in ("bar", "barrier"):
        if "warp" in instruction.modifiers:
            return "warp"
        return "block"
    if instruction.opcode in _WARP_WAIT and "sync" in instruction.modifiers:
        return "warp"
    return ""


class _Builder:
    """Inlines calls into one list of instructions with program-wide registers and symbols."""

    def __init__(self, module: Module):
        self.module = module
        self.instructions: list[Instruction] = []
        self.registers: list[Register] = []
        self.shared: list[Variable] = []
        self.dynamic: list[Variable] = []
        self.frame: list[Variable] = []
        self.used_module_variables: dict[str, Variable] = {}
        self.instances = 0
        self.carry: Register | None = None

    def inline(self, function: Function, binding: dict[str, str], stack: tuple[str, ...]) -> None:
        """Append the body. binding: the function's parameter names -> program-wide symbol names."""
        instance = self.instances
        self.instances += 1
        registers = []
        for register in function.registers:
            registers.append(Register(len(self.registers), register.name, register.type))
            self.registers.append(registers[-1])
        names = dict(binding)
        for name, variable in function.variables.items():
            unique = f"{function.name}#{instance}.{name}" if stack else name
            if variable.space == "shared":
                # one block-wide variable, however often the function is inlined
                unique = f"{function.name}.{name}" if stack else name
                if variable.extern:
                    if all(v.name != unique for v in self.dynamic):
                        self.dynamic.append(replace(variable, name=unique))
                elif all(v.name != unique for v in self.shared):
                    self.shared.append(replace(variable, name=unique))
            elif variable.space in ("local", "param"):
                self.frame.append(replace(variable, name=unique))
            else:
                unique = f"{function.name}.{name}"
                self.used_module_variables[unique] = replace(variable, name=unique)
            names[name] = unique

        def symbol_name(name: str, line: int) -> str:
            if name in names:
                return names[name]
            variable = self.module.variables.get(name)
            if variable is None:
                raise UnsupportedError(f"the address of the function {name} is not simulated", line)
            if variable.space == "shared":
                target = self.dynamic if variable.extern or variable.size == 0 else self.shared
                if all(v.name != name for v in target):
                    target.append(variable)
            elif variable.extern and variable.data is None:
                raise UnsupportedError(f"the extern variable {name} is defined nowhere", line)
            else:
                self.used_module_variables[name] = variable
            return name

        positions: list[int] = []
        fixups: list[int] = []
        end_label = Label(f"return of {function.name}#{instance}")

        def convert(operand, line: int):
            if isinstance(operand, Register):
                return registers[operand.index]
            if isinstance(operand, Address):
                return Address(convert(operand.base, line), operand.offset)
            if isinstance(operand, Negated):
                return Negated(convert(operand.register, line))
            if isinstance(operand, Symbol):
                return Symbol(symbol_name(operand.name, line), operand.offset)
            if isinstance(operand, Pair):
                return Pair(convert(operand.first, line), convert(operand.second, line))
            if isinstance(operand, Vector):
                return Vector(tuple(convert(e, line) for e in operand.elements))
            if isinstance(operand, Group):
                return Group(tuple(convert(e, line) for e in operand.elements))
            return operand

        for instruction in function.body:
            positions.append(len(self.instructions))
            if len(self.instructions) > MAX_INSTRUCTIONS:
                raise UnsupportedError(
                    f"more than {MAX_INSTRUCTIONS} instructions after inlining calls", instruction.line
                )
            guard = instruction.guard
            if guard:
                guard = (registers[guard[0].index], guard[1])
            if instruction.opcode == "call":
                self.call(instruction, guard, names, registers, (*stack, function.name))
                continue
            operands = tuple(convert(o, instruction.line) for o in instruction.operands)
            operands = self.with_carry(instruction, operands)
            if instruction.opcode in ("bra", "brx"):
                fixups.append(len(self.instructions))
            if instruction.opcode == "ret" and stack:
                operands = (end_label,)
            self.instructions.append(replace(instruction, operands=operands, guard=guard))
        end = len(self.instructions)
        positions.append(end)

        def moved(operand):
            if isinstance(operand, Label):
                return Label(operand.name, positions[operand.index])
            if isinstance(operand, Targets):
                return Targets(tuple(moved(o) for o in operand.labels))
            return operand

        for i in fixups:
            old = self.instructions[i]
            self.instructions[i] = replace(old, operands=tuple(moved(o) for o in old.operands))
        for i in range(positions[0], end):
            operands = self.instructions[i].operands
            if operands and operands[0] is end_label:
                self.instructions[i] = replace(self.instructions[i], operands=(Label(end_label.name, end),))

    def with_carry(self, instruction: Instruction, operands: tuple) -> tuple:
        """The carry flag CC.CF as a predicate register that is written and read like any other."""
        takes = _CARRIES.get(instruction.opcode)
        gives = "cc" in instruction.modifiers
        if takes is None or not (takes or gives) or not operands:
            return operands
        if self.carry is None:
            self.carry = Register(len(self.registers), "%cc", "pred")
            self.registers.append(self.carry)
        first = Pair(operands[0], self.carry) if gives else operands[0]
        return (first, *operands[1:], *((self.carry,) if takes else ()))

    def call(self, instruction: Instruction, guard, names: dict[str, str], registers, stack) -> None:
        groups = [o for o in instruction.operands if isinstance(o, Group)]
        targets = [o for o in instruction.operands if isinstance(o, Symbol)]
        line = instruction.line
        if len(targets) != 1 or len(groups) + 1 != len(instruction.operands) or len(groups) > 2:
            raise UnsupportedError("a call through a function pointer is not simulated", line)
        name = targets[0].name
        function = self.module.functions.get(name)
        if function is None:
            raise PtxError(f"the call's target {name} is no function", line)
        first_is_target = isinstance(instruction.operands[0], Symbol)
        returned = Group(()) if first_is_target or not groups else groups[0]
        passed = groups[-1] if groups and (first_is_target or len(groups) == 2) else Group(())
        bound = []
        for group, formal, what in (
            (passed, function.params, "arguments"),
            (returned, function.returns, "results"),
        ):
            if len(group.elements) != len(formal):
                raise PtxError(f"{name} takes {len(formal)} {what}, the call has {len(group.elements)}", line)
            for actual in group.elements:
                if not isinstance(actual, Symbol) or actual.name not in names or actual.offset:
                    raise UnsupportedError(
                        f"a call of {name} with {what} outside .param is not simulated", line
                    )
                bound.append(names[actual.name])
        formal_names = [v.name for v in (*function.params, *function.returns)]
        if function.declared_only:
            if name not in BUILTINS:
                raise UnsupportedError(f"the external function {name} is not simulated", line)
            arguments = Group(tuple(Symbol(n) for n in bound))
            operands = (Symbol(name), arguments)
            self.instructions.append(replace(instruction, operands=operands, guard=guard))
            return
        if name in stack:
            raise UnsupportedError(f"the recursive device function {name} is not simulated", line)
        if guard:
            raise UnsupportedError("a predicated call is not simulated", line)
        self.instructions.append(replace(instruction, operands=(Symbol(name), Group(())), guard=None))
        self.inline(function, dict(zip(formal_names, bound, strict=True)), stack)


def _order(successors: list[tuple[int, ...]]) -> list[int]:
    """Block numbers reachable from 0 in scheduling order; see the module's docstring."""
    reached, todo = {0}, [0]
    while todo:
        for target in successors[todo.pop()]:
            if target not in reached:
                reached.add(target)
                todo.append(target)
    result: list[int] = []
    # a work list instead of recursion: (nodes of a strongly connected part, blocks whose in-edges are cut)
    stack: list[tuple[frozenset[int], frozenset[int]] | int] = [(frozenset(reached), frozenset())]
    while stack:
        item = stack.pop()
        if isinstance(item, int):
            result.append(item)
            continue
        nodes, cut = item
        edges = {n: [t for t in successors[n] if t in nodes and t not in cut] for n in nodes}
        parts = _components(nodes, edges)
        part_of = {n: k for k, part in enumerate(parts) for n in part}
        pending = [set() for _ in parts]
        following: list[set[int]] = [set() for _ in parts]
        for n in nodes:
            for t in edges[n]:
                if part_of[t] != part_of[n]:
                    pending[part_of[t]].add(part_of[n])
                    following[part_of[n]].add(part_of[t])
        waiting = [len(p) for p in pending]
        ready = [(min(part) if not cut & part else -1, k) for k, part in enumerate(parts) if not waiting[k]]
        heapq.heapify(ready)
        sequence: list[tuple[frozenset[int], frozenset[int]] | int] = []
        while ready:
            _, k = heapq.heappop(ready)
            part = parts[k]
            if len(part) == 1:
                sequence.append(next(iter(part)))
            else:
                entered = [
                    n for n in part if n == 0 or any(t == n for o in reached - part for t in successors[o])
                ]
                header = min(entered or part)
                sequence.append((frozenset(part), cut | {header}))
            for f in following[k]:
                waiting[f] -= 1
                if not waiting[f]:
                    heapq.heappush(ready, (min(parts[f]), f))
        stack.extend(reversed(sequence))
    return result


def _components(nodes: frozenset[int], edges: dict[int, list[int]]) -> list[set[int]]:
    """Strongly connected components (Tarjan, without recursion)."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    result: list[set[int]] = []
    for root in sorted(nodes):
        if root in number:
            continue
        work = [(root, iter(edges[root]))]
        number[root] = low[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, children = work[-1]
            for child in children:
                if child not in number:
                    number[child] = low[child] = len(number)
                    stack.append(child)
                    on_stack.add(child)
                    work.append((child, iter(edges[child])))
                    break
                if child in on_stack:
                    low[node] = min(low[node], number[child])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    part = set()
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        part.add(member)
                        if member == node:
                            break
                    result.append(part)
    return result


def _split(instructions: list[Instruction]) -> tuple[list[Block], list[int], list[int]]:
    """Basic blocks in scheduling order, and executed_in and charged per instruction."""
    count = len(instructions)
    leaders = {0, count}
    for i, instruction in enumerate(instructions):
        if instruction.opcode in _ENDS:
            leaders.add(i + 1)
            for operand in instruction.operands:
                labels = operand.labels if isinstance(operand, Targets) else (operand,)
                leaders.update(label.index for label in labels if isinstance(label, Label))
        if waits(instruction):
            leaders.add(i)
        if instruction.guard and instruction.opcode != "bra":
            leaders.update((i, i + 1))
    starts = sorted(leaders)
    starts = [s for s in starts if s < count]
    # text-order pieces: (start, stop, guard register or None); a guarded instruction gets a piece before it
    pieces: list[dict] = []
    first_piece: dict[int, int] = {}
    for start, stop in zip(starts, [*starts[1:], count], strict=True):
        instruction = instructions[start]
        first_piece[start] = len(pieces)
        if instruction.guard and instruction.opcode != "bra":
            pieces.append({"start": start, "stop": start, "guard": instruction.guard})
        pieces.append({"start": start, "stop": stop, "guard": None})
    first_piece[count] = len(pieces)
    pieces.append({"start": count, "stop": count, "guard": None})  # falling off the end is an exit

    for k, piece in enumerate(pieces):
        last = instructions[piece["stop"] - 1] if piece["stop"] > piece["start"] else None
        if piece["guard"]:
            after = k + 2 if k + 2 < len(pieces) else len(pieces) - 1
            register, negated = piece["guard"]
            piece.update(kind="branch", targets=(k + 1, after), predicate=register, negated=negated)
        elif k == len(pieces) - 1 or (last and last.opcode == "exit"):
            piece.update(kind="exit", targets=())
        elif last and last.opcode == "ret":
            targets = tuple(first_piece[o.index] for o in last.operands if isinstance(o, Label))
            piece.update(kind="fall" if targets else "exit", targets=targets)
        elif last and last.opcode == "trap":
            piece.update(kind="trap", targets=())
        elif last and last.opcode == "bra":
            if not last.operands or not isinstance(last.operands[0], Label):
                raise PtxError("bra needs a label", last.line)
            target = first_piece[last.operands[0].index]
            if last.guard:
                register, negated = last.guard
                piece.update(kind="branch", targets=(target, k + 1), predicate=register, negated=negated)
            else:
                piece.update(kind="fall", targets=(target,))
        elif last and last.opcode == "brx":
            if len(last.operands) != 2 or not isinstance(last.operands[1], Targets):
                raise PtxError("brx.idx needs a register and a list of targets", last.line)
            targets = tuple(first_piece[label.index] for label in last.operands[1].labels)
            piece.update(kind="indexed", targets=targets, predicate=last.operands[0])
        else:
            piece.update(kind="fall", targets=(k + 1,))

    order = _order([piece["targets"] for piece in pieces])
    number = {piece: n for n, piece in enumerate(order)}
    blocks, executed, charged = [], [-1] * count, [-1] * count
    for n, k in enumerate(order):
        piece = pieces[k]
        start, stop = piece["start"], piece["stop"]
        for i in range(start, stop):
            executed[i] = charged[i] = n
        blocks.append(
            Block(
                n,
                start,
                stop,
                piece["kind"],
                tuple(number[t] for t in piece["targets"]),
                piece.get("predicate"),
                piece.get("negated", False),
                bool(piece["guard"]),
                waits(instructions[start]) if stop > start else "",
            )
        )
    for block in blocks:
        if block.guard:
            charged[block.start] = block.index
    return blocks, executed, charged


def liveness(program: Program, resolve: Callable[[Register], Register | None]) -> tuple[list[int], list[int]]:
    """Live registers at the start and end of each block, as bit sets; resolve gives what is read instead."""
    used, defined = [], []
    for block in program.blocks:
        use = define = 0
        for i in range(block.start, block.stop):
            instruction = program.instructions[i]
            for register in map(resolve, reads(instruction)):
                if register is not None:
                    use |= 1 << register.index & ~define
            for register in writes(instruction):
                define |= 1 << register.index
        register = resolve(block.predicate) if block.predicate else None
        if register is not None:
            use |= 1 << register.index & ~define
        used.append(use)
        defined.append(define)
    live_in, live_out = list(used), [0] * len(used)
    changed = True
    while changed:
        changed = False
        for block in reversed(program.blocks):
            out = 0
            for target in block.targets:
                out |= live_in[target]
            new = used[block.index] | (out & ~defined[block.index])
            if out != live_out[block.index] or new != live_in[block.index]:
                live_out[block.index], live_in[block.index] = out, new
                changed = True
    return live_in, live_out


_MEMORY_OPCODES = ("ld", "ldu", "st", "atom", "red")


def starts_copy(instruction: Instruction) -> bool:
    """Whether the instruction is a cp.async of 4, 8 or 16 bytes a thread."""
    mods = instruction.modifiers
    return instruction.opcode == "cp" and mods[:1] == ("async",) and mods[1:2] in (("ca",), ("cg",))


def awaits_copies(instruction: Instruction) -> bool:
    """Whether the instruction is a cp.async.wait_group or wait_all."""
    return instruction.opcode == "cp" and instruction.modifiers[1:] in (("wait_group",), ("wait_all",))


def _copy_access(program: Program, instruction: Instruction) -> Access:
    target, source, size = (*instruction.operands, None, None, None)[:3]
    if not (isinstance(target, Address) and isinstance(source, Address) and isinstance(size, Immediate)):
        raise PtxError(f"{instruction.name} needs two addresses and a size", instruction.line)
    for address, spaces in ((target, ("shared",)), (source, ("global", "const"))):
        if isinstance(address.base, Symbol) and program.space_of(address.base) not in spaces:
            raise PtxError(f"{instruction.name} of the variable {address.base.name}", instruction.line)
    return Access("global", "cp", "b32", 4, max(size.value // 4, 1), source, None, True, target)


def _matrix_access(program: Program, instruction: Instruction) -> Access:
    """Each address of an ldmatrix or stmatrix is one row of 16 bytes."""
    address = next((o for o in instruction.operands if isinstance(o, Address)), None)
    if address is None:
        raise PtxError(f"{instruction.name} needs an address", instruction.line)
    shared = any(m.split("::")[0] == "shared" for m in instruction.modifiers)
    if isinstance(address.base, Symbol) and (not shared or program.space_of(address.base) != "shared"):
        raise PtxError(f"{instruction.name} of the variable {address.base.name}", instruction.line)
    return Access("shared" if shared else "generic", instruction.opcode, "b32", 4, 4, address, None, True)


def race_unit(program: Program) -> int:
    """The bytes that racecheck tells apart: 4, or less where shared memory is accessed in smaller pieces."""
    spaces = ("shared", "generic")
    return min((a.width for a in program.access.values() if a.space in spaces and a.width < 4), default=4)


def needs_whole_warp(instruction: Instruction) -> bool:
    """Whether a warp operation has no member mask: all 32 lanes take part."""
    return instruction.opcode in ("mma", "ldmatrix", "stmatrix", "movmatrix")


def _accesses(program: Program) -> None:
    for i, instruction in enumerate(program.instructions):
        if instruction.opcode in ("ldmatrix", "stmatrix"):
            program.access[i] = _matrix_access(program, instruction)
        if starts_copy(instruction):
            program.access[i] = _copy_access(program, instruction)
        if instruction.opcode not in _MEMORY_OPCODES:
            continue
        address = next((o for o in instruction.operands if isinstance(o, Address)), None)
        types = instruction.types
        if address is None or not types:
            raise PtxError(f"{instruction.name} needs a type and an address", instruction.line)
        named = [m.split("::")[0] for m in instruction.modifiers]
        space = next((m for m in named if m in ("param", "shared", "local", "global", "const")), "generic")
        count = next((int(m[1:]) for m in named if m in ("v2", "v4", "v8")), 1)
        counted, static = True, None
        base = address.base
        if isinstance(base, Symbol):
            own = program.space_of(base)
            if space == "param" and own == "local":
                space, counted = "local", False
            elif space == "generic" and own in ("param", "shared", "local"):
                raise PtxError(f"{instruction.name} of a {own} variable needs its space", instruction.line)
            elif space not in ("generic", own):
                raise PtxError(f"{instruction.name} of the {own} variable {base.name}", instruction.line)
            if base.name in program.symbols:
                static = program.symbols[base.name][1] + base.offset + address.offset
        elif base is None:
            static = address.offset
        type_ = types[-1]
        program.access[i] = Access(
            space, instruction.opcode, type_, TYPE_BYTES[type_], count, address, static, counted
        )


def build(module: Module, entry: str) -> Program:
    """The Program of one kernel. Raises LaunchError naming the kernels there are; PtxError."""
    function = module.functions.get(entry)
    if function is None or not function.entry or function.declared_only:
        raise LaunchError(f"no kernel named {entry}; found {', '.join(module.entries) or 'none'}")
    try:
        return _build(module, entry, function)
    except PtxError as error:
        places = {i.line: i.source for f in module.functions.values() for i in f.body}
        if error.source or not places.get(error.line):
            raise
        raise type(error)(error.message, error.line, places[error.line]) from None


def _build(module: Module, entry: str, function: Function) -> Program:
    builder = _Builder(module)
    builder.inline(function, {v.name: v.name for v in function.params}, ())
    param_offsets, param_bytes = layout(function.params)
    shared, shared_bytes = layout(builder.shared)
    align = max((v.align for v in builder.dynamic), default=16)
    dynamic_offset = -(-shared_bytes // align) * align
    frame, frame_bytes = layout(builder.frame)
    symbols = {name: ("param", offset) for name, offset in param_offsets.items()}
    symbols |= {name: ("shared", offset) for name, offset in shared.items()}
    symbols |= {v.name: ("shared", dynamic_offset) for v in builder.dynamic}
    symbols |= {name: ("local", offset) for name, offset in frame.items()}
    blocks, executed, charged = _split(builder.instructions)
    program = Program(
        entry=entry,
        target=module.target,
        instructions=builder.instructions,
        blocks=blocks,
        registers=builder.registers,
        params=function.params,
        param_offsets=param_offsets,
        param_bytes=param_bytes,
        shared_static=shared_bytes,
        dynamic_offset=dynamic_offset,
        local_bytes=-(-frame_bytes // 16) * 16,
        symbols=symbols,
        variables=builder.used_module_variables,
        directives=dict(function.directives),
        executed_in=executed,
        charged=charged,
    )
    _accesses(program)
    program.live_in, program.live_out = liveness(program, lambda register: register)
    return program
