"""Floating-point arithmetic of PTX, defined once as LLVM IR for both engines.

Each function takes an `Emitter` and IR values (scalars, or vectors of any length) and returns IR values. The
LLVM engine calls them while it emits a block; the NumPy engine calls them through `compiled`, which wraps one
in a loop over arrays. No fast-math flag is ever set, so both get the same bits.

Conventions: f16 and bf16 are their bit pattern in i16, f16x2 and bf16x2 in i32 (low half first), predicates
are i1. A NaN result has no particular payload: nothing may rely on its bits. `.ftz` replaces a subnormal
input, and a result that is subnormal after rounding, by zero of the same sign.

The approximations (ex2, lg2, rcp, rsqrt, sin, cos, tanh) are this module's own, within the error bounds of
the PTX ISA, and are not the GPU's bits.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

_SCALAR = {
    "f32": ir.FloatType(),
    "f64": ir.DoubleType(),
    "pred": ir.IntType(1),
    **{f"{k}{bits}": ir.IntType(bits) for k in "bus" for bits in (8, 16, 32, 64)},
    **{"f16": ir.IntType(16), "bf16": ir.IntType(16), "f16x2": ir.IntType(32), "bf16x2": ir.IntType(32)},
    **{"tf32": ir.IntType(32), "e4m3x2": ir.IntType(16), "e5m2x2": ir.IntType(16)},
}
MIN_NORMAL_F32 = 2.0**-126

# precision in bits, least exponent of a normal number, greatest finite value
_FORMATS = {
    "f32": (24, -126, (2 - 2.0**-23) * 2.0**127),
    "f16": (11, -14, 65504.0),
    "bf16": (8, -126, (2 - 2.0**-7) * 2.0**127),
    "tf32": (11, -126, (2 - 2.0**-10) * 2.0**127),
    "e4m3": (4, -6, 448.0),
    "e5m2": (3, -14, 57344.0),
}


class Emitter:
    """Emits IR for one lane (lanes None) or for vectors of `lanes` elements at the builder's position."""

    def __init__(self, builder: ir.IRBuilder, lanes: int | None = None):
        self.builder = builder
        self.lanes = lanes
        self._flushed: set[int] = set()
        self._keep: list[ir.Value] = []  # ids stay unique while their values live

    def type(self, name: str) -> ir.Type:
        """The IR type of a PTX scalar type."""
        scalar = _SCALAR[name]
        return ir.VectorType(scalar, self.lanes) if self.lanes else scalar

    def const(self, name: str, value: float) -> ir.Constant:
        """A literal in every lane."""
        scalar = _SCALAR[name]
        if isinstance(scalar, ir.IntType):
            value = int(value) & ((1 << scalar.width) - 1)
        return ir.Constant(self.type(name), [value] * self.lanes if self.lanes else value)

    def intrinsic(self, name: str, *values: ir.Value) -> ir.Value:
        """llvm.<name> overloaded on the first value's type, taking and giving that type."""
        kind = values[0].type
        scalar = kind.element if isinstance(kind, ir.VectorType) else kind
        suffix = {ir.FloatType(): "f32", ir.DoubleType(): "f64"}.get(scalar) or f"i{scalar.width}"
        if isinstance(kind, ir.VectorType):
            suffix = f"v{kind.count}{suffix}"
        module, full = self.builder.module, f"llvm.{name}.{suffix}"
        function = module.globals.get(full)
        if function is None:
            function = ir.Function(module, ir.FunctionType(kind, [v.type for v in values]), full)
        return self.builder.call(function, values)

    def cast(self, operation: str, value: ir.Value, name: str) -> ir.Value:
        """bitcast, zext, fptosi ... to a PTX type."""
        return getattr(self.builder, operation)(value, self.type(name))

    def select(self, condition: ir.Value, yes: ir.Value, no: ir.Value) -> ir.Value:
        """condition ? yes : no, lane by lane."""
        return self.builder.select(condition, yes, no)

    def flush(self, value: ir.Value) -> ir.Value:
        """An f32 with subnormals replaced by zero of the same sign; free where it is known to be flushed."""
        if id(value) in self._flushed:
            return value
        b = self.builder
        bits = self.cast("bitcast", value, "b32")
        small = b.fcmp_ordered("<", self.intrinsic("fabs", value), self.const("f32", MIN_NORMAL_F32))
        zero = self.cast("bitcast", b.and_(bits, self.const("b32", 0x80000000)), "f32")
        return self.known_flushed(self.select(small, zero, value))

    def known_flushed(self, value: ir.Value) -> ir.Value:
        """Remember that an f32 value is no subnormal."""
        self._flushed.add(id(value))
        self._keep.append(value)
        return value


Value = ir.Value


# ---- formats


def widen(e: Emitter, value: Value, type_: str) -> Value:
    """A value of a narrower format as f32, exactly."""
    b = e.builder
    if type_ == "f32":
        return value
    if type_ == "bf16":
        return e.cast("bitcast", b.shl(e.cast("zext", value, "b32"), e.const("b32", 16)), "f32")
    if type_ == "tf32":
        return e.cast("bitcast", b.and_(value, e.const("b32", 0xFFFFE000)), "f32")
    bits = e.cast("zext", value, "b32")
    sign = b.shl(b.and_(bits, e.const("b32", 0x8000)), e.const("b32", 16))
    magnitude = b.shl(b.and_(bits, e.const("b32", 0x7FFF)), e.const("b32", 13))
    scaled = b.fmul(e.cast("bitcast", magnitude, "f32"), e.const("f32", 2.0**112))
    special = b.icmp_unsigned(">=", magnitude, e.const("b32", 0x1F << 23))
    finite = e.cast("bitcast", scaled, "b32")
    result = e.select(special, b.or_(magnitude, e.const("b32", 0x70000000)), finite)
    return e.cast("bitcast", b.or_(result, sign), "f32")


def to_double(e: Emitter, value: Value, type_: str) -> Value:
    """A value of any format as f64, exactly."""
    return value if type_ == "f64" else e.cast("fpext", widen(e, value, type_), "f64")


