"""The balanced plan: every token once, equal runs, pieces of a sequence one after the other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labs_common.equal_runs import equal_runs, linked_blocks, whole_sequences

lengths = st.lists(st.integers(0, 300), max_size=6)


@given(lengths, st.integers(1, 4), st.integers(1, 40), st.sampled_from([8, 16]), st.integers(1, 8))
@settings(max_examples=200, deadline=None)
def test_every_token_is_attended_to_once_and_runs_are_equal(contexts, groups, blocks, tile, rows):
    runs = equal_runs(contexts, groups, blocks, tile, rows)

    seen = {(b, g): np.zeros(length, int) for b, length in enumerate(contexts) for g in range(groups)}
    tiles = []
    for block in range(len(runs.block_segments) - 1):
        mine = runs.segments[runs.block_segments[block] : runs.block_segments[block + 1]]
        for sequence, first, end, group, *_ in mine:
            assert first % tile == 0 and first < end
            seen[sequence, group][first:end] += 1
        tiles.append(sum(-(-int(end - first) // tile) for _, first, end, *_ in mine))

    assert all((count == 1).all() for count in seen.values())
    assert max(tiles) - min(tiles) <= 1
    assert len(tiles) == max(1, min(blocks, sum(tiles)))


@given(lengths, st.integers(1, 4), st.integers(1, 40), st.sampled_from([8, 16]), st.integers(1, 8))
@settings(max_examples=200, deadline=None)
def test_partials_of_a_head_lie_one_after_the_other_and_none_overlap(contexts, groups, blocks, tile, rows):
    runs = equal_runs(contexts, groups, blocks, tile, rows)

    owners = np.zeros(runs.partials, int)
    for b in range(len(contexts)):
        for g in range(groups):
            mine = runs.segments[(runs.segments[:, 0] == b) & (runs.segments[:, 3] == g)]
            first, count = runs.pieces[b * groups + g]
            assert list(mine[:, 4]) == list(range(count)) and (mine[:, 5] == count).all()
            assert (np.diff(mine[:, 1]) > 0).all() and len(mine) == count
            if count > 1:  # a whole sequence is written at once, without a partial
                assert (mine[:, 6] == first).all()
                owners[first : first + count * rows] += 1
    assert (owners == 1).all()


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=8),
    st.integers(1, 4),
    st.integers(1, 40),
    st.sampled_from([8, 16]),
    st.integers(0, 12),
)
@settings(max_examples=200, deadline=None)
def test_a_segment_counts_as_much_as_it_is_worth(contexts, groups, blocks, tile, worth):
    """No block has more than an equal part of tiles and beginnings, but for the one that it begins with."""
    runs = equal_runs(contexts, groups, blocks, tile, 1, worth)

    seen = {(b, g): np.zeros(length, int) for b, length in enumerate(contexts) for g in range(groups)}
    tiles = [-(-n // tile) for n in contexts if n] * groups
    part = (sum(tiles) + worth * len(tiles)) / max(1, min(blocks, sum(tiles)))
    for start, stop in zip(runs.block_segments[:-1], runs.block_segments[1:], strict=True):
        cost = 0
        for sequence, first, end, group, *_ in runs.segments[start:stop]:
            seen[sequence, group][first:end] += 1
            cost += -(-int(end - first) // tile) + worth * (first == 0)
        assert cost <= part + 1 + worth
        assert stop > start or not tiles  # no block without work
    assert all((count == 1).all() for count in seen.values())


def test_a_plan_that_counts_segments_by_hand():
    """A sequence of 8 tiles, then four of one; with 2 more for each the line is 10 + 4 * 3 = 22 long.
    Its middle is in the room before the second sequence, with which the second block begins."""
    runs = equal_runs([128, 16, 16, 16, 16], 1, 2, 16, 1, segment_tiles=2)

    assert runs.segments[:, :3].tolist() == [[0, 0, 128], [1, 0, 16], [2, 0, 16], [3, 0, 16], [4, 0, 16]]
    assert runs.block_segments.tolist() == [0, 1, 5]
    assert equal_runs([128, 16, 16, 16, 16], 1, 2, 16, 1).block_segments.tolist() == [0, 1, 6]


def test_a_plan_by_hand():
    """Two sequences of 3 and 1 tiles over 2 blocks: two tiles each, the first sequence cut once."""
    runs = equal_runs([40, 10], 1, 2, 16, 3)

    #       sequence, first, end, group, piece, pieces, first partial
    assert runs.segments.tolist() == [
        [0, 0, 32, 0, 0, 2, 0, 0],
        [0, 32, 40, 0, 1, 2, 0, 0],
        [1, 0, 10, 0, 0, 1, 6, 0],
    ]
    assert runs.block_segments.tolist() == [0, 1, 3]
    assert runs.pieces.tolist() == [[0, 2], [6, 1]]
    assert runs.partials == 6


@given(lengths, st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_whole_sequences_are_a_block_each_the_longest_first(contexts, groups):
    runs = whole_sequences(contexts, groups)

    found = [(int(s[0]), int(s[3])) for s in runs.segments]
    assert sorted(found) == [(b, g) for b, length in enumerate(contexts) if length for g in range(groups)]
    assert all(s[1] == 0 and s[2] == contexts[s[0]] and s[5] == 1 for s in runs.segments)
    assert (np.diff(runs.segments[:, 2]) <= 0).all()
    assert runs.pieces[:, 1].tolist() == [int(n > 0) for n in contexts for _ in range(groups)]
    blocks = runs.block_segments
    assert len(blocks) == max(1, len(found)) + 1 and blocks[0] == 0 and blocks[-1] == len(found)


@pytest.mark.parametrize("contexts", [[], [0], [0, 0]])
def test_nothing_to_attend_to_is_one_block_without_a_segment(contexts):
    runs = equal_runs(contexts, 2, 132, 16, 4)

    assert runs.block_segments.tolist() == [0, 0]
    assert runs.pieces.tolist() == [[0, 0]] * (2 * len(contexts))
    assert runs.partials == 0


@given(lengths, st.integers(1, 3), st.integers(1, 20), st.booleans())
@settings(max_examples=200, deadline=None)
def test_linked_segments_are_those_of_the_blocks(contexts, groups, blocks, whole):
    runs = whole_sequences(contexts, groups) if whole else equal_runs(contexts, groups, blocks, 16, 4)
    linked, first = runs.linked(), runs.block_segments

    for block, mine in enumerate(linked_blocks(linked, len(first) - 1)):
        expected = runs.segments[first[block] : first[block + 1], :-1].tolist()
        assert linked[mine, :-1].tolist() == (expected or [[0, 0, 0, 0, 0, 1, 0]])
    assert len(linked) == max(1, len(runs.segments))
