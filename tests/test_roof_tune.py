"""Ways that are timed on the GPU at hand: which, and what comes back. The times are made up."""

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from labs_common import device_inputs, roof_bench, roof_tune
from labs_common.cli import app
from labs_common.plans import Device, ways_by_cost
from labs_common.problem import Problem
from labs_common.roof_tune import parse_contexts, table, tune, tuned_plan
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
    monkeypatch.setattr(roof_tune, "refill_l2", lambda engine: None)
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


def test_a_tuned_plan_is_that_of_the_fastest_way(timed, monkeypatch):
    timed.seconds = lambda plan: 1e-4 if shape(plan) == (4, 4, 128) else 2e-4
    asked = []
    monkeypatch.setattr(roof_tune, "device_inputs", lambda *what: asked.append(what) or Inputs())

    plan = tuned_plan(Engine(), PROBLEM)

    assert shape(plan) == (4, 4, 128) and plan.defines["EVICT_FIRST"] == 1
    assert asked == [(np, PROBLEM, 2)]


def test_a_way_that_costs_more_wins_where_it_is_faster(timed):
    """Four heads a block are timed as one of their kind; their longest ring in the second round."""
    timed.seconds = lambda plan: 1e-4 if shape(plan) == (4, 4, 128) else 2e-4 if shape(plan)[0] == 4 else 3e-4

    best = tune(Engine(), PROBLEM, Inputs())[0]

    assert best.choice.whole and best.choice.block_heads == 4 and best.choice.ring_slots == 4
    assert best.median_us == pytest.approx(100)


def test_all_rings_of_the_three_fastest_kinds_are_timed(timed):
    """The fastest is a ring that the cost finds slowest, of a kind that the first round finds third."""
    of_third = [way for way in ways_by_cost(PROBLEM, Device()) if way.whole and way.block_heads == 4]
    slowest = of_third[-1].ring_slots

    def seconds(plan):
        heads, slots, blocks = shape(plan)
        kinds = {(2, 256): 0, (1, 512): 1, (4, 128): 2}  # of whole sequences
        return (
            1e-5
            if (heads, blocks, slots) == (4, 128, slowest)
            else 1e-4 + 1e-5 * kinds.get((heads, blocks), 9)
        )

    timed.seconds = seconds
    best = tune(Engine(), PROBLEM, Inputs(), ways=1)[0]

    assert len(of_third) == 3 and slowest != of_third[0].ring_slots and best.choice == of_third[-1]


def test_the_usual_policy_of_l2_wins_where_it_is_faster(timed):
    timed.seconds = lambda plan: 2e-4 if plan.defines["EVICT_FIRST"] else 1e-4

    found = tune(Engine(), PROBLEM, Inputs())

    assert not found[0].evict_first and any(one.evict_first for one in found)
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


def test_the_second_round_decides(timed):
    """Clocks that are twice as fast in the first round make nobody there the fastest."""
    begun = []

    def seconds(plan):
        begun.append(plan)
        return (1e-4 if len(begun) <= 2 * 15 else 2e-4) * (1 + shape(plan)[0] / 100)

    timed.seconds = seconds
    found = tune(Engine(), PROBLEM, Inputs())

    assert found[0].choice.block_heads == 1 and found[0].median_us > 200


def test_nothing_is_timed_without_a_sequence(timed):
    with pytest.raises(ValueError, match="nothing to time"):
        tune(Engine(), PROBLEM.replace(context_lengths=()), Inputs())


@pytest.mark.parametrize("ways", [0, -1, 1.5, True])
def test_ways_that_are_none_are_refused(ways):
    with pytest.raises(ValueError, match="ways"):
        tune(Engine(), PROBLEM, Inputs(), ways=ways)


def test_contexts_are_read():
    assert parse_contexts("4096x2, 17") == (4096, 4096, 17)
    for wrong in ("", "x2", "4096x", "-1", "12,,3", "a", "4096x0"):
        with pytest.raises(ValueError, match="contexts"):
            parse_contexts(wrong)


def tuned(monkeypatch, *words):
    """``palab bench tune``, on the engine that binds nothing."""
    monkeypatch.setattr(roof_bench, "UncheckedGpu", Engine)
    monkeypatch.setattr(device_inputs, "device_inputs", lambda xp, problem, sets: Inputs())
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bench", "tune", *words])


def test_the_command_prints_ways_and_the_call_that_takes_the_fastest(monkeypatch, timed):
    timed.seconds = lambda plan: 1e-4 if shape(plan)[:2] == (2, 3) else 3e-4

    result = tuned(monkeypatch, "4096x64")

    assert result.exit_code == 0, result.output
    assert "whole sequences" in result.output and "200.0 %" in result.output
    last = result.output.strip().splitlines()[-1]
    assert last.startswith("stage.plan(problem, device, whole=")
    assert "block_heads=2, ring_slots=3" in last and last.endswith("evict_first=True)")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("40x",), "TOKENSxSEQUENCES"),
        (("40", "--dtype", "fp8"), "dtype"),
        (("40", "--head-dim", "72"), "72"),
        (("40", "--kv-heads", "5"), "kv_heads"),
        (("40", "--ways", "0"), "ways"),
    ],
)
def test_the_command_says_what_it_cannot_take(monkeypatch, timed, words, said):
    result = tuned(monkeypatch, *words)

    assert result.exit_code != 0
    assert said in result.output + str(result.exception)
    assert timed.seen == []


def test_input_sets_pass_the_cache():
    """By hand: 64 x 4,096 tokens are 1.07 GB; of 17 MB, sixteen are 270 MB."""
    small = PROBLEM.replace(context_lengths=(1024,) * 4)

    assert roof_tune.sets_past_l2(PROBLEM) == 2
    assert roof_tune.sets_past_l2(small) * small.minimum_bytes > 256 << 20
    assert roof_tune.sets_past_l2(PROBLEM.replace(context_lengths=(1,))) == 32
