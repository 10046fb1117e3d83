"""When each block begins and ends, and on which multiprocessor: ``python -m labs_common.block_times FILE``.

A kernel of the lab gets another kernel around it, which reads the GPU's clock before and after. Nothing in
between is changed, but the machine code is not the same, and neither are its registers: times are of this
form, not of the kernel that is timed elsewhere.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from labs_common.device_inputs import device_inputs
from labs_common.known_shapes import SHAPES
from labs_common.plans import Plan
from labs_common.problem import Problem
from labs_common.roof_bench import UncheckedGpu
from labs_common.roof_regret import recorded_table
from labs_common.source import Source
from labs_common.stages import ROOF, Stage
from labs_common.timing import refill_l2

CASES = (("S3", "float32"), ("S4", "float16"))
REPEATS = 5  # the middle one by its duration is kept
WORDS = 3  # of a block: begin and end in nanoseconds, multiprocessor

_AROUND = """
extern "C" __device__ unsigned long long block_times[BLOCKS * {words}];

extern "C" __global__ void {bounds}{entry}({parameters}) {{
  unsigned long long begin, end;
  unsigned multiprocessor;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin) :: "memory");
  {entry}_body({arguments});
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {{
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(end) :: "memory");
    asm volatile("mov.u32 %0, %smid;" : "=r"(multiprocessor));
    unsigned long long* mine = block_times + (size_t)(blockIdx.y * gridDim.x + blockIdx.x) * {words};
    mine[0] = begin;
    mine[1] = end;
    mine[2] = multiprocessor;
  }}
}}
"""


def clocked(source: Source, entry: str) -> Source:
    """A kernel file whose kernel also writes when its blocks begin and end.

    The array ``block_times`` is ``[BLOCKS, 3]``, of as many blocks as the macro of that name says.

    Args:
        source: with local headers or without.
        entry: name of a ``__global__`` function.

    Raises:
        ValueError: the file has no such kernel.
    """
    text = source.expanded()
    head = re.compile(
        r'extern "C" __global__ void\s+(?P<bounds>__launch_bounds__\([^)]*\)\s+)?'
        rf"{re.escape(entry)}\((?P<parameters>[^)]*)\)"
    )
    found = head.search(text)
    if found is None:
        raise ValueError(f"entry={entry!r}: {source.name} has no such kernel")
    parameters = found["parameters"]
    body = head.sub(f"__device__ __forceinline__ void {entry}_body({parameters})", text, count=1)
    around = _AROUND.format(
        words=WORDS,
        bounds=found["bounds"] or "",
        entry=entry,
        parameters=parameters,
        arguments=", ".join(re.findall(r"(\w+)\s*(?:,|$)", parameters)),
    )
    return Source(source.name, body + around)


def block_times(
    engine: Any, stage: Stage, problem: Problem, plan: Plan, arrays: Mapping[str, Any], scale: float
) -> pd.DataFrame:
    """Run a plan's first kernel on a GPU, and give a row for each of its blocks.

    Args:
        engine: of ``UncheckedGpu``.
        stage, problem, plan: what runs.
        arrays, scale: its inputs, as ``Engine.bind`` takes them.

    Returns:
        ``block``, ``multiprocessor``, and ``begin_us`` and ``end_us`` in microseconds from the first block's
        begin; of `REPEATS` runs, each after a read that fills L2, the one of median duration.

    Raises:
        ValueError: the grid has a third dimension.
    """
    launch = plan.launches[0]
    if launch.grid[2] != 1:
        raise ValueError(f"plan: a grid of {launch.grid} must have one or two dimensions")
    blocks = launch.grid[0] * launch.grid[1]
    source = clocked(stage.source(), launch.entry)
    plan = dataclasses.replace(plan, defines={**plan.defines, "BLOCKS": blocks})
    call = engine.bind(stage, problem, plan, arrays, scale, source)
    there = engine.module(source, plan.defines).get_global("block_times")
    clock = engine.xp.ndarray((blocks, WORDS), np.uint64, there)
    refill, runs = refill_l2(engine), []
    for _ in range(1 + REPEATS):
        refill()
        call()
        runs.append(engine.xp.asnumpy(clock).astype(np.int64))
    found = sorted(runs[1:], key=lambda run: run[:, 1].max() - run[:, 0].min())[REPEATS // 2]
    times = (found[:, :2] - found[:, 0].min()) / 1e3
    return pd.DataFrame(
        {
            "block": np.arange(blocks),
            "multiprocessor": found[:, 2],
            "begin_us": times[:, 0],
            "end_us": times[:, 1],
        }
    )


def recorded(gpu: str = "h200") -> pd.DataFrame:
    """What was measured and kept of a kind of GPU; empty where nothing was."""
    return recorded_table("block_times", gpu)


def main(arguments: list[str]) -> int:
    """Write the blocks of stage 09, with its own plan, on some of the shapes that peers are measured on."""
    if len(arguments) != 1:
        raise SystemExit("usage: python -m labs_common.block_times FILE")
    file = arguments[0]
    engine, stage = UncheckedGpu(), ROOF[-1]
    tables = []
    for name, dtype in CASES:
        problem = SHAPES[name].replace(dtype=dtype)
        inputs = device_inputs(engine.xp, problem, 1)
        plan = stage.plan(problem, engine.device)
        table = block_times(engine, stage, problem, plan, inputs.sets[0], inputs.scale)
        table.insert(0, "problem", name)
        table.insert(1, "dtype", dtype)
        table.insert(2, "runs", REPEATS)
        tables.append(table.round(3))
        last = table.groupby("multiprocessor")["end_us"].max()
        ends = ", ".join(f"{end:.1f}" for end in last.quantile((0, 0.5, 1)))
        print(
            f"{name} {dtype}: {len(table)} blocks; first, middle and last multiprocessor end after {ends} µs"
        )
        del inputs
        engine.xp.get_default_memory_pool().free_all_blocks()
    pd.concat(tables).to_csv(file, index=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
