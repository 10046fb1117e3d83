"""Warps and lanes that spin on memory: the others go on meanwhile, on both engines; or the budget ends it.

Source: PTX ISA and CUDA C++ Programming Guide, "Independent Thread Scheduling" of compute capability 7.0 on.
"""

from __future__ import annotations

import numpy as np
import pytest
from simt_helpers import kernel_text, run

from labs_common.compiler import compile_ptx
from labs_common.problem import PRESETS
from labs_common.simt.errors import BudgetError
from labs_common.simt.parse import parse
from labs_common.simt.program import build
from labs_common.simt.spins import spinning_branches
from labs_common.stages import STAGES

FILE = '.file 1 "/lab/kernels/student.cu"\n'
SHARED = ".shared .align 16 .b8 flag[16];\n"
both = pytest.mark.parametrize("engine", ["numpy", "llvm"])
SPACES = ("global", "shared")
LOADS = {
    "volatile": "ld.volatile.{s}.u32",
    "acquire": "ld.acquire.gpu.{s}.u32",
    "relaxed": "ld.relaxed.gpu.{s}.u32",
}


def wait_for_flag(setter: str, load: str, space: str) -> str:
    """The threads of `setter` (a comparison) set the flag, the others wait for it; then all store."""
    address = "[flag]" if space == "shared" else "[%d0]"
    return (
        f"setp.eq.u32 %p9, %r0, 0;\n@%p9 st.{space}.u32 {address}, 0;\nbar.sync 0;\nsetp.{setter};\n"
        f"@%p0 bra SET;\nWAIT:\n{load.format(s=space)} %r5, {address};\nsetp.eq.u32 %p1, %r5, 0;\n"
        f"@%p1 bra WAIT;\nbra END;\nSET:\nst.volatile.{space}.u32 {address}, 5;\nmov.u32 %r5, 6;\nEND:\n"
        "mul.wide.u32 %d5, %r0, 4;\nadd.u64 %d5, %d1, %d5;\nst.global.u32 [%d5], %r5;\nret;"
    )


@both
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize(
    "setter",
    [
        "ge.u32 %p0, %r0, 96",
        "lt.u32 %p0, %r0, 32",
        "eq.u32 %p0, %r0, 40",
        "eq.u32 %p0, %r0, 0",
        "eq.u32 %p0, %r0, 127",
    ],
)
def test_a_flag_is_awaited_whoever_sets_it(setter, load, space, engine):
    """Another warp, before or after; one lane of a warp whose other lanes wait."""
    text = kernel_text(wait_for_flag(setter, LOADS[load], space), 2, SHARED)

    (_, out), _ = run(
        text, np.zeros(1, np.uint32), np.zeros(128, np.uint32), block=128, engine=engine, budget=100_000
    )

    sets = {"ge": range(96, 128), "lt": range(32), "eq": [int(setter.split()[-1])]}[setter[:2]]
    assert out.tolist() == [6 if t in sets else 5 for t in range(128)]


LOCK = (
    "LOCK:\natom.global.cas.b32 %r5, [%d0], 0, 1;\nsetp.ne.u32 %p1, %r5, 0;\n@%p1 bra LOCK;\n"
    "ld.volatile.global.u32 %r6, [%d0+4];\nadd.u32 %r6, %r6, %r0;\nst.volatile.global.u32 [%d0+4], %r6;\n"
    "membar.gl;\natom.global.exch.b32 %r7, [%d0], 0;\nret;"
)


