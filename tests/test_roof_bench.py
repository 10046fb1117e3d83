"""The roof's benchmark, as far as it goes without a GPU: its inputs and its reference."""

import numpy as np
import pytest

from labs_common.compare import compare
from labs_common.device_inputs import device_inputs, device_reference
from labs_common.engines import SimulatorEngine
from labs_common.inputs import Inputs
from labs_common.known_shapes import SHAPES
from labs_common.problem import DTYPES, Problem, storage_dtype
from labs_common.reference import reference
from labs_common.roof_bench import contenders
from labs_common.stages import ROOF


def small(dtype, layout="NHD"):
    scales = {"key_scale": 0.5, "value_scale": 2.0} if dtype == "float8_e4m3fn" else {}
    return Problem(6, 2, 64, 16, (40, 0, 17), dtype, layout, **scales)


def as_host(problem, inputs, number):
    """A set as the lab's other inputs."""
    arrays = dict(inputs.sets[number])
    arrays["query"] = arrays["query"].view(storage_dtype(problem.query_dtype))
    for name in ("key_cache", "value_cache"):
        arrays[name] = arrays[name].view(storage_dtype(problem.dtype))
    return Inputs(**arrays, scale=inputs.scale)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_reference_made_there_is_the_reference(dtype, layout):
    problem = small(dtype, layout)
    inputs = device_inputs(np, problem, 2, seed=3)

    for number in range(2):
        expected = reference(problem, as_host(problem, inputs, number))
        found = device_reference(np, inputs, number)

        np.testing.assert_allclose(found.output, expected.output, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(found.log_sum_exp, expected.log_sum_exp, rtol=1e-12)
        np.testing.assert_allclose(found.magnitude, expected.magnitude, rtol=1e-12)
        np.testing.assert_allclose(found.score_size, expected.score_size, rtol=1e-12)


def test_sets_share_no_page():
    problem = small("float16")
    tables = [s["block_tables"] for s in device_inputs(np, problem, 3).sets]
    pages = np.concatenate([t[t >= 0] for t in tables])

    assert len(pages) == 3 * 5 and len(set(pages.tolist())) == len(pages)


def test_a_kernel_is_right_on_these_inputs():
    engine, problem = SimulatorEngine(), small("float8_e4m3fn")
    inputs = device_inputs(np, problem, 2)
    stage = ROOF[2]
    arrays = {name: engine.xp.asarray(array) for name, array in inputs.sets[1].items()}

    call = engine.bind(stage, problem, stage.plan(problem), arrays, inputs.scale)
    call()

    verdict = compare(engine.read(call, problem), device_reference(np, inputs, 1), stage.weights(problem))
    assert verdict.ok, verdict.diagnosis


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float8_e4m3fn"])
def test_every_shape_has_contenders(name, dtype, capsys):
    found = contenders(SHAPES[name].replace(dtype=dtype), SimulatorEngine())

    labels = [label for label, _, _ in found]
    assert len(set(labels)) == len(labels)
    assert {"08", "09"} <= set(labels)  # with the plan that they choose themselves
    assert sum(label.startswith("09, ") for label in labels) >= 3
    assert ("07" in labels) == (dtype != "float32")


def test_the_shapes_are_those_of_the_public_measurements():
    assert {name: (p.batch, p.kv_heads, p.head_dim) for name, p in SHAPES.items()} == {
        "S1": (64, 8, 128),
        "S1r": (64, 8, 128),
        "S2": (1, 4, 256),
        "S3": (256, 8, 128),
        "S4": (16, 8, 128),
    }
    assert all(1 <= n <= 8192 for n in SHAPES["S1r"].context_lengths)
