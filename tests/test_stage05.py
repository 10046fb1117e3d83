"""Stage 05 over dtypes, layouts, groups, page sizes, partitions and the inputs that break split attention."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labs_common import metric_names as names
from labs_common.compare import compare
from labs_common.compiler import compile_resources
from labs_common.engines import SimulatorEngine
from labs_common.inputs import make_inputs
from labs_common.layouts import cache_shapes, from_nhd
from labs_common.plans import SHARED_WITHOUT_OPT_IN, Device
from labs_common.problem import LAYOUTS, PRESETS, Problem
from labs_common.reference import reference
from labs_common.stages import find_stage

STAGE = find_stage("05")
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
DTYPES = find_stage("05").dtypes
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def run(engine, problem, inputs, **options):
    outcome = engine.run(STAGE, problem, inputs, plan=STAGE.plan(problem, engine.device, **options))
    assert outcome.findings == ()
    return outcome.output


def verdict_of(engine, problem, seed=0, **options):
    inputs = make_inputs(problem, seed)
    return compare(run(engine, problem, inputs, **options), reference(problem, inputs))


@every_layout
@pytest.mark.parametrize(
    ("page_size", "dtype"),
    [(8, "float16"), (16, "float16"), (16, "float32"), (32, "float32"), (64, "float16")],
)
def test_dtypes_layouts_and_page_sizes(engine, page_size, dtype, layout):
    problem = Problem(12, 2, 64, page_size, (0, 1, page_size, page_size + 1, 200), dtype, layout)

    verdict = verdict_of(engine, problem, partition_tokens=64)

    assert verdict.ok, verdict.diagnosis


@pytest.mark.parametrize("group", range(1, 17))
def test_groups_of_any_whole_size(engine, group):
    dtype = DTYPES[group % 2]
    verdict = verdict_of(engine, Problem(2 * group, 2, 32, 16, (50, 3), dtype))

    assert verdict.ok, verdict.diagnosis


@pytest.mark.parametrize("head_dim", [4, 8, 68, 72, 96, 128, 192, 252, 256])
def test_every_kind_of_head_dim(engine, head_dim):
    dtype = "float32" if head_dim % 8 else "float16"
    for layout in ("NHD", "packed"):
        verdict = verdict_of(engine, Problem(12, 2, head_dim, 16, (37, 3), dtype, layout))

        assert verdict.ok, f"{layout}: {verdict.diagnosis}"


shapes = st.builds(
    lambda kv_heads, group, chunks, dtype, layout, page_size, lengths: Problem(
        kv_heads * group,
        kv_heads,
        min(256, (8 if dtype == "float16" else 4) * chunks),
        page_size if layout != "packed" else 8 * (1 + page_size % 4),
        tuple(lengths),
        dtype,
        layout,
    ),
    st.integers(1, 3),
    st.integers(1, 16),
    st.integers(1, 64),
    st.sampled_from(DTYPES),
    st.sampled_from(LAYOUTS),
    st.integers(1, 70),
    st.lists(st.integers(0, 150), min_size=1, max_size=3),
)


@given(problem=shapes, partition=st.integers(1, 5), seed=st.integers(0, 2**16))
@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
def test_random_shapes(engine, problem, partition, seed):
    verdict = verdict_of(engine, problem, seed, partition_tokens=32 * partition)

    assert verdict.ok, f"{problem}: {verdict.diagnosis}"


@pytest.mark.parametrize("partition", [32, 96, 512, 4096])
def test_any_partition_size_over_a_mixed_batch(engine, partition):
    problem = Problem(6, 2, 64, 16, (1, 15, 16, 17, 33, 0, 1500, 512, 513), "float16")

    verdict = verdict_of(engine, problem, partition_tokens=partition)

    assert verdict.ok, verdict.diagnosis


@every_dtype
def test_a_needle_at_every_edge_is_found(engine, dtype):
    """One token with nearly all the weight: first and last of a page, a tile, a partition and the context."""
    needles = (0, 15, 16, 31, 32, 63, 64, 127, 128, 149)
    problem = Problem(6, 1, 64, 16, (150,) * len(needles), dtype)
    inputs = make_inputs(problem)
    inputs.query[...] = 2.0
    for row, token in enumerate(needles):
        page, slot = inputs.block_tables[row, token // 16], token % 16
        inputs.key_cache[page, slot] = 4.0
        inputs.value_cache[page, slot] = 100.0 + row

    output = run(engine, problem, inputs, partition_tokens=64)

    for row in range(2, len(needles)):  # the first page of rows 0 and 1 is shared, so needles meet there
        np.testing.assert_allclose(output[row].astype(float), 100.0 + row, rtol=1e-3)
    assert compare(output, reference(problem, inputs)).ok


@every_dtype
@every_layout
def test_poison_in_unused_slots_changes_no_bit(engine, dtype, layout):
    problem = Problem(4, 2, 64, 16, (13, 45), dtype, layout)
    poisoned = make_inputs(problem)
    clean = dataclasses.replace(
        poisoned, key_cache=np.nan_to_num(poisoned.key_cache), value_cache=np.nan_to_num(poisoned.value_cache)
    )

    outputs = [run(engine, problem, inputs) for inputs in (poisoned, clean)]

    assert np.isfinite(outputs[0]).all()
    assert outputs[0].tobytes() == outputs[1].tobytes()


@every_layout
def test_the_order_of_physical_pages_changes_no_bit(engine, layout):
    problem = Problem(4, 2, 64, 8, (20, 24, 100), "float16", layout)
    inputs = make_inputs(problem, 5)
    pages = inputs.key_cache.shape[0]
    move = np.random.default_rng(1).permutation(pages)
    tables = inputs.block_tables.copy()
    used = (tables >= 0) & (tables < pages)
    tables[used] = np.argsort(move)[tables[used]]
    moved = dataclasses.replace(
        inputs, key_cache=inputs.key_cache[move], value_cache=inputs.value_cache[move], block_tables=tables
    )

    outputs = [run(engine, problem, one) for one in (inputs, moved)]

    assert outputs[0].tobytes() == outputs[1].tobytes()


def test_the_layout_changes_no_bit(engine):
    problem = Problem(12, 2, 64, 16, (77, 5), "float16")

    outputs = [run(engine, p, make_inputs(p)).tobytes() for p in (problem.replace(layout=x) for x in LAYOUTS)]

    assert outputs[0] == outputs[1] == outputs[2]


@every_dtype
def test_extreme_scores_give_two(engine, dtype):
    """Five equal scores of -245,760 over values 0 to 4: the mean, exactly."""
    problem = Problem(6, 1, 128, 16, (5,), dtype)
    inputs = make_inputs(problem)
    inputs.query[...] = 40
    inputs.key_cache[...] = -48
    inputs.value_cache[...] = np.arange(16, dtype=dtype)[None, :, None, None]
    inputs = dataclasses.replace(inputs, scale=1.0)

    assert (run(engine, problem, inputs) == 2.0).all()


def test_empty_contexts_and_an_empty_batch(engine):
    for lengths in ((), (0, 0), (0, 5)):
        problem = Problem(12, 2, 64, 16, lengths, "float16")
        inputs = make_inputs(problem)
        outcome = engine.run(STAGE, problem, inputs)
        assert outcome.output.shape == (len(lengths), 12, 64)
        assert (outcome.output[:1] == 0).all()
        assert compare(outcome.output, reference(problem, inputs)).ok


@every_layout
def test_a_page_beyond_2_to_the_31_elements(engine, layout):
    """Physical page 131,072 of 8 heads, 128 dimensions and 16 slots begins at element 2^31."""
    page = 131_072
    small = Problem(8, 8, 128, 16, (16,), "float16")
    problem = small.replace(layout=layout)
    inputs = make_inputs(small, 3)
    expected = reference(small, inputs)
    used = inputs.block_tables[0, :1]
    key, value = from_nhd(problem, inputs.key_cache[used], inputs.value_cache[used])
    key_cache, value_cache = (np.zeros(shape, np.float16) for shape in cache_shapes(problem, page + 1))
    assert key_cache[:page].size == 2**31  # 4 GiB that nothing touches but for the last page
    key_cache[page], value_cache[page] = key[0], value[0]
    large = dataclasses.replace(
        inputs, key_cache=key_cache, value_cache=value_cache, block_tables=np.array([[page]], np.int32)
    )
    share = getattr(engine.xp, "wrap", engine.xp.asarray)  # the simulator needs no copy
    arrays = {name: share(array) for name, array in large.arrays().items()}

    call = engine.prepare(STAGE, problem, large, arrays=arrays)
    call()

    verdict = compare(engine.xp.asnumpy(call.output), expected)
    assert verdict.ok, verdict.diagnosis


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (Problem(4, 2, 260, 16, (3,)), r"head_dim=260: .*multiples of 4 up to 256"),
        (Problem(4, 2, 68, 16, (3,), "float16"), r"head_dim=68: .*multiples of 8 up to 256"),
        (Problem(64, 1, 64, 16, (3,)), r"query_heads=64 over kv_heads=1: .*up to 16"),
        (Problem(4, 2, 64, 12, (3,), "float16", "packed"), r"page_size=12: .*multiples of 8"),
    ],
)
def test_what_is_refused_names_itself(problem, words):
    with pytest.raises(ValueError, match=words):
        STAGE.plan(problem)


@pytest.mark.parametrize("partition", [0, 31, 48, -32, True, 32.0])
def test_a_partition_that_is_no_multiple_of_32_is_refused(partition):
    with pytest.raises(ValueError, match="partition_tokens="):
        STAGE.plan(PRESETS["tiny"], partition_tokens=partition)


def test_a_partition_of_more_pages_than_shared_memory_holds_is_refused():
    with pytest.raises(ValueError, match=r"partition_tokens=8192: the table of its 8192 pages"):
        STAGE.plan(Problem(4, 2, 256, 1, (3,), "float16"), partition_tokens=8192)


@every_dtype
@pytest.mark.parametrize(
    ("group", "head_dim", "page_size", "layout"),
    [
        (1, 64, 8, "NHD"),
        (6, 256, 16, "NHD"),
        (6, 256, 16, "packed"),
        (16, 256, 64, "HND"),
        (13, 192, 8, "NHD"),
    ],
)
def test_shared_memory_stays_within_48_kilobytes(dtype, group, head_dim, page_size, layout):
    """Static and dynamic together, of the compiled kernel; and its arrays stay in registers."""
    problem = Problem(group, 1, head_dim, page_size, (100_000,), dtype, layout)
    plan = STAGE.plan(problem)

    compiled = compile_resources(STAGE.source(), plan.defines)

    for launch in plan.launches:
        kernel = compiled[launch.entry]
        assert launch.shared_bytes + kernel.shared_bytes <= SHARED_WITHOUT_OPT_IN
        assert kernel.stack_bytes <= (0 if group <= 8 else 16)  # a few registers may spill, no array


@pytest.fixture(scope="module")
def older_gpu():
    """A simulated GPU without asynchronous copies, where they become loads and stores."""
    return SimulatorEngine(Device(compute_capability=(7, 5)))


def test_a_gpu_without_asynchronous_copies(older_gpu):
    for layout in LAYOUTS:
        verdict = verdict_of(older_gpu, Problem(12, 2, 64, 16, (0, 1, 77), "float16", layout))

        assert verdict.ok, f"{layout}: {verdict.diagnosis}"


def test_every_layout_is_read_in_whole_sectors_and_once(older_gpu):
    """The block gathers what lies together, so that no layout costs a sector more."""
    problem = Problem(6, 2, 64, 16, (1024,), "float16")
    figures = {}
    for layout in LAYOUTS:
        moved = problem.replace(layout=layout)
        outcome = older_gpu.run(STAGE, moved, make_inputs(moved), checks=False)
        table = outcome.metrics
        whole = table[table["line"].isna() & (table["kernel"] == STAGE.entry)]
        figures[layout] = dict(zip(whole["metric"], whole["value"], strict=True))

    sectors = {layout: found[names.GLOBAL_LOAD_SECTORS] for layout, found in figures.items()}
    assert problem.kv_bytes / 32 <= sectors["NHD"] <= 1.05 * problem.kv_bytes / 32
    assert sectors["NHD"] == sectors["HND"] == sectors["packed"]
    for found in figures.values():
        assert problem.kv_bytes <= found[names.DRAM_READ_BYTES] <= 1.02 * problem.kv_bytes


# ---- what copies cost, by Nsight Compute on an H200: ragged, with tiles on a line of 128 bytes and on none

LOADS = (names.GLOBAL_LOAD_REQUESTS, names.GLOBAL_LOAD_SECTORS)
COPIES = (names.ASYNC_COPIES, names.ASYNC_COPY_SECTORS, names.ASYNC_COPY_WAVEFRONTS)
STATIC_SHARED = "launch__shared_mem_per_block_static"


def counted(core, problem, aligned):
    source = STAGE.source()
    if aligned:
        assert source.text.count("extern __shared__ uint4") == 1
        text = source.text.replace("extern __shared__ uint4", "extern __shared__ __align__(128) uint4")
        source = dataclasses.replace(source, text=text)
    outcome = SimulatorEngine(core=core).run(STAGE, problem, make_inputs(problem), source, checks=False)
    whole = outcome.metrics[outcome.metrics["line"].isna() & (outcome.metrics["kernel"] == STAGE.entry)]
    return dict(zip(whole["metric"], whole["value"], strict=True))


@pytest.mark.parametrize("core", ["llvm", "numpy"])
@pytest.mark.parametrize(
    ("dtype", "aligned", "loads", "copies", "static"),
    [
        ("float16", False, (2_160, 40_764), (1_984, 63_488, 23_808), 272),
        ("float16", True, (2_160, 32_828), (1_984, 31_744, 7_936), 384),
        ("float32", False, (4_144, 81_468), (3_968, 126_976, 47_616), 272),
        ("float32", True, (4_144, 65_596), (3_968, 63_488, 15_872), 384),
    ],
)
def test_copies_cost_what_an_h200_counts(core, dtype, aligned, loads, copies, static):
    found = counted(core, PRESETS["ragged"].replace(dtype=dtype), aligned)

    assert tuple(found[name] for name in LOADS) == loads
    assert tuple(found[name] for name in COPIES) == copies
    assert found[STATIC_SHARED] == static


@pytest.mark.parametrize(("layout", "sectors"), [("HND", 40_764), ("packed", 47_932)])
def test_the_sectors_of_other_layouts_are_an_h200s_too(layout, sectors):
    """As recorded (data/recorded/h200/partitions/sectors.csv)."""
    found = counted("llvm", PRESETS["ragged"].replace(dtype="float16", layout=layout), aligned=False)

    assert found[names.GLOBAL_LOAD_SECTORS] == sectors
