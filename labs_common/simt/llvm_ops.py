"""The LLVM column of the opcode table: integer rows here, floating-point rows as vector_math defines them.

`emitter(row)` gives function(TextEmitter, values...) -> value or tuple of values, over scalars and warp
vectors alike. No instruction here can trap or give poison: divisors and shift amounts are made harmless
first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from . import vector_math as vm
from .llvm_text import FLOAT_OF, Builder, Value, const, float_const
from .memory import WINDOW_BYTES
from .ops import Operation
from .parse import TYPE_BYTES

_FCMP = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_SIGNED = {"<": "slt", "<=": "sle", ">": "sgt", ">=": "sge", "==": "eq", "!=": "ne"}


def ir_type(type_: str) -> str:
    """The LLVM scalar type in which vector_math and this module take a PTX type."""
    if type_ == "pred":
        return "i1"
    if type_ in ("f32", "f64"):
        return FLOAT_OF[8 * TYPE_BYTES[type_]]
    return f"i{8 * TYPE_BYTES[type_]}"


_BINARY = frozenset(
    ["fadd", "fsub", "fmul", "fdiv", "add", "sub", "mul", "and", "or", "xor", "shl", "lshr", "ashr"]
)
_CASTS = frozenset(
    ["bitcast", "zext", "sext", "trunc", "fpext", "fptrunc", "sitofp", "uitofp", "fptosi", "fptoui"]
)


class _Operations:
    """The calls of llvmlite's IRBuilder that vector_math uses, on text."""

    def __init__(self, b: Builder):
        self.b = b

    def __getattr__(self, name: str) -> Callable:
        op = name.rstrip("_")
        if op in _BINARY:
            made = functools.partial(self.b.bin, op)
        elif op in _CASTS:
            made = functools.partial(self.b.cast, op)
        else:
            raise AttributeError(name)
        setattr(self, name, made)
        return made

    def fneg(self, x: Value) -> Value:
        return self.b.emit(f"fneg {x}", x.type, x.lanes)

    def not_(self, x: Value) -> Value:
        return self.b.bin("xor", x, const(x.type, -1))

    def fcmp_ordered(self, op: str, x: Value, y: Value) -> Value:
        return self.b.fcmp("o" + _FCMP[op] if op in _FCMP else op, x, y)

    def fcmp_unordered(self, op: str, x: Value, y: Value) -> Value:
        return self.b.fcmp("u" + _FCMP[op] if op in _FCMP else op, x, y)

    def icmp_unsigned(self, op: str, x: Value, y: Value) -> Value:
        return self.b.icmp(_SIGNED[op].replace("s", "u", 1) if op not in ("==", "!=") else _SIGNED[op], x, y)

    def icmp_signed(self, op: str, x: Value, y: Value) -> Value:
        return self.b.icmp(_SIGNED[op], x, y)

    def select(self, condition: Value, x: Value, y: Value) -> Value:
        """condition ? yes : no, lane by lane."""
        return self.b.select(condition, x, y)


class TextEmitter:
    """vector_math.Emitter over text: scalars and warp vectors may be mixed."""

    def __init__(self, b: Builder):
        self.b = b
        self.builder = _Operations(b)
        self.flushed: set[str] = set()

    def type(self, name: str) -> str:
        """The LLVM type of a PTX scalar type."""
        return ir_type(name)

    def const(self, name: str, value: float) -> Value:
        """A literal."""
        kind = ir_type(name)
        return float_const(kind, value) if name in ("f32", "f64") else const(kind, int(value))

    def intrinsic(self, name: str, *values: Value) -> Value:
        """llvm.<name> overloaded on the first value's type."""
        return self.b.intrinsic(name, *values)

    def cast(self, operation: str, value: Value, name: str) -> Value:
        """bitcast, zext, fptosi ... to a PTX type."""
        return self.b.cast(operation, value, ir_type(name))

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        """condition ? yes : no, lane by lane."""
        return self.b.select(condition, yes, no)

    def flush(self, value: Value) -> Value:
        """An f32 with subnormals (zero exponent field) replaced by zero of the same sign."""
        if value.name in self.flushed:
            return value
        b = self.b
        bits = b.bits(value)
        small = b.icmp("eq", b.bin("and", bits, const("i32", 0x7F800000)), const("i32", 0))
        zero = b.bin("and", bits, const("i32", 0x80000000))
        return self.known_flushed(b.cast("bitcast", b.select(small, zero, bits), "float"))

    def known_flushed(self, value: Value) -> Value:
        """Remember that an f32 value is no subnormal."""
        self.flushed.add(value.name)
        return value


