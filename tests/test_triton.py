"""Stage 05 in Triton, interpreted and on a GPU compiled, against the float64 reference."""

import importlib.util

import numpy as np
import pytest

from labs_common import triton_stage
from labs_common.compare import compare
from labs_common.inputs import make_inputs
from labs_common.problem import PRESETS, Problem
from labs_common.reference import reference
from labs_common.triton_stage import TritonMissing, prepare_triton
from labs_common.worker import Worker

PROBLEMS = (
    PRESETS["tiny"],
    PRESETS["tiny"].replace(dtype="float16"),
    Problem(12, 2, 96, 8, (0, 1, 150, 64), "float16"),
    Problem(6, 1, 256, 16, (77,)),
    Problem(20, 1, 20, 5, (33, 1)),
)


@pytest.fixture
def triton():
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton: not installed")


@pytest.mark.triton
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_interpreter_gives_the_right_answer(triton, problem):
    inputs = make_inputs(problem)
    call, output = prepare_triton(np, problem, inputs.arrays(), inputs.scale, partition_tokens=64)

    call()

    verdict = compare(output, reference(problem, inputs))
    assert verdict.ok, verdict.diagnosis


def run_compiled(problem):
    """In a process of its own: Triton either interprets or compiles."""
    from labs_common.engines import open_engine

    gpu = open_engine("gpu")
    inputs = make_inputs(problem)
    call, output = prepare_triton(gpu.xp, problem, gpu.upload(inputs), inputs.scale, partition_tokens=64)
    call()
    return compare(gpu.xp.asnumpy(output), reference(problem, inputs))


@pytest.mark.triton
@pytest.mark.gpu
def test_the_compiled_kernel_gives_the_right_answer(triton):
    pytest.importorskip("torch", reason="triton: its CUDA driver needs torch")
    worker = Worker()
    try:
        for problem in PROBLEMS:
            verdict = worker.call(run_compiled, problem)
            assert verdict.ok, f"{problem}: {verdict.diagnosis}"
    finally:
        worker.discard()


@pytest.mark.parametrize(("partition", "tile"), [(64, 8), (64, 24), (48, 32)])
def test_tiles_that_triton_does_not_take_are_refused(partition, tile):
    problem = PRESETS["tiny"]

    with pytest.raises(ValueError, match=f"tile_tokens={tile}"):
        prepare_triton(np, problem, make_inputs(problem).arrays(), 1.0, partition, tile)
    with pytest.raises(ValueError, match="layout=packed"):
        prepare_triton(np, problem.replace(layout="packed"), {}, 1.0)


def test_without_triton_the_remedy_is_told(monkeypatch):
    monkeypatch.delitem(triton_stage.sys.modules, "triton", raising=False)
    monkeypatch.setattr(triton_stage.importlib.util, "find_spec", lambda name: None)
    triton_stage.kernels.cache_clear()

    with pytest.raises(TritonMissing, match="pip install"):
        triton_stage.kernels(True)


@pytest.mark.triton
def test_one_process_has_the_interpreter_or_the_compiler(triton):
    triton_stage.kernels(True)
    triton_stage.kernels.cache_clear()

    with pytest.raises(TritonMissing, match="runs as its interpreter in this process"):
        triton_stage.kernels(False)
