"""What the cost of stage 09's choice is made of, by hand and by what must hold for any problem."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labs_common import roof_count
from labs_common.compiler import compile_resources, compiler_version
from labs_common.known_shapes import SHAPES
from labs_common.plans import RING_WARPS, Device, ring_tile_tokens
from labs_common.problem import FP8, Problem
from labs_common.roof_choice import H200, busy, choices, cost
from labs_common.roof_code import (
    HEAD_DIMS,
    INSTRUCTIONS,
    KINDS,
    REGISTERS,
    MachineCode,
    machine_code,
    sets_and_heads,
    table,
)
from labs_common.roof_count import STAGE, kernels, registers_key
from labs_common.roof_work import BESIDE, _dealt, ways

SHARED_BYTES = Device().max_shared_bytes


def arguments(problem, multiprocessors=132):
    return problem, multiprocessors, SHARED_BYTES, RING_WARPS, ring_tile_tokens(problem)


def way(problem, block_heads, ring_slots, runs):
    work = ways(*arguments(problem))
    mine = (work["block_heads"] == block_heads) & (work["ring_slots"] == ring_slots) & (work["runs"] == runs)
    assert mine.sum() == 1
    return work[mine]


def test_work_is_dealt_to_whoever_is_free():
    assert _dealt([5, 4, 3, 2, 1], 2) == [[5, 2, 1], [4, 3]]
    # 5 and 3 begin together, 4 and 2 as well.
    assert _dealt([5, 4, 3, 2, 1], 2, beside=2) == [[5, 3], [4, 2, 1]]
    assert _dealt([7], 3) == [[7], [], []] and _dealt([], 2) == [[], []]
    assert _dealt([4, 4, 4, 4, 4], 2, beside=2) == [[4, 4, 4], [4, 4]]


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


def test_what_there_is_to_do_with_whole_sequences_by_hand():
    """S1 in fp16: 64 contexts of 4,096 tokens and 8 heads, two in a block: 256 blocks for 132."""
    work = way(SHAPES["S1"].replace(dtype="float16"), 2, 2, 0)[0]

    assert work["beside"] == 2 and work["left"][0] == 2
    assert list(work["rounds"]) == [64, 0, 0, 0]  # 256 tiles of 16 tokens, four warps; both end together
    assert work["part"][0] == 1 and work["turns"] == 0
    assert work["loaded"] == pytest.approx(2 / (256 / 132))
    assert work["usual"][0] == pytest.approx(256 / 264)
    assert work["slot_bytes"] == 8 * 16 * 128 * 2
    # keys and values of 64 x 4,096 tokens; queries, output, page table and lengths are 0.4 % more
    assert 1.005 > work["bytes"] * 132 / (2 * 64 * 4096 * 8 * 128 * 2) >= 1
    a_token = machine_code(SHAPES["S1"].replace(dtype="float16"), 2, 2).instructions
    assert work["instructions"] == pytest.approx(64 * 4096 * 8 / 132 * a_token)
    assert not work["again"]


def test_places_that_empty_one_by_one_by_hand():
    """Two blocks for one multiprocessor: 32 and 8 tiles for each of eight warps."""
    problem = Problem(4, 1, 128, 16, (32 * 128, 8 * 128), "float16")
    work = ways(problem, 1, SHARED_BYTES, RING_WARPS, 16)
    one = work[(work["runs"] == 0) & (work["ring_slots"] == 2)][0]

    assert list(one["left"][:2]) == [2, 1] and list(one["rounds"][:2]) == [8, 24]
    assert list(one["part"][:2]) == [0.4, 0.6] and one["loaded"] == 1


def test_equal_runs_by_hand():
    """S2 in fp16: a context of 100,000 tokens and four heads, cut into 132 runs."""
    work = way(SHAPES["S2"].replace(dtype="float16"), 1, 2, 1)[0]

    tiles = 4 * 6250 / 132
    assert work["tiles"] == pytest.approx(tiles) and work["segments"] == pytest.approx(1 + 4 / 132)
    assert work["rounds"][0] == pytest.approx((tiles + 0.5 * 7 * (1 + 4 / 132)) / 8)
    assert work["partial_bytes"] == 6 * 256 * 4 * 2 and work["late_partials"] == pytest.approx(
        6250 / tiles - 32
    )


def test_how_memory_is_read_by_hand():
    """Of NHD rows of 96 bytes two heads read 192 of a token's 384, which are three lines of 128 bytes.

    Either two touch two lines; one touches one or two. A row touches two bursts of 64 bytes.
    """
    problem = Problem(8, 4, 96, 16, (4096,) * 200, FP8)
    apart, alone, all_heads = (way(problem, heads, 2, 2)[0] for heads in (2, 1, 4))

    assert apart["elsewhere"] == pytest.approx(1 / 192) and alone["elsewhere"] == pytest.approx(1 / 96)
    assert apart["split"] == pytest.approx(256 / 192 - 1) and alone["split"] == pytest.approx(192 / 96 - 1)
    assert all_heads["split"] == pytest.approx(128 / 96 - 1)
    assert way(problem, 4, 2, 1)[0]["split"] == 0  # alone, a block's warps keep together
    assert way(problem, 2, 2, 1)[0]["split"] == apart["split"] and way(problem, 2, 2, 0)[0]["split"] == 0
    for other in (problem.replace(layout="HND"), problem.replace(query_heads=2, kv_heads=1)):
        assert not ways(*arguments(other))["split"].any()
    assert not ways(*arguments(problem.replace(layout="HND")))["elsewhere"].any()


def test_a_place_that_is_left_alone_hides_less():
    """The same rounds in two places, or half of them alone, where two slots keep too little in flight."""
    together = way(Problem(8, 8, 64, 64, (1861,) * 59, FP8, "HND"), 1, 2, 0)
    together["left"], together["rounds"] = [[2, 0, 0, 0]], [[32, 0, 0, 0]]
    together["part"] = together["usual"] = [[1, 0, 0, 0]]
    apart = together.copy()
    apart["left"], apart["rounds"] = [[2, 1, 0, 0]], [[16, 32, 0, 0]]
    apart["part"] = apart["usual"] = [[0.5, 0.5, 0, 0]]

    assert busy(apart) > 1.1 * busy(together)


def test_what_ends_a_block_hides_behind_reading_and_not_behind_waiting():
    """Of a call that reads for long, a turn is nearly hidden; of one that waits it is not."""
    turn = H200.segment + H200.block + H200.segment_output * 4 * 128 / 1024
    found = []
    for problem in (SHAPES["S4"].replace(dtype="float32"), Problem(4, 1, 128, 16, (1 << 14,))):
        work = way(problem, 1, 2, 0)
        once = busy(work)
        work["turns"] += 1
        found.append((busy(work) - once).item())

    assert found[0] < 0.3 * turn and 0.9 * turn < found[1] < 1.3 * turn


@pytest.mark.parametrize(
    ("name", "more"),
    [("latency", 1), ("tile_half", 1), ("issue_half", -1), ("bytes_in_flight", 1), ("block", 1), ("ring", 1)],
)
def test_what_takes_longer_costs_more(name, more):
    work = ways(*arguments(Problem(32, 8, 64, 16, (777,) * 40, "float16")))
    dearer = dataclasses.replace(H200, **{name: getattr(H200, name) * 1.5**more})

    assert (cost(work, dearer) > cost(work)).any() and (cost(work, dearer) >= cost(work)).all()


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
    work, found = ways(*arguments(problem)), choices(*arguments(problem))
    sets, heads = sets_and_heads(problem)

    assert len(found) == len(work) and all(np.isfinite(one.cost) and one.cost > 0 for one in found)
    for one in found:
        assert one.whole == (one.runs == 0) and kv_heads * sets % one.block_heads == 0
        ring = RING_WARPS * ring_tile_tokens(problem) * head_dim * problem.itemsize * one.ring_slots
        assert max(1, one.runs) * (ring + RING_WARPS * 4 * heads * head_dim) <= SHARED_BYTES
        assert max(1, one.runs) <= machine_code(problem, one.block_heads, one.ring_slots).blocks
    costs = [one.cost for one in found]
    assert costs == sorted(costs)
    if sum(lengths):
        whole = work[work["runs"] == 0]
        assert whole["part"].sum(axis=1) == pytest.approx(1)
        assert (whole["usual"] <= whole["part"] + 1e-9).all() and (whole["loaded"] > 0.999).all()
        assert (whole["left"] * whole["rounds"]).sum(axis=1) == pytest.approx(
            whole["loaded"] * rounds_of_one(problem, whole)
        )


def rounds_of_one(problem, whole):
    """Tiles of a warp that a multiprocessor has in the mean, each block's rounded up."""
    groups = problem.kv_heads * sets_and_heads(problem)[0] // whole["block_heads"]
    tokens = ring_tile_tokens(problem) * RING_WARPS // whole["block_heads"]
    return np.array([sum(-(-n // t) for n in problem.context_lengths) for t in tokens]) * groups / 132


def test_smaller_multiprocessors_get_shorter_rings_or_a_plain_word():
    """By hand: rings of two slots of 64 KiB and 64 KiB of values, or of two slots of 32 KiB and 16 KiB."""
    large, small = Problem(8, 1, 256, 16, (4000,)), Problem(4, 1, 128, 16, (4000,), "float16")
    for shared_bytes in (166_912, 101_376):
        device = dataclasses.replace(Device(), max_shared_bytes=shared_bytes)
        with pytest.raises(ValueError, match=f"196608 bytes of shared memory.*{shared_bytes}"):
            STAGE.plan(large, device)
        assert STAGE.plan(small, device).launches[0].shared_bytes == 81_920


@pytest.mark.parametrize("head_dim", range(32, 257, 32))
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", FP8])
def test_every_head_dim_that_the_stage_takes_has_a_plan(head_dim, dtype):
    """Those that nobody counted are chosen for as the next larger one."""
    problem = Problem(32, 8, head_dim, 16, (1000,) * 8, dtype)
    if STAGE.supports(problem, Device()) is None:
        assert STAGE.plan(problem).launches[0].shared_bytes <= SHARED_BYTES


@pytest.mark.parametrize(
    "problem", [SHAPES["S1"].replace(dtype="float16"), SHAPES["S2"].replace(dtype="float16")]
)
def test_to_ask_for_the_policy_of_l2_alone_changes_nothing_else(problem):
    kept, first = STAGE.plan(problem, evict_first=False), STAGE.plan(problem)

    assert first.defines["EVICT_FIRST"] == 1
    assert kept.launches == first.launches and kept.defines == {**first.defines, "EVICT_FIRST": 0}


@pytest.mark.parametrize(
    ("options", "grid"),
    [
        ({"blocks": 100}, 100),
        ({"blocks": 100, "whole": True}, 2),
        ({"blocks": 264, "ring_slots": 5}, 264),
        ({"ring_slots": 5, "whole": False}, 132),
    ],
)
def test_what_is_asked_for_is_planned(options, grid):
    """Two contexts of a head set each; a number of blocks means equal runs, unless sequences stay whole."""
    plan = STAGE.plan(Problem(4, 1, 64, 8, (0, 9000, 9000), "float32"), **options)

    assert plan.launches[0].grid == (grid, 1, 1)
    assert plan.defines["RING_SLOTS"] == options.get("ring_slots", plan.defines["RING_SLOTS"])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", FP8])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_machine_code_is_known_for_all_that_fits_into_a_block(dtype, layout):
    """Of eight warps with rings of two to four slots and values of all heads."""
    sizes = itertools.product(HEAD_DIMS, (8, 16, 32, 64), range(1, 17), (1, 2, 4, 8), (2, 3, 4))
    for head_dim, page_size, group, block_heads, slots in sizes:
        problem = Problem(8 * group, 8, head_dim, page_size, (100,), dtype, layout)
        tile = ring_tile_tokens(problem) * head_dim * problem.itemsize
        values = 4 * sets_and_heads(problem)[1] * head_dim
        if RING_WARPS * (slots * tile + values) <= SHARED_BYTES - 1024:
            code = machine_code(problem, block_heads, slots)
            assert code.instructions > 10 and 1 <= code.blocks <= BESIDE + 1


def test_blocks_that_registers_hold_by_hand():
    """65,536 of a multiprocessor, a thread's by eight: of 256 threads with 80 three blocks, with 81 two."""
    assert [MachineCode(1, n).blocks for n in (64, 80, 81, 128, 129, 255)] == [4, 3, 2, 2, 1, 1]


def test_the_registers_in_the_table_are_those_of_ptxas():
    """Of some kernels, among them pairs that differ in nothing but the sets of a block."""
    if not compiler_version().startswith("13.0"):
        pytest.skip(f"NVRTC {compiler_version()}: the table is of 13.0")
    known = table(REGISTERS)
    every = kernels(registers_key)
    pair = [
        one
        for one in every
        if registers_key(one.problem, one.block_heads, one.ring_slots)
        in {("float32", 96, 6, block_heads, 16, 2, "HND", 1) for block_heads in (1, 2)}
        | {("half", 128, 7, block_heads, 8, 2, "NHD", 2) for block_heads in (1, 2)}
    ]
    found = []
    for one in [*pair, *every[:: len(every) // 10]]:
        counted = compile_resources(STAGE.source(), one.plan.defines)[STAGE.entry].registers
        found.append(counted)
        assert counted == known[registers_key(one.problem, one.block_heads, one.ring_slots)]

    assert len(pair) == 4 and found[:4] == [128, 172, 128, 150]


def test_the_tables_have_a_line_for_every_kernel():
    assert set(table(REGISTERS)) == {
        registers_key(one.problem, one.block_heads, one.ring_slots) for one in kernels(registers_key)
    }
    assert {code for code, *_ in table(INSTRUCTIONS)} == set(KINDS)


def test_counting_divides_what_the_longer_sequence_takes_more(monkeypatch):
    """By hand: 4,096 tokens more, of eight heads with one set each and with two."""
    one, two = (Problem(8 * group, 8, 64, 16, (2048,), "float32") for group in (4, 14))
    those = [roof_count.Kernel(one, 2, 3, None), roof_count.Kernel(two, 1, 2, None)]
    monkeypatch.setattr(roof_count, "kernels", lambda key: those)

    found = roof_count.instructions([1000.0, 1000 + 4096 * 8 * 50, 7.0, 7 + 4096 * 16 * 20])

    assert found["instructions"].tolist() == [50, 20]
    assert found.iloc[1, :-1].tolist() == ["float32", 64, 7, 1, 16, 2, "any"]
    assert [p.context_lengths for p in roof_count.lengths(those[0])] == [(2048,), (6144,)]


def test_an_empty_batch_has_nothing_to_launch():
    """Not even the segment without a token, which stands for a first sequence."""
    for options in ({}, {"whole": True}, {"whole": False}):
        assert STAGE.plan(Problem(8, 2, 64, 16, (), "float16"), **options).launches == ()
