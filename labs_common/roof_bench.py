"""Kernels on the way to the roof, timed on a GPU: ``python -m labs_common.roof_bench FILE [SHAPE…]``, or
``FILE random COUNT SEED`` for shapes that nobody chose.

Every table is one interleaved run with its own read ceiling. Keys, values and queries are made on the GPU and
held against the reference there: the host would take minutes for caches of gigabytes.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from labs_common.compare import compare
from labs_common.device_inputs import device_inputs, device_reference
from labs_common.engines import Engine, GpuEngine
from labs_common.known_shapes import SHAPES
from labs_common.plans import Plan
from labs_common.problem import FP8, Problem
from labs_common.roof_code import machine_code, sets_and_heads
from labs_common.roof_tune import tune
from labs_common.roof_work import BLOCK_BYTES, RING_SLOTS
from labs_common.source import Source
from labs_common.stages import ROOF, Stage, find_stage
from labs_common.timing import ROUNDS, ceiling_bytes, ceiling_calls, ceiling_of, figures, refill_l2, time_gpu

Contender = tuple[str, Stage, Plan]
TUNED = "09, tuned"
RUNS = {1: "", 2: ", two runs", 3: ", three runs"}  # equal ones for each multiprocessor, in a label


def random_shapes(count: int, seed: int = 0) -> list[Problem]:
    """Problems of every kind that stage 09 takes, with 30 MB to 1.5 GB of keys and values."""
    random = np.random.default_rng(seed)
    found: list[Problem] = []
    while len(found) < count:
        kv_heads, group = int(random.choice((1, 2, 4, 5, 8, 16))), int(random.integers(1, 17))
        batch, longest = int(2 ** random.uniform(0, 9)), int(2 ** random.uniform(6, 17))
        shortest = longest if random.random() < 0.4 else 1
        problem = Problem(
            kv_heads * group,
            kv_heads,
            int(random.choice((64, 96, 128, 192, 256))),
            int(random.choice((8, 16, 32, 64))),
            tuple(int(n) for n in random.integers(shortest, longest + 1, batch)),
            str(random.choice(("float32", "float16", "bfloat16", FP8))),
            str(random.choice(("NHD", "HND"))),
            name=f"random {seed}.{len(found)}",
        )
        if 30e6 < problem.minimum_bytes < 1.5e9:
            found.append(problem)
    return found


class UncheckedGpu(GpuEngine):
    """A GPU whose kernels are launched with what plans say, and built side by side before they are timed.

    It keeps every module that it made, some 0.1 MB each: a contender is bound to all input sets, and tuned
    beside others.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[tuple[Source, tuple], Any] = {}

    def module(self, source: Source, defines: Mapping[str, object] | None = None) -> Any:
        """As ``GpuEngine.raw_module``."""
        key = source, tuple(sorted((defines or {}).items()))
        if key not in self._made:
            self._made[key] = self.raw_module(source, defines)
        return self._made[key]

    def build(self, compared: Iterable[Contender]) -> None:
        """Make every kernel's machine code. What does not compile fails later."""
        with ThreadPoolExecutor() as pool:
            for _, stage, plan in compared:
                pool.submit(self.module, stage.source(), plan.defines)


def contenders(problem: Problem, engine: Engine, others: bool = True) -> list[Contender]:
    """Stage 09 with the plan that it chooses, then with every way to split its work that is worth a look.

    Equal runs are there cut by what tiles and segments cost, and by tiles alone as stage 08 cuts them. One is
    tuned when it is measured.

    Args:
        problem: shapes, dtypes and layout.
        engine: whose device plans are made for.
        others: whether the stages before it that take the problem are there too.
    """
    device = engine.device
    found: list[Contender] = []

    def add(label: str, stage: Stage, beside: int = 1, **options: Any) -> None:
        try:
            plan = stage.plan(problem, device, **options)
        except ValueError as error:
            print(f"{problem.name} {problem.dtype}, {label}: {error}")
            return
        if beside == 1 or beside * (plan.launches[0].shared_bytes + BLOCK_BYTES) <= device.max_shared_bytes:
            found.append((label, stage, plan))

    if others:
        for stage in (find_stage("05"), *ROOF[:-1]):
            add(stage.id[:2], stage)
    add("09", ROOF[-1])
    add(TUNED, ROOF[-1])
    add("09, equal runs", ROOF[-1], whole=False)
    add("09, equal runs by tiles alone", ROOF[-1], whole=False, segment_tiles=0)
    sets = problem.kv_heads * sets_and_heads(problem)[0]
    for block_heads in (heads for heads in (1, 2, 4, 8) if sets % heads == 0):
        blocks = sets // block_heads * problem.batch
        for slots in RING_SLOTS:
            options = {"block_heads": block_heads, "ring_slots": slots}
            label = f"09, {block_heads} heads a block, {slots} slots"
            code = machine_code(problem, block_heads, slots)
            for runs, words in tuple(RUNS.items())[: code.blocks if code else 1]:
                few = {"whole": False, "blocks": runs * device.multiprocessors}
                add(label + words, ROOF[-1], runs, **options, evict_first=True, **few)
            if 2 * blocks < device.multiprocessors:
                continue  # half of the GPU would have nothing to do
            add(f"{label}, whole", ROOF[-1], **options, evict_first=True, whole=True)
            if block_heads == 8:  # which read pages from one end to the other
                add(f"{label}, whole, not evicted first", ROOF[-1], **options, evict_first=False, whole=True)
    return found


