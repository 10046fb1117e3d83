"""Rubric, answers and structure: what a count or an answer is worth, and what a rubric may say."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from labs_common.compare import compare
from labs_common.grading.answers import mark_answers, mark_predictions, plain, read_number
from labs_common.grading.cases import TITLES, grading_cases
from labs_common.grading.grade import Task, grade_submission
from labs_common.grading.rubric import (
    OWN,
    AnswerKey,
    Limit,
    RubricError,
    load_rubric,
    parse_rubric,
    rubric_path,
)
from labs_common.grading.speed import speed_problem
from labs_common.grading.structure import mark_structure, reads_too_little, structure_share
from labs_common.grading.submissions import Submission
from labs_common.predictions import score
from labs_common.problem import FP8
from labs_common.reference import reference
from labs_common.stages import ALL_STAGES, ROOF, STAGES, find_stage

WRONG = {
    "no TOML": ("x = ", "no TOML"),
    "unknown table": ("[point]\ncorrectness = 1", "point is unknown; allowed are assignment, points"),
    "unknown part": ("[points]\ncorrectnes = 1", "points.correctnes is unknown"),
    "negative": ("[points]\nspeed = -1", "points.speed of 00_baseline = -1; it must be a number from 0"),
    "text": ('[points]\nspeed = "5"', "points.speed of 00_baseline = '5'"),
    "not finite": ("[points]\nspeed = inf", "= inf"),
    "a truth value": ("[points]\nspeed = true", "= True"),
    "unknown stage": ('[assignment]\nstages = ["10"]', "no stage called '10'"),
    "stage twice": ('[assignment]\nstages = ["02", "02_vectorized"]', "every stage once"),
    "no stage": ("[assignment]\nstages = []", "not empty"),
    "a path as name": ('[assignment]\nname = "../x"', "a folder name"),
    "unknown class": ("[correctness]\nfar_away = 1", "correctness.far_away is unknown"),
    "plain left out": ("[correctness]\nplain = 0", "it gates all other points"),
    "limits crossed": (
        "[structure.sectors]\nfull = 5",
        "structure.sectors.none = 4.0; it must be more than full, 5",
    ),
    "unknown flag": ('[integrity]\nzero = ["luck"]', "integrity.zero = 'luck'"),
    "a flag without a list": ('[integrity]\nzero = "keeps state"', "integrity.zero = 'keeps state'"),
    "unknown kind": ('[answers.a]\npoints = 1\nkind = "essay"', "number, choice or hand"),
    "number without value": (
        '[answers.a]\npoints = 1\nkind = "number"',
        "value, and either factor or tolerance",
    ),
    "factor and tolerance": (
        '[answers.a]\npoints = 1\nkind = "number"\nvalue = 1\nfactor = 2\ntolerance = 1',
        "either factor or tolerance",
    ),
    "choice without texts": ('[answers.a]\npoints = 1\nkind = "choice"', "at least one text"),
    "no points": ('[answers.a]\nkind = "hand"', "answers.a.points = None"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_rubric_names_the_field(text, message):
    with pytest.raises(RubricError) as error:
        parse_rubric(text, "lab.toml")

    assert str(error.value).startswith("lab.toml: ")
    assert message in str(error.value)


def test_the_default_rubric():
    rubric = load_rubric()

    assert rubric.stages == tuple(stage.id for stage in STAGES)
    assert rubric.maximum("03_gqa_reuse", gpu=True) == 100
    assert rubric.maximum("03_gqa_reuse", gpu=False) == 85


def test_the_rubric_of_the_stages_towards_the_roof():
    rubric = load_rubric(Path("roof"))

    assert rubric.stages == tuple(stage.id for stage in ROOF)
    assert rubric.structure["sectors"] == load_rubric().structure["sectors"]
    assert rubric.structure["multiplies"].none < load_rubric().structure["multiplies"].none
    assert rubric.speed.none < load_rubric().speed.none
    assert {rubric.maximum(stage, gpu=True) for stage in rubric.stages} == {100}


def test_a_rubric_that_is_neither_a_file_nor_one_of_the_labs(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="the lab's own rubrics are default, roof"):
        rubric_path(Path("rooof"))

    monkeypatch.chdir(tmp_path)
    Path("roof").mkdir()
    assert rubric_path(Path("roof")) == OWN["roof"]
    Path("roof.toml").write_text("")
    assert rubric_path(Path("roof.toml")) == Path("roof.toml")


def test_a_stage_may_have_points_of_its_own():
    rubric = parse_rubric('[assignment]\nstages = ["0", "3"]\n[points]\nspeed = 0\n[stage.03]\nspeed = 40')

    assert rubric.points["00_baseline"]["speed"] == 0
    assert rubric.points["03_gqa_reuse"]["speed"] == 40
    assert rubric.total(gpu=True) == 85 + 125


def test_marks_depend_on_every_field_of_a_rubric():
    digests = {
        parse_rubric(text).digest
        for text in (
            "",
            "[points]\nspeed = 16",
            "[structure.spills]\ncounts = false",
            "[correctness]\nfar = 2",
        )
    }

    assert len(digests) == 4


@pytest.mark.parametrize(
    ("ratio", "share"), [(0.5, 1), (1.5, 1), (2.4494897, 0.5), (4, 0), (9, 0), (math.inf, 0)]
)
def test_a_ratio_between_the_limits_counts_by_its_logarithm(ratio, share):
    """sqrt(1.5 * 4) = 2.449 lies half way between 1.5 and 4."""
    assert Limit(1.5, 4).share(ratio) == pytest.approx(share, abs=1e-6)


def test_an_excess_over_zero_counts_linearly():
    assert Limit(0, 256).share(64) == 0.75


REFERENCE = {
    "requests": 100.0,
    "sectors": 800.0,
    "sectors_per_request": 1.0,
    "multiplies": 1.0,
    "instructions": 1e6,
    "busiest_warp": 0.1,
    "barriers_per_token": 0.0,
    "kv_bytes": 4096.0,
    "shared_wavefronts": 0.0,
    "spills": 0.0,
}


def share_with(**changes):
    return structure_share(mark_structure({**REFERENCE, **changes}, REFERENCE, load_rubric().structure))


def test_the_worst_count_decides():
    assert share_with() == 1
    assert share_with(requests=50.0, sectors=400.0) == 1
    assert share_with(multiplies=100.0) == 0
    assert share_with(requests=200.0) == pytest.approx(math.log(2) / math.log(4 / 1.6))
    assert share_with(requests=200.0, spills=128.0) == 0.5


def test_a_warp_with_twice_its_share_of_the_work():
    """0.2 is twice 0.1, between 1.75 and 2.5 times."""
    assert share_with(busiest_warp=0.2) == pytest.approx(math.log(2.5 / 2) / math.log(2.5 / 1.75))
    assert share_with(busiest_warp=0.5) == 0


def test_what_the_reference_does_not_have_is_left_out():
    """Shared memory in a stage whose reference has none is a choice; a barrier a token is work."""
    assert share_with(shared_wavefronts=1e6) == 1
    assert share_with(barriers_per_token=0.02) == 1
    assert share_with(barriers_per_token=2.0) == 0


def test_reading_less_than_there_is():
    assert reads_too_little({**REFERENCE, "kv_bytes": 2048.0}, REFERENCE)
    assert not reads_too_little(REFERENCE, REFERENCE)


NUMBERS = {
    "3.5": 3.5,
    "about 3.5 ms": 3.5,
    "1,5": 1.5,
    "39,000,000 cycles": 39e6,
    "2_400": 2400,
    "4x": 4,
    "-2": -2,
    "1e-6": 1e-6,
    "between 3 and 4": None,
    "many": None,
    "": None,
}


@pytest.mark.parametrize(("text", "number"), NUMBERS.items())
def test_numbers_in_answers(text, number):
    assert read_number(text) == number


def test_text_is_compared_without_its_looks():
    assert plain("  **Memory-latency**! ") == "memory latency"
    assert plain("Bandbreite: DÉBIT") == "bandbreite debit"


def test_answers_are_marked_by_their_key():
    keys = {
        "factor": AnswerKey(2, "number", value=4, factor=1.5),
        "tolerance": AnswerKey(1, "number", value=0, tolerance=0.1, why="all of them are cached"),
        "choice": AnswerKey(3, "choice", accept=("latency", "memory latency")),
        "hand": AnswerKey(4, "hand"),
        "missing": AnswerKey(1, "number", value=1, factor=2),
    }
    given = {"factor": "5.9", "tolerance": "0.2", "choice": "Latency.", "hand": "an essay"}

    marks = {mark.answer: mark for mark in mark_answers(given, keys)}

    assert {name: mark.points for name, mark in marks.items()} == {
        "factor": 2,
        "tolerance": 0,
        "choice": 3,
        "hand": 0,
        "missing": 0,
    }
    assert marks["tolerance"].reason == "not right: all of them are cached"
    assert marks["hand"].by_hand
    assert marks["missing"].reason == "no answer"


def test_a_person_has_the_last_word_within_the_points():
    keys = {"hand": AnswerKey(4, "hand"), "choice": AnswerKey(3, "choice", accept=("x",))}

    marks = mark_answers({"choice": "y"}, keys, {"hand": 9, "choice": 1.5})

    assert [mark.points for mark in marks] == [4, 1.5]


@pytest.mark.parametrize("text", ["__import__('os')._exit(1)", "9" * 5000, "1e999", "\0", "4\n" * 10000])
def test_no_answer_is_evaluated(text):
    (mark,) = mark_answers({"a": text}, {"a": AnswerKey(1, "number", value=4, factor=2)})

    assert mark.points == 0


def test_predictions_are_scored_by_what_is_counted_and_recorded():
    """The scores are those of the notebooks' own function; a rubric turns their mean into points."""
    stage = find_stage("03")
    text = 'predictions = {"load_requests": 1e9, "limiter": "dram"}'
    scored = [one for one in score(text, stage) if one.points == one.points]

    share, reasons = mark_predictions(text, stage)

    assert share == pytest.approx(sum(one.points for one in scored) / len(scored))
    assert share < 1
    assert len(reasons) == sum(one.points < 1 for one in scored)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no python",
        "predictions = {'x': 1}",
        "predictions = {'limiter': __import__('os')}",
        "-" * 19_000 + "1",
        "predictions = {'megabytes_read': 1" + "0" * 400 + "}",
    ],
)
def test_an_answer_cell_that_cannot_be_read_gives_none(text):
    share, reasons = mark_predictions(text, find_stage("03"))

    assert share == 0
    assert reasons[0].startswith("predictions: ")


