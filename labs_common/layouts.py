"""How the keys and values of a page lie in memory: NHD, HND and packed, and the way from one to another.

========  =============================================  =======================================
layout    key cache                                      value cache
========  =============================================  =======================================
NHD       ``[pages, page_size, kv_heads, head_dim]``      the same
HND       ``[pages, kv_heads, page_size, head_dim]``      the same
packed    ``[pages, kv_heads, head_dim/x, page_size, x]``  ``[pages, kv_heads, head_dim, page_size]``
========  =============================================  =======================================

x is the number of elements in 16 bytes: 4 in float32, 8 in float16. The packed layout is that of vLLM's first
CUDA kernels: neighbouring threads that each take one token read neighbouring 16 bytes of keys.
"""

from __future__ import annotations

from typing import Any

from labs_common.problem import LAYOUTS, Problem

CHUNK_BYTES = 16  # the widest load of one thread


def chunk_elements(problem: Problem) -> int:
    """Elements in 16 bytes: x of the packed layout."""
    return CHUNK_BYTES // problem.itemsize


def cache_shapes(
    problem: Problem, pages: int | None = None, layout: str | None = None
) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
    """Shapes of the key and the value cache.

    Args:
        problem: head counts, head_dim, page_size and dtype.
        pages: of the pool; None leaves it open.
        layout: one of ``LAYOUTS``, by default the problem's.

    Raises:
        ValueError: no such layout, or a packed head_dim that is no multiple of x.
    """
    layout = layout or problem.layout
    heads, dims, tokens = problem.kv_heads, problem.head_dim, problem.page_size
    if layout == "NHD":
        return (pages, tokens, heads, dims), (pages, tokens, heads, dims)
    if layout == "HND":
        return (pages, heads, tokens, dims), (pages, heads, tokens, dims)
    if layout == "packed":
        x = chunk_elements(problem)
        if dims % x:
            raise ValueError(f"head_dim={dims}: the packed layout takes multiples of {x} in {problem.dtype}")
        return (pages, heads, dims // x, tokens, x), (pages, heads, dims, tokens)
    raise ValueError(f"layout={layout!r}: allowed are {', '.join(LAYOUTS)}")


def from_nhd(problem: Problem, key: Any, value: Any, layout: str | None = None) -> tuple[Any, Any]:
    """Keys and values of NHD as C-contiguous arrays of another layout; NumPy or CuPy, on any number of pages.

    Args:
        problem: head counts, head_dim, page_size and dtype.
        key, value: ``[pages, page_size, kv_heads, head_dim]``.
        layout: one of ``LAYOUTS``, by default the problem's. NHD itself gives the arrays back uncopied.

    Raises:
        ValueError: as ``cache_shapes``, or an array of another shape.
    """
    layout = layout or problem.layout
    key_shape, _ = cache_shapes(problem, len(key), layout)
    _check_shapes(problem, "NHD", key, value)
    if layout == "NHD":
        return key, value
    if layout == "HND":
        return key.transpose(0, 2, 1, 3).copy(), value.transpose(0, 2, 1, 3).copy()
    pages, heads, chunks, tokens, x = key_shape
    split = key.reshape(pages, tokens, heads, chunks, x)
    return split.transpose(0, 2, 3, 1, 4).copy(), value.transpose(0, 2, 3, 1).copy()


def to_nhd(problem: Problem, key: Any, value: Any, layout: str | None = None) -> tuple[Any, Any]:
    """Keys and values of any layout as ``[pages, page_size, kv_heads, head_dim]``, C-contiguous.

    Args:
        problem: head counts, head_dim, page_size and dtype.
        key, value: of the shapes that ``cache_shapes`` gives, any number of pages.
        layout: that they have, by default the problem's. NHD itself gives the arrays back uncopied.

    Raises:
        ValueError: as ``cache_shapes``, or an array of another shape.
    """
    layout = layout or problem.layout
    _check_shapes(problem, layout, key, value)
    if layout == "NHD":
        return key, value
    if layout == "HND":
        return key.transpose(0, 2, 1, 3).copy(), value.transpose(0, 2, 1, 3).copy()
    pages, heads, chunks, tokens, x = key.shape
    whole = key.transpose(0, 3, 1, 2, 4).reshape(pages, tokens, heads, chunks * x)
    return whole.copy(), value.transpose(0, 3, 1, 2).copy()


def _check_shapes(problem: Problem, layout: str, key: Any, value: Any) -> None:
    wanted = cache_shapes(problem, len(key), layout)
    for name, array, shape in zip(("key", "value"), (key, value), wanted, strict=True):
        if tuple(array.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(array.shape)}; {layout} needs {shape}")