class Way(NamedTuple):
    """How a contender of stage 09 splits its work; ``runs`` a multiprocessor, 0 for whole sequences."""

    block_heads: int
    slots: int
    runs: int
    evict_first: bool


def way(label: str) -> Way:
    """What a label that ``contenders`` made says."""
    heads, slots = (int(number) for number in re.findall(r"(\d+) (?:heads|slots)", label))
    runs = 0 if "whole" in label else next(n for n in (3, 2, 1) if RUNS[n] in label)
    return Way(heads, slots, runs, "not evicted first" not in label)


def measure(
    engine: Engine, problem: Problem, compared: Iterable[Contender], sets: int = 2, rounds: int = ROUNDS
) -> pd.DataFrame:
    """Time contenders on one problem against each other and plain reading; every output is checked.

    The contender ``TUNED`` gets the plan of the fastest way that ``tune`` found before.

    Returns:
        A row for each: time, bandwidth (the problem's minimum bytes over the median) and its part of the read
        ceiling of 4 GiB in the same run, and whether the timed output was right.
    """
    xp = engine.xp
    inputs = device_inputs(xp, problem, sets)
    expected = device_reference(xp, inputs, 0)
    bound: dict[str, list[Callable[[], None]]] = {}
    rows, weights = [], {}
    for label, stage, plan in compared:
        try:
            if label == TUNED:
                plan = stage.plan(problem, engine.device, **tune(engine, problem, inputs)[0].options)
            bound[label] = [engine.bind(stage, problem, plan, one, inputs.scale) for one in inputs.sets]
            bound[label][0]()
            xp.cuda.Device().synchronize()
            weights[label] = stage.weights(problem)
        except Exception as error:  # one contender's failure must not cost the others their measurement
            bound.pop(label, None)
            print(f"{label}: {type(error).__name__}: {str(error)[:400]}")
    nbytes = ceiling_bytes(engine)
    calls = {**bound, **ceiling_calls(engine, nbytes)}
    timings = time_gpu(xp, calls, rounds, between=refill_l2(engine))
    ceiling = ceiling_of(timings, nbytes)
    for label, calls in bound.items():
        verdict = compare(engine.read(calls[0], problem), expected, weights[label])
        rows.append(
            {
                "problem": problem.name,
                "dtype": problem.dtype,
                "what": label,
                **figures(timings[label], problem, ceiling),
                "right": verdict.ok,
                "diagnosis": verdict.diagnosis,
            }
        )
    return pd.DataFrame(rows)


def main(arguments: list[str]) -> int:
    """Write one table of all shapes and dtypes; 1 where an output is wrong."""
    file, *names = arguments
    engine = UncheckedGpu()
    if names[:1] == ["random"]:
        problems = random_shapes(*map(int, names[1:]))
    else:
        problems = [SHAPES[n].replace(dtype=d) for n in names or SHAPES for d in ("float16", FP8, "float32")]
    compared = [contenders(problem, engine, others=names[:1] != ["random"]) for problem in problems]
    engine.build(itertools.chain(*compared))
    tables = []
    for problem, those in zip(problems, compared, strict=True):
        table = measure(engine, problem, those)
        print(table.sort_values("median_us").drop(columns=["diagnosis"]).head(8).to_string(index=False))
        tables.append(table)
        pd.concat(tables).to_csv(file, index=False)
        engine.xp.get_default_memory_pool().free_all_blocks()
    return int(not pd.concat(tables)["right"].all())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