def test_predictions_have_points_of_their_own():
    rubric = parse_rubric('[assignment]\nstages = ["3"]\n[points]\npredictions = 10')

    record = grade_submission(Task(Submission("anna"), rubric, "seed"))

    assert record["stages"]["03_gqa_reuse"]["maximum"]["predictions"] == 10
    assert record["out_of"] == 95


@pytest.mark.parametrize("stage", ALL_STAGES, ids=lambda s: s.id)
@pytest.mark.parametrize("seed", ["a seed", "another"])
def test_every_class_that_a_stage_can_take_is_graded(stage, seed):
    """Whatever the seed draws, and every number format that the stage takes."""
    cases = grading_cases(stage, seed)

    assert {case.problem.dtype for case in cases} == {*stage.dtypes}
    assert all(case.weights == stage.weights(case.problem) for case in cases)
    absent = {*TITLES} - {case.kind for case in cases}
    of_formats = {"half": "float16", "large_group": "float16", "bfloat16": "bfloat16", "fp8": FP8}
    assert absent == {
        *(kind for kind, dtype in of_formats.items() if dtype not in stage.dtypes),
        *([] if stage.tensor_cores and "float32" in stage.dtypes else ["single"]),
        *(["layout"] if len(stage.layouts) == 1 else []),
    }


