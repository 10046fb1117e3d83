"""Each dishonest or broken submission scores what it deserves, for its reason; each honest one full marks."""

import pytest
from grading_corpus import load, mistakes

from labs_common.grading.grade import Task, grade_submission
from labs_common.grading.isolation import Limits
from labs_common.grading.rubric import parse_rubric

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


def test_the_corpora_are_as_large_as_promised():
    assert len(load("dishonest")) >= 30
    assert len(load("honest")) >= 12
