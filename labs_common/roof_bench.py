"""Kernels on the way to the roof, timed on a GPU: ``python -m labs_common.roof_bench FILE [SHAPE…]``, or
``FILE random COUNT SEED`` for shapes that nobody chose.

Every table is one interleaved run with its own read ceiling. Keys, values and queries are made on the GPU and
held against the reference there: the host would take minutes for caches of gigabytes.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from labs_common.compare import compare
from labs_common.engines import Engine, GpuEngine, plain
from labs_common.known_shapes import SHAPES
from labs_common.layouts import cache_shapes, to_nhd
from labs_common.plans import Plan
from labs_common.problem import FP8, Problem, storage_dtype
from labs_common.reference import Reference, attend
from labs_common.stages import ROOF, Stage, find_stage
from labs_common.timing import ROUNDS, ceiling_bytes, ceiling_calls, ceiling_of, plain_reading, time_gpu

SAMPLES = 65536  # of the numbers that caches and queries are drawn from
Contender = tuple[str, Stage, Plan]


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
    """A GPU whose kernels are launched with what plans say, and built side by side before they are timed."""

    module = GpuEngine.raw_module

    def build(self, compared: Iterable[Contender]) -> None:
        """Put every kernel's machine code where CuPy finds it again. What does not compile fails later."""
        with ThreadPoolExecutor() as pool:
            for _, stage, plan in compared:
                pool.submit(self.raw_module, stage.source(), plan.defines)


@dataclass(frozen=True)
class DeviceInputs:
    """Input sets of one problem in one pool of pages, as arrays of ``xp`` that a kernel reads.

    Attributes:
        sets: arrays by name for each set; caches and context lengths are shared, pages are not.
        scale: factor on every score, the scale of fp8 keys included.
    """

    problem: Problem
    sets: tuple[dict[str, Any], ...]
    scale: float


def device_inputs(xp: Any, problem: Problem, sets: int, seed: int = 0) -> DeviceInputs:
    """Random inputs made where they are used; a dtype that ``xp`` lacks comes as unsigned integers.

    Args:
        xp: ``cupy``, or ``numpy`` where there is no GPU.
        problem: shapes, dtypes and layout.
        sets: disjoint sets of pages, each with a table and queries of its own.
        seed: the same seed gives the same arrays.
    """
    host = np.random.default_rng(seed)
    random = xp.random.RandomState(seed)

    def drawn(shape: tuple[int, ...], dtype: str, spread: float) -> Any:
        numbers = (spread * host.standard_normal(SAMPLES)).astype(storage_dtype(dtype))
        return xp.asarray(plain(numbers))[random.randint(0, SAMPLES, shape)]

    pages = sum(problem.pages_per_sequence)
    key_shape, value_shape = cache_shapes(problem, sets * pages)
    key, value = drawn(key_shape, problem.dtype, 1.0), drawn(value_shape, problem.dtype, 1.0)
    order = host.permutation(sets * pages).astype(np.int32)
    lengths = xp.asarray(np.array(problem.context_lengths, np.int32))
    made = []
    for number in range(sets):
        table = np.full((problem.batch, problem.max_pages), -1, np.int32)
        mine = iter(order[number * pages : (number + 1) * pages])
        for row, count in enumerate(problem.pages_per_sequence):
            table[row, :count] = [next(mine) for _ in range(count)]
        query = drawn((problem.batch, problem.query_heads, problem.head_dim), problem.query_dtype, 2.0)
        arrays = {"query": query, "key_cache": key, "value_cache": value}
        made.append({**arrays, "block_tables": xp.asarray(table), "context_lengths": lengths})
    return DeviceInputs(problem, tuple(made), problem.scale * problem.key_scale)


