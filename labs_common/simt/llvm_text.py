"""LLVM IR as text: typed values of one lane or of a whole warp, and a builder that broadcasts between them.

A `Value` with lanes 1 is the same in every active lane; with lanes 32 it is a vector, lane i of the warp at
position i. Every arithmetic method takes either and spreads scalars where the other operand is a vector, so
an opcode is written once. Registers travel as integers of their width; `floats` and `bits` are free
bitcasts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

WARP = 32


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA name or literal of `type` (an LLVM scalar type), lanes 1 or 32."""

    name: str
    type: str
    lanes: int = 1

    @property
    def ir(self) -> str:
        """The LLVM type."""
        return self.type if self.lanes == 1 else f"<{self.lanes} x {self.type}>"

    def __str__(self) -> str:
        return f"{self.ir} {self.name}"

    @property
    def literal(self) -> bool:
        """Whether it is a constant and no SSA name."""
        return self.name[0] != "%"


def const(type_: str, value: int) -> Value:
    """An integer literal; taken modulo the width."""
    width = int(type_[1:])
    value &= (1 << width) - 1
    if type_ == "i1":
        return Value("true" if value else "false", type_)
    if value >> (width - 1):
        value -= 1 << width
    return Value(str(value), type_)


def float_const(type_: str, number: float) -> Value:
    """A finite or infinite literal of `float` or `double`, exact."""
    if type_ == "float":
        number = struct.unpack("<f", struct.pack("<f", number))[0]
    return Value(f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}", type_)


FLOAT_OF = {16: "half", 32: "float", 64: "double"}
_SUFFIX = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16"}


class Module:
    """Functions, the declarations of what they call, and tables of constants."""

    def __init__(self) -> None:
        self.functions: list[str] = []
        self.declarations: set[str] = set()
        self.tables: dict[tuple[int, ...], str] = {}

    def table(self, numbers: Iterable[int]) -> str:
        """Where some i32 lie; equal tables are one."""
        return self.tables.setdefault(tuple(numbers), f"@table{len(self.tables)}")

    def text(self, triple: str, attributes: str) -> str:
        """The whole module. attributes are of every function."""
        return "\n".join(
            [
                f'target triple = "{triple}"',
                *sorted(self.declarations),
                *(
                    f"{name} = internal constant [{len(row)} x i32] [{', '.join(f'i32 {n}' for n in row)}]"
                    for row, name in self.tables.items()
                ),
                *self.functions,
                f"attributes #0 = {{ nounwind {attributes} }}",
                f"attributes #1 = {{ nounwind noinline {attributes} }}",
                "!0 = !{}",
                '!1 = !{!"branch_weights", i32 1, i32 2000}',
                '!2 = !{!"branch_weights", i32 2000, i32 1}',
            ]
        )