def integral(e: Emitter, value: Value, rounding: str) -> Value:
    """Round f32 or f64 to an integral value: rn (ties to even), rz, rm (down), rp (up), rna (ties away)."""
    if rounding == "rna":
        half = e.intrinsic("floor", _add_half(e, e.intrinsic("fabs", value)))
        return e.intrinsic("copysign", half, value)
    return e.intrinsic({"rn": "rint", "rz": "trunc", "rm": "floor", "rp": "ceil"}[rounding], value)


def _add_half(e: Emitter, value: Value) -> Value:
    """|x| + 1/2 truncated onto the grid, so that floor gives ties away from zero exactly."""
    kind = "f64" if "double" in str(value.type) else "f32"
    whole = e.intrinsic("floor", value)
    up = e.builder.fcmp_ordered(">=", e.builder.fsub(value, whole), e.const(kind, 0.5))
    return e.select(up, e.builder.fadd(whole, e.const(kind, 1.0)), whole)


def narrow(e: Emitter, value: Value, type_: str, rounding: str = "rn", relu: bool = False) -> Value:
    """Round an f64 value once to a format. value may be the exact result rounded to odd (see `odd_sum`)."""
    b = e.builder
    if relu:
        value = e.select(b.fcmp_ordered("<", value, e.const("f64", 0.0)), e.const("f64", 0.0), value)
    if type_ == "f64":
        return value
    if type_ == "f32" and rounding == "rn":
        return e.cast("fptrunc", value, "f32")
    precision, least, greatest = _FORMATS[type_]
    bits = e.cast("bitcast", value, "b64")
    exponent = b.and_(b.lshr(bits, e.const("b64", 52)), e.const("b64", 0x7FF))
    floor = e.const("b64", least + 1023)
    exponent = e.select(b.icmp_unsigned("<", exponent, floor), floor, exponent)
    shift = precision - 1
    quantum = b.shl(b.sub(exponent, e.const("b64", shift)), e.const("b64", 52))
    inverse = b.shl(b.sub(e.const("b64", 2046 + shift), exponent), e.const("b64", 52))
    unit, per_unit = e.cast("bitcast", quantum, "f64"), e.cast("bitcast", inverse, "f64")
    rounded = b.fmul(integral(e, b.fmul(value, per_unit), rounding), unit)
    rounded = e.intrinsic("copysign", rounded, value)
    # overflow: towards infinity unless the direction says otherwise; infinite and NaN inputs pass through
    limit, infinity = e.const("f64", greatest), e.const("f64", math.inf)
    size = e.intrinsic("fabs", rounded)
    positive = b.fcmp_ordered(">", value, e.const("f64", 0.0))
    if rounding in ("rn", "rna"):
        over = infinity
    elif rounding == "rz":
        over = limit
    else:
        over = e.select(positive, *((infinity, limit) if rounding == "rp" else (limit, infinity)))
    rounded = e.select(b.fcmp_ordered(">", size, limit), e.intrinsic("copysign", over, value), rounded)
    finite = b.fcmp_ordered("<", e.intrinsic("fabs", value), infinity)
    rounded = e.select(finite, rounded, value)
    single = e.cast("fptrunc", rounded, "f32")
    return single if type_ == "f32" else exact_bits(e, single, type_)


def exact_bits(e: Emitter, single: Value, type_: str) -> Value:
    """The bit pattern in a narrower format of an f32 value that the format holds exactly (or NaN).

    e4m3 and e5m2 are a byte in a b16; infinity is none of e4m3's values.
    """
    b = e.builder
    bits = e.cast("bitcast", single, "b32")
    nan = b.fcmp_unordered("uno", single, single)
    if type_ == "tf32":
        return e.select(nan, e.const("b32", 0x7FFFFFFF), bits)
    if type_ == "bf16":
        high = b.lshr(bits, e.const("b32", 16))
        return e.cast("trunc", e.select(nan, e.const("b32", 0x7FFF), high), "b16")
    if type_ == "e5m2":  # the upper byte of the same value in f16
        high = b.lshr(exact_bits(e, single, "f16"), e.const("b16", 8))
        return e.select(nan, e.const("b16", 0x7F), high)
    size = b.and_(bits, e.const("b32", 0x7FFFFFFF))
    sign = b.lshr(b.and_(bits, e.const("b32", 0x80000000)), e.const("b32", 16))
    if type_ == "e4m3":
        # 2^-120 makes e4m3's exponent f32's: subnormals of one are those of the other
        scaled = b.fmul(e.cast("bitcast", size, "f32"), e.const("f32", 2.0**-60))
        scaled = b.fmul(scaled, e.const("f32", 2.0**-60))
        byte = b.lshr(e.cast("bitcast", scaled, "b32"), e.const("b32", 20))
        byte = b.or_(byte, b.lshr(sign, e.const("b32", 8)))
        return e.cast("trunc", e.select(nan, e.const("b32", 0x7F), byte), "b16")
    normal = b.lshr(b.sub(size, e.const("b32", 0x38000000)), e.const("b32", 13))
    tiny = b.icmp_unsigned("<", size, e.const("b32", 0x38800000))
    scaled = b.fmul(e.cast("bitcast", size, "f32"), e.const("f32", 2.0**24))
    scaled = e.select(tiny, scaled, e.const("f32", 0.0))
    result = e.select(tiny, e.cast("fptoui", scaled, "b32"), normal)
    infinite = b.icmp_unsigned("==", size, e.const("b32", 0x7F800000))
    result = b.or_(e.select(infinite, e.const("b32", 0x7C00), result), sign)
    return e.cast("trunc", e.select(nan, e.const("b32", 0x7FFF), result), "b16")


