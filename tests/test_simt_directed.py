"""f64 rounded in a direction, on both engines, to the ends of the range: exact fractions decide."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np
import pytest
from simt_helpers import kernel_text, run

from labs_common.simt import llvm_ops, ops
from labs_common.simt.memory import WINDOW

GREATEST = float(np.finfo(np.float64).max)
OPERANDS = {"add": 2, "sub": 2, "mul": 2, "div": 2, "rcp": 1, "sqrt": 1, "fma": 3}
EDGES = [
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    1.0,
    -1.0,
    5e-324,
    -5e-324,
    GREATEST,
    -GREATEST,
    2.0**-1022,
]
# biased exponents about which underflow, overflow and a method's own scaling begin
EXPONENTS = [0, 1, 2, 53, 100, 423, 523, 623, 923, 1023, 1075, 1423, 1623, 2013, 2023, 2045, 2046]
ROUNDINGS = ("rz", "rm", "rp")
COUNT = 256


def operands(rng: np.random.Generator) -> np.ndarray:
    """Edges, any bits, numbers at awkward exponents, and numbers near 1."""
    anything = np.frombuffer(rng.bytes(8 * COUNT), np.uint64)
    exponent = np.clip(rng.choice(EXPONENTS, COUNT) + rng.integers(-3, 4, COUNT), 0, 2046).astype(np.uint64)
    fraction = np.where(rng.random(COUNT) < 0.5, rng.choice([0, 1, 2**51, 2**52 - 1], COUNT), anything >> 12)
    sign = rng.integers(0, 2, COUNT).astype(np.uint64) << np.uint64(63)
    awkward = exponent << np.uint64(52) | fraction.astype(np.uint64) | sign
    near = rng.standard_normal(COUNT).view(np.uint64)
    bits = np.concatenate([np.repeat(np.array(EDGES).view(np.uint64), 8), anything, awkward, awkward, near])
    return rng.permutation(bits).view(np.float64)


def cancelling(operation: str, values: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """A third of the lanes with a last operand that leaves little or nothing of the others."""
    third = len(values[0]) // 3
    with np.errstate(all="ignore"):
        opposite = {
            "add": lambda a, b: -a,
            "sub": lambda a, b: a,
            "fma": lambda a, b, c: -(a * b),
            "div": lambda a, b: a,
        }.get(operation)
        if opposite is None:
            return values
        last = opposite(*values)[:third].view(np.int64) + rng.integers(-2, 3, third)
    return [*values[:-1], np.concatenate([last.view(np.float64), values[-1][third:]])]


def rounded(x: Fraction, mode: str) -> float:
    """An exact number other than 0 rounded to f64."""
    sign, size = (1 if x > 0 else -1), abs(x)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent = max(exponent - (size < Fraction(2) ** exponent), -1022)
    quantum = Fraction(2) ** (exponent - 52)
    steps = size / quantum
    whole = steps.numerator // steps.denominator
    away = (mode == "rp") == (x > 0) and mode != "rz"
    value = (whole + (away and whole != steps)) * quantum
    if value > GREATEST:
        return sign * (math.inf if away else GREATEST)
    return math.copysign(float(value), sign)


def square_root(x: Fraction, mode: str) -> float:
    """1200 bits of the root behind the point; a little is added where more follow."""
    root = Fraction(math.isqrt((x.numerator << 2400) // x.denominator), 1 << 1200)
    return rounded(root if root * root == x else root + Fraction(1, 1 << 1210), mode)


def exact_zero(operation: str, mode: str, values: list[float]) -> float:
    """The sign of an exact zero: the factors', or that of equal terms; of opposite ones by the direction."""
    signs = [math.copysign(1.0, v) for v in values]
    if operation in ("mul", "div"):
        return math.copysign(0.0, math.prod(signs))
    first = signs[0] * signs[1] if operation == "fma" else signs[0]
    second = -signs[-1] if operation == "sub" else signs[-1]
    if first == second:
        return math.copysign(0.0, first)
    return -0.0 if mode == "rm" else 0.0


