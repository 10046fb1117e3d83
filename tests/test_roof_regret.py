"""Stage 09's choice against everything that was timed on the H200, and the costs that it chooses by."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from labs_common import roof_regret
from labs_common.known_shapes import SHAPES
from labs_common.plans import Device
from labs_common.problem import Problem
from labs_common.roof_bench import Way, way
from labs_common.roof_choice import H200, choices
from labs_common.roof_fit import FITTED, ROUGH, cross_validated, fit, timings
from labs_common.roof_regret import RECORDED, Timed, regret, timed_problems

RANDOM = 9 * 30  # shapes that the costs were fitted to
UNSEEN = 30  # of each draw that they were not
DRAWS = (31, 32, 33)


@pytest.fixture(scope="module")
def timed():
    return timed_problems()


@pytest.fixture(scope="module")
def table(timed):
    return regret(timed)


def test_the_choice_is_near_the_best_way_that_was_timed(table):
    assert len(table) == 2 * 3 * len(SHAPES) + RANDOM
    assert (table["ratio"] >= 1).all() and table["first"].all()
    assert table["ratio"].median() < 1.01
    assert table["ratio"].quantile(0.9) < 1.045
    assert (table["ratio"] > 1.10).sum() <= 5 and table["ratio"].max() < 1.18


@pytest.mark.parametrize(("draw", "worst"), [(31, 1.10), (32, 1.075), (33, 1.28)])
def test_it_is_near_on_shapes_that_the_fit_has_not_seen(draw, worst):
    """As the costs planned it: two of three draws keep to three per cent in the median and ten at worst."""
    own, best = own_and_best(draw, "09")
    ratio = own / best

    assert len(ratio) == UNSEEN
    assert ratio.median() < 1.01 and ratio.quantile(0.9) < 1.05 and ratio.max() < worst
    planned = regret(
        [one for one in timed_problems(unseen=True) if one.problem.name.startswith(f"random {draw}.")]
    )
    # today's choice is that plan, timed once more
    again = planned.set_index("problem")["chosen_us"] / own
    assert len(again) == UNSEEN and again.between(0.97, 1.03).mean() > 0.9


@pytest.mark.parametrize(("draw", "worst"), [(31, 1.025), (32, 1.045), (33, 1.015)])
def test_what_was_tuned_is_near_in_every_draw(draw, worst):
    own, best = own_and_best(draw, "09, tuned")
    ratio = own / best

    assert len(ratio) == UNSEEN and ratio.median() < 1.005 and ratio.max() < worst


def own_and_best(draw, what):
    """Microseconds of a contender, and of the fastest way, by problem."""
    rows = pd.read_csv(RECORDED / "h200" / f"unseen-random-30-{draw}.csv.xz").set_index(["problem", "what"])
    assert rows["right"].all()
    ways = rows["median_us"][rows.index.get_level_values("what").str.contains("heads a block")]
    own = rows["median_us"].xs(what, level="what")
    return own, ways.groupby("problem").min().reindex(own.index)


def test_it_is_near_by_costs_that_were_not_fitted_to_the_problem(timed, table):
    """Each problem is chosen for by a fit that did without it."""
    unseen = cross_validated(timed, progress=list)

    assert sorted(zip(unseen["problem"], unseen["dtype"], strict=True)) == sorted(
        zip(table["problem"], table["dtype"], strict=True)
    )
    random = unseen[unseen["problem"].str.startswith("random")]
    assert len(random) == RANDOM
    assert random["ratio"].median() < 1.01 and random["ratio"].quantile(0.9) < 1.05
    assert (random["ratio"] > 1.10).sum() <= 6 and random["ratio"].max() < 1.18


def test_the_costs_are_what_a_fit_finds(timed):
    found = fit(timings(timed))

    for name in FITTED:
        assert getattr(found, name) == pytest.approx(getattr(H200, name), rel=0.03), name


def test_what_is_kept_from_the_fit_is_not_in_it(timed):
    def shape(one):
        return one.problem.replace(name="")

    unseen = [shape(one) for one in timed_problems(unseen=True)]

    assert len(unseen) == len(DRAWS) * UNSEEN and not set(unseen) & {shape(one) for one in timed}


def test_of_shapes_on_which_peers_were_measured_it_is_near(table):
    known = table[table["problem"].isin(SHAPES)]

    assert len(known) == 30  # each timed in two runs
    assert known["ratio"].median() < 1.015 and known["ratio"].max() < 1.045, known.to_string()


def test_equal_runs_that_count_segments_are_no_slower_than_by_tiles_alone():
    """Over 270 random shapes: as fast where no segment is short, three quarters faster at best."""
    ratios = []
    for path in sorted((RECORDED / "h200").glob("random-30-*.csv.xz")):
        rows = pd.read_csv(path).set_index(["problem", "what"])["median_us"]
        tiles, runs = "09, equal runs by tiles alone", "09, equal runs"
        ratios.append(rows.xs(tiles, level="what") / rows.xs(runs, level="what"))
    ratio = pd.concat(ratios)

    assert len(ratio) == RANDOM
    assert ratio.quantile(0.01) > 0.97 and ratio.median() == pytest.approx(1.018, abs=0.001)
    assert ratio.max() == pytest.approx(1.746, abs=0.001)


def test_what_a_line_of_128_bytes_brings():
    """Odd numbers of heads a set put the ring 64 bytes past a line; even ones put it on one anyway."""
    rows = pd.read_csv(RECORDED / "h200" / "alignment.csv")
    gain = rows["median_us"] / rows["aligned_median_us"]
    odd = rows["heads_a_set"] % 2 == 1

    assert gain[odd].min() > 1 and gain[odd].max() == pytest.approx(1.28, abs=0.01)
    assert gain[~odd].between(0.97, 1.03).all()
    counted = pd.read_csv(RECORDED / "h200" / "alignment-ncu.csv").set_index(
        ["kernel and problem", "aligned"]
    )
    wavefronts = counted["smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum"]
    a_copy = wavefronts / counted["smsp__inst_executed_op_ldgsts.sum"]
    assert set(a_copy.xs(True, level="aligned")) == {4}
    assert set(a_copy.xs(False, level="aligned")) == {8, 12}


def test_a_way_that_was_not_timed_is_passed_over():
    problem = SHAPES["S1"].replace(dtype="float16")
    one = Timed(problem, {Way(8, 3, 1, True): 250.0, Way(1, 2, 0, True): 260.0})

    assert {way for _, way in one.ways(Device())} == {Way(8, 3, 1, True), Way(1, 2, 0, True)}
    assert regret([one])["best_us"].item() == 250


def test_without_recordings_it_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(roof_regret, "RECORDED", tmp_path)

    assert timed_problems() == [] and regret([]).empty
    roof_regret.main()

    assert "no timings here" in capsys.readouterr().out


def test_a_fit_finds_the_costs_that_times_were_made_with():
    """Of times by other costs than an H200's: it then chooses as those do, and tells their times."""
    true = dataclasses.replace(H200, bytes_in_flight=14_000, segment=2.0, cut=6.0, call=3.0)
    random = np.random.default_rng(5)
    timed = []
    for _ in range(24):
        kv_heads, head_dim = int(random.choice((1, 2, 8))), int(random.choice((64, 128, 256)))
        lengths = tuple(int(n) for n in random.integers(1, 6000, int(random.integers(1, 150))))
        problem = Problem(4 * kv_heads, kv_heads, head_dim, 16, lengths, "float16")
        ways = choices(problem, 132, 232_448, 8, 16, true)
        times = {Way(one.block_heads, one.ring_slots, one.runs, evict_first=True): one.cost for one in ways}
        timed.append(Timed(problem, times))

    found = fit(timings(timed))

    assert regret(timed, costs=found)["ratio"].max() < 1.012  # a draw
    for one in timed:
        for choice, chosen in one.ways(Device(), found):
            # what hides behind reading shows little in a cost, and is hard to find
            assert choice.cost == pytest.approx(one.times[chosen], rel=0.05)


