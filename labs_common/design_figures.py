"""The second document's design in figures: what it states, what stage 05 takes, and why the two differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from labs_common.compiler import DEFAULT_ARCH, CompilerMissing
from labs_common.layouts import CHUNK_BYTES, chunk_elements
from labs_common.open_kernels import resources
from labs_common.plans import SHARED_WITHOUT_OPT_IN, WARP_SIZE
from labs_common.problem import PRESETS, Problem
from labs_common.stages import Stage, find_stage

FLOAT = 4  # bytes: partials are fp32 whatever the cache is


@dataclass(frozen=True)
class Figure:
    """One figure of the design.

    Attributes:
        name: of what is counted.
        document: what the document states; None where it states nothing.
        lab: what the plan and the compiled kernel of stage 05 give; NaN where there is no ptxas to tell.
        unit: of both.
        why: the reason where they differ, and what to make of it.
    """

    name: str
    document: float | None
    lab: float
    unit: str
    why: str = ""


def partial_bytes(head_dim: int) -> int:
    """Bytes of one query head's compound partial: max, sum, and head_dim weighted values."""
    return FLOAT * (2 + head_dim)


def shared_scores_limit(shared_bytes: int = SHARED_WITHOUT_OPT_IN, query_heads: int = 1) -> int:
    """Longest context whose scores a block can keep in shared memory, in fp32, with nothing else beside them.

    One query head to a block, 48 KB end at 12,288 tokens. The document's 8,192 leave a third of them, 16 KB,
    to a tile of keys. A context beyond that needs a running maximum and sum, or a split.
    """
    return shared_bytes // (FLOAT * query_heads)


