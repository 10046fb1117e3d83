"""Inputs and reference for caches that the host would take minutes to fill: made where they are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from labs_common.engines import plain
from labs_common.layouts import cache_shapes, to_nhd
from labs_common.problem import Problem, storage_dtype
from labs_common.reference import Reference, attend

SAMPLES = 65536  # of the numbers that caches and queries are drawn from


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
