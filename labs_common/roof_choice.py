"""How stage 09 splits its work: a cost for every way, and the cheapest.

A way's cost is an estimate, in microseconds, of what its fullest multiprocessor takes: the time to read its
part of the keys and values, to issue its instructions, or for its warps to wait for one tile after the other.
The longest of these hides the others, the better the longer it is; what segments and cuts take comes on top.
Where blocks come to their end one by one, fewer and fewer are left to hide each other's waiting; the cost
follows them. ``roof_work`` counts what there is to do, `Costs` says what it takes on an H200: ``roof_fit``
fitted it to timings (``data/roof``) and tells how far the choice is from the best on shapes that a fit has
not seen. A GPU with slower memory has about the same waiting times and more microseconds of reading.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labs_common.problem import Problem
from labs_common.roof_work import ways

# Powers by which things hide each other; 1 would add them up.
READING = 3  # reading, and what warps do
WORKING = 4  # issuing instructions, and waiting for their results
IN_FLIGHT = 8  # bytes in flight, and those that memory needs to be busy


@dataclass(frozen=True)
class Costs:
    """What things take on a GPU: microseconds, where no unit is given. The defaults are an H200's.

    ``roof_fit`` fits all but the first to timings.
    """

    bytes_per_us: float = 34_400  # that one of 132 multiprocessors reads at 4.54 TB/s
    bytes_in_flight: float = 11_400  # of a multiprocessor, from which latency hardly shows
    latency: float = 0.437  # from a warp's request for a tile to the tile
    # Warp instructions that a multiprocessor issues in a microsecond.
    issue_float32: float = 6_400
    issue_half: float = 6_740
    issue_fp8: float = 5_190
    # Of a warp with one tile of keys and its values, whatever else there is to do: for any tile, and for each
    # dimension or, in float32, for each product that a lane adds up.
    tile_float32: float = 0.418
    tile_half: float = 0.385
    tile_fp8: float = 0.266
    product_float32: float = 0.503e-3
    dimension_half: float = 2.34e-3
    dimension_fp8: float = 2.45e-3

    early: float = 0.0917  # of the fullest multiprocessor's reading beyond the mean, when few others read
    split: float = 0.478  # of the time to read what shares lines with a run's own
    # Bytes that a row costs more for every block beside this one, which reads elsewhere.
    elsewhere: float = 1.23
    again: float = 0.0262  # of the reading time, where two blocks read the same at about the same time
    again_later: float = 0.792  # and where they do so at any time

    call: float = 2.41  # a launch, its first tiles and its last results
    ring: float = 0.262  # times that rings take the time of reading what fills them
    segment: float = 0.649  # of a segment: its queries, its partials' merge and its output
    segment_output: float = 1.52  # the same for every 1,024 numbers of output
    block: float = 2.28  # of a block: its start and its end
    cut: float = 4  # the merge's launch and its wait for all partials
    partial: float = 2.07  # times that partials take the time of reading them
    late_partial: float = 0.0115  # of a row's partial beyond those that are merged at once


H200 = Costs()


@dataclass(frozen=True)
class Choice:
    """One way to split the work.

    Attributes:
        block_heads: sets of up to 8 query heads that share a block.
        whole: a block for every sequence and head group, or equal runs with a merge.
        ring_slots: tiles that a warp has in flight or in use.
        runs: equal runs for each multiprocessor; 0 where a block has whole sequences.
        segment_tiles: tiles that the start and the end of a segment are worth, where runs are equal.
        cost: as the module's text says, in microseconds.
    """

    block_heads: int
    whole: bool
    ring_slots: int
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
    """All that stage 09 may do with a problem, the cheapest first.

    Args:
        problem: one that the stage takes.
        multiprocessors: of the GPU.
        shared_bytes: that a block may have.
        warps: of a block.
        tile_tokens: rows of a tile.
        costs: of the GPU.
    """
    work = ways(problem, multiprocessors, shared_bytes, warps, tile_tokens)
    total, worth = cost(work, costs), _segment_tiles(work, costs)
    found = []
    for number in np.argsort(total, kind="stable"):
        way = work[number]
        found.append(
            Choice(
                block_heads=int(way["block_heads"]),
                whole=bool(way["runs"] == 0),
                ring_slots=int(way["ring_slots"]),
                runs=int(way["runs"]),
                segment_tiles=int(worth[number]),
                cost=float(total[number]),
            )
        )
    return found


def cost(work: np.ndarray, costs: Costs = H200) -> np.ndarray:
    """Microseconds of every way.

    Args:
        work: an array of `roof_work.WAY`.
        costs: of the GPU.
    """
    whole = work["runs"] == 0
    segment = _segment(work, costs)
    end = segment + costs.block
    filled = work["beside"] * work["ring_slots"] * work["slot_bytes"] / costs.bytes_per_us
    once = costs.call + costs.ring * filled
    cuts = costs.cut + costs.partial * work["partial_bytes"] / costs.bytes_per_us
    cuts = cuts + costs.late_partial * work["late_partials"]
    return once + busy(work, costs) + np.where(whole, end, segment * work["segments"] + cuts)


def busy(work: np.ndarray, costs: Costs = H200) -> np.ndarray:
    """Microseconds of reading, issuing and waiting, of which the longest nearly hides the others.

    They are told for each part in which so many blocks are left, and added up. What ends a block and begins
    the next in its place, its warps wait for; one block's waiting hides behind the others.
    """
    whole, left = (work["runs"] == 0)[:, None], work["left"]
    in_flight = left * ((work["ring_slots"] - 1) * work["slot_bytes"])[:, None] / costs.bytes_in_flight
    rate = np.divide(in_flight, _longest(IN_FLIGHT, in_flight, 1), out=np.ones_like(left), where=left > 0)
    usual = work["usual"] + costs.early * (work["part"] - work["usual"])
    read = work["loaded"][:, None] * np.where(whole, usual, 1)
    reading = (work["bytes"] * _times_read(work, costs) / costs.bytes_per_us)[:, None] * read / rate

    all_rounds = np.maximum(1, work["rounds"].sum(axis=1))
    ends = np.where(whole[:, 0], (_segment(work, costs) + costs.block) * work["turns"], 0)
    ends = (ends / all_rounds)[:, None] * work["rounds"]
    alone = ends / np.maximum(1, left)  # what of it no other block hides
    issue = np.array([costs.issue_float32, costs.issue_half, costs.issue_fp8])[work["kind"]]
    issued = np.where(whole, work["loaded"][:, None] * work["part"], 1)
    issuing = (work["instructions"] / issue)[:, None] * issued
    waiting = work["rounds"] * _round(work, costs)[:, None] + ends - alone
    working = alone + _longest(WORKING, issuing, waiting)
    return np.where(left > 0, _longest(READING, reading, working), 0).sum(axis=1)


def _longest(power: float, *times: np.ndarray | float) -> np.ndarray:
    return sum(time**power for time in times) ** (1 / power)


def _round(work: np.ndarray, costs: Costs) -> np.ndarray:
    """Of a warp with a tile of keys and its values: what it works on them, or waits for them.

    A slot is filled again as soon as it was used, and used again when all others were. A round uses two, one
    of keys and one of values, so that half its slots are the rounds in which a ring comes round: no sooner
    than what is asked for is there and worked on.
    """
    tile = np.array([costs.tile_float32, costs.tile_half, costs.tile_fp8])[work["kind"]]
    each = np.array([costs.product_float32, costs.dimension_half, costs.dimension_fp8])[work["kind"]]
    works = tile + each * work["products"]
    return _longest(WORKING, works, (2 * costs.latency + works) / work["ring_slots"])


def _times_read(work: np.ndarray, costs: Costs) -> np.ndarray:
    """What reading costs over reading everything once and in order.

    Whole sequences' blocks begin together, equal runs read at any time.
    """
    again = np.where(work["runs"] == 0, costs.again, costs.again_later) * work["again"]
    return (1 + again) * (1 + costs.split * work["split"]) * (1 + costs.elsewhere * work["elsewhere"])


def _segment(work: np.ndarray, costs: Costs) -> np.ndarray:
    return costs.segment + costs.segment_output * work["output"]


def _segment_tiles(work: np.ndarray, costs: Costs) -> np.ndarray:
    """Tiles of a run that take as long as a segment beside its tiles; 0 where sequences stay whole."""
    taken = busy(work, costs) * work["runs"]
    worth = _segment(work, costs) * work["tiles"]
    return np.rint(np.divide(worth, taken, out=np.zeros_like(worth), where=taken > 0))
