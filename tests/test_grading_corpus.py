"""Each dishonest or broken submission scores what it deserves, for its reason; each honest one full marks."""

import pytest
from grading_corpus import load, mistakes

from labs_common.grading.cases import grading_cases
from labs_common.grading.grade import Task, grade_submission
from labs_common.grading.isolation import Limits, Sandbox
from labs_common.grading.marking import case_request, judge, opening
from labs_common.grading.rubric import parse_rubric
from labs_common.plans import Device
from labs_common.reference import reference
from labs_common.stages import find_stage

SEED = "a seed that the corpus was not tuned to"
# A bomb ends at the limit, so that it decides how long these tests take; an honest kernel takes a second.
LIMITS = Limits(cpu_s=8)


@pytest.mark.parametrize("expected", load("dishonest"), ids=lambda e: e.name)
def test_dishonest(expected):
    rubric = parse_rubric(f'[assignment]\nstages = ["{expected.stage}"]')

    record = grade_submission(Task(expected.submission, rubric, SEED, limits=LIMITS))

    assert mistakes(expected, record) == []


@pytest.mark.parametrize("expected", load("honest"), ids=lambda e: e.name)
def test_honest(expected):
    rubric = parse_rubric(f'[assignment]\nstages = ["{expected.stage}"]')

    record = grade_submission(Task(expected.submission, rubric, SEED, limits=LIMITS))

    assert mistakes(expected, record) == []
    assert record["flags"] == {} == record["stages"][expected.stage]["flags"]
    assert record["stages"][expected.stage]["reasons"] == []


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
