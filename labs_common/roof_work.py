"""What there is to do in every way that stage 09 may split a problem: counted, without a word of time.

A way is a row of type `WAY`. Where sequences stay whole, blocks are of any length: the multiprocessor with
most to do counts, and how many blocks it has beside each other until its last one ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np

from labs_common.problem import Problem
from labs_common.roof_code import KINDS, kind, machine_code, sets_and_heads

LINE = 128  # bytes of a line of the L2 cache
BURST = 64  # bytes that memory hands out at a time
BLOCK_BYTES = 1536  # of shared memory beside rings and values: partials' maxima and sums, the driver's own
BESIDE = 4  # blocks that a multiprocessor works on at a time, at most
RING_SLOTS = (2, 3, 4)
MERGED_AT_ONCE = 32  # partials of a row: eight threads of the merge have four loads each in flight
BLOCK_ROUNDS = 4  # tiles of a warp that the start and the end of a block take as long as, more or less

WAY = np.dtype(
    [
        ("block_heads", int),  # sets of up to 8 query heads that share a block
        ("ring_slots", int),  # tiles that a warp has in flight or in use
        ("runs", int),  # equal ones for each multiprocessor; 0 where a block has whole sequences
        # Of the problem, an equal part for every multiprocessor:
        ("kind", int),  # of code, in KINDS
        ("bytes", float),  # of keys, values, queries and output
        ("instructions", float),  # of warps
        ("products", float),  # dimensions of a row, in fp32 its products with all heads of a set
        ("output", float),  # thousands (1,024) of numbers of a segment's output
        ("slot_bytes", float),  # of all warps of a block
        ("tiles", float),
        # Of its fullest multiprocessor, while BESIDE or fewer blocks are left, part by part:
        ("left", float, BESIDE),  # blocks
        ("rounds", float, BESIDE),  # tiles that a warp has one after the other
        ("part", float, BESIDE),  # of its tiles
        ("usual", float, BESIDE),  # of its tiles, what lies below the mean of all multiprocessors
        ("beside", float),  # blocks at a time, at first
        ("loaded", float),  # its tiles over the mean
        ("turns", float),  # blocks that follow another one in its place, in the longest row of these
        ("segments", float),  # of a run
        # How memory is read:
        ("split", float),  # what a run touches of lines and bursts that others read too, over its own bytes
        ("elsewhere", float),  # rows in a byte whose neighbours other blocks read, times the blocks beside
        ("again", bool),  # whether two blocks read the same
        # What a cut costs:
        ("partial_bytes", float),
        ("late_partials", float),  # of the longest row, beyond MERGED_AT_ONCE
    ]
)


def ways(
    problem: Problem, multiprocessors: int, shared_bytes: int, warps: int, tile_tokens: int
) -> np.ndarray:
    """All that stage 09 may do with a problem, and what there is to do then.

    Args:
        problem: one that the stage takes.
        multiprocessors: of the GPU.
        shared_bytes: that a block may have, as much as a multiprocessor has.
        warps: of a block.
        tile_tokens: rows of a tile.

    Returns:
        An array of `WAY`.
    """
    found = [*_ways(problem, multiprocessors, shared_bytes, warps, tile_tokens)]
    rows = np.zeros(len(found), WAY)
    for row, way in zip(rows, found, strict=True):
        for name, value in way.items():
            row[name] = value
    return rows


def _ways(
    problem: Problem, multiprocessors: int, shared_bytes: int, warps: int, tile_tokens: int
) -> Iterator[dict]:
    group_sets, heads = sets_and_heads(problem)
    sets = problem.kv_heads * group_sets
    slot_bytes = warps * tile_tokens * problem.head_dim * problem.itemsize
    other_bytes = warps * 4 * heads * problem.head_dim + BLOCK_BYTES
    tiles = sorted((-(-n // tile_tokens) for n in problem.context_lengths if n), reverse=True)
    longest, all_tiles = (tiles or [0])[0], sum(tiles)
    dealt: dict[tuple[int, int], dict] = {}

    def fit(slots: int, blocks: int) -> bool:
        return blocks * (slots * slot_bytes + other_bytes) <= shared_bytes

    for block_heads in (count for count in (1, 2, 4, 8) if sets % count == 0):
        groups = sets // block_heads
        blocks = groups * len(tiles) / multiprocessors
        mean_tiles = groups * all_tiles / multiprocessors
        token_warps = warps // block_heads
        for slots in RING_SLOTS:
            code = machine_code(problem, block_heads, slots)
            # The shortest ring is offered even where it is too large, so that the plan can say so.
            if code is None or (slots > RING_SLOTS[0] and not fit(slots, 1)):
                continue
            most = max(n for n in range(1, BESIDE + 1) if n == 1 or (n <= code.blocks and fit(slots, n)))
            way = {
                "block_heads": block_heads,
                "ring_slots": slots,
                "kind": KINDS.index(kind(problem)),
                "bytes": problem.minimum_bytes / multiprocessors,
                "instructions": sum(problem.context_lengths) * sets * code.instructions / multiprocessors,
                "products": _products(problem, heads),
                "output": heads * problem.head_dim / 1024,
                "slot_bytes": slot_bytes,
                "tiles": mean_tiles,
            }
            beside = min(most, max(1, -int(-blocks // 1)))
            if (block_heads, beside) not in dealt:
                pieces = [count for count in tiles for _ in range(groups)]
                dealt[block_heads, beside] = _whole(pieces, multiprocessors, beside, token_warps)
            yield {
                **way,
                **dealt[block_heads, beside],
                **_reading(problem, group_sets, block_heads, beside),
            }
            for runs in (1, 2, 3):
                if runs > most:
                    break
                segments = blocks / runs + 1  # a cut makes two of one
                rounds = (mean_tiles / runs + 0.5 * segments * (token_warps - 1)) / token_warps
                row_partials = runs * longest / mean_tiles if tiles else 0
                yield {
                    **way,
                    **_reading(problem, group_sets, block_heads, runs),
                    "runs": runs,
                    "left": _first(runs),
                    "rounds": _first(rounds),
                    "part": _first(1),
                    "usual": _first(1),
                    "beside": runs,
                    "split": _split(problem, group_sets, block_heads, runs),
                    "loaded": 1,
                    "segments": segments,
                    "partial_bytes": runs * block_heads * heads * problem.head_dim * 4 * 2,
                    "late_partials": max(0, row_partials - MERGED_AT_ONCE),
                }


def _first(value: float) -> list[float]:
    return [value, *[0] * (BESIDE - 1)]


def _products(problem: Problem, heads: int) -> int:
    """Dimensions of a row, or in fp32 products of a row with its heads, those of idle lanes included."""
    if problem.dtype != "float32":
        return problem.head_dim
    return (1 << (problem.head_dim - 1).bit_length()) * heads


def _reading(problem: Problem, group_sets: int, block_heads: int, beside: int) -> dict:
    """How a way reads memory; in NHD a token's rows lie side by side."""
    piece = problem.head_dim * problem.itemsize * max(1, block_heads // group_sets)  # of a token
    return {
        "again": block_heads < group_sets,  # one of two sets of a group reads what the other one reads
        "elsewhere": (beside - 1) / piece if problem.layout == "NHD" else 0,
    }


def _split(problem: Problem, group_sets: int, block_heads: int, runs: int) -> float:
    """Bytes of other heads' rows in the lines that a run's rows lie in, or in its bursts, over its own bytes.

    Blocks of whole sequences that share a line ask for it together; equal runs are elsewhere in the sequence
    when they ask for the other part, and the line is gone. Bursts that rows of two heads share, which warps
    of one block ask for, count where a multiprocessor has several runs: with a single one the timings say
    less of it. The larger of the two counts.
    """
    if problem.layout == "HND" or problem.kv_heads == 1:
        return 0.0
    row = problem.head_dim * problem.itemsize
    piece = row * max(1, block_heads // group_sets)
    token = problem.kv_heads * row
    lines = _over(LINE, piece, token) if piece < token else 0.0
    bursts = _over(BURST, row, token) if runs > 1 else 0.0
    return max(lines, bursts)


def _over(unit_bytes: int, piece_bytes: int, token_bytes: int) -> float:
    """What the whole units of memory that a token's pieces lie in have over the pieces, on average.

    Pieces begin at multiples of 16 bytes: after so many tokens they lie in units as the first one's do.
    """
    tokens = range(unit_bytes // 16)
    firsts = [n * token_bytes + first for n in tokens for first in range(0, token_bytes, piece_bytes)]
    units = [(first % unit_bytes + piece_bytes - 1) // unit_bytes + 1 for first in firsts]
    return unit_bytes * sum(units) / len(units) / piece_bytes - 1


def _whole(tiles: Sequence[int], multiprocessors: int, beside: int, token_warps: int) -> dict:
    """What the fullest multiprocessor has of blocks with whole sequences, whose places empty one by one.

    Args:
        tiles: of each block, the longest first.
        multiprocessors: that blocks are dealt to.
        beside: places for blocks.
        token_warps: of a block that share a set's tiles.
    """
    pieces = [-(-count // token_warps) + BLOCK_ROUNDS for count in tiles]
    fullest = max(_dealt(pieces, multiprocessors, beside), key=sum)
    places = _dealt(fullest, beside)
    turns = max(0, len(max(places, key=sum)) - 1)
    places = [[piece - BLOCK_ROUNDS for piece in place] for place in places]
    loaded = sum(map(sum, places)) * multiprocessors / max(1, sum(pieces) - BLOCK_ROUNDS * len(pieces))
    rounds = sorted(map(sum, places))
    found = {name: [0.0] * BESIDE for name in ("left", "rounds", "part", "usual")}
    done, before = 0.0, 0
    for number, end in enumerate(rounds):
        left = len(rounds) - number
        part = left * (end - before) / max(1, sum(rounds))
        usual = min(max(0.0, 1 / max(1e-9, loaded) - done), part)
        found["left"][number], found["rounds"][number] = left, end - before
        found["part"][number], found["usual"][number] = part, usual
        done, before = done + part, end
    return {**found, "beside": beside, "loaded": loaded, "turns": turns}


def _dealt(longest_first: Sequence[int], takers: int, beside: int = 1) -> list[list[int]]:
    """Who takes which of some pieces of work, the longest first: whoever is free.

    Args:
        longest_first: how long each takes.
        takers: of pieces.
        beside: pieces that each begins with at the same time.
    """
    if longest_first and longest_first[0] == longest_first[-1]:  # whoever is free is the next one
        return [list(longest_first[first::takers]) for first in range(takers)]
    started = beside * takers
    taken = [list(longest_first[first:started:takers]) for first in range(takers)]
    free = [(sum(pieces), number) for number, pieces in enumerate(taken)]
    heapq.heapify(free)
    for piece in longest_first[started:]:
        load, number = free[0]
        taken[number].append(piece)
        heapq.heapreplace(free, (load + piece, number))
    return taken
