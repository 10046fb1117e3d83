"""Stage 00 translated by hand for numba's CUDA simulator: ``python -m labs_common.numba_stage PROBLEM``.

Prints the seconds of the launch and the largest error, as JSON. Nothing imports this module: numba reads
``NUMBA_ENABLE_CUDASIM``, which must be 1, once and for the whole process.
"""

from __future__ import annotations

import json
import math
import sys
import time

import numpy as np
from numba import cuda

from labs_common.compare import compare
from labs_common.inputs import make_inputs
from labs_common.plans import Device
from labs_common.problem import find_problem
from labs_common.reference import reference
from labs_common.stages import find_stage


@cuda.jit
def baseline(query, keys, values, block_tables, context_lengths, scale, output):
    """``kernels/00_baseline.cu``, line by line; arrays instead of pointers and offsets."""
    query_head, sequence, dim = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    page_size, head_dim = keys.shape[1], keys.shape[3]
    if dim >= head_dim:
        return
    kv_head = query_head // (query.shape[1] // keys.shape[2])
    context = context_lengths[sequence]
    running_max, running_sum, accumulator = -math.inf, 0.0, 0.0
    for token in range(context):
        page, slot = block_tables[sequence, token // page_size], token % page_size
        score = 0.0
        for d in range(head_dim):
            score += query[sequence, query_head, d] * keys[page, slot, kv_head, d]
        score *= scale
        new_max = max(running_max, score)
        correction, weight = math.exp(running_max - new_max), math.exp(score - new_max)
        running_sum = running_sum * correction + weight
        accumulator = accumulator * correction + weight * values[page, slot, kv_head, dim]
        running_max = new_max
    output[sequence, query_head, dim] = accumulator / running_sum if context > 0 else 0.0


def run(name: str) -> dict[str, object]:
    """One launch on a preset: ``seconds``, ``max_error``, and whether the output is ``right``."""
    problem = find_problem(name)
    inputs = make_inputs(problem)
    launch = find_stage("00").plan(problem, Device()).launches[0]
    output = np.full(inputs.query.shape, np.nan, np.float32)
    arrays = (inputs.query, inputs.key_cache, inputs.value_cache, inputs.block_tables, inputs.context_lengths)
    started = time.perf_counter()
    baseline[launch.grid, launch.block](*arrays, inputs.scale, output)
    seconds = time.perf_counter() - started
    verdict = compare(output, reference(problem, inputs))
    return {"seconds": seconds, "max_error": verdict.max_error, "right": verdict.ok}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1])))
