"""What the cost of stage 09's choice is made of, by hand and by what must hold for any problem."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labs_common.known_shapes import SHAPES
from labs_common.plans import RING_WARPS, Device, ring_tile_tokens
from labs_common.problem import FP8, Problem
from labs_common.roof_choice import DRAW, H200, _dealt, _Multiprocessor, choices

SHARED_BYTES = Device().max_shared_bytes


def multiprocessor(problem):
    return _Multiprocessor(problem, 132, SHARED_BYTES, RING_WARPS, ring_tile_tokens(problem), H200)


def ways(problem, multiprocessors=132):
    return choices(problem, multiprocessors, SHARED_BYTES, RING_WARPS, ring_tile_tokens(problem))


def test_work_is_dealt_to_whoever_is_free():
    assert _dealt([5, 4, 3, 2, 1], 2) == [[5, 2, 1], [4, 3]]
    assert _dealt([5, 4, 3, 2, 1], 2, beside=2) == [
        [5, 3],
        [4, 2, 1],
    ]  # 5 and 3 begin together, 4 and 2 as well
    assert _dealt([7], 3) == [[7], [], []]


@given(
    st.lists(st.integers(1, 900), max_size=80).map(lambda tiles: sorted(tiles, reverse=True)),
    st.integers(1, 9),
    st.integers(1, 3),
)
def test_dealing_loses_nothing_and_is_even(tiles, takers, beside):
    dealt = _dealt(tiles, takers, beside)

    assert sorted((one for taken in dealt for one in taken), reverse=True) == tiles and len(dealt) == takers
    if beside == 1 and tiles:  # whoever is free takes the next: Graham's bound of 1966
        assert max(map(sum, dealt)) <= sum(tiles) / takers + tiles[0] * (1 - 1 / takers) + 1e-9


def test_places_that_end_together_cost_what_they_cost_beside_each_other():
    gpu = multiprocessor(SHAPES["S1"].replace(dtype="float16"))

    together = gpu.emptying(2, [32, 32], 1.2, 1.0, 5.0)

    assert together == pytest.approx(gpu.busy(2, 2, 32, 1.2, 1.0, 5.0))


def test_a_place_that_is_left_alone_hides_less():
    """The same 64 rounds: half of them alone, where two slots keep too few bytes in flight."""
    gpu = multiprocessor(Problem(8, 8, 64, 64, (1861,) * 59, FP8, "HND"))

    assert gpu.emptying(2, [48, 16], 1.0, 1.0, 0.0) > 1.1 * gpu.emptying(2, [32, 32], 1.0, 1.0, 0.0)


def test_what_ends_a_block_hides_behind_reading_and_not_behind_waiting():
    """Of a call that reads for long, three microseconds are nearly hidden; of one that waits they are not."""
    reads, waits = (
        multiprocessor(SHAPES["S4"].replace(dtype="float32")),
        multiprocessor(Problem(1, 1, 64, 16, (64,))),
    )

    assert reads.busy(2, 2, 100, 1.0, 1.0, 3.0) - reads.busy(2, 2, 100, 1.0, 1.0, 0.0) < 0.1
    assert waits.busy(2, 1, 100, 1.0, 1.0, 3.0) - waits.busy(2, 1, 100, 1.0, 1.0, 0.0) == pytest.approx(
        3, abs=0.01
    )


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(("float32", "float16", FP8)),
    st.sampled_from((1, 2, 4, 5, 8)),
    st.integers(1, 16),
    st.sampled_from((64, 96, 128, 192, 256)),
    st.sampled_from(("NHD", "HND")),
    st.lists(st.integers(0, 5000), min_size=1, max_size=300),
)
def test_every_way_fits_and_they_are_in_order(dtype, kv_heads, group, head_dim, layout, lengths):
    problem = Problem(kv_heads * group, kv_heads, head_dim, 16, tuple(lengths), dtype, layout)
    gpu, found = multiprocessor(problem), ways(problem)

    assert all(np.isfinite(one.cost) and one.cost > 0 for one in found)
    for one in found:
        assert gpu._fit(one.ring_slots, max(1, one.runs))
        assert one.whole == (one.runs == 0) and gpu.sets % one.block_heads == 0
    least = min(one.cost for one in found)
    used = sum(n > 0 for n in lengths)
    first = [
        one.whole and used * (gpu.sets // one.block_heads) >= 132 and one.cost <= (1 + DRAW) * least
        for one in found
    ]
    assert first == sorted(first, reverse=True)
    for part in (True, False):
        costs = [one.cost for one, draws in zip(found, first, strict=True) if draws is part]
        assert costs == sorted(costs)


def test_sequences_that_leave_multiprocessors_idle_are_not_preferred_in_a_draw():
    """128 blocks for 132 multiprocessors; with 128 of these none is idle."""
    problem = SHAPES["S4"].replace(dtype="float32")

    assert not ways(problem)[0].whole
    assert ways(problem, 128)[0].whole


@pytest.mark.parametrize(
    ("slots", "problem", "arguments"),
    [
        (2, SHAPES["S1"].replace(dtype="float16"), (1.9, 64, True)),  # two beside each other
        (4, SHAPES["S4"].replace(dtype="float16"), (0.97, 256, True)),  # alone
        (3, SHAPES["S4"].replace(dtype="float16"), (1, 100, False)),
        (2, SHAPES["S4"].replace(dtype="float16"), (1, 5, False)),  # short segments
        (4, SHAPES["S4"].replace(dtype="float16"), (1, 2, False)),  # so short that the ring looks beyond them
        (4, SHAPES["S1r"].replace(dtype=FP8), (3.9, 30, True)),  # the last will be alone
        (2, SHAPES["S3"].replace(dtype=FP8), (1.9, 64, True)),
        (3, SHAPES["S4"].replace(dtype="float32"), (1, 100, False)),
        (2, SHAPES["S4"].replace(dtype="float32"), (1, 8, False)),
        (4, SHAPES["S1r"].replace(dtype="float32"), (3.9, 60, True)),  # lengths differ
        (2, SHAPES["S1"].replace(dtype="float32"), (3.9, 60, True)),  # and here they do not
        (
            2,
            Problem(60, 4, 64, 32, (1700,) * 80, "float32"),
            (1, 100, False),
        ),  # issues for longer than it reads
    ],
)
def test_slots_of_a_ring(slots, problem, arguments):
    """As they were fastest in most timings of their kind (data/roof)."""
    assert multiprocessor(problem).slots(*arguments) == slots
