"""The kernels on the way to the roof: right in every dtype, layout and shape, clean under all checks."""

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labs_common import metric_names as names
from labs_common.compare import compare
from labs_common.engines import SimulatorEngine
from labs_common.inputs import make_inputs
from labs_common.metric_names import INSTRUCTIONS
from labs_common.metrics import stage_totals, value
from labs_common.plans import Device
from labs_common.problem import DTYPES, Problem
from labs_common.reference import reference
from labs_common.roof_choice import choices
from labs_common.roof_code import machine_code
from labs_common.source import KERNELS
from labs_common.stages import ROOF, find_stage

by_id = pytest.mark.parametrize("stage", ROOF, ids=lambda s: s.id)
LENGTHS = (0, 1, 15, 16, 17, 130, 545)
FP8 = "float8_e4m3fn"
# What is fixed when a kernel compiles: (group size, key/value heads, head_dim, page_size, layout).
SHAPES = {
    "float32": ((4, 2, 128, 16, "NHD"), (6, 1, 256, 8, "HND"), (9, 3, 96, 64, "NHD")),
    "float16": ((4, 8, 128, 16, "NHD"), (16, 1, 64, 8, "NHD"), (6, 2, 256, 32, "HND")),
    "bfloat16": ((1, 3, 192, 16, "HND"), (5, 2, 96, 8, "NHD")),
    FP8: ((8, 1, 128, 16, "NHD"), (3, 8, 64, 32, "HND"), (11, 2, 96, 8, "NHD"), (2, 2, 256, 64, "NHD")),
}
CASES = [(stage, dtype, shape) for stage in ROOF for dtype in stage.dtypes for shape in SHAPES[dtype]]
# Machine code for the simulator takes seconds a kernel: each dtype and shape once, over the stages.
SIMULATED = [CASES[number] for number in (0, 2, 4, 7, 10, 11, 14, 16, 18, 25, 32, 39)]


def case_id(case):
    return f"{case[0].id[:2]}-{case[1]}-{'-'.join(map(str, case[2]))}" if isinstance(case, tuple) else None


def problem_of(dtype, shape, lengths, **changes):
    group, kv_heads, head_dim, page_size, layout = shape
    scales = {"key_scale": 0.5, "value_scale": 1.5} if dtype == FP8 else {}
    return Problem(
        group * kv_heads, kv_heads, head_dim, page_size, tuple(lengths), dtype, layout, **scales, **changes
    )


def verdict_of(engine, stage, problem, inputs=None, **options):
    inputs = inputs or make_inputs(problem)
    outcome = engine.run(stage, problem, inputs, plan=stage.plan(problem, engine.device, **options))
    assert outcome.findings == ()
    return compare(outcome.output, reference(problem, inputs), stage.weights(problem))


def test_one_registry_line_for_every_file():
    assert [stage.id for stage in ROOF] == sorted(path.stem for path in (KERNELS / "roof").glob("*.cu"))


@by_id
def test_the_header_block_is_that_of_the_stages(stage):
    text = stage.path.read_text()
    fields = ("idea:", "grid:", "block:", "thread:", "since", "needs:", "look at:")

    assert text.startswith(f"/* {stage.id[:2]} {stage.id[3:]}\n")
    header = text[: text.index("*/")]
    assert [field for field in fields if f"\n   {field}" in header] == list(fields)
    assert re.search(rf"__launch_bounds__\(\w+\)\s+{stage.entry}\(", text)
    assert text.count("// BEGIN SOLUTION") == text.count("// END SOLUTION") >= 1


@pytest.mark.parametrize("case", SIMULATED, ids=case_id)
def test_right_and_clean_in_every_dtype_and_shape(simulator, case):
    stage, dtype, shape = case

    verdict = verdict_of(simulator, stage, problem_of(dtype, shape, LENGTHS))

    assert verdict.ok, verdict.diagnosis


