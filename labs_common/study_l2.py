"""What the L2 cache holds when attention begins: ``python -m labs_common.study_l2 FILE [SHAPE…]``.

Stage 09's own plan, with and without its hint to L2, and plain reading, each after four things that others
may have done before. Every state of a problem is one interleaved run with its own read ceiling. What was done
comes before each replay of a graph, whose calls take a millisecond in all or more: a figure is their mean.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from labs_common.compare import compare
from labs_common.device_inputs import device_inputs, device_reference
from labs_common.engines import Engine
from labs_common.known_shapes import SHAPES
from labs_common.problem import FP8, Problem
from labs_common.roof_bench import UncheckedGpu
from labs_common.roof_regret import recorded_table
from labs_common.stages import ROOF
from labs_common.timing import (
    CEILING_SHAPES,
    L2_BYTES,
    ceiling_bytes,
    ceiling_calls,
    ceiling_of,
    figures,
    reading,
    refill_l2,
    time_gpu,
)

STAGE = ROOF[-1]
GRAPH_S = 1e-3
ROUNDS = 15
CONTENDERS = {"09": {"evict_first": True}, "09, not evicted first": {"evict_first": False}}


def states(engine: Engine) -> dict[str, Callable[[], None] | None]:
    """What is done before every measurement, by its name."""
    words = engine.xp.zeros(L2_BYTES // 4, dtype=np.uint32)
    sink = engine.xp.zeros(65536, dtype=np.uint32)
    return {
        "read as usual": refill_l2(engine),
        "read to be evicted first": reading(engine, CEILING_SHAPES[0], words, sink),
        "written": lambda: words.fill(1),
        "done nothing": None,
    }


def measure(engine: Any, problem: Problem, sets: int = 2) -> pd.DataFrame:
    """Time the contenders on one problem in every state.

    Returns:
        A row for each state and contender: time, bandwidth (the problem's minimum bytes over the median) and
        its part of the read ceiling of the same run, and whether the output was right.
    """
    xp = engine.xp
    inputs = device_inputs(xp, problem, sets)
    expected = device_reference(xp, inputs, 0)
    plans = {name: STAGE.plan(problem, engine.device, **options) for name, options in CONTENDERS.items()}
    engine.build((name, STAGE, plan) for name, plan in plans.items())
    calls = {
        name: [engine.bind(STAGE, problem, plan, one, inputs.scale) for one in inputs.sets]
        for name, plan in plans.items()
    }
    nbytes = ceiling_bytes(engine)
    ceilings = ceiling_calls(engine, nbytes)
    rows = []
    for state, before in states(engine).items():
        timings = time_gpu(xp, {**calls, **ceilings}, ROUNDS, between=before, graph_s=GRAPH_S)
        ceiling = ceiling_of(timings, nbytes)
        for name, bound in calls.items():
            rows.append(
                {
                    "problem": problem.name,
                    "dtype": problem.dtype,
                    "before": state,
                    "what": name,
                    **figures(timings[name], problem, ceiling),
                    "right": compare(engine.read(bound[0], problem), expected, STAGE.weights(problem)).ok,
                }
            )
    return pd.DataFrame(rows)


def table(found: pd.DataFrame, figure: str = "% of read ceiling") -> pd.DataFrame:
    """A figure of every problem and contender, the states beside each other."""
    names = list(dict.fromkeys(found["before"]))
    return found.pivot_table(index=["dtype", "problem", "what"], columns="before", values=figure)[names]


def recorded(gpu: str = "h200") -> pd.DataFrame:
    """What was measured and kept of a kind of GPU; empty where nothing was."""
    return recorded_table("l2_states", gpu)


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """A row for each state: a plain read, stage 09 against the first state, and what its hint brings there.

    Returns:
        The mean of the plain reads' GB/s; in per cent, over problems, how much slower 09 is than in the first
        state (mean and most), and how much longer it takes without the hint (least, median and most).

    Raises:
        ValueError: nothing was measured.
    """
    if found.empty:
        raise ValueError("found: no state was measured")
    times = table(found, "median_us").unstack("what")
    rows = {}
    for state in dict.fromkeys(found["before"]):
        with_hint, without = (times[state, name] for name in CONTENDERS)
        gain = 100 * (without / with_hint - 1)
        slower = 100 * (with_hint / times[found["before"].iloc[0], "09"] - 1)
        ceiling = found.loc[found["before"] == state, "ceiling_GB/s"].mean()
        rows[state] = {
            "plain read, GB/s": ceiling,
            "slower, mean %": slower.mean(),
            "slower, most %": slower.max(),
            "hint gains, least %": gain.min(),
            "hint gains, median %": gain.median(),
            "hint gains, most %": gain.max(),
        }
    return pd.DataFrame(rows).T.round(1).rename_axis("what others did before")


def main(arguments: Iterable[str]) -> int:
    """Write a table of the shapes in every dtype; 1 where an output is wrong."""
    file, *names = [*arguments] or [""]
    if not file or set(names) - set(SHAPES):
        raise SystemExit(f"usage: python -m labs_common.study_l2 FILE [{' '.join(SHAPES)}]")
    engine = UncheckedGpu()
    tables = []
    for name in names or SHAPES:
        for dtype in ("float16", FP8, "float32"):
            tables.append(measure(engine, SHAPES[name].replace(dtype=dtype)))
            print(table(tables[-1]).round(2).to_string())
            pd.concat(tables).round(3).to_csv(file, index=False)
            engine.xp.get_default_memory_pool().free_all_blocks()
    return int(not pd.concat(tables)["right"].all())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