def emitter(row: Operation, windows: dict[str, int]) -> Callable | None:
    """The LLVM column of an "alu" row; None where there is none. windows: space -> base of its window."""
    if row.emit is not None:
        return row.emit
    parts = row.name.split(".")
    family = _FAMILIES.get(parts[0])
    return family(row, parts, windows) if family else None


def _width(type_: str) -> int:
    return 8 * TYPE_BYTES[type_]


def _signed(type_: str) -> bool:
    return type_[0] == "s"


def divide(b: Builder, x: Value, y: Value, signed: bool) -> Value:
    """As ops.divide."""
    width = int(x.type[1:])
    x, y = b.together(x, y)
    zero = b.icmp("eq", y, const(y.type, 0))
    unusual = zero
    if signed:
        wraps = b.bin(
            "and",
            b.icmp("eq", y, const(y.type, -1)),
            b.icmp("eq", x, const(x.type, 1 << (width - 1))),
        )
        unusual = b.bin("or", zero, wraps)
    safe = b.select(unusual, const(y.type, 1), y)
    if x.lanes > 1 and width == 32:
        # the f64 quotient of 32-bit integers never rounds up to the next integer
        convert, back = ("sitofp", "fptosi") if signed else ("uitofp", "fptoui")
        quotient = b.bin("fdiv", b.cast(convert, x, "double"), b.cast(convert, safe, "double"))
        result = b.cast(back, quotient, "i32")
    else:
        result = b.bin("sdiv" if signed else "udiv", x, safe)
    return b.select(zero, const(x.type, -1), result)


def _multiply(b: Builder, x: Value, y: Value, half: str, signed: bool) -> Value:
    if half == "lo":
        return b.bin("mul", x, y)
    width = int(x.type[1:])
    wide = f"i{2 * width}"
    product = b.bin("mul", b.resize(x, wide, signed), b.resize(y, wide, signed))
    if half == "wide":
        return product
    return b.resize(b.bin("lshr", product, const(wide, width)), x.type)


def _arithmetic(row: Operation, parts: list[str], _) -> Callable | None:
    opcode, type_, rest = parts[0], parts[-1], parts[1:-1]
    signed = _signed(type_)
    if opcode in ("add", "sub"):
        if rest == ["sat"]:
            name = f"{'s'}{opcode}.sat"
            return lambda e, x, y: e.b.intrinsic(name, x, y)
        return lambda e, x, y: e.b.bin(opcode, x, y)
    if opcode == "div":
        return lambda e, x, y: divide(e.b, x, y, signed)
    if opcode == "rem":

        def rem(e, x, y):
            b = e.b
            rest_ = b.bin("sub", x, b.bin("mul", y, divide(b, x, y, signed)))
            return b.select(b.icmp("eq", y, const(y.type, 0)), x, rest_)

        return rem
    half = rest[0]
    if opcode == "mul":
        return lambda e, x, y: _multiply(e.b, x, y, half, signed)
    return lambda e, x, y, z: e.b.bin("add", _multiply(e.b, x, y, half, signed), z)


