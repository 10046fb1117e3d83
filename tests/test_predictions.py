"""Predictions are read without being run, and scored against counted and recorded figures."""

import json
import math

import pytest

from labs_common import metric_names as names
from labs_common import metrics as metrics_table
from labs_common.predictions import (
    LIMITERS,
    answer_cell,
    parse_predictions,
    questions,
    read_answer_cells,
    reference_counts,
    score,
    table,
)
from labs_common.problem import PRESETS
from labs_common.stages import ALL_STAGES

KERNELS = {"02_vectorized": "two", "03_gqa_reuse": "three"}


def profile(values):
    """A recorded profile: (tool, stage, metric, value, unit)."""
    return metrics_table.build(
        [
            {
                "tool": tool,
                "stage": stage,
                "kernel": KERNELS[stage],
                "launch": 0,
                "metric": metric,
                "value": value,
                "unit": unit,
            }
            for tool, stage, metric, value, unit in values
        ],
        source="recorded",
        gpu="h200",
        problem="seed",
    )


RECORDED = profile(
    [
        ("events", "02_vectorized", names.TIME, 3e6, "nsecond"),
        ("events", "03_gqa_reuse", names.TIME, 2e6, "nsecond"),
        ("ncu", "02_vectorized", names.REGISTERS, 40.0, "register/thread"),
        ("ncu", "03_gqa_reuse", names.REGISTERS, 64.0, "register/thread"),
        ("ncu", "02_vectorized", names.THEORETICAL_OCCUPANCY, 50.0, "%"),
        ("ncu", "03_gqa_reuse", names.THEORETICAL_OCCUPANCY, 50.0, "%"),
        ("ncu", "03_gqa_reuse", names.DRAM_PCT, 90.0, "%"),
        ("ncu", "03_gqa_reuse", names.COMPUTE_PCT, 30.0, "%"),
        ("ncu", "03_gqa_reuse", names.MEMORY_PCT, 90.0, "%"),
    ]
)
COUNTED = metrics_table.build(
    [
        {
            "stage": stage,
            "kernel": KERNELS[stage],
            "launch": 0,
            "metric": metric,
            "value": value,
            "unit": unit,
        }
        for stage, metric, value, unit in [
            ("02_vectorized", names.GLOBAL_LOAD_REQUESTS, 12_000.0, "request"),
            ("03_gqa_reuse", names.GLOBAL_LOAD_REQUESTS, 3_000.0, "request"),
            ("03_gqa_reuse", names.DRAM_READ_BYTES, 2e6, "byte"),
        ]
    ],
    source="simulated",
    tool="simulator",
    gpu="h200",
    problem="ragged",
)


def scored(**answers):
    return {one.id: one for one in score(answers, 3, recorded=RECORDED, counted=COUNTED)}


def test_right_answers_have_all_points():
    found = scored(
        megabytes_read=2.0,
        load_requests=4,
        limiter="DRAM",
        times_faster=1.5,
        registers="up",
        occupancy="same",
    )

    assert {name: one.points for name, one in found.items()} == dict.fromkeys(found, 1.0)
    assert all(one.why == "" for one in found.values())


@pytest.mark.parametrize(
    ("answer", "points"),
    [
        (1.5, 1),
        (2.25, 1),
        (1.0, 1),
        (2.3, 0.5),
        (3.3, 0.5),
        (3.4, 0),
        (0.5, 0),
        (0, 0),
        (-1.5, 0),
        (math.inf, 0),
    ],
)
def test_a_speed_up_within_a_factor_of_one_and_a_half(answer, points):
    """The truth is 1.5; full to a factor of 1.5, half to its square of 2.25."""
    assert scored(times_faster=answer)["times_faster"].points == points


def test_an_amount_that_is_only_near_is_explained_though_it_has_its_point():
    """The truth is 4 times fewer requests."""
    near, exact = scored(load_requests=3)["load_requests"], scored(load_requests=4.1)["load_requests"]

    assert (near.points, exact.points, exact.why) == (1, 1, "")
    assert near.why.startswith("off by a factor of 1.3. A request is one load instruction")


def test_a_miss_is_explained_with_gpu_and_toolkit():
    found = scored(registers="down", limiter="latency", megabytes_read=16)

    assert found["registers"].points == 0
    assert "up: 40 to 64 registers (H200, NVRTC" in found["registers"].truth
    assert "Another toolkit or GPU" in found["registers"].why
    assert "DRAM-bound" in found["limiter"].truth and "DRAM throughput" in found["limiter"].why
    assert "off by a factor of 8" in found["megabytes_read"].why
    assert found["occupancy"].why == "not predicted"


