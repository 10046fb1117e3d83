"""Instructions beyond plain arithmetic in whole programs, on both engines; and those that are refused."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simt_helpers import kernel_text, run, store_result

from labs_common.simt.errors import UnsupportedError

FILE = '.file 1 "/lab/kernels/student.cu"\n'
both = pytest.mark.parametrize("engine", ["numpy", "llvm"])
words = st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4)


@settings(max_examples=15, deadline=None)
@given(words, words)
def test_sums_and_differences_of_128_bits(a, b):
    """Four words each, the carry from word to word; and the difference with the borrow."""
    lines = [f"ld.global.u32 %r{10 + k}, [%d0+{4 * k}];" for k in range(4)]
    lines += [f"ld.global.u32 %r{20 + k}, [%d1+{4 * k}];" for k in range(4)]
    names = ["add.cc.u32", "addc.cc.u32", "addc.cc.u32", "addc.u32"]
    names += ["sub.cc.u32", "subc.cc.u32", "subc.cc.u32", "subc.u32"]
    lines += [f"{name} %r{30 + k}, %r{10 + k % 4}, %r{20 + k % 4};" for k, name in enumerate(names)]
    lines += [f"st.global.u32 [%d2+{4 * k}], %r{30 + k};" for k in range(8)]
    text = kernel_text("\n".join([*lines, "ret;"]), 3)
    x, y = (sum(word << 32 * k for k, word in enumerate(v)) for v in (a, b))

    for engine in ("numpy", "llvm"):
        arrays = np.array(a, np.uint32), np.array(b, np.uint32), np.zeros(8, np.uint32)
        (_, _, out), _ = run(text, *arrays, block=1, engine=engine)

        sums, differences = (sum(int(w) << 32 * k for k, w in enumerate(part)) for part in (out[:4], out[4:]))
        assert sums == (x + y) % 2**128
        assert differences == (x - y) % 2**128


@both
def test_product_of_64_bits_from_pieces(engine):
    """The 128-bit product of two 64-bit numbers by mad.lo.cc and madc.hi, as CUDA libraries write it."""
    a, b = 0xFEDCBA9876543210, 0xFFFFFFFF00000003
    body = (
        "ld.global.u64 %d5, [%d0];\nld.global.u64 %d6, [%d0+8];\n"
        "mov.b64 {%r10, %r11}, %d5;\nmov.b64 {%r12, %r13}, %d6;\n"
        "mul.lo.u32 %r20, %r10, %r12;\nmul.hi.u32 %r21, %r10, %r12;\n"
        "mad.lo.cc.u32 %r21, %r11, %r12, %r21;\nmadc.hi.u32 %r22, %r11, %r12, 0;\n"
        "mad.lo.cc.u32 %r21, %r10, %r13, %r21;\nmadc.hi.cc.u32 %r22, %r10, %r13, %r22;\n"
        "addc.u32 %r23, 0, 0;\n"
        "mad.lo.cc.u32 %r22, %r11, %r13, %r22;\nmadc.hi.u32 %r23, %r11, %r13, %r23;\n"
        "st.global.v4.u32 [%d0], {%r20, %r21, %r22, %r23};\nret;"
    )

    (out,), _ = run(kernel_text(body), np.array([a, b], np.uint64), block=1, engine=engine)

    assert int(out[0]) | int(out[1]) << 64 == a * b


@both
def test_the_carry_is_each_lane_s_own_and_survives_a_branch(engine):
    body = (
        "mul.lo.u32 %r5, %r0, 0x20000000;\nadd.cc.u32 %r6, %r5, 0x80000000;\n"
        "and.b32 %r7, %r0, 1;\nsetp.eq.u32 %p1, %r7, 0;\n@%p1 bra OVER;\nadd.u32 %r6, %r6, 1;\nOVER:\n"
        "addc.u32 %r8, %r0, 0;\n"
    )
    body += store_result("%r8", "u32", 4)

    (out,), _ = run(kernel_text(body), np.zeros(32, np.uint32), engine=engine)

    assert out.tolist() == [k + ((k * 2**29) % 2**32 + 2**31 >= 2**32) for k in range(32)]


@both
@pytest.mark.parametrize("rounding", ["rz", "rm", "rp"])
def test_f64_rounded_in_a_direction(rounding, engine):
    """1/3, 2/3 - 1 ulp and the like: the exact value as a fraction decides."""
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 32)) * 10.0 ** rng.integers(-5, 5, (2, 32))
    ops = {"add": lambda x, y: x + y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y}
    for name, exact in ops.items():
        body = (
            "mul.wide.u32 %d5, %r0, 8;\nadd.u64 %d6, %d0, %d5;\nadd.u64 %d7, %d1, %d5;\n"
            f"ld.global.f64 %g1, [%d6];\nld.global.f64 %g2, [%d7];\n{name}.{rounding}.f64 %g3, %g1, %g2;\n"
            "st.global.f64 [%d6], %g3;\nret;"
        )
        (out, _), _ = run(kernel_text(body, 2), a, b, engine=engine)
        for x, y, got in zip(a.tolist(), b.tolist(), out.tolist(), strict=True):
            wanted = exact(Fraction(x), Fraction(y))
            below = Fraction(got) <= wanted
            assert Fraction(math.nextafter(got, math.inf)) > wanted if below else True
            assert Fraction(math.nextafter(got, -math.inf)) < wanted
            if rounding != "rz":
                assert below == (rounding == "rm") or Fraction(got) == wanted
            else:
                assert abs(Fraction(got)) <= abs(wanted)


@both
def test_cache_hints_and_policies_change_no_value(engine):
    body = (
        "createpolicy.fractional.L2::evict_first.b64 %d9, 1.0;\n"
        "createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %d10, 0.5;\n"
        "mul.wide.u32 %d5, %r0, 4;\nadd.u64 %d6, %d0, %d5;\nadd.u64 %d7, %d1, %d5;\n"
        "mov.u32 %r4, tile;\nmad.lo.u32 %r5, %r0, 4, %r4;\n"
        "cp.async.ca.shared.global.L2::cache_hint [%r5], [%d6], 4, %d9;\n"
        "ld.global.nc.L1::no_allocate.L2::cache_hint.L2::256B.u32 %r6, [%d6], %d10;\n"
        "cp.async.wait_all;\nld.shared.u32 %r7, [%r5];\nadd.u32 %r8, %r6, %r7;\n"
        "st.global.L2::cache_hint.u32 [%d7], %r8, %d9;\n"
        "red.global.add.L2::cache_hint.u32 [%d7], 1, %d9;\nret;"
    )
    values = np.arange(32, dtype=np.uint32) * 3
    text = kernel_text(body, 2, ".shared .align 16 .b8 tile[128];\n")

    (_, out), result = run(text, values, np.zeros(32, np.uint32), engine=engine)

    np.testing.assert_array_equal(out, 2 * values + 1)
    assert result.findings == []


@both
def test_elect_names_the_lowest_lane_and_grid_dependencies_do_nothing(engine):
    body = (
        "griddepcontrol.wait;\nsetp.lt.u32 %p3, %r0, 5;\n@%p3 bra END;\nelect.sync %r5|%p1, 0xffffffe0;\n"
        "selp.u32 %r6, 100, 0, %p1;\nadd.u32 %r6, %r6, %r5;\n"
        "mul.wide.u32 %d5, %r0, 4;\nadd.u64 %d5, %d0, %d5;\n"
        "st.global.u32 [%d5], %r6;\nEND:\ngriddepcontrol.launch_dependents;\nret;"
    )

    (out,), _ = run(kernel_text(body), np.zeros(32, np.uint32), engine=engine)

    assert out.tolist() == [0] * 5 + [105] + [5] * 26


REFUSED = [
    ("wgmma.fence.sync.aligned;", "warp groups"),
    ("wgmma.commit_group.sync.aligned;", "warp groups"),
    ("tcgen05.wait::ld.sync.aligned;", "tensor memory"),
    ("wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r2, %r3}, [%d0];", "mma.sync"),
    ("mbarrier.init.shared.b64 [tile], 1;", "barrier objects"),
    ("barrier.cluster.arrive;", "clusters"),
    ("mapa.u64 %d4, %d0, 1;", "clusters"),
    ("cp.async.bulk.commit_group;", "tensor memory copies"),
    ("cp.async.bulk.prefetch.L2.global [%d0], 16;", "tensor memory copies"),
    ("setmaxnreg.inc.sync.aligned.u32 240;", "registers"),
    ("fence.proxy.async;", ""),
    ("multimem.red.global.add.f32 [%d0], %f1;", "multicast"),
    ("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r2, %r3}, [tile];", ""),
    ("add.sat.u32 %r2, %r3, %r4;", ""),
    ("frobnicate.u32 %r2, %r3;", ""),
]


@both
@pytest.mark.parametrize(("instruction", "why"), REFUSED, ids=lambda x: x.split()[0] if " " in x else "")
def test_what_is_not_simulated_is_refused_by_name_and_line_before_anything_runs(instruction, why, engine):
    """The store before it must not have happened; it stands in a branch that no thread takes."""
    body = (
        "st.global.u32 [%d0], 7;\nsetp.gt.u32 %p1, %r0, 99;\n@!%p1 bra END;\n"
        f".loc 1 17 3\n{instruction}\nEND:\nret;"
    )
    text = kernel_text(body, 1, ".shared .align 16 .b8 tile[128];\n") + FILE
    array = np.zeros(1, np.uint32)

    with pytest.raises(UnsupportedError) as caught:
        run(text, array, engine=engine)

    assert instruction.rstrip(";").split()[0] in str(caught.value)
    assert caught.value.source == ("/lab/kernels/student.cu", 17)
    assert why in str(caught.value)
    assert array[0] == 0