def test_what_is_simulated_meets_every_stage_dtype_and_shape():
    assert {case[0] for case in SIMULATED} == set(ROOF)
    assert {case[1:] for case in SIMULATED} == {case[1:] for case in CASES}


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_right_in_every_dtype_and_shape_on_the_gpu(gpu, case):
    stage, dtype, shape = case
    problem = problem_of(dtype, shape, (*LENGTHS, 4096, 20_000))

    verdict = verdict_of(gpu, stage, problem)

    assert verdict.ok, verdict.diagnosis


@by_id
@given(
    lengths=st.lists(st.integers(0, 300), min_size=1, max_size=4),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_contexts_and_tables(simulator, stage, lengths, seed):
    problem = problem_of("float16", SHAPES["float16"][0], lengths)

    verdict = verdict_of(simulator, stage, problem, make_inputs(problem, seed))

    assert verdict.ok, verdict.diagnosis


@pytest.mark.parametrize(("blocks", "block_heads"), [(1, 1), (7, 4), (132, 1)])
def test_any_cut_of_the_work(simulator, blocks, block_heads):
    problem = problem_of("float16", SHAPES["float16"][0], LENGTHS)

    verdict = verdict_of(simulator, ROOF[2], problem, blocks=blocks, block_heads=block_heads)

    assert verdict.ok, verdict.diagnosis


@pytest.mark.parametrize(
    "options",
    [{"whole": True}, {"whole": True, "block_heads": 1}, {"evict_first": False}, {"merge_rows": 3}],
    ids=str,
)
def test_other_plans(simulator, options):
    problem = problem_of("float16", SHAPES["float16"][0], LENGTHS)

    verdict = verdict_of(simulator, ROOF[3], problem, **options)

    assert verdict.ok, verdict.diagnosis


@pytest.mark.parametrize("ring_slots", [2, 3])
def test_rings_of_other_lengths(simulator, ring_slots):
    """Of an odd length too, in which keys and values take turns in every slot."""
    problem = problem_of("float16", (4, 1, 64, 16, "NHD"), (0, 1, 300))

    verdict = verdict_of(simulator, ROOF[2], problem, ring_slots=ring_slots)

    assert verdict.ok, verdict.diagnosis


@by_id
def test_one_token_with_all_the_weight(simulator, stage):
    """A needle in the last token, the first of a partition, the middle of a tile: nothing hides it."""
    problem = problem_of("float16", (4, 1, 64, 16, "NHD"), (600,))
    for token in (0, 511, 512, 599):
        inputs = make_inputs(problem, token)
        page, slot = inputs.block_tables[0, token // 16], token % 16
        inputs.query[:] = np.sign(inputs.query)
        inputs.key_cache[page, slot, 0] = 4 * inputs.query[0, 0]
        inputs.query[:] = inputs.query[:, :1]

        verdict = verdict_of(simulator, stage, problem, inputs)

        assert verdict.ok, (token, verdict.diagnosis)


def test_an_fp8_cache_may_hold_nan_codes_where_nobody_reads(simulator):
    """make_inputs fills unused slots with NaN, which e4m3 has two codes of; the other one is no different."""
    problem = problem_of(FP8, (4, 1, 64, 16, "NHD"), (21,))
    inputs = make_inputs(problem)
    for cache in (inputs.key_cache, inputs.value_cache):
        codes = cache.view(np.uint8)
        codes[(codes & 0x7F) == 0x7F] = 0xFF

    for stage in ROOF[1:]:
        assert verdict_of(simulator, stage, problem, inputs).ok


@by_id
def test_both_engines_of_the_simulator_agree_bit_for_bit(stage):
    problem = problem_of("float16", (3, 2, 64, 16, "NHD"), (35, 0, 16))
    inputs = make_inputs(problem)
    first, second = (SimulatorEngine(core=core).run(stage, problem, inputs) for core in ("numpy", "llvm"))

    assert first.output.tobytes() == second.output.tobytes()
    counted = ["kernel", "metric", "file", "line", "value"]
    assert first.metrics[counted].equals(second.metrics[counted])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"head_dim": 80}, "head_dim=80: this stage takes multiples of 32 up to 256"),
        ({"head_dim": 288}, "head_dim=288"),
        ({"query_heads": 34}, "groups of up to 16 query heads"),
        ({"page_size": 12}, "page_size=12: this stage takes 8 and multiples of 16"),
        ({"layout": "packed"}, "layout=packed"),
    ],
)
@by_id
def test_what_is_refused_is_refused_by_name(stage, changes, said):
    problem = Problem(8, 2, 64, 16, (40,), "float16").replace(**changes)

    assert said in stage.supports(problem)


