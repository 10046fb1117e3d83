"""Each dishonest or broken submission scores what it deserves, for its reason; each honest one full marks."""

import re

import pytest
from grading_corpus import load, mistakes

from labs_common.bugs import bugs
from labs_common.grading.cases import grading_cases
from labs_common.grading.grade import Task, grade_submission
from labs_common.grading.grade import sandbox as grading_sandbox
from labs_common.grading.isolation import Limits, Sandbox
from labs_common.grading.marking import case_request, hidden, judge, opening
from labs_common.grading.rubric import load_rubric, parse_rubric
from labs_common.grading.speed import SpeedMarker
from labs_common.grading.submissions import Kernel
from labs_common.plans import Device
from labs_common.reference import reference
from labs_common.stages import find_stage

SEED = "a seed that the corpus was not tuned to"
# A bomb ends at the limit, so that it decides how long these tests take; an honest kernel takes a second.
LIMITS = Limits(cpu_s=6)


BOTH = pytest.mark.parametrize("gpu", [False, pytest.param(True, marks=pytest.mark.gpu)], ids=["sim", "gpu"])


def graded(expected, gpu):
    rubric = parse_rubric(f'[assignment]\nstages = ["{expected.stage}"]')
    return grade_submission(Task(expected.submission, rubric, SEED, gpu, LIMITS))


@BOTH
@pytest.mark.parametrize("expected", load("dishonest"), ids=lambda e: e.name)
def test_dishonest(expected, gpu):
    assert mistakes(expected, graded(expected, gpu)) == []


@BOTH
@pytest.mark.parametrize("expected", load("honest"), ids=lambda e: e.name)
def test_honest(expected, gpu):
    record = graded(expected, gpu)

    assert mistakes(expected, record) == []
    grade = record["stages"][expected.stage]
    assert record["flags"] == {} == grade["flags"]
    assert [reason for reason in grade["reasons"] if not reason.startswith("speed: ")] == []
    assert gpu or grade["reasons"] == []


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(Limits(cpu_s=30)) as opened:
        yield opened


@pytest.mark.parametrize("expected", load("half"), ids=lambda e: e.name)
def test_half_is_read_and_never_added(expected, sandbox):
    """The bounds let pass what reads float16 and adds in float32, and nothing that adds in float16.

    On the problem of that class alone: every other one of the stage would be compiled and built besides.
    """
    stage = find_stage(expected.stage)
    (case,) = (case for case in grading_cases(stage, SEED) if case.kind == "half")
    right = tuple(reference(case.problem, inputs) for inputs in case.calls)
    with sandbox.open() as session:
        session.request(opening(stage, stage.path.name, expected.submission.kernels[stage.id].text, Device()))

        result = judge(case, right, session.request(case_request(case)))

    assert (result.reason, result.clean) == (expected.reason, True)


def test_the_corpora_are_as_large_as_promised():
    assert len(load("dishonest")) >= 30
    assert len(load("honest")) >= 12


# ---- on the GPU alone ------------------------------------------------------------------------------------

# The simulator stops these before a GPU meets them; should one pass it, its child ends there, and no more.
HARMFUL = {
    "endless_loop": "does not end: no result within",
    "waits_for_a_clock": "does not end: no result within",
    "sleeps": "does not end|never written",
    "printf_flood": "does not end|never written",
    "traps": "stopped at a fault",
    "follows_wild_pointers": "stopped at a fault|wrong|NaN|zero everywhere",
    "calls_an_address": "stopped at a fault|does not|crashed|NaN",
    "deep_recursion": "stopped at a fault|never written",
    "giant_shared_memory": "does not compile|stopped at a fault|cannot be launched",
    "nan_output": "NaN",
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", HARMFUL)
def test_a_kernel_that_harms_the_gpu_costs_its_child_and_nothing_else(name):
    (expected,) = (e for e in load("dishonest") if e.name == name)
    stage = find_stage(expected.stage)

    harmed_and_after(stage, expected.submission.kernels[stage.id].text, HARMFUL[name])


@pytest.mark.gpu
def test_a_deadlock_at_a_barrier_costs_its_child_and_nothing_else():
    (bug,) = (bug for bug in bugs() if bug.name == "01_barrier_count_too_large")

    harmed_and_after(bug.stage, bug.source.text, "does not end: no result within")


def harmed_and_after(stage, text, reason):
    """A kernel's first failure on the GPU, and then the stage's own kernel in another child."""
    secret = hidden(stage.id, SEED, Device(), grading_sandbox(LIMITS))
    marker = SpeedMarker(load_rubric(), SEED, Limits(step_s=25))

    (found,) = marker.cases(Kernel(stage.id, text, ""), stage, secret, Device())

    assert not found.ok and found.title.startswith("on the GPU, ")
    assert re.search(reason, found.reason)
    assert marker.cases(Kernel(stage.id, stage.source().text, ""), stage, secret, Device()) == []