class Builder:
    """One function being written. Labels are opened with `label`; a block must end before the next opens."""

    def __init__(
        self,
        module: Module,
        name: str,
        returns: str,
        arguments: Iterable[tuple[str, str]],
        internal: bool = True,
        noinline: bool = False,
    ):
        self.module = module
        listed = ", ".join(f"{type_} %{argument}" for type_, argument in arguments)
        linkage = "internal " if internal else ""
        self.head = f"define {linkage}{returns} @{name}({listed}) #{1 if noinline else 0} {{"
        self.allocas: list[str] = []
        self.lines: list[str] = []
        self.count = 0
        self.label_name = "variables"
        self._known: dict[tuple[str, str, str], Value] = {}  # of this block: operation, operand, more

    def finish(self) -> None:
        """Close the function and add it to the module."""
        self.module.functions.append(
            "\n".join([self.head, "variables:", *self.allocas, "  br label %start", *self.lines, "}"])
        )

    # ---- plumbing

    def fresh(self) -> str:
        """A new SSA name."""
        self.count += 1
        return f"%t{self.count}"

    def line(self, text: str) -> None:
        """Append a line."""
        self.lines.append("  " + text)

    def emit(self, text: str, type_: str, lanes: int = 1) -> Value:
        """Append an instruction that gives a value."""
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return Value(name, type_, lanes)

    def once(self, op: str, operand: str, more: str, text: str, type_: str, lanes: int = 1) -> Value:
        """As `emit` of an instruction that gives the same wherever it is; once in a block."""
        known = self._known.get((op, operand, more))
        if known is None:
            known = self._known[op, operand, more] = self.emit(f"{op} {text}", type_, lanes)
        return known

    def new_label(self, stem: str) -> str:
        """A label that is not used yet."""
        self.count += 1
        return f"{stem}.{self.count}"

    def label(self, name: str) -> None:
        """Open a block."""
        self.lines.append(f"{name}:")
        self.label_name = name
        self._known.clear()

    def alloca(self, ir: str, align: int = 64) -> str:
        """Stack memory of an LLVM type, reserved once for the function."""
        self.count += 1
        name = f"%a{self.count}"
        self.allocas.append(f"  {name} = alloca {ir}, align {align}")
        return name

    # ---- control flow

    def br(self, label: str) -> None:
        """An unconditional branch."""
        self.line(f"br label %{label}")

    def cond(self, condition: Value, yes: str, no: str, weights: str = "") -> None:
        """Weights: "" or "unlikely"/"likely" for the first label."""
        note = {"": "", "unlikely": ", !prof !1", "likely": ", !prof !2"}[weights]
        self.line(f"br {condition}, label %{yes}, label %{no}{note}")

    def switch(self, value: Value, default: str, cases: Iterable[tuple[int, str]]) -> None:
        """A switch over integer literals."""
        listed = " ".join(f"{value.type} {number}, label %{label}" for number, label in cases)
        self.line(f"switch {value}, label %{default} [ {listed} ]")

    def ret(self, value: Value | None = None) -> None:
        """A return."""
        self.line(f"ret {value}" if value else "ret void")

    def phi(self, parts: list[tuple[Value, str]]) -> Value:
        """One of several values, by the block that control came from."""
        first = parts[0][0]
        listed = ", ".join(f"[ {value.name}, %{label} ]" for value, label in parts)
        return self.emit(f"phi {first.ir} {listed}", first.type, first.lanes)

    # ---- memory

    def pointer(self, base: str, offset: Value | int) -> str:
        """base + offset bytes."""
        if isinstance(offset, int):
            if offset == 0:
                return base
            offset = const("i64", offset)
        return self.once("getelementptr", base, offset.name, f"i8, ptr {base}, {offset}", "ptr").name

    def pointer_of(self, address: Value) -> str:
        """An integer address as a pointer."""
        return self.emit(f"inttoptr {address} to ptr", "ptr").name

    def load(
        self,
        type_: str,
        pointer: str,
        lanes: int = 1,
        align: int = 0,
        invariant: bool = False,
        volatile: bool = False,
    ) -> Value:
        """A load; lanes > 1 is a vector. align 0: natural."""
        ir = type_ if lanes == 1 else f"<{lanes} x {type_}>"
        note = f", align {align}" if align else ""
        note += ", !invariant.load !0" if invariant else ""
        return self.emit(f"load {'volatile ' if volatile else ''}{ir}, ptr {pointer}{note}", type_, lanes)

    def store(self, value: Value, pointer: str, align: int = 0) -> None:
        """A store. align 0: natural."""
        note = f", align {align}" if align else ""
        self.line(f"store {value}, ptr {pointer}{note}")

    def field(self, type_: str, base: str, offset: int, invariant: bool = False) -> Value:
        """The scalar at base + offset bytes."""
        return self.load(type_, self.pointer(base, offset), invariant=invariant)

    def add_to(self, base: str, offset: int, amount: Value) -> None:
        """The counter at base + offset += amount."""
        pointer = self.pointer(base, offset)
        self.store(self.bin("add", self.load(amount.type, pointer), amount), pointer)

    # ---- lanes

    def spread(self, value: Value) -> Value:
        """The value in all 32 lanes."""
        if value.lanes == WARP:
            return value
        if value.literal:
            return Value(f"splat ({value.type} {value.name})", value.type, WARP)
        vector, type_ = f"<{WARP} x {value.type}>", value.type
        one = self.once("insertelement", value.name, "", f"{vector} poison, {value}, i32 0", type_, WARP)
        everywhere = f"{one}, {vector} poison, <{WARP} x i32> zeroinitializer"
        return self.once("shufflevector", one.name, "", everywhere, type_, WARP)

    def together(self, *values: Value) -> tuple[Value, ...]:
        """The values as they are, or all of them spread where one is a vector."""
        if any(v.lanes == WARP for v in values):
            return tuple(self.spread(v) for v in values)
        return values

    def vector_literal(self, type_: str, numbers: Iterable[int]) -> Value:
        """32 integer literals."""
        return Value("<" + ", ".join(f"{type_} {n}" for n in numbers) + ">", type_, WARP)

    def lane_numbers(self, type_: str = "i32") -> Value:
        """0 to 31."""
        return self.vector_literal(type_, range(WARP))

    def extract(self, vector: Value, lane: Value | int) -> Value:
        """One lane of a vector; a scalar is its own."""
        if vector.lanes == 1:
            return vector
        index = lane if isinstance(lane, Value) else const("i32", lane)
        return self.emit(f"extractelement {vector}, {index}", vector.type)

    def shuffle(self, vector: Value, pattern: Iterable[int]) -> Value:
        """Elements of a vector in another order or number; -1 is any value."""
        numbers = list(pattern)
        listed = ", ".join("i32 poison" if n < 0 else f"i32 {n}" for n in numbers)
        return self.emit(
            f"shufflevector {vector}, {vector.ir} poison, <{len(numbers)} x i32> <{listed}>",
            vector.type,
            len(numbers),
        )

    def mask_bits(self, condition: Value) -> Value:
        """<32 x i1> -> i32, lane 0 in bit 0."""
        lanes = self.spread(condition)
        return self.once("bitcast", lanes.name, "i32", f"{lanes} to i32", "i32")

    def mask_lanes(self, bits: Value) -> Value:
        """i32 -> <32 x i1>."""
        return self.once("bitcast", bits.name, "i1", f"{bits} to <32 x i1>", "i1", WARP)

    # ---- arithmetic

    def bin(self, op: str, a: Value, b: Value) -> Value:
        """A binary instruction."""
        a, b = self.together(a, b)
        return self.emit(f"{op} {a.ir} {a.name}, {b.name}", a.type, a.lanes)

    def icmp(self, predicate: str, a: Value, b: Value) -> Value:
        """An integer comparison."""
        a, b = self.together(a, b)
        return self.emit(f"icmp {predicate} {a.ir} {a.name}, {b.name}", "i1", a.lanes)

    def fcmp(self, predicate: str, a: Value, b: Value) -> Value:
        """A floating-point comparison."""
        a, b = self.together(a, b)
        return self.emit(f"fcmp {predicate} {a.ir} {a.name}, {b.name}", "i1", a.lanes)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """condition ? a : b."""
        if condition.lanes == WARP:
            a, b = self.spread(a), self.spread(b)
        else:
            a, b = self.together(a, b)
        return self.emit(f"select {condition}, {a}, {b}", a.type, a.lanes)

    def cast(self, op: str, a: Value, to: str) -> Value:
        """A conversion instruction; nothing where the type is the same."""
        if a.type == to:
            return a
        target = to if a.lanes == 1 else f"<{a.lanes} x {to}>"
        if a.literal:  # of one name and many types
            return self.emit(f"{op} {a} to {target}", to, a.lanes)
        value = self.once(op, a.name, to, f"{a} to {target}", to, a.lanes)
        if op == "bitcast":
            self._known[op, value.name, a.type] = a
        return value

    def resize(self, a: Value, to: str, signed: bool = False) -> Value:
        """Truncate or extend an integer."""
        have, want = int(a.type[1:]), int(to[1:])
        if have == want:
            return a
        if a.literal and a.lanes == 1 and a.type != "i1":
            number = int(a.name)
            return const(to, number if signed else number & ((1 << have) - 1))
        return self.cast("trunc" if have > want else "sext" if signed else "zext", a, to)

    def floats(self, a: Value) -> Value:
        """Integer bits as the floating-point type of the same width."""
        return self.cast("bitcast", a, FLOAT_OF[int(a.type[1:])])

    def bits(self, a: Value) -> Value:
        """A floating-point value as integer bits."""
        return self.cast(
            "bitcast", a, {"half": "i16", "bfloat": "i16", "float": "i32", "double": "i64"}[a.type]
        )

    def intrinsic(self, name: str, *arguments: Value, flags: str = "", returns: str = "") -> Value:
        """llvm.<name> over the common lanes; flags are trailing i1 literals such as ", i1 false"."""
        arguments = self.together(*arguments)
        first = arguments[0]
        suffix = _SUFFIX.get(first.type, first.type)
        if first.lanes > 1:
            suffix = f"v{first.lanes}{suffix}"
        result = returns or first.type
        result_ir = result if first.lanes == 1 else f"<{first.lanes} x {result}>"
        if returns and returns != first.type:
            prefix = _SUFFIX.get(returns, returns)
            suffix = (f"v{first.lanes}{prefix}" if first.lanes > 1 else prefix) + "." + suffix
        extra = ", i1" * flags.count("i1")
        types = ", ".join(a.ir for a in arguments)
        self.module.declarations.add(f"declare {result_ir} @llvm.{name}.{suffix}({types}{extra})")
        listed = ", ".join(str(a) for a in arguments)
        return self.emit(f"call {result_ir} @llvm.{name}.{suffix}({listed}{flags})", result, first.lanes)

    def reduce(self, name: str, vector: Value) -> Value:
        """llvm.vector.reduce.<name>: add, and, or, xor, umin, umax, smin, smax."""
        suffix = f"v{vector.lanes}{vector.type}"
        self.module.declarations.add(
            f"declare {vector.type} @llvm.vector.reduce.{name}.{suffix}({vector.ir})"
        )
        return self.emit(f"call {vector.type} @llvm.vector.reduce.{name}.{suffix}({vector})", vector.type)

    def popcount(self, a: Value) -> Value:
        """Set bits."""
        return self.intrinsic("ctpop", a)

    def call(self, returns: str, function: str, *arguments: str) -> Value:
        """Call a function of the module with written-out arguments."""
        listed = ", ".join(arguments)
        if returns == "void":
            self.line(f"call void @{function}({listed})")
            return Value("%void", "void")
        return self.emit(f"call {returns} @{function}({listed})", returns)