def test_everything_that_a_choice_costs_is_fitted():
    assert set(FITTED) | {"bytes_per_us"} == {field.name for field in dataclasses.fields(H200)}
    assert ROUGH.bytes_per_us == H200.bytes_per_us


def test_a_label_says_its_options():
    assert way("09, 4 heads a block, 3 slots") == (4, 3, 1, True)
    assert way("09, 4 heads a block, 2 slots, two runs") == (4, 2, 2, True)
    assert way("09, 4 heads a block, 2 slots, three runs") == (4, 2, 3, True)
    assert way("09, 8 heads a block, 2 slots, whole, not evicted first") == (8, 2, 0, False)


def test_what_linked_segments_and_an_early_merge_bring():
    """Microseconds in one run, each bound twice: what notebook 09 says of them."""
    rows = pd.read_csv(RECORDED / "h200" / "steps.csv")
    rows["what"] = rows["what"].str.removesuffix(" #1").str.removesuffix(" #2")
    us = rows.groupby(["problem", "dtype", "what"])["median_us"].mean().unstack()
    assert rows["right"].all()

    # In fp32 the form that was timed cost registers, which the kernel's own does not.
    linked = (us["old"] - us["new"]).drop("float32", level="dtype")
    assert linked.min() > 0.05 and linked.max() < 0.9
    early = (us["new"] - us["new pdl"]).loc["S2"]
    assert early["float16"] == pytest.approx(0.5, abs=0.05)
    assert early["float8_e4m3fn"] == pytest.approx(0.8, abs=0.05)
    for nothing in ("new prefetch", "new rows16"):
        assert (us["new"] - us[nothing]).loc["S2"].max() < 0.3


def test_the_same_arrays_elsewhere_are_worth_more_than_a_per_cent():
    rows = pd.read_csv(RECORDED / "h200" / "placements.csv")
    share = rows.pivot(index=["problem", "dtype", "what"], columns="allocation", values="% of read ceiling")
    same = share.loc["S3", "float32", "8h2s first"]

    assert rows["right"].all() and len(same) == 6
    assert same.min() == pytest.approx(96.2, abs=0.1) and same.max() == pytest.approx(97.7, abs=0.1)
