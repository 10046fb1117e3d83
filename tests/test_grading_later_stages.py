"""Stages 05 to 09 by their rubrics: full marks for their own kernels and honest ones, losses for faults."""

import dataclasses

import pytest
from faulty.plants import HONEST, PLANTS, planted
from grading_in_process import InProcess

from labs_common.grading import execution, marking
from labs_common.grading.cases import Case, structure_problem
from labs_common.grading.execution import Runner, core_for
from labs_common.grading.grade import Task, grade_submission
from labs_common.grading.isolation import Limits
from labs_common.grading.marking import mark_kernel
from labs_common.grading.rubric import OWN, load_rubric
from labs_common.grading.submissions import Kernel, Submission
from labs_common.inputs import make_inputs
from labs_common.problem import Problem
from labs_common.stages import ALL_STAGES, find_stage

LATER = [stage for stage in ALL_STAGES if stage.id >= "05"]
SEED = "a seed of later stages"


def rubric_of(stage):
    return next(rubric for rubric in map(load_rubric, OWN.values()) if stage.id in rubric.stages)


SANDBOX = InProcess(Runner)


def counted_case(stage, seed, device):
    """The structure problem with as few tokens as two partitions have."""
    case = structure_problem(stage, seed, device)
    problem = case.problem.replace(context_lengths=(530, 17))
    return dataclasses.replace(case, problem=problem, calls=(make_inputs(problem),))


def few_cases(stage, seed, device):
    """In the shape of that problem, so that a kernel is compiled once."""
    shape = counted_case(stage, seed, device).problem
    lengths = {"plain": (64, 32), "partial_page": (33, 0, 75)}
    problems = {kind: shape.replace(context_lengths=numbers) for kind, numbers in lengths.items()}
    return tuple(
        Case(kind, kind, problem, (make_inputs(problem),), weights=stage.weights(problem))
        for kind, problem in problems.items()
    )


@pytest.fixture
def marked(monkeypatch):
    """Marks for a text in a stage's place, on few problems, undiagnosed and without the busiest warp."""
    monkeypatch.setattr(marking, "grading_cases", few_cases)
    monkeypatch.setattr(marking, "structure_problem", counted_case)
    monkeypatch.setattr(marking, "_diagnose", lambda *_: None)
    monkeypatch.setattr(Runner, "_busiest_warps", lambda *_: 1)
    monkeypatch.setattr(execution, "core_for", lambda *_: "numpy")  # building takes longer than all the rest

    def mark(stage, text):
        return mark_kernel(Kernel(stage.id, text, ""), stage, rubric_of(stage), SEED, SANDBOX)

    return mark


@pytest.mark.parametrize("stage", LATER, ids=lambda s: s.id)
def test_a_stages_own_kernel_has_full_marks(stage, marked):
    grade = marked(stage, stage.source().text)

    assert grade.points == grade.maximum and grade.flags == {} and grade.reasons == []


HONEST_NAMES = {
    "5": "rescaled whether or not the maximum grew",
    "6": "rescaled whether or not the maximum grew",
    "7": "summed in another order",
    "8": "the first column by its item",
    "9": "rows counted the other way round",
}


def edited(plants, name, number):
    return next(
        planted(number, edits) for known, stages, edits in plants if known == name and number in stages
    )


@pytest.mark.parametrize("number", HONEST_NAMES)
def test_an_honest_variant_has_full_marks(number, marked):
    stage = find_stage(f"0{number}")
    source = edited(HONEST, HONEST_NAMES[number], number)
    assert source.text != stage.source().text

    grade = marked(stage, source.text)

    assert grade.points == grade.maximum and grade.flags == {} and grade.reasons == []


# What is left of correctness and cleanliness: nothing where the plainest problem is wrong.
FAULTS = [
    ("unscaled", "5", "whole"),
    ("first_split_only", "5", "part"),
    ("kv_head_0", "6", "whole"),
    ("synccheck", "6", "whole"),
    ("query_of_group_first", "7", "whole"),
    ("last_split_dropped", "7", "whole"),
    ("merge_without_correction", "8", "whole"),
    ("racecheck", "8", "part"),
    ("keys_and_values_swapped", "9", "whole"),
    ("first_split_only", "9", "part"),
]


@pytest.mark.parametrize(("name", "number", "lost"), FAULTS, ids=lambda v: v)
def test_a_planted_fault_loses(name, number, lost, marked):
    stage = find_stage(f"0{number}")

    grade = marked(stage, edited(PLANTS, name, number).text)

    assert grade.points["structure"] == 0
    assert grade.reasons
    assert grade.points["correctness"] < grade.maximum["correctness"]
    if lost == "whole":
        assert grade.total == 0


def test_tensor_cores_that_are_left_idle_are_seen(marked):
    """08 with what it does for float32, in place of mma: right, and five times the multiplications."""
    stage = find_stage("08")
    choice = '#ifdef MMA_TYPE\n#include "tile_mma.cuh"'
    assert choice in stage.source().text

    grade = marked(stage, stage.source().text.replace(choice, choice.replace("#ifdef MMA_TYPE", "#if 0")))

    assert grade.points == grade.maximum | {"structure": 0}, grade.reasons
    assert any("multiplications" in reason for reason in grade.reasons)


@pytest.mark.parametrize(
    ("number", "tokens", "again", "core"),
    [
        ("08", 90, False, "numpy"),
        ("08", 90, True, "llvm"),
        ("08", 900, False, "llvm"),
        ("02", 90, False, "llvm"),
    ],
)
def test_what_is_built_only_once_and_small_is_interpreted(number, tokens, again, core):
    problem = find_stage(number).typed(Problem(8, 2, 128, 16, (tokens,)))

    assert core_for(problem, find_stage(number).plan(problem), again) == core


@pytest.mark.gpu
@pytest.mark.parametrize("stage", LATER, ids=lambda s: s.id)
def test_on_a_gpu_a_stages_own_kernel_has_full_marks(stage):
    """On every hidden problem, in a child; its time is compared with its own, on a GPU that may be busy."""
    submission = Submission("anna", {stage.id: Kernel(stage.id, stage.source().text, stage.path.name)})
    rubric = dataclasses.replace(rubric_of(stage), stages=(stage.id,))

    record = grade_submission(Task(submission, rubric, SEED, True, Limits(file_bytes=64 << 20)))

    grade = record["stages"][stage.id]
    assert grade["flags"] == {}
    assert {**grade["points"], "speed": 0} == {**grade["maximum"], "speed": 0}, grade["reasons"]
    assert 0.7 < grade["speed"]["ratio"] < 1.4
