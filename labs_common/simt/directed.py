"""f64 arithmetic rounded towards zero, down or up: the nearest f64, moved where the exact value says so.

Lane after lane in exact fractions: kernels that ask for it do so in a handful of places. There is no machine
code for these rows, so such a kernel runs on the NumPy engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from . import vector_math as vm

_GREATEST = math.ldexp(1 - 2.0**-53, 1024)


def _above(operation: str, values: list[float], nearest: float) -> int:
    """The sign of (exact value - nearest), nearest finite."""
    exact = [Fraction(v) for v in values]
    rounded = Fraction(nearest)
    if operation == "sqrt":
        difference = exact[0] - rounded * rounded
    elif operation in ("div", "rcp"):
        top, bottom = exact if operation == "div" else (Fraction(1), exact[0])
        difference = top / bottom - rounded
    elif operation == "fma":
        difference = exact[0] * exact[1] + exact[2] - rounded
    elif operation == "mul":
        difference = exact[0] * exact[1] - rounded
    else:
        difference = exact[0] + (exact[1] if operation == "add" else -exact[1]) - rounded
    return (difference > 0) - (difference < 0)


def _moved(operation: str, rounding: str, values: list[float], nearest: float) -> float:
    if math.isnan(nearest) or not all(math.isfinite(v) for v in values):
        return nearest
    if math.isinf(nearest):
        if operation in ("div", "rcp") and values[-1] == 0:
            return nearest  # exactly infinite
        inward = rounding == "rz" or (rounding == "rm") == (nearest > 0)
        return math.copysign(_GREATEST, nearest) if inward else nearest
    side = _above(operation, values, nearest)
    if side == 0:
        return _signed_zero(operation, rounding, values) if nearest == 0 else nearest
    negative = nearest < 0 or (nearest == 0 and side < 0)
    down = rounding == "rm" or (rounding == "rz" and not negative)
    if down == (side > 0):
        return nearest
    moved = math.nextafter(nearest, -math.inf if down else math.inf)
    return math.copysign(moved, nearest) if moved == 0 else moved


def _signed_zero(operation: str, rounding: str, values: list[float]) -> float:
    """An exact zero: of two opposite terms it is -0 when rounding down, +0 else (IEEE 754, 6.3)."""
    signs = [math.copysign(1.0, v) for v in values]
    if operation in ("mul", "div"):
        return math.copysign(0.0, signs[0] * signs[1])
    if operation in ("sqrt", "rcp"):
        return math.copysign(0.0, signs[0])
    first = signs[0] * signs[1] if operation == "fma" else signs[0]
    second = -signs[1] if operation == "sub" else signs[-1]
    if first == second:
        return math.copysign(0.0, first)
    return -0.0 if rounding == "rm" else 0.0


def arithmetic(operation: str, rounding: str) -> Callable:
    """add, sub, mul, fma, div, rcp or sqrt of f64 arrays with rounding rz, rm or rp."""
    count = {"fma": 3, "rcp": 1, "sqrt": 1}.get(operation, 2)
    nearest = vm.compiled(vm.arithmetic(operation, "f64"), ("f64",), ("f64",) * count)

    def function(*arrays: np.ndarray) -> np.ndarray:
        rounded = nearest(*arrays)
        lanes = [np.broadcast_to(a, rounded.size).tolist() for a in arrays]
        made = [
            _moved(operation, rounding, list(values), r)
            for *values, r in zip(*lanes, rounded.tolist(), strict=True)
        ]
        return np.array(made)

    return function
