"""The opcode table: what each PTX instruction is, which operands it has, and what it computes.

`operation(instruction)` gives the row; it raises UnsupportedError for what is not simulated. Rows of kind
"alu" are pure functions of their source values. Loads, stores, atomics, warp-wide and control instructions
are carried out by the engines; their rows say so, and which class of the instruction mix they count in.

An "alu" row has `numpy`, a function of arrays with the dtypes of `vector_math.DTYPES`, and `emit`, a function
(Emitter, IR values...) for the LLVM engine. Floating point is defined once in vector_math, and `numpy` is its
compiled form; integers are NumPy here and `emit` is added by `llvm_ops`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from . import directed, matrix
from . import vector_math as vm
from .errors import UnsupportedError
from .memory import WINDOW, in_space
from .parse import (
    TYPE_BYTES,
    Address,
    Immediate,
    Instruction,
    Negated,
    Pair,
    Register,
    Sink,
    Vector,
    bits_of,
)
from .program import has_result
from .vector_math import DTYPES


@dataclass(frozen=True)
class Operation:
    """One row. results and sources are PTX scalar types, in operand order with vectors and pairs flattened.

    kind: "alu", "memory", "warp", "barrier", "copy" (groups of asynchronous copies), "control" or "other".
    group: the class of the instruction mix.
    constants: values of immediate operands that are part of the row (the table of lop3).
    """

    name: str
    kind: str
    group: str
    results: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    numpy: Callable | None = None
    emit: Callable | None = None
    constants: tuple[int, ...] = ()


INTEGERS = tuple(f"{k}{bits}" for k in "us" for bits in (16, 32, 64))
HALVES = ("f16", "bf16", "f16x2", "bf16x2")
_ROUNDINGS = ("rn", "rz", "rm", "rp")


def _alu(name, group, results, sources, numpy, emit=None, constants=()) -> Operation:
    return Operation(name, "alu", group, tuple(results), tuple(sources), numpy, emit, constants)


def _float(name, group, results, sources, emit) -> Operation:
    """A row whose one definition is an emitter."""
    return _alu(name, group, results, sources, _Compiled(emit, tuple(results), tuple(sources)), emit)


class _Compiled:
    """vector_math.compiled on the first call, so that a table of many rows costs nothing."""

    def __init__(self, emit: Callable, results: tuple[str, ...], sources: tuple[str, ...]):
        self.parts = (emit, results, sources)
        self.function: Callable | None = None

    def __call__(self, *arrays: np.ndarray):
        if self.function is None:
            self.function = vm.compiled(*self.parts)
        return self.function(*arrays)


def _width(type_: str) -> int:
    return 8 * TYPE_BYTES[type_]


def _bits(width: int) -> np.dtype:
    return np.dtype(f"u{width // 8}")


# ---- integers: NumPy functions on arrays of the operand types


def _count(b: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """A shift amount as PTX takes it, clamped at the width: (amount below the width, whether it is below)."""
    return (b & b.dtype.type(width - 1)), b < width


def _shl(type_: str) -> Callable:
    width, dtype = _width(type_), DTYPES[type_]

    def shl(a, b):
        if b.size == 1:
            return a << dtype.type(b[0]) if b[0] < width else np.zeros_like(a)
        amount, inside = _count(b, width)
        return np.where(inside, a << amount.astype(dtype), dtype.type(0))

    return shl


def _shr(type_: str) -> Callable:
    width, dtype = _width(type_), DTYPES[type_]

    def shr(a, b):
        if b.size == 1:
            if b[0] < width:
                return a >> dtype.type(b[0])
            return a >> dtype.type(width - 1) if dtype.kind == "i" else np.zeros_like(a)
        if dtype.kind == "i":  # shifting by width - 1 fills with the sign
            return a >> np.minimum(b, width - 1).astype(dtype)
        amount, inside = _count(b, width)
        return np.where(inside, a >> amount.astype(dtype), dtype.type(0))

    return shr


def _mul_wide(dtype: np.dtype) -> Callable:
    return lambda a, b: a.astype(dtype) * b.astype(dtype)


def mul_high(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The upper half of the double-width product."""
    dtype = a.dtype
    bits = dtype.itemsize * 8
    if bits < 64:
        wide = np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")
        return ((a.astype(wide) * b.astype(wide)) >> wide.type(bits)).astype(dtype)
    x, y = a.view(np.uint64), b.view(np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    xl, xh, yl, yh = x & low, x >> half, y & low, y >> half
    middle = xh * yl + ((xl * yl) >> half)
    middle2 = xl * yh + (middle & low)
    high = xh * yh + (middle >> half) + (middle2 >> half)
    if dtype.kind == "i":  # a negative factor counted 2^64 too much
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return high.view(dtype)


def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Quotient towards zero; all ones for a zero divisor; the least integer by -1 wraps to itself."""
    dtype = a.dtype
    if dtype.itemsize <= 4:
        zero = b == 0
        quotient = np.trunc(a.astype(np.float64) / np.where(zero, 1, b)).astype(np.int64)
        return np.where(zero, np.int64(-1), quotient).astype(dtype)
    if dtype.kind == "u":
        zero = b == 0
        return np.where(zero, np.uint64(2**64 - 1), a // np.where(zero, np.uint64(1), b))
    quotient = divide(_magnitude(a), _magnitude(b)).view(np.int64)
    return np.where(b == 0, np.int64(-1), np.where((a < 0) != (b < 0), -quotient, quotient))


def _magnitude(a: np.ndarray) -> np.ndarray:
    return np.where(a < 0, -a, a).view(np.uint64)


def remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a - b * divide(a, b): the sign of a; a itself for a zero divisor."""
    return np.where(b == 0, a, a - b * divide(a, b))


def _sat_add(subtract: bool) -> Callable:
    def add(a, b):
        wide = a.astype(np.int64)
        total = wide - b if subtract else wide + b
        return np.clip(total, -(2**31), 2**31 - 1).astype(np.int32)

    return add


def popcount(a: np.ndarray) -> np.ndarray:
    """Set bits."""
    return np.bitwise_count(a).astype(np.uint32)


def leading_zeros(a: np.ndarray) -> np.ndarray:
    """Zero bits above the highest set bit; the width for 0."""
    filled = a.copy()
    width = a.dtype.itemsize * 8
    shift = 1
    while shift < width:
        filled |= filled >> a.dtype.type(shift)
        shift *= 2
    return (np.uint32(width) - np.bitwise_count(filled)).astype(np.uint32)


def reverse_bits(a: np.ndarray) -> np.ndarray:
    """Bits in the opposite order."""
    dtype, width = a.dtype, a.dtype.itemsize * 8
    full = (1 << width) - 1
    shift = width // 2
    while shift:
        mask = dtype.type(full // ((1 << shift) + 1))
        a = ((a >> dtype.type(shift)) & mask) | ((a & mask) << dtype.type(shift))
        shift //= 2
    return a


def _find_high(type_: str, shift_amount: bool) -> Callable:
    """bfind: the position of the highest bit that is no sign bit; all ones where there is none."""
    width = _width(type_)

    def bfind(a):
        bits = np.where(a < 0, ~a, a) if type_[0] == "s" else a
        zeros = leading_zeros(bits.view(_bits(width)))
        none = zeros == width
        result = zeros if shift_amount else np.uint32(width - 1) - zeros
        return np.where(none, np.uint32(0xFFFFFFFF), result)

    return bfind


def _low_mask(length: np.ndarray, width: int) -> np.ndarray:
    """`length` low bits set; length at most the width."""
    dtype = _bits(width).type
    short = np.minimum(length, width - 1).astype(dtype)
    return np.where(length >= width, dtype((1 << width) - 1), (dtype(1) << short) - dtype(1))


def _bfe(type_: str) -> Callable:
    width, unsigned = _width(type_), _bits(_width(type_))

    def bfe(a, b, c):
        bits = a.view(unsigned)
        at, length = (np.asarray(v & np.uint32(0xFF), np.int64) for v in (b, c))
        shifted = _shr(f"u{width}")(*np.broadcast_arrays(bits, at.astype(np.uint32)))
        inside = np.clip(width - at, 0, length)
        field = _low_mask(inside, width)
        result = shifted & field
        if type_[0] == "s":
            top = np.minimum(at + length - 1, width - 1).clip(0)
            sign = (bits >> top.astype(unsigned)) & unsigned.type(1)
            result = np.where((sign == 1) & (length > 0), result | ~field, result)
        return np.ascontiguousarray(result).view(DTYPES[type_])

    return bfe


def _bfi(type_: str) -> Callable:
    width = _width(type_)

    def bfi(a, b, c, d):
        at, length = (np.asarray(v & np.uint32(0xFF), np.int64) for v in (c, d))
        field = _low_mask(np.minimum(length, width), width)
        field, at32, a = np.broadcast_arrays(field, at.astype(np.uint32), a)
        mask = _shl(type_)(field, at32)
        return (b & ~mask) | (_shl(type_)(a, at32) & mask)

    return bfi


def _funnel(left: bool, wrap: bool) -> Callable:
    def shf(a, b, c):
        amount = ((c & np.uint32(31)) if wrap else np.minimum(c, 32)).astype(np.uint64)
        both = (b.astype(np.uint64) << np.uint64(32)) | a
        if left:
            return ((both << amount) >> np.uint64(32)).astype(np.uint32)
        return (both >> amount).astype(np.uint32)

    return shf


def _permute(mode: str) -> Callable:
    """prmt: bytes of b:a picked by selectors; the modes of the PTX ISA as tables of selectors."""
    fixed = {
        "f4e": ((3, 2, 1, 0), (4, 3, 2, 1), (5, 4, 3, 2), (6, 5, 4, 3)),
        "b4e": ((5, 6, 7, 0), (6, 7, 0, 1), (7, 0, 1, 2), (0, 1, 2, 3)),
        "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
        "ecl": ((3, 2, 1, 0), (3, 2, 1, 1), (3, 2, 2, 2), (3, 3, 3, 3)),
        "ecr": ((0, 0, 0, 0), (1, 1, 1, 0), (2, 2, 1, 0), (3, 2, 1, 0)),
        "rc16": ((1, 0, 1, 0), (3, 2, 3, 2), (1, 0, 1, 0), (3, 2, 3, 2)),
    }

    def prmt(a, b, c):
        both = (b.astype(np.uint64) << np.uint64(32)) | a
        result = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), np.uint32)
        for byte in range(4):
            if mode:
                table = np.array([row[3 - byte] for row in fixed[mode]], np.uint64)
                selector = table[c & np.uint32(3)]
            else:
                selector = (c >> np.uint32(4 * byte)).astype(np.uint64) & np.uint64(15)
            value = ((both >> ((selector & np.uint64(7)) * np.uint64(8))) & np.uint64(0xFF)).astype(np.uint32)
            if not mode:
                sign = np.where(value & np.uint32(0x80), np.uint32(0xFF), np.uint32(0))
                value = np.where(selector & np.uint64(8), sign, value)
            result |= value << np.uint32(8 * byte)
        return result

    return prmt


