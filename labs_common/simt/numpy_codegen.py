"""Basic blocks as Python functions over NumPy arrays: `function(R, S, L)`.

R is the list of register arrays of a group of lanes (one element where the value is the same in all), S the
running batch (memory, special registers, warp operations), L the group's lanes. Registers that do not live
beyond the block are local variables. Aliases are read at their source; launch constants are in R beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .errors import UnsupportedError
from .ops import copy_limit, operands, operation
from .parse import (
    TYPE_BYTES,
    Address,
    Group,
    Immediate,
    Instruction,
    Negated,
    Register,
    Sink,
    Special,
    Symbol,
    bits_of,
)
from .program import Block, Program, needs_whole_warp, writes
from .vector_math import DTYPES


@dataclass
class Code:
    """One basic block: needs are the registers it reads from R, gives those it leaves there.

    wait gives the source values of the instruction the block waits at (member mask; barrier number, count).
    """

    block: Block
    function: Callable
    needs: tuple[int, ...]
    gives: tuple[int, ...]
    wait: Callable | None
    wait_needs: tuple[int, ...]
    length: int  # instructions charged to the block


def constant(value: int, type_: str) -> np.ndarray:
    """A one-element array from a bit pattern."""
    dtype = DTYPES[type_]
    if type_ == "pred":
        return np.array([bool(value)])
    return np.array([value], np.dtype(f"u{dtype.itemsize}")).view(dtype)


class _Writer:
    """Emits the source of one block's function."""

    def __init__(self, owner: Compiler, name: str):
        self.owner = owner
        self.lines = [f"def {name}(R, S, L):"]
        self.needs: dict[int, None] = {}
        self.defined: dict[int, None] = {}
        self.forms: dict[int, dict[np.dtype, str]] = {}  # register -> dtype -> local variable
        self.count = 0

    def fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def emit(self, expression: str) -> str:
        name = self.fresh()
        self.lines.append(f"    {name} = {expression}")
        return name

    def canonical(self, register: Register) -> np.dtype:
        dtype = DTYPES.get(register.type)
        if dtype is None:
            raise UnsupportedError(f"a register of type {register.type} is not simulated")
        return dtype

    def read(self, register: Register, dtype: np.dtype) -> str:
        """The register as an array of dtype: viewed if equally wide, cut if the register is wider."""
        home = self.canonical(register)
        forms = self.forms.get(register.index)
        if forms is None:
            self.needs[register.index] = None
            name = f"r{register.index}"
            self.lines.append(f"    {name} = R[{register.index}]")
            forms = self.forms[register.index] = {home: name}
        known = forms.get(dtype)
        if known is not None:
            return known
        if (dtype == np.bool_) != (home == np.bool_) or dtype.itemsize > home.itemsize:
            raise UnsupportedError(f"the register {register.name} of type {register.type} as {dtype}")
        source_type, source = next(iter(forms.items()))
        if dtype.itemsize < home.itemsize:
            unsigned = np.dtype(f"u{home.itemsize}")
            if unsigned in forms:
                bits = forms[unsigned]
            else:
                bits = forms[unsigned] = self.emit(f"{source}.view({self.owner.dtype(unsigned)})")
            cut = np.dtype(f"u{dtype.itemsize}")
            name = self.emit(f"{bits}.astype({self.owner.dtype(cut)})")
            if cut != dtype:
                name = self.emit(f"{name}.view({self.owner.dtype(dtype)})")
        else:
            assert source_type.itemsize == dtype.itemsize
            name = self.emit(f"{source}.view({self.owner.dtype(dtype)})")
        forms[dtype] = name
        return name

    def source(self, operand, type_: str, instruction: Instruction) -> str:
        dtype = DTYPES[type_]
        if isinstance(operand, Register):
            operand = self.owner.program.aliases.get(operand.index, operand)
        if isinstance(operand, Register):
            return self.read(operand, dtype)
        if isinstance(operand, Immediate):
            return self.owner.constant(constant(bits_of(operand, type_, instruction.line), type_))
        if isinstance(operand, Negated):
            register = self.owner.program.aliases.get(operand.register.index, operand.register)
            return self.emit(f"~{self.read(register, dtype)}")
        if isinstance(operand, Symbol):
            address = self.owner.program.address_of(operand, self.owner.addresses)
            return self.owner.constant(constant(address & ((1 << 8 * TYPE_BYTES[type_]) - 1), type_))
        if isinstance(operand, Special):
            wide = operand.name.endswith(("64", "globaltimer"))
            name = self.emit(f"S.special({operand.name!r}, L)")
            if dtype.itemsize < (8 if wide else 4):
                name = self.emit(f"{name}.astype({self.owner.dtype(np.dtype(f'u{dtype.itemsize}'))})")
            elif dtype.itemsize > (8 if wide else 4):
                name = self.emit(f"{name}.astype({self.owner.dtype(np.dtype('u8'))})")
            return self.emit(f"{name}.view({self.owner.dtype(dtype)})")
        raise UnsupportedError(
            f"{instruction.name}: an operand of the kind {type(operand).__name__} is not simulated",
            instruction.line,
            instruction.source,
        )

    def result(self, target, type_: str, name: str, instruction: Instruction) -> None:
        """Record that the local variable holds the target's new value, widened to the register."""
        if isinstance(target, Sink):
            return
        if not isinstance(target, Register):
            raise UnsupportedError(
                f"{instruction.name}: a result must be a register", instruction.line, instruction.source
            )
        dtype, home = DTYPES[type_], self.canonical(target)
        if (dtype == np.bool_) != (home == np.bool_) or dtype.itemsize > home.itemsize:
            raise UnsupportedError(
                f"{instruction.name}: a {type_} result does not fit {target.name} of type {target.type}",
                instruction.line,
                instruction.source,
            )
        if dtype.itemsize < home.itemsize:
            dtype = np.dtype(f"{'i' if dtype.kind == 'i' else 'u'}{home.itemsize}")
            name = self.emit(f"{name}.astype({self.owner.dtype(dtype)})")
        self.forms[target.index] = {dtype: name}
        self.defined[target.index] = None

    def address(self, address: Address, instruction: Instruction) -> str:
        base = address.base
        if isinstance(base, Register):
            base = self.owner.program.aliases.get(base.index, base)
        if isinstance(base, Register):
            wide = self.canonical(base).itemsize == 8
            name = self.source(base, "u64" if wide else "u32", instruction)
            if not wide:
                name = self.emit(f"{name}.astype({self.owner.dtype(np.dtype('u8'))})")
            if address.offset:
                offset = self.owner.constant(constant(address.offset & (2**64 - 1), "u64"))
                name = self.emit(f"{name} + {offset}")
            return name
        if isinstance(base, Symbol):
            value = self.owner.program.address_of(base, self.owner.addresses) + address.offset
        elif isinstance(base, Immediate):
            value = base.value + address.offset
        else:
            value = address.offset
        return self.owner.constant(constant(value & (2**64 - 1), "u64"))


