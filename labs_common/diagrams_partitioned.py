"""Diagrams of stage 05: cache layouts byte by byte, and the three levels at which it merges."""

from __future__ import annotations

import numpy as np

from labs_common.chart_style import GREY, Chart, new_chart, styled
from labs_common.diagrams import SECTOR_BYTES
from labs_common.drawing import arrow, bare, box, fill, plate
from labs_common.layouts import CHUNK_BYTES, cache_shapes, from_nhd
from labs_common.partitioned_warp import step_tokens
from labs_common.plans import WARP_SIZE, Plan
from labs_common.problem import Problem

_SHOWN_BYTES = 4096  # of a page: enough to see two tokens in every layout
_LINES = (
    ("NHD", 0, "NHD, keys and values"),
    ("HND", 0, "HND, keys and values"),
    ("packed", 0, "packed, keys"),
    ("packed", 1, "packed, values"),
)


@styled
def layouts_side_by_side(problem: Problem) -> Chart:
    """The first bytes of a page in every layout, with what belongs to head 0's first two tokens marked.

    Raises:
        ValueError: the packed layout does not take the problem.
    """
    chart = new_chart(3.4, f"The first {_SHOWN_BYTES:,} bytes of a page, in boxes of {CHUNK_BYTES} bytes")
    axes = chart.subplots()
    chunk = CHUNK_BYTES // problem.itemsize
    spoken = []
    for line, (layout, which, name) in enumerate(_LINES):
        tokens, heads = _owners(problem, layout, which)
        shown = min(_SHOWN_BYTES // problem.itemsize, len(tokens))
        for first in range(0, shown, chunk):
            mine = zip(tokens[first : first + chunk], heads[first : first + chunk], strict=True)
            inside = [token for token, head in mine if head == 0 and token < 2]
            style = {"facecolor": "#f2f2f2", "edgecolor": "none"}
            if inside:
                style = fill(inside[0])
            box(axes, first // chunk, line, 1, 0.55, {**style, "linewidth": 0.1})
            if len(set(inside)) > 1:  # both tokens lie in these 16 bytes
                box(axes, first // chunk, line + 0.275, 1, 0.275, {**fill(1), "linewidth": 0.1})
        sectors = _sectors(problem, tokens, heads)
        axes.text(0, line - 0.06, f"{name}: token 0 lies in {sectors} sectors", fontsize=8.5, va="bottom")
        spoken.append(f"{name}: token 0 of head 0 touches {sectors} sectors of {SECTOR_BYTES} bytes")
    for place, words in enumerate(("token 0", "token 1")):
        box(axes, 196 + 32 * place, -0.95, 5, 0.3, {**fill(place), "linewidth": 0.1})
        axes.text(203 + 32 * place, -0.8, words, fontsize=8, va="center")
    bare(axes, (0, 257), (len(_LINES) - 0.35, -1.05))
    row = problem.head_dim * problem.itemsize
    chart.description = (
        f"A row of {problem.head_dim} numbers is {row} bytes, {row // SECTOR_BYTES} sectors. "
        + "; ".join(spoken)
        + ". In the packed values two tokens share every box."
    )
    return chart


def _owners(problem: Problem, layout: str, which: int) -> tuple[np.ndarray, np.ndarray]:
    """Token and head of every element of one page, in the order of memory; keys (0) or values (1)."""
    shape = cache_shapes(problem, 1, "NHD")[0]
    _, token, head, _ = np.indices(shape)
    same = [from_nhd(problem, part, part, layout)[which].ravel() for part in (token, head)]
    return same[0], same[1]


def _sectors(problem: Problem, tokens: np.ndarray, heads: np.ndarray) -> int:
    """Sectors that hold something of token 0, head 0."""
    mine = np.flatnonzero((tokens == 0) & (heads == 0))
    return len(np.unique(mine * problem.itemsize // SECTOR_BYTES))


@styled
def three_levels(problem: Problem, plan: Plan) -> Chart:
    """What stage 05 merges with its one combine: lanes to a warp, warps to a block, partitions to the result.

    Args:
        problem: that stage 05 takes.
        plan: of stage 05 for it.
    """
    first, merge = plan.launches
    warps = first.block[0] // WARP_SIZE
    partitions = plan.numbers["partitions"]
    rows = merge.block[1]
    lanes = step_tokens(plan)
    chart = new_chart(3.3, "One combine, three levels: (maximum, sum, weighted values) of ever more tokens")
    axes = chart.subplots()
    levels = (
        ("1. lanes of a warp", f"{lanes} lanes\nof a query head", lanes, "shuffles (shfl_xor)"),
        ("2. warps of a block", f"{warps} warps", warps, "shared memory,\nin the tiles' place"),
        (
            "3. partitions of a context",
            f"{partitions} partitions,\n{min(rows, partitions)} at a time",
            min(rows, partitions),
            "global memory,\na second launch",
        ),
    )
    for place, (title, words, count, where) in enumerate(levels):
        x = 10 * place
        axes.text(x, -0.55, title, fontsize=9, fontweight="bold", va="bottom")
        shown = min(count, 8)
        for part in range(shown):
            y = 4.0 * (part + 0.5) / shown
            box(axes, x, y - 1.6 / shown, 2.4, 3.2 / shown, {**fill(place), "linewidth": 0.6})
            arrow(axes, (x + 2.4, y), (x + 5.4, 2.0), 0.9)
        box(axes, x + 5.4, 1.55, 2.9, 0.9, {"facecolor": "white", "edgecolor": "black"})
        axes.text(x + 6.85, 2.0, "combine", ha="center", va="center", fontsize=8.5)
        axes.text(x + 1.2, 4.15, words, fontsize=8, ha="center", va="top")
        axes.text(x + 6.85, 2.7, where, fontsize=7.5, ha="center", va="top", color=GREY)
        if place < 2:
            arrow(axes, (x + 8.4, 2.0), (x + 9.8, 2.0), 1.6)
    axes.annotate("output", (29.9, 2.0), (28.5, 2.0), va="center", fontsize=8.5, bbox=plate())
    bare(axes, (-0.3, 31.2), (5.1, -0.9))
    chart.description = (
        f"Level 1 merges {lanes} lanes of each query head in a warp by shuffles; level 2 the {warps} warps "
        f"of a block through shared memory; level 3 {partitions} partitions of each of {problem.query_heads} "
        f"query heads through global memory in a second launch, {rows} side by side. All three call the same "
        "combine."
    )
    return chart
