"""Every stage, on every engine, over the shapes that break kernels; and what an engine refuses."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labs_common.check import CHECK_PROBLEMS
from labs_common.compare import compare
from labs_common.compiler import CompileError
from labs_common.engines import (
    INPUTS_STRUCT,
    PROBLEM_STRUCT,
    LaunchError,
    SimulatorEngine,
    TooLong,
    pointer_struct,
)
from labs_common.inputs import make_inputs
from labs_common.problem import PRESETS, Problem
from labs_common.reference import reference
from labs_common.source import Source
from labs_common.stages import STAGES, find_stage

FIRST_STAGES = STAGES[:5]
by_id = pytest.mark.parametrize("stage", FIRST_STAGES, ids=lambda s: s.id)


def verdict_of(engine, stage, problem, seed=0, **options):
    inputs = make_inputs(problem, seed)
    outcome = engine.run(stage, problem, inputs, plan=stage.plan(problem, engine.device, **options))
    assert outcome.findings == ()
    return compare(outcome.output, reference(problem, inputs))


@by_id
@pytest.mark.parametrize("problem", CHECK_PROBLEMS, ids=lambda p: p.name)
def test_every_stage_is_right(engine, stage, problem):
    verdict = verdict_of(engine, stage, problem)

    assert verdict.ok, verdict.diagnosis


shapes = st.builds(
    lambda kv_heads, group, chunks, page_size, lengths, extra: Problem(
        kv_heads * group, kv_heads, 4 * chunks, page_size, (*lengths, extra)
    ),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 64),
    st.integers(1, 256),
    st.lists(st.integers(0, 40), max_size=2),
    st.integers(0, 90),
)


@by_id
@given(problem=shapes, seed=st.integers(0, 2**16))
@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
def test_random_shapes(engine, stage, problem, seed):
    verdict = verdict_of(engine, stage, problem, seed)

    assert verdict.ok, f"{problem}: {verdict.diagnosis}"


@pytest.mark.parametrize("splits", [1, 2, 3, 8, 64])
def test_any_split_count(engine, splits):
    """Empty splits, splits of part of a page, and one sequence far longer than the others."""
    problem = Problem(2, 1, 64, 16, (1, 15, 16, 17, 33, 0, 700))

    verdict = verdict_of(engine, find_stage(4), problem, splits=splits)

    assert verdict.ok, verdict.diagnosis


@pytest.mark.parametrize("head_dim", [4, 32, 36, 64, 96, 128, 132, 192, 252, 256])
def test_every_kind_of_head_dim(engine, head_dim):
    problem = Problem(4, 2, head_dim, 16, (17, 3))
    for stage in FIRST_STAGES:
        verdict = verdict_of(engine, stage, problem)

        assert verdict.ok, f"{stage.id}: {verdict.diagnosis}"


@pytest.mark.parametrize(("query_heads", "kv_heads"), [(24, 4), (28, 4), (7, 1), (3, 3), (32, 1)])
def test_groups_of_any_whole_size(engine, query_heads, kv_heads):
    problem = Problem(query_heads, kv_heads, 32, 8, (21,))
    for stage in FIRST_STAGES:
        verdict = verdict_of(engine, stage, problem)

        assert verdict.ok, f"{stage.id}: {verdict.diagnosis}"


@pytest.mark.parametrize(("page_size", "head_dim"), [(256, 256), (48, 128), (64, 128), (1, 64)])
def test_pages_from_one_token_to_more_than_shared_memory(engine, page_size, head_dim):
    problem = Problem(2, 1, head_dim, page_size, (page_size + 30,))
    for stage in FIRST_STAGES:
        verdict = verdict_of(engine, stage, problem)

        assert verdict.ok, f"{stage.id}: {verdict.diagnosis}"


@by_id
def test_poison_in_unused_slots_changes_no_bit(engine, stage):
    problem = Problem(4, 2, 64, 16, (13, 5))
    poisoned = make_inputs(problem)
    clean = dataclasses.replace(
        poisoned, key_cache=np.nan_to_num(poisoned.key_cache), value_cache=np.nan_to_num(poisoned.value_cache)
    )

    outputs = [engine.run(stage, problem, inputs).output for inputs in (poisoned, clean)]

    assert outputs[0].tobytes() == outputs[1].tobytes()


@by_id
def test_the_order_of_physical_pages_changes_no_bit(engine, stage):
    problem = Problem(4, 2, 64, 8, (20, 24))
    inputs = make_inputs(problem, 5)
    pages = inputs.key_cache.shape[0]
    move = np.random.default_rng(1).permutation(pages)
    tables = inputs.block_tables.copy()
    used = (tables >= 0) & (tables < pages)
    tables[used] = np.argsort(move)[tables[used]]
    moved = dataclasses.replace(
        inputs, key_cache=inputs.key_cache[move], value_cache=inputs.value_cache[move], block_tables=tables
    )

    outputs = [engine.run(stage, problem, one).output for one in (inputs, moved)]

    assert outputs[0].tobytes() == outputs[1].tobytes()


@by_id
def test_extreme_scores_give_two(engine, stage):
    """Five equal scores of -245,760 over values 0 to 4: the mean, exactly."""
    problem = Problem(1, 1, 128, 16, (5,))
    inputs = make_inputs(problem)
    inputs.query[...] = 40
    inputs.key_cache[...] = -48
    inputs.value_cache[...] = np.arange(16, dtype=np.float32)[None, :, None, None]
    inputs = dataclasses.replace(inputs, scale=1.0)

    assert (engine.run(stage, problem, inputs).output == 2.0).all()


@by_id
def test_an_empty_batch_is_not_launched(engine, stage):
    problem = Problem(4, 2, 64, 16, ())

    assert engine.run(stage, problem, make_inputs(problem)).output.shape == (0, 4, 64)


@by_id
def test_a_batch_of_empty_contexts_is_zero(engine, stage):
    problem = Problem(4, 2, 64, 16, (0, 0))

    assert (engine.run(stage, problem, make_inputs(problem)).output == 0).all()


def kernel(body, parameters="Problem problem, Inputs in, float* output"):
    text = f"""#include "paged_attention.cuh"

