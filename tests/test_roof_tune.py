"""Ways that are timed on the GPU at hand: which, and what comes back. The times are made up."""

import numpy as np
import pytest
from rich.console import Console

from labs_common import roof_tune
from labs_common.plans import Device, ways_by_cost
from labs_common.problem import Problem
from labs_common.roof_tune import parse_contexts, table, tune
from labs_common.timing import Timing

PROBLEM = Problem(32, 8, 128, 16, (4096,) * 64, "float16")


class Engine:
    """Binds nothing; a call is its plan."""

    xp, device = np, Device()

    def build(self, compared):
        list(compared)

    def bind(self, stage, problem, plan, arrays, scale):
        return plan


class Inputs:
    sets, scale = ({},), 1.0


@pytest.fixture
def timed(monkeypatch):
    """Gives a place for ``seconds(plan)``, and all plans that were timed, in order."""
    seen = []

    def by_plan(xp, calls, rounds, between, graph_s):
        plans = {name: those[0] for name, those in calls.items()}
        seen.extend(plans.values())
        return {
            name: Timing(by_plan.seconds(plan), by_plan.seconds(plan), 1, rounds, 1)
            for name, plan in plans.items()
        }

    monkeypatch.setattr(roof_tune, "time_gpu", by_plan)
    monkeypatch.setattr(roof_tune, "plain_reading", lambda engine: None)
    by_plan.seen = seen
    return by_plan


def shape(plan):
    return plan.defines["BLOCK_HEADS"], plan.defines["RING_SLOTS"], plan.launches[0].grid[0]


def test_the_cheapest_and_one_of_each_kind_are_timed(timed):
    timed.seconds = lambda plan: 1e-4
    ways = ways_by_cost(PROBLEM, Device())

    found = tune(Engine(), PROBLEM, Inputs(), ways=4)

    tried = [one.choice for one in found]
    assert all(way in tried for way in ways[:4])
    kinds = list(dict.fromkeys((way.block_heads, way.runs) for way in ways))
    assert {(one.block_heads, one.runs) for one in tried} >= set(kinds[:4])
    assert len(timed.seen) < len(ways)
    assert len({(one.choice, one.evict_first) for one in found}) == len(found)


def test_a_way_that_costs_more_wins_where_it_is_faster(timed):
    """Four heads a block are timed as one of their kind; their longest ring in the second round."""
    timed.seconds = lambda plan: 1e-4 if shape(plan) == (4, 4, 128) else 2e-4 if shape(plan)[0] == 4 else 3e-4

    best = tune(Engine(), PROBLEM, Inputs())[0]

    assert best.choice.whole and best.choice.block_heads == 4 and best.choice.ring_slots == 4
    assert best.median_us == pytest.approx(100)


def test_the_usual_policy_of_l2_wins_where_it_is_faster(timed):
    timed.seconds = lambda plan: 2e-4 if plan.defines["EVICT_FIRST"] else 1e-4

    found = tune(Engine(), PROBLEM, Inputs())

    assert not found[0].evict_first and found[-1].evict_first
    console = Console(width=120)
    with console.capture() as shown:
        console.print(table(found))
    assert "as usual" in shown.get().splitlines()[3] and "evicted first" in shown.get()


def test_options_hold_for_other_lengths(timed):
    timed.seconds = lambda plan: 1e-4 * plan.launches[0].grid[0]
    options = tune(Engine(), PROBLEM, Inputs())[0].options

    plans = [
        roof_tune.STAGE.plan(PROBLEM.replace(context_lengths=lengths), Device(), **options)
        for lengths in ((4096,) * 64, (4097,) * 64, (5000, 17) * 32)
    ]

    assert len({shape(plan)[:2] for plan in plans}) == 1
    assert len({tuple(plan.defines.items()) for plan in plans}) == 1


@pytest.mark.parametrize("ways", [0, -1, 1.5, True])
def test_ways_that_are_none_are_refused(ways):
    with pytest.raises(ValueError, match="ways"):
        tune(Engine(), PROBLEM, Inputs(), ways=ways)


def test_contexts_are_read():
    assert parse_contexts("4096x2, 17") == (4096, 4096, 17)
    for wrong in ("", "x2", "4096x", "-1", "12,,3", "a"):
        with pytest.raises(ValueError, match="contexts"):
            parse_contexts(wrong)
