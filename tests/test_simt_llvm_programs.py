"""The programs and faults of the simulator's other tests, on the LLVM engine beside the NumPy engine.

Every launch of those tests runs on both: same bytes, same counts, same findings, same error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io

import numpy as np
import pytest
import simt_helpers
import test_simt_faults
import test_simt_programs
from test_simt_faults import *  # noqa: F403 - collected here again
from test_simt_programs import *  # noqa: F403

from labs_common.simt import cupy_like as xp
from labs_common.simt.errors import BudgetError, Fault
from labs_common.simt.memory import AddressSpace


def outcome(engine: str, text: str, arrays, options):
    """(arrays, result) or the error; addresses are the same for both engines."""
    xp.SPACE = AddressSpace()
    quiet = contextlib.redirect_stdout(io.StringIO()) if engine == "numpy" else contextlib.nullcontext()
    try:
        with quiet:
            return simt_helpers.run(text, *[a.copy() for a in arrays], **{**options, "engine": engine})
    except (Fault, BudgetError) as error:
        return error


def essence(finding) -> str:
    """A finding as text; of a race any two of the threads that meet may be named."""
    if finding.tool == "racecheck":
        finding = dataclasses.replace(finding, thread=None, message=finding.message.split(" at line ")[1])
    return str(finding)


def run_both(text: str, *arrays: np.ndarray, **options):
    """simt_helpers.run on the LLVM engine, held against the NumPy engine."""
    expected, got = (outcome(engine, text, arrays, options) for engine in ("numpy", "llvm"))
    if isinstance(expected, Exception) or isinstance(got, Exception):
        assert type(expected) is type(got), (expected, got)
        if isinstance(expected, Fault):
            assert expected.finding == got.finding
        raise got
    (want, reference), (have, result) = expected, got
    if "clock" not in text and "globaltimer" not in text:
        for a, b in zip(want, have, strict=True):
            assert a.tobytes() == b.tobytes()
    assert reference.counters.differences(result.counters) == []
    assert reference.output == result.output
    assert sorted(map(essence, reference.findings)) == sorted(map(essence, result.findings))
    return have, result


@pytest.fixture(autouse=True)
def both_engines(monkeypatch):
    """The other modules' tests launch through run_both, and every module they load runs on this engine."""
    for module in (test_simt_faults, test_simt_programs):
        monkeypatch.setattr(module, "run", run_both)
    monkeypatch.setitem(xp.RawModule.__init__.__kwdefaults__, "engine", "llvm")
    monkeypatch.setattr(xp, "SPACE", xp.SPACE)
