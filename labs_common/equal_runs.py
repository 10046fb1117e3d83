"""Ragged work cut into equal runs: every block gets as many tiles as every other, whosever they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Runs:
    """Which block attends to which tokens, as kernel 08 reads it; ``linked`` is what kernel 09 reads.

    A piece is what one block attends to of a sequence for some heads; a sequence cut by a block's end has
    several, which a merge puts together.

    Attributes:
        segments: ``[pieces in all, 8]`` int32, block after block: sequence, first token, end, head group,
            number of this piece, pieces of the same sequence and heads, their first partial, 0.
        block_segments: ``[blocks + 1]`` int32, where each block's segments begin.
        pieces: ``[batch * head groups, 2]`` int32: first partial and number of pieces.
        partials: rows of partial results in all; those of one head lie one after the other.
    """

    segments: np.ndarray
    block_segments: np.ndarray
    pieces: np.ndarray
    partials: int

    def linked(self) -> np.ndarray:
        """The segments as kernel 09 reads them: the first of each block, in their order, then all others.

        The last column is how much further on the block's next one lies, 0 where there is none: a block finds
        its segments without a table, see `linked_blocks`. Where no sequence has a token, one segment of the
        first sequence is there, which has none either.
        """
        if not len(self.segments):
            return np.array([[0, 0, 0, 0, 0, 1, 0, 0]], np.int32)
        firsts, lasts = self.block_segments[:-1], self.block_segments[1:] - 1
        order = np.concatenate([firsts, np.setdiff1d(np.arange(len(self.segments)), firsts)])
        place = np.argsort(order)
        linked = self.segments.copy()
        linked[:-1, -1] = np.diff(place)
        linked[lasts, -1] = 0
        return linked[order]

    def merges(self, head_groups: int) -> np.ndarray:
        """What kernel 09 merges: ``[merges, 4]`` int32, sequence, head group, first partial and pieces.

        Sequences that nobody cut are left out; empty ones are there with no piece, for their zeros.
        """
        item = np.flatnonzero(self.pieces[:, 1] != 1)
        sequence, group = np.divmod(item, head_groups)
        return np.ascontiguousarray(np.stack([sequence, group, *self.pieces[item].T], axis=1), np.int32)


def linked_blocks(segments: np.ndarray, blocks: int) -> list[list[int]]:
    """The numbers of each block's segments in what ``Runs.linked`` gives."""
    found = []
    for first in range(blocks):
        mine = [first]
        while further := int(segments[mine[-1], -1]):
            mine.append(mine[-1] + further)
        found.append(mine)
    return found


def whole_sequences(context_lengths: Sequence[int], head_groups: int) -> Runs:
    """A block for every sequence and head group, the longest first: blocks of any length, nothing to merge.

    Args:
        context_lengths: of each sequence.
        head_groups: of a sequence, each attended to by a block at a time.
    """
    lengths = np.repeat(np.asarray(context_lengths, np.int64), head_groups)
    item = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
    sequence, group = np.divmod(item, head_groups)
    zero, one = np.zeros_like(item), np.ones_like(item)
    segments = np.stack([sequence, zero, lengths[item], group, zero, one, zero, zero], axis=1)
    return Runs(
        np.ascontiguousarray(segments, np.int32),
        np.arange(item.size + 1, dtype=np.int32) if item.size else np.zeros(2, np.int32),
        np.stack([np.zeros_like(lengths), lengths > 0], axis=1).astype(np.int32),
        0,
    )


def equal_runs(
    context_lengths: Sequence[int],
    head_groups: int,
    blocks: int,
    tile_tokens: int,
    group_rows: int,
    segment_tiles: int = 0,
) -> Runs:
    """Lay the tiles of all sequences and head groups on one line and cut it into equal parts.

    Args:
        context_lengths: of each sequence.
        head_groups: of a sequence, each attended to by a block at a time.
        blocks: that share the work; fewer where there are fewer tiles, but at least one.
        tile_tokens: the least that is given to a block.
        group_rows: query heads of a head group, each with a row for every piece.
        segment_tiles: place on the line before each sequence and head group, for what a segment costs beside
            its tiles: a block with many short ones has fewer tiles. Where it is wide, blocks can be fewer.
    """
    lengths = np.repeat(np.asarray(context_lengths, np.int64), head_groups)
    tiles = -(-lengths // tile_tokens)
    ends = np.cumsum(tiles)
    total = int(ends[-1]) if ends.size else 0
    blocks = max(1, min(blocks, total))
    places = np.cumsum(np.where(tiles > 0, tiles + segment_tiles, 0))
    cuts = np.arange(blocks + 1, dtype=np.int64) * (int(places[-1]) if total else 0) // blocks
    if total:
        cuts[:-1] = _tiles_before(cuts[:-1], places, ends, segment_tiles)
        cuts = np.append(np.unique(cuts[:-1]), total)

    starts = (
        np.unique(np.concatenate([cuts[:-1], (ends - tiles)[tiles > 0]])) if total else np.zeros(0, np.int64)
    )
    stops = np.append(starts[1:], total)[: starts.size]
    item = np.searchsorted(ends, starts, side="right")
    count = np.bincount(item, minlength=lengths.size)
    piece = np.arange(starts.size) - (np.cumsum(count) - count)[item]
    rows = np.where(count > 1, count * group_rows, 0)
    first_row = np.cumsum(rows) - rows

    first = (starts - (ends - tiles)[item]) * tile_tokens
    stop = np.minimum(lengths[item], first + (stops - starts) * tile_tokens)
    sequence, group = np.divmod(item, head_groups)
    segments = np.stack(
        [sequence, first, stop, group, piece, count[item], first_row[item], np.zeros_like(item)], axis=1
    )
    block_segments = np.searchsorted(starts, cuts)
    return Runs(
        np.ascontiguousarray(segments, np.int32),
        block_segments.astype(np.int32),
        np.ascontiguousarray(np.stack([first_row, count], axis=1), np.int32),
        int(rows.sum()),
    )


def _tiles_before(cuts: np.ndarray, places: np.ndarray, ends: np.ndarray, segment_tiles: int) -> np.ndarray:
    """The tiles before each cut of the line, which ends with ``places`` and, without room, with ``ends``."""
    item = np.searchsorted(places, cuts, side="right")
    length = np.diff(places, prepend=0)[item]
    own = cuts - (places[item] - length)
    return ends[item] - (length - segment_tiles) + np.maximum(0, own - segment_tiles)