extern "C" __global__ void paged_attention_baseline({parameters}) {{
  {body}
}}
"""
    return Source("mine.cu", text)


def run_mine(engine, source, problem=PRESETS["tiny"], stage=0):
    return engine.run(find_stage(stage), problem, make_inputs(problem), source)


def test_a_compile_error_is_on_the_students_own_line(engine):
    with pytest.raises(CompileError) as error:
        run_mine(engine, kernel("output[0] = undefined_name;"))

    assert error.value.diagnostics == [("mine.cu", 4, 'identifier "undefined_name" is undefined')]


def test_a_kernel_of_another_name_is_told_which_there_are(engine):
    source = Source(
        "mine.cu", 'extern "C" __global__ void something_else() {}\nnamespace { __global__ void x() {} }\n'
    )

    with pytest.raises(ValueError, match=r"no kernel named paged_attention_baseline.*something_else"):
        run_mine(engine, source)


def test_a_signature_with_other_parameters_is_refused_before_the_launch(engine):
    with pytest.raises(LaunchError, match="paged_attention_baseline"):
        run_mine(engine, kernel("", "Problem problem, Inputs in"))
    with pytest.raises(LaunchError, match="paged_attention_baseline"):
        run_mine(engine, kernel("", "Problem problem, Inputs in, float* output, int more"))


def test_a_kernel_that_writes_nothing_leaves_nan(engine):
    outcome = run_mine(engine, kernel(""))

    assert np.isnan(outcome.output).all()


def test_structs_arrive_as_they_were_sent(engine):
    """Every field of Problem and every pointer of Inputs, read back by a kernel."""
    problem = PRESETS["tiny"]
    inputs = make_inputs(problem)
    body = """if (threadIdx.x || blockIdx.x || blockIdx.y) return;
  output[0] = problem.batch; output[1] = problem.query_heads; output[2] = problem.kv_heads;
  output[3] = problem.head_dim; output[4] = problem.page_size; output[5] = problem.max_pages;
  output[6] = problem.scale; output[7] = in.query[5]; output[8] = in.context_lengths[1];
  output[9] = in.block_tables[0]; output[10] = in.key_cache[0] == in.key_cache[0];
  output[11] = sizeof(Problem); output[12] = sizeof(Inputs);
  output[13] = (char*)&problem.scale - (char*)&problem;"""

    got = engine.run(find_stage(0), problem, inputs, kernel(body)).output.ravel()[:14]

    finite = float(np.isfinite(inputs.key_cache.ravel()[0]))
    expected = [2, 4, 2, 64, 16, 3, 1 / 8, inputs.query.ravel()[5], 17, inputs.block_tables[0, 0], finite]
    np.testing.assert_array_equal(got[:11], np.array(expected, np.float32))
    assert got[11:].tolist() == [
        PROBLEM_STRUCT.itemsize,
        INPUTS_STRUCT.itemsize,
        PROBLEM_STRUCT.fields["scale"][1],
    ]


def test_structs_are_padded_as_c_does():
    class Array:
        class data:
            ptr = 7

    five = pointer_struct(dict.fromkeys("abcde", Array))

    assert five.dtype.itemsize == 40
    assert PROBLEM_STRUCT.itemsize == 28
    assert np.dtype([("scale", np.float32), ("p", np.uint64)], align=True).itemsize == 16


def test_a_python_float_or_a_wrong_count_is_refused(engine):
    module = engine.module(
        Source("mine.cu", 'extern "C" __global__ void k(float* out, float x, int n) { *out = x; }')
    )
    function = module.get_function("k")
    out = engine.xp.zeros(1, dtype=np.float32)

    for arguments in (
        (out, 0.125, np.int32(1)),
        (out, np.float64(0.125), np.int32(1)),
        (out, np.float32(1)),
        (out, out, out),
    ):
        with pytest.raises((LaunchError, TypeError, ValueError), match="k"):
            function((1, 1, 1), (1, 1, 1), arguments)
    function((1, 1, 1), (1, 1, 1), (out, np.float32(0.125), np.int32(1)))

    assert engine.xp.asnumpy(out)[0] == 0.125


def test_dynamic_shared_memory_above_48_kilobytes_needs_the_opt_in(engine):
    text = """extern __shared__ float s[];
