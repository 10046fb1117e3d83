"""The clock around a kernel: it changes nothing but what it writes, and the chart says what it read."""

import numpy as np
import pandas as pd
import pytest

from labs_common import block_times as clock
from labs_common.chart_blocks import ends_of_multiprocessors
from labs_common.compare import compare
from labs_common.inputs import make_inputs
from labs_common.problem import Problem
from labs_common.reference import reference
from labs_common.stages import ALL_STAGES, ROOF

PROBLEM = Problem(8, 2, 64, 16, (40, 0, 17, 130), "float32")


@pytest.mark.parametrize("stage", ALL_STAGES, ids=lambda stage: stage.id)
def test_a_kernel_with_a_clock_around_it_is_as_right_as_without(stage, simulator):
    problem = stage.typed(PROBLEM).replace(context_lengths=(40, 17, 130))
    plan = stage.plan(problem, simulator.device)
    launch = plan.launches[0]
    blocks = launch.grid[0] * launch.grid[1]
    plan.defines.update(BLOCKS=blocks)
    inputs = make_inputs(problem)

    outcome = simulator.run(stage, problem, inputs, clock.clocked(stage.source(), launch.entry), plan)

    assert not outcome.findings
    assert compare(outcome.output, reference(problem, inputs), stage.weights(problem)).ok


def test_a_file_without_the_kernel_is_refused():
    with pytest.raises(ValueError, match=r"entry='no_such'.*09_memory_roof\.cu"):
        clock.clocked(ROOF[-1].source(), "no_such")


@pytest.mark.gpu
def test_blocks_end_after_they_begin_and_have_a_multiprocessor():
    from labs_common.device_inputs import device_inputs
    from labs_common.roof_bench import UncheckedGpu

    engine, stage = UncheckedGpu(), ROOF[-1]
    problem = PROBLEM.replace(dtype="float16", context_lengths=(900,) * 40)
    inputs = device_inputs(engine.xp, problem, 1)
    plan = stage.plan(problem, engine.device)

    found = clock.block_times(engine, stage, problem, plan, inputs.sets[0], inputs.scale)

    assert len(found) == plan.launches[0].grid[0] * plan.launches[0].grid[1] and found["begin_us"].min() == 0
    assert (found["end_us"] > found["begin_us"]).all()
    assert found["multiprocessor"].between(0, engine.device.multiprocessors - 1).all()


def test_the_chart_says_when_who_ends():
    """Three multiprocessors by hand: one with two blocks, which ends when its second one does."""
    blocks = pd.DataFrame(
        {
            "problem": "S3",
            "dtype": "float32",
            "runs": 7,
            "block": np.arange(4),
            "multiprocessor": [0, 1, 2, 0],
            "begin_us": [0, 0, 0, 50.0],
            "end_us": [50, 80, 100.0, 95.0],
        }
    )
    chart = ends_of_multiprocessors(blocks, "h200")

    (line,) = chart.axes[0].lines
    assert line.get_ydata().tolist() == [80, 95, 100]
    for words in (
        "H200",
        "median of 7 runs",
        "4 blocks on 3 multiprocessors",
        "the last after 100",
        "1 end more than a tenth early",
    ):
        assert words in chart.alt_text()
    with pytest.raises(ValueError, match="blocks"):
        ends_of_multiprocessors(blocks[:0], "h200")
