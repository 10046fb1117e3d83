"""mma, ldmatrix, stmatrix and movmatrix on both engines, against the PTX ISA's figures of their fragments.

The figures' formulas are written here once more, element by element, and products come from NumPy in float64
with values small enough that every sum is exact.
"""

from __future__ import annotations

import numpy as np
import pytest
from simt_helpers import kernel_text, run

from labs_common.simt.errors import Fault, UnsupportedError

both = pytest.mark.parametrize("engine", ["numpy", "llvm"])
LANES = range(32)


def a_element(bits: int, i: int, lane: int) -> tuple[int, int]:
    """(row, column) of A's element a_i: the ISA's formulas for .b16, tf32 and 8-bit multiplicands."""
    g, t = lane >> 2, lane % 4
    if bits == 16:
        return g + 8 * (i // 2 % 2), 2 * t + (i & 1) + 8 * (i // 4)
    if bits == 32:
        return g + 8 * (i % 2), t + 4 * (i // 2)
    return g + 8 * (i // 4 % 2), 4 * t + (i & 3) + 16 * (i // 8)


def b_element(bits: int, i: int, lane: int) -> tuple[int, int]:
    """(row, column) of B's element b_i."""
    g, t = lane >> 2, lane % 4
    if bits == 16:
        return 2 * t + (i & 1) + 8 * (i // 2), g
    if bits == 32:
        return t + 4 * i, g
    return 4 * t + (i & 3) + 16 * (i // 4), g


def c_element(i: int, lane: int) -> tuple[int, int]:
    """(row, column) of c_i: rows g and g + 8."""
    return (lane >> 2) + 8 * (i // 2), 2 * (lane % 4) + (i & 1)


def e4m3(bits: np.ndarray) -> np.ndarray:
    """Sign, 4 bits of exponent (bias 7), 3 of fraction."""
    sign, exponent, fraction = bits >> 7, (bits >> 3) & 15, bits & 7
    size = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    return np.where(sign == 1, -size, size)


def encode(type_: str, rng, shape) -> tuple[np.ndarray, np.ndarray]:
    """(bit patterns, their values) of random small elements."""
    if type_ == "f16":
        values = rng.integers(-64, 65, shape) / 16
        return values.astype(np.float16).view(np.uint16), values
    if type_ in ("bf16", "tf32"):
        values = rng.integers(-64, 65, shape) / 16
        bits = values.astype(np.float32).view(np.uint32)
        return (bits >> 16 if type_ == "bf16" else bits), values
    bits = rng.integers(0, 256, shape)
    if type_ == "e4m3":
        bits = np.where(bits & 0x7F == 0x7F, 0, bits)
        return bits, e4m3(bits)
    if type_ == "e5m2":
        bits = bits & 0xBF  # exponents below 2^1, no infinities
        return bits, (bits << 8).astype(np.uint16).view(np.float16).astype(np.float64)
    return bits, bits.astype(np.uint8).view(np.int8 if type_ == "s8" else np.uint8).astype(np.int64)


def fragment(bits_of_matrix: np.ndarray, count: int, width: int, place) -> np.ndarray:
    """Registers [32 lanes, count] that hold a matrix of bit patterns."""
    per = 32 // width
    registers = np.zeros((32, count), np.uint32)
    for lane in LANES:
        for i in range(count * per):
            bits = int(bits_of_matrix[place(width, i, lane)])
            registers[lane, i // per] |= np.uint32(bits << (width * (i % per)))
    return registers


def multiply(shape: str, kinds: tuple[str, ...], a, b, c, engine: str, warps: int) -> np.ndarray:
    """Run one mma; registers come and go as arrays [32 * warps, count]."""
    names = {"a": "%r1", "b": "%r2", "c": "%r3", "d": "%r4"}
    float_c = kinds[0] == "f32"
    lines, lists = [], {}
    for n, (name, array) in enumerate((("a", a), ("b", b), ("c", c))):
        kind = "f32" if name == "c" and float_c else "b32"
        prefix = f"%f{n}" if name == "c" and float_c else names[name]
        registers = [f"{prefix}{k}" for k in range(array.shape[1])]
        lines.append(f"mad.wide.u32 %d10, %r0, {4 * array.shape[1]}, %d{n};")
        lines += [f"ld.global.{kind} {r}, [%d10+{4 * k}];" for k, r in enumerate(registers)]
        lists[name] = registers
    out = [f"{'%f1' if float_c else '%r4'}{k}" for k in range(c.shape[1])]
    braces = [", ".join(r) for r in (out, lists["a"], lists["b"], lists["c"])]
    operands = ", ".join("{" + b + "}" for b in braces)
    lines.append(f"mma.sync.aligned.{shape}.row.col.{'.'.join(kinds)} {operands};")
    lines.append(f"mad.wide.u32 %d10, %r0, {4 * c.shape[1]}, %d3;")
    lines += [f"st.global.{'f32' if float_c else 'b32'} [%d10+{4 * k}], {r};" for k, r in enumerate(out)]
    arrays, result = run(
        kernel_text("\n".join(lines) + "\nret;", 4),
        a,
        b,
        c,
        np.zeros_like(c),
        block=32 * warps,
        engine=engine,
    )
    assert result.findings == []
    return arrays[3]


CASES = [
    *[(f"m16n8k{k}", t, t, d) for k in (8, 16) for t, d in (("f16", "f32"), ("f16", "f16"), ("bf16", "f32"))],
    *[(f"m16n8k{k}", "tf32", "tf32", "f32") for k in (4, 8)],
    *[("m16n8k32", a, b, "f32") for a, b in (("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e5m2", "e5m2"))],
    *[(f"m16n8k{k}", a, b, "s32") for k in (16, 32) for a, b in (("s8", "s8"), ("u8", "s8"), ("u8", "u8"))],
]


@both
@pytest.mark.parametrize(("shape", "a_type", "b_type", "d_type"), CASES)
def test_products_of_every_shape_and_type(shape, a_type, b_type, d_type, engine):
    rng = np.random.default_rng(len(shape) + len(a_type))
    k = int(shape.split("k")[1])
    width = {"f16": 16, "bf16": 16, "tf32": 32}.get(a_type, 8)
    expected, a, b, c = [], [], [], []
    for _ in range(2):  # warps
        a_bits, a_values = encode(a_type, rng, (16, k))
        b_bits, b_values = encode(b_type, rng, (k, 8))
        c_values = rng.integers(-99, 99, (16, 8)).astype(np.float64)
        a.append(fragment(a_bits, 16 * k * width // 1024, width, a_element))
        b.append(fragment(b_bits, 8 * k * width // 1024, width, b_element))
        c_bits = {
            "f16": c_values.astype(np.float16).view(np.uint16),
            "f32": c_values.astype(np.float32).view(np.uint32),
            "s32": c_values.astype(np.int32).view(np.uint32),
        }[d_type]
        c_width = 16 if d_type == "f16" else 32
        c.append(
            fragment(c_bits, 2 if d_type == "f16" else 4, c_width, lambda _, i, lane: c_element(i, lane))
        )
        product = a_values @ b_values + c_values
        d_bits = {"f16": lambda d: d.astype(np.float16).view(np.uint16),
                  "f32": lambda d: d.astype(np.float32).view(np.uint32),
                  "s32": lambda d: d.astype(np.int32).view(np.uint32)}[d_type](product)  # fmt: skip
        expected.append(fragment(d_bits, c[-1].shape[1], c_width, lambda _, i, lane: c_element(i, lane)))
    joined = [np.concatenate(x) for x in (a, b, c)]
    if d_type == "f32":
        joined[2] = joined[2].view(np.float32)

    d = multiply(shape, (d_type, a_type, b_type, d_type), *joined, engine, 2)

    np.testing.assert_array_equal(d.view(np.uint32), np.concatenate(expected))


def test_the_engines_agree_on_any_bits():
    """Infinities, NaNs and sums that round included; which NaN it is does not matter."""
    rng = np.random.default_rng(3)
    for kinds, shape in (
        (("f32", "f16", "f16", "f32"), "m16n8k16"),
        (("f32", "bf16", "bf16", "f32"), "m16n8k8"),
    ):
        count = 4 if shape == "m16n8k16" else 2
        a = rng.integers(0, 2**32, (64, count), dtype=np.uint32)
        b = rng.integers(0, 2**32, (64, count // 2), dtype=np.uint32)
        c = rng.standard_normal((64, 4), dtype=np.float32)
        one, two = (multiply(shape, kinds, a, b, c, engine, 2) for engine in ("numpy", "llvm"))
        np.testing.assert_array_equal(one, two)
        assert np.isfinite(one).any()


@pytest.mark.parametrize(
    "name",
    [
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.f16.f32",
        "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32",
        "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32",
    ],
)
def test_other_products_are_refused_by_name(name):
    text = kernel_text(
        f"{name} {{%f1,%f2,%f3,%f4}}, {{%r1,%r2,%r3,%r4}}, {{%r5,%r6}}, {{%f5,%f6,%f7,%f8}};\nret;"
    )

    with pytest.raises(UnsupportedError, match="mma"):
        run(text, np.zeros(4, np.uint32))


# ---- matrices in shared memory


def move(body: str, words: int, out: int, engine: str, before: np.ndarray | None = None, threads: int = 32):
    """p0 -> shared tile (thread k: word k, k + 32 ...), body, then registers %r20.. of each lane to p1."""
    fill = "\n".join(
        f"ld.global.u32 %r50, [%d11+{128 * k}];\nst.shared.u32 [%r41+{128 * k}], %r50;"
        for k in range(words // 32)
    )
    start = (
        "mad.wide.u32 %d11, %r0, 4, %d0;\nmov.u32 %r40, tile;\nmad.lo.u32 %r41, %r0, 4, %r40;\n"
        + fill
        + "\nbar.sync 0;\n"
    )
    end = f"mad.wide.u32 %d12, %r0, {4 * out}, %d1;\n" + "\n".join(
        f"st.global.u32 [%d12+{4 * k}], %r{20 + k};" for k in range(out)
    )
    source = np.arange(2 * words, dtype=np.uint16).view(np.uint32) if before is None else before
    text = kernel_text(start + body + end + "\nret;", 2, f".shared .align 16 .b8 tile[{4 * words}];")
    arrays, result = run(text, source, np.zeros((threads, out), np.uint32), block=threads, engine=engine)
    return arrays[1], result


def row_addresses(stride: int, rows: int) -> str:
    """%r42: lane k has row k % rows at a stride of bytes."""
    return f"and.b32 %r42, %r0, {rows - 1};\nmad.lo.u32 %r42, %r42, {stride}, %r40;\n"


@both
@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_gives_each_lane_its_two_elements(count, trans, engine):
    """Rows lie 16 bytes apart, so element (matrix m, row r, column c) is the number 64 m + 8 r + c."""
    registers = ", ".join(f"%r{20 + k}" for k in range(count))
    name = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if trans else ''}.shared.b16"
    body = row_addresses(16, 8 * count) + f"{name} {{{registers}}}, [%r42];\n"

    made, result = move(body, 32 * count, count, engine)

    halves = made.view(np.uint16).reshape(32, count, 2)
    for lane in LANES:
        g, t = lane >> 2, lane % 4
        for m in range(count):
            places = [(2 * t + h, g) if trans else (g, 2 * t + h) for h in range(2)]
            assert halves[lane, m].tolist() == [64 * m + 8 * r + c for r, c in places]
    totals = result.counters.totals()
    assert result.findings == []
    assert totals["shared_loads"] == 1
    assert totals["shared_load_wavefronts"] == count  # 8 rows of 16 bytes without a conflict each


@both
def test_ldmatrix_rows_in_one_bank_take_a_pass_each(engine):
    """Rows 128 bytes apart begin in the same bank: 8 passes."""
    body = row_addresses(128, 8) + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r20}, [%r42];\n"

    _, result = move(body, 256, 1, engine)

    assert result.counters.totals()["shared_load_wavefronts"] == 8


@both
@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix_puts_back_what_ldmatrix_took(count, trans, engine):
    registers = ", ".join(f"%r{30 + k}" for k in range(count))
    t = ".trans" if trans else ""
    body = (
        row_addresses(16, 8 * count)
        + f"ldmatrix.sync.aligned.m8n8.x{count}.shared.b16 {{{registers}}}, [%r42];\n"
        + f"add.u32 %r43, %r42, {128 * count};\n"
        + f"stmatrix.sync.aligned.m8n8.x{count}{t}.shared.b16 [%r43], {{{registers}}};\n"
        + "bar.warp.sync 0xffffffff;\n"
        + "\n".join(f"ld.shared.u32 %r{20 + k}, [%r41+{128 * (count + k)}];" for k in range(count))
        + "\n"
    )
    words = 64 * count

    made, result = move(body, words, count, engine)

    values = np.arange(64 * count, dtype=np.uint16).reshape(count, 8, 8)
    stored = values.transpose(0, 2, 1) if trans else values
    got = np.ascontiguousarray(made.T).view(np.uint16).reshape(count, 8, 8)
    np.testing.assert_array_equal(got, stored)
    assert result.findings == []


@both
def test_movmatrix_transposes(engine):
    body = "ld.shared.u32 %r30, [%r41];\nmovmatrix.sync.aligned.m8n8.trans.b16 %r20, %r30;\n"

    made, _ = move(body, 32, 1, engine)

    np.testing.assert_array_equal(
        np.ascontiguousarray(made).view(np.uint16).reshape(8, 8),
        np.arange(64, dtype=np.uint16).reshape(8, 8).T,
    )


@both
@pytest.mark.parametrize(
    ("body", "tool", "kind"),
    [
        ("add.u32 %r42, %r42, 8;\n", "memcheck", "Invalid __shared__ read of size 16 bytes"),
        ("add.u32 %r42, %r42, 16;\n", "memcheck", "Invalid __shared__ read of size 16 bytes"),
    ],
)
def test_rows_of_ldmatrix_are_checked(body, tool, kind, engine):
    load = row_addresses(16, 8) + body + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r20}, [%r42];\n"

    with pytest.raises(Fault) as caught:
        move(load, 32, 1, engine)

    assert (caught.value.finding.tool, caught.value.finding.kind) == (tool, kind)


@both
def test_a_matrix_instruction_needs_all_lanes_of_the_warp(engine):
    body = "setp.gt.u32 %p1, %r0, 20;\n@%p1 ret;\n" + "movmatrix.sync.aligned.m8n8.trans.b16 %r20, %r0;\n"

    with pytest.raises(Fault) as caught:
        move(body, 32, 1, engine)

    assert caught.value.finding.tool == "synccheck"
    assert "lane 21" in caught.value.finding.message
