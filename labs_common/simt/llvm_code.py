"""One function of a kernel while it is written: reading and writing registers, and plain instructions.

Everything of this module holds for uniform and masked code alike; `llvm_access` adds memory, `llvm_warp` what
lanes do together, `llvm_uniform` and `llvm_masked` control flow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import llvm_layout as at
from . import llvm_runtime as runtime
from .errors import UnsupportedError
from .llvm_analysis import Analysis
from .llvm_layout import CTX
from .llvm_ops import TextEmitter, emitter, ir_type
from .llvm_runtime import Function
from .llvm_text import WARP, Value, const
from .memory import WINDOW
from .ops import Operation, operands, operation
from .parse import TYPE_BYTES, Immediate, Instruction, Negated, Register, Sink, Special, Symbol, bits_of
from .program import Block, Program

if TYPE_CHECKING:
    from .llvm_emit import Kernel

# control flow is in the blocks; the rest orders or hints, and changes no value here
_NOTHING_TO_DO = frozenset(
    (
        "bra",
        "brx",
        "ret",
        "exit",
        "trap",
        "membar",
        "fence",
        "nanosleep",
        "prefetch",
        "prefetchu",
        "pmevent",
        "brkpt",
        "discard",
        "applypriority",
        "griddepcontrol",
    )
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


class Misjudged(Exception):
    """A register that was taken for a scalar got a vector; args[0] is its index."""


class Base:
    """One function of the kernel; subclasses say where registers are between blocks."""

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

    def scalar_table(self, bits: int) -> tuple[str, str] | None:
        """For `llvm_meet`, of a set's registers: those that live across blocks as scalars, and how many."""
        bits &= self.analysis.saved
        numbers: list[int] = []
        for register in self.program.registers:
            index = register.index
            if bits >> index & 1 and index not in self.analysis.vectors:
                width = 0 if register.type == "pred" else TYPE_BYTES[register.type]
                numbers += (width, self.layout.vector_slots[index], self.layout.scalar_slots[index])
        if not numbers:
            return None
        return f"ptr {self.kernel.module.table(numbers)}", f"i64 {len(numbers) // 3}"

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
            return const("i64", self.program.address_of(symbol, {}))
        base = self.f.field("ptr", "%ctx", CTX["symbols"], invariant=True).name
        address = self.f.load("i64", self.f.pointer(base, self.layout.variables[symbol.name]), invariant=True)
        return self.f.bin("add", address, const("i64", symbol.offset)) if symbol.offset else address

    def read(self, register: Register) -> Value:
        """A register's bits: one value where it is the same in all lanes, else 32."""
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
        """A register's value from where this kind of code keeps it between blocks."""
        raise NotImplementedError

    def write(self, register: Register, value: Value) -> None:
        """Give a register a new value of its own width."""
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
        """A special register, 32 bits (64 for the wide clocks)."""
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
        if name in ("smid", "gridid", "cluster_ctarank") or kind == "cluster_ctaid":
            return const("i32", 0)
        if name == "nsmid" or kind in ("cluster_nctaid", "cluster_nctarank"):
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
        """The instruction that is being written."""
        return self.program.instructions[self.index]

    @property
    def line(self) -> int:
        """Its line in the PTX."""
        return self.instruction.line

    def count(self, offset: int, number: int, amount: Value) -> None:
        """Add to counter `number` of the kind at `offset`."""
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
            elif row.kind == "memory" and row.group == "copy":
                self.copy(self.program.access[i])
            elif row.kind == "copy":
                self.copy_group(row)
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
        """An instruction that only computes."""
        targets, sources = operands(self.instruction)
        function = emitter(row, WINDOW)
        if function is None:
            raise UnsupportedError(f"{self.instruction.name} is not simulated by this engine", self.line)
        values = [self.source(o, t) for o, t in zip(sources, row.sources, strict=True)]
        made = function(self.e, *values)
        made = made if isinstance(made, tuple) else (made,)
        for target, value, type_ in zip(targets, made, row.results, strict=True):
            self.result(target, value, type_)

    @property
    def mask_vector(self) -> Value:
        """The executing lanes as <32 x i1>."""
        return self.f.mask_lanes(self.mask)

    def trap(self, block: Block) -> None:
        """End the launch at a trap."""
        f = self.f
        lane = f.intrinsic("cttz", self.mask, flags=", i1 true")
        runtime.fault(
            f, at.TRAPPED, const("i32", max(block.stop - 1, 0)), lane, const("i64", 0), const("i64", 0)
        )
        f.br(self.fault_label)

    def fresh_block(self) -> None:
        """Forget what was read: a new LLVM block begins that the old one need not dominate."""
        self.cache = {}
        self.floating: dict[tuple[str, str], Value] = {}
        self.e.flushed = set()

    def begin_function(self) -> None:
        """Open the function and load what all of it uses."""
        f = self.f
        f.begin()
        self.counters = f.field("ptr", "%ctx", CTX["counters"], True).name

    def spend(self, instructions: int, go_on: str, block: int) -> None:
        """Take instructions from the warp's budget and go on, or return STOP or BUDGET.

        block is where the warp is going, for the message; -1: its pcs say so.
        """
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
