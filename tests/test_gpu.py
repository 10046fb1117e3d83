"""What only a GPU can show: far addresses, isolation, and that time is measured of right outputs."""

import numpy as np
import pytest

from labs_common.benchmark import benchmark_stages
from labs_common.compare import compare
from labs_common.engines import problem_struct
from labs_common.gpus import find_gpu
from labs_common.inputs import Inputs
from labs_common.problem import PRESETS, Problem
from labs_common.reference import reference
from labs_common.stages import STAGES, find_stage

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("stage", STAGES[:5], ids=lambda s: s.id)
def test_a_page_past_2_to_the_31_elements(gpu, stage):
    """Page 131,072 of a cache of 16 x 8 x 128 per page begins at element 2^31; K and V alias one buffer."""
    problem = Problem(8, 8, 128, 16, (20,))
    far = 131_072
    page_elements = 16 * 8 * 128
    random = np.random.default_rng(0)
    pages = random.standard_normal((2, 16, 8, 128), dtype=np.float32)
    query = random.standard_normal((1, 8, 128), dtype=np.float32)
    xp = gpu.xp
    cache = xp.empty((far + 1) * page_elements, dtype=np.float32)
    cache[:page_elements] = xp.asarray(pages[0].ravel())
    cache[far * page_elements :] = xp.asarray(pages[1].ravel())

    def inputs(tables, small_cache):
        return Inputs(
            query, small_cache, small_cache, np.array([tables], np.int32), np.array([20], np.int32), 0.1
        )

    expected = reference(problem, inputs([1, 0], pages))
    small = inputs([1, 0], pages)
    arrays = {**gpu.upload(small), "key_cache": cache, "value_cache": cache}
    arrays["block_tables"] = xp.asarray(np.array([[far, 0]], np.int32))
    call = gpu.prepare(stage, problem, small, arrays=arrays)
    assert problem_struct(problem, small)["max_pages"] == 2
    call()

    assert compare(xp.asnumpy(call.output), expected).ok


def test_timed_outputs_are_right_and_the_ceiling_is_a_ceiling():
    problem = PRESETS["ragged"]
    contenders = [(stage.id, stage, stage.plan(problem)) for stage in STAGES[:5]]

    result = benchmark_stages(contenders, problem, rounds=3)

    assert set(result.timings) == {stage.id for stage in STAGES[:5]}
    for label, verdict in result.verdicts.items():
        assert verdict.ok, f"{label}: {verdict.diagnosis}"
        assert 0 < result.timings[label].median_s <= result.timings[label].p90_s
        assert result.bandwidth(label) < result.ceiling
    nominal = find_gpu(result.gpu)
    if nominal is not None:  # clocks go a little above the data sheet's; below, as far as others use the GPU
        assert 0 < result.fp32_peak / nominal.peak_fp32 < 1.15


def test_a_wrong_kernel_is_not_called_right_when_timed():
    problem = PRESETS["ragged"]
    stage = find_stage(4)
    plan = stage.plan(problem)
    only_partials = type(plan)(plan.launches[:1], plan.defines, plan.scratch, plan.numbers)

    result = benchmark_stages([("no merge", stage, only_partials)], problem, rounds=3)

    assert not result.verdicts["no merge"].ok
    assert "not finite" in result.verdicts["no merge"].diagnosis


def test_a_hanging_kernel_is_stopped():
    from labs_common.engines import GpuEngine, LaunchError
    from labs_common.inputs import make_inputs
    from labs_common.source import Source

    engine = GpuEngine(timeout_s=15)
    text = """#include "paged_attention.cuh"
extern "C" __global__ void paged_attention_baseline(Problem problem, Inputs in, volatile float* output) {
  while (output[0] != 1.0f) {}
}
"""
    problem = PRESETS["tiny"]
    with pytest.raises(LaunchError, match="no answer within 15 s"):
        engine.run(find_stage(0), problem, make_inputs(problem), Source("mine.cu", text))

    outcome = engine.run(find_stage(0), problem, make_inputs(problem))
    assert compare(outcome.output, reference(problem, make_inputs(problem))).ok


def test_counters_measure_or_say_why_not(tmp_path):
    """What the tier says holds: a capture agrees with the plan, or its error has the same reason."""
    from labs_common import metric_names as names
    from labs_common import metrics
    from labs_common.ncu import read_profile
    from labs_common.ncu_rows import ProfileError
    from labs_common.profile import measure
    from labs_common.tiers import tiers

    stage, problem = find_stage(4), PRESETS["ragged"]
    counters, events, _ = tiers()
    assert events.works
    if not counters.works:
        with pytest.raises(ProfileError) as caught:
            measure(stage, problem)
        assert caught.value.reason == counters.detail or "ncu" in counters.detail
        return
    frame = measure(stage, problem, keep=tmp_path / "kept.ncu-rep")
    by_line = read_profile(tmp_path / "kept.ncu-rep", source="measured")
    launches = stage.plan(problem).launches
    assert set(frame["kernel"]) == {launch.entry for launch in launches}
    assert set(frame["source"]) == {"measured"}
    for launch in launches:
        mine = metrics.select(frame, kernel=launch.entry)
        assert metrics.value(mine, "launch__block_size") == np.prod(launch.block)
        assert metrics.value(mine, names.TIME) > 0 and metrics.value(mine, names.DRAM_READ_BYTES) > 0
        assert metrics.select(by_line, kernel=launch.entry)["line"].notna().any()