def odd_sum(e: Emitter, a: Value, c: Value) -> Value:
    """a + c of f64 values, rounded to odd: a later rounding to a narrower format is then a single rounding.

    Knuth's two-sum gives the error exactly; where it is not zero and the sum's last bit is even, the sum is
    moved one step towards the exact value (Boldo and Melquiond, IEEE Trans. Computers 57, 2008).
    """
    b = e.builder
    total = b.fadd(a, c)
    part = b.fsub(total, a)
    error = b.fadd(b.fsub(a, b.fsub(total, part)), b.fsub(c, part))
    bits = e.cast("bitcast", total, "b64")
    zero = e.const("f64", 0.0)
    inexact = b.fcmp_ordered("!=", error, zero)
    even = b.icmp_unsigned("==", b.and_(bits, e.const("b64", 1)), e.const("b64", 0))
    finite = b.fcmp_ordered("<", e.intrinsic("fabs", total), e.const("f64", math.inf))
    # away from zero adds 1 to the bits, towards zero subtracts 1
    outward = b.icmp_unsigned("==", b.fcmp_ordered(">", error, zero), b.fcmp_ordered(">", total, zero))
    step = e.select(outward, e.const("b64", 1), e.const("b64", -1))
    moved = e.cast("bitcast", b.add(bits, step), "f64")
    return e.select(b.and_(b.and_(inexact, even), finite), moved, total)


# ---- arithmetic of one format


def _saturate(e: Emitter, value: Value, kind: str) -> Value:
    """Clamp to [0, 1]; NaN becomes 0."""
    b = e.builder
    above = b.fcmp_ordered(">", value, e.const(kind, 0.0))
    value = e.select(above, value, e.const(kind, 0.0))
    return e.select(b.fcmp_ordered(">", value, e.const(kind, 1.0)), e.const(kind, 1.0), value)


def _finish(e: Emitter, value: Value, type_: str, ftz: bool, sat: bool) -> Value:
    if type_ == "f32" and ftz:
        value = e.flush(value)
    if sat:
        value = _saturate(e, value, type_)
        if type_ == "f32" and ftz:
            e.known_flushed(value)
    return value


def arithmetic(
    operation: str, type_: str, rounding: str = "rn", ftz: bool = False, sat: bool = False, relu: bool = False
) -> Callable:
    """add, sub, mul, fma, div, rcp or sqrt of f32, f64, f16 or bf16 with one rounding.

    Returns function(e, *values). f64 has rn only.
    """

    def native(e: Emitter, values: list[Value]) -> Value:
        b = e.builder
        kind = "f64" if "double" in str(values[0].type) else "f32"
        if operation == "fma":
            return e.intrinsic("fma", *values)
        if operation == "rcp":
            return b.fdiv(e.const(kind, 1.0), values[0])
        if operation == "sqrt":
            return e.intrinsic("sqrt", values[0])
        return {"add": b.fadd, "sub": b.fsub, "mul": b.fmul, "div": b.fdiv}[operation](*values)

    def function(e: Emitter, *values: Value) -> Value:
        b = e.builder
        if type_ == "f32" and ftz:
            values = tuple(e.flush(v) for v in values)
        if type_ == "f64" or (type_ == "f32" and rounding == "rn"):
            return _finish(e, native(e, list(values)), type_, ftz, sat)
        wide = [to_double(e, v, type_) for v in values]
        if operation in ("add", "sub"):
            exact = odd_sum(e, wide[0], wide[1] if operation == "add" else b.fneg(wide[1]))
        elif operation == "mul":
            exact = b.fmul(*wide)
        elif operation == "fma":
            exact = odd_sum(e, b.fmul(wide[0], wide[1]), wide[2])
        else:
            exact = _odd_quotient(e, operation, wide)
        if rounding in ("rm", "rz", "rn", "rp") and operation in ("add", "sub", "fma"):
            exact = zero_sign(e, exact, wide, operation, rounding)
        if sat and type_ != "f32":
            exact = _saturate(e, exact, "f64")
        return _finish(e, narrow(e, exact, type_, rounding, relu), type_, ftz, sat and type_ == "f32")

    return function


def zero_sign(e: Emitter, exact: Value, wide: list[Value], operation: str, rounding: str) -> Value:
    """An exact zero of two opposite terms is -0 when rounding down, +0 else (IEEE 754, 6.3)."""
    if rounding != "rm":
        return exact
    b = e.builder
    first = b.fmul(wide[0], wide[1]) if operation == "fma" else wide[0]
    second = b.fneg(wide[1]) if operation == "sub" else wide[-1]
    sign = e.const("b64", 1 << 63)
    differ = b.and_(b.xor(e.cast("bitcast", first, "b64"), e.cast("bitcast", second, "b64")), sign)
    zero = b.fcmp_ordered("==", exact, e.const("f64", 0.0))
    flip = b.and_(zero, b.icmp_unsigned("!=", differ, e.const("b64", 0)))
    return e.select(flip, e.const("f64", -0.0), exact)


def _odd_quotient(e: Emitter, operation: str, wide: list[Value]) -> Value:
    """Quotient, reciprocal or square root in f64, its last bit set where the remainder is not zero."""
    b = e.builder
    if operation == "sqrt":
        result = e.intrinsic("sqrt", wide[0])
        remainder = e.intrinsic("fma", b.fneg(result), result, wide[0])
        towards = e.const("f64", 1.0)
    else:
        top, bottom = (e.const("f64", 1.0), wide[0]) if operation == "rcp" else wide
        result = b.fdiv(top, bottom)
        remainder = e.intrinsic("fma", b.fneg(result), bottom, top)
        towards = bottom
    # result + remainder / towards is the exact value; only the sign of the correction matters
    zero = e.const("f64", 0.0)
    bits = e.cast("bitcast", result, "b64")
    inexact = b.fcmp_ordered("!=", remainder, zero)
    even = b.icmp_unsigned("==", b.and_(bits, e.const("b64", 1)), e.const("b64", 0))
    finite = b.fcmp_ordered("<", e.intrinsic("fabs", result), e.const("f64", math.inf))
    up = b.icmp_unsigned("==", b.fcmp_ordered(">", remainder, zero), b.fcmp_ordered(">", towards, zero))
    outward = b.icmp_unsigned("==", up, b.fcmp_ordered(">", result, zero))
    moved = b.add(bits, e.select(outward, e.const("b64", 1), e.const("b64", -1)))
    return e.select(b.and_(b.and_(inexact, even), finite), e.cast("bitcast", moved, "f64"), result)


