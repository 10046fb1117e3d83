"""How stage 09 splits its work: a cost for every way, and the cheapest.

A way's cost is an estimate, in microseconds, of what its fullest multiprocessor takes: the time to read its
part of the keys and values or to issue its instructions, whichever is longer, then what blocks, segments and
cuts add. The constants were fitted to timings on an H200 (``data/roof``; ``roof_regret`` says how far the
choice is from the best, also on shapes that the fit has not seen). A GPU with slower memory has about the
same waiting times and more microseconds of reading.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from labs_common.problem import FP8, Problem

BYTES_PER_US = 34_400  # that one of 132 multiprocessors reads at 4.54 TB/s
BYTES_IN_FLIGHT = 12_000  # of a multiprocessor, from which latency hardly shows
# Warp instructions that a multiprocessor issues in a microsecond with many blocks, and the number of blocks
# with which it issues half as many.
ISSUE = {"float32": (6_700, 0.11), "float16": (4_700, 0.49), "bfloat16": (4_700, 0.49), FP8: (4_700, 0.17)}
OVERLAP = 4  # power by which reading and issuing hide each other: 1 adds them, a large one takes the longer

IMBALANCE = 0.49  # of the time that the fullest multiprocessor takes beyond the mean
BLOCK_ONLY = 0.95  # first and last tiles of a block that has a multiprocessor for itself
BLOCK = 3.6  # of several, over those that a multiprocessor works on at a time
AGAIN = 0.29  # of the reading time, where two blocks read the same at about the same time
TWO_RUNS = 0.028  # of the busy time, where two runs read in different places
CUT = 3.8  # the merge's launch and its wait for all partials
SEGMENT = 3.3  # queries and output of one in a run, over the runs that a multiprocessor works on at a time
PARTIAL = 0.53  # of the time to write and read partials
KEPT_CONTEXT = 512  # tokens, from which eight sets of heads in a block are better off without evict_first


@dataclass(frozen=True)
class Choice:
    """One way to split the work.

    Attributes:
        block_heads: sets of up to 8 query heads that share a block.
        whole: a block for every sequence and head group, or equal runs with a merge.
        ring_slots: tiles that a warp has in flight or in use.
        evict_first: whether L2 drops keys and values first.
        runs: equal runs for each multiprocessor; 0 where a block has whole sequences.
        cost: as the module's text says, in microseconds.
    """

    block_heads: int
    whole: bool
    ring_slots: int
    evict_first: bool
    runs: int
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
    gpu = _Multiprocessor(problem, multiprocessors, shared_bytes, warps, tile_tokens)
    mean_tokens = float(np.mean(problem.context_lengths))
    tiles = [-(-n // tile_tokens) for n in problem.context_lengths if n]
    found = []
    for block_heads in (heads for heads in (1, 2, 4, 8) if gpu.sets % heads == 0):
        groups = gpu.sets // block_heads
        blocks = groups * len(tiles)
        again = block_heads < gpu.head_sets  # the two sets of a group, which read the same pages

        slots = gpu.slots(wanted_blocks=blocks / multiprocessors)
        beside = gpu.resident(slots, blocks / multiprocessors)
        fullest = _fullest(tiles * groups, multiprocessors, beside)
        late = fullest * multiprocessors / max(1, groups * sum(tiles)) - 1
        cost = gpu.busy(slots, beside, 1 + AGAIN * again) * (1 + IMBALANCE * late)
        crowded = blocks > multiprocessors
        cost += blocks / multiprocessors * (BLOCK / beside if crowded else BLOCK_ONLY)
        evict_first = not (block_heads == 8 and mean_tokens >= KEPT_CONTEXT)
        found.append(Choice(block_heads, True, slots, evict_first, 0, cost))

        for runs in (1, 2):
            slots = gpu.slots(wanted_blocks=runs)
            if gpu.resident(slots, runs) < runs:
                continue
            partial_bytes = runs * block_heads * gpu.heads * problem.head_dim * 4 * 2
            cost = gpu.busy(slots, runs, 1 + again) * (1 + TWO_RUNS * (runs == 2)) + CUT
            cost += (blocks / multiprocessors + runs) * SEGMENT / runs
            cost += PARTIAL * partial_bytes / BYTES_PER_US
            found.append(Choice(block_heads, False, slots, True, runs, cost))
    return sorted(found, key=lambda one: one.cost)


class _Multiprocessor:
    """What one multiprocessor has to do for a problem, and how many blocks of it fit.

    Attributes:
        head_sets: of a group.
        heads: query heads of a set.
        sets: of all groups.
    """

    def __init__(
        self, problem: Problem, multiprocessors: int, shared_bytes: int, warps: int, tile_tokens: int
    ) -> None:
        self.head_sets = -(-problem.group_size // 8)
        self.heads = -(-problem.group_size // self.head_sets)
        self.sets = problem.kv_heads * self.head_sets
        self._problem, self._shared_bytes = problem, shared_bytes
        self._slot_bytes = warps * tile_tokens * problem.head_dim * problem.itemsize
        self._static_bytes = warps * 4 * self.heads * problem.head_dim + 1536  # values and partials of warps
        self._reading = problem.minimum_bytes / multiprocessors / BYTES_PER_US
        tokens = sum(problem.context_lengths) * self.sets
        self._instructions = tokens * token_instructions(problem, self.heads) / multiprocessors

    def slots(self, wanted_blocks: float) -> int:
        """Of a ring: two where that lets blocks stand beside each other, or where issuing is what takes time
        and float32 needs the first-level cache that slots would take; else 3, or 4 of fp8's small tiles."""
        dtype = self._problem.dtype
        issuing = self._instructions / ISSUE[dtype][0]
        if self.resident(2, wanted_blocks) > 1 or (dtype == "float32" and issuing > self._reading):
            return 2
        wanted = 4 if dtype == FP8 else 3
        return next((slots for slots in range(wanted, 2, -1) if self._fit(slots, 1)), 2)

    def resident(self, slots: int, wanted_blocks: float) -> int:
        """Blocks that a multiprocessor works on at a time, of as many as it gets."""
        most = resident_by_registers(self._problem, self.heads)
        fitting = next((blocks for blocks in range(most, 1, -1) if self._fit(slots, blocks)), 1)
        return max(1, min(fitting, -int(-wanted_blocks // 1)))

    def busy(self, slots: int, blocks: int, times_read: float) -> float:
        """Microseconds of reading and issuing, of which the longer nearly hides the other.

        Args:
            slots: of a ring; all but the one in use are in flight.
            blocks: beside each other.
            times_read: that the keys and values are.
        """
        hidden = blocks * (slots - 1) * self._slot_bytes / BYTES_IN_FLIGHT
        rate = hidden / (1 + hidden**OVERLAP) ** (1 / OVERLAP)
        per_us, half = ISSUE[self._problem.dtype]
        reading = self._reading * times_read / rate
        issuing = self._instructions / per_us * (1 + half / blocks)
        return (reading**OVERLAP + issuing**OVERLAP) ** (1 / OVERLAP)

    def _fit(self, slots: int, blocks: int) -> bool:
        return blocks * (slots * self._slot_bytes + self._static_bytes) <= self._shared_bytes


def token_instructions(problem: Problem, heads: int) -> float:
    """Warp instructions for a token and a set of heads, within a third of what the simulator counts."""
    if problem.dtype != "float32":
        return 9 + 0.12 * problem.head_dim
    lanes = 1 << (problem.head_dim - 1).bit_length()  # with those that have no dimension
    return 40 + 0.11 * lanes * heads


def resident_by_registers(problem: Problem, heads: int) -> int:
    """Blocks of 8 warps that a multiprocessor's registers hold, of what ptxas 13.0 gives a thread for sm_90:
    up to 80, 128 or 255 of them."""
    if problem.dtype != "float32":
        return 3 if problem.head_dim <= 64 else 2 if problem.head_dim <= 128 else 1
    if problem.head_dim <= 128:
        return 3 if heads <= 2 else 2 if heads <= 6 else 1
    return 2 if problem.head_dim == 256 and heads <= 2 else 1


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