def _lop3(table: int) -> Callable:
    def lop3(a, b, c):
        result = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), np.uint32)
        for row in range(8):
            if table >> row & 1:
                result |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        return result

    return lop3


def _dot_bytes(signed_a: bool, signed_b: bool) -> Callable:
    def dp4a(a, b, c):
        total = c.astype(np.int64)
        for byte in range(4):
            x = (a >> np.uint32(8 * byte)).astype(np.int8 if signed_a else np.uint8).astype(np.int64)
            y = (b >> np.uint32(8 * byte)).astype(np.int8 if signed_b else np.uint8).astype(np.int64)
            total = total + x * y
        return total.astype(np.uint32)

    return dp4a


_COMPARE: dict[str, Callable] = {
    **{"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal},
    **{"gt": np.greater, "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal},
    **{"hi": np.greater, "hs": np.greater_equal},
}
_BOOL: dict[str, Callable] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
_EMIT_BOOL = {"and": "and_", "or": "or_", "xor": "xor"}


# ---- families: opcode -> function(modifiers, instruction) -> Operation or None where there is no such row


def _arithmetic(opcode: str, mods: tuple[str, ...], _) -> Operation | None:
    """add sub mul mad fma div rem of integers and floating point."""
    type_ = mods[-1] if mods else ""
    rest = mods[:-1]
    name = ".".join((opcode, *mods))
    if type_ in INTEGERS and "cc" in rest:
        return _carrying(opcode, mods, None)
    if type_ in INTEGERS:
        return _integer(opcode, rest, type_, name)
    if type_ not in ("f32", "f64", *HALVES):
        return None
    operation = {"mad": "fma"}.get(opcode, opcode)
    if operation == "rem" or (operation == "div" and type_ in HALVES):
        return None
    rounding, ftz, sat, relu = "rn", "ftz" in rest, "sat" in rest, "relu" in rest
    known = {"ftz", "sat", "relu"} if operation == "fma" else {"ftz", "sat"}
    if operation == "div":
        known = {"ftz", "approx", "full"}
    for modifier in rest:
        if modifier in _ROUNDINGS:
            rounding = modifier
        elif modifier not in known:
            return None
    if rounding != "rn" and type_ == "f64" and not (ftz or sat or relu):
        count = 3 if operation == "fma" else 2
        return _float(name, "fp64", ("f64",), ("f64",) * count, directed.arithmetic(operation, rounding))
    if rounding != "rn" and type_ != "f32":
        return None
    if (ftz and type_ != "f32") or (relu and type_ not in HALVES) or (sat and type_ == "f64"):
        return None
    count = 3 if operation == "fma" else 2
    base = type_.removesuffix("x2")
    emit = vm.arithmetic(operation, base, rounding, ftz, sat, relu)
    if type_.endswith("x2"):
        emit = vm.packed(emit)
    group = {
        "f64": "fp64",
        "f32": {"fma": "ffma", "mul": "fmul", "add": "fadd", "sub": "fadd"}.get(operation),
    }
    return _float(name, group.get(type_, "half") or "special", (type_,), (type_,) * count, emit)


def _integer(opcode: str, rest: tuple[str, ...], type_: str, name: str) -> Operation | None:
    double = f"{type_[0]}{2 * _width(type_)}"
    if opcode in ("add", "sub"):
        if rest == ("sat",) and type_ == "s32":
            return _alu(name, "integer", (type_,), (type_,) * 2, _sat_add(opcode == "sub"))
        if rest:
            return None
        return _alu(name, "integer", (type_,), (type_,) * 2, np.add if opcode == "add" else np.subtract)
    if opcode in ("div", "rem"):
        function = divide if opcode == "div" else remainder
        return None if rest else _alu(name, "integer", (type_,), (type_,) * 2, function)
    if opcode not in ("mul", "mad") or len(rest) != 1:
        return None
    if rest[0] == "wide":
        if double not in DTYPES:
            return None
        wide, product = double, _mul_wide(DTYPES[double])
    elif rest[0] in ("lo", "hi"):
        wide, product = type_, np.multiply if rest[0] == "lo" else mul_high
    else:
        return None
    if opcode == "mul":
        return _alu(name, "integer", (wide,), (type_,) * 2, product)
    return _alu(name, "integer", (wide,), (type_, type_, wide), lambda a, b, c: product(a, b) + c)


def _carrying(opcode: str, mods, _) -> Operation | None:
    """add.cc addc sub.cc subc mad.cc madc; program.build made the carry flag an operand of its own."""
    type_ = mods[-1] if mods else ""
    base = {"addc": "add", "subc": "sub", "madc": "mad"}.get(opcode, opcode)
    takes, gives = base != opcode, "cc" in mods
    rest = tuple(m for m in mods[:-1] if m != "cc")
    half = rest[0] if base == "mad" and len(rest) == 1 and rest[0] in ("lo", "hi") else ""
    if type_ not in ("u32", "s32", "u64", "s64") or (base == "mad") != bool(half) or (not half and rest):
        return None
    sources = (type_,) * (3 if base == "mad" else 2) + (("pred",) if takes else ())
    results = (type_, "pred") if gives else (type_,)
    name = ".".join((opcode, *mods))
    return _float(name, "integer", results, sources, vm.with_carry(base, type_, takes, gives, half))


def _mul24(opcode: str, mods, _) -> Operation | None:
    if len(mods) != 2 or mods[0] not in ("lo", "hi") or mods[1] not in ("u32", "s32"):
        return None
    type_ = mods[1]
    shift = np.int64(16 if mods[0] == "hi" else 0)
    signed = type_[0] == "s"

    def product(a, b):
        x, y = ((v.astype(np.int64) & 0xFFFFFF) for v in (a, b))
        if signed:
            x, y = (np.where(v & 0x800000, v - 0x1000000, v) for v in (x, y))
        return ((x * y) >> shift).astype(DTYPES[type_])

    name = ".".join((opcode, *mods))
    if opcode == "mul24":
        return _alu(name, "integer", (type_,), (type_,) * 2, product)
    return _alu(name, "integer", (type_,), (type_,) * 3, lambda a, b, c: product(a, b) + c)


def _unary_float(opcode: str, mods, _) -> Operation | None:
    """rcp sqrt rsqrt ex2 lg2 sin cos tanh."""
    type_, rest = (mods[-1], mods[:-1]) if mods else ("", ())
    ftz = "ftz" in rest
    rounding = next((m for m in rest if m in _ROUNDINGS), "rn")
    if any(m not in (*_ROUNDINGS, "approx", "ftz") for m in rest) or len(set(rest)) != len(rest):
        return None
    exact = opcode in ("rcp", "sqrt") and any(m in _ROUNDINGS for m in rest)
    if exact == ("approx" in rest) or (ftz and type_ not in ("f32", "bf16")):
        return None
    name, base = ".".join((opcode, *mods)), type_.removesuffix("x2")
    if type_ in HALVES and opcode in ("ex2", "tanh"):
        emit = vm.ex2(base) if opcode == "ex2" else vm.tanh(base)
        emit = vm.packed(emit) if type_.endswith("x2") else emit
    elif type_ == "f64" and opcode in ("rcp", "sqrt") and rounding != "rn":
        emit = directed.arithmetic(opcode, rounding)
    elif type_ == "f64" and opcode in ("rcp", "sqrt", "rsqrt") and rounding == "rn":
        emit = vm.rsqrt("f64") if opcode == "rsqrt" else vm.arithmetic(opcode, "f64")
    elif type_ != "f32":
        return None
    elif opcode in ("rcp", "sqrt"):
        emit = vm.arithmetic(opcode, "f32", rounding, ftz)
    elif opcode == "tanh":
        if ftz:
            return None
        emit = vm.tanh("f32")
    else:
        emit = {"rsqrt": lambda: vm.rsqrt("f32", ftz), "ex2": lambda: vm.ex2("f32", ftz),
                "lg2": lambda: vm.lg2(ftz), "sin": lambda: vm.sine("sin", ftz),
                "cos": lambda: vm.sine("cos", ftz)}[opcode]()  # fmt: skip
    return _float(name, "special", (type_,), (type_,), emit)


def _extremum(opcode: str, mods, instruction) -> Operation | None:
    type_, rest = (mods[-1], mods[:-1]) if mods else ("", ())
    name = ".".join((opcode, *mods))
    if type_ in INTEGERS:
        function = np.minimum if opcode == "min" else np.maximum
        return None if rest else _alu(name, "integer", (type_,), (type_,) * 2, function)
    if type_ not in ("f32", "f64", *HALVES) or any(m not in ("ftz", "NaN") for m in rest):
        return None
    if "ftz" in rest and type_ != "f32":
        return None
    count = 3 if instruction is not None and len(instruction.operands) == 4 and type_ == "f32" else 2
    emit = vm.extremum(opcode, type_.removesuffix("x2"), "ftz" in rest, "NaN" in rest)
    emit = vm.packed(emit) if type_.endswith("x2") else emit
    return _float(name, "half" if type_ in HALVES else "compare", (type_,), (type_,) * count, emit)


def _sign(opcode: str, mods, _) -> Operation | None:
    type_, rest = (mods[-1], mods[:-1]) if mods else ("", ())
    name = ".".join((opcode, *mods))
    if type_ in ("s16", "s32", "s64"):
        return (
            None
            if rest
            else _alu(name, "integer", (type_,), (type_,), np.negative if opcode == "neg" else np.abs)
        )
    if type_ not in ("f32", "f64", *HALVES) or any(m != "ftz" for m in rest) or (rest and type_ != "f32"):
        return None
    group = "half" if type_ in HALVES else "fp64" if type_ == "f64" else "fp32"
    return _float(name, group, (type_,), (type_,), vm.sign_change(opcode, type_, bool(rest)))


def _logic(opcode: str, mods, _) -> Operation | None:
    if len(mods) != 1 or mods[0] not in ("pred", "b16", "b32", "b64"):
        return None
    type_, name = mods[0], f"{opcode}.{mods[0]}"
    if opcode == "not":
        return _alu(name, "logic", (type_,), (type_,), np.logical_not if type_ == "pred" else np.invert)
    if opcode == "cnot":
        if type_ == "pred":
            return None
        return _alu(name, "logic", (type_,), (type_,), lambda a: (a == 0).astype(DTYPES[type_]))
    function = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[opcode]
    return _alu(name, "logic", (type_,), (type_,) * 2, function)


def _shift(opcode: str, mods, _) -> Operation | None:
    allowed = ("b16", "b32", "b64") if opcode == "shl" else ("b16", "b32", "b64", *INTEGERS)
    if len(mods) != 1 or mods[0] not in allowed:
        return None
    function = _shl(mods[0]) if opcode == "shl" else _shr(mods[0])
    return _alu(f"{opcode}.{mods[0]}", "logic", (mods[0],), (mods[0], "u32"), function)


def _bit_fields(opcode: str, mods, instruction) -> Operation | None:
    name = ".".join((opcode, *mods))
    type_ = mods[-1] if mods else ""
    if (
        opcode == "shf"
        and len(mods) == 3
        and mods[0] in "lr"
        and mods[1] in ("clamp", "wrap")
        and type_ == "b32"
    ):
        return _alu(
            name, "logic", ("b32",), ("b32", "b32", "u32"), _funnel(mods[0] == "l", mods[1] == "wrap")
        )
    if opcode == "prmt" and mods == ("b32",):
        return _alu(name, "logic", ("b32",), ("b32",) * 3, _permute(""))
    if opcode == "prmt" and len(mods) == 2 and mods[0] == "b32":
        if mods[1] not in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
            return None
        return _alu(name, "logic", ("b32",), ("b32",) * 3, _permute(mods[1]))
    if opcode == "lop3" and mods == ("b32",) and instruction is not None and len(instruction.operands) == 5:
        table = instruction.operands[4]
        if not isinstance(table, Immediate) or not 0 <= table.value <= 255:
            return None
        return _alu(name, "logic", ("b32",), ("b32",) * 3, _lop3(table.value), constants=(table.value,))
    if opcode == "bfe" and len(mods) == 1 and type_ in ("u32", "s32", "u64", "s64"):
        return _alu(name, "logic", (type_,), (type_, "u32", "u32"), _bfe(type_))
    if opcode == "bfi" and len(mods) == 1 and type_ in ("b32", "b64"):
        return _alu(name, "logic", (type_,), (type_, type_, "u32", "u32"), _bfi(type_))
    if opcode == "brev" and len(mods) == 1 and type_ in ("b32", "b64"):
        return _alu(name, "logic", (type_,), (type_,), reverse_bits)
    if opcode in ("popc", "clz") and len(mods) == 1 and type_ in ("b32", "b64"):
        return _alu(name, "logic", ("u32",), (type_,), popcount if opcode == "popc" else leading_zeros)
    if opcode == "bfind" and type_ in ("u32", "s32", "u64", "s64") and mods[:-1] in ((), ("shiftamt",)):
        return _alu(name, "logic", ("u32",), (type_,), _find_high(type_, len(mods) == 2))
    if opcode == "bmsk" and len(mods) == 2 and mods[0] in ("clamp", "wrap") and type_ == "b32":
        return _float(name, "logic", ("b32",), ("b32", "b32"), vm.bit_mask(mods[0] == "wrap"))
    if opcode == "szext" and len(mods) == 2 and mods[0] in ("clamp", "wrap") and type_ in ("u32", "s32"):
        emit = vm.extend_bits(type_ == "s32", mods[0] == "wrap")
        return _float(name, "logic", (type_,), (type_, "u32"), emit)
    if opcode == "dp2a" and len(mods) == 3 and mods[0] in ("lo", "hi") and {*mods[1:]} <= {"u32", "s32"}:
        emit = vm.dot_two(mods[1] == "s32", mods[2] == "s32", mods[0] == "hi")
        return _float(name, "integer", ("u32",), ("u32", "u32", "u32"), emit)
    if opcode == "dp4a" and len(mods) == 2 and all(m in ("u32", "s32") for m in mods):
        function = _dot_bytes(mods[0] == "s32", mods[1] == "s32")
        return _alu(name, "integer", ("u32",), ("u32", "u32", "u32"), function)
    if opcode == "sad" and len(mods) == 1 and type_ in INTEGERS:
        unsigned = f"u{type_[1:]}"

        def sad(a, b, c):
            return (np.where(a < b, b - a, a - b).astype(DTYPES[unsigned]) + c.view(DTYPES[unsigned])).view(
                c.dtype
            )

        return _alu(name, "integer", (type_,), (type_,) * 3, sad)
    return None


def _setp(opcode: str, mods, instruction) -> Operation | None:
    """setp.cmp[.bool][.ftz].type and set.cmp[.bool][.ftz].dtype.stype"""
    rest = list(mods)
    stype = rest.pop() if rest else ""
    result = "pred"
    if opcode == "set":
        result = rest.pop() if rest else ""
        if result not in ("u32", "s32", "f32", "f16", "bf16", "f16x2", "bf16x2", "u16", "s16"):
            return None
    ftz = "ftz" in rest
    if ftz:
        rest.remove("ftz")
    combine = rest.pop() if len(rest) == 2 else ""
    if len(rest) != 1 or (combine and combine not in _BOOL):
        return None
    comparison, name = rest[0], ".".join((opcode, *mods))
    if stype in ("f32", "f64", *HALVES):
        if comparison not in vm._ORDERED and comparison not in vm._UNORDERED:
            return None
        if ftz and stype != "f32":
            return None
        return _setp_float(name, opcode, comparison, combine, stype, result, ftz, instruction)
    integer = (*INTEGERS, "b16", "b32", "b64")
    if stype not in integer or comparison not in _COMPARE or ftz:
        return None
    if comparison in ("lo", "ls", "hi", "hs") and stype[0] != "u":
        return None
    if stype[0] == "b" and comparison not in ("eq", "ne"):
        return None
    function = _COMPARE[comparison]
    sources = (stype, stype, *(("pred",) if combine else ()))
    if opcode == "set":
        if result not in ("u32", "s32", "f32"):
            return None
        one = DTYPES[result].type(1 if result == "f32" else -1 if result == "s32" else 0xFFFFFFFF)

        def value(a, b, *c):
            truth = function(a, b)
            truth = _BOOL[combine](truth, c[0]) if combine else truth
            return np.where(truth, one, DTYPES[result].type(0))

        return _alu(name, "compare", (result,), sources, value)
    pair = _pair(instruction)
    if not pair and not combine:
        return _alu(name, "compare", ("pred",), sources, function)

    def setp(a, b, *c):
        truth = function(a, b)
        first, second = truth, ~truth
        if combine:
            first, second = _BOOL[combine](truth, c[0]), _BOOL[combine](second, c[0])
        return (first, second) if pair else first

    return _alu(name, "compare", ("pred",) * (2 if pair else 1), sources, setp)


def _pair(instruction: Instruction | None) -> bool:
    return (
        instruction is not None and bool(instruction.operands) and isinstance(instruction.operands[0], Pair)
    )


def _setp_float(name, opcode, comparison, combine, stype, result, ftz, instruction) -> Operation | None:
    base = stype.removesuffix("x2")
    one = vm.compare(comparison, base, ftz)
    sources = (stype, stype, *(("pred",) if combine else ()))
    group = "half" if stype in HALVES else "compare"
    if stype.endswith("x2"):
        if combine:
            return None
        if opcode == "setp":
            return (
                _float(name, group, ("pred", "pred"), sources, vm.packed(one, True))
                if _pair(instruction)
                else None
            )
        if result != stype:
            return None
        unit = 0x3C00 if base == "f16" else 0x3F80

        def half(e, x, y):
            return e.select(one(e, x, y), e.const("b16", unit), e.const("b16", 0))

        return _float(name, group, (result,), sources, vm.packed(half))
    pair = _pair(instruction)

    def setp(e, x, y, *c):
        truth = one(e, x, y)
        first, second = truth, e.builder.not_(truth)
        if combine:
            merge = getattr(e.builder, _EMIT_BOOL[combine])
            first, second = merge(truth, c[0]), merge(second, c[0])
        return (first, second) if pair else first

    if opcode == "setp":
        return _float(name, group, ("pred",) * (2 if pair else 1), sources, setp)
    if pair or result.endswith("x2"):
        return None
    value = {"f32": 1.0, "f16": 0x3C00, "bf16": 0x3F80}.get(result, -1)

    def set_value(e, *values):
        return e.select(setp(e, *values), e.const(result, value), e.const(result, 0))

    return _float(name, group, (result,), sources, set_value)


def _selp(opcode: str, mods, _) -> Operation | None:
    if opcode == "selp":
        if len(mods) != 1 or mods[0] not in ("b16", "b32", "b64", *INTEGERS, "f32", "f64"):
            return None
        return _alu(
            f"selp.{mods[0]}", "compare", mods, (mods[0], mods[0], "pred"), lambda a, b, p: np.where(p, a, b)
        )
    rest = [m for m in mods if m != "ftz"]
    if (
        len(rest) != 2
        or rest[1] not in ("s32", "f32")
        or rest[0] not in ("b16", "b32", "b64", *INTEGERS, "f32", "f64")
    ):
        return None
    return _alu(
        ".".join((opcode, *mods)), "compare", (rest[0],), (rest[0], rest[0], rest[1]),
        lambda a, b, c: np.where(c >= 0, a, b),
    )  # fmt: skip


def _copysign(opcode: str, mods, _) -> Operation | None:
    if len(mods) != 1 or mods[0] not in ("f32", "f64"):
        return None
    return _float(
        f"copysign.{mods[0]}", "fp32", mods, mods * 2, lambda e, a, b: e.intrinsic("copysign", b, a)
    )


def _testp(opcode: str, mods, _) -> Operation | None:
    if len(mods) != 2 or mods[1] not in ("f32", "f64"):
        return None
    tiny = np.finfo(DTYPES[mods[1]]).smallest_normal
    function = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & (np.abs(a) >= tiny),
        "subnormal": lambda a: (np.abs(a) < tiny) & (a != 0),
    }.get(mods[0])
    return function and _alu(".".join((opcode, *mods)), "compare", ("pred",), (mods[1],), function)


def _cvt(opcode: str, mods, _) -> Operation | None:
    types = tuple(m for m in mods if m in TYPE_BYTES)
    rest = tuple(m for m in mods if m not in TYPE_BYTES)
    if len(types) != 2 or mods[-2:] != types:
        return None
    to, source = types
    name = ".".join((opcode, *mods))
    if to in _FP8 or source in _FP8:
        return _cvt_fp8(name, to, source, rest)
    rounding = next((m for m in rest if m.rstrip("i") in (*_ROUNDINGS, "rna")), "")
    ftz, sat, relu = "ftz" in rest, "sat" in rest, "relu" in rest
    if len(rest) != bool(rounding) + ftz + sat + relu:
        return None
    if ftz and "f32" not in types:
        return None
    floats = ("f32", "f64", "f16", "bf16")
    ints = tuple(f"{k}{b}" for k in "us" for b in (8, 16, 32, 64))
    if to in ints and source in ints:
        if rounding or ftz or relu:
            return None
        return _alu(name, "convert", (to,), (source,), _int_to_int(to, source, sat))
    if to in ("f16x2", "bf16x2") and source == "f32":
        if rounding not in ("rn", "rz") or ftz or sat:
            return None
        return _float(name, "convert", (to,), ("f32", "f32"), vm.pack_two(to, rounding, relu))
    if to == "tf32" and source == "f32":
        if rounding not in ("rna", "rn", "rz") or ftz or sat:
            return None
        return _float(name, "convert", (to,), ("f32",), vm.convert_float("tf32", "f32", rounding, relu=relu))
    if relu and (to not in ("f16", "bf16") or source != "f32"):
        return None
    if to in floats and source in floats:
        integral = rounding.endswith("i")
        if integral and to != source:
            return None
        emit = vm.convert_float(to, source, rounding or "rn", ftz, sat, relu)
        return _float(name, "convert", (to,), (source,), emit)
    if to in ints and source in floats:
        if not rounding.endswith("i"):
            return None
        emit = vm.float_to_int(to, source, rounding, ftz)  # .sat changes nothing: it always clamps
        return _float(name, "convert", (to,), (source,), emit)
    if to in floats and source in ints:
        if rounding not in _ROUNDINGS or (to == "f64" and source[1:] == "64" and rounding != "rn"):
            return None
        return _float(name, "convert", (to,), (source,), vm.int_to_float(to, source, rounding, sat))
    return None


_FP8 = ("e4m3x2", "e5m2x2")


def _cvt_fp8(name: str, to: str, source: str, rest: tuple[str, ...]) -> Operation | None:
    relu = rest[-1:] == ("relu",)
    rest = rest[:-1] if relu else rest
    if to == "f16x2" and rest == ("rn",):
        return _float(name, "convert", (to,), (source,), vm.from_fp8(source, relu))
    if source not in ("f32", "f16x2") or rest != ("rn", "satfinite"):
        return None
    return _float(
        name, "convert", (to,), (source,) * (2 if source == "f32" else 1), vm.to_fp8(to, source, relu)
    )


def _int_to_int(to: str, source: str, sat: bool) -> Callable:
    dtype = DTYPES[to]
    if not sat:
        return lambda a: a.astype(dtype)
    low, high = vm._INT_LIMITS[to]
    source_low, source_high = vm._INT_LIMITS[source]
    bounds = (DTYPES[source].type(max(low, source_low)), DTYPES[source].type(min(high, source_high)))
    return lambda a: np.clip(a, *bounds).astype(dtype)


def _mov(opcode: str, mods, instruction) -> Operation | None:
    type_ = mods[0] if len(mods) == 1 else ""
    if type_ not in ("pred", "b16", "b32", "b64", *INTEGERS, "f32", "f64"):
        return None
    name = f"mov.{type_}"
    if instruction is not None:
        target, source = (*instruction.operands, None, None)[:2]
        for vector, unpack in ((target, True), (source, False)):
            if isinstance(vector, Vector):
                count = len(vector.elements)
                part = f"b{_width(type_) // count}"
                if count not in (2, 4) or part not in DTYPES:
                    return None
                if unpack:
                    return _alu(
                        f"{name}.unpack{count}", "move", (part,) * count, (type_,), _unpack(part, count)
                    )
                return _alu(f"{name}.pack{count}", "move", (type_,), (part,) * count, _pack(type_, part))
    return _alu(name, "move", (type_,), (type_,), lambda a: a)


def _unpack(part: str, count: int) -> Callable:
    width = _width(part)

    def unpack(a):
        bits = a.view(_bits(width * count))
        return tuple((bits >> bits.dtype.type(width * k)).astype(DTYPES[part]) for k in range(count))

    return unpack


def _pack(type_: str, part: str) -> Callable:
    whole = _bits(_width(type_))

    def pack(*parts):
        result = parts[0].astype(whole)
        for k, value in enumerate(parts[1:], 1):
            result = result | (value.astype(whole) << whole.type(k * _width(part)))
        return result.view(DTYPES[type_])

    return pack


def _cvta(opcode: str, mods, _) -> Operation | None:
    """Shared and local addresses move by the base of their window; the engines know it (memory.py)."""
    spaces = [m.removesuffix("::cta") for m in mods if m not in ("to", "u64")]
    if mods[-1:] != ("u64",) or len(spaces) != 1:
        return None
    if spaces[0] in ("global", "const", "param"):
        return _alu(".".join((opcode, *mods)), "move", ("u64",), ("u64",), lambda a: a)
    if spaces[0] not in ("shared", "local"):
        return None
    base = np.uint64(WINDOW[spaces[0]])
    function = (lambda a: a - base) if "to" in mods else (lambda a: a + base)
    return _alu(".".join((opcode, *mods)), "integer", ("u64",), ("u64",), function)


def _isspacep(opcode: str, mods, _) -> Operation | None:
    space = mods[0].removesuffix("::cta") if len(mods) == 1 else ""
    if space not in ("shared", "local", "global", "const", "param"):
        return None
    return _alu(f"isspacep.{mods[0]}", "compare", ("pred",), ("u64",), lambda a: in_space(a, space))


_CACHE = {"ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "L1", "volatile", "relaxed", "acquire", "release",
          "weak", "acq_rel", "cta", "gpu", "sys", "cluster", "mmio", "unified"}  # fmt: skip
_HINTS = ("L2::64B", "L2::128B", "L2::256B", "L2::cache_hint", "L1::no_allocate", "L1::evict_normal",
          "L1::evict_last", "L1::evict_first", "L1::evict_unchanged", "L2::evict_last", "L2::evict_first",
          "L2::evict_normal", "shared::cta")  # fmt: skip
_SPACES = ("global", "shared", "local", "param", "const")
_ATOMICS = {
    "add": ("u32", "s32", "u64", "s64", "f32", "f64", "f16", "bf16", "f16x2", "bf16x2"),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
    **dict.fromkeys(("and", "or", "xor"), ("b32", "b64", "u32", "s32", "u64")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    "exch": ("b32", "b64", "u32", "s32", "u64", "f32"),
    "cas": ("b16", "b32", "b64", "u32", "s32", "u64"),
}


def _memory(opcode: str, mods, instruction) -> Operation | None:
    name = ".".join((opcode, *mods))
    rest = [m for m in mods if m not in _CACHE and m not in _HINTS and m not in _SPACES]
    plain = opcode in ("ld", "ldu", "st")
    if not rest or rest[-1] not in DTYPES or (rest[-1] in ("pred", *HALVES) and plain):
        return None
    type_ = rest.pop()
    if opcode == "ldu" and any(m in mods for m in ("shared", "local", "param", "const")):
        return None
    if plain:
        count = 1
        if rest and rest[0] in ("v2", "v4"):
            count = int(rest.pop(0)[1:])
        if rest or TYPE_BYTES[type_] * count > 16 or type_ in ("f16x2", "bf16x2", "tf32"):
            return None
        if opcode == "st":
            return Operation(name, "memory", "store", (), (type_,) * count)
        return Operation(name, "memory", "load", (type_,) * count)
    if "noftz" in rest:
        rest.remove("noftz")
    if len(rest) != 1 or rest[0] not in _ATOMICS or type_ not in _ATOMICS[rest[0]]:
        return None
    sources = (type_, type_) if rest[0] == "cas" else (type_,)
    if opcode == "red" and rest[0] in ("exch", "cas"):
        return None
    return Operation(name, "memory", "atomic", (type_,) if opcode == "atom" else (), sources, constants=())


def _copy(opcode: str, mods, instruction) -> Operation | None:
    """cp.async from global to shared memory, and what commits and awaits it. Bulk copies have no row."""
    name = ".".join((opcode, *mods))
    if mods[:1] != ("async",):
        return None
    count = len(instruction.operands) if instruction is not None else 0
    if mods[1:] in (("commit_group",), ("wait_all",)):
        return Operation(name, "copy", "copy") if count == 0 else None
    if mods[1:] == ("wait_group",):
        least = instruction.operands[0] if count == 1 else None
        good = isinstance(least, Immediate) and least.value >= 0
        return Operation(name, "copy", "copy", constants=(least.value,)) if good else None
    rest = [m for m in mods[1:] if m not in _HINTS or m == "shared::cta"]
    if len(rest) != 3 or rest[0] not in ("ca", "cg") or rest[2] != "global":
        return None
    if rest[1] not in ("shared", "shared::cta") or instruction is None:
        return None
    hint = any("cache_hint" in m for m in mods)
    addresses = [isinstance(o, Address) for o in instruction.operands[:2]]
    if addresses != [True, True] or not 3 <= count - hint <= 4:
        return None
    size = instruction.operands[2]
    if not isinstance(size, Immediate) or size.value not in ((16,) if rest[0] == "cg" else (4, 8, 16)):
        return None
    return Operation(name, "memory", "copy", constants=(size.value,))


def past_l1(instruction: Instruction) -> bool:
    """Whether a cp.async goes past the L1 cache (.cg; LDGSTS.BYPASS in SASS)."""
    return "cg" in instruction.modifiers


def copy_limit(instruction: Instruction) -> tuple[object, str] | None:
    """What limits the bytes that a cp.async reads: (operand, "u32": how many; "pred": none where true)."""
    extra = instruction.operands[3:]
    if any("cache_hint" in m for m in instruction.modifiers):
        extra = extra[:-1]
    if not extra:
        return None
    operand = extra[0].register if isinstance(extra[0], Negated) else extra[0]
    is_predicate = isinstance(operand, Register) and operand.type == "pred"
    return extra[0], "pred" if is_predicate else "u32"


def _warp(opcode: str, mods, instruction) -> Operation | None:
    name = ".".join((opcode, *mods))
    if opcode == "shfl":
        if (
            len(mods) != 3
            or mods[0] != "sync"
            or mods[1] not in ("up", "down", "bfly", "idx")
            or mods[2] != "b32"
        ):
            return None
        results = ("b32", "pred") if _pair(instruction) else ("b32",)
        return Operation(name, "warp", "shuffle", results, ("b32",) * 4)
    if opcode == "vote":
        if len(mods) != 3 or mods[0] != "sync":
            return None
        if mods[1] == "ballot" and mods[2] == "b32":
            return Operation(name, "warp", "vote", ("b32",), ("pred", "b32"))
        if mods[1] in ("all", "any", "uni") and mods[2] == "pred":
            return Operation(name, "warp", "vote", ("pred",), ("pred", "b32"))
        return None
    if opcode == "match":
        if (
            len(mods) != 3
            or mods[1] != "sync"
            or mods[0] not in ("any", "all")
            or mods[2] not in ("b32", "b64")
        ):
            return None
        results = ("b32", "pred") if _pair(instruction) else ("b32",)
        if _pair(instruction) and mods[0] == "any":
            return None
        return Operation(name, "warp", "vote", results, (mods[2], "b32"))
    if opcode == "redux":
        if len(mods) != 3 or mods[0] != "sync":
            return None
        if (mods[1] in ("add", "min", "max") and mods[2] in ("u32", "s32")) or (
            mods[1] in ("and", "or", "xor") and mods[2] == "b32"
        ):
            return Operation(name, "warp", "vote", (mods[2],), (mods[2], "b32"))
        return None
    if opcode == "activemask":
        return Operation(name, "warp", "vote", ("b32",)) if mods == ("b32",) else None
    if opcode == "elect":
        return Operation(name, "warp", "vote", ("b32", "pred"), ("b32",)) if mods == ("sync",) else None
    return None


def _matrix(opcode: str, mods, instruction) -> Operation | None:
    """mma, ldmatrix, stmatrix and movmatrix of 16-bit elements; every lane of the warp takes part."""
    name = ".".join((opcode, *mods))
    if opcode == "mma":
        what = matrix.product(mods)
        if what is None:
            return None
        results = (what.register_type,) * what.registers[2]
        return Operation(name, "warp", "tensor", results, what.sources)
    if opcode == "movmatrix":
        if mods != ("sync", "aligned", "m8n8", "trans", "b16"):
            return None
        return Operation(name, "warp", "shuffle", ("b32",), ("b32",))
    rest = [m for m in mods if m not in ("trans", "shared", "shared::cta")]
    count = matrix.matrices(mods)
    if rest != ["sync", "aligned", "m8n8", f"x{count}", "b16"]:
        return None
    if opcode == "ldmatrix":
        return Operation(name, "warp", "load", ("b32",) * count, ("address",))
    return Operation(name, "warp", "store", (), ("address",) + ("b32",) * count)


def _policy(opcode: str, mods, instruction) -> Operation | None:
    """createpolicy: a cache hint changes nothing here, so a policy is a number without meaning."""
    if mods[:1] not in (("fractional",), ("range",), ("cvt",)) or mods[-1:] != ("b64",):
        return None
    operands_ = len(instruction.operands) if instruction is not None else 1
    sources = {"range": ("u64", "u32", "u32"), "cvt": ("u64",)}.get(mods[0], ("f32",))[: operands_ - 1]

    def policy(*values):
        return np.zeros(max((v.size for v in values), default=1), np.uint64)

    return _alu(
        ".".join((opcode, *mods)), "other", ("b64",), sources, policy, lambda e, *_: e.const("b64", 0)
    )


def _barrier(opcode: str, mods, instruction) -> Operation | None:
    name = ".".join((opcode, *mods))
    rest = [m for m in mods if m not in ("cta", "aligned")]
    if rest == ["warp", "sync"] and opcode == "bar":
        return Operation(name, "warp", "barrier", (), ("b32",))
    operands = len(instruction.operands) if instruction is not None else 1
    if rest == ["sync"] and operands in (1, 2):
        return Operation(name, "barrier", "barrier", (), ("u32",) * operands)
    if rest == ["arrive"] and operands == 2:
        return Operation(name, "barrier", "barrier", (), ("u32",) * 2)
    reductions = (["red", "popc", "u32"], ["red", "and", "pred"], ["red", "or", "pred"])
    if rest in reductions and operands in (3, 4):
        return Operation(name, "barrier", "barrier", (rest[2],), (*("u32",) * (operands - 2), "pred"))
    return None


def _control(opcode: str, mods, instruction) -> Operation | None:
    name = ".".join((opcode, *mods))
    allowed = {"bra": ("uni",), "brx": ("idx", "uni"), "ret": ("uni",), "call": ("uni",)}.get(opcode, ())
    if any(m not in allowed for m in mods):
        return None
    return Operation(name, "control", "branch" if opcode != "call" else "call")


_ORDERS = ("sc", "acq_rel", "acquire", "release")
_SCOPES = ("cta", "cluster", "gpu", "sys")
# the modifiers that instructions without an effect here may have
_HARMLESS = {
    "membar": {("cta",), ("gl",), ("sys",)},
    "fence": {*((s,) for s in _SCOPES), *((o, s) for o in _ORDERS for s in _SCOPES)},
    "nanosleep": {("u32",)},
    "prefetch": {*((*s, c) for s in ((), ("global",), ("local",)) for c in ("L1", "L2")),
                 ("global", "L2::evict_last"), ("global", "L2::evict_normal")},
    "prefetchu": {("L1",)},
    "discard": {("global", "L2"), ("L2",)},
    "applypriority": {("global", "L2::evict_normal"), ("L2::evict_normal",)},
    "pmevent": {(), ("mask",)},
    "brkpt": {()},
    "griddepcontrol": {("wait",), ("launch_dependents",)},
}  # fmt: skip


def _other(opcode: str, mods, instruction) -> Operation | None:
    """Instructions that order or hint and change no value here."""
    name = ".".join((opcode, *mods))
    if mods not in _HARMLESS[opcode]:
        return None
    if opcode == "nanosleep":
        return Operation(name, "other", "other", (), ("u32",))
    return Operation(name, "other", "fence" if opcode in ("membar", "fence") else "other")


_FAMILIES: dict[str, Callable] = {
    **dict.fromkeys(("add", "sub", "mul", "mad", "fma", "div", "rem"), _arithmetic),
    **dict.fromkeys(("mul24", "mad24"), _mul24),
    **dict.fromkeys(("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh"), _unary_float),
    **dict.fromkeys(("min", "max"), _extremum),
    **dict.fromkeys(("neg", "abs"), _sign),
    **dict.fromkeys(("and", "or", "xor", "not", "cnot"), _logic),
    **dict.fromkeys(("shl", "shr"), _shift),
    **dict.fromkeys(("shf", "prmt", "lop3", "bfe", "bfi", "brev", "popc", "clz", "bfind"), _bit_fields),
    **dict.fromkeys(("dp4a", "dp2a", "sad", "bmsk", "szext"), _bit_fields),
    **dict.fromkeys(("setp", "set"), _setp),
    **dict.fromkeys(("selp", "slct"), _selp),
    **{
        "copysign": _copysign,
        "testp": _testp,
        "cvt": _cvt,
        "mov": _mov,
        "cvta": _cvta,
        "isspacep": _isspacep,
    },
    **dict.fromkeys(("ld", "ldu", "st", "atom", "red"), _memory),
    "cp": _copy,
    **dict.fromkeys(("shfl", "vote", "match", "redux", "activemask", "elect"), _warp),
    **dict.fromkeys(("bar", "barrier"), _barrier),
    **dict.fromkeys(("bra", "brx", "ret", "exit", "call", "trap"), _control),
    **dict.fromkeys(("membar", "fence", "nanosleep", "prefetch", "prefetchu", "pmevent", "brkpt"), _other),
    **dict.fromkeys(("discard", "applypriority", "griddepcontrol"), _other),
    **dict.fromkeys(("addc", "subc", "madc"), _carrying),
    **dict.fromkeys(("mma", "ldmatrix", "stmatrix", "movmatrix"), _matrix),
    "createpolicy": _policy,
}

# what names an operation beyond its modifiers: the shape of its operands, and lop3's table
_ROWS: dict[tuple, Operation] = {}


def _shape(instruction: Instruction) -> tuple:
    first, second = (*instruction.operands, None, None)[:2]
    key = (_pair(instruction), len(instruction.operands))
    if instruction.opcode == "mov":
        return (*key, *(len(o.elements) if isinstance(o, Vector) else 0 for o in (first, second)))
    if instruction.opcode == "lop3" and len(instruction.operands) == 5:
        return (*key, instruction.operands[4])
    if instruction.opcode == "cp":
        return (*key, *(o for o in instruction.operands if isinstance(o, Immediate)))
    return key


_WHY = {
    "wgmma": "products of warp groups",
    "tcgen05": "Blackwell's tensor memory",
    "wmma": "use mma.sync in its place",
    "mbarrier": "barrier objects in shared memory",
    "cluster": "thread block clusters",
    "mapa": "thread block clusters",
    "getctarank": "thread block clusters",
    "multimem": "multicast memory",
    "tensormap": "tensor memory copies",
    "bulk": "tensor memory copies",
    "setmaxnreg": "moving registers between warps",
    "tex": "textures",
    "tld4": "textures",
    "suld": "surfaces",
    "sust": "surfaces",
}


def _why(instruction: Instruction) -> str:
    """What an unknown instruction belongs to, in brackets, where that helps."""
    parts = [p for word in instruction.name.split(".") for p in word.split("::")]
    return next((f" ({_WHY[p]})" for p in parts if p in _WHY), "")


def operation(instruction: Instruction) -> Operation:
    """The row of an instruction. Raises UnsupportedError with the PTX and source line."""
    key = (instruction.name, *_shape(instruction))
    row = _ROWS.get(key)
    if row is None:
        family = _FAMILIES.get(instruction.opcode)
        row = family(instruction.opcode, instruction.modifiers, instruction) if family else None
        if row is None:
            message = f"{instruction.name} is not simulated{_why(instruction)}"
            raise UnsupportedError(message, instruction.line, instruction.source)
        _ROWS[key] = row
    if row.kind in ("alu", "warp", "barrier") or (row.kind == "memory" and row.group != "copy"):
        _check_operands(instruction, row)
    return row


def _check_operands(instruction: Instruction, row: Operation) -> None:
    """Raise where operands are too many or too few, or do not fit the row's types: for both engines alike."""
    targets, sources = operands(instruction)
    addresses = [o for o in instruction.operands if isinstance(o, Address)]
    if row.kind == "memory":
        sources = [s for s in sources if not isinstance(s, Address)]
        if any("cache_hint" in m for m in instruction.modifiers):
            sources = sources[:-1]
    wider = row.kind == "memory" or instruction.opcode == "cvt"  # in wider registers too
    wrong = []
    if len(targets) != len(row.results) or len(sources) != len(row.sources):
        wrong.append(f"with {len(targets)} results and {len(sources)} sources is not simulated")
    for target, type_ in zip(targets, row.results, strict=False):
        if not isinstance(target, Register | Sink):
            wrong.append("a result must be a register")
        elif isinstance(target, Register) and not _fits(target, type_, wider):
            wrong.append(f"a {type_} result does not fit {target.name} of type {target.type}")
    for source, type_ in zip(sources, row.sources, strict=False):
        register = source.register if isinstance(source, Negated) else source
        if isinstance(source, Immediate):
            bits_of(source, type_, instruction.line)
        elif isinstance(register, Register) and not _fits(register, type_, wider):
            wrong.append(f"{register.name} of type {register.type} is no {type_} operand")
    for address in addresses:
        if isinstance(address.base, Register) and not _fits(address.base, "b32"):
            wrong.append(f"{address.base.name} of type {address.base.type} is no address")
    if wrong:
        raise UnsupportedError(f"{instruction.name}: {wrong[0]}", instruction.line, instruction.source)


def _fits(register: Register, type_: str, wider: bool = True) -> bool:
    """Whether a register can hold a type: as wide, or wider where that is allowed; predicates apart.

    Source: PTX ISA, "Operand Size Exceeding Instruction-Type Size": floating-point types allow no wider one.
    """
    if "pred" in (register.type, type_):
        return register.type == type_
    wider = wider and type_ not in ("f16", "f32", "f64")
    return TYPE_BYTES[type_] == TYPE_BYTES[register.type] or (
        wider and TYPE_BYTES[type_] < TYPE_BYTES[register.type]
    )


def operands(instruction: Instruction) -> tuple[list, list]:
    """(results, sources) with vectors and pairs flattened; the literal table of lop3 left out."""

    def flat(operand) -> list:
        if isinstance(operand, Vector):
            return list(operand.elements)
        if isinstance(operand, Pair):
            return [operand.first, operand.second]
        return [operand]

    items = list(instruction.operands)
    if instruction.opcode == "lop3":
        items = items[:4]
    targets = flat(items.pop(0)) if has_result(instruction) and items else []
    return targets, [s for item in items for s in flat(item)]


def table() -> Iterator[Operation]:
    """Every "alu" row that has a name of its own (rows differing only in operand shape appear once)."""
    yield from _table()


@functools.cache
def _table() -> tuple[Operation, ...]:
    floats = ("f32", "f64", *HALVES)
    ftz, rounding = ("", "ftz"), ("", *_ROUNDINGS)
    every = (*INTEGERS, *floats)
    small = tuple(f"{k}{b}" for k in "us" for b in (8, 16, 32, 64))
    names: list[tuple[str, tuple]] = []
    for opcode in ("add", "sub", "mul", "fma", "mad", "div", "rem"):
        names += [
            (opcode, (r, f, s, t)) for t in every for r in rounding for f in ftz for s in ("", "sat", "relu")
        ]
        names += [(opcode, (h, t)) for t in INTEGERS for h in ("lo", "hi", "wide")]
    names += [("div", (m, f, "f32")) for m in ("approx", "full") for f in ftz]
    names += [(o, (h, t)) for o in ("mul24", "mad24") for h in ("lo", "hi") for t in ("u32", "s32")]
    for opcode in ("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh"):
        names += [(opcode, (m, f, t)) for m in ("approx", *_ROUNDINGS) for f in ftz for t in floats]
    names += [(o, (f, n, t)) for o in ("min", "max") for f in ftz for n in ("", "NaN") for t in every]
    names += [(o, (f, t)) for o in ("neg", "abs") for f in ftz for t in every]
    bits = ("pred", "b16", "b32", "b64")
    names += [
        (o, (t,)) for o in ("and", "or", "xor", "not", "cnot", "shl", "shr") for t in (*bits, *INTEGERS)
    ]
    names += [("shf", (d, m, "b32")) for d in "lr" for m in ("clamp", "wrap")]
    names += [("prmt", ("b32", m)) for m in ("", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16")]
    wide = ("u32", "s32", "u64", "s64", "b32", "b64")
    names += [(o, (t,)) for o in ("bfe", "bfi", "brev", "popc", "clz", "bfind", "sad") for t in wide]
    names += [("bfind", ("shiftamt", t)) for t in wide]
    names += [("bmsk", (m, "b32")) for m in ("clamp", "wrap")]
    names += [("szext", (m, t)) for m in ("clamp", "wrap") for t in ("u32", "s32")]
    names += [("dp2a", (h, a, b)) for h in ("lo", "hi") for a in ("u32", "s32") for b in ("u32", "s32")]
    names += [("dp4a", (a, b)) for a in ("u32", "s32") for b in ("u32", "s32")]
    compare = (*_COMPARE, *[c for c in (*vm._ORDERED, *vm._UNORDERED) if c not in _COMPARE])
    stypes = (*bits[1:], *every)
    names += [("setp", (c, b, f, t)) for c in compare for b in ("", *_BOOL) for f in ftz for t in stypes]
    results = ("u32", "s32", "f32", "f16", "bf16", "f16x2", "bf16x2")
    names += [("set", (c, f, d, t)) for c in compare for f in ftz for d in results for t in stypes]
    names += [("selp", (t,)) for t in stypes] + [("slct", (t, c)) for t in stypes for c in ("s32", "f32")]
    names += [("copysign", (t,)) for t in ("f32", "f64")]
    kinds = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    names += [("testp", (k, t)) for k in kinds for t in ("f32", "f64")]
    conversions = (*small, "f16", "bf16", "f32", "f64", "f16x2", "bf16x2", "tf32")
    modes = ("", *_ROUNDINGS, *(f"{r}i" for r in _ROUNDINGS), "rna")
    for to in conversions:
        names += [
            ("cvt", (r, f, s, to, source))
            for source in conversions
            for r in modes
            for f in ftz
            for s in ("", "sat", "relu")
        ]
    relu, carry = ("", "relu"), ("", "cc")
    pairs = (*_FP8, "f32", "f16x2")
    names += [("cvt", ("rn", "satfinite", r, to, source)) for to in _FP8 for source in pairs for r in relu]
    names += [("cvt", ("rn", r, "f16x2", source)) for source in _FP8 for r in relu]
    names += [(o, (c, t)) for o in ("add", "addc", "sub", "subc") for c in carry for t in INTEGERS]
    halves = [(h, c, t) for h in ("lo", "hi") for c in carry for t in INTEGERS]
    names += [(o, parts) for o in ("mad", "madc") for parts in halves]
    names += [("mov", (t,)) for t in (*bits, *INTEGERS, "f32", "f64")]
    names += [("cvta", (s, "u64")) for s in _SPACES] + [("cvta", ("to", s, "u64")) for s in _SPACES]
    names += [("isspacep", (s,)) for s in _SPACES]
    rows: dict[str, Operation] = {}
    for opcode, parts in names:
        mods = tuple(m for m in parts if m)
        row = _FAMILIES[opcode](opcode, mods, None)
        if row is not None:
            rows.setdefault(row.name, row)
    return tuple(rows.values())
