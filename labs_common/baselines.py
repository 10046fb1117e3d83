"""The floor that the second document starts from: gather, permute, two batched products and a softmax.

Every step is a launch (or several), every intermediate an array in GPU memory. The same text runs on NumPy,
CuPy and torch; what it launches and materialises is counted as it goes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from labs_common.problem import Problem


@dataclass
class Tally:
    """What one call of the floor costs beside arithmetic.

    Attributes:
        boundary_crossings: calls from Python into the array library that do work on the device; each is one
            launch at least, and the library may make several of one.
        materialised: bytes of every intermediate array by the step that made it, the output included.
        steps: the steps in order.
    """

    boundary_crossings: int = 0
    materialised: dict[str, int] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)

    @property
    def key_value_bytes(self) -> int:
        """Of copies of keys and values: what a paged kernel never materialises."""
        return sum(
            size
            for step, size in self.materialised.items()
            if step.split()[0] in ("gather", "turn", "repeat")
        )

    def add(self, step: str, array: Any) -> Any:
        """Count a step that made an array, and hand the array on."""
        self.boundary_crossings += 1
        self.steps.append(step)
        self.materialised[step] = self.materialised.get(step, 0) + _nbytes(array)
        return array


def floor_attention(
    xp: ModuleType,
    problem: Problem,
    arrays: Mapping[str, Any],
    scale: float,
    repeat: bool = False,
    tally: Tally | None = None,
) -> Any:
    """Paged decode attention out of an array library's own operations.

    Sequences are handled one after another, since each has another length. A group's query heads are either
    one side of a batched product (so that keys and values are shared), or each gets a copy.

    Args:
        xp: ``numpy``, ``cupy`` or ``torch``; the arrays are its own.
        problem: shapes; the layout is NHD.
        arrays: those of ``Inputs``, by name.
        scale: factor on every score.
        repeat: copy keys and values for every query head of the group, as code without grouped-query
            attention does.
        tally: where launches and bytes are counted.

    Returns:
        ``[batch, query_heads, head_dim]`` of the query's dtype.

    Raises:
        ValueError: another layout than NHD.
    """
    if problem.layout != "NHD":
        raise ValueError(f"layout={problem.layout}: the floor takes NHD")
    tally = tally if tally is not None else Tally()
    query = arrays["query"]
    output = xp.zeros_like(query)
    group = problem.group_size
    for row, length in enumerate(problem.context_lengths):
        if length == 0:
            continue
        pages = arrays["block_tables"][row, : math.ceil(length / problem.page_size)]
        if xp.__name__ == "torch":
            pages = pages.long()
        turned = []
        for name in ("key_cache", "value_cache"):
            gathered = tally.add(f"gather {name}", arrays[name][pages])
            tokens = gathered.reshape(-1, problem.kv_heads, problem.head_dim)[:length]
            heads_first = tally.add(f"turn {name}", _contiguous(xp, tokens))
            if repeat:
                heads_first = tally.add(f"repeat {name}", _repeat(xp, heads_first, group))
            turned.append(heads_first)
        key, value = turned
        heads = query[row].reshape(-1, 1 if repeat else group, problem.head_dim)
        scores = tally.add("product q k", xp.matmul(heads, key.swapaxes(1, 2)))
        scores = tally.add("scale", _single(scores) * scale)
        peak = tally.add("maximum", _maximum(xp, scores))
        weights = tally.add("exponential", xp.exp(tally.add("subtract", scores - peak)))
        total = tally.add("sum", _sum(weights))
        weights = tally.add("divide", weights / total)
        mixed = tally.add("product p v", xp.matmul(_as(weights, value), value))
        output[row] = mixed.reshape(problem.query_heads, problem.head_dim)
        tally.add("write", output[row])
    return output


def count_floor(problem: Problem, arrays: Mapping[str, Any], scale: float, repeat: bool = False) -> Tally:
    """The tally of one call on NumPy arrays; the counts are the same on every library."""
    import numpy

    tally = Tally()
    floor_attention(numpy, problem, arrays, scale, repeat, tally)
    return tally


def floor_call(
    xp: ModuleType, problem: Problem, arrays: Mapping[str, Any], scale: float, repeat: bool = False
) -> Callable[[], Any]:
    """The floor bound to its arrays, for timing."""
    return lambda: floor_attention(xp, problem, arrays, scale, repeat)


def _nbytes(array: Any) -> int:
    return array.nbytes if hasattr(array, "nbytes") else array.numel() * array.element_size()


def _contiguous(xp: ModuleType, tokens: Any) -> Any:
    turned = tokens.swapaxes(0, 1)
    return turned.contiguous() if xp.__name__ == "torch" else xp.ascontiguousarray(turned)


def _repeat(xp: ModuleType, heads_first: Any, group: int) -> Any:
    if xp.__name__ == "torch":
        return heads_first.repeat_interleave(group, dim=0)
    return xp.repeat(heads_first, group, axis=0)


def _single(scores: Any) -> Any:
    return scores.float() if hasattr(scores, "float") else scores.astype("float32", copy=False)


def _as(weights: Any, value: Any) -> Any:
    return weights.to(value.dtype) if hasattr(weights, "to") else weights.astype(value.dtype, copy=False)


def _maximum(xp: ModuleType, scores: Any) -> Any:
    return scores.amax(-1, keepdim=True) if xp.__name__ == "torch" else scores.max(axis=-1, keepdims=True)


def _sum(weights: Any) -> Any:
    return weights.sum(-1, keepdim=True) if hasattr(weights, "to") else weights.sum(axis=-1, keepdims=True)