def test_what_was_not_recorded_is_not_scored():
    one = score({"times_faster": 2}, 3, recorded=RECORDED.iloc[:1], counted=COUNTED)[3]

    assert one.id == "times_faster" and math.isnan(one.points)
    assert table([one])["points"].tolist() == [metrics_table.ABSENT]


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"speed": 2}, "'speed' is no question of 03_gqa_reuse; there are megabytes_read"),
        ({"times_faster": "fast"}, "times_faster='fast': it is a number"),
        ({"times_faster": True}, "times_faster=True: it is a number"),
        ({"registers": "more"}, "registers='more': it is one of up, down, same"),
    ],
)
def test_an_answer_of_the_wrong_kind_is_told_what_is_allowed(answers, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        score(answers, 3, recorded=RECORDED, counted=COUNTED)


@pytest.mark.parametrize("stage", ALL_STAGES, ids=lambda s: s.id)
def test_the_answer_cell_asks_every_question_and_answers_none(stage):
    answers = parse_predictions(answer_cell(stage))

    assert list(answers) == [question.id for question in questions(stage)]
    assert set(answers.values()) == {None}
    assert ("times_faster" in answers) == (stage.id != "00_baseline")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("predictions = {", "no Python"),
        ("print('hello')", "must assign one dictionary"),
        ("a = {}\nb = {}", "must assign one dictionary"),
        ("predictions = {'limiter': open('x').read()}", "line 1 of the answer cell"),
        ("predictions = {\n'limiter': __import__('os').getcwd()}", "line 2 of the answer cell"),
        ("predictions = {**{}}", "answer"),
        ("predictions = {1: 2}", "a key is a text"),
        ("predictions = {'limiter': ['dram']}", "not list"),
        ("predictions = {'x': " + "-" * 100_000 + "1}", "answer"),
    ],
)
def test_an_answer_cell_is_read_and_never_run(text, message):
    with pytest.raises(ValueError, match=message):
        parse_predictions(text)


def test_numbers_and_texts_of_an_answer_cell():
    assert parse_predictions("p = {'a': -1.5, 'b': 'up', 'c': None}  # mine") == {
        "a": -1.5,
        "b": "up",
        "c": None,
    }


def test_limiters_cover_the_rules_of_explain():
    from labs_common import explain

    rules = {rule for accepted in LIMITERS.values() for rule in accepted}

    assert set(explain._TITLES) - {"unknown"} <= rules
    assert rules <= set(explain._TITLES) | {"leaning"}


def test_counts_are_read_from_a_table_where_there_is_one(tmp_path, monkeypatch):
    monkeypatch.setattr("labs_common.predictions.COUNTED", tmp_path)
    metrics_table.save_csv(COUNTED, tmp_path / "ragged.csv")

    counts = reference_counts(["03_gqa_reuse"], PRESETS["ragged"])

    assert set(counts["stage"]) == {"03_gqa_reuse"}
    assert metrics_table.value(counts, names.GLOBAL_LOAD_REQUESTS, stage="03_gqa_reuse") == 3_000


def test_counted_bytes_of_the_labs_kernels_are_the_bytes_that_must_be_read(simulator):
    """Ragged: 918 tokens, two caches, two heads of 128 floats; query and tables besides."""
    tokens = 0 + 1 + 16 + 389 + 512
    megabytes = tokens * 2 * 2 * 128 * 4 / 1e6

    one = score({"megabytes_read": megabytes}, 2, engine=simulator, recorded=RECORDED)[0]

    assert one.id == "megabytes_read" and one.points == 1


def test_answer_cells_of_a_notebook(tmp_path):
    def cell(tag, source):
        return {"cell_type": "code", "metadata": {"tags": [tag]}, "source": source}

    path = tmp_path / "notebook.ipynb"
    path.write_text(json.dumps({"cells": [cell("palab:answer:one", ["a = ", "1"]), cell("other", "b = 2")]}))
    assert read_answer_cells(path) == {"one": "a = 1"}

    path.write_text(json.dumps({"cells": [cell("palab:answer:one", ""), cell("palab:answer:one", "")]}))
    with pytest.raises(ValueError, match="palab:answer:one"):
        read_answer_cells(path)