@pytest.mark.parametrize("capability", [(7, 5), (8, 6)])
def test_an_older_gpu_is_refused(capability):
    device = Device("an older GPU", capability)
    problem = Problem(8, 2, 64, 16, (40,), FP8)

    for stage in ROOF[1:]:
        assert "an older GPU" in stage.supports(problem, device)
        half = stage.supports(problem.replace(dtype="float16"), device)
        assert (half is not None) == (capability < (8, 0))


@pytest.mark.parametrize(
    ("number", "options"),
    [
        (0, {"ring_slots": 1}),
        (1, {"partition_tokens": 40}),
        (2, {"blocks": 0}),
        (2, {"block_heads": 3}),
        (2, {"block_heads": 2.0}),
        (3, {"block_heads": True}),
        (2, {"block_heads": 4}),
        (2, {"ring_slots": True}),
    ],
)
def test_options_out_of_range_are_refused_by_name(number, options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}="):
        ROOF[number].plan(Problem(8, 2, 64, 16, (40,), "float16"), **options)


def test_tensor_cores_leave_far_fewer_instructions(simulator):
    """What 07 is for: to attend to one more tile takes less than half of the warp instructions of 06."""
    tiles = {}
    for stage in ROOF[:2]:
        counts = []
        for length in (256, 512):
            problem = problem_of("float16", SHAPES["float16"][0], (length,))
            metrics = simulator.run(stage, problem, make_inputs(problem)).metrics
            counts.append(value(metrics, INSTRUCTIONS, kernel=stage.entry))
        tiles[stage.id] = counts[1] - counts[0]

    assert tiles["07_tensor_core"] < tiles["06_async_ring"] / 2


def test_a_ragged_batch_is_cut_as_evenly_as_a_uniform_one():
    ragged = Problem(32, 8, 128, 16, tuple(range(1, 8193, 128)), "float16")
    runs = ROOF[2].plan(ragged).tables
    tokens = np.diff(runs["segments"][:, 1:3]).ravel()
    blocks = [
        int(tokens[a:b].sum())
        for a, b in zip(runs["block_segments"][:-1], runs["block_segments"][1:], strict=True)
    ]

    assert len(blocks) == Device().multiprocessors
    assert max(blocks) < 1.02 * sum(blocks) / len(blocks)


def test_stages_before_round_no_weights():
    assert find_stage("05").weights(Problem(8, 2, 64, 16, (40,), "float16")) == "float32"
    assert ROOF[0].weights(Problem(8, 2, 64, 16, (40,), "bfloat16")) == "float32"
    assert ROOF[2].weights(Problem(8, 2, 64, 16, (40,))) == "float32"
    assert ROOF[2].weights(Problem(8, 2, 64, 16, (40,), FP8)) == "float16"


def best_way(problem):
    tile_tokens = 8 if problem.dtype == "float32" else 16
    return choices(problem, 132, 232_448, 8, tile_tokens)[0]


def test_the_choice_is_what_was_fastest_on_the_gpu():
    """By the timings of data/roof: whole sequences where they fill waves, else equal runs."""
    long = Problem(24, 4, 256, 16, (100_000,), "float16")
    even = Problem(32, 8, 128, 16, (4096,) * 64, "float16")
    short = Problem(32, 8, 128, 16, (1024,) * 256, "float16")

    assert not best_way(long).whole
    assert best_way(even).whole
    assert best_way(short).whole and best_way(short).block_heads == 8