def extremum(operation: str, type_: str, ftz: bool = False, nan: bool = False) -> Callable:
    """min or max: the operand that is no NaN (with `nan`: NaN if either is); -0 is less than +0."""

    def function(e: Emitter, *values: Value) -> Value:
        if len(values) == 3:
            return function(e, function(e, *values[:2]), values[2])
        b = e.builder
        kind = type_ if type_ in ("f32", "f64") else "f32"
        integer = "b64" if type_ == "f64" else "b32"
        x, y = (v if type_ == "f64" else widen(e, v, type_) for v in values)
        if ftz:
            x, y = e.flush(x), e.flush(y)
        # among equals (the zeros) the sign decides: or-ing the bits gives -0, and-ing them +0
        xb, yb = e.cast("bitcast", x, integer), e.cast("bitcast", y, integer)
        equal = e.cast("bitcast", (b.or_ if operation == "min" else b.and_)(xb, yb), kind)
        first = b.fcmp_ordered("<" if operation == "min" else ">", x, y)
        result = e.select(first, x, y)
        result = e.select(b.fcmp_ordered("==", x, y), equal, result)
        x_nan, y_nan = b.fcmp_unordered("uno", x, x), b.fcmp_unordered("uno", y, y)
        if nan:
            result = e.select(b.or_(x_nan, y_nan), e.const(kind, math.nan), result)
        else:
            result = e.select(x_nan, y, e.select(y_nan, x, result))
        if type_ == "f32" and ftz:
            e.known_flushed(result)
        return result if kind == type_ else exact_bits(e, result, type_)

    return function


def sign_change(operation: str, type_: str, ftz: bool = False) -> Callable:
    """neg or abs: works on the sign bit only (after the flush)."""
    integer = {"f32": "b32", "f64": "b64", "f16": "b16", "bf16": "b16", "f16x2": "b32", "bf16x2": "b32"}[
        type_
    ]
    mask = {"b16": 0x8000, "b32": 0x80008000 if "x2" in type_ else 0x80000000, "b64": 1 << 63}[integer]

    def function(e: Emitter, value: Value) -> Value:
        b = e.builder
        if ftz and type_ == "f32":
            value = e.flush(value)
        floating = type_ in ("f32", "f64")
        bits = e.cast("bitcast", value, integer) if floating else value
        if operation == "neg":
            bits = b.xor(bits, e.const(integer, mask))
        else:
            bits = b.and_(bits, e.const(integer, ~mask))
        result = e.cast("bitcast", bits, type_) if floating else bits
        return e.known_flushed(result) if ftz and type_ == "f32" else result

    return function


_ORDERED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "num": "ord"}
_UNORDERED = {"equ": "==", "neu": "!=", "ltu": "<", "leu": "<=", "gtu": ">", "geu": ">=", "nan": "uno"}


def compare(operation: str, type_: str, ftz: bool = False) -> Callable:
    """The predicate of a floating-point setp: eq ne lt le gt ge num (false with NaN), equ ... nan (true)."""

    def function(e: Emitter, *values: Value) -> Value:
        x, y = (v if type_ == "f64" else widen(e, v, type_) for v in values)
        if ftz and type_ == "f32":
            x, y = e.flush(x), e.flush(y)
        if operation in _ORDERED:
            return e.builder.fcmp_ordered(_ORDERED[operation], x, y)
        return e.builder.fcmp_unordered(_UNORDERED[operation], x, y)

    return function


def packed(function: Callable, compared: bool = False) -> Callable:
    """A function of f16 or bf16 applied to both halves of 32-bit values; compared: gives two predicates."""

    def both(e: Emitter, *values: Value):
        b = e.builder
        low = function(e, *(e.cast("trunc", v, "b16") for v in values))
        high = function(e, *(e.cast("trunc", b.lshr(v, e.const("b32", 16)), "b16") for v in values))
        if compared:
            return low, high
        high = b.shl(e.cast("zext", high, "b32"), e.const("b32", 16))
        return b.or_(e.cast("zext", low, "b32"), high)

    return both


# ---- approximations


def _chebyshev(function: Callable, low: float, high: float, degree: int) -> list[float]:
    """Coefficients (constant first) of a near-minimax polynomial, computed in float64."""
    nodes = np.polynomial.chebyshev.Chebyshev.interpolate(function, degree, [low, high])
    return [float(c) for c in nodes.convert(kind=np.polynomial.Polynomial).coef]


# (2^f - 1) / f on [-1/2, 1/2]; the factored form makes 2^0 exactly 1
_EXP2 = _chebyshev(
    lambda f: np.where(f == 0, math.log(2), np.expm1(f * math.log(2)) / np.where(f == 0, 1, f)), -0.5, 0.5, 6
)


