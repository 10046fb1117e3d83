"""Stage 09's choice against everything that was timed on the H200."""

import pandas as pd
import pytest

from labs_common.known_shapes import SHAPES
from labs_common.roof_bench import way
from labs_common.roof_regret import RECORDED, regret


@pytest.fixture(scope="module")
def table():
    return regret()


def test_the_choice_is_near_the_best_way_that_was_timed(table):
    assert len(table) == 3 * len(SHAPES) + 36 + 30 + 60 + 30
    assert (table["ratio"] >= 1).all()
    assert table["ratio"].median() < 1.01
    assert table["ratio"].quantile(0.9) < 1.09
    assert table["ratio"].max() < 1.25


@pytest.mark.parametrize(("shapes", "worst"), [(r"random 3\.[345].", 1.10), (r"random 4\.", 1.14)])
def test_it_is_near_on_shapes_that_the_fit_has_not_seen(table, shapes, worst):
    unseen = table[table["problem"].str.match(shapes)]

    assert len(unseen) == 30
    assert unseen["ratio"].median() < 1.03 and unseen["ratio"].max() < worst, unseen.to_string()


def test_the_choice_itself_was_timed_beside_every_other_way():
    timed = pd.read_csv(RECORDED / "h200" / "random-30-4.csv.xz").set_index(["problem", "what"])["median_us"]
    own = timed.xs("09", level="what")
    best = timed[timed.index.get_level_values("what").str.contains("heads a block")].groupby("problem").min()
    ratio = own / best.reindex(own.index)

    assert len(ratio) == 30 and ratio.notna().all()
    assert ratio.median() < 1.03 and ratio.quantile(0.9) < 1.06 and ratio.max() < 1.12


def test_of_shapes_on_which_peers_were_measured_it_is_within_a_hundredth(table):
    known = table[table["problem"].isin(SHAPES)]

    assert (known["ratio"] < 1.011).all(), known.to_string()


def test_a_label_says_its_options():
    assert way("09, 4 heads a block, 3 slots") == (4, 3, 1, True)
    assert way("09, 4 heads a block, 2 slots, two runs") == (4, 2, 2, True)
    assert way("09, 8 heads a block, 2 slots, whole, not evicted first") == (8, 2, 0, False)
