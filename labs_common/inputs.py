"""The arrays of a problem: random where they are read, poison where they are not."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from labs_common.layouts import cache_shapes, from_nhd
from labs_common.problem import Problem, storage_dtype

SPARE_PAGES = 3  # pages of the pool that no sequence owns, filled with NaN


@dataclass(frozen=True)
class Inputs:
    """The arrays that a kernel reads, in NumPy.

    Attributes:
        query: ``[batch, query_heads, head_dim]`` of the problem's query_dtype.
        key_cache, value_cache: of the problem's layout and dtype; ``layouts`` gives their shapes.
        block_tables: ``[batch, max_pages]`` int32, the physical page of each logical page.
        context_lengths: ``[batch]`` int32.
        scale: factor on every score, the scale of fp8 keys included.
    """

    query: np.ndarray
    key_cache: np.ndarray
    value_cache: np.ndarray
    block_tables: np.ndarray
    context_lengths: np.ndarray
    scale: float

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name, in the order of the CUDA struct ``Inputs``."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "scale"}


def make_inputs(problem: Problem, seed: int = 0) -> Inputs:
    """Random inputs that make wrong addressing visible.

    Physical pages are a random permutation, so no table is the identity. Where two sequences both fill their
    first page they share it, as prefix caching does. Every slot past a context and every unowned page is NaN;
    every unused table entry is an invalid page number.

    Args:
        problem: shapes, dtype, layout and context lengths.
        seed: the same seed gives the same arrays, and the same keys and values in every layout.
    """
    random = np.random.default_rng(seed)
    used = problem.pages_per_sequence
    sharing = [row for row, length in enumerate(problem.context_lengths) if length >= problem.page_size][:2]
    shares = len(sharing) == 2

    owned = sum(used) - shares
    pool = random.permutation(owned + SPARE_PAGES).astype(np.int32)
    tables = random.choice(
        np.array([-1, -(2**31), owned + SPARE_PAGES, 2**31 - 1], np.int32), (problem.batch, problem.max_pages)
    )
    free = iter(pool)
    for row, pages in enumerate(used):
        for column in range(pages):
            shared = shares and row == sharing[1] and column == 0
            tables[row, column] = tables[sharing[0], 0] if shared else next(free)

    def normal(shape: tuple[int, ...], dtype: str) -> np.ndarray:
        return random.standard_normal(shape, dtype=np.float32).astype(storage_dtype(dtype), copy=False)

    cache_shape = (len(pool), problem.page_size, problem.kv_heads, problem.head_dim)
    key_cache, value_cache = normal(cache_shape, problem.dtype), normal(cache_shape, problem.dtype)
    unused = np.ones(cache_shape[:2], bool)
    for row, length in enumerate(problem.context_lengths):
        full, rest = divmod(length, problem.page_size)
        unused[tables[row, :full]] = False
        if rest:
            unused[tables[row, full], :rest] = False
    key_cache[unused] = np.nan
    value_cache[unused] = np.nan
    query = normal((problem.batch, problem.query_heads, problem.head_dim), problem.query_dtype)
    key_cache, value_cache = from_nhd(problem, key_cache, value_cache)
    return Inputs(
        query=query,
        key_cache=key_cache,
        value_cache=value_cache,
        block_tables=tables,
        context_lengths=np.array(problem.context_lengths, np.int32),
        scale=problem.scale * problem.key_scale,
    )


def validate_inputs(problem: Problem, inputs: Inputs) -> None:
    """Refuse arrays that a kernel would misread.

    Raises:
        ValueError: a wrong shape, dtype or stride, a context longer than its table, or a used table entry
            that names no page (with row and column).
    """
    key_shape, value_shape = cache_shapes(problem)
    expected = {
        "query": ((problem.batch, problem.query_heads, problem.head_dim), problem.query_dtype),
        "key_cache": (key_shape, problem.dtype),
        "value_cache": (value_shape, problem.dtype),
        "block_tables": ((problem.batch, None), "int32"),
        "context_lengths": ((problem.batch,), "int32"),
    }
    for name, array in inputs.arrays().items():
        shape, dtype = expected[name]
        if array.ndim != len(shape) or any(
            want not in (None, got) for want, got in zip(shape, array.shape, strict=True)
        ):
            wanted = tuple("any" if want is None else want for want in shape)
            raise ValueError(f"{name} has shape {array.shape}; this problem needs {wanted}")
        if array.dtype != storage_dtype(dtype):
            raise ValueError(f"{name} has dtype {array.dtype}; this problem needs {dtype}")
        if not array.flags.c_contiguous:
            raise ValueError(
                f"{name} has strides {array.strides}; kernels need a C-contiguous array (use .copy())"
            )
    if len(inputs.key_cache) != len(inputs.value_cache):
        raise ValueError(
            f"key_cache {inputs.key_cache.shape} and value_cache {inputs.value_cache.shape} differ in shape: "
            "they need the same number of pages"
        )
    if not np.isfinite(inputs.scale):
        raise ValueError(f"scale={inputs.scale} must be finite")
    pages, columns = inputs.key_cache.shape[0], inputs.block_tables.shape[1]
    for row, length in enumerate(inputs.context_lengths):
        if length < 0 or length > columns * problem.page_size:
            raise ValueError(
                f"context_lengths[{row}]={length}: a table of {columns} pages of {problem.page_size} tokens "
                f"holds 0 to {columns * problem.page_size}"
            )
        entries = inputs.block_tables[row, : -(-int(length) // problem.page_size)]
        bad = np.flatnonzero((entries < 0) | (entries >= pages))
        if bad.size:
            raise ValueError(
                f"block_tables[{row}, {bad[0]}]={entries[bad[0]]} names no page; "
                f"the cache has pages 0 to {pages - 1}"
            )