def _polynomial(e: Emitter, x: Value, coefficients: list[float], kind: str) -> Value:
    result = e.const(kind, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = e.intrinsic("fma", result, x, e.const(kind, c))
    return result


def ex2(type_: str = "f32", ftz: bool = False) -> Callable:
    """2^x. f32: a polynomial of degree 7 in the fraction, within 2 ulp; f16 and bf16 through f32."""

    def single(e: Emitter, x: Value) -> Value:
        b = e.builder
        if ftz:
            x = e.flush(x)
        clamped = e.select(b.fcmp_ordered("<", x, e.const("f32", -151.0)), e.const("f32", -151.0), x)
        clamped = e.select(
            b.fcmp_ordered(">", clamped, e.const("f32", 129.0)), e.const("f32", 129.0), clamped
        )
        nan = b.fcmp_unordered("uno", x, x)
        safe = e.select(nan, e.const("f32", 0.0), clamped)
        whole = e.intrinsic("rint", safe)
        fraction = b.fsub(safe, whole)
        mantissa = e.intrinsic("fma", _polynomial(e, fraction, _EXP2, "f32"), fraction, e.const("f32", 1.0))
        exponent = e.cast("fptosi", whole, "s32")
        # two factors: 2^-151 and 2^129 are no f32
        half = b.ashr(exponent, e.const("s32", 1))
        bias, place = e.const("s32", 127), e.const("s32", 23)
        first = e.cast("bitcast", b.shl(b.add(half, bias), place), "f32")
        second = e.cast("bitcast", b.shl(b.add(b.sub(exponent, half), bias), place), "f32")
        result = b.fmul(b.fmul(mantissa, first), second)
        result = e.select(nan, x, result)
        return e.flush(result) if ftz else result

    def function(e: Emitter, x: Value) -> Value:
        if type_ == "f32":
            return single(e, x)
        return narrow(e, e.cast("fpext", single(e, widen(e, x, type_)), "f64"), type_)

    return function


def _log2_double(e: Emitter, x: Value) -> Value:
    """log2 of a positive f64: exponent plus an odd series in (m - 1)/(m + 1), m in [sqrt(1/2), sqrt(2))."""
    b = e.builder
    bits = e.cast("bitcast", x, "b64")
    offset = b.sub(bits, e.const("b64", 0x3FE6A09E667F3BCD))  # sqrt(1/2)
    exponent = b.ashr(offset, e.const("b64", 52))
    mantissa = e.cast("bitcast", b.sub(bits, b.shl(exponent, e.const("b64", 52))), "f64")
    one = e.const("f64", 1.0)
    s = b.fdiv(b.fsub(mantissa, one), b.fadd(mantissa, one))
    series = [2 / math.log(2) / (2 * k + 1) for k in range(10)]
    value = b.fmul(s, _polynomial(e, b.fmul(s, s), series, "f64"))
    return b.fadd(e.cast("sitofp", e.cast("trunc", exponent, "s32"), "f64"), value)


def lg2(ftz: bool = False) -> Callable:
    """log2(x) of f32, correctly rounded up to the f64 series' error; log2(0) = -inf, of a negative NaN."""

    def function(e: Emitter, x: Value) -> Value:
        b = e.builder
        if ftz:
            x = e.flush(x)
        zero, infinity = e.const("f32", 0.0), e.const("f32", math.inf)
        usual = b.and_(b.fcmp_ordered(">", x, zero), b.fcmp_ordered("<", x, infinity))
        safe = e.cast("fpext", e.select(usual, x, e.const("f32", 1.0)), "f64")
        result = e.cast("fptrunc", _log2_double(e, safe), "f32")
        other = e.select(b.fcmp_ordered("<", x, zero), e.const("f32", math.nan), x)
        other = e.select(b.fcmp_ordered("==", x, zero), e.const("f32", -math.inf), other)
        result = e.select(usual, result, other)
        return e.flush(result) if ftz else result

    return function


def rsqrt(type_: str = "f32", ftz: bool = False) -> Callable:
    """1/sqrt(x), through f64."""

    def function(e: Emitter, x: Value) -> Value:
        if ftz and type_ == "f32":
            x = e.flush(x)
        root = e.intrinsic("sqrt", to_double(e, x, type_))
        result = narrow(e, e.builder.fdiv(e.const("f64", 1.0), root), type_)
        return e.flush(result) if ftz and type_ == "f32" else result

    return function


_TWO_PI = (6.283185307179586, 2.4492935982947064e-16)  # its f64 value and the rest


def sine(which: str, ftz: bool = False) -> Callable:
    """sin or cos of f32: reduced by multiples of pi/2 in f64, Taylor polynomials; NaN for infinities."""

    def function(e: Emitter, x: Value) -> Value:
        b = e.builder
        if ftz:
            x = e.flush(x)
        finite = b.fcmp_ordered("<", e.intrinsic("fabs", x), e.const("f32", math.inf))
        wide = e.cast("fpext", e.select(finite, x, e.const("f32", 0.0)), "f64")
        quarter = [part / 4 for part in _TWO_PI]
        turns = e.intrinsic("rint", b.fmul(wide, e.const("f64", 2 / math.pi)))
        r = e.intrinsic("fma", b.fneg(turns), e.const("f64", quarter[0]), wide)
        r = e.intrinsic("fma", b.fneg(turns), e.const("f64", quarter[1]), r)
        square = b.fmul(r, r)
        sin_terms = [(-1) ** k / math.factorial(2 * k + 1) for k in range(8)]
        cos_terms = [(-1) ** k / math.factorial(2 * k) for k in range(8)]
        sin_r = b.fmul(r, _polynomial(e, square, sin_terms, "f64"))
        cos_r = _polynomial(e, square, cos_terms, "f64")
        # turns mod 4 without an integer that could overflow
        rest = b.fsub(
            turns, b.fmul(e.const("f64", 4.0), e.intrinsic("floor", b.fmul(turns, e.const("f64", 0.25))))
        )
        if which == "cos":
            rest = b.fadd(rest, e.const("f64", 1.0))
            rest = e.select(b.fcmp_ordered("==", rest, e.const("f64", 4.0)), e.const("f64", 0.0), rest)
        odd = b.or_(
            b.fcmp_ordered("==", rest, e.const("f64", 1.0)), b.fcmp_ordered("==", rest, e.const("f64", 3.0))
        )
        value = e.select(odd, cos_r, sin_r)
        value = e.select(b.fcmp_ordered(">=", rest, e.const("f64", 2.0)), b.fneg(value), value)
        result = e.select(finite, e.cast("fptrunc", value, "f32"), e.const("f32", math.nan))
        return e.flush(result) if ftz else result

    return function


def tanh(type_: str = "f32") -> Callable:
    """tanh(x) as 1 - 2 / (2^(2x/ln 2) + 1) in f64, x itself where |x| < 2^-12."""

    def function(e: Emitter, x: Value) -> Value:
        b = e.builder
        wide = to_double(e, x, type_)
        limit = e.const("f64", 20.0)
        bounded = e.intrinsic("minnum", e.intrinsic("maxnum", wide, b.fneg(limit)), limit)
        bounded = e.select(b.fcmp_unordered("uno", wide, wide), e.const("f64", 0.0), bounded)
        scaled = b.fmul(bounded, e.const("f64", 2 / math.log(2)))
        whole = e.intrinsic("rint", scaled)
        terms = [math.log(2) ** k / math.factorial(k) for k in range(14)]
        power = _polynomial(e, b.fsub(scaled, whole), terms, "f64")
        exponent = e.cast("sext", b.add(e.cast("fptosi", whole, "s32"), e.const("s32", 1023)), "s64")
        power = b.fmul(power, e.cast("bitcast", b.shl(exponent, e.const("s64", 52)), "f64"))
        one, two = e.const("f64", 1.0), e.const("f64", 2.0)
        value = b.fsub(one, b.fdiv(two, b.fadd(power, one)))
        small = b.fcmp_unordered("<", e.intrinsic("fabs", wide), e.const("f64", 2.0**-12))
        return narrow(e, e.select(small, wide, value), type_)

    return function


# ---- conversions


_INT_LIMITS = {
    f"{k}{bits}": ((0, (1 << bits) - 1) if k == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1))
    for k in "us"
    for bits in (8, 16, 32, 64)
}


