"""The registry, its files, and what a stage may refuse."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labs_common.plans import Device
from labs_common.problem import PRESETS, Problem
from labs_common.source import KERNELS
from labs_common.stages import ALL_STAGES, ROOF, STAGES, find_stage, stage_before

HEADER_FIELDS = ("idea:", "grid:", "block:", "thread:", "since", "needs:", "look at:")


def test_one_registry_line_for_every_kernel_file():
    assert [stage.id for stage in STAGES] == sorted(path.stem for path in KERNELS.glob("[0-9]*.cu"))
    assert [stage.id for stage in ROOF] == sorted(path.stem for path in (KERNELS / "roof").glob("*.cu"))
    assert [int(stage.id[:2]) for stage in ALL_STAGES] == list(range(len(ALL_STAGES)))


@pytest.mark.parametrize("stage", ALL_STAGES, ids=lambda s: s.id)
def test_every_kernel_file_has_the_header_block_and_its_entry(stage):
    text = stage.path.read_text()

    assert text.startswith(f"/* {stage.id[:2]} {stage.id[3:]}\n")
    header = text[: text.index("*/")]
    assert [field for field in HEADER_FIELDS if f"\n   {field}" in header] == list(HEADER_FIELDS)
    assert re.search(rf'extern "C" __global__ void (__launch_bounds__\(\w+\)\s+)?{stage.entry}\(', text)
    assert text.count("// BEGIN SOLUTION") == text.count("// END SOLUTION") >= 1
    assert "<<<" not in text and "cudaMalloc" not in text  # device code only


@pytest.mark.parametrize("name", [3, "3", "03", "03_gqa", "03_gqa_reuse"])
def test_a_stage_is_found_by_number_or_unique_prefix(name):
    assert find_stage(name).id == "03_gqa_reuse"


@pytest.mark.parametrize("name", ["", "0", "10", "0x", "gqa", "00_baseline_more", "-1"])
def test_a_stage_that_is_not_there_lists_those_that_are(name):
    if name == "0":
        assert find_stage(name).id == "00_baseline"
        return
    with pytest.raises(ValueError, match="00_baseline, 01_cooperative"):
        find_stage(name)


problems = st.builds(
    lambda kv_heads, group, head_dim, page_size, lengths: Problem(
        kv_heads * group, kv_heads, head_dim, page_size, tuple(lengths)
    ),
    st.integers(1, 70_000),
    st.integers(1, 70),
    st.integers(1, 300),
    st.integers(1, 300),
    st.lists(st.integers(0, 100_000), min_size=1, max_size=3),
)


@given(problems, st.sampled_from(STAGES))
@settings(max_examples=400, deadline=None)
def test_a_stage_refuses_only_what_it_may(problem, stage):
    """head_dim no multiple of 4 or over 256, or a launch that exceeds the device: nothing else."""
    reason = stage.supports(problem)

    head_dim_bad = problem.head_dim % 4 != 0 or problem.head_dim > 256
    too_many_threads = stage.id == "03_gqa_reuse" and problem.group_size > 32
    too_many_heads = stage.id == "05_partitioned_gqa" and problem.group_size > 16
    assert (reason is not None) == (head_dim_bad or too_many_threads or too_many_heads)
    if head_dim_bad:
        assert f"head_dim={problem.head_dim}" in reason and "256" in reason
    elif too_many_heads:
        assert f"query_heads={problem.query_heads}" in reason and "up to 16" in reason
    elif reason:
        assert f"{32 * problem.group_size} threads" in reason and "1024" in reason


def test_what_a_stage_is_compared_with_and_taught_in():
    assert stage_before(ALL_STAGES[0]) is None and stage_before(ROOF[0]) == STAGES[-1]
    seed = PRESETS["seed"]
    assert [stage.typed(seed).name for stage in ALL_STAGES[5:9]] == ["seed", "seed"] + ["seed-float16"] * 2
    assert find_stage(8).taken(seed) == seed and find_stage(7).taken(seed).dtype == "float16"
    assert find_stage(3).taken(PRESETS["long"]) == PRESETS["long"]  # which it refuses, and says so


@pytest.mark.parametrize("stage", STAGES, ids=lambda s: s.id)
def test_a_batch_beyond_the_grid_is_refused(stage):
    reason = stage.supports(Problem(2, 1, 64, 16, (1,) * 65_536))

    assert "65536 blocks along y" in reason and "65535" in reason


def test_half_precision_is_refused_by_the_fp32_stages():
    for stage in STAGES[:5]:
        assert "takes float32" in stage.supports(PRESETS["long"])
        assert "layout=HND" in stage.supports(PRESETS["tiny"].replace(layout="HND"))


@pytest.mark.parametrize("splits", [0, -1, 1.5, True, 65_536])
def test_a_split_count_that_cannot_be(splits):
    with pytest.raises(ValueError, match=r"splits=|65536 blocks along z"):
        find_stage(4).plan(PRESETS["tiny"], splits=splits)


def test_plans_of_the_first_documents_problem():
    """Grids, blocks and shared memory that the document's profile tables print."""
    launches = {
        s.id[:2]: s.plan(PRESETS["seed"], **({"splits": 8} if s.id[:2] == "04" else {})) for s in STAGES[:5]
    }

    def blocks(number, launch=0):
        x, y, z = launches[number].launches[launch].grid
        return x * y * z

    assert [blocks(n) for n in ("00", "01", "02", "03", "04")] == [2048, 2048, 2048, 512, 2048 * 8]
    assert launches["02"].launches[0].block == (32, 1, 1)
    assert launches["03"].launches[0].block == (128, 1, 1)
    assert launches["03"].launches[0].shared_bytes == 16_384
    assert blocks("04", 1) == 2048


@pytest.mark.parametrize(
    ("page_size", "head_dim", "shared_bytes", "tile_tokens"),
    [(64, 128, 65_536, 64), (48, 128, 49_152, 48), (256, 256, 231_424, 113), (1, 4, 32, 1)],
)
def test_a_page_larger_than_shared_memory_is_staged_in_tiles(page_size, head_dim, shared_bytes, tile_tokens):
    plan = find_stage(3).plan(Problem(4, 1, head_dim, page_size, (300,)))

    assert plan.launches[0].shared_bytes == shared_bytes
    assert plan.numbers["tile_tokens"] == tile_tokens


def test_a_smaller_device_gets_smaller_tiles():
    plan = find_stage(3).plan(Problem(4, 1, 256, 64, (300,)), Device(max_shared_bytes=48 * 1024))

    assert plan.launches[0].shared_bytes <= 48 * 1024
    assert plan.numbers["tile_tokens"] == 24