@pytest.mark.parametrize("stage", ALL_STAGES, ids=lambda s: s.id)
def test_no_seed_lets_a_kernel_take_one_length_for_all(stage):
    """Neither the table's width nor the first sequence's length is that of every plain sequence."""
    for seed in range(10):
        plain = grading_cases(stage, str(seed))[0].problem

        assert len(set(plain.context_lengths)) == len(plain.context_lengths) == 3


@pytest.mark.parametrize("stage", ALL_STAGES, ids=lambda s: s.id)
def test_of_one_class_there_is_one_problem_and_of_layouts_each(stage):
    kinds = Counter(case.kind for case in grading_cases(stage, "a seed"))

    assert kinds.pop("layout", 0) == len(stage.layouts) - 1
    assert set(kinds.values()) == {1}


def test_a_problem_is_in_the_number_format_that_its_stage_is_taught_with():
    for number, dtype in (("03", "float32"), ("06", "float32"), ("07", "float16"), ("08", "float16")):
        stage = find_stage(number)
        plain = grading_cases(stage, "a seed")[0].problem

        assert plain.dtype == speed_problem(stage).dtype == dtype


@pytest.mark.parametrize("seed", [f"seed {n}" for n in range(12)])
def test_a_hidden_case_needs_the_scores_of_absent_tokens_to_be_no_scores(simulator, seed):
    """With very negative scores only; a tile has to end behind the last token for that, whatever is drawn."""
    stage = find_stage("06")
    (case,) = (case for case in grading_cases(stage, seed) if case.kind == "extreme")
    source = stage.source()
    unmasked = replace(source, text=source.text.replace("if (!valid) score[s] = -INFINITY;", ""))
    assert unmasked != source

    (inputs, *_), right = case.calls, reference(case.problem, case.calls[0])
    outputs = [simulator.run(stage, case.problem, inputs, one).output for one in (source, unmasked)]

    assert [compare(output, right).ok for output in outputs] == [True, False]