def convert_float(
    to: str, source: str, rounding: str = "rn", ftz: bool = False, sat: bool = False, relu: bool = False
) -> Callable:
    """cvt between floating-point formats; rounding "rni", "rzi", "rmi", "rpi" gives integral values."""

    def function(e: Emitter, value: Value) -> Value:
        if source == "f32" and ftz:
            value = e.flush(value)
        wide = to_double(e, value, source)
        if rounding.endswith("i"):
            wide = integral(e, wide, rounding[:-1])
        if sat:
            wide = _saturate(e, wide, "f64")
        result = narrow(e, wide, to, "rn" if rounding.endswith("i") else rounding, relu)
        return e.flush(result) if to == "f32" and ftz else result

    return function


def float_to_int(to: str, source: str, rounding: str = "rzi", ftz: bool = False) -> Callable:
    """cvt to an integer: out of range goes to the nearest end of the range, NaN to 0 (64 bits: 2^63)."""
    low, high = _INT_LIMITS[to]

    def function(e: Emitter, value: Value) -> Value:
        b = e.builder
        if source == "f32" and ftz:
            value = e.flush(value)
        wide = integral(e, to_double(e, value, source), rounding[:-1])
        nan = b.fcmp_unordered("uno", wide, wide)
        over = b.fcmp_ordered(">=", wide, e.const("f64", float(high + 1)))
        under = b.fcmp_ordered("<", wide, e.const("f64", float(low)))
        unusual = b.or_(b.or_(over, under), nan)
        safe = e.select(unusual, e.const("f64", 0.0), wide)
        result = e.cast("fptosi" if to[0] == "s" else "fptoui", safe, to)
        result = e.select(over, e.const(to, high), e.select(under, e.const(to, low), result))
        return e.select(nan, e.const(to, 1 << 63 if to[1:] == "64" else 0), result)

    return function


def int_to_float(to: str, source: str, rounding: str = "rn", sat: bool = False) -> Callable:
    """cvt from an integer, one rounding. 64-bit integers are split so that f64 arithmetic stays exact."""

    def function(e: Emitter, value: Value) -> Value:
        b = e.builder
        convert = "sitofp" if source[0] == "s" else "uitofp"
        if to == "f64" and source[1:] == "64" and rounding == "rn":
            whole = e.cast(convert, value, "f64")
            return _saturate(e, whole, "f64") if sat else whole
        if source[1:] == "64":
            shift = b.ashr if source[0] == "s" else b.lshr
            high = e.cast(convert, shift(value, e.const("s64", 32)), "f64")
            low = e.cast("uitofp", b.and_(value, e.const("b64", 0xFFFFFFFF)), "f64")
            wide = odd_sum(e, b.fmul(high, e.const("f64", 2.0**32)), low)
        else:
            wide = e.cast(convert, value, "f64")
        if sat:
            wide = _saturate(e, wide, "f64")
        return narrow(e, wide, to, rounding)

    return function


def pack_two(to: str, rounding: str = "rn", relu: bool = False) -> Callable:
    """cvt.f16x2.f32 d, a, b: a goes to the upper half, b to the lower."""
    half = to[:-2]
    one = convert_float(half, "f32", rounding, relu=relu)

    def function(e: Emitter, high: Value, low: Value) -> Value:
        b = e.builder
        upper = b.shl(e.cast("zext", one(e, high), "b32"), e.const("b32", 16))
        return b.or_(upper, e.cast("zext", one(e, low), "b32"))

    return function


def to_fp8(to: str, source: str, relu: bool = False) -> Callable:
    """cvt.rn.satfinite to e4m3x2 or e5m2x2, of two f32 (the first goes to the upper byte) or an f16x2.

    What is beyond the greatest finite value, infinity included, becomes that value; NaN stays NaN.
    """
    format_ = to[:-2]
    greatest = _FORMATS[format_][2]

    def one(e: Emitter, value: Value) -> Value:
        b = e.builder
        wide = to_double(e, value, source.removesuffix("x2"))
        beyond = b.fcmp_ordered(">", e.intrinsic("fabs", wide), e.const("f64", greatest))
        limit = e.intrinsic("copysign", e.const("f64", greatest), wide)
        return narrow(e, e.select(beyond, limit, wide), format_, "rn", relu)

    def function(e: Emitter, *values: Value) -> Value:
        b = e.builder
        if source == "f16x2":
            upper = e.cast("trunc", b.lshr(values[0], e.const("b32", 16)), "b16")
            high, low = one(e, upper), one(e, e.cast("trunc", values[0], "b16"))
        else:
            high, low = (one(e, v) for v in values)
        return b.or_(b.shl(high, e.const("b16", 8)), low)

    return function


