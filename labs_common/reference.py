"""Paged decode attention in float64 NumPy: what every kernel is held against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from labs_common.inputs import Inputs, validate_inputs
from labs_common.layouts import to_nhd
from labs_common.problem import Problem


@dataclass(frozen=True)
class Reference:
    """The right answer and how far a careful kernel may stray from it.

    Attributes:
        problem: what was computed.
        output: ``[batch, query_heads, head_dim]`` float64.
        log_sum_exp: ``[batch, query_heads]`` float64, natural logarithm; −inf for an empty context.
        magnitude: ``[batch, query_heads]`` float64, the largest of sum(p·|v|) over the dimensions: what
            rounding errors of the weighted sum are relative to.
        score_size: ``[batch, query_heads]`` float64, the largest of scale·sum(|q·k|) over the tokens: what
            rounding errors of a score are relative to.
    """

    problem: Problem
    output: np.ndarray
    log_sum_exp: np.ndarray
    magnitude: np.ndarray
    score_size: np.ndarray


def reference(problem: Problem, inputs: Inputs) -> Reference:
    """Attention of every query head over its sequence's pages, in float64.

    ``output = softmax(scale · q·Kᵀ) · V`` (Vaswani et al. 2017, eq. 1) with K and V gathered through the
    block table; fp8 keys and values count times their scales. An empty context gives an output of exactly 0
    and a log-sum-exp of −inf.

    Raises:
        ValueError: the inputs do not fit the problem.
    """
    validate_inputs(problem, inputs)
    heads = (problem.batch, problem.query_heads)
    output = np.zeros((*heads, problem.head_dim))
    log_sum_exp = np.full(heads, -np.inf)
    magnitude, score_size = np.zeros(heads), np.zeros(heads)
    for row, length in enumerate(inputs.context_lengths):
        if length == 0:
            continue
        key, value = _gather(problem, inputs, row)
        query = inputs.query[row].astype(np.float64)
        output[row], log_sum_exp[row], magnitude[row], score_size[row] = attend(
            np, problem, query, key, value, inputs.scale
        )
    return Reference(problem, output, log_sum_exp, magnitude, score_size)


def attend(
    xp: Any, problem: Problem, query: Any, key: Any, value: Any, scale: float
) -> tuple[Any, Any, Any, Any]:
    """Attention of one sequence's query heads over its tokens, of which there is at least one.

    Args:
        xp: ``numpy`` or ``cupy``, whose float64 arrays the others are.
        query: ``[query_heads, head_dim]``.
        key, value: ``[kv_heads, tokens, head_dim]``, scaled.
        scale: factor on every score.

    Returns:
        A sequence's part of a ``Reference``: output, log-sum-exp, magnitude and score size.
    """
    query = query.reshape(problem.kv_heads, problem.group_size, problem.head_dim)
    scores = scale * (query @ key.transpose(0, 2, 1))
    peak = scores.max(axis=-1, keepdims=True)
    weights = xp.exp(scores - peak)
    total = weights.sum(axis=-1, keepdims=True)
    weights /= total
    sizes = abs(scale) * (xp.abs(query) @ xp.abs(key).transpose(0, 2, 1))
    return (
        (weights @ value).reshape(problem.query_heads, problem.head_dim),
        (peak + xp.log(total)).reshape(problem.query_heads),
        (weights @ xp.abs(value)).max(axis=-1).reshape(problem.query_heads),
        sizes.max(axis=-1).reshape(problem.query_heads),
    )


def _gather(problem: Problem, inputs: Inputs, row: int) -> tuple[np.ndarray, np.ndarray]:
    """One sequence's keys and values, each ``[kv_heads, context, head_dim]`` float64."""
    length = int(inputs.context_lengths[row])
    pages = inputs.block_tables[row, : -(-length // problem.page_size)]
    key, value = (
        cache.reshape(-1, problem.kv_heads, problem.head_dim)[:length].transpose(1, 0, 2).astype(np.float64)
        for cache in to_nhd(problem, inputs.key_cache[pages], inputs.value_cache[pages])
    )
    return key, value * problem.value_scale
