"""Every row of the opcode table against arithmetic done elsewhere: Python integers, exact fractions, math."""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simt_helpers import kernel_text, run

from labs_common.simt import ops
from labs_common.simt import vector_math as vm
from labs_common.simt.memory import WINDOW
from labs_common.simt.vector_math import DTYPES

ROWS = list(ops.table())
FORMATS = {"f16": (11, -14, 15), "bf16": (8, -126, 127), "tf32": (11, -126, 127), "f32": (24, -126, 127),
           "f64": (53, -1022, 1023)}  # fmt: skip
TINY = Fraction(1, 2**126)  # least normal f32


# ---- what a bit pattern means, and the bit pattern of an exact number


def decode(bits: int, type_: str):
    """A float's exact value as Fraction, or a float inf/nan; -0 is the float -0.0."""
    if type_ == "f64":
        value = struct.unpack("<d", struct.pack("<Q", bits))[0]
    elif type_ in ("f32", "tf32"):
        value = struct.unpack("<f", struct.pack("<I", bits))[0]
    elif type_ == "f16":
        value = struct.unpack("<e", struct.pack("<H", bits))[0]
    else:
        value = struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    if math.isnan(value) or math.isinf(value) or (value == 0 and math.copysign(1, value) < 0):
        return value
    return Fraction(value)


def rounded(x: Fraction, type_: str, mode: str = "rn"):
    """An exact number rounded to a format."""
    if x == 0:
        return x
    precision, least, most = FORMATS[type_]
    size = abs(x)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    exponent = max(exponent, least)
    quantum = Fraction(2) ** (exponent - precision + 1)
    result = integral(x / quantum, mode) * quantum
    greatest = (2 - Fraction(2) ** (1 - precision)) * Fraction(2) ** most
    if abs(result) > greatest:
        away = {"rn": True, "rna": True, "rz": False, "rm": x < 0, "rp": x > 0}[mode]
        return (math.inf if away else greatest) * (1 if x > 0 else -1)
    return result


def integral(x: Fraction, mode: str) -> int:
    """Rounded to a whole number."""
    low = x.numerator // x.denominator
    if mode == "rm" or low == x:
        return low
    if mode == "rp":
        return low + 1
    if mode == "rz":
        return low if x > 0 else low + 1
    rest = x - low
    if rest != Fraction(1, 2):
        return low + (rest > Fraction(1, 2))
    if mode == "rna":
        return low + 1 if x > 0 else low
    return low + low % 2


def special(x) -> bool:
    return isinstance(x, float) and (math.isnan(x) or math.isinf(x))


def exact(x) -> Fraction:
    return Fraction(0) if isinstance(x, float) and x == 0 else x


def flushed(x, ftz: bool):
    if not ftz or special(x) or abs(exact(x)) >= TINY:
        return x
    return -0.0 if x < 0 or (isinstance(x, float) and math.copysign(1, x) < 0) else Fraction(0)


def same(bits: int, type_: str, expected) -> bool:
    """Whether a result is the expected number; NaNs are alike, and zeros (their signs: see below)."""
    got = decode(bits, type_)
    if isinstance(expected, float) and math.isnan(expected):
        return isinstance(got, float) and math.isnan(got)
    if special(got) or special(expected):
        return got == expected
    return exact(got) == exact(expected)


# ---- operands