def from_fp8(source: str, relu: bool = False) -> Callable:
    """cvt.rn.f16x2 of e4m3x2 or e5m2x2: exact, f16 holds them all."""

    def half(e: Emitter, byte: Value) -> Value:
        """A byte in a b16 -> the bits of f16."""
        b = e.builder
        if source == "e5m2x2":
            return b.shl(byte, e.const("b16", 8))
        size = b.and_(byte, e.const("b16", 0x7F))
        # read with f16's bias of 15 in place of 7 the value is 2^-8 of what it should be
        scaled = widen(e, b.shl(size, e.const("b16", 7)), "f16")
        value = exact_bits(e, b.fmul(scaled, e.const("f32", 256.0)), "f16")
        nan = b.icmp_unsigned("==", size, e.const("b16", 0x7F))
        value = e.select(nan, e.const("b16", 0x7FFF), value)
        return b.or_(value, b.shl(b.and_(byte, e.const("b16", 0x80)), e.const("b16", 8)))

    def positive(e: Emitter, bits: Value) -> Value:
        """Negative numbers, not NaN, become 0."""
        b = e.builder
        number = b.icmp_unsigned("<=", bits, e.const("b16", 0xFC00))
        negative = b.and_(number, b.icmp_unsigned(">=", bits, e.const("b16", 0x8000)))
        return e.select(negative, e.const("b16", 0), bits)

    def function(e: Emitter, value: Value) -> Value:
        b = e.builder
        parts = [half(e, b.and_(value, e.const("b16", 0xFF))), half(e, b.lshr(value, e.const("b16", 8)))]
        low, high = (positive(e, p) if relu else p for p in parts)
        return b.or_(e.cast("zext", low, "b32"), b.shl(e.cast("zext", high, "b32"), e.const("b32", 16)))

    return function


# ---- integers with a carry: one definition here, since both engines take it


def _product_halves(e: Emitter, x: Value, y: Value, type_: str) -> tuple[Value, Value]:
    """(lower half, upper half) of the double-width product."""
    b = e.builder
    low = b.mul(x, y)
    if type_[1:] == "32":
        extend = "sext" if type_[0] == "s" else "zext"
        wide = b.mul(e.cast(extend, x, "b64"), e.cast(extend, y, "b64"))
        return low, e.cast("trunc", b.lshr(wide, e.const("b64", 32)), "b32")
    mask, half = e.const("b64", 0xFFFFFFFF), e.const("b64", 32)
    xl, xh, yl, yh = b.and_(x, mask), b.lshr(x, half), b.and_(y, mask), b.lshr(y, half)
    middle = b.add(b.mul(xh, yl), b.lshr(b.mul(xl, yl), half))
    second = b.add(b.mul(xl, yh), b.and_(middle, mask))
    high = b.add(b.add(b.mul(xh, yh), b.lshr(middle, half)), b.lshr(second, half))
    if type_[0] == "s":  # a negative factor counted 2^64 too much
        zero = e.const("b64", 0)
        for one, other in ((x, y), (y, x)):
            negative = b.icmp_signed("<", one, zero)
            high = b.sub(high, e.select(negative, other, zero))
    return low, high


def with_carry(operation: str, type_: str, takes: bool, gives: bool, half: str = "") -> Callable:
    """add, sub or mad of u32, s32, u64 or s64 that takes the carry (sub: borrow) flag, gives it, or both.

    mad adds to the lower or upper (`half`: "lo", "hi") half of the product. The flag is a predicate: last
    source, second result.
    """
    bits = f"b{type_[1:]}"

    def function(e: Emitter, *values: Value):
        b = e.builder
        carry = e.cast("zext", values[-1], bits) if takes else None
        if operation == "mad":
            low, high = _product_halves(e, values[0], values[1], type_)
            x, y = (low if half == "lo" else high), values[2]
        else:
            x, y = values[0], values[1]
        if operation == "sub":
            first = b.sub(x, y)
            flag = b.icmp_unsigned("<", x, y)
            result = b.sub(first, carry) if takes else first
            if takes:
                flag = b.or_(flag, b.icmp_unsigned("<", first, carry))
        else:
            first = b.add(x, y)
            flag = b.icmp_unsigned("<", first, x)
            result = b.add(first, carry) if takes else first
            if takes:
                flag = b.or_(flag, b.icmp_unsigned("<", result, first))
        return (result, flag) if gives else result

    return function


# ---- bit patterns


def bit_mask(wrap: bool) -> Callable:
    """bmsk: as many bits as b says from bit a on. clamp: 0 from bit 32 on, all of them for 32 and more."""

    def function(e: Emitter, at: Value, width: Value) -> Value:
        b = e.builder
        low, ones, zero = e.const("b32", 31), e.const("b32", -1), e.const("b32", 0)
        start, length = b.and_(at, low), b.and_(width, low)
        end = b.add(start, length)
        above = b.shl(ones, start)
        beyond = b.shl(ones, b.and_(end, low))
        over = b.icmp_unsigned(">=", end, e.const("b32", 32))
        if not wrap:
            over = b.or_(over, b.icmp_unsigned(">=", width, e.const("b32", 32)))
            above = e.select(b.icmp_unsigned(">=", at, e.const("b32", 32)), zero, above)
        beyond = e.select(b.icmp_unsigned("==", length, zero), ones, beyond)
        return b.and_(above, b.not_(e.select(over, zero, beyond)))

    return function


def extend_bits(signed: bool, wrap: bool) -> Callable:
    """szext: the low b bits of a, extended by their sign or by zeros; b modulo 32 or at most 32."""

    def function(e: Emitter, value: Value, width: Value) -> Value:
        b = e.builder
        zero, most = e.const("b32", 0), e.const("b32", 32)
        if wrap:
            width = b.and_(width, e.const("b32", 31))
        else:
            width = e.select(b.icmp_unsigned(">", width, most), most, width)
        none = b.icmp_unsigned("==", width, zero)
        shift = b.sub(most, e.select(none, most, width))
        shift = e.select(none, zero, shift)
        moved = b.shl(value, shift)
        back = (b.ashr if signed else b.lshr)(moved, shift)
        return e.select(none, zero, back)

    return function


