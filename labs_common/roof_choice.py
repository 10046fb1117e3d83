"""How stage 09 splits its work: a cost for every way, and the cheapest.

A way's cost is an estimate, in microseconds, of what its fullest multiprocessor takes: the time to read its
part of the keys and values, to issue its instructions, or for its warps to wait for one tile after the other,
whichever is longest, then what segments and cuts add. The constants were fitted to timings on an H200
(``data/roof``; ``roof_regret`` says how far the choice is from the best, also on shapes that the fit has not
seen). A GPU with slower memory has about the same waiting times and more microseconds of reading.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labs_common.problem import FP8, Problem

BYTES_PER_US = 34_400  # that one of 132 multiprocessors reads at 4.54 TB/s
BYTES_IN_FLIGHT = 16_000  # of a multiprocessor, from which latency hardly shows
ISSUE = {"float32": 6_000, "float16": 4_300, "bfloat16": 4_300, FP8: 4_900}  # warp instructions in a microsecond
# Microseconds of a warp with one tile of keys and its values, however few warps there are: of any tile, and for
# each dimension or, in float32, for each product that a lane adds up.
WAIT = {"float32": (0.48, 0.85e-3), "float16": (0.59, 2.2e-3), "bfloat16": (0.59, 2.2e-3), FP8: (0.50, 2.5e-3)}
OVERLAP = 6  # power by which these three hide each other: 1 adds them, a large one takes the longest

EARLY = 0.14  # of the time that the fullest multiprocessor reads beyond the mean; memory is faster for the last
BURST = 64  # bytes that memory hands out at a time
ALONE = 11.4  # bytes of a row that reading it apart from the other heads' rows costs
AGAIN = 0.13  # of the reading time, where two blocks read the same at about the same time

CALL = 5.5  # a launch, its first tiles and its last results
SEGMENT = 0.7  # of a segment: its queries, its partials' merge and its output
SEGMENT_OUTPUT = 1.3  # the same for every 1,024 numbers of output
BLOCK = 0.8  # start and end of a block for each segment
CUT = 2.3  # the merge's launch and its wait for all partials
PARTIAL = 2.1  # times that partials take the time of reading them
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
        segment_tiles: tiles that the start and the end of a segment are worth, where runs are equal.
        cost: as the module's text says, in microseconds.
    """

    block_heads: int
    whole: bool
    ring_slots: int
    evict_first: bool
    runs: int
    segment_tiles: int
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
    tiles = sorted((-(-n // tile_tokens) for n in problem.context_lengths if n), reverse=True)
    found = []
    for block_heads in (heads for heads in (1, 2, 4, 8) if gpu.sets % heads == 0):
        groups = gpu.sets // block_heads
        blocks = groups * len(tiles) / multiprocessors
        mean_tiles = groups * sum(tiles) / multiprocessors
        token_warps = warps // block_heads

        slots = gpu.slots(wanted_blocks=blocks)
        beside = gpu.resident(slots, blocks)
        fullest = _fullest([count for count in tiles for _ in range(groups)], multiprocessors, beside)
        late = sum(fullest) / max(1, mean_tiles) - 1
        rounds = sum(-(-count // token_warps) for count in fullest)
        cost = CALL + gpu.busy(slots, beside, rounds, gpu.times_read(block_heads, at_once=True), late)
        cost += (gpu.segment + BLOCK) * len(fullest) / beside
        evict_first = not (block_heads == 8 and np.mean(problem.context_lengths) >= KEPT_CONTEXT)
        found.append(Choice(block_heads, True, slots, evict_first, 0, 0, cost))

        for runs in (1, 2, 3):
            slots = gpu.slots(wanted_blocks=runs)
            if gpu.resident(slots, runs) < runs:
                continue
            segments = blocks + runs  # a cut makes two of one; their last rounds are half full
            rounds = (mean_tiles + 0.5 * segments * (token_warps - 1)) / token_warps
            busy = gpu.busy(slots, runs, rounds, gpu.times_read(block_heads, at_once=False))
            partial_bytes = runs * block_heads * gpu.heads * problem.head_dim * 4 * 2
            cost = CALL + busy + gpu.segment * segments / runs + CUT + PARTIAL * partial_bytes / BYTES_PER_US
            worth = round(gpu.segment * mean_tiles / (busy * runs))
            found.append(Choice(block_heads, False, slots, True, runs, worth, cost))
    return sorted(found, key=lambda one: one.cost)


class _Multiprocessor:
    """What one multiprocessor has to do for a problem, and how many blocks of it fit.

    Attributes:
        head_sets: of a group.
        heads: query heads of a set.
        sets: of all groups.
        segment: microseconds that a segment costs beside its tiles.
    """

    def __init__(
        self, problem: Problem, multiprocessors: int, shared_bytes: int, warps: int, tile_tokens: int
    ) -> None:
        self.head_sets = -(-problem.group_size // 8)
        self.heads = -(-problem.group_size // self.head_sets)
        self.sets = problem.kv_heads * self.head_sets
        self.segment = SEGMENT + SEGMENT_OUTPUT * self.heads * problem.head_dim / 1024
        self._problem, self._shared_bytes = problem, shared_bytes
        self._slot_bytes = warps * tile_tokens * problem.head_dim * problem.itemsize
        self._static_bytes = warps * 4 * self.heads * problem.head_dim + 1536  # values and partials of warps
        self._reading = problem.minimum_bytes / multiprocessors / BYTES_PER_US
        tokens = sum(problem.context_lengths) * self.sets / multiprocessors
        self._issuing = tokens * token_instructions(problem, self.heads) / ISSUE[problem.dtype]
        anyway, each = WAIT[problem.dtype]
        self._round = anyway + each * (_products(problem, self.heads))

    def slots(self, wanted_blocks: float) -> int:
        """Of a ring: the most that let as many blocks stand beside each other as two slots do. In float32 two
        where there are several, or where issuing is what takes time and needs what slots would take of L1."""
        beside = self.resident(2, wanted_blocks)
        if self._problem.dtype == "float32" and (beside > 1 or self._issuing > self._reading):
            return 2
        most = 3 if self._problem.dtype == "float32" else 4
        return next((n for n in range(most, 2, -1) if self._fit(n, beside)), 2)

    def resident(self, slots: int, wanted_blocks: float) -> int:
        """Blocks that a multiprocessor works on at a time, of as many as it gets."""
        most = resident_by_registers(self._problem, self.heads)
        fitting = next((blocks for blocks in range(most, 1, -1) if self._fit(slots, blocks)), 1)
        return max(1, min(fitting, -int(-wanted_blocks // 1)))

    def times_read(self, block_heads: int, at_once: bool) -> float:
        """What reading costs over reading everything once and in order.

        Args:
            block_heads: sets of heads in a block. With one of two sets of a group, keys and values are read twice.
            at_once: whether blocks that read neighbouring rows, or the same ones, do so at about the same time.
        """
        problem = self._problem
        times = 1.0 if block_heads >= self.head_sets else 1 + AGAIN if at_once else 2.0
        if problem.layout == "NHD":
            row = problem.head_dim * problem.itemsize
            piece = row * max(1, block_heads // self.head_sets)
            times *= -(-piece // BURST) * BURST / piece
            if not at_once:
                times *= 1 + ALONE * (1 / piece - 1 / (row * problem.kv_heads))
        return times

    def busy(self, slots: int, blocks: int, rounds: float, times_read: float, late: float = 0.0) -> float:
        """Microseconds of reading, issuing and waiting, of which the longest nearly hides the others.

        Args:
            slots: of a ring; all but the one in use are in flight.
            blocks: beside each other.
            rounds: tiles that a warp has after each other, in all blocks together.
            times_read: what reading costs over reading everything once.
            late: the part that the fullest multiprocessor has more than the mean.
        """
        hidden = blocks * (slots - 1) * self._slot_bytes / BYTES_IN_FLIGHT
        rate = hidden / (1 + hidden**OVERLAP) ** (1 / OVERLAP)
        reading = self._reading * times_read * (1 + EARLY * late) / rate
        issuing = self._issuing * (1 + late)
        waiting = rounds * self._round / blocks
        return (reading**OVERLAP + issuing**OVERLAP + waiting**OVERLAP) ** (1 / OVERLAP)

    def _fit(self, slots: int, blocks: int) -> bool:
        return blocks * (slots * self._slot_bytes + self._static_bytes) <= self._shared_bytes


def token_instructions(problem: Problem, heads: int) -> float:
    """Warp instructions for a token and a set of heads, within a third of what the simulator counts."""
    if problem.dtype != "float32":
        return 9 + 0.12 * problem.head_dim
    return 40 + 0.11 * _products(problem, heads)


def _products(problem: Problem, heads: int) -> int:
    """Dimensions of a row, or in float32 products of a row with its heads, those of idle lanes included."""
    if problem.dtype != "float32":
        return problem.head_dim
    return (1 << (problem.head_dim - 1).bit_length()) * heads


def resident_by_registers(problem: Problem, heads: int) -> int:
    """Blocks of 8 warps that a multiprocessor's registers hold, of what ptxas 13.0 gives a thread for sm_90:
    up to 80, 128 or 255 of them."""
    if problem.dtype != "float32":
        return 3 if problem.head_dim <= 64 else 2 if problem.head_dim <= 128 else 1
    if problem.head_dim <= 128:
        return 3 if heads <= 2 else 2 if heads <= 6 else 1
    return 2 if problem.head_dim == 256 and heads <= 2 else 1


def _fullest(longest_first: Sequence[int], multiprocessors: int, resident: int) -> list[int]:
    """Blocks of the multiprocessor with most tiles: the longest first, then whoever is free.

    Args:
        longest_first: tiles of each block.
        multiprocessors: that take them.
        resident: blocks that a multiprocessor works on at a time.
    """
    started = resident * multiprocessors
    taken = [list(longest_first[first:started:multiprocessors]) for first in range(multiprocessors)]
    free = [(sum(tiles), number) for number, tiles in enumerate(taken)]
    heapq.heapify(free)
    for count in longest_first[started:]:
        load, number = free[0]
        taken[number].append(count)
        heapq.heapreplace(free, (load + count, number))
    return max(taken, key=sum)
