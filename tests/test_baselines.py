"""The floor: right, and its launches and bytes are what its own steps say."""

import numpy as np
import pytest

from labs_common.baselines import Tally, count_floor, floor_attention
from labs_common.compare import compare
from labs_common.inputs import make_inputs
from labs_common.problem import PRESETS, Problem
from labs_common.reference import reference


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("problem", [PRESETS["ragged"], Problem(6, 2, 20, 5, (0, 33, 1))], ids=str)
def test_the_floor_is_right(problem, repeat):
    inputs = make_inputs(problem)

    output = floor_attention(np, problem, inputs.arrays(), inputs.scale, repeat)

    verdict = compare(output, reference(problem, inputs))
    assert verdict.ok, verdict.diagnosis


def test_half_precision_rounds_scores_and_weights():
    """Its scores pass through fp16, so that it is close, not as right as a kernel that keeps them in fp32."""
    problem = PRESETS["ragged"].replace(dtype="float16")
    inputs = make_inputs(problem)

    output = floor_attention(np, problem, inputs.arrays(), inputs.scale)

    assert output.dtype == np.float16
    expected = reference(problem, inputs).output
    assert np.linalg.norm(output - expected) < 5e-3 * np.linalg.norm(expected)


def test_bytes_and_crossings_of_one_sequence():
    """By hand: 40 tokens lie on 3 pages of 16: 48 are gathered, with 2 heads, 64 dimensions, 4 bytes."""
    problem = Problem(8, 2, 64, 16, (40,))
    inputs = make_inputs(problem)

    shared = count_floor(problem, inputs.arrays(), inputs.scale)
    repeated = count_floor(problem, inputs.arrays(), inputs.scale, repeat=True)

    gathered, turned = 48 * 2 * 64 * 4, 40 * 2 * 64 * 4
    assert shared.key_value_bytes == 2 * (gathered + turned)
    assert repeated.key_value_bytes == 2 * (gathered + turned + 4 * turned)  # 4 query heads to a group
    assert shared.materialised["exponential"] == 8 * 40 * 4
    assert shared.materialised["write"] == 8 * 64 * 4
    assert (shared.boundary_crossings, repeated.boundary_crossings) == (13, 15)


def test_crossings_grow_with_the_batch_and_empty_sequences_cost_nothing():
    def crossings(lengths):
        problem = Problem(2, 1, 8, 4, lengths)
        inputs = make_inputs(problem)
        return count_floor(problem, inputs.arrays(), inputs.scale).boundary_crossings

    assert crossings((5, 9, 3)) == 3 * crossings((5,)) == crossings((5, 0, 9, 0, 3))
    assert crossings(()) == 0


def test_the_second_documents_problem_materialises_its_cache_twice():
    """Keys and values are gathered, then turned; and six copies more where each query head has its own."""
    problem = PRESETS["long"].replace(context_lengths=(1024,))
    inputs = make_inputs(problem)

    shared = count_floor(problem, inputs.arrays(), inputs.scale).key_value_bytes
    repeated = count_floor(problem, inputs.arrays(), inputs.scale, repeat=True).key_value_bytes

    assert shared == 2 * problem.kv_bytes
    assert repeated == (2 + 6) * problem.kv_bytes


def test_another_layout_is_refused():
    problem = PRESETS["tiny"].replace(layout="HND")

    with pytest.raises(ValueError, match="layout=HND"):
        floor_attention(np, problem, make_inputs(problem).arrays(), problem.scale, tally=Tally())


@pytest.mark.gpu
def test_the_floor_is_right_on_the_gpu(gpu):
    problem = PRESETS["ragged"]
    inputs = make_inputs(problem)

    output = floor_attention(gpu.xp, problem, gpu.upload(inputs), inputs.scale)

    assert compare(gpu.xp.asnumpy(output), reference(problem, inputs)).ok