def test_sets_of_a_group_that_read_the_same_pages_share_a_block():
    assert best_way(Problem(55, 5, 96, 8, (22_466,) * 32, "float16")).block_heads == 2


@given(
    kv_heads=st.integers(1, 9),
    group=st.integers(1, 16),
    head_dim=st.sampled_from((64, 96, 128, 192, 256)),
    dtype=st.sampled_from(DTYPES),
    lengths=st.lists(st.integers(0, 5000), min_size=1, max_size=20),
)
def test_every_choice_is_a_plan(kv_heads, group, head_dim, dtype, lengths):
    problem = Problem(kv_heads * group, kv_heads, head_dim, 16, tuple(lengths), dtype)

    plan = ROOF[3].plan(problem)

    assert plan.launches[0].shared_bytes <= Device().max_shared_bytes
    segments = plan.tables["segments"]
    attended = {}
    for sequence, first, end, group_of_heads, *_ in segments[segments[:, 1] < segments[:, 2]]:
        attended.setdefault((sequence, group_of_heads), []).append((first, end))
    groups = {group_of_heads for _, group_of_heads in attended}
    for (sequence, _), pieces in attended.items():
        ends = sorted(pieces)
        assert [first for first, _ in ends] == [0, *(end for _, end in ends[:-1])]
        assert ends[-1][1] == lengths[sequence]
    assert len(attended) == len(groups) * sum(n > 0 for n in lengths)


@pytest.mark.parametrize("blocks", [0, -1, True, 1.5])
def test_blocks_that_are_none_are_refused(blocks):
    with pytest.raises(ValueError, match="blocks"):
        ROOF[3].plan(Problem(4, 1, 64, 16, (40,), "float16"), blocks=blocks, whole=False)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "heads"),
    [("float32", 96, 1), ("float32", 128, 4), ("float16", 128, 4), (FP8, 256, 8)],
)
def test_the_instructions_that_the_choice_expects_are_near_those_counted(dtype, head_dim, heads):
    """What 1,024 tokens more cost, of one set of heads in one block."""
    counted = []
    for length in (1024, 2048):
        problem = Problem(heads, 1, head_dim, 16, (length,), dtype)
        plan = ROOF[3].plan(problem, block_heads=1, whole=True, ring_slots=2)
        outcome = SimulatorEngine().run(ROOF[3], problem, make_inputs(problem), plan=plan)
        counted.append(value(stage_totals(outcome.metrics), INSTRUCTIONS))
    a_token = (counted[1] - counted[0]) / 1024

    counted_on_a_gpu = machine_code(problem, 1, 2).instructions
    assert counted_on_a_gpu == pytest.approx(a_token, rel=0.35) and counted_on_a_gpu < a_token


@pytest.mark.parametrize(("group", "dtype"), [(1, "float32"), (3, "float16")])
@pytest.mark.parametrize(("aligned", "passes"), [(False, 8), (True, 4)])
def test_copies_of_09_cost_what_an_h200_counts(group, dtype, aligned, passes):
    """64 bytes off a line the sectors stay 16 a copy, and wavefronts are 8 in place of 4.

    So they are on 16 sequences of 4,096 tokens: 8,388,608 and 4,194,304 of 1,048,576 copies in fp32, and half
    as many of half as many in fp16.
    """
    stage, problem = find_stage("09"), Problem(8 * group, 8, 128, 16, (256, 256), dtype)
    source = stage.source()
    if not aligned:
        assert source.text.count("__align__(128) ") == 1
        source = dataclasses.replace(source, text=source.text.replace("__align__(128) ", ""))

    totals = stage_totals(SimulatorEngine().run(stage, problem, make_inputs(problem), source).metrics)

    copies = value(totals, names.ASYNC_COPIES)
    assert copies == 2 * 512 * 8 * 128 * (4 if dtype == "float32" else 2) / 512  # every key and value, once
    assert value(totals, names.ASYNC_COPY_SECTORS) == 16 * copies
    assert value(totals, names.ASYNC_COPY_WAVEFRONTS) == passes * copies
