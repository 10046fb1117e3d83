"""Offsets past 2^31 elements, with no GPU: sparse memory that takes no room until it is touched."""

import numpy as np
import pytest

from labs_common.compare import compare
from labs_common.engines import SimulatorEngine, pointer_struct, problem_struct
from labs_common.inputs import Inputs, make_inputs
from labs_common.problem import Problem
from labs_common.reference import reference
from labs_common.stages import STAGES, find_stage


def sparse(elements, dtype=np.float32):
    """Zeros from the operating system: only pages that are touched take memory."""
    return np.zeros(elements, dtype)


@pytest.mark.parametrize("core", ["llvm", "numpy"])
@pytest.mark.parametrize("stage", STAGES[:5], ids=lambda s: s.id)
def test_a_page_past_2_to_the_31_elements(stage, core):
    """Page 131,072 of a cache of 16 x 8 x 128 per page begins at element 2^31; K and V alias one buffer."""
    problem = Problem(8, 8, 128, 16, (20,))
    far, page_elements = 131_072, 16 * 8 * 128
    assert far * page_elements == 2**31
    random = np.random.default_rng(0)
    pages = random.standard_normal((2, 16, 8, 128), dtype=np.float32)
    query = random.standard_normal((1, 8, 128), dtype=np.float32)
    cache = sparse((far + 1) * page_elements)
    cache[:page_elements] = pages[0].ravel()
    cache[far * page_elements :] = pages[1].ravel()
    lengths = np.array([20], np.int32)
    small = Inputs(query, pages, pages, np.array([[1, 0]], np.int32), lengths, 0.1)
    engine = SimulatorEngine(core=core)
    big = {"key_cache": cache, "value_cache": cache, "block_tables": np.array([[far, 0]], np.int32)}
    arrays = {**engine.upload(small), **{name: engine.xp.wrap(array, name) for name, array in big.items()}}

    call = engine.prepare(stage, problem, small, arrays=arrays)
    call()

    verdict = compare(engine.xp.asnumpy(call.output), reference(problem, small))
    assert verdict.ok, verdict.diagnosis


def test_partial_results_past_2_to_the_31_elements():
    """Stage 04's scratch for 1,024 x 128 heads, 128 splits and head_dim 128 ends at element 2^31."""
    batch, heads, splits = 1024, 128, 128
    problem = Problem(heads, 8, 128, 16, (0,) * (batch - 1) + (130 * 16,))
    plan = find_stage(4).plan(problem, splits=splits)
    parts = batch * heads * splits
    assert parts * 128 == 2**31
    engine = SimulatorEngine()
    lone = Problem(heads, 8, 128, 16, (130 * 16,))
    inputs = make_inputs(lone)
    query = sparse(batch * heads * 128)
    query[-heads * 128 :] = inputs.query.ravel()
    tables = sparse(batch * 130, np.int32)
    tables[-130:] = inputs.block_tables.ravel()
    lengths = np.zeros(batch, np.int32)
    lengths[-1] = 130 * 16
    arrays = {
        "query": query,
        "key_cache": inputs.key_cache,
        "value_cache": inputs.value_cache,
        "block_tables": tables,
        "context_lengths": lengths,
    }
    wrapped = {name: engine.xp.wrap(array, name) for name, array in arrays.items()}
    scratch = {
        name: engine.xp.wrap(sparse(n), name)
        for name, n in (("max", parts), ("sum", parts), ("output", parts * 128))
    }
    output = engine.xp.wrap(sparse(batch * heads * 128), "output")
    struct = problem_struct(
        problem, Inputs(**{**arrays, "block_tables": tables.reshape(batch, 130)}, scale=lone.scale)
    )
    module = engine.module(find_stage(4).source(), plan.defines)
    arguments = (struct, pointer_struct(wrapped), output, pointer_struct(scratch), np.int32(splits))

    first, merge = plan.launches
    last_head = [heads - 1 + heads * (batch - 1 + batch * split) for split in range(splits)]
    module.get_function(first.entry)(first.grid, first.block, arguments, blocks=last_head)
    module.get_function(merge.entry)(merge.grid, merge.block, arguments, blocks=[heads * batch - 1])

    row = engine.xp.asnumpy(output)[-128:]
    expected = reference(lone, inputs)
    np.testing.assert_allclose(row, expected.output[0, -1], atol=1e-5 * expected.magnitude[0, -1])