def device_reference(xp: Any, inputs: DeviceInputs, number: int) -> Reference:
    """The reference of one set, worked out in float64 by ``xp``."""
    problem, arrays = inputs.problem, inputs.sets[number]
    to_host = np.asarray if xp is np else xp.asnumpy
    heads = (problem.batch, problem.query_heads)
    output, figures = np.zeros((*heads, problem.head_dim)), np.zeros((3, *heads))
    figures[0] = -np.inf
    query = _numbers(xp, arrays["query"], problem.query_dtype)
    for row, length in enumerate(problem.context_lengths):
        if length == 0:
            continue
        pages = arrays["block_tables"][row, : problem.pages_per_sequence[row]]
        key, value = (
            cache.reshape(-1, problem.kv_heads, problem.head_dim)[:length].transpose(1, 0, 2)
            for cache in to_nhd(
                problem,
                *(_numbers(xp, arrays[name][pages], problem.dtype) for name in ("key_cache", "value_cache")),
            )
        )
        found = attend(xp, problem, query[row], key, value * problem.value_scale, inputs.scale)
        output[row] = to_host(found[0])
        figures[:, row] = [to_host(figure) for figure in found[1:]]
    return Reference(problem, output, *figures)


def _numbers(xp: Any, array: Any, dtype: str) -> Any:
    """The float64 values of an array that ``device_inputs`` made."""
    if storage_dtype(dtype).kind != "V":
        return array.astype(np.float64)
    width = storage_dtype(dtype).itemsize
    codes = np.arange(2 ** (8 * width), dtype=f"u{width}").view(storage_dtype(dtype))
    with np.errstate(invalid="ignore"):  # signalling NaN among the codes
        numbers = codes.astype(np.float64)
    return xp.asarray(numbers)[array]


def contenders(problem: Problem, engine: Engine) -> list[Contender]:
    """Every kernel that takes the problem, with the options that are worth a look."""
    found: list[Contender] = []

    def add(label: str, stage: Stage, **options: Any) -> None:
        try:
            found.append((label, stage, stage.plan(problem, engine.device, **options)))
        except ValueError as error:
            print(f"{problem.name} {problem.dtype}, {label}: {error}")

    add("05", find_stage("05"))
    for stage in ROOF:
        add(stage.id[:2], stage)
    sets = problem.kv_heads * -(-problem.group_size // 8)
    for block_heads in (heads for heads in (1, 2, 4, 8) if sets % heads == 0):
        for slots in (2, 3, 4, 6):
            for whole, evict_first in ((False, True), (True, True), (True, False)):
                label = f"09, {block_heads} heads a block, {slots} slots"
                label += ", whole" * whole + ", not evicted first" * (not evict_first)
                options = {"block_heads": block_heads, "ring_slots": slots}
                add(label, ROOF[-1], **options, evict_first=evict_first, whole=whole)
    return found


def way(label: str) -> tuple[int, int, bool, bool]:
    """Heads a block, slots, whether whole and whether evicted first, of a label that ``contenders`` made."""
    heads, slots = (int(number) for number in re.findall(r"(\d+) (?:heads|slots)", label))
    return heads, slots, "whole" in label, "not evicted first" not in label


def measure(
    engine: Engine, problem: Problem, compared: Iterable[Contender], sets: int = 2, rounds: int = ROUNDS
) -> pd.DataFrame:
    """Time contenders on one problem against each other and plain reading; every output is checked.

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
            bound[label] = [engine.bind(stage, problem, plan, one, inputs.scale) for one in inputs.sets]
            bound[label][0]()
            xp.cuda.Device().synchronize()
            weights[label] = stage.weights(problem)
        except Exception as error:  # one contender's failure must not cost the others their measurement
            bound.pop(label, None)
            print(f"{label}: {type(error).__name__}: {str(error)[:400]}")
    nbytes = ceiling_bytes(engine)
    calls = {**bound, **ceiling_calls(engine, nbytes)}
    timings = time_gpu(xp, calls, rounds, between=plain_reading(engine))
    ceiling = ceiling_of(timings, nbytes)
    for label, calls in bound.items():
        verdict = compare(engine.read(calls[0], problem), expected, weights[label])
        median = timings[label].median_s
        rows.append(
            {
                "problem": problem.name,
                "dtype": problem.dtype,
                "what": label,
                "median_us": 1e6 * median,
                "p90_us": 1e6 * timings[label].p90_s,
                "GB/s": problem.minimum_bytes / median / 1e9,
                "% of read ceiling": 100 * problem.minimum_bytes / median / ceiling,
                "ceiling_GB/s": ceiling / 1e9,
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
    compared = [contenders(problem, engine) for problem in problems]
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
