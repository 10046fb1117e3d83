"""The corpus of planted bugs: each found on its line by both engines, and honest kernels left alone."""

from __future__ import annotations

import dataclasses

import pytest

from labs_common import bugs
from labs_common.check import check
from labs_common.compare import compare
from labs_common.engines import SimulatorEngine
from labs_common.inputs import make_inputs
from labs_common.reference import reference
from labs_common.source import Source
from labs_common.stages import ALL_STAGES, find_stage

BUGS, HONEST = bugs.bugs(), bugs.honest()
both = pytest.mark.parametrize("core", ["numpy", "llvm"])


def named(case: bugs.Case) -> str:
    return case.name


def test_the_corpus_covers_every_stage_and_tool():
    assert len(BUGS) >= 25 and len(HONEST) >= 10
    assert {c.stage.id for c in BUGS} == {s.id for s in ALL_STAGES}
    assert {c.expect.tool for c in BUGS} == {"memcheck", "racecheck", "initcheck", "synccheck"}
    texts = [c.about for c in (*BUGS, *HONEST)]
    assert len(set(texts)) == len(texts)
    assert all(c.why for c in BUGS if c.sanitizer != c.expect.tool)


def test_no_case_runs_what_a_fitted_cost_chooses():
    """Else the next fit changes the kernel under a verdict that was recorded on a GPU."""
    for case in (*BUGS, *HONEST):
        if case.stage.id.startswith("09"):
            options = case.plan_changes["options"]
            decided = {"whole", "block_heads", "ring_slots", "evict_first"}
            decided |= set() if options["whole"] else {"blocks", "segment_tiles"}
            assert set(options) >= decided, case.name


@both
@pytest.mark.parametrize("case", BUGS, ids=named)
def test_the_bug_is_found_on_its_line(case, core):
    found, _ = bugs.simulate(case, SimulatorEngine(core=core))

    assert any(case.expect.met_by(finding) for finding in found), [str(f) for f in found]


@both
@pytest.mark.parametrize("case", HONEST, ids=named)
def test_an_honest_kernel_is_right_and_left_alone(case, core):
    found, output = bugs.simulate(case, SimulatorEngine(core=core))

    assert found == []
    right = reference(case.problem, make_inputs(case.problem, 0))
    verdict = compare(output, right, case.stage.weights(case.problem))
    assert verdict.ok, verdict.diagnosis


@pytest.mark.parametrize("case", BUGS, ids=named)
def test_without_its_bug_the_case_is_clean(case):
    """The stage's own kernel, plan and inputs on the case's problem: nothing else is wrong with it."""
    options = {name: value for name, value in case.plan_changes.items() if name == "options"}
    clean = dataclasses.replace(
        case, source=case.stage.source(), plan_changes=options, input_changes=(), expect=None
    )

    assert bugs.simulate(clean, SimulatorEngine())[0] == []


def test_a_folder_that_no_longer_fits_the_kernel_is_told_by_name(tmp_path):
    folder = tmp_path / "stale"
    folder.mkdir()
    text = (bugs.CORPUS / "01_missing_first_barrier" / "bug.toml").read_text(encoding="utf-8")
    (folder / "bug.toml").write_text(text.replace("__syncthreads", "__syncnobody"), encoding="utf-8")

    with pytest.raises(ValueError, match=r"stale: 01_cooperative\.cu has 0 times"):
        bugs.read_case(folder)


def test_a_warning_does_not_fail_a_kernel():
    case = next(c for c in BUGS if c.expect.severity == "warning")
    stage = find_stage("02")

    report = check(Source(stage.path.name, case.source.text), stage, SimulatorEngine(), [case.problem])

    assert report.ok
    assert {f.severity for result in report.results for f in result.findings} == {"warning"}