class Compiler:
    """Compiles every block of a program whose module variables have `addresses`."""

    def __init__(self, program: Program, addresses: dict[str, int], trace: bool = False):
        self.program, self.addresses, self.trace = program, addresses, trace
        self.namespace: dict[str, object] = {"np": np}
        self._constants: dict[tuple, str] = {}
        self.copying = any(a.operation == "cp" for a in program.access.values())
        self.skipped = set(program.launch_constants)
        constant_registers = {r.index for i in self.skipped for r in writes(program.instructions[i])}
        self.skipped |= {
            i
            for index in program.aliases
            if index not in constant_registers
            for i in program.definitions[index]
        }

    def dtype(self, dtype: np.dtype) -> str:
        """The name of a dtype in the generated text."""
        name = f"t_{dtype.name}"
        self.namespace[name] = dtype
        return name

    def constant(self, value: np.ndarray) -> str:
        """The name of a literal array."""
        key = (value.dtype, value.tobytes())
        name = self._constants.get(key)
        if name is None:
            name = self._constants[key] = f"c{len(self._constants)}"
            value.flags.writeable = False
            self.namespace[name] = value
        return name

    def function(self, value: Callable) -> str:
        """The name of a row's function."""
        name = f"f{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def compile(self) -> list[Code]:
        """The code of every block, in their order. Raises UnsupportedError before anything runs."""
        program = self.program
        live_out = program.resolved_live[1]
        lengths = np.bincount([c for c in program.charged if c >= 0], minlength=len(program.blocks))
        texts, parts = [], []
        for block in program.blocks:
            writer = _Writer(self, f"block{block.index}")
            for i in range(block.start, block.stop):
                self.instruction(writer, i)
            gives = [r for r in writer.defined if live_out[block.index] >> r & 1]
            returned = ""
            if block.kind in ("branch", "indexed"):
                type_ = "pred" if block.kind == "branch" else "u32"
                last = program.instructions[min(block.stop, len(program.instructions)) - 1]
                returned = writer.source(block.predicate, type_, last)
            for register in gives:
                home = DTYPES[program.registers[register].type]
                name = writer.read(program.registers[register], home)
                writer.lines.append(f"    R[{register}] = {name}")
            writer.lines.append(f"    return {returned}")
            wait = self.wait(block)
            texts += writer.lines
            if wait:
                texts += wait.lines
            parts.append((block, tuple(writer.needs), tuple(gives), wait, int(lengths[block.index])))
        exec(compile("\n".join(texts), f"<{program.entry}>", "exec"), self.namespace)  # our own text
        return [
            Code(
                block,
                self.namespace[f"block{block.index}"],
                needs,
                gives,
                self.namespace[f"wait{block.index}"] if wait else None,
                tuple(wait.needs) if wait else (),
                length,
            )
            for block, needs, gives, wait, length in parts
        ]

    def wait(self, block: Block) -> _Writer | None:
        """The function that gives what a waiting block waits with."""
        if not block.waits:
            return None
        writer = _Writer(self, f"wait{block.index}")
        instruction = self.program.instructions[block.start]
        row = operation(instruction)
        sources = operands(instruction)[1]
        if block.waits == "warp":
            if needs_whole_warp(instruction):
                values = [self.constant(constant(0xFFFFFFFF, "u32"))]
            elif instruction.opcode == "elect":
                values = [writer.source(sources[0], "u32", instruction)]
            else:
                values = [writer.source(sources[-1], "u32", instruction)]
        else:
            numbers = [(s, t) for s, t in zip(sources, row.sources, strict=True) if t == "u32"]
            values = [writer.source(s, t, instruction) for s, t in numbers]
        writer.lines.append(f"    return ({', '.join(values)},)")
        return writer

    def instruction(self, writer: _Writer, i: int) -> None:
        """Write one instruction, unless it is an alias or a launch constant."""
        if i in self.skipped:
            return
        instruction = self.program.instructions[i]
        row = operation(instruction)
        targets, sources = operands(instruction)
        if row.kind == "alu":
            values = [writer.source(s, t, instruction) for s, t in zip(sources, row.sources, strict=True)]
            call = f"{self.function(row.numpy)}({', '.join(values)})"
            if (
                instruction.opcode == "mov"
                and row.numpy is not None
                and len(values) == 1
                and len(targets) == 1
            ):
                call = values[0]
            self.results(writer, i, instruction, targets, row.results, call)
        elif row.kind == "memory":
            self.memory(writer, i, instruction, row, targets, sources)
        elif row.kind == "copy":
            if instruction.modifiers == ("async", "commit_group"):
                call = "commit(L)"
            else:  # wait_all has no operand
                call = f"wait(L, {row.constants[0] if row.constants else None})"
            if self.copying:
                writer.lines.append(f"    S.copies.{call}")
        elif row.kind == "warp":
            values = [
                writer.address(s, instruction) if isinstance(s, Address) else writer.source(s, t, instruction)
                for s, t in zip(sources, row.sources, strict=True)
            ]
            mode = instruction.modifiers
            call = f"S.{instruction.opcode}(L, {i}, {mode!r}, {len(targets)}, {', '.join(values)})"
            if instruction.opcode == "bar":  # the engine has waited
                writer.lines.append("    if S.races: S.races.warp_sync(L)")
                return
            if not targets:
                writer.lines.append(f"    {call}")
                return
            self.results(writer, i, instruction, targets, row.results, call)
        elif row.kind == "barrier":
            if "red" in instruction.modifiers:
                value = writer.source(sources[-1], "pred", instruction)
                how = next(m for m in instruction.modifiers if m in ("popc", "and", "or"))
                self.results(writer, i, instruction, targets, row.results, f"S.bar_red(L, {how!r}, {value})")
        elif instruction.opcode == "call" and isinstance(instruction.operands[0], Symbol):
            group = instruction.operands[1]
            if isinstance(group, Group) and group.elements:
                offsets = tuple(self.program.symbols[s.name][1] for s in group.elements)
                writer.lines.append(f"    S.builtin(L, {i}, {instruction.operands[0].name!r}, {offsets!r})")
        elif instruction.opcode == "trap":
            writer.lines.append(f"    S.trap(L, {i})")

    def results(self, writer, i, instruction, targets, types, call: str) -> None:
        """Assign what a call gives to the targets."""
        names = [writer.fresh() for _ in targets]
        writer.lines.append(f"    {', '.join(names)} = {call}")
        for target, type_, name in zip(targets, types, names, strict=True):
            writer.result(target, type_, name, instruction)
        if self.trace:
            writer.lines.append(f"    S.trace(L, {i}, ({', '.join(names)},))")

    def memory(self, writer, i, instruction, row, targets, sources) -> None:
        """Write a load, store or atomic."""
        access = self.program.access[i]
        address = writer.address(access.address, instruction)
        if access.operation == "cp":
            self.copy(writer, i, instruction, address)
            return
        sources = [s for s in sources if not isinstance(s, Address)]
        hint = any("cache_hint" in m for m in instruction.modifiers)
        if hint:
            sources = sources[:-1]
        if access.operation in ("ld", "ldu"):
            self.results(writer, i, instruction, targets, row.results, f"S.load(L, {i}, {address})")
            return
        values = [writer.source(s, t, instruction) for s, t in zip(sources, row.sources, strict=True)]
        if access.operation == "st":
            writer.lines.append(f"    S.store(L, {i}, {address}, ({', '.join(values)},))")
            if self.trace:
                writer.lines.append(f"    S.trace(L, {i}, ({', '.join(values)},))")
            return
        how = next(m for m in instruction.modifiers if m in _ATOMIC_NAMES)
        call = f"S.atomic(L, {i}, {how!r}, {address}, ({', '.join(values)},))"
        if targets:
            self.results(writer, i, instruction, targets, row.results, call)
        else:
            writer.lines.append(f"    {call}")

    def copy(self, writer, i, instruction, address: str) -> None:
        """Write a cp.async."""
        target = writer.address(self.program.access[i].destination, instruction)
        call = f"S.copies.start(L, {i}, {target}, {address}"
        limit = copy_limit(instruction)
        if limit is not None:
            value = writer.source(*limit, instruction)
            if limit[1] == "pred":
                span = 4 * self.program.access[i].count
                value = f"np.where({value}, np.uint32(0), np.uint32({span}))"
            call += f", {value}"
        writer.lines.append(f"    {call})")


_ATOMIC_NAMES = ("add", "min", "max", "and", "or", "xor", "inc", "dec", "exch", "cas")