def _mul24(row: Operation, parts: list[str], _) -> Callable:
    signed, shift = parts[-1] == "s32", 16 if parts[1] == "hi" else 0

    def low(b: Builder, x: Value) -> Value:
        x = b.bin("shl", x, const("i32", 8))
        return b.resize(b.bin("ashr" if signed else "lshr", x, const("i32", 8)), "i64", signed)

    def function(e, x, y, *z):
        b = e.b
        product = b.bin("mul", low(b, x), low(b, y))
        result = b.resize(b.bin("lshr", product, const("i64", shift)), "i32")
        return b.bin("add", result, z[0]) if z else result

    return function


def _extremum(row: Operation, parts: list[str], _) -> Callable:
    name = ("s" if _signed(parts[-1]) else "u") + parts[0]
    return lambda e, x, y: e.b.intrinsic(name, x, y)


def _sign(row: Operation, parts: list[str], _) -> Callable:
    if parts[0] == "neg":
        return lambda e, x: e.b.bin("sub", const(x.type, 0), x)
    return lambda e, x: e.b.intrinsic("abs", x, flags=", i1 false")


def _logic(row: Operation, parts: list[str], _) -> Callable:
    if parts[0] == "not":
        return lambda e, x: e.b.bin("xor", x, const(x.type, -1))
    if parts[0] == "cnot":
        return lambda e, x: e.b.resize(e.b.icmp("eq", x, const(x.type, 0)), x.type)
    return lambda e, x, y: e.b.bin(parts[0], x, y)


def shift(b: Builder, x: Value, count: Value, op: str) -> Value:
    """shl, lshr or ashr by an unsigned amount that may exceed the width."""
    width = int(x.type[1:])
    if count.literal and count.lanes == 1:
        number = int(count.name) & 0xFFFFFFFF
        if number < width:
            return b.bin(op, x, const(x.type, number))
        return b.bin("ashr", x, const(x.type, width - 1)) if op == "ashr" else const(x.type, 0)
    inside = b.icmp("ult", count, const(count.type, width))
    amount = b.select(inside, count, const(count.type, width - 1))
    result = b.bin(op, x, b.resize(amount, x.type))
    return result if op == "ashr" else b.select(inside, result, const(x.type, 0))


def _shift(row: Operation, parts: list[str], _) -> Callable:
    op = "shl" if parts[0] == "shl" else "ashr" if _signed(parts[1]) else "lshr"
    return lambda e, x, count: shift(e.b, x, count, op)


def _funnel(row: Operation, parts: list[str], _) -> Callable:
    left, wrap = parts[1] == "l", parts[2] == "wrap"

    def shf(e, x, y, count):
        b = e.b
        if wrap:
            amount = b.bin("and", count, const("i32", 31))
        else:
            amount = b.intrinsic("umin", count, const("i32", 32))
        both = b.bin("or", b.bin("shl", b.resize(y, "i64"), const("i64", 32)), b.resize(x, "i64"))
        moved = b.bin("shl" if left else "lshr", both, b.resize(amount, "i64"))
        return b.resize(b.bin("lshr", moved, const("i64", 32)) if left else moved, "i32")

    return shf


