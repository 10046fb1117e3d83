"""f64 arithmetic rounded towards zero, down or up, as LLVM IR for both engines.

There is no wider format to compute in. So the result rounded to nearest is taken, and its error, of which
only the sign matters: where the exact value lies on the side that the rounding wants, the result moves by one
step. The errors come from error-free transformations (Dekker's sum; products by fma; for fma: Boldo and
Muller, IEEE Trans. Computers 60, 2011). They are exact as long as nothing under- or overflows on the way:
operands near the ends of the exponents' range are scaled by powers of two first.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from . import vector_math as vm
from .vector_math import Emitter, Value

_GREATEST = math.ldexp(1 - 2.0**-53, 1024)
_UP = 2.0**600  # what small operands are scaled by
_DOWN = 2.0**-60  # what great operands are scaled by


def _number(e: Emitter, value: float) -> Value:
    return e.const("f64", value)


def _below(e: Emitter, value: Value, limit: float) -> Value:
    """Whether the magnitude is less than a limit."""
    return e.builder.fcmp_ordered("<", e.intrinsic("fabs", value), _number(e, limit))


def _scaled(e: Emitter, where: Value, value: Value, *factors: float) -> Value:
    """value times the factors, one after the other, where a condition holds."""
    product = value
    for factor in factors:
        product = e.builder.fmul(product, _number(e, factor))
    return e.select(where, product, value)


def _two_sum(e: Emitter, x: Value, y: Value) -> tuple[Value, Value]:
    """x + y and its exact error (Dekker, the greater one first: no intermediate result overflows)."""
    b = e.builder
    swap = b.fcmp_ordered("<", e.intrinsic("fabs", x), e.intrinsic("fabs", y))
    great, small = e.select(swap, y, x), e.select(swap, x, y)
    total = b.fadd(great, small)
    return total, b.fsub(small, b.fsub(total, great))


def _product_error(e: Emitter, x: Value, y: Value, nearest: Value) -> Value:
    """x y - nearest; the error of a small product would underflow."""
    small = _below(e, nearest, 2.0**-900)
    x, y = _scaled(e, small, x, _UP), _scaled(e, small, y, _UP)
    return e.intrinsic("fma", x, y, e.builder.fneg(_scaled(e, small, nearest, _UP, _UP)))


def _quotient_error(e: Emitter, top: Value, bottom: Value, nearest: Value) -> Value:
    """Has the sign of top / bottom - nearest."""
    b = e.builder
    small = b.and_(_below(e, top, 2.0**-500), _below(e, bottom, 2.0**400))
    top, bottom = _scaled(e, small, top, _UP), _scaled(e, small, bottom, _UP)
    remainder = e.intrinsic("fma", b.fneg(nearest), bottom, top)
    return e.select(b.fcmp_ordered("<", bottom, _number(e, 0.0)), b.fneg(remainder), remainder)


def _root_error(e: Emitter, x: Value, nearest: Value) -> Value:
    """Has the sign of sqrt(x) - nearest."""
    small = _below(e, x, 2.0**-500)
    root = _scaled(e, small, nearest, 2.0**300)
    return e.intrinsic("fma", e.builder.fneg(root), root, _scaled(e, small, x, _UP))


def _fma_error(e: Emitter, x: Value, y: Value, z: Value, nearest: Value) -> Value:
    """Has the sign of x y + z - nearest."""
    b = e.builder
    zero = _number(e, 0.0)
    product = b.fmul(x, y)
    tiny = _below(e, product, 2.0**-900)
    # a tiny product beside a z that is not: nearest is z, and the product decides
    beside = b.and_(tiny, b.fcmp_unordered(">=", e.intrinsic("fabs", z), _number(e, 2.0**-700)))
    great = b.or_(
        b.fcmp_unordered(">=", e.intrinsic("fabs", product), _number(e, 2.0**990)),
        b.fcmp_unordered(">=", e.intrinsic("fabs", z), _number(e, 2.0**990)),
    )
    # of a z below all bits of a great product only the sign matters; scaling must not lose it
    least = e.intrinsic("copysign", _number(e, 2.0**-500), z)
    raise_ = b.and_(great, b.and_(_below(e, z, 2.0**-500), b.fcmp_ordered("!=", z, zero)))
    lost = e.select(raise_, least, z)
    x_great = b.fcmp_ordered(">=", e.intrinsic("fabs", x), e.intrinsic("fabs", y))
    y_great = b.fcmp_ordered("<", e.intrinsic("fabs", x), e.intrinsic("fabs", y))
    p = _scaled(e, b.and_(great, x_great), _scaled(e, tiny, x, _UP), _DOWN)
    q = _scaled(e, b.and_(great, y_great), _scaled(e, tiny, y, _UP), _DOWN)
    addend = _scaled(e, great, _scaled(e, tiny, lost, _UP, _UP), _DOWN)
    near = _scaled(e, great, _scaled(e, tiny, nearest, _UP, _UP), _DOWN)
    high = b.fmul(p, q)
    low = e.intrinsic("fma", p, q, b.fneg(high))
    middle, rest = _two_sum(e, addend, low)
    total, more = _two_sum(e, high, middle)
    error = b.fadd(b.fadd(b.fsub(total, near), more), rest)
    sign = e.intrinsic("copysign", _number(e, 1.0), x)  # the product's, for a positive y
    negative = b.fcmp_ordered("<", y, zero)
    error = e.select(beside, e.select(negative, b.fneg(sign), sign), error)
    some = b.and_(b.fcmp_ordered("!=", x, zero), b.fcmp_ordered("!=", y, zero))
    return e.select(some, error, zero)


def _error(e: Emitter, operation: str, values: tuple[Value, ...], nearest: Value) -> Value:
    """A value with the sign of (exact result - nearest), where nearest is finite."""
    if operation == "fma":
        return _fma_error(e, *values, nearest)
    if operation == "mul":
        return _product_error(e, *values, nearest)
    if operation == "sqrt":
        return _root_error(e, values[0], nearest)
    if operation in ("div", "rcp"):
        top, bottom = values if operation == "div" else (_number(e, 1.0), values[0])
        return _quotient_error(e, top, bottom, nearest)
    second = e.builder.fneg(values[1]) if operation == "sub" else values[1]
    return _two_sum(e, values[0], second)[1]


def _overflowed(e: Emitter, operation: str, values: tuple[Value, ...]) -> Value:
    """Whether an infinite result is one of finite operands, and no division by zero."""
    b = e.builder
    finite = [_below(e, v, math.inf) for v in values]
    if operation in ("div", "rcp"):
        finite.append(b.fcmp_ordered("!=", values[-1], _number(e, 0.0)))
    result = finite[0]
    for condition in finite[1:]:
        result = b.and_(result, condition)
    return result


def arithmetic(operation: str, rounding: str) -> Callable:
    """add, sub, mul, fma, div, rcp or sqrt of f64 with rounding rz, rm or rp: function(e, *values)."""
    nearest_of = vm.arithmetic(operation, "f64")

    def function(e: Emitter, *values: Value) -> Value:
        b = e.builder
        zero, infinity = _number(e, 0.0), _number(e, math.inf)
        nearest = nearest_of(e, *values)
        error = _error(e, operation, values, nearest)
        above, below = b.fcmp_ordered(">", error, zero), b.fcmp_ordered("<", error, zero)
        bits = e.cast("bitcast", nearest, "b64")
        negative = b.icmp_unsigned("!=", b.lshr(bits, e.const("b64", 63)), e.const("b64", 0))
        positive = b.icmp_unsigned("==", b.lshr(bits, e.const("b64", 63)), e.const("b64", 0))
        # towards zero takes 1 from the bits, away from zero adds 1
        inward = b.or_(b.and_(negative, above), b.and_(positive, below))
        outward = b.or_(b.and_(negative, below), b.and_(positive, above))
        smaller, larger = (e.cast("bitcast", b.add(bits, e.const("b64", step)), "f64") for step in (-1, 1))
        shrinks = {"rz": None, "rm": positive, "rp": negative}[rounding]
        if shrinks is None:
            result = e.select(inward, smaller, nearest)
            cut = _number(e, _GREATEST)
        else:
            result = e.select(b.and_(shrinks, inward), smaller, nearest)
            result = e.select(b.and_(b.not_(shrinks), outward), larger, result)
            cut = e.select(shrinks, _number(e, _GREATEST), infinity)
        result = e.select(_below(e, nearest, math.inf), result, nearest)
        infinite = b.fcmp_ordered("==", e.intrinsic("fabs", nearest), infinity)
        over = b.and_(infinite, _overflowed(e, operation, values))
        result = e.select(over, e.intrinsic("copysign", cut, nearest), result)
        if rounding == "rm" and operation in ("add", "sub", "fma"):
            exact = b.fcmp_ordered("==", error, zero)
            result = e.select(exact, vm.zero_sign(e, result, list(values), operation, rounding), result)
        return result

    return function
