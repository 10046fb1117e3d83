"""Every hand-written PTX program of tests/ptx_programs on both engines: its results, and equal counts."""

from __future__ import annotations

import contextlib
import io
import re

import numpy as np
import pytest
from ptx_programs import (
    asynchronous,
    atomics,
    bits,
    control,
    conversions,
    doubles,
    functions,
    halves,
    integers,
    matrices,
    memory,
    singles,
    warps,
)
from ptx_programs.program import Program
from simt_helpers import run

from labs_common.simt import cupy_like as xp
from labs_common.simt.errors import SimulationError
from labs_common.simt.memory import AddressSpace

FAMILIES = (asynchronous, atomics, bits, control, conversions, doubles, functions, halves, integers, matrices,
            memory, singles, warps)  # fmt: skip
PROGRAMS = [
    pytest.param(program, id=f"{module.__name__.split('.')[-1]}: {program.name}")
    for module in FAMILIES
    for program in module.PROGRAMS
]
ENGINES = ("numpy", "llvm")


def outcome(program: Program, engine: str, monkeypatch):
    """(arrays, result, printed) or the error, at the same addresses for both engines."""
    monkeypatch.setattr(xp, "SPACE", AddressSpace())
    printed = io.StringIO()
    arrays = [a.copy() for a in program.arrays]
    try:
        with contextlib.redirect_stdout(printed):
            made, result = run(program.text, *arrays, block=program.block, grid=program.grid, engine=engine)
    except SimulationError as error:
        return error
    return made, result, printed.getvalue()


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(program: Program, monkeypatch):
    outcomes = {engine: outcome(program, engine, monkeypatch) for engine in ENGINES}

    if program.error:
        for error in outcomes.values():
            assert isinstance(error, SimulationError), error
            assert re.search(program.error, f"{type(error).__name__}: {error}"), error
        assert len({str(error) for error in outcomes.values()}) == 1
        return
    for engine in ENGINES:
        if isinstance(outcomes[engine], Exception):
            raise outcomes[engine]
        made, result, printed = outcomes[engine]
        for array, expected in zip(made, program.expected, strict=True):
            bits_ = f"u{array.itemsize}"
            np.testing.assert_array_equal(array.view(bits_), expected.view(bits_), err_msg=engine)
        assert printed == program.printed
        assert result.findings == []
    (_, reference, _), (_, result, _) = outcomes.values()
    assert reference.counters.differences(result.counters) == []


def test_there_are_at_least_150_distinct_programs_of_several_lines():
    programs = [program for module in FAMILIES for program in module.PROGRAMS]

    assert len({program.text for program in programs}) == len(programs) >= 150
    assert len({(p.name) for p in programs}) == len(programs)
    short = [p.name for p in programs if p.instructions < 3]
    assert short == []
    for program in programs:
        assert (
            program.error
            or program.printed
            or any(a.tobytes() != b.tobytes() for a, b in zip(program.arrays, program.expected, strict=True))
        ), f"{program.name} would pass if nothing ran"


# opcode (with what tells its forms apart) -> least number of programs that execute it
COVERED = {
    r"\b(add|mul|fma|sub)(\.rn)?\.f16 ": 2,
    r"\b(add|mul|fma|sub)(\.rn)?\.f16x2 ": 3,
    r"\bfma\.rn(\.relu)?\.bf16": 2,
    r"\bcvt\.rn\.(relu\.)?bf16": 2,
    r"\bcvt\.rn\.satfinite\.(relu\.)?e4m3x2": 2,
    r"\bcvt\.rn\.satfinite\.(relu\.)?e5m2x2": 2,
    r"\bcvt\.rn\.(relu\.)?f16x2\.e4m3x2": 1,
    r"\bcvt\.rn\.(relu\.)?f16x2\.e5m2x2": 1,
    r"\bcp\.async\.c[ag]\.": 6,
    r"\bcp\.async\.commit_group": 4,
    r"\bcp\.async\.wait_group": 3,
    r"\bldmatrix\.sync\.aligned\.m8n8\.x\d\.shared": 2,
    r"\bldmatrix\.sync\.aligned\.m8n8\.x\d\.trans\.shared": 2,
    r"\bmovmatrix\.": 1,
    r"\bmma\.sync\.aligned\.m16n8k8\.[a-z.]*f16": 1,
    r"\bmma\.sync\.aligned\.m16n8k8\.[a-z.0-9]*bf16": 1,
    r"\bmma\.sync\.aligned\.m16n8k16\.[a-z.]*f16": 1,
    r"\bmma\.sync\.aligned\.m16n8k16\.[a-z.0-9]*bf16": 1,
    r"\batom\.": 8,
    r"\bred\.": 4,
    r"\bvote\.sync\.(any|all|uni)": 2,
    r"\bvote\.sync\.ballot": 2,
    r"\bmatch\.(any|all)\.sync": 2,
    r"\bactivemask": 1,
    r"\bredux\.sync": 2,
    r"\bshfl\.sync": 4,
    r"\bbar\.warp\.sync": 2,
    r"\bbar\.(sync|red)": 3,
    r"\bprmt\.b32": 3,
    r"\blop3\.b32": 2,
    r"\bshf\.[lr]": 2,
    r"\bbfe\.": 2,
    r"\bbfi\.": 2,
    r"\bmul\.hi": 3,
    r"\bpopc\.": 2,
    r"\bclz\.": 2,
    r"\b(add|mul|fma|div)\.r[nzmp]\.f64": 4,
    r"\b(mul|add|div|sub)\.(lo\.|hi\.)?[us]64": 4,
    r"@!?%p": 10,
    r"\bcvta\.": 3,
    r"\bld\.(u32|f32|b32|u64)": 2,
    r"\.local ": 3,
    r"\.const ": 2,
    r"\.global \.": 3,
    r"\bcall(\.uni)?\s*[( ]": 5,
    r"vprintf": 2,
    r"__assertfail": 2,
    r"\btrap;": 1,
    r"\{\s*\.reg": 3,
}  # fmt: skip


def test_every_opcode_family_is_covered():
    texts = [program.text for module in FAMILIES for program in module.PROGRAMS]
    found = {pattern: sum(1 for t in texts if re.search(pattern, t)) for pattern in COVERED}

    lacking = {p: (n, COVERED[p]) for p, n in found.items() if n < COVERED[p]}
    assert lacking == {}
