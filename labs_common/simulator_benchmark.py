"""The lab's stages as cases for the simulator's benchmark."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from labs_common.engines import SimulatorEngine
from labs_common.inputs import make_inputs
from labs_common.problem import Problem
from labs_common.simt import benchmark, cupy_like
from labs_common.stages import Stage, find_stage
from labs_common.worker import Worker

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


def first_results(stages: Sequence[Stage], problem: Problem) -> list[dict[str, object]]:
    """How long a student waits for the first result of a kernel, new to this machine and known to it.

    Returns:
        A row for each stage: stage, problem, engine, ``new_s``, from the kernel file to the output with empty
        caches, and ``known_s``, the launches alone where their machine code is on disk. Both are taken
        in a new process that has run another kernel, as a notebook's has.
    """
    rows = []
    for stage in stages:
        with tempfile.TemporaryDirectory(prefix="palab-bench") as cache:
            new, known = (_in_new_process(stage, problem, cache) for _ in range(2))
        row = {"stage": stage.id, "problem": problem.name, "engine": "llvm", "cores": os.cpu_count()}
        rows.append({**row, "new_s": new["whole"], "known_s": known["launches"]})
    return rows


def _in_new_process(stage: Stage, problem: Problem, cache: str) -> dict[str, float]:
    worker = Worker()
    try:
        return worker.call(_first_result, stage, problem, cache)
    finally:
        worker.discard()  # the optimised code is on disk before it ends


def _first_result(stage: Stage, problem: Problem, cache: str) -> dict[str, float]:
    os.environ["XDG_CACHE_HOME"] = cache
    from labs_common.simt import llvm_engine

    inputs = make_inputs(problem)
    engine = SimulatorEngine(core="llvm", force=True)
    engine.run(find_stage("00"), problem, inputs)
    started = time.perf_counter()
    call = engine.prepare(stage, problem, inputs)
    prepared = time.perf_counter()
    call()
    ended = time.perf_counter()
    for launch in call.launches:
        kernel = call.kernels[launch.entry]
        prepared_launch = kernel.prepare(launch.grid, launch.block, call.arguments, launch.shared_bytes)
        llvm_engine.prepare(prepared_launch).settle()
    return {"whole": ended - started, "launches": ended - prepared}


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