def floats(type_: str, seed: int, count: int) -> np.ndarray:
    """Bit patterns: the awkward ones first, then random ones of moderate and of any size."""
    width = 8 * ops.TYPE_BYTES[type_]
    precision, least, most = FORMATS[type_]
    fraction = precision - 1
    one = (-least + 1) << fraction
    top = 1 << (width - 1)
    inf = (most - least + 2) << fraction
    edge = [
        0,
        1,
        (1 << fraction) - 1,
        1 << fraction,
        (1 << fraction) + 1,
        one,
        one + 1,
        one - 1,
        one + (1 << fraction),
    ]
    edge += [
        one - (1 << fraction),
        inf - 1,
        inf,
        inf | 1 << (fraction - 1),
        one | 1 << (fraction - 1),
        one + 3,
    ]
    rng = np.random.default_rng(seed)
    near = rng.integers(one - (8 << fraction), one + (8 << fraction), count, dtype=np.int64, endpoint=True)
    near = [int(v) | (top if rng.random() < 0.5 else 0) for v in np.clip(near, 1, inf - 1)]
    anything = [int(v) & (2 * top - 1) for v in rng.integers(0, 2**63, count // 2, dtype=np.int64) * 2 + 1]
    bits = edge + [e | top for e in edge] + near + anything
    return rng.permutation(np.array(bits, np.uint64)).astype(f"u{width // 8}")


def integers(type_: str, seed: int, count: int) -> np.ndarray:
    width = 8 * ops.TYPE_BYTES[type_]
    rng = np.random.default_rng(seed)
    edge = [0, 1, 2, 3, 31, 32, 33, 63, 64, 255, (1 << width) - 1, (1 << width) - 2, 1 << (width - 1)]
    edge += [(1 << (width - 1)) - 1, (1 << (width // 2)) - 1, 1 << (width // 2), 0x5A5A5A5A5A5A5A5A]
    bits = edge + [int(v) * 2 + int(v) % 3 for v in rng.integers(0, 2**62, count)]
    bits += [int(v) for v in rng.integers(0, 70, count)]
    return rng.permutation(np.array([b & ((1 << width) - 1) for b in bits], np.uint64)).astype(
        f"u{width // 8}"
    )


def operand(type_: str, seed: int, count: int = 60) -> np.ndarray:
    """An array in the dtype that the table wants."""
    if type_ == "pred":
        return np.random.default_rng(seed).random(count) < 0.5
    if type_ in ("f16x2", "bf16x2"):
        low, high = (floats(type_[:-2], seed + k, count).astype(np.uint32) for k in (0, 100))
        return low | high << np.uint32(16)
    if type_ in ("f16", "bf16"):
        return floats(type_, seed, count)
    bits = floats(type_, seed, count) if type_ in ("f32", "f64") else integers(type_, seed, count)
    return bits.view(DTYPES[type_])


def arrays(row: ops.Operation) -> list[np.ndarray]:
    made = [operand(t, 11 * k + 1) for k, t in enumerate(row.sources)]
    n = min(len(a) for a in made)
    return [np.ascontiguousarray(a[:n]) for a in made]


def bits_of(array: np.ndarray) -> list[int]:
    if array.dtype == np.bool_:
        return [int(v) for v in array]
    return array.view(f"u{array.dtype.itemsize}").tolist()


def lanes(row: ops.Operation):
    """[(source bit patterns), (result bit patterns)] of each lane."""
    sources = arrays(row)
    with np.errstate(all="ignore"):
        made = row.numpy(*sources)
    results = made if isinstance(made, tuple) else (made,)
    for type_, result in zip(row.results, results, strict=True):
        assert result.dtype == DTYPES[type_] or (result.dtype.itemsize == DTYPES[type_].itemsize), row.name
    return list(
        zip(zip(*map(bits_of, sources), strict=True), zip(*map(bits_of, results), strict=True), strict=True)
    )


def rows(*opcodes: str, floating: bool | None = None) -> list[ops.Operation]:
    chosen = [r for r in ROWS if r.name.split(".")[0] in opcodes]
    if floating is not None:
        chosen = [r for r in chosen if (r.sources[0] in ("f32", "f64", *ops.HALVES)) == floating]
    return chosen


def by_name(row: ops.Operation) -> str:
    return row.name


def modifiers(row: ops.Operation) -> list[str]:
    return row.name.split(".")[1:]


# ---- integers


def signed(bits: int, type_: str) -> int:
    width = 8 * ops.TYPE_BYTES[type_]
    return bits - (1 << width) if type_[0] == "s" and bits >> (width - 1) else bits


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def integer_result(row: ops.Operation, values: tuple[int, ...]) -> int:
    """What an integer row gives, in Python integers (before cutting to the result's width)."""
    opcode, mods, type_ = row.name.split(".")[0], modifiers(row), row.sources[0]
    width = 8 * ops.TYPE_BYTES[type_]
    v = [signed(x, t) for x, t in zip(values, row.sources, strict=True)]
    raw = values
    low = (1 << width) - 1
    if opcode in ("add", "sub"):
        total = v[0] + v[1] if opcode == "add" else v[0] - v[1]
        return max(-(2**31), min(2**31 - 1, total)) if "sat" in mods else total
    if opcode in ("mul", "mad"):
        product = v[0] * v[1]
        product = product >> width if "hi" in mods else product
        return product + (v[2] if opcode == "mad" else 0)
    if opcode in ("mul24", "mad24"):
        a, b = (x & 0xFFFFFF for x in raw[:2])
        if type_ == "s32":
            a, b = (x - 2**24 if x >> 23 else x for x in (a, b))
        return (a * b >> (16 if "hi" in mods else 0)) + (v[2] if opcode == "mad24" else 0)
    if opcode == "div":
        return -1 if v[1] == 0 else truncated(v[0], v[1])
    if opcode == "rem":
        return v[0] if v[1] == 0 else v[0] - v[1] * truncated(v[0], v[1])
    if opcode in ("min", "max"):
        return (min if opcode == "min" else max)(v)
    if opcode in ("neg", "abs"):
        return -v[0] if opcode == "neg" else abs(v[0])
    if opcode == "not":
        return ~raw[0] & (1 if type_ == "pred" else low)
    if opcode == "cnot":
        return int(raw[0] == 0)
    if opcode in ("and", "or", "xor"):
        return {"and": raw[0] & raw[1], "or": raw[0] | raw[1], "xor": raw[0] ^ raw[1]}[opcode]
    if opcode == "shl":
        return raw[0] << raw[1] if raw[1] < width else 0
    if opcode == "shr":
        return v[0] >> min(raw[1], width)
    if opcode == "shf":
        both, amount = raw[1] << 32 | raw[0], raw[2] & 31 if "wrap" in mods else min(raw[2], 32)
        return both << amount >> 32 if "l" in mods else both >> amount
    if opcode == "popc":
        return raw[0].bit_count()
    if opcode == "clz":
        return width - raw[0].bit_length()
    if opcode == "brev":
        return int(f"{raw[0]:0{width}b}"[::-1], 2)
    if opcode == "bfind":
        magnitude = ~raw[0] & low if type_[0] == "s" and v[0] < 0 else raw[0]
        if not magnitude:
            return -1
        place = magnitude.bit_length() - 1
        return width - 1 - place if "shiftamt" in mods else place
    if opcode == "bfe":
        at, count, top = raw[1] & 255, raw[2] & 255, width - 1
        sign = 0 if type_[0] == "u" or count == 0 else raw[0] >> min(at + count - 1, top) & 1
        return sum(
            (raw[0] >> (at + k) & 1 if k < count and at + k <= top else sign) << k for k in range(width)
        )
    if opcode == "bfi":
        result = raw[1]
        for k in range(raw[3] & 255):
            place = (raw[2] & 255) + k
            if place < width:
                result = result & ~(1 << place) | (raw[0] >> k & 1 if k < width else 0) << place
        return result
    if opcode == "sad":
        return raw[2] + abs(v[0] - v[1])
    if opcode == "dp4a":

        def byte(x, k, kind):
            value = x >> 8 * k & 255
            return value - 256 if kind == "s32" and value > 127 else value

        return raw[2] + sum(byte(raw[0], k, mods[0]) * byte(raw[1], k, mods[1]) for k in range(4))
    if opcode == "dp2a":
        total = raw[2]
        for k in range(2):
            wide, narrow = raw[0] >> 16 * k & 0xFFFF, raw[1] >> 8 * (k + 2 * (mods[0] == "hi")) & 0xFF
            wide -= 0x10000 if mods[1] == "s32" and wide > 0x7FFF else 0
            narrow -= 0x100 if mods[2] == "s32" and narrow > 0x7F else 0
            total += wide * narrow
        return total
    if opcode == "bmsk":
        start, count = raw[:2] if mods[0] == "clamp" else (raw[0] % 32, raw[1] % 32)
        return sum(1 << k for k in range(start, min(32, start + count)))
    if opcode == "szext":
        count = min(raw[1], 32) if mods[0] == "clamp" else raw[1] % 32
        field = raw[0] & ((1 << count) - 1)
        return field - (1 << count) if type_ == "s32" and count and field >> (count - 1) else field
    if opcode == "selp":
        return raw[0] if raw[2] else raw[1]
    if opcode == "mov" or (opcode == "cvta" and mods[-2] in ("global", "const", "param")):
        return raw[0]
    if opcode == "cvta":
        return raw[0] - WINDOW[mods[-2]] if "to" in mods else raw[0] + WINDOW[mods[-2]]
    raise AssertionError(f"no expectation for {row.name}")


INTEGER_OPCODES = (
    *("add", "sub", "mul", "mad", "mul24", "mad24", "div", "rem", "min", "max", "neg", "abs", "not", "cnot"),
    *("and", "or", "xor", "shl", "shr", "shf", "popc", "clz", "brev", "bfind", "bfe", "bfi", "sad", "dp4a"),
    *("dp2a", "bmsk", "szext"),
    *("selp", "mov", "cvta"),
)


# the rows of f64 with directed rounding are tested with floating point
WHOLE = [
    r
    for r in rows(*INTEGER_OPCODES)
    if (r.emit is None and r.group not in ("fp64", "special")) or r.name[:4] in ("dp2a", "bmsk", "szex")
]


@pytest.mark.parametrize("row", WHOLE, ids=by_name)
def test_integer_rows(row):
    width = 1 if row.results[0] == "pred" else 8 * ops.TYPE_BYTES[row.results[0]]
    for sources, (result,) in lanes(row):
        expected = integer_result(row, sources) & ((1 << width) - 1)
        assert result == expected, f"{row.name} of {[hex(s) for s in sources]}"


@pytest.mark.parametrize("row", rows("setp", "set", floating=False), ids=by_name)
def test_integer_comparisons(row):
    mods = [m for m in modifiers(row) if m not in DTYPES]
    names = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
    for sources, (result,) in lanes(row):
        a, b = (signed(x, row.sources[0]) for x in sources[:2])
        truth = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[
            names.get(mods[0], mods[0])
        ]
        if len(mods) > 1:
            c = bool(sources[2])
            truth = {"and": truth and c, "or": truth or c, "xor": truth != c}[mods[1]]
        one = {"pred": 1, "f32": 0x3F800000}.get(row.results[0], 0xFFFFFFFF)
        assert result == (one if truth else 0), f"{row.name} of {sources}"


@pytest.mark.parametrize("row", [r for r in rows("cvt") if r.emit is None], ids=by_name)
def test_integer_conversions(row):
    to, source = row.results[0], row.sources[0]
    width = 8 * ops.TYPE_BYTES[to]
    low, high = (0, 2**width - 1) if to[0] == "u" else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
    for (bits,), (result,) in lanes(row):
        value = signed(bits, source)
        if "sat" in modifiers(row):
            value = max(low, min(high, value))
        assert result == value & (2**width - 1)


@pytest.mark.parametrize(
    ("a", "b", "selector", "mode", "expected"),
    [  # by hand from the PTX ISA's description of prmt
        (0x33221100, 0x77665544, 0x3210, "", 0x33221100),
        (0x33221100, 0x77665544, 0x7654, "", 0x77665544),
        (0x33221100, 0x77665544, 0x0707, "", 0x00770077),
        (0x80FF1100, 0x0, 0xBA98, "", 0xFFFF0000),
        (0x33221100, 0x77665544, 1, ".f4e", 0x44332211),
        (0x33221100, 0x77665544, 3, ".f4e", 0x66554433),
        (0x33221100, 0x77665544, 1, ".b4e", 0x66770011),
        (0x33221100, 0x77665544, 2, ".rc8", 0x22222222),
        (0x33221100, 0x77665544, 1, ".ecl", 0x33221111),
        (0x33221100, 0x77665544, 2, ".ecr", 0x22221100),
        (0x33221100, 0x77665544, 1, ".rc16", 0x33223322),
    ],
)
def test_byte_permutation(a, b, selector, mode, expected):
    name = f"prmt.b32{mode}"
    row = next(r for r in ROWS if r.name == name)

    result = row.numpy(*(np.array([v], np.uint32) for v in (a, b, selector)))

    assert int(result[0]) == expected


@pytest.mark.parametrize("table", [0x00, 0x80, 0xE8, 0x96, 0xFE, 0xFF, 0x1B])
def test_lop3_is_its_truth_table(table):
    text = kernel_text(
        f"ld.global.v4.u32 {{%r5, %r6, %r7, %r8}}, [%d0];\nlop3.b32 %r9, %r5, %r6, %r7, {table};\n"
        "st.global.u32 [%d0], %r9;\nret;"
    )
    a, b, c = 0xF0F0A55A, 0xCCCC1234, 0xAAAA9876

    (out,), _ = run(text, np.array([a, b, c, 0], np.uint32), block=1)

    expected = sum(
        (table >> ((a >> k & 1) << 2 | (b >> k & 1) << 1 | (c >> k & 1)) & 1) << k for k in range(32)
    )
    assert int(out[0]) == expected


# ---- floating point


def float_result(row: ops.Operation, type_: str, values: list):
    """The exact result of one lane, rounded as the row says."""
    opcode, mods = row.name.split(".")[0], modifiers(row)
    opcode = {"mad": "fma"}.get(opcode, opcode)
    mode = next((m for m in mods if m in ("rn", "rz", "rm", "rp")), "rn")
    ftz = "ftz" in mods
    x = [flushed(v, ftz) for v in values]
    if any(isinstance(v, float) and math.isnan(v) for v in x):
        result = math.nan
    else:
        result = _arithmetic(opcode, x)
        if not special(result):
            result = rounded(result, type_, mode)
    if "sat" in mods:
        if special(result):
            result = Fraction(1) if result == math.inf else Fraction(0)
        else:
            result = max(Fraction(0), min(Fraction(1), result))
    if "relu" in mods and not (isinstance(result, float) and math.isnan(result)):
        result = max(result, Fraction(0))
    return flushed(result, ftz)


def _arithmetic(opcode: str, x: list):
    zero_sign = [math.copysign(1, v) if isinstance(v, float) else 1 if v >= 0 else -1 for v in x]
    plain = [exact(v) for v in x]
    if opcode in ("add", "sub", "mul", "fma") and any(special(v) for v in x):
        y = [
            float(v) if not special(v) and abs(v) < 2**1000 else v if special(v) else math.copysign(1.0, v)
            for v in x
        ]
        y = [math.copysign(2.0, v) if v and not special(v) else v for v in y]  # only the sign matters now
        return {"add": lambda: y[0] + y[1], "sub": lambda: y[0] - y[1], "mul": lambda: y[0] * y[1],
                "fma": lambda: y[0] * y[1] + y[2]}[opcode]()  # fmt: skip
    if opcode in ("add", "sub"):
        return plain[0] + plain[1] if opcode == "add" else plain[0] - plain[1]
    if opcode in ("mul", "fma"):
        return plain[0] * plain[1] + (plain[2] if opcode == "fma" else 0)
    if opcode in ("div", "rcp"):
        top, bottom = (Fraction(1), x[0]) if opcode == "rcp" else x
        signs = zero_sign[-1] * (zero_sign[0] if opcode == "div" else 1)
        if special(bottom):
            return math.nan if special(top) else Fraction(0)
        if special(top):
            return math.inf * signs
        if exact(bottom) == 0:
            return math.nan if exact(top) == 0 else math.inf * signs
        return exact(top) / exact(bottom)
    value = x[0]  # sqrt
    if special(value):
        return value if value > 0 else math.nan
    value = exact(value)
    if value < 0:
        return math.nan
    # 300 exact bits and a sticky one decide every rounding
    scale = 4**300
    root = math.isqrt(value.numerator * scale * 4**300 // value.denominator)
    found = Fraction(root, 2**600)
    return found if found * found == value else found + Fraction(1, 2**610)


EXACT = [
    r
    for r in rows("add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt", floating=True)
    if not {"approx", "full"} & set(modifiers(r))
]


@pytest.mark.parametrize("row", EXACT, ids=by_name)
def test_float_arithmetic_is_rounded_once(row):
    type_ = row.sources[0]
    if type_.endswith("x2"):
        half = type_[:-2]
        for sources, (result,) in lanes(row):
            for shift in (0, 16):
                values = [decode(s >> shift & 0xFFFF, half) for s in sources]
                assert same(result >> shift & 0xFFFF, half, float_result(row, half, values)), row.name
        return
    for sources, (result,) in lanes(row):
        values = [decode(s, type_) for s in sources]
        expected = float_result(row, type_, values)
        assert same(result, type_, expected), f"{row.name} of {[hex(s) for s in sources]}: {result:#x}"


def test_fma_is_not_a_rounded_sum_of_a_rounded_product():
    # the case that a float64 sum gets wrong: 1+2^-23, 2^-24 (1-2^-23), 1+2^-23
    a = np.array([1 + 2.0**-23], np.float32)
    b = np.array([2.0**-24 * (1 - 2.0**-23)], np.float32)
    exact_sum = Fraction(float(a[0])) * Fraction(float(b[0])) + Fraction(float(a[0]))
    fma = next(r for r in ROWS if r.name == "fma.rn.f32")

    result = fma.numpy(a, b, a)

    assert Fraction(float(result[0])) == rounded(exact_sum, "f32")
    assert np.float32(np.float64(a[0]) * np.float64(b[0]) + np.float64(a[0])) != result[0]


@pytest.mark.parametrize(
    ("name", "values", "negative"),
    [
        ("add.f32", (0.0, -0.0), False),
        ("add.f32", (-0.0, -0.0), True),
        ("add.rm.f32", (1.0, -1.0), True),
        ("add.rp.f32", (1.0, -1.0), False),
        ("fma.rm.f32", (1.0, -1.0, 1.0), True),
        ("mul.f32", (-0.0, 5.0), True),
        ("mul.ftz.f32", (-1e-30, 1e-30), True),
        ("add.ftz.f32", (-1e-39, 0.0), False),
        ("add.ftz.f32", (-1e-39, -1e-39), True),
        ("neg.ftz.f32", (1e-39,), True),
        ("abs.ftz.f32", (-1e-39,), False),
        ("sqrt.rn.f32", (-0.0,), True),
        ("min.f32", (0.0, -0.0), True),
        ("max.f32", (-0.0, 0.0), False),
    ],
)
def test_signs_of_zero(name, values, negative):
    row = next(r for r in ROWS if r.name == name)

    result = row.numpy(*(np.array([v], np.float32) for v in values))

    assert result[0] == 0 and bool(np.signbit(result[0])) == negative


@pytest.mark.parametrize("row", [r for r in rows("min", "max") if r.emit], ids=by_name)
def test_min_and_max_prefer_numbers_over_nan(row):
    opcode, mods, kind = row.name.split(".")[0], modifiers(row), row.sources[0]
    half = kind.removesuffix("x2")
    for sources, (result,) in lanes(row):
        for shift in (0, 16) if kind.endswith("x2") else (0,):
            mask = 0xFFFF if kind != half else (1 << 8 * ops.TYPE_BYTES[kind]) - 1
            a, b = (flushed(decode(s >> shift & mask, half), "ftz" in mods) for s in sources)
            nans = [isinstance(v, float) and math.isnan(v) for v in (a, b)]
            if any(nans):
                expected = math.nan if "NaN" in mods or all(nans) else a if nans[1] else b
            else:
                expected = (min if opcode == "min" else max)(a, b)
            assert same(result >> shift & mask, half, expected), f"{row.name} {a} {b}"


def test_min_of_three():
    text = kernel_text(
        "mov.f32 %f1, 0f40400000;\nmov.f32 %f2, 0f3F800000;\nmov.f32 %f3, 0f40000000;\n"
        "min.f32 %f4, %f1, %f2, %f3;\nmax.f32 %f5, %f1, %f2, %f3;\nst.global.v2.f32 [%d0], {%f4, %f5};\nret;"
    )

    (out,), _ = run(text, np.zeros(2, np.float32), block=1)

    assert out.tolist() == [1.0, 3.0]


@pytest.mark.parametrize("row", [r for r in rows("neg", "abs", "copysign") if r.emit], ids=by_name)
def test_sign_operations_work_on_the_sign_bit(row):
    opcode, kind = row.name.split(".")[0], row.sources[0]
    half = kind.removesuffix("x2")
    width = 8 * ops.TYPE_BYTES[half]
    sign, ftz = 1 << (width - 1), "ftz" in modifiers(row)
    for sources, (result,) in lanes(row):
        for shift in range(0, 8 * ops.TYPE_BYTES[kind], width):
            parts = [s >> shift & (2 * sign - 1) for s in sources]
            bits = parts[-1]
            if ftz and 0 < bits & (sign - 1) < 1 << 23:
                bits &= sign
            if opcode == "neg":
                bits ^= sign
            elif opcode == "abs":
                bits &= sign - 1
            else:
                bits = bits & (sign - 1) | parts[0] & sign
            assert result >> shift & (2 * sign - 1) == bits


def compared(name: str, a, b) -> bool:
    unordered = any(isinstance(v, float) and math.isnan(v) for v in (a, b))
    if name in ("num", "nan"):
        return unordered == (name == "nan")
    base = name.removesuffix("u") if name not in ("eq", "ne", "lt", "le", "gt", "ge") else name
    if unordered:
        return name != base
    return {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[base]


COMPARISONS = [
    r for r in rows("setp", "set", floating=True) if not r.name.endswith("x2") or r.results[0] != "pred"
]


@pytest.mark.parametrize(
    "row",
    # the boolean forms share their code: all of them for one comparison, the plain ones for every comparison
    [r for r in COMPARISONS if len(r.sources) == 2 or modifiers(r)[0] == "ltu"],
    ids=by_name,
)
def test_float_comparisons(row):
    mods = modifiers(row)
    kind = row.sources[0]
    half = kind.removesuffix("x2")
    ones = {"pred": 1, "f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80, "f16x2": 0x3C00, "bf16x2": 0x3F80}
    one = ones.get(row.results[0], 0xFFFFFFFF)
    for sources, (result,) in lanes(row):
        for shift in (0, 16) if kind != half else (0,):
            mask = 0xFFFF if kind != half else (1 << 64) - 1
            a, b = (flushed(decode(s >> shift & mask, half), "ftz" in mods) for s in sources[:2])
            truth = compared(mods[0], a, b)
            if len(sources) == 3:
                c = bool(sources[2])
                truth = {"and": truth and c, "or": truth or c, "xor": truth != c}[mods[1]]
            got = result >> shift & mask if kind != half else result
            assert got == (one if truth else 0), f"{row.name} of {a}, {b}"


def test_setp_gives_both_results():
    text = kernel_text(
        "setp.lt.and.u32 %p1|%p2, %r0, 10, %p0;\nsetp.ge.u32 %p3, %r0, 5;\n"
        "setp.lt.and.u32 %p1|%p2, %r0, 10, %p3;\n"
        "selp.u32 %r5, 1, 0, %p1;\nselp.u32 %r6, 2, 0, %p2;\n"
        "add.u32 %r5, %r5, %r6;\nmul.wide.u32 %d5, %r0, 4;\n"
        "add.u64 %d5, %d5, %d0;\nst.global.u32 [%d5], %r5;\nret;"
    )

    (out,), _ = run(text, np.zeros(32, np.uint32))

    assert out.tolist() == [0 if t < 5 else 1 if t < 10 else 2 for t in range(32)]


@pytest.mark.parametrize("row", rows("testp"), ids=by_name)
def test_testp(row):
    kind = row.sources[0]
    least = Fraction(2) ** FORMATS[kind][1]
    for (bits,), (result,) in lanes(row):
        x = decode(bits, kind)
        expected = {
            "finite": not special(x),
            "infinite": special(x) and not math.isnan(x),
            "number": not (special(x) and math.isnan(x)),
            "notanumber": special(x) and math.isnan(x),
            "normal": not special(x) and abs(exact(x)) >= least,
            "subnormal": not special(x) and 0 < abs(exact(x)) < least,
        }[modifiers(row)[0]]
        assert bool(result) == expected


@pytest.mark.parametrize("row", rows("slct"), ids=by_name)
def test_slct(row):
    for (a, b, c), (result,) in lanes(row):
        value = signed(c, "s32") if row.sources[2] == "s32" else decode(c, "f32")
        assert result == (a if value >= 0 else b)


# ---- conversions


def single_modifier(row: ops.Operation) -> bool:
    return len({"ftz", "sat", "relu"} & set(modifiers(row))) <= 1


FP8 = {"e4m3x2", "e5m2x2"}
CONVERSIONS = [r for r in rows("cvt") if r.emit and single_modifier(r) and not FP8 & {*r.results, *r.sources}]


@pytest.mark.parametrize("sources", sorted({r.sources for r in CONVERSIONS}), ids="-".join)
def test_conversions_with_floating_point(sources):
    chosen = [r for r in CONVERSIONS if r.sources == sources]
    for start in range(0, len(chosen), 30):  # one piece of machine code for many rows: they are a thousand
        part = chosen[start : start + 30]

        def emit(e, *values, part=part):
            return tuple(row.emit(e, *values) for row in part)

        function = vm.compiled(emit, tuple(r.results[0] for r in part), sources)
        given_values = arrays(part[0])
        made = function(*given_values) if len(part) > 1 else (function(*given_values),)
        lane_sources = list(zip(*map(bits_of, given_values), strict=True))
        for row, results in zip(part, made, strict=True):
            for lane, result in zip(lane_sources, bits_of(results), strict=True):
                check_conversion(row, lane, result)


def check_conversion(row: ops.Operation, sources: tuple[int, ...], result: int) -> None:
    mods, to, source = modifiers(row), row.results[0], row.sources[0]
    mode = next((m for m in mods if m.rstrip("i") in ("rn", "rz", "rm", "rp", "rna")), "")
    ftz, whole = "ftz" in mods, mode.endswith("i")
    parts = [(result, to, sources[0])]
    if to.endswith("x2"):
        parts = [(result >> 16, to[:-2], sources[0]), (result & 0xFFFF, to[:-2], sources[1])]
    for got, kind, bits in parts:
        integer = source[0] in "us"
        x = Fraction(signed(bits, source)) if integer else flushed(decode(bits, source), ftz)
        if kind[0] in "us":
            assert got == to_integer(x, kind, mode[:-1]), f"{row.name} of {bits:#x}"
            continue
        if not special(x):
            x = Fraction(integral(exact(x), mode[:-1])) if whole else exact(x)
        if "sat" in mods:
            x = Fraction(x == math.inf) if special(x) else max(Fraction(0), min(Fraction(1), x))
        if "relu" in mods and not (special(x) and math.isnan(x)):
            x = max(x, Fraction(0))
        if not special(x):
            x = rounded(x, kind, "rn" if whole or not mode else mode)
        x = flushed(x, ftz and kind == "f32")
        assert same(got, kind, x), f"{row.name} of {bits:#x}: {got:#x}"


def to_integer(x, type_: str, mode: str) -> int:
    width = 8 * ops.TYPE_BYTES[type_]
    low, high = (0, 2**width - 1) if type_[0] == "u" else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
    if special(x):
        if math.isnan(x):
            return 1 << 63 if width == 64 else 0
        value = high if x > 0 else low
    else:
        value = max(low, min(high, integral(exact(x), mode)))
    return value & (2**width - 1)


# ---- fp8: the formats by their definition, the nearest value by search


def fp8_values(type_: str) -> dict[int, Fraction]:
    """Byte -> finite value of the non-negative numbers, by the formats' definition (OCP 8-bit formats)."""
    bits, bias = (3, 7) if type_ == "e4m3" else (2, 15)
    found = {}
    for byte in range(0x7F if type_ == "e4m3" else 0x7C):
        exponent, fraction = byte >> bits, Fraction(byte & ((1 << bits) - 1), 1 << bits)
        scale = Fraction(2) ** (max(exponent, 1) - bias)
        found[byte] = (fraction + (exponent > 0)) * scale
    return found


def nearest_fp8(x, type_: str, relu: bool) -> int:
    """Nearest byte, ties to the even one, at most the greatest finite value; NaN is 0x7f."""
    if special(x) and math.isnan(x):
        return 0x7F
    negative = x < 0 or (isinstance(x, float) and math.copysign(1, x) < 0)
    if relu and x < 0:
        return 0
    values = fp8_values(type_)
    size = max(values.values()) if special(x) else min(abs(exact(x)), max(values.values()))
    best = min(values, key=lambda byte: (abs(values[byte] - size), byte & 1))
    return best | (0x80 if negative else 0)


def awkward_for_fp8() -> list[float]:
    """Every value, every midpoint, and what is beyond, near or in between."""
    found = [0.0, -0.0, math.nan, math.inf, -math.inf, 449.0, 464.0, 465.0, 480.0, 61440.0, 65504.0, 1e-7]
    for type_ in ("e4m3", "e5m2"):
        values = [float(v) for v in fp8_values(type_).values()]
        middles = [(a + b) / 2 for a, b in pairwise(values)]
        found += values + middles + [-m for m in middles] + [m * (1 + 2.0**-9) for m in middles]
    return found


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("source", ["f32", "f16x2"])
@pytest.mark.parametrize("to", ["e4m3", "e5m2"])
def test_fp8_is_the_nearest_finite_value(to, source, relu):
    row = next(r for r in ROWS if r.name == f"cvt.rn.satfinite{relu}.{to}x2.{source}")
    numbers = np.array(awkward_for_fp8(), np.float32)
    if source == "f16x2":
        numbers = numbers.astype(np.float16)
    others = np.roll(numbers, 1)
    if source == "f32":
        made = row.numpy(numbers, others)
    else:
        high, low = numbers.view(np.uint16).astype(np.uint32), others.view(np.uint16)
        made = row.numpy(high << np.uint32(16) | low)
    for high, low, result in zip(numbers.tolist(), others.tolist(), made.tolist(), strict=True):
        for value, byte in ((high, result >> 8), (low, result & 0xFF)):
            x = value if special(value) or value == 0 else Fraction(value)
            assert byte == nearest_fp8(x, to, bool(relu)), f"{value} became {byte:#x}"


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("source", ["e4m3", "e5m2"])
def test_every_fp8_byte_as_f16(source, relu):
    row = next(r for r in ROWS if r.name == f"cvt.rn{relu}.f16x2.{source}x2")
    values = fp8_values(source)
    bytes_ = np.arange(256, dtype=np.uint16)
    made = row.numpy(bytes_ << np.uint16(8) | (bytes_ ^ np.uint16(0x80)))
    for byte, result in zip(bytes_.tolist(), made.tolist(), strict=True):
        for got, wanted in ((result >> 16, byte), (result & 0xFFFF, byte ^ 0x80)):
            other = math.inf if (source, wanted & 0x7F) == ("e5m2", 0x7C) else math.nan
            expected = values.get(wanted & 0x7F, other) * (-1 if wanted & 0x80 else 1)
            if relu and not math.isnan(expected):
                expected = max(expected, Fraction(0))
            assert same(got, "f16", expected), f"{wanted:#x} became {got:#x}"


# ---- the carry flag


CARRY = [r for r in ROWS if "cc" in modifiers(r) or r.name.split(".")[0] in ("addc", "subc", "madc")]


@pytest.mark.parametrize("row", CARRY, ids=by_name)
def test_carry_and_borrow(row):
    opcode, mods = row.name.split(".")[0], modifiers(row)
    width = 8 * ops.TYPE_BYTES[row.sources[0]]
    for sources, results in lanes(row):
        carry = int(sources[-1]) if row.sources[-1] == "pred" else 0
        if opcode[:3] == "mad":
            product = signed(sources[0], row.sources[0]) * signed(sources[1], row.sources[0])
            part = (product >> width if "hi" in mods else product) & ((1 << width) - 1)
            total = part + sources[2] + carry
        elif opcode[:3] == "add":
            total = sources[0] + sources[1] + carry
        else:
            total = sources[0] - sources[1] - carry
        assert results[0] == total & ((1 << width) - 1)
        if len(results) == 2:
            assert results[1] == (not 0 <= total < 1 << width)


# ---- approximations: the bounds of the PTX ISA


APPROXIMATE = {
    "ex2": (lambda x: 2.0**x if x < 1024 else math.inf, 2**-22),
    "rcp": (lambda x: 1 / x, 2**-23),
    "rsqrt": (lambda x: 1 / math.sqrt(x), 2**-22.4),
    "sqrt": (math.sqrt, 2**-22),
    "tanh": (math.tanh, 2**-11),
}
INPUTS = np.concatenate([np.geomspace(2**-20, 100, 400), -np.geomspace(2**-20, 100, 400)])


@pytest.mark.parametrize(
    "row",
    [r for r in rows(*APPROXIMATE) if "approx" in modifiers(r) and r.sources[0] in ("f32", "f64")],
    ids=by_name,
)
def test_approximations_keep_their_relative_error(row):
    function, bound = APPROXIMATE[row.name.split(".")[0]]
    x = INPUTS.astype(DTYPES[row.sources[0]])
    if row.name.startswith(("rsqrt", "sqrt")):
        x = np.abs(x)

    result = row.numpy(np.ascontiguousarray(x))

    expected = np.array([function(float(v)) for v in x])
    assert (np.abs(result / expected - 1) <= bound).all()


@pytest.mark.parametrize("row", [r for r in rows("ex2", "tanh") if r.sources[0] in ops.HALVES], ids=by_name)
def test_half_approximations(row):
    kind = row.sources[0]
    half = kind.removesuffix("x2")
    bits = floats(half, 5, 200)
    source = bits if kind == half else bits.astype(np.uint32) | bits.astype(np.uint32) << np.uint32(16)
    result = row.numpy(source)
    bound = 2**-9 if half == "f16" else 2**-7
    for b, r in zip(bits.tolist(), bits_of(result), strict=True):
        x, got = decode(b, half), decode(r & 0xFFFF, half)
        if special(x) or abs(exact(x)) > 14:
            continue
        expected = 2.0 ** float(exact(x)) if row.name.startswith("ex2") else math.tanh(float(exact(x)))
        assert abs(float(got) - expected) <= bound * abs(expected) + 1e-7
        assert kind == half or r >> 16 == r & 0xFFFF


@pytest.mark.parametrize(
    "name", ["sin.approx.f32", "cos.approx.f32", "sin.approx.ftz.f32", "cos.approx.ftz.f32"]
)
def test_sine_and_cosine(name):
    row = next(r for r in ROWS if r.name == name)
    x = np.linspace(-math.pi, math.pi, 2001).astype(np.float32)

    result = row.numpy(x)

    expected = [getattr(math, name[:3])(float(v)) for v in x]
    assert np.abs(result - expected).max() <= 2**-20.5


@pytest.mark.parametrize("name", ["lg2.approx.f32", "lg2.approx.ftz.f32"])
def test_logarithm(name):
    row = next(r for r in ROWS if r.name == name)
    x = np.geomspace(2.0**-100, 2.0**100, 2001).astype(np.float32)
    x = np.concatenate([x, np.linspace(0.5, 2, 1001).astype(np.float32)])

    result = row.numpy(x)

    assert np.abs(result - [math.log2(float(v)) for v in x]).max() <= 2**-17  # of values up to 100
    assert np.abs(result[-1001:] - [math.log2(float(v)) for v in x[-1001:]]).max() <= 2**-22


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("ex2.approx.ftz.f32", -math.inf, 0.0),
        ("ex2.approx.ftz.f32", math.inf, math.inf),
        ("ex2.approx.ftz.f32", 0.0, 1.0),
        ("ex2.approx.ftz.f32", -0.0, 1.0),
        ("ex2.approx.ftz.f32", 1e-40, 1.0),
        ("ex2.approx.ftz.f32", 127.0, 2.0**127),
        ("ex2.approx.ftz.f32", 128.0, math.inf),
        ("ex2.approx.ftz.f32", -126.0, 2.0**-126),
        ("ex2.approx.ftz.f32", -126.5, 0.0),
        ("ex2.approx.f32", -149.0, 2.0**-149),
        ("ex2.approx.f32", -1000.0, 0.0),
        ("lg2.approx.f32", 0.0, -math.inf),
        ("lg2.approx.f32", math.inf, math.inf),
        ("lg2.approx.ftz.f32", 1e-40, -math.inf),
        ("lg2.approx.f32", 8.0, 3.0),
        ("rcp.approx.ftz.f32", 0.0, math.inf),
        ("rcp.approx.ftz.f32", math.inf, 0.0),
        ("rcp.approx.ftz.f32", 2.0**127, 0.0),
        ("rsqrt.approx.f32", 0.0, math.inf),
        ("rsqrt.approx.f32", 4.0, 0.5),
        ("tanh.approx.f32", 50.0, 1.0),
        ("sin.approx.f32", 0.0, 0.0),
        ("cos.approx.f32", 0.0, 1.0),
    ],
)
def test_special_values_of_approximations(name, x, expected):
    row = next(r for r in ROWS if r.name == name)

    assert float(row.numpy(np.array([x], np.float32))[0]) == expected


@pytest.mark.parametrize(
    "name", ["ex2.approx.ftz.f32", "lg2.approx.f32", "sin.approx.f32", "tanh.approx.f32", "sqrt.rn.f32"]
)
def test_nan_stays_nan(name):
    row = next(r for r in ROWS if r.name == name)

    assert np.isnan(row.numpy(np.array([math.nan], np.float32))[0])


def test_a_row_is_tested_or_named_here():
    tested = (
        set(INTEGER_OPCODES)
        | set(APPROXIMATE)
        | {"setp", "set", "cvt", "prmt", "fma", "copysign", "testp", "slct", "addc", "subc", "madc"}
    )
    tested |= {"sin", "cos", "lg2", "isspacep"}  # isspacep: test_simt_programs

    assert {r.name.split(".")[0] for r in ROWS} <= tested


def test_loops_repeat_single_elements_and_handle_any_length():
    function = vm.compiled(vm.arithmetic("fma", "f32"), ("f32",), ("f32",) * 3)
    two = np.array([2], np.float32)
    for n in (1, 3, 15, 16, 17, 100):
        x = np.arange(n, dtype=np.float32)
        assert function(x, two, x).tolist() == (3 * x).tolist()
        assert function(two, two, x).tolist() == (4 + x).tolist()


# ---- random integer programs against Python


CHOICES = [
    ("add.u32", lambda a, b: a + b),
    ("sub.u32", lambda a, b: a - b),
    ("mul.lo.u32", lambda a, b: a * b),
    ("mul.hi.u32", lambda a, b: a * b >> 32),
    ("and.b32", lambda a, b: a & b),
    ("or.b32", lambda a, b: a | b),
    ("xor.b32", lambda a, b: a ^ b),
    ("min.u32", min),
    ("max.u32", max),
    ("shl.b32", lambda a, b: a << b if b < 32 else 0),
    ("shr.u32", lambda a, b: a >> b if b < 32 else 0),
    ("div.u32", lambda a, b: a // b if b else 2**32 - 1),
    ("rem.u32", lambda a, b: a % b if b else a),
]
step = st.tuples(
    st.sampled_from(CHOICES), st.integers(0, 7), st.integers(0, 7), st.integers(0, 7), st.booleans()
)


@settings(max_examples=40, deadline=None)
@given(st.lists(step, min_size=1, max_size=25), st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_random_programs_with_branches_and_loops(steps, seed, rounds):
    lines = [f"mad.lo.u32 %r{10 + k}, %r0, {2 * k + 1}, {seed >> k & 0xFFFF};" for k in range(8)]
    lines += ["mov.u32 %r30, 0;", "LOOP:"]
    for number, ((name, _), target, a, b, guarded) in enumerate(steps):
        if guarded:  # lanes whose target register is odd skip the step
            lines += [
                f"and.b32 %r31, %r{10 + target}, 1;",
                "setp.ne.u32 %p0, %r31, 0;",
                f"@%p0 bra S{number};",
            ]
        lines += [f"{name} %r{10 + target}, %r{10 + a}, %r{10 + b};", f"S{number}:"]
    lines += ["add.u32 %r30, %r30, 1;", f"setp.lt.u32 %p1, %r30, {rounds};", "@%p1 bra LOOP;"]
    lines += ["mul.wide.u32 %d5, %r0, 32;", "add.u64 %d5, %d5, %d0;"]
    lines += [
        f"st.global.v4.u32 [%d5+{16 * h}], {{{', '.join(f'%r{10 + 4 * h + k}' for k in range(4))}}};"
        for h in (0, 1)
    ]

    (out,), _ = run(kernel_text("\n".join([*lines, "ret;"])), np.zeros(8 * 40, np.uint32), block=40)

    for thread, row in enumerate(out.reshape(40, 8).tolist()):
        registers = [(thread * (2 * k + 1) + (seed >> k & 0xFFFF)) & 0xFFFFFFFF for k in range(8)]
        for _ in range(rounds):
            for (_, function), target, a, b, guarded in steps:
                if not (guarded and registers[target] & 1):
                    registers[target] = function(registers[a], registers[b]) & 0xFFFFFFFF
        assert row == registers