_PERMUTE = {
    "f4e": ((3, 2, 1, 0), (4, 3, 2, 1), (5, 4, 3, 2), (6, 5, 4, 3)),
    "b4e": ((5, 6, 7, 0), (6, 7, 0, 1), (7, 0, 1, 2), (0, 1, 2, 3)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((3, 2, 1, 0), (3, 2, 1, 1), (3, 2, 2, 2), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (1, 1, 1, 0), (2, 2, 1, 0), (3, 2, 1, 0)),
    "rc16": ((1, 0, 1, 0), (3, 2, 3, 2), (1, 0, 1, 0), (3, 2, 3, 2)),
}


def _prmt(row: Operation, parts: list[str], _) -> Callable:
    mode = parts[2] if len(parts) > 2 else ""

    def prmt(e, x, y, selectors):
        b = e.b
        both = b.bin("or", b.bin("shl", b.resize(y, "i64"), const("i64", 32)), b.resize(x, "i64"))
        result = const("i32", 0)
        for byte in range(4):
            if mode:
                which = b.bin("and", selectors, const("i32", 3))
                nibble = const("i32", _PERMUTE[mode][0][3 - byte])
                for k in (1, 2, 3):
                    here = b.icmp("eq", which, const("i32", k))
                    nibble = b.select(here, const("i32", _PERMUTE[mode][k][3 - byte]), nibble)
            else:
                nibble = b.bin("and", b.bin("lshr", selectors, const("i32", 4 * byte)), const("i32", 15))
            place = b.bin("shl", b.bin("and", nibble, const("i32", 7)), const("i32", 3))
            value = b.resize(b.bin("lshr", both, b.resize(place, "i64")), "i32")
            value = b.bin("and", value, const("i32", 0xFF))
            if not mode:
                negative = b.icmp("ne", b.bin("and", value, const("i32", 0x80)), const("i32", 0))
                sign = b.select(negative, const("i32", 0xFF), const("i32", 0))
                replicate = b.icmp("ne", b.bin("and", nibble, const("i32", 8)), const("i32", 0))
                value = b.select(replicate, sign, value)
            result = b.bin("or", result, b.bin("shl", value, const("i32", 8 * byte)))
        return result

    return prmt


def _lop3(row: Operation, parts: list[str], _) -> Callable:
    table = row.constants[0]

    def lop3(e, *values):
        b = e.b
        inverse = [b.bin("xor", v, const("i32", -1)) for v in values]
        result = const("i32", 0)
        for number in range(8):
            if table >> number & 1:
                x, y, z = (
                    v if number & bit else n for v, n, bit in zip(values, inverse, (4, 2, 1), strict=True)
                )
                result = b.bin("or", result, b.bin("and", b.bin("and", x, y), z))
        return result

    return lop3


def _low_mask(b: Builder, length: Value, type_: str) -> Value:
    """`length` (i32, at most the width) low bits set."""
    width = int(type_[1:])
    full = b.icmp("uge", length, const("i32", width))
    amount = b.resize(b.select(full, const("i32", 0), length), type_)
    ones = b.bin("sub", b.bin("shl", const(type_, 1), amount), const(type_, 1))
    return b.select(full, const(type_, -1), ones)


def _bfe(row: Operation, parts: list[str], _) -> Callable:
    signed, width = _signed(parts[1]), _width(parts[1])

    def bfe(e, x, start, length):
        b = e.b
        start, length = (b.bin("and", v, const("i32", 0xFF)) for v in (start, length))
        shifted = shift(b, x, start, "lshr")
        room = b.intrinsic("smax", b.bin("sub", const("i32", width), start), const("i32", 0))
        field = _low_mask(b, b.intrinsic("smin", room, length), x.type)
        result = b.bin("and", shifted, field)
        if not signed:
            return result
        top = b.bin("sub", b.bin("add", start, length), const("i32", 1))
        top = b.intrinsic("smax", b.intrinsic("smin", top, const("i32", width - 1)), const("i32", 0))
        sign = b.bin("and", b.bin("lshr", x, b.resize(top, x.type)), const(x.type, 1))
        fill = b.bin("and", b.icmp("eq", sign, const(x.type, 1)), b.icmp("ne", length, const("i32", 0)))
        return b.select(fill, b.bin("or", result, b.bin("xor", field, const(x.type, -1))), result)

    return bfe


def _bfi(row: Operation, parts: list[str], _) -> Callable:
    width = _width(parts[1])

    def bfi(e, x, into, start, length):
        b = e.b
        start, length = (b.bin("and", v, const("i32", 0xFF)) for v in (start, length))
        field = _low_mask(b, b.intrinsic("umin", length, const("i32", width)), x.type)
        mask = shift(b, field, start, "shl")
        kept = b.bin("and", into, b.bin("xor", mask, const(x.type, -1)))
        return b.bin("or", kept, b.bin("and", shift(b, x, start, "shl"), mask))

    return bfi


def _count(row: Operation, parts: list[str], _) -> Callable:
    if parts[0] == "popc":
        return lambda e, x: e.b.resize(e.b.popcount(x), "i32")
    if parts[0] == "clz":
        return lambda e, x: e.b.resize(e.b.intrinsic("ctlz", x, flags=", i1 false"), "i32")
    return lambda e, x: e.b.intrinsic("bitreverse", x)


def _bfind(row: Operation, parts: list[str], _) -> Callable:
    type_, amount = parts[-1], len(parts) == 3
    width = _width(type_)

    def bfind(e, x):
        b = e.b
        if _signed(type_):
            x = b.bin("xor", x, b.bin("ashr", x, const(x.type, width - 1)))
        zeros = b.resize(b.intrinsic("ctlz", x, flags=", i1 false"), "i32")
        found = zeros if amount else b.bin("sub", const("i32", width - 1), zeros)
        return b.select(b.icmp("eq", x, const(x.type, 0)), const("i32", -1), found)

    return bfind


def _dot(row: Operation, parts: list[str], _) -> Callable:
    def byte(b: Builder, x: Value, number: int, signed: bool) -> Value:
        moved = b.bin("shl", x, const("i32", 24 - 8 * number))
        return b.bin("ashr" if signed else "lshr", moved, const("i32", 24))

    def dp4a(e, x, y, z):
        b = e.b
        for number in range(4):
            first = byte(b, x, number, parts[1] == "s32")
            z = b.bin("add", z, b.bin("mul", first, byte(b, y, number, parts[2] == "s32")))
        return z

    return dp4a


def _sad(row: Operation, parts: list[str], _) -> Callable:
    less = "slt" if _signed(parts[1]) else "ult"

    def sad(e, x, y, z):
        b = e.b
        difference = b.select(b.icmp(less, x, y), b.bin("sub", y, x), b.bin("sub", x, y))
        return b.bin("add", difference, z)

    return sad


_COMPARISON = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
_UNSIGNED = {"lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}


def _setp(row: Operation, parts: list[str], _) -> Callable:
    comparison, stype = parts[1], parts[-1]
    if comparison in ("eq", "ne"):
        predicate = comparison
    elif comparison in _UNSIGNED:
        predicate = _UNSIGNED[comparison]
    else:
        predicate = ("s" if _signed(stype) else "u") + comparison
    combine = next((p for p in parts[2:] if p in ("and", "or", "xor")), "")
    result = row.results[0]

    def setp(e, x, y, *other):
        b = e.b
        truth = b.icmp(predicate, x, y)
        inverse = b.bin("xor", truth, const("i1", 1))
        if combine:
            truth, inverse = b.bin(combine, truth, other[0]), b.bin(combine, inverse, other[0])
        if result != "pred":
            one = e.const(result, 1.0 if result == "f32" else -1)
            return b.select(truth, one, e.const(result, 0))
        return (truth, inverse) if len(row.results) == 2 else truth

    return setp


def _selp(row: Operation, parts: list[str], _) -> Callable:
    if parts[0] == "selp":
        return lambda e, x, y, p: e.b.select(p, x, y)
    if row.sources[2] == "f32":
        return lambda e, x, y, c: e.b.select(e.b.fcmp("oge", c, float_const("float", 0.0)), x, y)
    return lambda e, x, y, c: e.b.select(e.b.icmp("sge", c, const("i32", 0)), x, y)


def _testp(row: Operation, parts: list[str], _) -> Callable:
    kind, width = parts[1], _width(parts[2])
    mantissa = 23 if width == 32 else 52
    infinity, least = ((1 << (width - 1 - mantissa)) - 1) << mantissa, 1 << mantissa

    def testp(e, x):
        b = e.b
        size = b.bin("and", b.bits(x), const(f"i{width}", (1 << (width - 1)) - 1))

        def is_(predicate: str, number: int) -> Value:
            return b.icmp(predicate, size, const(size.type, number))

        if kind == "finite":
            return is_("ult", infinity)
        if kind == "infinite":
            return is_("eq", infinity)
        if kind in ("number", "notanumber"):
            return is_("ule" if kind == "number" else "ugt", infinity)
        if kind == "normal":
            return b.bin("and", is_("uge", least), is_("ult", infinity))
        return b.bin("and", is_("ult", least), is_("ne", 0))

    return testp


def _cvt(row: Operation, parts: list[str], _) -> Callable | None:
    to, source = row.results[0], row.sources[0]
    if "sat" not in parts:
        return lambda e, x: e.b.resize(x, ir_type(to), _signed(source))
    low, high = vm._INT_LIMITS[to]
    source_low, source_high = vm._INT_LIMITS[source]
    low, high = max(low, source_low), min(high, source_high)
    kind = "s" if _signed(source) else "u"

    def cvt(e, x):
        b = e.b
        x = b.intrinsic(f"{kind}max", x, const(x.type, low))
        x = b.intrinsic(f"{kind}min", x, const(x.type, high))
        return b.resize(x, ir_type(to), _signed(source))

    return cvt


def _mov(row: Operation, parts: list[str], _) -> Callable:
    if len(row.results) > 1:
        part = ir_type(row.results[0])

        def unpack(e, x):
            b = e.b
            x = b.bits(x) if x.type in ("float", "double") else x
            width = int(part[1:])
            return tuple(
                b.resize(b.bin("lshr", x, const(x.type, width * k)), part) for k in range(len(row.results))
            )

        return unpack
    if len(row.sources) > 1:
        whole = f"i{_width(row.results[0])}"

        def pack(e, *values):
            b = e.b
            result = b.resize(values[0], whole)
            for k, value in enumerate(values[1:], 1):
                moved = b.bin("shl", b.resize(value, whole), const(whole, k * int(value.type[1:])))
                result = b.bin("or", result, moved)
            return b.floats(result) if row.results[0] in ("f32", "f64") else result

        return pack
    return lambda e, x: x


def _cvta(row: Operation, parts: list[str], windows: dict[str, int]) -> Callable:
    space = next(p.split("::")[0] for p in parts[1:] if p not in ("to", "u64"))
    if space not in ("shared", "local"):
        return lambda e, x: x
    op = "sub" if "to" in parts else "add"
    return lambda e, x: e.b.bin(op, x, const("i64", windows[space]))


def _isspacep(row: Operation, parts: list[str], windows: dict[str, int]) -> Callable:
    space = parts[1].split("::")[0]

    def isspacep(e, x):
        b = e.b
        if space in windows:
            return b.icmp("ult", b.bin("sub", x, const("i64", windows[space])), const("i64", WINDOW_BYTES))
        return b.icmp("ult", x, const("i64", windows["shared"]))

    return isspacep


_FAMILIES: dict[str, Callable] = {
    **dict.fromkeys(("add", "sub", "mul", "mad", "div", "rem"), _arithmetic),
    **dict.fromkeys(("mul24", "mad24"), _mul24),
    **dict.fromkeys(("min", "max"), _extremum),
    **dict.fromkeys(("neg", "abs"), _sign),
    **dict.fromkeys(("and", "or", "xor", "not", "cnot"), _logic),
    **dict.fromkeys(("shl", "shr"), _shift),
    **dict.fromkeys(("popc", "clz", "brev"), _count),
    **dict.fromkeys(("setp", "set"), _setp),
    **dict.fromkeys(("selp", "slct"), _selp),
    "shf": _funnel,
    "prmt": _prmt,
    "lop3": _lop3,
    "bfe": _bfe,
    "bfi": _bfi,
    "bfind": _bfind,
    "dp4a": _dot,
    "sad": _sad,
    "testp": _testp,
    "cvt": _cvt,
    "mov": _mov,
    "cvta": _cvta,
    "isspacep": _isspacep,
}
