"""Stage 09's choice against everything that was timed on the H200, and the costs that it chooses by."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from labs_common import roof_regret, roof_tune
from labs_common.known_shapes import SHAPES
from labs_common.plans import Device
from labs_common.problem import Problem
from labs_common.roof_bench import Way, way
from labs_common.roof_choice import H200, choices
from labs_common.roof_fit import FITTED, ROUGH, cross_validated, fit, timings
from labs_common.roof_regret import RECORDED, Timed, regret, timed_problems

RANDOM = 15 * 30  # shapes that the costs were fitted to


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
    assert (table["ratio"] > 1.10).sum() <= 2 and table["ratio"].max() < 1.13


# Each was drawn and timed when the costs of that time had not seen it: median and worst of their plan, and of
# what was tuned, as the file says.
@pytest.mark.parametrize(
    ("draw", "median", "worst", "tuned_median", "tuned_worst"),
    [
        (31, 1.005, 1.097, 1.004, 1.023),
        (32, 1.006, 1.072, 1.004, 1.043),
        (33, 1.006, 1.263, 1.002, 1.014),
        (34, 1.001, 1.148, 1.000, 1.004),
        (35, 1.002, 1.459, 0.999, 1.022),
        (36, 1.008, 1.235, 1.001, 1.023),
        (37, 1.005, 1.109, 1.001, 1.016),
        (38, 1.004, 1.096, 1.000, 1.017),
        (39, 1.007, 1.074, 1.001, 1.070),
        (40, 1.002, 1.080, 1.000, 1.049),
        (41, 1.008, 1.130, 1.000, 1.008),
        (42, 1.005, 1.115, 0.999, 1.042),
    ],
)
def test_what_was_planned_and_tuned_before_a_draw_was_seen(draw, median, worst, tuned_median, tuned_worst):
    own, best = own_and_best(draw, "09")
    tuned, _ = own_and_best(draw, "09, tuned")

    assert len(own) == len(tuned) == 30
    assert (own / best).median() == pytest.approx(median, abs=0.001)
    assert (own / best).max() == pytest.approx(worst, abs=0.002)
    assert (tuned / best).median() == pytest.approx(tuned_median, abs=0.0006)
    assert (tuned / best).max() == pytest.approx(tuned_worst, abs=0.001)


def own_and_best(draw, what):
    """Microseconds of a contender, and of the fastest way, by problem."""
    (path,) = (RECORDED / "h200").glob(f"*random-30-{draw}.csv.xz")
    rows = pd.read_csv(path).set_index(["problem", "what"])
    assert rows["right"].all()
    ways = rows["median_us"][rows.index.get_level_values("what").str.contains("heads a block")]
    own = rows["median_us"].xs(what, level="what")
    return own, ways.groupby("problem").min().reindex(own.index)


def test_today_s_costs_on_shapes_that_they_have_not_seen(table):
    """README and notebook 09: of six draws four shapes are more than 10 % off."""
    unseen = regret(timed_problems(unseen=True)).set_index("problem")
    assert not set(unseen.index) & set(table["problem"])

    assert len(unseen) == 6 * 30 and unseen["ratio"].median() < 1.01 and unseen["ratio"].quantile(0.9) < 1.05
    off = unseen.index[unseen["ratio"] > 1.10]
    assert list(off) == ["random 37.1", "random 41.27", "random 42.2", "random 42.23"]
    assert unseen["ratio"].max() == pytest.approx(1.13, abs=0.005)


def test_what_is_tuned_by_the_recorded_times_is_near_the_best(timed, monkeypatch):
    """The tuner, given for each way the time that was recorded, on every random shape."""
    tuned = []
    for one in [*timed, *timed_problems(unseen=True)]:
        if one.problem.name in SHAPES:
            continue

        def recorded(engine, problem, inputs, those, times=one.times):
            us = [times.get(Way(c.block_heads, c.ring_slots, c.runs, first), np.inf) for c, first in those]
            return [roof_tune.Tried(*what, {}, time) for what, time in zip(those, us, strict=True)]

        monkeypatch.setattr(roof_tune, "_timed", recorded)
        found = roof_tune.tune(SimpleNamespace(device=Device()), one.problem, None)
        tuned.append(found[0].median_us / min(one.times.values()))

    assert len(tuned) == RANDOM + len(timed_problems(unseen=True))
    assert np.median(tuned) == 1 and np.quantile(tuned, 0.99) < 1.01 and max(tuned) < 1.035


def test_it_is_near_by_costs_that_were_not_fitted_to_the_problem(timed, table):
    """Each problem is chosen for by a fit that did without it."""
    unseen = cross_validated(timed, progress=list)

    assert sorted(zip(unseen["problem"], unseen["dtype"], strict=True)) == sorted(
        zip(table["problem"], table["dtype"], strict=True)
    )
    random = unseen[unseen["problem"].str.startswith("random")]
    assert len(random) == RANDOM
    assert random["ratio"].median() < 1.01 and random["ratio"].quantile(0.9) < 1.05
    assert (random["ratio"] > 1.10).sum() <= 3 and random["ratio"].max() < 1.17


def test_the_costs_are_what_a_fit_finds(timed):
    found = fit(timings(timed))

    for name in FITTED:
        assert getattr(found, name) == pytest.approx(getattr(H200, name), rel=0.03), name


def test_what_is_kept_from_the_fit_is_not_in_it(tmp_path, monkeypatch):
    (tmp_path / "h200").mkdir()
    for seed, kept in ((7, "unseen-"), (8, "")):
        row = {"problem": f"random {seed}.0", "dtype": "float16", "what": "09, 1 heads a block, 2 slots"}
        table = pd.DataFrame([{**row, "median_us": 9.0}])
        table.to_csv(tmp_path / "h200" / f"{kept}random-1-{seed}.csv.xz", index=False)
    monkeypatch.setattr(roof_regret, "RECORDED", tmp_path)

    for unseen, name in ((True, "random 7.0"), (False, "random 8.0")):
        assert [one.problem.name for one in timed_problems(unseen=unseen)] == [name]


def test_of_shapes_on_which_peers_were_measured_it_is_near(table):
    known = table[table["problem"].isin(SHAPES)]

    assert len(known) == 30  # each timed in two runs
    assert known["ratio"].median() < 1.015 and known["ratio"].max() < 1.045, known.to_string()


def test_equal_runs_that_count_segments_are_no_slower_than_by_tiles_alone():
    """Over 450 random shapes: as fast where no segment is short, three quarters faster at best."""
    ratios = []
    for path in sorted((RECORDED / "h200").glob("random-30-*.csv.xz")):
        rows = pd.read_csv(path).set_index(["problem", "what"])["median_us"]
        tiles, runs = "09, equal runs by tiles alone", "09, equal runs"
        ratios.append(rows.xs(tiles, level="what") / rows.xs(runs, level="what"))
    ratio = pd.concat(ratios)

    assert len(ratio) == RANDOM
    assert ratio.quantile(0.01) > 0.97 and ratio.median() == pytest.approx(1.017, abs=0.001)
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


def test_bursts_that_two_heads_share_are_read_twice_where_the_hint_lets_them_go():
    """Rows of 96 bytes, two runs a multiprocessor, two slots, two head sets a block or more: 3 to 10 %.

    With four slots less, with one head set nothing. One run a multiprocessor pays up to 8 % there, too, and
    elsewhere the hint gains in the median.
    """
    rows = pd.read_csv(RECORDED / "h200" / "shared_bursts.csv")
    key = ["problem", "dtype", "block_heads", "slots", "runs"]
    us = rows.set_index([*key, "evict_first"])["median_us"].unstack()
    costs = (us[1] / us[0] - 1).rename("costs").reset_index()
    shared = costs["problem"].isin({"random 36.9", "random 34.29", "random 25.3"})
    apart = (costs["runs"] == 2) & (costs["slots"] == 2) & (costs["block_heads"] > 1)

    assert shared.sum() > 50 and (~shared).sum() > 50
    assert len(rows["problem"].unique()) == 9
    assert costs["costs"][shared & apart].between(0.03, 0.10).all()
    assert costs["costs"][~shared & (costs["runs"] > 0)].median() < -0.01
    assert costs["costs"][~shared & apart].max() < 0
    two_runs = shared & (costs["runs"] == 2)
    assert costs["costs"][two_runs & (costs["slots"] == 4)].between(-0.02, 0.03).all()
    assert costs["costs"][two_runs & (costs["block_heads"] == 1)].max() < 0
    assert 0.07 < costs["costs"][shared & (costs["runs"] == 1)].max() < 0.08
