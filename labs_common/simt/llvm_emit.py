"""A program as LLVM IR: `uniform` code with scalars where it can, `masked` code for lanes that went apart.

uniform(ctx, warp): all living lanes of the warp are at one block. Registers are SSA values; a branch that every
lane takes the same way stays inside. A short arm of a divergent branch is run in place under a mask; otherwise
the warp's registers are stored, one pc per lane, and the function returns SWITCH.
masked(ctx, warp): the lowest block that a runnable lane is at runs for the lanes that are there; registers that
live across blocks are in the warp state. Where all lanes have met and the scalars of uniform code are equal in
all of them, the warp goes back. `setup` computes what is the same for the whole launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from . import llvm_layout as at
from . import llvm_runtime as runtime
from .errors import UnsupportedError
from .llvm_analysis import Analysis, analyse, chains
from .llvm_layout import CTX
from .llvm_ops import TextEmitter, emitter, ir_type
from .llvm_runtime import ACCESS_COUNTERS, Function
from .llvm_text import WARP, Module, Value, const
from .memory import WINDOW
from .ops import Operation, operands, operation
from .parse import (
    TYPE_BYTES,
    Address,
    Immediate,
    Instruction,
    Negated,
    Register,
    Sink,
    Special,
    Symbol,
    bits_of,
)
from .program import Access, Block, Program, liveness

_SPACES = {
    "global": at.SPACE_GLOBAL,
    "const": at.SPACE_CONST,
    "shared": at.SPACE_SHARED,
    "local": at.SPACE_LOCAL,
    "generic": at.SPACE_GENERIC,
    "param": at.SPACE_PARAM,
}
# control flow is in the blocks; the rest orders or hints, and changes no value here
_NOTHING_TO_DO = frozenset(
    ("bra", "brx", "ret", "exit", "trap", "membar", "fence", "nanosleep", "prefetch", "prefetchu", "pmevent")
    + ("brkpt", "discard", "applypriority")
)
TRUE, FALSE = Value("true", "i1"), Value("false", "i1")


def register_type(register: Register) -> str:
    """Registers travel as integers of their width."""
    if register.type == "pred":
        return "i1"
    return f"i{8 * TYPE_BYTES[register.type]}"


class Layout:
    """Offsets that depend on the program: register slots of a warp state, counters, symbols, constants."""

    def __init__(self, program: Program, analysis: Analysis):
        self.vector_slots: dict[int, int] = {}
        self.scalar_slots: dict[int, int] = {}
        end = at.WARP_SLOTS
        for register in program.registers:
            if analysis.saved >> register.index & 1:
                width = 1 if register.type == "pred" else 8 * TYPE_BYTES[register.type]
                self.vector_slots[register.index] = end
                end += -(-4 * width // 64) * 64
        for register in program.registers:
            if analysis.saved >> register.index & 1 and register.index not in analysis.vectors:
                self.scalar_slots[register.index] = end
                end += 8
        self.warp_bytes = -(-end // 64) * 64 + 64  # a line more, so that warps do not share one
        self.slots_bytes = end - at.WARP_SLOTS
        blocks = len(program.blocks)
        self.access_number = {i: k for k, i in enumerate(sorted(program.access))}
        self.uniform_warps, self.uniform_lanes = 0, 8 * blocks
        self.masked_warps, self.masked_lanes = 16 * blocks, 24 * blocks
        self.divergent = 32 * blocks
        self.accesses = 40 * blocks
        self.variables = {name: 8 * k for k, name in enumerate(sorted(program.variables))}


class Code:
    """One function of the kernel and how it reads and writes registers. Subclassed for the three functions."""

    def __init__(self, kernel: Kernel, name: str, returns: str, arguments: list[tuple[str, str]]):
        self.kernel = kernel
        self.program, self.analysis, self.layout = kernel.program, kernel.analysis, kernel.layout
        self.live_in, self.live_out = kernel.program.resolved_live
        self.f = Function(kernel.module, name, returns, arguments, internal=False)
        self.e = TextEmitter(self.f)
        self.cache: dict[int, Value] = {}
        self.mask = Value("%mask", "i32")  # lanes that execute what is being emitted
        self.full = False  # mask is every living lane
        self.fault_label = ""
        self.index = 0

    # ---- values

    def constant_register(self, register: Register) -> Value | None:
        """A register that is the same for the whole launch."""
        index = register.index
        if index in self.analysis.constants:
            known = self.analysis.constants[index]
            type_ = register_type(register)
            if isinstance(known, Immediate):
                return const(type_, bits_of(known, register.type if register.type != "pred" else "pred"))
            return self.f.resize(self.symbol(known), type_)
        if index in self.analysis.computed:
            type_ = register_type(register)
            stored = "i8" if type_ == "i1" else type_
            base = self.f.field("ptr", "%ctx", CTX["constants"], invariant=True).name
            value = self.f.load(stored, self.f.pointer(base, 8 * index), invariant=True)
            return self.f.cast("trunc", value, "i1") if type_ == "i1" else value
        return None

    def symbol(self, symbol: Symbol) -> Value:
        """The address that a name stands for, 64 bits."""
        if symbol.name in self.program.symbols:
            space, offset = self.program.symbols[symbol.name]
            return const("i64", offset + symbol.offset)
        base = self.f.field("ptr", "%ctx", CTX["symbols"], invariant=True).name
        address = self.f.load("i64", self.f.pointer(base, self.layout.variables[symbol.name]), invariant=True)
        return self.f.bin("add", address, const("i64", symbol.offset)) if symbol.offset else address

    def read(self, register: Register) -> Value:
        source = self.program.aliases.get(register.index)
        if isinstance(source, Register):
            register = source
        known = self.cache.get(register.index)
        if known is None:
            known = self.constant_register(register)
            if known is None:
                known = self.load_register(register)
            self.cache[register.index] = known
        return known

    def load_register(self, register: Register) -> Value:
        raise NotImplementedError

    def write(self, register: Register, value: Value) -> None:
        raise NotImplementedError

    def source(self, operand, type_: str) -> Value:
        """An operand as the opcode's row takes it."""
        f = self.f
        if isinstance(operand, Immediate):
            if type_ in ("f32", "f64"):
                bits = bits_of(operand, type_, self.line)
                width = 8 * TYPE_BYTES[type_]
                value = f.cast("bitcast", const(f"i{width}", bits), ir_type(type_))
                if type_ == "f32" and not 0 < bits & 0x7FFFFFFF < 0x00800000:
                    self.e.known_flushed(value)
                return value
            if type_ in ("f16", "bf16") and operand.kind != "int":
                raise UnsupportedError(f"a {operand.kind} literal as {type_} is not simulated", self.line)
            return const(
                ir_type(type_), bits_of(operand, type_ if type_ == "pred" else f"b{ir_type(type_)[1:]}")
            )
        if isinstance(operand, Register):
            value = self.read(operand)
            return self.typed(value, operand, type_)
        if isinstance(operand, Negated):
            return f.bin("xor", self.read(operand.register), const("i1", 1))
        if isinstance(operand, Symbol):
            value = self.symbol(operand)
            if operand.name in self.program.symbols and self.program.symbols[operand.name][0] == "param":
                value = f.bin("add", value, const("i64", WINDOW["param"]))
            return f.resize(value, ir_type(type_)) if type_ not in ("f32", "f64") else value
        if isinstance(operand, Special):
            value = self.special(operand.name)
            value = f.resize(value, f"i{8 * TYPE_BYTES[type_]}")
            return f.floats(value) if type_ in ("f32", "f64") else value
        raise UnsupportedError(f"this operand of {self.instruction.name} is not simulated", self.line)

    def typed(self, value: Value, register: Register, type_: str) -> Value:
        """A register's bits as a PTX type of the same or a smaller width."""
        f = self.f
        wanted = ir_type(type_)
        if wanted in ("float", "double"):
            width = 32 if wanted == "float" else 64
            known = self.floating.get((value.name, wanted))
            if known is None:
                known = f.floats(f.resize(value, f"i{width}"))
                self.floating[value.name, wanted] = known
                if wanted == "float" and register.index in self.analysis.flushed:
                    self.e.known_flushed(known)
            return known
        return f.resize(value, wanted)

    def result(self, target, value: Value, type_: str) -> None:
        """Write a value of a PTX type; narrower than the register it is extended by the type's sign."""
        if isinstance(target, Sink):
            return
        f = self.f
        bits = value
        if value.type in ("float", "double"):
            bits = f.bits(value)
            self.floating[bits.name, value.type] = value
        wanted = register_type(target)
        if bits.type != wanted:
            bits = f.resize(bits, wanted, type_[0] == "s")
        self.write(target, bits)

    # ---- special registers

    def special(self, name: str) -> Value:
        f = self.f
        kind, _, axis = name.partition(".")
        if kind in ("tid", "ntid", "ctaid", "nctaid") and axis in "xyz":
            if kind == "tid":
                offset = at.WARP_TID + 128 * "xyz".index(axis)
                return f.load("i32", f.pointer("%warp", offset), WARP, align=64, invariant=True)
            return f.resize(f.field("i64", "%ctx", CTX[f"{kind}_{axis}"], kind != "ctaid"), "i32")
        if kind in ("tid", "ctaid"):
            return const("i32", 0)
        if kind in ("ntid", "nctaid"):
            return const("i32", 1)
        if name == "laneid":
            return f.lane_numbers()
        if name.startswith("lanemask_"):
            which = name[-2:]
            masks = {
                "eq": lambda k: 1 << k,
                "le": lambda k: (2 << k) - 1,
                "lt": lambda k: (1 << k) - 1,
                "ge": lambda k: 0xFFFFFFFF & ~((1 << k) - 1),
                "gt": lambda k: 0xFFFFFFFF & ~((2 << k) - 1),
            }[which]
            return f.vector_literal("i32", [masks(k) for k in range(WARP)])
        if name == "warpid":
            return f.resize(f.field("i64", "%warp", at.WARP_INDEX), "i32")
        if name == "nwarpid":
            return f.resize(f.field("i64", "%ctx", CTX["warps_per_block"], True), "i32")
        if name in ("smid", "gridid", "clusterid", "cluster_ctarank") or kind in (
            "clusterid",
            "cluster_ctaid",
        ):
            return const("i32", 0)
        if name == "nsmid" or kind in ("nclusterid", "cluster_nctaid", "cluster_nctarank"):
            return const("i32", 1)
        if name in ("dynamic_smem_size", "total_smem_size"):
            size = f.field("i64", "%ctx", CTX["shared_size"], True)
            if name == "dynamic_smem_size":
                size = f.bin("sub", size, const("i64", self.program.dynamic_offset))
                size = f.intrinsic("smax", size, const("i64", 0))
            return f.resize(size, "i32")
        if name in ("clock", "clock64", "globaltimer", "clock_hi", "globaltimer_lo", "globaltimer_hi"):
            # instructions of the thread's warp so far stand in for time
            now = f.bin(
                "sub",
                f.field("i64", "%ctx", CTX["budget"]),
                f.bin("add", f.field("i64", "%warp", at.WARP_BUDGET), f.field("i64", "%warp", at.WARP_CHUNK)),
            )
            if name.endswith("_hi"):
                return f.resize(f.bin("lshr", now, const("i64", 32)), "i32")
            return now if name.endswith("64") or name == "globaltimer" else f.resize(now, "i32")
        raise UnsupportedError(f"the special register %{name} is not simulated", self.line)

    # ---- instructions

    @property
    def instruction(self) -> Instruction:
        return self.program.instructions[self.index]

    @property
    def line(self) -> int:
        return self.instruction.line

    def count(self, offset: int, number: int, amount: Value) -> None:
        self.f.add_to(self.counters, offset + 8 * number, amount)

    def body(self, block: Block) -> None:
        """The block's instructions; its branch, if any, is left to the caller."""
        for i in range(block.start, block.stop):
            self.index = i
            if i in self.analysis.skipped:
                continue
            row = operation(self.instruction)
            if row.kind == "alu":
                self.alu(row)
            elif row.kind == "memory":
                self.memory(row, self.program.access[i])
            elif row.kind == "warp":
                self.warp(row)
            elif row.kind == "barrier":
                self.after_barrier(row)
            elif self.instruction.opcode == "call":
                self.call()
            elif self.instruction.opcode not in _NOTHING_TO_DO:
                raise UnsupportedError(f"{self.instruction.name} is not simulated by this engine", self.line)

    def alu(self, row: Operation) -> None:
        targets, sources = operands(self.instruction)
        function = emitter(row, WINDOW)
        if function is None:
            raise UnsupportedError(f"{self.instruction.name} is not simulated by this engine", self.line)
        values = [self.source(o, t) for o, t in zip(sources, row.sources, strict=True)]
        made = function(self.e, *values)
        made = made if isinstance(made, tuple) else (made,)
        for target, value, type_ in zip(targets, made, row.results, strict=True):
            self.result(target, value, type_)

    # ---- memory

    def address(self, access: Access) -> Value:
        f = self.f
        address: Address = access.address
        if isinstance(address.base, Symbol):
            base = self.symbol(address.base)
        elif address.base is None:
            base = const("i64", 0)
        else:
            base = f.resize(self.read(address.base), "i64")
        if not address.offset:
            return base
        if base.literal:
            return const("i64", int(base.name) + address.offset)
        return f.bin("add", base, const("i64", address.offset))

    def memory(self, row: Operation, access: Access) -> None:
        if access.operation in ("atom", "red"):
            self.atomic(row, access)
            return
        address = self.address(access)
        span = access.width * access.count
        store = access.operation == "st"
        space = access.space
        scalar = address.lanes == 1 and space in ("global", "const", "shared") and not store
        if space == "param":
            scalar = address.lanes == 1
            if access.static is not None and access.static + span <= self.program.param_bytes:
                self.parameter(row, access)
                return
            if access.static is not None:
                address = const("i64", WINDOW["param"] + access.static)
        targets, sources = operands(self.instruction)
        data = None
        if store:
            values = self.values_of(sources)
            parts = [
                self.f.spread(self.bits_of_source(o, t)) for o, t in zip(values, row.sources, strict=True)
            ]
            data = self.interleave(parts)
        loaded = self.load_or_store(access, address, span, data, scalar)
        if store:
            return
        type_ = row.results[0]
        for target, value in zip(targets, self.split(loaded, access), strict=True):
            self.result(target, value, type_)

    def values_of(self, sources: list) -> list:
        """The operands of a store or atomic that are data."""
        values = [s for s in sources if not isinstance(s, Address)]
        hint = any("cache_hint" in m for m in self.instruction.modifiers)
        return values[:-1] if hint else values

    def bits_of_source(self, operand, type_: str) -> Value:
        value = self.source(operand, type_)
        return self.f.bits(value) if value.type in ("float", "double") else value

    def parameter(self, row: Operation, access: Access) -> None:
        base = self.f.field("ptr", "%ctx", CTX["params"], invariant=True).name
        targets, _ = operands(self.instruction)
        for k, target in enumerate(targets):
            pointer = self.f.pointer(base, access.static + k * access.width)
            value = self.f.load(f"i{8 * access.width}", pointer, align=1, invariant=True)
            self.result(target, value, row.results[0])

    def interleave(self, parts: list[Value]) -> Value:
        """Vectors of 32 -> one vector in memory order, element k of lane i at i * n + k."""
        f = self.f
        if len(parts) == 1:
            return parts[0]
        type_, count = parts[0].type, len(parts)

        def pair(a: Value, b: Value, pattern: list[int]) -> Value:
            listed = ", ".join(f"i32 {n}" for n in pattern)
            return f.emit(f"shufflevector {a}, {b}, <{len(pattern)} x i32> <{listed}>", type_, len(pattern))

        if count == 2:
            return pair(*parts, [i + 32 * k for i in range(WARP) for k in range(2)])
        low = pair(*parts[:2], list(range(64)))
        high = pair(*parts[2:], list(range(64)))
        return pair(low, high, [i + 32 * k for i in range(WARP) for k in range(4)])

    def split(self, loaded: Value, access: Access) -> list[Value]:
        """The elements of a loaded vector, each one scalar or 32 lanes."""
        f = self.f
        count = access.count
        if count == 1:
            return [loaded]
        if loaded.lanes == count:
            return [f.extract(loaded, k) for k in range(count)]
        return [f.shuffle(loaded, [i * count + k for i in range(WARP)]) for k in range(count)]

    def load_or_store(
        self, access: Access, address: Value, span: int, data: Value | None, scalar: bool
    ) -> Value | None:
        """The access with its checks and counters: the loaded vector in memory order (scalar: one lane's)."""
        f = self.f
        element, count = f"i{8 * access.width}", access.count
        space = _SPACES[access.space]
        number = self.layout.access_number[self.index]
        fast, slow, after = f.new_label("fast"), f.new_label("slow"), f.new_label("after")
        counters = self.layout.accesses + 8 * ACCESS_COUNTERS * number
        store = data is not None
        parts: list[tuple[Value, str]] = []
        is_global = space in (at.SPACE_GLOBAL, at.SPACE_GENERIC, at.SPACE_CONST)
        has_fast = is_global or space == at.SPACE_SHARED
        one_lane = address.lanes == 1
        if (one_lane and store) or not (one_lane or self.full):
            has_fast = False  # the helper has fast ways of its own for these
        if has_fast:
            entry = f.pointer(f.field("ptr", "%ctx", CTX["cache"], True).name, at.CACHE_BYTES * number)
            first = f.extract(address, 0)
            reach = span if one_lane else WARP * span
            if is_global:
                offset = f.bin("sub", first, f.field("i64", entry, at.CACHE_BASE))
                limit = f.field("i64", entry, at.CACHE_SIMPLE if one_lane else at.CACHE_FULL)
                ok = f.icmp("ult", offset, limit)
            else:
                offset = first
                size = f.field("i64", "%ctx", CTX["shared_size"], True)
                limit = f.bin("sub", size, const("i64", reach - 1))
                ok = f.bin("and", f.icmp("slt", first, limit), f.icmp("sge", first, const("i64", 0)))
            if span > 1:
                low = f.bin("and", first, const("i64", span - 1))
                ok = f.bin("and", ok, f.icmp("eq", low, const("i64", 0)))
            if not one_lane:
                steps = f.vector_literal("i64", range(0, WARP * span, span))
                same = f.icmp("eq", address, f.bin("add", f.spread(first), steps))
                every = f.icmp("eq", f.mask_bits(same), const("i32", -1))
                ok = f.bin("and", ok, f.bin("and", every, f.icmp("eq", self.mask, const("i32", -1))))
            if not is_global:
                ok = self.shared_flags_ok(ok, offset, span, reach, one_lane, store, slow)
            f.cond(ok, fast, slow, "likely")
            f.label(fast)
            if is_global:
                delta = f.field("i64", entry, at.CACHE_DELTA)
                pointer = f.pointer_of(f.bin("add", first, delta))
                if space != at.SPACE_CONST:
                    self.mark_sectors(
                        entry, first, offset, span, one_lane, counters, space == at.SPACE_GENERIC
                    )
            else:
                pointer = f.pointer(f.field("ptr", "%ctx", CTX["shared"], True).name, offset)
                waves = const("i64", 1 if span <= 4 else span // 4)
                if one_lane and span > 4:
                    waves = self.occupied_groups(span // 4)
                f.add_to(self.counters, counters + 8 * runtime.WAVEFRONTS, waves)
                if store:
                    f.store(Value("splat (i8 15)", "i8", reach // 4), self.flags_pointer(offset), align=1)
                self.look_for_races(offset, span, one_lane, store)
            if store:
                f.store(data, pointer, align=access.width)
            else:
                lanes = count if one_lane else WARP * count
                value = f.load(element, pointer, lanes, align=access.width)
                if one_lane and not scalar:
                    value = self.repeat(value)
                parts.append((value, f.label_name))
            f.br(after)
            f.label(slow)
        # the slow path
        f.store(f.spread(address), f.pointer("%ctx", at.SCRATCH_ADDRESSES), align=64)
        if store:
            f.store(data, f.pointer("%ctx", at.SCRATCH_DATA), align=64)
        kind = 1 if store else 0
        ok = f.call(
            "i1",
            "access",
            "ptr %ctx",
            "ptr %warp",
            f"i32 {self.index}",
            f"i64 {number}",
            f"i32 {space}",
            f"i32 {kind}",
            f"i64 {span}",
            str(self.mask),
        )
        went = f.new_label("went")
        f.cond(ok, went, self.fault_label, "likely")
        f.label(went)
        if not store:
            base = f.pointer("%ctx", at.SCRATCH_DATA)
            if scalar:
                lane = f.intrinsic("cttz", self.mask, flags=", i1 true")
                place = f.pointer(base, f.bin("mul", f.resize(lane, "i64"), const("i64", span)))
                parts.append((f.load(element, place, count, align=1), went))
            else:
                parts.append((f.load(element, base, WARP * count, align=64), went))
        f.br(after)
        f.label(after)
        if store:
            return None
        return parts[0][0] if len(parts) == 1 else f.phi(parts)

    def look_for_races(self, offset: Value, span: int, one_lane: bool, store: bool) -> None:
        """Stepped code only: tell the race check of a fast shared access."""
        if not self.kernel.stepped:
            return
        f = self.f
        words = span // 4
        first = const("i32", 0)
        if one_lane:  # of lanes with one address the last counts
            first = f.bin("sub", const("i32", 31), f.intrinsic("ctlz", self.mask, flags=", i1 true"))
        number = words if one_lane else WARP * words
        shift = 31 if one_lane else words.bit_length() - 1
        after = f.start_if(f.icmp("ne", f.field("i64", "%ctx", CTX["race"], True), const("i64", 0)))
        f.call(
            "void", "race_run", "ptr %ctx", "ptr %warp", f"i32 {self.index}", f"i32 {int(store)}", str(offset),
            f"i64 {number}", f"i32 {shift}", str(first),
        )  # fmt: skip
        f.end_if(after)

    def occupied_groups(self, parts: int) -> Value:
        """How many of the warp's `parts` equal parts have an active lane."""
        f = self.f
        total = const("i64", 0)
        width = WARP // parts
        for k in range(parts):
            part = f.bin("and", self.mask, const("i32", ((1 << width) - 1) << (k * width)))
            total = f.bin("add", total, f.resize(f.icmp("ne", part, const("i32", 0)), "i64"))
        return total

    def repeat(self, value: Value) -> Value:
        """A vector of one lane's elements -> the same for all 32 lanes, in memory order."""
        if value.lanes == 1:
            return self.f.spread(value)
        return self.f.shuffle(value, list(range(value.lanes)) * WARP)

    def flags_pointer(self, offset: Value) -> str:
        base = self.f.field("ptr", "%ctx", CTX["shared_flags"], True).name
        return self.f.pointer(base, self.f.bin("lshr", offset, const("i64", 2)))

    def shared_flags_ok(
        self, ok: Value, offset: Value, span: int, reach: int, one_lane: bool, store: bool, slow: str
    ) -> Value:
        """Loads: that every word was written (where that is checked); sub-word accesses take the slow path."""
        f = self.f
        if span < 4:
            return FALSE
        if store:
            return ok
        look, done = f.new_label("look"), f.new_label("looked")
        f.cond(ok, look, slow, "likely")
        f.label(look)
        words = reach // 4
        flags = f.load("i8", self.flags_pointer(offset), words, align=1)
        if words == 1:
            complete = f.icmp("eq", flags, const("i8", 15))
        else:
            same = f.emit(f"icmp eq {flags}, splat (i8 15)", "i1", words)
            bits = f.emit(f"bitcast {same} to i{words}", f"i{words}")
            complete = f.icmp("eq", bits, Value("-1", f"i{words}"))
        off = f.icmp("eq", f.field("i64", "%ctx", CTX["track_shared"], True), const("i64", 0))
        f.br(done)
        f.label(done)
        return f.bin("or", complete, off)

    def mark_sectors(
        self, entry: str, first: Value, offset: Value, span: int, one_lane: bool, counters: int, generic: bool
    ) -> None:
        """Count the distinct sectors of consecutive lanes (or of one address) and mark them as touched."""
        f = self.f
        if one_lane:
            number = const("i64", 1)
            bits = const("i32", 1)
        else:
            over = f.icmp("ne", f.bin("and", first, const("i64", 31)), const("i64", 0))
            number = f.bin("add", const("i64", span), f.resize(over, "i64"))
            bits = f.select(over, const("i32", (2 << span) - 1), const("i32", (1 << span) - 1))
        f.add_to(self.counters, counters + 8 * runtime.SECTORS, number)
        if generic:
            f.add_to(self.counters, counters + 8 * runtime.GLOBAL_REQUESTS, const("i64", 1))
        marks = f.pointer(
            f.field("ptr", entry, at.CACHE_SECTORS).name, f.bin("lshr", offset, const("i64", 8))
        )
        within = f.resize(f.bin("and", f.bin("lshr", offset, const("i64", 5)), const("i64", 7)), "i32")
        bits = f.bin("shl", bits, within)
        f.store(f.bin("or", f.load("i32", marks, align=1), bits), marks, align=1)

    def atomic(self, row: Operation, access: Access) -> None:
        """atom and red: lane after lane, each a compare-and-swap loop on host memory."""
        f = self.f
        targets, sources = operands(self.instruction)
        type_ = row.sources[0]
        values = [
            f.spread(self.bits_of_source(o, t))
            for o, t in zip(self.values_of(sources), row.sources, strict=True)
        ]
        address = self.address(access)
        width = access.width
        element = f"i{8 * width}"
        number = self.layout.access_number[self.index]
        f.store(f.spread(address), f.pointer("%ctx", at.SCRATCH_ADDRESSES), align=64)
        places = (at.SCRATCH_DATA, at.SCRATCH_MORE)
        for value, place in zip(values, places, strict=False):
            f.store(value, f.pointer("%ctx", place), align=64)
        old_values = f.alloca(f"<{WARP} x {element}>")
        rest, seen, host = f.variable("i32"), f.variable("i32"), f.variable("ptr")
        f.store(self.mask, rest)
        f.store(f.resize(self.mask, "i64"), f.pointer("%ctx", CTX["fault_mask"]))
        f.store(const("i32", 0), seen)
        entry = f.pointer(f.field("ptr", "%ctx", CTX["cache"], True).name, at.CACHE_BYTES * number)
        loop, one, go, again, next_, leave = (
            f.new_label(s) for s in ("atoms", "atom", "go", "again", "next", "leave")
        )
        f.br(loop)
        f.label(loop)
        m = f.load("i32", rest)
        f.cond(f.icmp("ne", m, const("i32", 0)), one, leave)
        f.label(one)
        lane = f.intrinsic("cttz", m, flags=", i1 true")
        f.store(f.bin("and", m, f.bin("sub", m, const("i32", 1))), rest)
        wide = f.resize(lane, "i64")
        where = f.load(
            "i64", f.pointer(f.pointer("%ctx", at.SCRATCH_ADDRESSES), f.bin("mul", wide, const("i64", 8)))
        )
        ok = f.call(
            "i1", "place", "ptr %ctx", "ptr %warp", f"ptr {entry}", f"i64 {number}", f"i32 {self.index}",
            f"i32 {_SPACES[access.space]}", "i32 2", f"i64 {width}", str(lane), str(where),
            f"ptr {host}", f"ptr {seen}",
        )  # fmt: skip
        f.cond(ok, go, self.fault_label)
        f.label(go)
        memory = f.load("ptr", host).name
        mine = [
            f.load(element, f.pointer(f.pointer("%ctx", place), f.bin("mul", wide, const("i64", width))))
            for _, place in zip(values, places, strict=False)
        ]
        initial = f.emit(f"load atomic {element}, ptr {memory} seq_cst, align {width}", element)
        before = f.label_name
        f.br(again)
        f.label(again)
        old_name = f.fresh()
        at_phi = len(f.lines)
        old = Value(old_name, element)
        new = self.combine(row, type_, old, mine)
        pair = f.fresh()
        f.line(f"{pair} = cmpxchg ptr {memory}, {old}, {new} seq_cst seq_cst, align {width}")
        found = f.emit(f"extractvalue {{ {element}, i1 }} {pair}, 0", element)
        swapped = f.emit(f"extractvalue {{ {element}, i1 }} {pair}, 1", "i1")
        f.lines.insert(
            at_phi,
            f"  {old_name} = phi {element} [ {initial.name}, %{before} ], [ {found.name}, %{f.label_name} ]",
        )
        f.cond(swapped, next_, again, "likely")
        f.label(next_)
        f.store(old, f.pointer(old_values, f.bin("mul", wide, const("i64", width))))
        f.br(loop)
        f.label(leave)
        counted = f.new_label("counted")
        f.call(
            "void",
            "count_atomic",
            "ptr %ctx",
            "ptr %warp",
            f"i32 {self.index}",
            f"i64 {number}",
            f"i32 {_SPACES[access.space]}",
            str(f.load("i32", seen)),
            str(self.mask),
            f"i64 {width}",
        )
        f.br(counted)
        f.label(counted)
        if targets:
            self.result(targets[0], f.load(element, old_values, WARP, align=64), type_)

    def combine(self, row: Operation, type_: str, old: Value, mine: list[Value]) -> Value:
        """The new value of an atomic operation, scalars."""
        f = self.f
        name = next(m for m in self.instruction.modifiers if m in ("add", "min", "max", "and", "or", "xor", "inc",
                                                                   "dec", "exch", "cas"))  # fmt: skip
        if name == "exch":
            return mine[0]
        if name == "cas":
            return f.select(f.icmp("eq", old, mine[0]), mine[1], old)
        if name == "inc":
            return f.select(
                f.icmp("uge", old, mine[0]), const(old.type, 0), f.bin("add", old, const(old.type, 1))
            )
        if name == "dec":
            wraps = f.bin("or", f.icmp("eq", old, const(old.type, 0)), f.icmp("ugt", old, mine[0]))
            return f.select(wraps, mine[0], f.bin("sub", old, const(old.type, 1)))
        if name in ("and", "or", "xor"):
            return f.bin(name, old, mine[0])
        if name in ("min", "max"):
            return f.intrinsic(("s" if type_[0] == "s" else "u") + name, old, mine[0])
        if type_[0] in "us":
            return f.bin("add", old, mine[0])
        from . import vector_math as vm

        function = vm.arithmetic("add", type_.removesuffix("x2"), ftz=type_ == "f32")
        if type_.endswith("x2"):
            function = vm.packed(function)
        if type_ in ("f32", "f64"):
            return f.bits(function(self.e, f.floats(old), f.floats(mine[0])))
        return function(self.e, old, mine[0])

    # ---- warp-wide instructions

    def warp(self, row: Operation) -> None:
        f = self.f
        opcode, mods = self.instruction.opcode, self.instruction.modifiers
        targets, sources = operands(self.instruction)
        if opcode == "shfl":
            self.shuffle(mods[1], targets, sources)
        elif opcode == "activemask":
            self.result(targets[0], self.mask, "b32")
        elif opcode == "vote":
            self.vote(mods[1], targets[0], sources)
        elif opcode == "redux":
            self.redux(mods[1], mods[2], targets[0], sources)
        elif opcode == "match":
            self.match(mods[0], targets, sources, row)
        elif opcode == "elect":
            members = self.members(sources[0])
            leader = self.for_each_group(members, lambda group: f.intrinsic("cttz", group, flags=", i1 true"))
            self.result(targets[0], leader, "b32")
            self.result(targets[1], f.icmp("eq", f.spread(leader), f.lane_numbers()), "pred")

    def members(self, operand) -> Value:
        return self.source(operand, "b32")

    def for_each_group(self, members: Value, function: Callable[[Value], Value]) -> Value:
        """function(mask) -> i32 for the lanes that name each other; one group in nearly every program."""
        f = self.f
        if members.lanes == 1:
            return function(f.bin("and", members, self.mask))
        vector = f.alloca(f"<{WARP} x i32>")
        f.store(Value("zeroinitializer", "i32", WARP), vector, align=64)
        rest = f.variable("i32")
        f.store(self.mask, rest)
        loop, one, leave = f.new_label("groups"), f.new_label("group"), f.new_label("grouped")
        f.br(loop)
        f.label(loop)
        m = f.load("i32", rest)
        f.cond(f.icmp("ne", m, const("i32", 0)), one, leave)
        f.label(one)
        lane = f.intrinsic("cttz", m, flags=", i1 true")
        named = f.extract(members, lane)
        same = f.bin("and", f.mask_bits(f.icmp("eq", members, f.spread(named))), m)
        value = function(same)
        before = f.load("i32", vector, WARP, align=64)
        f.store(f.select(f.mask_lanes(same), f.spread(value), before), vector, align=64)
        f.store(f.bin("and", m, f.bin("xor", same, const("i32", -1))), rest)
        f.br(loop)
        f.label(leave)
        return f.load("i32", vector, WARP, align=64)

    def shuffle(self, mode: str, targets: list, sources: list) -> None:
        f = self.f
        value, lane_operand, clamp = (self.source(o, "b32") for o in sources[:3])
        need_predicate = len(targets) > 1 and not isinstance(targets[1], Sink) and self.is_read(targets[1])
        lanes = f.lane_numbers()
        members = self.members(sources[3])
        whole = members.literal and members.lanes == 1 and int(members.name) == -1
        if whole and lane_operand.literal and clamp.literal and lane_operand.lanes == clamp.lanes == 1:
            source, inside = _shuffle_pattern(mode, int(lane_operand.name), int(clamp.name))
            moved = f.shuffle(f.spread(value), source)
            self.result(targets[0], moved, "b32")
            if need_predicate:
                self.result(targets[1], f.vector_literal("i1", [int(i) for i in inside]), "pred")
            return
        # the PTX ISA's rule: c = segment mask << 8 | clamp
        b = f.spread(f.bin("and", lane_operand, const("i32", 31)))
        segment = f.bin("and", f.bin("lshr", clamp, const("i32", 8)), const("i32", 31))
        limit = f.bin("and", clamp, const("i32", 31))
        inverse = f.bin("xor", segment, const("i32", -1))
        highest = f.bin("or", f.bin("and", lanes, segment), f.bin("and", limit, inverse))
        if mode == "idx":
            lowest = f.bin("and", lanes, segment)
            j = f.bin("or", lowest, f.bin("and", b, inverse))
            inside = f.icmp("sle", j, highest)
        elif mode == "up":
            j = f.bin("sub", lanes, b)
            inside = f.icmp("sge", j, highest)
        elif mode == "down":
            j = f.bin("add", lanes, b)
            inside = f.icmp("sle", j, highest)
        else:
            j = f.bin("xor", lanes, b)
            inside = f.icmp("sle", j, highest)
        j = f.bin("and", f.select(inside, j, lanes), const("i32", 31))
        if not whole:
            named = f.bin("and", f.bin("lshr", members, j), const("i32", 1))
            j = f.select(f.icmp("eq", named, const("i32", 1)), j, lanes)
        # through memory: a gather of 32 words
        buffer = f.alloca(f"<{WARP} x i32>")
        f.store(f.spread(value), buffer, align=64)
        j_buffer = f.alloca(f"<{WARP} x i32>")
        f.store(j, j_buffer, align=64)
        moved = Value("poison", "i32", WARP)
        for k in range(WARP):
            index = f.load("i32", f.pointer(j_buffer, 4 * k))
            item = f.load("i32", f.pointer(buffer, f.bin("mul", f.resize(index, "i64"), const("i64", 4))))
            moved = f.emit(f"insertelement {moved}, {item}, i32 {k}", "i32", WARP)
        self.result(targets[0], moved, "b32")
        if need_predicate:
            self.result(targets[1], inside, "pred")

    def is_read(self, register) -> bool:
        return register.index in self.kernel.read_registers

    def vote(self, mode: str, target, sources: list) -> None:
        f = self.f
        predicate = f.mask_bits(self.source(sources[0], "pred"))

        def ballot(group: Value) -> Value:
            return f.bin("and", predicate, group)

        members = self.members(sources[1])
        if mode == "ballot":
            self.result(target, self.for_each_group(members, ballot), "b32")
            return

        def decide(group: Value) -> Value:
            bits = ballot(group)
            none = f.icmp("eq", bits, const("i32", 0))
            every = f.icmp("eq", bits, group)
            truth = {"any": f.bin("xor", none, TRUE), "all": every, "uni": f.bin("or", none, every)}[mode]
            return f.resize(truth, "i32")

        value = self.for_each_group(members, decide)
        self.result(target, f.icmp("ne", value, const("i32", 0)), "pred")

    def redux(self, mode: str, type_: str, target, sources: list) -> None:
        f = self.f
        value = f.spread(self.source(sources[0], type_))
        signed = type_ == "s32"
        neutral = {
            "add": 0, "or": 0, "xor": 0, "and": -1,
            "min": 0x7FFFFFFF if signed else -1, "max": -0x80000000 if signed else 0,
        }[mode]  # fmt: skip
        name = ("s" if signed else "u") + mode if mode in ("min", "max") else mode

        def reduce(group: Value) -> Value:
            chosen = f.select(f.mask_lanes(group), value, const("i32", neutral))
            return f.reduce(name, chosen)

        self.result(target, self.for_each_group(self.members(sources[1]), reduce), type_)

    def match(self, mode: str, targets: list, sources: list, row: Operation) -> None:
        f = self.f
        value = f.spread(self.source(sources[0], row.sources[0]))
        members = self.members(sources[1])
        if mode == "all":

            def same(group: Value) -> Value:
                first = f.extract(value, f.intrinsic("cttz", group, flags=", i1 true"))
                equal = f.bin("and", f.mask_bits(f.icmp("eq", value, f.spread(first))), group)
                return f.select(f.icmp("eq", equal, group), group, const("i32", 0))

            result = self.for_each_group(members, same)
            self.result(targets[0], result, "b32")
            if len(targets) > 1:
                self.result(targets[1], f.icmp("ne", result, const("i32", 0)), "pred")
            return
        buffer = f.alloca(f"<{WARP} x i32>")
        f.store(Value("zeroinitializer", "i32", WARP), buffer, align=64)
        rest = f.variable("i32")
        f.store(self.mask, rest)
        loop, one, leave = f.new_label("matches"), f.new_label("match"), f.new_label("matched")
        f.br(loop)
        f.label(loop)
        m = f.load("i32", rest)
        f.cond(f.icmp("ne", m, const("i32", 0)), one, leave)
        f.label(one)
        lane = f.intrinsic("cttz", m, flags=", i1 true")
        same_members = f.icmp("eq", f.spread(members), f.spread(f.extract(members, lane)))
        equal = f.icmp("eq", value, f.spread(f.extract(value, lane)))
        group = f.bin("and", f.mask_bits(f.bin("and", same_members, equal)), m)
        before = f.load("i32", buffer, WARP, align=64)
        f.store(f.select(f.mask_lanes(group), f.spread(group), before), buffer, align=64)
        f.store(f.bin("and", m, f.bin("xor", group, const("i32", -1))), rest)
        f.br(loop)
        f.label(leave)
        self.result(targets[0], f.load("i32", buffer, WARP, align=64), "b32")

    # ---- barriers and calls

    def arrive(self) -> None:
        """Note which barrier the lanes came to (the instruction at self.index)."""
        f = self.f
        mods = self.instruction.modifiers
        targets, sources = operands(self.instruction)
        if "arrive" in mods:
            raise UnsupportedError(f"{self.instruction.name} is not simulated by this engine", self.line)
        reduction = "red" in mods
        numbers = sources[:-1] if reduction else sources
        number = self.source(numbers[0], "u32") if numbers else const("i32", 0)
        count = self.source(numbers[1], "u32") if len(numbers) > 1 else const("i32", 0)
        if reduction:
            bits = f.mask_bits(self.source(sources[-1], "pred"))
            before = f.field("i32", "%warp", at.WARP_VOTES)
            kept = f.bin("and", before, f.bin("xor", self.mask, const("i32", -1)))
            f.store(f.bin("or", kept, f.bin("and", bits, self.mask)), f.pointer("%warp", at.WARP_VOTES))
            count = const("i32", at.REDUCTION)
        for value, offset in ((number, at.WARP_BARRIER), (count, at.WARP_COUNT)):
            place = f.pointer("%warp", offset)
            if not self.full:
                value = f.select(self.mask_vector, f.spread(value), f.load("i32", place, WARP, align=64))
            f.store(f.spread(value), place, align=64)

    def after_barrier(self, row: Operation) -> None:
        if row.results:
            targets, _ = operands(self.instruction)
            value = self.f.field("i32", "%warp", at.WARP_RESULT)
            if row.results[0] == "pred":
                value = self.f.icmp("ne", value, const("i32", 0))
            self.result(targets[0], value, row.results[0])

    def call(self) -> None:
        """A builtin: the engine's function gets (worker, instruction, warp, mask)."""
        f = self.f
        if not self.program.instructions[self.index].operands[-1].elements:
            return  # an inlined device function
        function = f.field("ptr", "%ctx", CTX["call"]).name
        worker = f.field("i64", "%ctx", CTX["host"])
        code = f.fresh()
        index = f.field("i64", "%warp", at.WARP_INDEX)
        f.line(f"{code} = call i32 {function}({worker}, i32 {self.index}, {index}, {self.mask})")
        ok = f.icmp("eq", Value(code, "i32"), const("i32", 0))
        went = f.new_label("called")
        f.cond(ok, went, self.fault_label, "likely")
        f.label(went)

    @property
    def mask_vector(self) -> Value:
        return self.f.mask_lanes(self.mask)

    def trap(self, block: Block) -> None:
        f = self.f
        lane = f.intrinsic("cttz", self.mask, flags=", i1 true")
        runtime.fault(
            f, at.TRAPPED, const("i32", max(block.stop - 1, 0)), lane, const("i64", 0), const("i64", 0)
        )
        f.br(self.fault_label)

    def fresh_block(self) -> None:
        self.cache = {}
        self.floating: dict[tuple[str, str], Value] = {}
        self.e.flushed = set()

    def begin_function(self) -> None:
        f = self.f
        f.begin()
        self.counters = f.field("ptr", "%ctx", CTX["counters"], True).name

    def spend(self, instructions: int, go_on: str, block: int) -> None:
        """Take instructions from the warp's budget and go on to block (-1: see the pcs), or return STOP or BUDGET."""
        f = self.f
        place = f.pointer("%warp", at.WARP_CHUNK)
        left = f.bin("sub", f.load("i64", place), const("i64", instructions))
        f.store(left, place)
        empty = f.new_label("empty")
        f.cond(f.icmp("slt", left, const("i64", 0)), empty, go_on, "unlikely")
        f.label(empty)
        code = f.call("i32", "refill", "ptr %ctx", "ptr %warp")
        stop = f.new_label("stop")
        f.cond(f.icmp("eq", code, const("i32", 0)), go_on, stop)
        f.label(stop)
        f.store(const("i64", block), f.pointer("%ctx", CTX["fault_extra"]))
        f.store(f.field("i64", "%warp", at.WARP_INDEX), f.pointer("%ctx", CTX["fault_warp"]))
        f.ret(code)


class Uniform(Code):
    """All living lanes together."""

    def __init__(self, kernel: Kernel):
        super().__init__(kernel, "uniform", "i32", [("ptr", "ctx"), ("ptr", "warp")])
        self.block: Block | None = None
        self.places: dict[int, str] = {}
        self.predicated = False

    def load_register(self, register: Register) -> Value:
        lanes = WARP if register.index in self.analysis.vectors else 1
        return self.f.load(register_type(register), self.place(register), lanes)

    def place(self, register: Register) -> str:
        known = self.places.get(register.index)
        if known is None:
            type_ = register_type(register)
            ir = f"<{WARP} x {type_}>" if register.index in self.analysis.vectors else type_
            known = self.places[register.index] = self.f.alloca(ir)
            # an SSA form for every path: a register never written holds 0
            self.f.allocas.append(f"  store {ir} zeroinitializer, ptr {known}")
        return known

    def write(self, register: Register, value: Value) -> None:
        index = register.index
        if index not in self.analysis.vectors and value.lanes == WARP:
            raise _Misjudged(index)
        self.cache[index] = value
        if self.live_out[self.block.index] >> index & 1:
            if index in self.analysis.vectors:
                value = self.f.spread(value)
                if self.predicated:
                    before = self.f.load(value.type, self.place(register), WARP)
                    value = self.f.select(self.mask_vector, value, before)
            self.f.store(value, self.place(register))

    def function(self) -> None:
        f, program, analysis = self.f, self.program, self.analysis
        self.begin_function()
        self.mask = self.alive = f.field("i32", "%warp", at.WARP_ALIVE)
        self.full = True
        self.alive_count = f.resize(f.popcount(self.alive), "i64")
        self.fault_label = f.new_label("fault")
        wrong = f.new_label("wrong")
        form = f.field("i32", "%warp", at.WARP_BLOCK)
        entries = {n: f.new_label(f"enter{n}") for n in analysis.enterable}
        self.labels = [f.new_label(f"block{b.index}") for b in program.blocks]
        self.bodies = [f.new_label(f"body{b.index}") for b in program.blocks]
        f.switch(form, wrong, [(n, label) for n, label in entries.items()])
        f.label(wrong)
        f.ret(const("i32", at.FAULT))
        f.label(self.fault_label)
        f.ret(const("i32", at.FAULT))
        for n, label in entries.items():
            f.label(label)
            self.fresh_block()
            self.restore(self.live_in[n])
            block = program.blocks[n]
            if block.waits == "block":
                entered = f.field("i32", "%warp", at.WARP_ENTERED)
                f.store(const("i32", 0), f.pointer("%warp", at.WARP_ENTERED))
                f.cond(f.icmp("ne", entered, const("i32", 0)), self.bodies[n], self.labels[n])
            else:
                if analysis.chain[n] != n:
                    self.tally(n, 1)
                f.br(self.labels[n])
        for block in program.blocks:
            self.block = block
            self.emit_block(block)
            region = analysis.regions.get(block.index)
            if region is not None:
                self.emit_region(block, region)
        f.finish()

    def tally(self, block: int, sign: int) -> None:
        self.count(self.layout.uniform_warps, block, const("i64", sign))
        lanes = self.alive_count
        if sign < 0:
            lanes = self.f.bin("sub", const("i64", 0), lanes)
        self.count(self.layout.uniform_lanes, block, lanes)

    def registers(self, bits: int) -> Iterator[Register]:
        bits &= self.analysis.saved
        for register in self.program.registers:
            if bits >> register.index & 1:
                yield register

    def restore(self, bits: int) -> None:
        """Registers from the warp state, as uniform code left them."""
        f = self.f
        for register in self.registers(bits):
            type_ = register_type(register)
            if register.index in self.analysis.vectors:
                slot = f.pointer("%warp", self.layout.vector_slots[register.index])
                if type_ == "i1":
                    value = f.mask_lanes(f.load("i32", slot))
                else:
                    value = f.load(type_, slot, WARP, align=64)
            else:
                slot = f.pointer("%warp", self.layout.scalar_slots[register.index])
                if type_ == "i1":
                    value = f.cast("trunc", f.load("i8", slot), "i1")
                else:
                    value = f.load(type_, slot)
            f.store(value, self.place(register))

    def save(self, bits: int) -> None:
        """Registers to the warp state for uniform code to take up again."""
        f = self.f
        for register in self.registers(bits):
            value = self.read(register)
            if register.index in self.analysis.vectors:
                self.save_lanes(register, value)
            else:
                slot = f.pointer("%warp", self.layout.scalar_slots[register.index])
                f.store(f.resize(value, "i8") if value.type == "i1" else value, slot)

    def save_lanes(self, register: Register, value: Value) -> None:
        f = self.f
        slot = f.pointer("%warp", self.layout.vector_slots[register.index])
        if value.type == "i1":
            f.store(f.mask_bits(value), slot)
        else:
            f.store(f.spread(value), slot, align=64)

    def leave(self, bits: int, pcs: Value) -> None:
        """Hand the warp to masked code: registers and one pc per lane."""
        f = self.f
        for register in self.registers(bits):
            self.save_lanes(register, self.read(register))
        f.store(f.spread(pcs), f.pointer("%warp", at.WARP_PCS), align=64)
        f.store(const("i32", -1), f.pointer("%warp", at.WARP_BLOCK))
        f.ret(const("i32", at.SWITCH))

    def emit_block(self, block: Block) -> None:
        f, program, n = self.f, self.program, block.index
        f.label(self.labels[n])
        self.fresh_block()
        if block.waits == "block":
            self.index = block.start
            self.arrive()
            self.save(self.live_in[n])
            f.store(const("i32", n), f.pointer("%warp", at.WARP_BLOCK))
            f.store(const("i32", 0), f.pointer("%warp", at.WARP_ENTERED))
            f.ret(const("i32", at.BARRIER))
        elif block.waits == "warp":
            self.index = block.start
            _, sources = operands(self.instruction)
            members = self.members(sources[-1])
            together = f.icmp("eq", members, self.alive)
            if together.lanes == WARP:
                wrong = f.bin("and", f.mask_bits(f.bin("xor", together, const("i1", 1))), self.alive)
                together = f.icmp("eq", wrong, const("i32", 0))
            apart = f.new_label("apart")
            f.cond(together, self.bodies[n], apart, "likely")
            f.label(apart)
            if self.analysis.chain[n] != n:
                self.tally(n, -1)
            # masked code decides who may go on; it must not hand the warp straight back
            f.store(const("i32", 1), f.pointer("%warp", at.WARP_ENTERED))
            self.leave(self.live_in[n], const("i32", 2 * n))
        else:
            f.br(self.bodies[n])
        f.label(self.bodies[n])
        self.fresh_block()
        if self.analysis.chain[n] == n:
            self.tally(n, 1)
        self.body(block)
        self.terminate(block)

    def terminate(self, block: Block) -> None:
        f, program, n = self.f, self.program, block.index
        if block.kind == "exit":
            f.store(const("i32", 0), f.pointer("%warp", at.WARP_ALIVE))
            f.ret(const("i32", at.DONE))
        elif block.kind == "trap":
            self.trap(block)
        elif block.kind == "fall":
            self.jump(n, block.targets[0])
        elif block.kind == "indexed":
            self.indexed(block)
        else:
            condition = self.condition(block)
            yes, no = block.targets
            if condition.lanes == 1:
                yes_label, no_label = f.new_label("yes"), f.new_label("no")
                f.cond(condition, yes_label, no_label)
                f.label(yes_label)
                self.jump(n, yes)
                f.label(no_label)
                self.jump(n, no)
                return
            taken = f.bin("and", f.mask_bits(condition), self.alive)
            none, mixed, some, all_ = (f.new_label(s) for s in ("none", "mixed", "some", "all"))
            f.cond(f.icmp("eq", taken, const("i32", 0)), none, some)
            f.label(none)
            self.jump(n, no)
            f.label(some)
            f.cond(f.icmp("eq", taken, self.alive), all_, mixed)
            f.label(all_)
            self.jump(n, yes)
            f.label(mixed)
            self.count(self.layout.divergent, n, const("i64", 1))
            if n in self.analysis.regions:
                self.taken = taken
                self.region_start = f.new_label(f"region{n}")
                f.br(self.region_start)
            else:
                pcs = f.select(condition, const("i32", 2 * yes), const("i32", 2 * no))
                self.leave(self.live_in[yes] | self.live_in[no], pcs)

    def condition(self, block: Block) -> Value:
        value = self.read(block.predicate)
        return self.f.bin("xor", value, const("i1", 1)) if block.negated else value

    def jump(self, source: int, target: int) -> None:
        """A branch inside uniform code; backwards it costs budget."""
        if target > source:
            self.f.br(self.labels[target])
            return
        blocks = self.program.blocks[target : source + 1]
        self.spend(max(1, sum(b.stop - b.start for b in blocks)), self.labels[target], target)

    def indexed(self, block: Block) -> None:
        f, n = self.f, block.index
        value = f.resize(self.read(block.predicate), "i32")
        if value.lanes == WARP:
            bits = 0
            pcs = const("i32", 0)
            good = f.icmp("ult", value, const("i32", len(block.targets)))
            for k, target in enumerate(block.targets):
                bits |= self.live_in[target]
                pcs = f.select(f.icmp("eq", value, const("i32", k)), const("i32", 2 * target), pcs)
            bad = f.bin("and", f.mask_bits(f.bin("xor", good, const("i1", 1))), self.alive)
            fine, wrong = f.new_label("fine"), f.new_label("wrong")
            f.cond(f.icmp("eq", bad, const("i32", 0)), fine, wrong, "likely")
            f.label(wrong)
            lane = f.intrinsic("cttz", bad, flags=", i1 true")
            extra = f.resize(f.extract(value, lane), "i64")
            runtime.fault(f, at.BAD_INDEX, const("i32", block.stop - 1), lane, extra, const("i64", 0))
            f.br(self.fault_label)
            f.label(fine)
            first = f.intrinsic("cttz", self.alive, flags=", i1 true")
            differs = f.mask_bits(f.icmp("ne", pcs, f.spread(f.extract(f.spread(pcs), first))))
            split = f.icmp("ne", f.bin("and", differs, self.alive), const("i32", 0))
            self.count(self.layout.divergent, n, f.resize(split, "i64"))
            self.leave(bits, pcs)
            return
        wrong = f.new_label("wrong")
        labels = [(k, f.new_label("case")) for k in range(len(block.targets))]
        f.switch(value, wrong, labels)
        f.label(wrong)
        lane = f.intrinsic("cttz", self.alive, flags=", i1 true")
        runtime.fault(
            f, at.BAD_INDEX, const("i32", block.stop - 1), lane, f.resize(value, "i64"), const("i64", 0)
        )
        f.br(self.fault_label)
        for k, label in labels:
            f.label(label)
            self.jump(n, block.targets[k])

    def emit_region(self, branch: Block, region) -> None:
        """The arm of a divergent branch under a mask, in place; all lanes meet at its join."""
        f, blocks = self.f, self.program.blocks
        f.label(self.region_start)
        yes, no = branch.targets
        other = f.bin("xor", self.taken, self.alive)
        masks: dict[int, str] = {n: f.variable("i32") for n in (*region.blocks, region.join)}
        for place in masks.values():
            f.store(const("i32", 0), place)
        f.store(self.taken, masks[yes])
        f.store(f.bin("or", f.load("i32", masks[no]), other), masks[no])
        self.predicated, self.full = True, False
        for n in region.blocks:
            block = blocks[n]
            self.block = block
            here = f.load("i32", masks[n])
            run, skip = f.new_label("run"), f.new_label("skip")
            f.cond(f.icmp("ne", here, const("i32", 0)), run, skip)
            f.label(run)
            self.fresh_block()
            self.mask = here
            self.count(self.layout.masked_warps, n, const("i64", 1))
            self.count(self.layout.masked_lanes, n, f.resize(f.popcount(here), "i64"))
            self.body(block)

            def send(target: int, lanes: Value) -> None:
                f.store(f.bin("or", f.load("i32", masks[target]), lanes), masks[target])

            if block.kind == "fall":
                send(block.targets[0], here)
            else:
                condition = f.bin("and", f.mask_bits(self.condition(block)), here)
                rest = f.bin("xor", condition, here)
                split = f.bin(
                    "and", f.icmp("ne", condition, const("i32", 0)), f.icmp("ne", rest, const("i32", 0))
                )
                self.count(self.layout.divergent, n, f.resize(split, "i64"))
                send(block.targets[0], condition)
                send(block.targets[1], rest)
            f.br(skip)
            f.label(skip)
        self.predicated, self.full = False, True
        self.mask = self.alive
        self.block = branch
        f.br(self.labels[region.join])


class Stepped(Uniform):
    """All living lanes together, one basic block a call: registers are in the warp state in between."""

    def __init__(self, kernel: Kernel):
        super().__init__(kernel)
        self.dirty: dict[int, tuple[Register, Value]] = {}

    def load_register(self, register: Register) -> Value:
        f = self.f
        index, type_ = register.index, register_type(register)
        if index not in self.layout.vector_slots:
            return const(type_, 0)  # never written before it is read, in this block only
        if index in self.analysis.vectors:
            slot = f.pointer("%warp", self.layout.vector_slots[index])
            return f.mask_lanes(f.load("i32", slot)) if type_ == "i1" else f.load(type_, slot, WARP, align=64)
        slot = f.pointer("%warp", self.layout.scalar_slots[index])
        return f.cast("trunc", f.load("i8", slot), "i1") if type_ == "i1" else f.load(type_, slot)

    def write(self, register: Register, value: Value) -> None:
        index = register.index
        if index not in self.analysis.vectors and value.lanes == WARP:
            raise _Misjudged(index)
        self.cache[index] = value
        if self.live_out[self.block.index] >> index & 1:
            self.dirty[index] = (register, value)

    def flush(self) -> None:
        """Store what the block wrote."""
        f = self.f
        for register, value in self.dirty.values():
            if register.index in self.analysis.vectors:
                self.save_lanes(register, value)
            else:
                slot = f.pointer("%warp", self.layout.scalar_slots[register.index])
                f.store(f.resize(value, "i8") if value.type == "i1" else value, slot)
        self.dirty = {}

    def restore(self, bits: int) -> None:
        """Registers stay where they are."""

    def save(self, bits: int) -> None:
        """Registers stay where they are."""

    def leave(self, bits: int, pcs: Value) -> None:
        f = self.f
        for register in self.registers(bits):
            if register.index not in self.analysis.vectors:
                self.save_lanes(register, self.read(register))
        f.store(f.spread(pcs), f.pointer("%warp", at.WARP_PCS), align=64)
        f.store(const("i32", -1), f.pointer("%warp", at.WARP_BLOCK))
        if pcs.lanes == 1:
            f.ret(const("i32", at.SWITCH))  # at the same block still
            return
        alive = f.select(f.mask_lanes(self.alive), pcs, const("i32", at.NEVER))
        f.store(f.bin("lshr", f.reduce("umin", alive), const("i32", 1)), f.pointer("%warp", at.WARP_NEXT))
        f.ret(const("i32", at.YIELD))

    def terminate(self, block: Block) -> None:
        self.flush()
        super().terminate(block)

    def jump(self, source: int, target: int) -> None:
        f = self.f
        if target <= source:
            go = f.new_label("go")
            blocks = self.program.blocks[target : source + 1]
            self.spend(max(1, sum(b.stop - b.start for b in blocks)), go, target)
            f.label(go)
        elif self.kernel.follows[target]:
            f.br(self.labels[target])  # no other warp can notice that its turn comes later
            return
        f.store(const("i32", target), f.pointer("%warp", at.WARP_BLOCK))
        f.store(const("i32", target), f.pointer("%warp", at.WARP_NEXT))
        f.ret(const("i32", at.YIELD))


class Masked(Code):
    """Lanes at several blocks, the lowest first."""

    def __init__(self, kernel: Kernel):
        super().__init__(kernel, "masked", "i32", [("ptr", "ctx"), ("ptr", "warp")])
        self.block: Block | None = None
        self.dirty: dict[int, tuple[Register, Value]] = {}

    def load_register(self, register: Register) -> Value:
        f = self.f
        offset = self.layout.vector_slots.get(register.index)
        type_ = register_type(register)
        if offset is None:  # never written before it is read, in this block only
            return const(type_, 0)
        slot = f.pointer("%warp", offset)
        if type_ == "i1":
            return f.mask_lanes(f.load("i32", slot))
        return f.load(type_, slot, WARP, align=64)

    def write(self, register: Register, value: Value) -> None:
        index = register.index
        self.cache[index] = value
        if self.live_out[self.block.index] >> index & 1:
            self.dirty[index] = (register, value)

    def flush(self) -> None:
        """Store what the block wrote, for its lanes only."""
        f = self.f
        for register, value in self.dirty.values():
            slot = f.pointer("%warp", self.layout.vector_slots[register.index])
            if value.type == "i1":
                before = f.load("i32", slot)
                kept = f.bin("and", before, f.bin("xor", self.mask, const("i32", -1)))
                f.store(f.bin("or", kept, f.bin("and", f.mask_bits(value), self.mask)), slot)
            else:
                before = f.load(value.type, slot, WARP, align=64)
                f.store(f.select(self.mask_vector, f.spread(value), before), slot, align=64)
        self.dirty = {}

    def function(self) -> None:
        f, program, analysis = self.f, self.program, self.analysis
        self.begin_function()
        self.fault_label = f.new_label("fault")
        schedule, look, pick = f.new_label("schedule"), f.new_label("look"), f.new_label("pick")
        stuck, parked, dead = f.new_label("stuck"), f.new_label("parked"), f.new_label("dead")
        done, met, run = f.new_label("done"), f.new_label("met"), f.new_label("run")
        self.schedule = self.after_block = schedule
        if self.kernel.stepped:
            self.after_block = f.new_label("after_block")
        mask_place, pc_place = f.variable("i32"), f.variable("i32")
        self.labels = [f.new_label(f"block{b.index}") for b in program.blocks]
        f.br(schedule)
        f.label(self.fault_label)
        f.ret(const("i32", at.FAULT))
        if self.kernel.stepped:
            self.give_turn()
        f.label(schedule)
        self.spend(0, look, -1)
        f.label(look)
        alive = f.field("i32", "%warp", at.WARP_ALIVE)
        pcs = f.select(
            f.mask_lanes(alive),
            f.load("i32", f.pointer("%warp", at.WARP_PCS), WARP, align=64),
            const("i32", at.NEVER),
        )
        lowest = f.reduce("umin", pcs)
        f.cond(f.icmp("ult", lowest, const("i32", at.WAIT)), pick, stuck)
        f.label(stuck)
        f.cond(f.icmp("eq", lowest, const("i32", at.NEVER)), done, parked)
        f.label(done)
        f.ret(const("i32", at.DONE))
        f.label(parked)
        waiting = f.new_label("waiting")
        f.cond(f.icmp("ult", lowest, const("i32", at.PARK)), dead, waiting)
        f.label(waiting)
        f.ret(const("i32", at.BARRIER))
        f.label(dead)
        self.deadlock(pcs, alive)
        f.label(pick)
        same = f.bin("and", f.mask_bits(f.icmp("eq", pcs, f.spread(lowest))), alive)
        f.store(same, mask_place)
        f.store(lowest, pc_place)
        number = f.bin("lshr", lowest, const("i32", 1))
        f.cond(f.icmp("eq", same, alive), met, run)
        f.label(met)
        entered, may = f.field("i32", "%warp", at.WARP_ENTERED), f.new_label("may")
        f.store(const("i32", 0), f.pointer("%warp", at.WARP_ENTERED))
        f.cond(f.icmp("eq", entered, const("i32", 0)), may, run)
        f.label(may)
        entries = {n: f.new_label(f"meet{n}") for n in analysis.enterable}
        f.switch(number, run, list(entries.items()))
        f.label(run)
        none = f.new_label("none")
        f.switch(number, none, [(b.index, self.labels[b.index]) for b in program.blocks])
        f.label(none)
        f.ret(const("i32", at.FAULT))
        for n, label in entries.items():
            f.label(label)
            self.fresh_block()
            self.meet(n, alive, f.load("i32", pc_place), run)
        for block in program.blocks:
            self.block = block
            f.label(self.labels[block.index])
            self.fresh_block()
            self.mask = f.load("i32", mask_place)
            self.emit_block(block, f.load("i32", pc_place))
        f.finish()

    def give_turn(self) -> None:
        """Stepped: after each block the driver decides which warp goes on."""
        f = self.f
        f.label(self.after_block)
        alive = f.field("i32", "%warp", at.WARP_ALIVE)
        pcs = f.load("i32", f.pointer("%warp", at.WARP_PCS), WARP, align=64)
        lowest = f.reduce("umin", f.select(f.mask_lanes(alive), pcs, const("i32", at.NEVER)))
        f.store(f.bin("lshr", lowest, const("i32", 1)), f.pointer("%warp", at.WARP_NEXT))
        runnable = f.new_label("runnable")
        f.cond(f.icmp("ult", lowest, const("i32", at.WAIT)), runnable, self.schedule)
        f.label(runnable)
        f.ret(const("i32", at.YIELD))

    def meet(self, n: int, alive: Value, pc: Value, run: str) -> None:
        """All living lanes are at block n: go back to uniform code if its scalars are equal in all lanes."""
        f = self.f
        lane = f.resize(f.intrinsic("cttz", alive, flags=", i1 true"), "i64")
        values = []
        good = TRUE
        for register in self.program.registers:
            index = register.index
            if not (self.live_in[n] & self.analysis.saved) >> index & 1 or index in self.analysis.vectors:
                continue
            slot = f.pointer("%warp", self.layout.vector_slots[index])
            type_ = register_type(register)
            if type_ == "i1":
                bits = f.bin("and", f.load("i32", slot), alive)
                none = f.icmp("eq", bits, const("i32", 0))
                good = f.bin("and", good, f.bin("or", none, f.icmp("eq", bits, alive)))
                first = f.resize(f.bin("xor", none, const("i1", 1)), "i8")
            else:
                width = const("i64", int(type_[1:]) // 8)
                first = f.load(type_, f.pointer(slot, f.bin("mul", lane, width)))
                every = f.load(type_, slot, WARP, align=64)
                differs = f.bin("and", f.mask_bits(f.icmp("ne", every, f.spread(first))), alive)
                good = f.bin("and", good, f.icmp("eq", differs, const("i32", 0)))
            values.append((index, first))
        go = f.new_label("go")
        f.cond(good, go, run)
        f.label(go)
        for index, first in values:
            f.store(first, f.pointer("%warp", self.layout.scalar_slots[index]))
        f.store(const("i32", n), f.pointer("%warp", at.WARP_BLOCK))
        f.store(f.bin("and", pc, const("i32", 1)), f.pointer("%warp", at.WARP_ENTERED))
        f.ret(const("i32", at.SWITCH))

    def deadlock(self, pcs: Value, alive: Value) -> None:
        """No lane can run and some wait for lanes of their warp.

        bar.warp.sync meets at any of its places, so lanes at several of them may be complete. Otherwise lanes
        at a block barrier may be let go by other warps; if there are none, the named lanes never come.
        """
        f = self.f
        waits = f.bin(
            "and", f.icmp("uge", pcs, const("i32", at.WAIT)), f.icmp("ult", pcs, const("i32", at.PARK))
        )
        bare = f.bin("and", pcs, const("i32", at.WAIT - 1))
        at_barrier = FALSE
        for block in self.program.blocks:
            if block.waits == "warp" and self.program.instructions[block.start].opcode == "bar":
                at_barrier = f.bin("or", at_barrier, f.icmp("eq", bare, const("i32", 2 * block.index)))
        here_vector = f.bin("and", waits, at_barrier)
        here = f.bin("and", f.mask_bits(here_vector), alive)
        members = f.load("i32", f.pointer("%warp", at.WARP_COUNT), WARP, align=64)
        absent = f.bin("and", members, f.spread(f.bin("and", alive, f.bin("xor", here, const("i32", -1)))))
        ready = f.bin("and", f.mask_bits(f.icmp("eq", absent, const("i32", 0))), here)
        free, none, stay, faulty = (f.new_label(s) for s in ("free", "none", "stay", "faulty"))
        f.cond(f.icmp("ne", ready, const("i32", 0)), free, none)
        f.label(free)
        self.set_pcs(f.bin("or", bare, const("i32", 1)), f.mask_lanes(ready))
        f.br(self.after_block)
        f.label(none)
        parked = f.bin("and", f.mask_bits(f.icmp("uge", pcs, const("i32", at.PARK))), alive)
        f.cond(f.icmp("ne", parked, const("i32", 0)), stay, faulty)
        f.label(stay)
        f.ret(const("i32", at.BARRIER))
        f.label(faulty)
        # the lowest block counts, and of its lanes the first
        lowest = f.reduce("umin", f.select(f.mask_lanes(alive), pcs, const("i32", at.NEVER)))
        at_lowest = f.bin("and", f.mask_bits(f.icmp("eq", pcs, f.spread(lowest))), alive)
        lane = f.intrinsic("cttz", at_lowest, flags=", i1 true")
        block = f.bin("lshr", f.bin("and", lowest, const("i32", at.WAIT - 1)), const("i32", 1))
        # the engine knows the block's first instruction
        runtime.fault(
            f, at.MASK_ABSENT, const("i32", -1), lane, f.resize(at_lowest, "i64"), f.resize(block, "i64")
        )
        f.ret(const("i32", at.FAULT))

    def set_pcs(self, value: Value, mask_vector: Value) -> None:
        f = self.f
        place = f.pointer("%warp", at.WARP_PCS)
        f.store(f.select(mask_vector, f.spread(value), f.load("i32", place, WARP, align=64)), place, align=64)

    def emit_block(self, block: Block, pc: Value) -> None:
        f, n = self.f, block.index
        if block.waits == "block":
            self.index = block.start
            run, park = f.new_label("run"), f.new_label("park")
            f.cond(f.icmp("ne", f.bin("and", pc, const("i32", 1)), const("i32", 0)), run, park)
            f.label(park)
            self.fresh_block()
            self.arrive()
            self.set_pcs(f.bin("or", pc, const("i32", at.PARK)), self.mask_vector)
            f.br(self.after_block)
            f.label(run)
            self.fresh_block()
        elif block.waits == "warp":
            self.gather(block, pc)
        self.count(self.layout.masked_warps, n, const("i64", 1))
        self.count(self.layout.masked_lanes, n, f.resize(f.popcount(self.mask), "i64"))
        place = f.pointer("%warp", at.WARP_CHUNK)
        f.store(f.bin("sub", f.load("i64", place), const("i64", max(1, block.stop - block.start))), place)
        self.body(block)
        self.flush()
        mask_vector = self.mask_vector
        if block.kind == "exit":
            alive = f.field("i32", "%warp", at.WARP_ALIVE)
            left = f.bin("and", alive, f.bin("xor", self.mask, const("i32", -1)))
            f.store(left, f.pointer("%warp", at.WARP_ALIVE))
        elif block.kind == "trap":
            self.trap(block)
            return
        elif block.kind == "fall":
            self.set_pcs(const("i32", 2 * block.targets[0]), mask_vector)
        elif block.kind == "branch":
            condition = self.read(block.predicate)
            if block.negated:
                condition = f.bin("xor", condition, const("i1", 1))
            taken = f.bin("and", f.mask_bits(condition), self.mask)
            split = f.bin("and", f.icmp("ne", taken, const("i32", 0)), f.icmp("ne", taken, self.mask))
            self.count(self.layout.divergent, n, f.resize(split, "i64"))
            yes, no = block.targets
            pcs = f.select(f.spread(condition), const("i32", 2 * yes), const("i32", 2 * no))
            self.set_pcs(pcs, mask_vector)
        else:
            self.indexed(block, mask_vector)
        f.br(self.after_block)

    def indexed(self, block: Block, mask_vector: Value) -> None:
        f = self.f
        value = f.spread(f.resize(self.read(block.predicate), "i32"))
        pcs = const("i32", 0)
        for k, target in enumerate(block.targets):
            pcs = f.select(f.icmp("eq", value, const("i32", k)), const("i32", 2 * target), pcs)
        beyond = f.icmp("uge", value, const("i32", len(block.targets)))
        bad = f.bin("and", f.mask_bits(beyond), self.mask)
        fine, wrong = f.new_label("fine"), f.new_label("wrong")
        f.cond(f.icmp("eq", bad, const("i32", 0)), fine, wrong, "likely")
        f.label(wrong)
        lane = f.intrinsic("cttz", bad, flags=", i1 true")
        extra = f.resize(f.extract(value, lane), "i64")
        runtime.fault(f, at.BAD_INDEX, const("i32", block.stop - 1), lane, extra, const("i64", 0))
        f.br(self.fault_label)
        f.label(fine)
        first = f.intrinsic("cttz", self.mask, flags=", i1 true")
        differs = f.mask_bits(f.icmp("ne", f.spread(pcs), f.spread(f.extract(f.spread(pcs), first))))
        split = f.icmp("ne", f.bin("and", differs, self.mask), const("i32", 0))
        self.count(self.layout.divergent, block.index, f.resize(split, "i64"))
        self.set_pcs(pcs, mask_vector)

    def gather(self, block: Block, pc: Value) -> None:
        """Run for the lanes whose members have all come; the others wait."""
        f, n = self.f, block.index
        check, go, wait = f.new_label("check"), f.new_label("go"), f.new_label("wait")
        place = f.variable("i32")
        f.store(self.mask, place)
        f.cond(f.icmp("ne", f.bin("and", pc, const("i32", 1)), const("i32", 0)), go, check)
        f.label(check)
        alive = f.field("i32", "%warp", at.WARP_ALIVE)
        pcs = f.load("i32", f.pointer("%warp", at.WARP_PCS), WARP, align=64)
        waiting = f.mask_bits(f.icmp("eq", pcs, f.spread(const("i32", 2 * n | at.WAIT))))
        here = f.bin("or", self.mask, f.bin("and", waiting, alive))
        self.index = block.start
        _, sources = operands(self.instruction)
        members = f.spread(self.members(sources[-1]))
        here_vector = f.mask_lanes(here)

        def faulty(condition: Value, kind: int) -> None:
            lanes = f.mask_bits(f.bin("and", condition, here_vector))
            wrong, fine = f.new_label("wrong"), f.new_label("fine")
            f.cond(f.icmp("ne", lanes, const("i32", 0)), wrong, fine, "unlikely")
            f.label(wrong)
            lane = f.intrinsic("cttz", lanes, flags=", i1 true")
            extra = f.resize(f.extract(members, lane), "i64")
            runtime.fault(f, kind, const("i32", self.index), lane, const("i64", 0), extra)
            f.br(self.fault_label)
            f.label(fine)

        own = f.bin("and", f.bin("lshr", members, f.lane_numbers()), const("i32", 1))
        faulty(f.icmp("eq", own, const("i32", 0)), at.NOT_IN_MASK)
        if self.instruction.opcode != "bar":
            exited = f.bin("and", members, f.spread(f.bin("xor", alive, const("i32", -1))))
            faulty(f.icmp("ne", exited, const("i32", 0)), at.MASK_EXITED)
        absent = f.bin("and", members, f.spread(f.bin("and", alive, f.bin("xor", here, const("i32", -1)))))
        ready = f.bin("and", f.mask_bits(f.icmp("eq", absent, const("i32", 0))), here)
        # those left over wait, so that they do not look runnable
        rest = f.bin("and", here, f.bin("xor", ready, const("i32", -1)))
        self.set_pcs(const("i32", 2 * n | at.WAIT), f.mask_lanes(rest))
        named = f.pointer("%warp", at.WARP_COUNT)
        f.store(f.select(here_vector, members, f.load("i32", named, WARP, align=64)), named, align=64)
        f.store(ready, place)
        f.cond(f.icmp("ne", ready, const("i32", 0)), go, wait)
        f.label(wait)
        f.br(self.after_block)
        f.label(go)
        self.fresh_block()
        self.mask = f.load("i32", place)


class Setup(Code):
    """Launch constants, once."""

    def __init__(self, kernel: Kernel):
        super().__init__(kernel, "setup", "void", [("ptr", "ctx"), ("ptr", "warp")])

    def constant_register(self, register: Register) -> Value | None:
        if register.index in self.analysis.computed:
            return None
        return super().constant_register(register)

    def load_register(self, register: Register) -> Value:
        return const(register_type(register), 0)

    def write(self, register: Register, value: Value) -> None:
        f = self.f
        self.cache[register.index] = value
        base = f.field("ptr", "%ctx", CTX["constants"]).name
        stored = f.resize(value, "i8") if value.type == "i1" else value
        f.store(stored, f.pointer(base, 8 * register.index))

    def function(self) -> None:
        self.begin_function()
        self.fresh_block()
        self.mask = const("i32", -1)
        for i in self.program.launch_constants:
            self.index = i
            row = operation(self.instruction)
            if row.kind == "memory":
                self.memory(row, self.program.access[i])
            elif row.kind == "alu":
                self.alu(row)
            else:
                raise UnsupportedError(f"{self.instruction.name} is not simulated", self.line)
        self.f.ret()
        self.f.finish()


class _Misjudged(Exception):
    """A register that was taken for a scalar got a vector; args[0] is its index."""


class Kernel:
    """The IR of one program. `text(triple, attributes)` is the module.

    stepped: the driver interleaves the warps of a block, one basic block at a time, and races are looked for;
    the program comes from `split_at_accesses` then.
    """

    def __init__(self, program: Program, stepped: bool = False):
        self.program, self.stepped = program, stepped
        self.analysis = analyse(program)
        if stepped:
            chained = chains(program)
            sharing = _sharing_blocks(program)
            self.follows = [
                n in chained.previous and not program.blocks[n].waits and n not in sharing
                for n in range(len(program.blocks))
            ]
            self.analysis.regions = {}
            self.analysis.enterable = list(range(len(program.blocks)))
            for n in range(len(program.blocks)):
                self.analysis.chain[n] = n
        self.read_registers = _read_registers(program)
        while True:
            self.layout = Layout(program, self.analysis)
            self.module = Module()
            try:
                self._emit()
                return
            except _Misjudged as wrong:
                self.analysis.vectors.add(wrong.args[0])

    def _emit(self) -> None:
        self.module.declarations.update(runtime.DECLARATIONS)
        together = Stepped if self.stepped else Uniform
        for code in (Setup(self), together(self), Masked(self)):
            code.function()

    def text(self, triple: str, attributes: str) -> str:
        return self.module.text(triple, attributes)


def _notices(access: Access) -> bool:
    """Whether an access may show in which order warps run: to shared memory, or atomic."""
    return access.space in ("shared", "generic") or access.operation in ("atom", "red")


def split_at_accesses(program: Program) -> tuple[Program, list[int]]:
    """The program with a basic block for each access that other warps may notice, and where each block begins.

    Stepped code runs all warps up to such an access before any goes past it, as lanes in lockstep do.
    """
    parts: list[list[tuple[int, int]]] = []
    for block in program.blocks:
        cuts = [
            i
            for i in range(block.start + 1, block.stop)
            if i in program.access and _notices(program.access[i])
        ]
        edges = [block.start, *cuts, block.stop]
        parts.append(list(zip(edges[:-1], edges[1:], strict=True)))
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


def _sharing_blocks(program: Program) -> set[int]:
    """Blocks whose place among other warps' blocks may show: they access shared memory, or are atomic."""
    found = set()
    for i, access in program.access.items():
        if _notices(access):
            found.add(program.executed_in[i])
    return found


def _read_registers(program: Program) -> set[int]:
    from .program import reads

    found = {r.index for i in program.instructions for r in reads(i)}
    found |= {b.predicate.index for b in program.blocks if isinstance(b.predicate, Register)}
    return found


def _shuffle_pattern(mode: str, b: int, c: int) -> tuple[list[int], list[bool]]:
    """(source lane, whether it was in range) for each lane, by the PTX ISA's rule for shfl."""
    b, clamp, segment = b & 31, c & 31, c >> 8 & 31
    sources, inside = [], []
    for lane in range(WARP):
        highest = (lane & segment) | (clamp & ~segment & 31)
        lowest = lane & segment
        if mode == "up":
            j = lane - b
            good = j >= highest
        elif mode == "down":
            j = lane + b
            good = j <= highest
        elif mode == "bfly":
            j = lane ^ b
            good = j <= highest
        else:
            j = lowest | (b & ~segment & 31)
            good = j <= highest
        sources.append(j if good else lane)
        inside.append(good)
    return sources, inside
