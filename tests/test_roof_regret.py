"""Stage 09's choice against everything that was timed on the H200."""

import pytest

from labs_common.known_shapes import SHAPES
from labs_common.roof_bench import way
from labs_common.roof_regret import regret


@pytest.fixture(scope="module")
def table():
    return regret()


def test_the_choice_is_near_the_best_way_that_was_timed(table):
    assert len(table) == 3 * len(SHAPES) + 36 + 30
    assert (table["ratio"] >= 1).all()
    assert table["ratio"].median() < 1.01
    assert table["ratio"].quantile(0.9) < 1.06
    assert table["ratio"].max() < 1.25


def test_of_shapes_on_which_peers_were_measured_it_is_within_a_hundredth(table):
    known = table[table["problem"].isin(SHAPES)]

    assert (known["ratio"] < 1.011).all(), known.to_string()


def test_a_label_says_its_options():
    assert way("09, 4 heads a block, 3 slots") == (4, 3, False, True)
    assert way("09, 8 heads a block, 2 slots, whole, not evicted first") == (8, 2, True, False)