def design_figures(problem: Problem | None = None, arch: str = DEFAULT_ARCH) -> tuple[Figure, ...]:
    """The document's figures beside those of stage 05 on the document's problem.

    Args:
        problem: in place of the preset ``long``, which the document's own figures are about.
        arch: that registers are counted for.

    Raises:
        ValueError: stage 05 does not take the problem.
    """
    problem = problem or PRESETS["long"]
    stage = find_stage("05")
    plan = stage.plan(problem)
    first, merge = plan.launches
    shared_static, registers, spilled = _resources(stage, plan.defines, arch)

    heads, dims, group = problem.query_heads, problem.head_dim, problem.group_size
    partitions = plan.numbers["partitions"]
    tile, partition = plan.defines["TILE_TOKENS"], plan.defines["PARTITION_TOKENS"]
    warps = first.block[0] // WARP_SIZE
    tile_bytes = tile * dims * problem.itemsize
    pages = -(-problem.context_lengths[0] // problem.page_size)
    one, per_block = partial_bytes(dims), warps * group * partial_bytes(dims)
    lane_dims = dims // WARP_SIZE
    return (
        Figure(
            "partitions", 200, partitions, "partition", "100,000 / 512 is 195.3, and the last one is partial"
        ),
        Figure("blocks", 800, _blocks(first.grid), "block", "196 partitions of 4 key/value heads"),
        Figure(
            "blocks without sharing in the group",
            4800,
            _blocks(first.grid) * group,
            "block",
            "196 partitions of 24 query heads",
        ),
        Figure("blocks of the merge", problem.kv_heads, _blocks(merge.grid), "block", _MERGE),
        Figure("iterations of a block", 16, partition // tile, "tile"),
        Figure("warps of a block", 4, warps, "warp"),
        Figure("tokens of a tile for a warp", 64, tile // warps, "token", _WARP_TOKENS),
        Figure("keys of a tile", 16 * 1024, tile_bytes, "byte"),
        Figure("values of a tile", 16 * 1024, tile_bytes, "byte"),
        Figure("partials of the warps", 4 * one, per_block, "byte", _WARP_PARTIALS),
        Figure("query in shared memory", 6 * 256 * FLOAT, 0, "byte", "it stays in registers"),
        Figure(
            "pages of the partition", 0, FLOAT * ((partition - 2) // problem.page_size + 2), "byte", _PAGES
        ),
        Figure("shared memory", 42.1 * 1024, first.shared_bytes + shared_static, "byte", _SHARED),
        Figure(
            "shared memory if nothing were used twice",
            None,
            2 * tile_bytes + per_block,
            "byte",
            f"the document's plan with all {group} query heads, of {SHARED_WITHOUT_OPT_IN} that a block has",
        ),
        Figure("registers for the query", 48, group * lane_dims, "register/thread"),
        Figure("registers for weighted values", 6 * 256, group * lane_dims, "register/thread", _ACCUMULATORS),
        Figure("registers", None, registers, "register/thread", _REGISTERS),
        Figure("spilled registers", None, spilled, "byte/thread"),
        Figure("a partial", 1032, one, "byte"),
        Figure("partials of a query head", 200 * 1032, partitions * one, "byte", "196 of them"),
        Figure("partials", 200 * 1032, heads * partitions * one, "byte", _PARTIALS),
        Figure("scattered accesses of a naive walk", 6250, pages, "page", "one to a page"),
        Figure("table look-ups", 6250, _lookups(problem, partition), "look-up", _LOOKUPS),
        Figure(
            "reads of keys for a tile", 1024, tile * dims // chunk_elements(problem), "16-byte read", _READS
        ),
        Figure("keys and values of a tile", 32 * 1024, 2 * tile_bytes, "byte"),
        Figure(
            "reads of keys for a tile by a warp",
            None,
            tile_bytes / (CHUNK_BYTES * WARP_SIZE * warps),
            "request",
            "512 bytes each, a whole row of 256 dimensions in fp16",
        ),
    )


def design_table(problem: Problem | None = None, arch: str = DEFAULT_ARCH) -> pd.DataFrame:
    """``design_figures`` as a table."""
    return pd.DataFrame([vars(figure) for figure in design_figures(problem, arch)])


def _resources(stage: Stage, defines: Mapping[str, object], arch: str) -> tuple[float, float, float]:
    """Static shared bytes, registers and spilled bytes of the first kernel; NaN without NVRTC."""
    try:
        compiled = resources(stage, defines, arch)
    except CompilerMissing:
        return math.nan, math.nan, math.nan
    return compiled.shared_bytes, compiled.registers, compiled.spill_store_bytes


def _blocks(grid: tuple[int, int, int]) -> int:
    return grid[0] * grid[1] * grid[2]


def _lookups(problem: Problem, partition: int) -> int:
    """Every block looks its partition's pages up once; a page cut by two partitions is looked up by both."""
    total = 0
    for length in problem.context_lengths:
        for start in range(0, length, partition):
            end = min(start + partition, length)
            total += -(-end // problem.page_size) - start // problem.page_size
    return total * problem.kv_heads


_MERGE = "a block per query head: four would read 1.2 MB each, while 128 multiprocessors wait"
_WARP_TOKENS = (
    "four warps of 64 tokens hold 256 of a partition's 512, and a tile has only 32: "
    "each warp takes 8 of every tile"
)
_WARP_PARTIALS = (
    "the document counts one query head's partials, but a warp keeps those of its whole group; "
    "they take the place of the tiles, which nobody needs any more"
)
_PAGES = "rows of the cache, looked up once at the start, so that no copy waits for the table"
_SHARED = "two tiles, the pages, and (max, sum) of the warps; weighted values reuse the tiles"
_ACCUMULATORS = (
    "1,536 floats are the whole group's values: spread over the 32 lanes of a warp they are 48 to a thread"
)
_REGISTERS = (
    "48 of the query, 48 of weighted values, 24 of products, the rest addresses; "
    "three blocks fit on a multiprocessor"
)
_PARTIALS = "~200 KB are one query head's; all of them do not fit into a block, so the merge streams"
_LOOKUPS = "each of the key/value heads has its own blocks"
_READS = "the document reads values alike; a thread has 8 of each"