def expected(operation: str, mode: str, values: list[float]) -> float | None:
    """The result, or None where it is the same in every direction: of infinities, NaN and zero divisors."""
    if not all(map(math.isfinite, values)) or (operation in ("div", "rcp") and values[-1] == 0):
        return None
    f = [Fraction(v) for v in values]
    if operation == "sqrt":
        if values[0] <= 0:
            return values[0] if values[0] == 0 else None
        return square_root(f[0], mode)
    exact = {
        "add": lambda: f[0] + f[1],
        "sub": lambda: f[0] - f[1],
        "mul": lambda: f[0] * f[1],
        "div": lambda: f[0] / f[1],
        "rcp": lambda: 1 / f[0],
        "fma": lambda: f[0] * f[1] + f[2],
    }[operation]()
    return rounded(exact, mode) if exact else exact_zero(operation, mode, values)


def results(operation: str, values: list[np.ndarray], engine: str) -> dict[str, np.ndarray]:
    """rn and the three directions, of one kernel."""
    modes, count = ("rn", *ROUNDINGS), len(values)
    lines = ["mov.u32 %r2, %ntid.x;\nmad.lo.u32 %r3, %r1, %r2, %r0;\nmul.wide.u32 %d20, %r3, 8;"]
    for k in range(count + 4):
        lines.append(f"add.u64 %d{21 + k}, %d{k}, %d20;")
    lines += [f"ld.global.f64 %g{k}, [%d{21 + k}];" for k in range(count)]
    sources = ", ".join(f"%g{k}" for k in range(count))
    for k, mode in enumerate(modes):
        lines.append(f"{operation}.{mode}.f64 %g{10 + k}, {sources};")
        lines.append(f"st.global.f64 [%d{21 + count + k}], %g{10 + k};")
    text = kernel_text("\n".join([*lines, "ret;"]), count + 4)
    out = [np.zeros_like(values[0]) for _ in modes]
    made, _ = run(text, *values, *out, block=32, grid=len(values[0]) // 32, engine=engine)
    return dict(zip(modes, made[count:], strict=True))


@functools.cache
def case(operation: str) -> tuple[list[np.ndarray], dict[str, dict[str, np.ndarray]]]:
    """Operands, and what both engines make of them."""
    rng = np.random.default_rng(len(operation) + OPERANDS[operation])
    values = cancelling(operation, [operands(rng) for _ in range(OPERANDS[operation])], rng)
    return values, {engine: results(operation, values, engine) for engine in ("numpy", "llvm")}


@pytest.mark.parametrize("operation", OPERANDS)
def test_every_direction_is_the_exact_result_rounded_once(operation):
    values, made = case(operation)

    for engine, by_mode in made.items():
        for mode in ROUNDINGS:
            for *lane, got in zip(*(v.tolist() for v in (*values, by_mode[mode])), strict=True):
                wanted = expected(operation, mode, lane)
                if wanted is not None:
                    same = got == wanted and math.copysign(1, got) == math.copysign(1, wanted)
                    assert same, (engine, operation, mode, [v.hex() for v in lane], got, wanted)


@pytest.mark.parametrize("operation", OPERANDS)
def test_engines_agree_and_special_values_are_those_of_the_nearest(operation):
    values, made = case(operation)

    for mode in ROUNDINGS:
        one, other = (made[engine][mode] for engine in ("numpy", "llvm"))
        assert ((one.view(np.uint64) == other.view(np.uint64)) | np.isnan(one) & np.isnan(other)).all()
        for *lane, got, nearest in zip(
            *(v.tolist() for v in (*values, one, made["numpy"]["rn"])), strict=True
        ):
            if expected(operation, mode, lane) is None:
                assert got == nearest or (math.isnan(got) and math.isnan(nearest))


def test_every_row_of_the_table_has_machine_code():
    lacking = [row.name for row in ops.table() if llvm_ops.emitter(row, WINDOW) is None]

    assert lacking == []