@both
def test_a_lock_is_taken_by_every_thread_in_turn(engine):
    """The spin lock of two warps whose lanes contend: a plain sum under it loses nothing."""
    (out,), _ = run(kernel_text(LOCK), np.zeros(2, np.uint32), block=64, engine=engine, budget=1_000_000)

    assert out.tolist() == [0, 64 * 63 // 2]


SETTERS = ["ge.u32 %p0, %r0, 96", "lt.u32 %p0, %r0, 32", "eq.u32 %p0, %r0, 40", "eq.u32 %p0, %r0, 127"]
SPINS = {
    **{
        f"{space}: {s}": (wait_for_flag(s, LOADS["volatile"], space), 128)
        for s in SETTERS
        for space in SPACES
    },
    "lock of two warps": (LOCK, 64),
    "lock of one warp": (LOCK, 32),
}


@pytest.mark.parametrize("name", SPINS)
def test_engines_spin_equally_often(name):
    body, threads = SPINS[name]
    results = {}
    for engine in ("numpy", "llvm"):
        arrays = np.zeros(2, np.uint32), np.zeros(128, np.uint32)
        made, result = run(
            kernel_text(body, 2, SHARED), *arrays, block=threads, engine=engine, budget=1_000_000
        )
        results[engine] = [a.tolist() for a in made], result.counters

    (one, counts), (other, counts_too) = results.values()
    assert one == other
    assert counts.differences(counts_too) == []


@both
def test_a_lock_tested_before_it_is_tried(engine):
    body = (
        "LOCK:\nld.volatile.global.u32 %r4, [%d0];\nsetp.ne.u32 %p2, %r4, 0;\n@%p2 bra LOCK;\n"
        "atom.global.exch.b32 %r5, [%d0], 1;\nsetp.ne.u32 %p1, %r5, 0;\n@%p1 bra LOCK;\n"
        "ld.volatile.global.u32 %r6, [%d0+4];\nadd.u32 %r6, %r6, 1;\nst.volatile.global.u32 [%d0+4], %r6;\n"
        "st.release.gpu.global.u32 [%d0], 0;\nret;"
    )

    (out,), _ = run(kernel_text(body), np.zeros(2, np.uint32), block=64, engine=engine, budget=1_000_000)

    assert out.tolist() == [0, 64]


@both
@pytest.mark.parametrize("lanes", [1, 32])
def test_two_warps_hand_a_turn_back_and_forth(lanes, engine):
    """Each warp waits for its number, ten times, and gives the turn to the other."""
    body = (
        "shr.u32 %r2, %r0, 5;\nand.b32 %r3, %r0, 31;\nmov.u32 %r4, 0;\n"
        f"setp.ge.u32 %p3, %r3, {lanes};\n@%p3 bra END;\n"
        "NEXT:\nWAIT:\nld.acquire.gpu.global.u32 %r5, [%d0];\nand.b32 %r6, %r5, 1;\n"
        "setp.ne.u32 %p1, %r6, %r2;\n@%p1 bra WAIT;\n"
        + ("bar.warp.sync -1;\n" if lanes == 32 else "")
        + "setp.ne.u32 %p4, %r3, 0;\n"
        "@%p4 bra OVER;\nadd.u32 %r7, %r5, 1;\nst.release.gpu.global.u32 [%d0], %r7;\nOVER:\n"
        + ("bar.warp.sync -1;\n" if lanes == 32 else "")
        + "add.u32 %r4, %r4, 1;\nsetp.lt.u32 %p2, %r4, 10;\n@%p2 bra NEXT;\nEND:\nret;"
    )

    (out,), _ = run(kernel_text(body), np.zeros(1, np.uint32), block=64, engine=engine, budget=1_000_000)

    assert out[0] == 20


@both
def test_nanosleep_and_a_barrier_after_the_wait(engine):
    body = (
        "setp.ge.u32 %p0, %r0, 32;\n@%p0 bra SET;\nWAIT:\nnanosleep.u32 100;\n"
        "atom.global.or.b32 %r5, [%d0], 0;\n"
        "setp.eq.u32 %p1, %r5, 0;\n@%p1 bra WAIT;\nbra END;\nSET:\nst.volatile.global.u32 [%d0], 1;\nEND:\n"
        "bar.sync 0;\nred.global.add.u32 [%d0+4], 1;\nret;"
    )

    (out,), result = run(kernel_text(body), np.zeros(2, np.uint32), block=64, engine=engine, budget=100_000)

    assert out.tolist() == [1, 64]
    assert result.findings == []


@both
@pytest.mark.parametrize("block", [1, 32, 64, 256])
def test_a_spin_that_never_ends_is_ended_by_the_budget_at_its_line(block, engine):
    body = (
        ".loc 1 30 3\nmov.u32 %r4, 0;\nWAIT:\n.loc 1 31 3\nld.volatile.global.u32 %r5, [%d0];\n"
        "setp.eq.u32 %p1, %r5, 0;\n@%p1 bra WAIT;\nret;"
    )

    with pytest.raises(BudgetError, match=r"student\.cu:31; is this loop endless"):
        run(kernel_text(body) + FILE, np.zeros(1, np.uint32), block=block, engine=engine, budget=5_000)


@both
def test_a_spin_beside_a_barrier_that_it_keeps_shut_is_ended_too(engine):
    body = (
        "setp.ge.u32 %p0, %r0, 32;\n@%p0 bra MEET;\nWAIT:\n.loc 1 31 3\nld.volatile.global.u32 %r5, [%d0];\n"
        "setp.eq.u32 %p1, %r5, 0;\n@%p1 bra WAIT;\nMEET:\n.loc 1 40 3\nbar.sync 0;\n"
        "st.global.u32 [%d0], 1;\nret;"
    )

    with pytest.raises(BudgetError, match=r"student\.cu:31; is this loop endless"):
        run(kernel_text(body) + FILE, np.zeros(1, np.uint32), block=64, engine=engine, budget=5_000)


@pytest.mark.parametrize(
    ("body", "spins"),
    [
        ("LOOP:\nld.volatile.global.u32 %r5, [%d0];\nsetp.eq.u32 %p1, %r5, 0;\n@%p1 bra LOOP;\nret;", 1),
        ("LOOP:\natom.global.cas.b32 %r5, [%d0], 0, 1;\nsetp.ne.u32 %p1, %r5, 0;\n@%p1 bra LOOP;\nret;", 1),
        ("LOOP:\natom.global.add.u32 %r5, [%d0], 0;\nsetp.eq.u32 %p1, %r5, 0;\n@%p1 bra LOOP;\nret;", 1),
        # takes tickets: each turn changes memory
        ("LOOP:\natom.global.add.u32 %r5, [%d0], 1;\nsetp.lt.u32 %p1, %r5, 9;\n@%p1 bra LOOP;\nret;", 0),
        # a maximum by compare and swap carries the last value
        ("mov.u32 %r5, 0;\nLOOP:\nmax.u32 %r6, %r5, %r0;\natom.global.cas.b32 %r7, [%d0], %r5, %r6;\n"
         "setp.ne.u32 %p1, %r7, %r5;\nmov.u32 %r5, %r7;\n@%p1 bra LOOP;\nret;", 0),
        # counts its turns
        ("mov.u32 %r6, 0;\nLOOP:\nld.volatile.global.u32 %r5, [%d0];\nadd.u32 %r6, %r6, 1;\n"
         "setp.lt.u32 %p1, %r6, 9;\n@%p1 bra LOOP;\nret;", 0),
        # counts them in memory
        ("LOOP:\nld.global.u32 %r5, [%d0];\nadd.u32 %r5, %r5, 1;\nst.global.u32 [%d0], %r5;\n"
         "setp.lt.u32 %p1, %r5, 9;\n@%p1 bra LOOP;\nret;", 0),
    ],
)  # fmt: skip
def test_which_loops_count_as_spins(body, spins):
    program = build(parse(kernel_text(body)), "k")

    assert len(spinning_branches(program)) == spins


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.id)
def test_no_stage_spins_so_their_counts_are_as_before(stage):
    problem = next(p for p in PRESETS.values() if stage.supports(p) is None)
    module = parse(compile_ptx(stage.source(), stage.plan(problem).defines))

    for entry in module.entries:
        assert spinning_branches(build(module, entry)) == frozenset()