def dot_two(signed_a: bool, signed_b: bool, high: bool) -> Callable:
    """dp2a: two 16-bit elements of a times two bytes of b (its lower or upper half), added to c."""

    def function(e: Emitter, x: Value, y: Value, total: Value) -> Value:
        b = e.builder
        for part in range(2):
            wide = b.lshr(x, e.const("b32", 16 * part))
            byte = b.lshr(y, e.const("b32", 8 * (part + 2 * high)))
            wide = e.cast("sext" if signed_a else "zext", e.cast("trunc", wide, "b16"), "b32")
            byte = e.cast("sext" if signed_b else "zext", e.cast("trunc", byte, "b8"), "b32")
            total = b.add(total, b.mul(wide, byte))
        return total

    return function


# ---- arrays

DTYPES = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "pred": np.dtype(np.bool_),
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"{k}{bits}": np.dtype(f"u{bits // 8}") for k in "bu" for bits in (8, 16, 32, 64)},
    **{"f16": np.dtype("u2"), "bf16": np.dtype("u2"), "f16x2": np.dtype("u4"), "bf16x2": np.dtype("u4")},
    **{"tf32": np.dtype("u4"), "e4m3x2": np.dtype("u2"), "e5m2x2": np.dtype("u2")},
}
_LANES = 16


@functools.cache
def _target() -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = llvm.Target.from_triple(llvm.get_process_triple())
    features = llvm.get_host_cpu_features().flatten()
    return triple.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=2, jit=True)


_engines: list[llvm.ExecutionEngine] = []  # own the machine code for the life of the process


# An array's data pointer follows the object header (PyArrayObject, NumPy's stable C interface). Reading it in
# the machine code saves more time per call than the arithmetic of a few thousand lanes takes.
_DATA_FIELD = object.__basicsize__
_probe = np.zeros(1)
if ctypes.c_void_p.from_address(id(_probe) + _DATA_FIELD).value != _probe.ctypes.data:
    raise ImportError("this NumPy keeps an array's data pointer elsewhere than its C interface says")


def _build(function: Callable, results: tuple[str, ...], sources: tuple[str, ...], varies: tuple[bool, ...]):
    """Machine code of `void f(i64 n, result array..., source array...)`, arrays being NumPy objects.

    Sources that do not vary are read at their first element.
    """
    module = ir.Module("vector_math")
    module.triple = llvm.get_process_triple()
    names = (*results, *sources)
    word = ir.IntType(64)
    memory = {n: ir.IntType(8) if n == "pred" else _SCALAR[n] for n in names}
    code = ir.Function(module, ir.FunctionType(ir.VoidType(), [word] * (1 + len(names))), "f")
    count, *objects = code.args
    entry, wide_head, wide_body, head, body, done = (
        code.append_basic_block(n) for n in ("entry", "wide_head", "wide_body", "head", "body", "done")
    )
    start = ir.IRBuilder(entry)
    pointers = []
    for name, array in zip(names, objects, strict=True):
        field = start.inttoptr(start.add(array, word(_DATA_FIELD)), word.as_pointer())
        pointers.append(start.inttoptr(start.load(field), memory[name].as_pointer()))
    fixed = {k: start.load(pointers[len(results) + k]) for k, moves in enumerate(varies) if not moves}
    start.branch(wide_head)

    def step(builder: ir.IRBuilder, index: ir.Value, lanes: int | None) -> None:
        e = Emitter(builder, lanes)
        values = []
        for k, name in enumerate(sources):
            if varies[k]:
                at = builder.gep(pointers[len(results) + k], [index])
                if lanes:
                    at = builder.bitcast(at, ir.VectorType(memory[name], lanes).as_pointer())
                value = builder.load(at, align=memory_bytes(name))
            else:
                value = fixed[k]
                if lanes:
                    vector = ir.VectorType(memory[name], lanes)
                    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
                    mask = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
                    value = builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), mask)
            if name == "pred":
                value = builder.icmp_unsigned(
                    "!=", value, ir.Constant(value.type, [0] * lanes if lanes else 0)
                )
            values.append(value)
        made = function(e, *values)
        for k, (name, value) in enumerate(
            zip(results, made if isinstance(made, tuple) else (made,), strict=True)
        ):
            if name == "pred":
                value = builder.zext(value, ir.VectorType(memory[name], lanes) if lanes else memory[name])
            at = builder.gep(pointers[k], [index])
            if lanes:
                at = builder.bitcast(at, ir.VectorType(memory[name], lanes).as_pointer())
            builder.store(value, at, align=memory_bytes(name))

    def memory_bytes(name: str) -> int:
        return DTYPES[name].itemsize

    def loop(head_block, body_block, exit_block, before, initial, lanes):
        builder = ir.IRBuilder(head_block)
        index = builder.phi(word)
        following = builder.add(index, word(lanes or 1))
        builder.cbranch(builder.icmp_unsigned("<=", following, count), body_block, exit_block)
        index.add_incoming(initial, before)
        inner = ir.IRBuilder(body_block)
        step(inner, index, lanes)
        inner.branch(head_block)
        index.add_incoming(following, inner.block)
        return index

    index = loop(wide_head, wide_body, head, entry, word(0), _LANES)
    loop(head, body, done, wide_head, index, None)
    ir.IRBuilder(done).ret_void()
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    engine = llvm.create_mcjit_compiler(parsed, _target())
    engine.finalize_object()
    _engines.append(engine)
    address = engine.get_function_address("f")
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * (1 + len(names)))(address)


def compiled(function: Callable, results: tuple[str, ...], sources: tuple[str, ...]) -> Callable:
    """The emitted function as one over NumPy arrays of equal length (or length 1, which repeats).

    results and sources are PTX types; arrays have their `DTYPES` and must be contiguous.
    """
    built: dict[tuple[bool, ...], Callable] = {}
    out_types = [DTYPES[r] for r in results]

    def call(*arrays: np.ndarray):
        n = max(a.size for a in arrays)
        varies = tuple(a.size == n for a in arrays)
        code = built.get(varies)
        if code is None:
            code = built[varies] = _build(function, results, sources, varies)
        made = [np.empty(n, t) for t in out_types]
        code(n, *map(id, made), *map(id, arrays))
        return made[0] if len(made) == 1 else tuple(made)

    return call
