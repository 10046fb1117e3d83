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
from simt_helpers import kernel_text, store_result
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
        finding = dataclasses.replace(finding, thread=None, message=finding.message.split(" at ")[1])
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


@pytest.mark.parametrize(
    ("meanwhile", "said"), [("ret;", "names exited lane 16"), ("bra BARRIER;", "never arrive")]
)
def test_lanes_named_by_a_shuffle_that_end_elsewhere(meanwhile, said):
    # lanes 16-31 pass the shuffle by: they exit, or wait for the others at a barrier
    body = (
        f"setp.lt.u32 %p0, %r0, 16;\n@%p0 bra MEET;\n{meanwhile}\nMEET:\n"
        "shfl.sync.bfly.b32 %r6, %r0, 4, 31, -1;\nBARRIER:\nbar.sync 0;\nret;"
    )

    with pytest.raises(Fault, match=said):
        run_both(kernel_text(body), np.zeros(1, np.uint32), block=64)


def test_warp_barriers_meet_at_several_places():
    # two arms of a branch, each with a bar.warp.sync of its own that names all lanes
    body = (
        "and.b32 %r5, %r0, 3;\nsetp.eq.u32 %p0, %r5, 0;\n@%p0 bra LEFT;\nbar.warp.sync -1;\n"
        "mov.u32 %r6, 5;\nbra DONE;\nLEFT:\nbar.warp.sync -1;\nmov.u32 %r6, 9;\nDONE:\n"
        + store_result("%r6", "u32", 4)
    )

    (out,), result = run_both(kernel_text(body), np.zeros(96, np.uint32), block=96)

    assert out.tolist() == [9 if t % 4 == 0 else 5 for t in range(96)]
    assert result.findings == []
