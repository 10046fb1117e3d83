"""How stage 09 splits its work: a cost for every way, and the cheapest.

Costs are microseconds of one multiprocessor of an H200, beyond those it takes to read its part of the keys
and values. They were fitted to 1,600 timings on that GPU: the five known shapes of ``roof_bench`` and 36
random ones, each with every choice below. A GPU with slower memory has about the same waiting times and more
microseconds of reading.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from labs_common.problem import FP8, Problem

BYTES_PER_US = 34_400  # that one of 132 multiprocessors reads at 4.54 TB/s

IMBALANCE = 1.3  # of the reading time that the fullest multiprocessor has beyond the mean
BLOCK_ONLY = 1.7  # first and last tiles of a block that has a multiprocessor for itself
BLOCK_AFTER, BLOCK_BESIDE = 4.4, 0.9  # of several: one after the other, or two at a time
BLOCK_WARP = 0.04  # of that, for each further warp with the same heads
CUT = 21.0  # partials of the last tiles, the merge's launch and its wait for all of them
SEGMENT = 2.5  # queries and output of one in a run
SEGMENT_WARP = 0.04  # for each further warp with the same heads
PARTIAL = 0.7  # of the time to write and read partials
LONG_CONTEXT = 512  # tokens, from which eight sets of heads in a block are better off without evict_first


@dataclass(frozen=True)
class Choice:
    """One way to split the work.

    Attributes:
        block_heads: sets of up to 8 query heads that share a block.
        whole: a block for every sequence and head group, or equal runs with a merge.
        ring_slots: tiles that a warp has in flight or in use.
        evict_first: whether L2 drops keys and values first.
        cost: as the module's text says, in microseconds.
    """

    block_heads: int
    whole: bool
    ring_slots: int
    evict_first: bool
    cost: float


def choices(
    problem: Problem, multiprocessors: int, shared_bytes: int, warps: int, tile_tokens: int
) -> list[Choice]:
    """All that stage 09 may do with a problem, the cheapest first.

    Args:
        problem: one that the stage takes.
        multiprocessors: of the GPU.
        shared_bytes: that a block may have.
        warps: of a block.
        tile_tokens: rows of a tile.
    """
    head_sets = -(-problem.group_size // 8)
    heads = -(-problem.group_size // head_sets)
    sets = problem.kv_heads * head_sets
    reading = problem.minimum_bytes / multiprocessors / BYTES_PER_US
    tile_bytes = tile_tokens * problem.head_dim * problem.itemsize
    static_bytes = warps * 4 * heads * problem.head_dim + 1536  # values and partials of the warps

    def fits(slots: int, blocks: int) -> bool:
        return blocks * (warps * slots * tile_bytes + static_bytes) <= shared_bytes

    found = []
    for block_heads in (heads for heads in (1, 2, 4, 8) if sets % heads == 0):
        groups = sets // block_heads
        again = reading * (
            head_sets - 1 if block_heads < head_sets else 0
        )  # sets of a group apart read it twice
        sharers = warps // block_heads - 1
        tiles = [-(-n // tile_tokens) for n in problem.context_lengths if n]
        blocks = groups * len(tiles)

        crowded = blocks > multiprocessors
        beside = crowded and problem.head_dim <= 128 and fits(2, 2)  # registers and shared memory for two
        block = (BLOCK_BESIDE if beside else BLOCK_AFTER) if crowded else BLOCK_ONLY
        late = _fullest(tiles * groups, multiprocessors) * multiprocessors / max(1, groups * sum(tiles)) - 1
        cost = again + IMBALANCE * late * reading
        cost += blocks / multiprocessors * block * (1 + BLOCK_WARP * sharers)
        long = block_heads == 8 and float(np.mean(problem.context_lengths)) >= LONG_CONTEXT
        found.append(Choice(block_heads, True, 2 if crowded else _most(problem, fits), not long, cost))

        segments = blocks / multiprocessors + 1
        partials = block_heads * heads * problem.head_dim * 4 * 2 / BYTES_PER_US
        cost = again + CUT + segments * (SEGMENT + SEGMENT_WARP * sharers) + PARTIAL * partials
        found.append(Choice(block_heads, False, _most(problem, fits), True, cost))
    return sorted(found, key=lambda one: one.cost)


def _most(problem: Problem, fits: Callable[[int, int], bool]) -> int:
    """Slots of a block that has its multiprocessor for itself; fp8 tiles are small."""
    wanted = 4 if problem.dtype == FP8 else 3
    return next((slots for slots in range(wanted, 2, -1) if fits(slots, 1)), 2)


def _fullest(tiles: Iterable[int], multiprocessors: int) -> int:
    """Tiles of the multiprocessor with most of them, where each block goes to the one that is free first."""
    load = [0] * multiprocessors
    for count in sorted(tiles, reverse=True):
        heapq.heapreplace(load, load[0] + count)
    return max(load)
