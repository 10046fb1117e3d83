"""Speed marks: what a timing must show to count, and on a GPU that honest and lazy kernels are told apart."""

import numpy as np
import pytest

from labs_common.grading.grade import Task, grade_submission
from labs_common.grading.isolation import Limits
from labs_common.grading.rubric import parse_rubric
from labs_common.grading.speed import judge_timing
from labs_common.grading.submissions import Kernel, Submission
from labs_common.inputs import make_inputs
from labs_common.problem import Problem
from labs_common.reference import reference
from labs_common.stages import find_stage

PROBLEM = Problem(2, 1, 64, 16, (20,))
SIGNS = [[1], [-1], [1]]


@pytest.fixture(scope="module")
def expected():
    inputs = make_inputs(PROBLEM, 5)
    query = inputs.query.copy()
    found = {}
    for sign in (1, -1):
        inputs.query[...] = sign * query
        found[sign] = reference(PROBLEM, inputs)
    return [found]


def answer(expected, student=2e-6, own=1e-6, stale=False, ceiling=4e12):
    outputs = [expected[0][1 if stale else row[0]].output.astype(np.float32) for row in SIGNS]
    return {
        "seconds": {"student": [student] * 3, "reference": [own] * 3},
        "outputs": [{"set": 0, "output": output} for output in outputs],
        "ceiling": ceiling,
        "gpu": "NVIDIA H200",
    }


def test_a_ratio_of_right_outputs(expected):
    found = judge_timing(PROBLEM, answer(expected), SIGNS, expected)

    assert found["ratio"] == 2
    assert found["bandwidth"] == pytest.approx(PROBLEM.minimum_bytes / 2e-6)
    assert "impossible" not in found


def test_work_that_is_not_done_in_every_round_is_seen(expected):
    found = judge_timing(PROBLEM, answer(expected, stale=True), SIGNS, expected)

    assert "does not do its work every time" in found["error"]


def test_faster_than_memory_is_flagged(expected):
    found = judge_timing(PROBLEM, answer(expected, ceiling=1e9), SIGNS, expected)

    assert "where plain reading reaches 1 GB/s" in found["impossible"]


@pytest.mark.parametrize("student", [0.0, -1.0, float("nan"), float("inf")])
def test_times_that_are_none(expected, student):
    assert judge_timing(PROBLEM, answer(expected, student=student), SIGNS, expected)["error"]


def test_missing_rounds(expected):
    short = answer(expected)
    short["outputs"] = short["outputs"][:2]

    assert "2 of 3" in judge_timing(PROBLEM, short, SIGNS, expected)["error"]


# ---- on a GPU --------------------------------------------------------------------------------------------

STAGE = find_stage("02")
RUBRIC = parse_rubric('[assignment]\nstages = ["02"]')


def graded(text, limits=None):
    submission = Submission("anna", {STAGE.id: Kernel(STAGE.id, text, "02_vectorized.cu")})
    return grade_submission(Task(submission, RUBRIC, "seed", gpu=True, limits=limits or Limits()))["stages"][
        STAGE.id
    ]


@pytest.mark.gpu
def test_the_reference_has_full_marks():
    grade = graded(STAGE.source().text)

    assert grade["total"] == grade["out_of"] == 100, grade["reasons"]
    assert 0.9 < grade["speed"]["ratio"] < 1.1


@pytest.mark.gpu
def test_a_slower_kernel_has_fewer():
    slow = STAGE.source().text.replace("warp_sum(partial)", "warp_sum(warp_sum(warp_sum(partial))) / 1024.0f")
    grade = graded(slow)

    assert grade["points"]["correctness"] == 50
    assert grade["speed"]["ratio"] > 1.1
    assert grade["points"]["speed"] < 15


@pytest.mark.gpu
def test_a_kernel_that_hangs_on_the_gpu_costs_its_child_and_nothing_else():
    """It waits for ever on the timed problem only, the one with more than 8 sequences."""
    text = STAGE.source().text
    start = "  const int query_head = blockIdx.x;"
    wait = "while (gridDim.y > 8 && clock64() >= 0) __nanosleep(1000);"
    grade = graded(text.replace(start, f"  {wait}\n{start}"), Limits(step_s=25))

    assert grade["points"]["correctness"] == 50
    assert grade["points"]["speed"] == 0
    assert any("no result within 25 s" in reason for reason in grade["reasons"])
    assert graded(text)["total"] == 100


@pytest.mark.gpu
def test_a_kernel_that_skips_work_when_it_has_seen_the_query_is_caught():
    """State in the output itself: what is no longer NaN was computed before, or so it hopes."""
    text = STAGE.source().text
    start = "  const int query_head = blockIdx.x;"
    skip = "if (gridDim.y > 8 && output[0] == output[0]) return;"
    grade = graded(text.replace(start, f"  {skip}\n{start}"))

    assert grade["points"]["speed"] == 0 or grade["speed"]["ratio"] > 0.9
