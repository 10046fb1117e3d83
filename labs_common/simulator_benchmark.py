"""The lab's stages as cases for the simulator's benchmark."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence

from labs_common.engines import SimulatorEngine
from labs_common.inputs import make_inputs
from labs_common.problem import Problem
from labs_common.simt import benchmark, cupy_like
from labs_common.stages import Stage, find_stage

NUMBA_TIMEOUT_S = 3600


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


def beside_numba(problem: Problem) -> list[dict[str, object]]:
    """Stage 00 in numba's CUDA simulator and in both engines here, whole, one core, counters on.

    Returns:
        Rows as of ``benchmark.measure``, with ``times_numba``: numba's seconds over theirs. numba counts
        nothing: its rate is of the lane-instructions that the lab's simulator counts.

    Raises:
        ValueError: numba is not installed, or its run failed or came out wrong.
    """
    numba = _numba(problem.name)
    case = stage_cases([find_stage("00")], problem)[0].checked_by({"memcheck"})
    rows = benchmark.measure([case]) + benchmark.measure([case], engine="numpy", repeats=1)
    for row in rows:
        row["times_numba"] = numba["seconds"] / row["seconds"]
    lanes = rows[0]["lane_instructions"]
    other = {"engine": "numba", "checks": [], "seconds": numba["seconds"], "grid_seconds": numba["seconds"]}
    return [
        *rows,
        {**rows[0], **other, "lane_instructions_per_s": lanes / numba["seconds"], "times_numba": 1.0},
    ]


def _numba(problem: str) -> dict[str, float]:
    if importlib.util.find_spec("numba") is None:
        raise ValueError("numba is not installed: pip install -e '.[bench]'")
    done = subprocess.run(
        [sys.executable, "-m", "labs_common.numba_stage", problem],
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        timeout=NUMBA_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise ValueError(f"stage 00 in numba's simulator failed: {done.stderr.strip()[-500:]}")
    found = json.loads(done.stdout)
    if not found["right"]:
        raise ValueError(f"stage 00 in numba's simulator is wrong: largest error {found['max_error']:g}")
    return found
