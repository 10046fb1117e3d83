"""The lab's stages as cases for the simulator's benchmark."""

from __future__ import annotations

from collections.abc import Sequence

from labs_common.engines import SimulatorEngine
from labs_common.inputs import make_inputs
from labs_common.problem import Problem
from labs_common.simt import benchmark, cupy_like
from labs_common.stages import Stage


def stage_cases(stages: Sequence[Stage], problem: Problem) -> list[benchmark.Case]:
    """The first launch of each stage on a problem; one set of inputs serves all of them.

    Raises:
        ValueError: a stage does not take the problem.
    """
    engine = SimulatorEngine(core="llvm", force=True)
    inputs = make_inputs(problem)
    arrays = engine.upload(inputs)
    cases = []
    for stage in stages:
        call = engine.prepare(stage, problem, inputs, arrays=arrays)
        first = call.launches[0]
        kernel = call.kernels[first.entry]
        launch = kernel.prepare(first.grid, first.block, call.arguments, first.shared_bytes)
        cases.append(
            benchmark.Case(stage.id, problem.name, launch, cupy_like.SPACE, kernel.module.addresses, call)
        )
    return cases
