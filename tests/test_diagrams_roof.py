"""Diagrams of the stages towards the roof, and the figures they are drawn from."""

import numpy as np
import pytest

from labs_common import diagrams_roof as roof
from labs_common import lessons
from labs_common.check import check, check_plan, check_problems
from labs_common.diagrams_roof import segment_blocks
from labs_common.plans import Device
from labs_common.problem import PRESETS, Problem
from labs_common.stages import ROOF, find_stage

MIXED = Problem(32, 8, 128, 16, (300, 4100, 17, 0, 900, 2000, 64, 1500), "float16", name="mixed")
by_id = pytest.mark.parametrize("stage", ROOF, ids=lambda s: s.id)


@by_id
def test_blocks_attend_to_every_token_of_every_head_once(stage):
    loads = roof.tokens_of_blocks(MIXED, stage.plan(MIXED))

    assert sum(loads) == sum(MIXED.context_lengths) * MIXED.kv_heads
    grid = stage.plan(MIXED).launches[0].grid
    assert len(loads) == grid[0] * grid[1] * grid[2]


def test_equal_runs_are_as_even_as_tiles_allow():
    plan = find_stage("08").plan(MIXED)
    loads = roof.tokens_of_blocks(MIXED, plan)

    assert max(loads) - min(loads) <= 16 * 8 * 8
    assert max(loads) < max(roof.dealt(roof.tokens_of_blocks(MIXED, find_stage("07").plan(MIXED)), 132))


def test_partial_results_are_what_the_plan_has_scratch_for():
    plan = find_stage("08").plan(MIXED)
    rows, columns = plan.scratch["values"]

    assert roof.partial_bytes(MIXED, plan) == 2 * 4 * rows * (columns + 2)
    whole = find_stage("09").plan(MIXED, whole=True)
    assert roof.partial_bytes(MIXED, whole) == 0 and len(whole.launches) == 2  # zeros of the empty context
    # 1 + 9 + 1 + 0 + 2 + 4 + 1 + 3 partitions of 512 tokens, for each of 32 query heads
    assert roof.partial_bytes(MIXED, find_stage("07").plan(MIXED)) == 2 * 4 * 21 * 32 * 130


@by_id
def test_the_rings_are_the_blocks_shared_memory(stage):
    plan = stage.plan(MIXED)
    slots = plan.defines["RING_SLOTS"]

    assert 0 < roof.ring_bytes(plan) <= plan.launches[0].shared_bytes
    assert roof.copied_bytes(plan) * slots == roof.ring_bytes(plan) * (slots - 1)


@pytest.mark.parametrize("row_chunks", [4, 6, 8, 12, 16, 32])
def test_swizzled_columns_meet_no_bank_twice(row_chunks):
    for column in range(row_chunks):
        groups = [roof.bank_group(row, column, row_chunks, True) for row in range(8)]
        assert sorted(groups) == list(range(8))
    for row in range(8):  # and no two chunks of a row are moved to the same place
        moved = {roof.bank_group(row, column, row_chunks, True) for column in range(min(8, row_chunks))}
        assert len(moved) == min(8, row_chunks)


def test_every_diagram_is_told_in_words():
    plan = find_stage("08").plan(MIXED, blocks=12)
    loads = {"07": roof.tokens_of_blocks(MIXED, find_stage("07").plan(MIXED)), "08": [3, 4]}
    charts = (
        roof.ring(3),
        roof.swizzle(16),
        roof.fragments(5),
        roof.runs(MIXED, plan),
        roof.block_loads(loads, 132),
        roof.waves(132, 400),
        roof.turned_fp8(5),
    )

    words = [chart.alt_text() for chart in charts]
    assert all(
        len(text) > 60 and chart.png().startswith(b"\x89PNG")
        for text, chart in zip(words, charts, strict=True)
    )
    assert "tokens 1 and 9 in dimensions 2, 3 (registers 0 and 1) and 10, 11" in words[2]
    assert "12 blocks have between" in words[3] and "133, needs a second wave and falls to 50 %" in words[5]
    assert "wants two tokens of one dimension side by side" in words[6]
    assert words[6].endswith(
        "token 2 in dimension 2, token 3 in dimension 2, token 2 in dimension 3, token 3 in dimension 3."
    )


def test_blocks_are_dealt_to_the_place_that_is_free_first():
    assert roof.dealt([5, 1, 1, 1, 4], 2).tolist() == [5, 7]


def test_one_more_token_costs_what_the_loop_does():
    table = lessons.per_token({"06": ("06_async_ring", "float16"), "07": ("07_tensor_core", "float16")}).map(
        lambda text: float(text.replace(",", ""))
    )

    assert table.loc["warp instructions", "07"] < table.loc["warp instructions", "06"] / 2
    assert np.isclose(
        table.loc["distinct bytes read"], 2 * 128 * 2 / 4, rtol=1e-3
    ).all()  # four heads share them
    assert (table.loc["block barriers"] == 0).all()


@pytest.mark.parametrize("number", ["08", "09"])
def test_a_check_has_blocks_with_several_segments(simulator, number):
    """A plan for all multiprocessors would give each block of a small problem one tile."""
    stage = find_stage(number)
    planned = [check_plan(stage, problem, Device()) for problem in check_problems(stage)]
    assert any((np.bincount(segment_blocks(plan)) > 1).any() for plan in planned)

    broken = lessons.change(stage.source(), "wait_for_set();", which=-1)
    report = check(broken, stage, simulator, [stage.typed(PRESETS["ragged"])], diagnose=False)

    assert {finding.tool for result in report.results for finding in result.findings} == {"racecheck"}