extern "C" __global__ void k(float* out, int n) { s[n - 1] = 3; out[0] = s[n - 1]; }"""
    function = engine.module(Source("mine.cu", text)).get_function("k")
    out = engine.xp.zeros(1, dtype=np.float32)

    with pytest.raises(Exception, match=r"shared|INVALID_VALUE|invalid"):
        function((1, 1, 1), (1, 1, 1), (out, np.int32(16384)), shared_mem=65536)
    function.max_dynamic_shared_size_bytes = 65536
    function((1, 1, 1), (1, 1, 1), (out, np.int32(16384)), shared_mem=65536)

    assert engine.xp.asnumpy(out)[0] == 3
    with pytest.raises(Exception, match=r"shared|INVALID_VALUE|invalid"):
        function.max_dynamic_shared_size_bytes = engine.device.max_shared_bytes + 1024


def test_one_bad_kernel_does_not_fail_the_next(engine):
    """An illegal address poisons a CUDA context: the next stage must get a clean one."""
    bad = kernel("output[(size_t)1 << 40] = 1;")
    problem = PRESETS["tiny"]
    inputs = make_inputs(problem)

    with pytest.raises(Exception, match=r"paged_attention_baseline|memcheck"):
        engine.run(find_stage(0), problem, inputs, bad)

    for stage in FIRST_STAGES:
        assert compare(engine.run(stage, problem, inputs).output, reference(problem, inputs)).ok


def test_a_simulation_of_minutes_is_refused_with_an_estimate_and_a_smaller_problem():
    problem = Problem(32, 8, 128, 16, (1024,) * 64, name="big")
    engine = SimulatorEngine(core="numpy")

    with pytest.raises(
        TooLong, match=r"G lane-instructions, [\d,]+ s here.*contexts of [\d,]+ tokens.*--force"
    ):
        engine.run(find_stage(0), problem, make_inputs(problem))
