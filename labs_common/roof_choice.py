"""How stage 09 splits its work: a cost for every way, and the cheapest.

A way's cost is an estimate, in microseconds, of what its fullest multiprocessor takes: the time to read its
part of the keys and values, to issue its instructions, or for its warps to wait for one tile after the other,
whichever is longest, then what segments and cuts add. Where blocks come to their end one by one, fewer and
fewer are left to hide each other's waiting; the cost follows them. `Costs` says what these take on an H200:
``roof_fit`` fitted it to timings (``data/roof``) and tells how far the choice is from the best on shapes that
a fit has not seen. A GPU with slower memory has about the same waiting times and more microseconds of
reading.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labs_common.problem import FP8, Problem

BURST = 64  # bytes that memory hands out at a time
OVERLAP = 8  # power by which reading, issuing and waiting hide each other; 1 would add them
BLOCK_BYTES = 1536  # of shared memory beside rings and values: partials' maxima and sums, the driver's own
# Relative difference of costs that tells nothing: whole sequences go first, where no multiprocessor is idle.
DRAW = 0.01
MERGED_AT_ONCE = 32  # partials of a row: eight threads of the merge have four loads each in flight
# Tiles that a warp has of a segment, below which a ring of three slots has been slower than one of two, and
# (VERY_SHORT) one of four faster, since it looks beyond the segment.
VERY_SHORT, SHORT, SHORT_FLOAT32 = 3, 6, 12
KEPT_CONTEXT = 512  # tokens, from which eight sets of heads in a block are better off without evict_first


@dataclass(frozen=True)
class Costs:
    """What things take on a GPU: microseconds, where no unit is given. The defaults are an H200's.

    ``roof_fit`` fits all but the first to timings.
    """

    bytes_per_us: float = 34_400  # that one of 132 multiprocessors reads at 4.54 TB/s
    bytes_in_flight: float = 16_500  # of a multiprocessor, from which latency hardly shows
    # Warp instructions that a multiprocessor issues in a microsecond.
    issue_float32: float = 6_490
    issue_half: float = 4_230
    issue_fp8: float = 5_260
    # Of a warp with one tile of keys and its values, whatever else there is to do: for any tile, and for each
    # dimension or, in float32, for each product that a lane adds up.
    tile_float32: float = 0.58
    tile_half: float = 0.33
    tile_fp8: float = 0.39
    product_float32: float = 0.88e-3
    dimension_half: float = 4.9e-3
    dimension_fp8: float = 3.3e-3

    early: float = 0.25  # of the fullest multiprocessor's reading beyond the mean, when few others read
    alone: float = 8.0  # bytes that a row costs more where the rows beside it are read some other time
    again: float = 0.04  # of the reading time, where two blocks read the same at about the same time
    again_later: float = 0.91  # and where they do so at any time
    several_runs: float = 0.014  # of the reading time, where runs beside each other read in different places
    fixed: float = 0.04  # of the issuing time, where work is dealt out before it shows who is slow

    call: float = 0.3  # a launch, its first tiles and its last results
    segment: float = 1.78  # of a segment: its queries, its partials' merge and its output
    segment_output: float = 0.74  # the same for every 1,024 numbers of output
    block: float = 3.3  # of a block: its start and its end
    cut: float = 7.7  # the merge's launch and its wait for all partials
    partial: float = 1.8  # times that partials take the time of reading them
    late_partial: float = 0.017  # of a row's partial beyond MERGED_AT_ONCE


H200 = Costs()


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
    problem: Problem,
    multiprocessors: int,
    shared_bytes: int,
    warps: int,
    tile_tokens: int,
    costs: Costs = H200,
) -> list[Choice]:
    """All that stage 09 may do with a problem: whole sequences that draw with the cheapest, then by cost.

    Whole sequences that leave multiprocessors idle do not go first in a draw.

    Args:
        problem: one that the stage takes.
        multiprocessors: of the GPU.
        shared_bytes: that a block may have.
        warps: of a block.
        tile_tokens: rows of a tile.
        costs: of the GPU.
    """
    gpu = _Multiprocessor(problem, multiprocessors, shared_bytes, warps, tile_tokens, costs)
    tiles = sorted((-(-n // tile_tokens) for n in problem.context_lengths if n), reverse=True)
    long = np.mean(problem.context_lengths) >= KEPT_CONTEXT
    found, idle = [], set()  # idle: heads a block of which there are too few blocks for all multiprocessors
    for block_heads in (heads for heads in (1, 2, 4, 8) if gpu.sets % heads == 0):
        groups = gpu.sets // block_heads
        blocks = groups * len(tiles) / multiprocessors
        mean_tiles = groups * sum(tiles) / multiprocessors
        token_warps = warps // block_heads

        if blocks < 1:
            idle.add(block_heads)
        slots = gpu.slots(blocks, sum(tiles) / max(1, len(tiles)) / token_warps, whole=True)
        beside = gpu.resident(slots, blocks)
        dealt = _dealt([count for count in tiles for _ in range(groups)], multiprocessors, beside)
        fullest = max(dealt, key=sum)
        places = _dealt([-(-count // token_warps) for count in fullest], beside)
        end = gpu.segment + costs.block
        cost = costs.call + end
        cost += gpu.emptying(
            slots,
            [sum(rounds) for rounds in places],
            gpu.times_read(block_heads),
            loaded=sum(fullest) / max(1, mean_tiles),
            ends=end * (len(max(places, key=sum)) - 1),
        )
        found.append(Choice(block_heads, True, slots, not (block_heads == 8 and long), 0, 0, cost))

        for runs in (1, 2, 3):
            segments = blocks / runs + 1  # of a run: a cut makes two of one
            slots = gpu.slots(runs, mean_tiles / runs / segments / token_warps, whole=False)
            if gpu.resident(slots, runs) < runs:
                continue
            rounds = (mean_tiles / runs + 0.5 * segments * (token_warps - 1)) / token_warps
            busy = gpu.busy(slots, runs, rounds, gpu.times_read(block_heads, runs), 1 + costs.fixed)
            partial_bytes = runs * block_heads * gpu.heads * problem.head_dim * 4 * 2
            row_partials = runs * tiles[0] / mean_tiles if tiles else 0  # of the longest sequence
            cost = costs.call + busy + gpu.segment * segments
            cost += costs.cut + costs.partial * partial_bytes / costs.bytes_per_us
            cost += costs.late_partial * max(0, row_partials - MERGED_AT_ONCE)
            worth = round(gpu.segment * mean_tiles / (busy * runs))
            found.append(Choice(block_heads, False, slots, True, runs, worth, cost))
    least = min(one.cost for one in found)

    def order(one: Choice) -> tuple[bool, float]:
        draws = one.whole and one.block_heads not in idle and one.cost <= (1 + DRAW) * least
        return not draws, one.cost

    return sorted(found, key=order)


class _Multiprocessor:
    """What one multiprocessor has to do for a problem, and how many blocks of it fit.

    Attributes:
        head_sets: of a group.
        heads: query heads of a set.
        sets: of all groups.
        segment: microseconds that a segment costs beside its tiles.
    """

    def __init__(
        self,
        problem: Problem,
        multiprocessors: int,
        shared_bytes: int,
        warps: int,
        tile_tokens: int,
        costs: Costs,
    ) -> None:
        self.head_sets = -(-problem.group_size // 8)
        self.heads = -(-problem.group_size // self.head_sets)
        self.sets = problem.kv_heads * self.head_sets
        self.segment = costs.segment + costs.segment_output * self.heads * problem.head_dim / 1024
        self._problem, self._shared_bytes, self._costs = problem, shared_bytes, costs
        self._slot_bytes = warps * tile_tokens * problem.head_dim * problem.itemsize
        self._other_bytes = warps * 4 * self.heads * problem.head_dim + BLOCK_BYTES
        self._reading = problem.minimum_bytes / multiprocessors / costs.bytes_per_us
        tokens = sum(problem.context_lengths) * self.sets / multiprocessors
        kind = {"float32": "float32", FP8: "fp8"}.get(problem.dtype, "half")
        self._issuing = tokens * token_instructions(problem, self.heads) / getattr(costs, f"issue_{kind}")
        each = costs.product_float32 if kind == "float32" else getattr(costs, f"dimension_{kind}")
        self._round = getattr(costs, f"tile_{kind}") + each * _products(problem, self.heads)

    def slots(self, wanted_blocks: float, segment_rounds: float, whole: bool) -> int:
        """Of a ring: two, which keep enough in flight where blocks are beside each other, or more.

        In float32 three for a block alone whose segments are not short; four, and blocks one after the other,
        for whole sequences of different lengths; two in any case where issuing takes longer than reading.
        In 16 bits up to four for a block alone with whole sequences; with runs three, but two where segments
        are short and four where they are very short. In fp8 up to four for a block alone, or the last of
        several that take turns. In 16 bits and fp8 up to four also where issuing takes longer than reading.
        All of these as long as no block has to go for them.

        Args:
            wanted_blocks: of a multiprocessor.
            segment_rounds: tiles that a warp has of a segment.
            whole: whether blocks have whole sequences.
        """
        beside = self.resident(2, wanted_blocks)
        issues, alone, in_turn = self._issuing > self._reading, beside == 1, whole and wanted_blocks > beside
        if self._problem.dtype == "float32":
            if issues:
                return 2
            if alone:
                return 3 if segment_rounds >= SHORT_FLOAT32 and self._fit(3, 1) else 2
            uneven = len(set(self._problem.context_lengths)) > 1
            return 4 if in_turn and uneven and self._fit(4, 1) else 2
        if issues or (alone and whole) or (self._problem.dtype == FP8 and (alone or in_turn)):
            wanted = (4, 3)
        elif alone and segment_rounds < VERY_SHORT:
            wanted = (4,)
        else:
            wanted = (3,) if alone and segment_rounds >= SHORT else ()
        return next((slots for slots in wanted if self._fit(slots, beside)), 2)

    def resident(self, slots: int, wanted_blocks: float) -> int:
        """Blocks that a multiprocessor works on at a time, of as many as it gets."""
        most = resident_by_registers(self._problem, self.heads)
        fitting = next((blocks for blocks in range(most, 1, -1) if self._fit(slots, blocks)), 1)
        return max(1, min(fitting, -int(-wanted_blocks // 1)))

    def times_read(self, block_heads: int, runs: int = 0) -> float:
        """What reading costs over reading everything once and in order.

        Args:
            block_heads: sets of heads in a block; one of two sets of a group reads what the other one reads.
            runs: equal ones, which read at any time; 0 for whole sequences, whose blocks begin together.
        """
        problem = self._problem
        times = 1.0
        if block_heads < self.head_sets:
            times += self._costs.again_later if runs else self._costs.again
        if runs > 1:
            times *= 1 + self._costs.several_runs
        if problem.layout == "NHD":  # a token's rows lie side by side
            row = problem.head_dim * problem.itemsize
            piece = row * max(1, block_heads // self.head_sets)
            times *= -(-piece // BURST) * BURST / piece
            if runs:
                times *= 1 + self._costs.alone * (1 / piece - 1 / (row * problem.kv_heads))
        return times

    def emptying(
        self, slots: int, places: Sequence[int], times_read: float, loaded: float, ends: float
    ) -> float:
        """As ``busy``, of places that come to their end one by one: the fewer are left, the less is hidden.

        Args:
            slots: of a ring.
            places: rounds of each; a place has one block after the other, and places are beside each other.
            times_read: what reading costs over everything once and in order.
            loaded: this multiprocessor's work over the mean.
            ends: microseconds between blocks that follow each other.
        """
        total, done, before, found = sum(places), 0.0, 0, 0.0
        for left, rounds in zip(range(len(places), 0, -1), sorted(places), strict=True):
            part = left * (rounds - before) / max(1, total)  # of all, while so many are left
            if part:
                # What of it lies below the mean of all multiprocessors; beyond it few others read.
                usual = min(max(0.0, 1 / loaded - done), part)
                reads = loaded * (usual + self._costs.early * (part - usual))
                found += self.busy(
                    slots,
                    left,
                    rounds - before,
                    times_read * reads,
                    loaded * part,
                    ends * (rounds - before) / max(1, max(places)),
                )
            done, before = done + part, rounds
        return found

    def busy(
        self,
        slots: int,
        blocks: int,
        rounds: float,
        times_read: float,
        times_issued: float,
        ends: float = 0.0,
    ) -> float:
        """Microseconds of reading, issuing and waiting, of which the longest nearly hides the others.

        Args:
            slots: of a ring; all but the one in use are in flight.
            blocks: beside each other.
            rounds: tiles that a warp has after each other, in one block or in blocks that follow each other.
            times_read, times_issued: what both cost over an equal part of all, read once and in order.
            ends: microseconds between such blocks, in which one neither issues nor waits for tiles.
        """
        hidden = blocks * (slots - 1) * self._slot_bytes / self._costs.bytes_in_flight
        rate = hidden / (1 + hidden**OVERLAP) ** (1 / OVERLAP)
        reading = self._reading * times_read / rate
        issuing = self._issuing * times_issued + ends / blocks
        waiting = rounds * self._round + ends
        return (reading**OVERLAP + issuing**OVERLAP + waiting**OVERLAP) ** (1 / OVERLAP)

    def _fit(self, slots: int, blocks: int) -> bool:
        return blocks * (slots * self._slot_bytes + self._other_bytes) <= self._shared_bytes


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


def _dealt(longest_first: Sequence[int], takers: int, beside: int = 1) -> list[list[int]]:
    """Who takes which of some pieces of work, the longest first: whoever is free.

    Args:
        longest_first: how long each takes.
        takers: of pieces.
        beside: pieces that each begins with at the same time.
    """
    started = beside * takers
    taken = [list(longest_first[first:started:takers]) for first in range(takers)]
    free = [(sum(pieces), number) for number, pieces in enumerate(taken)]
    heapq.heapify(free)
    for piece in longest_first[started:]:
        load, number = free[0]
        taken[number].append(piece)
        heapq.heapreplace(free, (load + piece, number))
    return taken
