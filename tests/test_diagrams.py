"""Diagrams show the problem they were drawn from; expected figures are worked out by hand."""

import pytest
from test_charts import inside

from labs_common import diagrams
from labs_common.display import chart_data
from labs_common.inputs import make_inputs
from labs_common.problem import PRESETS, Problem
from labs_common.stages import ALL_STAGES, find_stage

RAGGED = PRESETS["ragged"]  # 8 query heads, 2 kv heads, head_dim 128, page 16, contexts 0, 1, 16, 389, 512


def texts(chart) -> str:
    return "\n".join(text for panel in chart_data(chart) for text in panel.get("texts", []))


def test_page_table_names_the_physical_pages_and_fills_the_slots():
    problem = Problem(4, 2, 64, 4, (13, 6, 0, 9))
    inputs = make_inputs(problem)
    chart = diagrams.page_table(problem, inputs)
    words = chart.alt_text()

    assert (
        "sequence 1 (6 tokens) uses physical pages " + ", ".join(map(str, inputs.block_tables[1, :2]))
        in words
    )
    assert f"page {inputs.block_tables[0, 0]} is shared by sequences 0 and 1" in words
    assert "sequence 2 (0 tokens) uses physical pages none" in words
    # 4 + 2 + 0 + 3 table entries less one shared page, and 3 spare pages: 11 pages of 4 slots in the pool.
    assert len(chart_data(chart)[2]["bars"]) == 11 * 4


def test_page_table_refuses_more_sequences_than_colours():
    problem = Problem(1, 1, 4, 4, (1,) * 7)
    with pytest.raises(ValueError, match="batch=7"):
        diagrams.page_table(problem, make_inputs(problem))


def test_cache_layout_counts_bytes_sectors_and_lanes():
    words = diagrams.cache_layout(PRESETS["seed"]).alt_text()

    # 128 floats are 512 bytes: 16 sectors of 32, 32 lanes of 16; 8 heads and 16 slots make 64 KiB.
    for figure in ("65536 bytes", "16 memory sectors", "32 lanes", "512 bytes a head"):
        assert figure in words


def test_a_tree_leaves_the_sum_in_lane_0_and_a_butterfly_in_all():
    chart = diagrams.reduction_tree(4)

    # Lanes 1 2 3 4. shfl_down by 2: 4 6 6 8; by 1: 10 12 14 16. shfl_xor: 4 6 4 6; then 10 everywhere.
    assert "lane 0 ends with the sum 10, the others with 12, 14, 16" in chart.alt_text()
    down, xor = chart_data(chart)[1:]
    assert [int(t) for t in down["texts"] if t.isdigit()] == [1, 2, 3, 4, 4, 6, 6, 8, 10, 12, 14, 16]
    assert [int(t) for t in xor["texts"] if t.isdigit()] == [1, 2, 3, 4, 4, 6, 4, 6, 10, 10, 10, 10]


@pytest.mark.parametrize("lanes", [0, 1, 3, 12])
def test_a_reduction_needs_a_power_of_two(lanes):
    with pytest.raises(ValueError, match=f"lanes={lanes}"):
        diagrams.reduction_tree(lanes)


def test_staging_divides_the_requests_by_the_group():
    # 16 tokens of 128 floats, keys and values: 16,384 bytes; four query heads: 65,536.
    assert "65,536" in texts(diagrams.staging(RAGGED)) and "16,384" in texts(diagrams.staging(RAGGED))


def test_splits_are_whole_pages_and_some_are_empty():
    words = diagrams.split_and_merge(RAGGED, 4).alt_text()

    # 389 tokens fill 25 pages: 7 pages a split, 112 tokens each, and 53 in the last.
    assert "389 tokens as 112, 112, 112, 53" in words
    assert "1 token as 1, 0, 0, 0" in words and "0 tokens as 0, 0, 0, 0" in words


@pytest.mark.parametrize("stage", ALL_STAGES, ids=lambda stage: stage.id)
def test_ownership_draws_every_stage(stage):
    problem = stage.typed(RAGGED)
    chart = diagrams.ownership(stage, problem)
    launch = stage.plan(problem).launches[0]

    inside(chart)
    assert f"{launch.block[0]} threads" in chart.alt_text()
    assert f" {launch.grid[0] * launch.grid[1] * launch.grid[2]:,} blocks" in texts(chart).replace("\n", " ")


@pytest.mark.parametrize(
    ("stage", "head_dim", "lane", "owned"),
    [
        ("01_cooperative", 128, 5, [5]),
        ("00_baseline", 96, 100, []),
        ("02_vectorized", 128, 1, [4, 5, 6, 7]),
        ("02_vectorized", 192, 15, [60, 61, 62, 63, 188, 189, 190, 191]),
        ("02_vectorized", 192, 16, [64, 65, 66, 67]),
        ("06_async_ring", 128, 1, [4, 5, 6, 7]),
        ("07_tensor_core", 64, 9, [2, 10, 18, 26, 34, 42, 50, 58]),
    ],
)
def test_a_lane_owns_chunks_of_four(stage, head_dim, lane, owned):
    problem = find_stage(stage).typed(RAGGED.replace(head_dim=head_dim))

    assert diagrams.owned_dimensions(find_stage(stage).plan(problem), problem, lane) == owned


def test_header_fields_are_the_kernel_files_own():
    fields = diagrams.header_fields(find_stage("03_gqa_reuse"))

    assert fields["grid"] == "(kv_heads, batch)"
    assert set(fields) >= {"idea", "grid", "block", "thread", "since", "needs", "look"}


@pytest.mark.parametrize("stage", ALL_STAGES, ids=lambda s: s.id)
def test_what_the_chart_of_ownership_says_is_said_once(stage):
    """Names of the grid's sides stand before their sizes, and what the merge has stands apart."""
    chart = diagrams.ownership(stage, stage.typed(RAGGED))
    grid, block = (axes.get_title(loc="left") or axes.get_title() for axes in chart.axes[:2])
    names = diagrams.header_fields(stage)["grid"].split(";")[0]

    assert grid.replace("\n", " ").startswith(f"grid {names}: ") and grid.count("blocks") <= 2
    assert "merge" not in grid + block
    first = chart.description.split(" The merge has ")[0]
    assert f"a grid {names} of " in first and "merge" not in first.split(": a grid")[1]
    assert "warps, 8 warps" not in first
