"""How stage 09 splits its work: a cost for every way, and the cheapest.

Costs are microseconds of one multiprocessor of an H200, beyond those it takes to read its part of the keys
and values. They were fitted to 2,500 timings on that GPU (``data/roof``): the five known shapes and 66 random
ones, each with every choice below; ``roof_regret`` says how far the choice is from the best. A GPU with
slower memory has about the same waiting times and more microseconds of reading.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from labs_common.problem import FP8, Problem

BYTES_PER_US = 34_400  # that one of 132 multiprocessors reads at 4.54 TB/s

IMBALANCE = 1.5  # of the reading time that the fullest multiprocessor has beyond the mean
BLOCK_ONLY = 2.65  # first and last tiles of a block that has a multiprocessor for itself
BLOCK_AFTER, BLOCK_BESIDE = 4.4, 1.45  # of several: one after the other, or two at a time
BLOCK_WARP = 0.02  # of that, for each further warp with the same heads
AGAIN_BESIDE = 0.55  # of the reading time, where two blocks read the same at about the same time
RUNS = 0.008  # of the reading time, where blocks begin and end anywhere
CUT = 15.0  # partials of the last tiles, the merge's launch and its wait for all of them
SEGMENT = 4.0  # queries and output of one in a run
SEGMENT_WARP = 0.01  # for each further warp with the same heads
PARTIAL = 1.0  # of the time to write and read partials
KEPT_CONTEXT = 512  # tokens, from which eight sets of heads in a block are better off without evict_first


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

    mean_tokens = float(np.mean(problem.context_lengths))
    found = []
    for block_heads in (heads for heads in (1, 2, 4, 8) if sets % heads == 0):
        groups = sets // block_heads
        apart = block_heads < head_sets  # the two sets of a group, which read the same pages
        sharers = warps // block_heads - 1
        tiles = [-(-n // tile_tokens) for n in problem.context_lengths if n]
        blocks = groups * len(tiles)

        crowded = blocks > multiprocessors
        beside = crowded and problem.head_dim <= 128 and fits(2, 2)  # registers and shared memory for two
        block = (BLOCK_BESIDE if beside else BLOCK_AFTER) if crowded else BLOCK_ONLY
        fullest = _fullest(tiles * groups, multiprocessors, 2 if beside else 1)
        late = fullest * multiprocessors / max(1, groups * sum(tiles)) - 1
        cost = (AGAIN_BESIDE * apart + IMBALANCE * late) * reading
        cost += blocks / multiprocessors * block * (1 + BLOCK_WARP * sharers)
        evict_first = not (block_heads == 8 and mean_tokens >= KEPT_CONTEXT)
        found.append(Choice(block_heads, True, 2 if beside else _most(problem, fits), evict_first, cost))

        segments = blocks / multiprocessors + 1
        partials = block_heads * heads * problem.head_dim * 4 * 2 / BYTES_PER_US
        cost = (
            (apart + RUNS) * reading
            + CUT
            + segments * (SEGMENT + SEGMENT_WARP * sharers)
            + PARTIAL * partials
        )
        found.append(Choice(block_heads, False, _most(problem, fits), True, cost))
    return sorted(found, key=lambda one: one.cost)


def _most(problem: Problem, fits: Callable[[int, int], bool]) -> int:
    """Slots of a block that has its multiprocessor for itself; fp8 tiles are small."""
    wanted = 4 if problem.dtype == FP8 else 3
    return next((slots for slots in range(wanted, 2, -1) if fits(slots, 1)), 2)


def _fullest(tiles: Iterable[int], multiprocessors: int, resident: int) -> int:
    """Tiles of the multiprocessor with most of them: the longest first, then whoever is free.

    Args:
        tiles: of each block.
        multiprocessors: that take them.
        resident: blocks that a multiprocessor works on at a time.
    """
    longest_first = sorted(tiles, reverse=True)
    started = resident * multiprocessors
    load = [sum(longest_first[first:started:multiprocessors]) for first in range(multiprocessors)]
    heapq.heapify(load)
    for count in longest_first[started:]:
        heapq.heapreplace(load, load[0] + count)
    return max(load)
