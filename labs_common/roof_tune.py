"""Stage 09 tuned on the GPU at hand: the ways that its cost finds cheapest, timed against each other.

A cost is an estimate, and cards of one kind differ. What comes back are options for ``stage.plan``: they hold
for the steps that follow, whose contexts are hardly longer, and cost those nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from labs_common.device_inputs import DeviceInputs, device_inputs
from labs_common.plans import Device, Plan, way_options, ways_by_cost
from labs_common.problem import Problem
from labs_common.roof_choice import Choice
from labs_common.stages import ROOF
from labs_common.timing import L2_BYTES, refill_l2, time_gpu

STAGE = ROOF[-1]
WAYS = 6  # that are timed first, beside one of each kind
FINAL = 3  # that are timed again, with all rings of their kinds
NEAR = 1.4  # times the cheapest, up to which a kind is timed
ROUNDS = 15
GRAPH_S = 2e-4  # of a graph, about, at least
MOST_SETS = 32


@dataclass(frozen=True)
class Tried:
    """One way that was timed.

    Attributes:
        choice: what the cost says of it.
        evict_first: whether L2 drops keys and values first.
        options: of ``stage.plan``.
        median_us: of a call, its merge included.
    """

    choice: Choice
    evict_first: bool
    options: Mapping[str, Any]
    median_us: float


def tune(engine: Any, problem: Problem, inputs: DeviceInputs, ways: int = WAYS) -> list[Tried]:
    """Time the cheapest ways, then the fastest of them once more, with all their rings and L2's other policy.

    Among the first is the cheapest of each kind, of as many heads a block and runs: where the cost is wrong
    about one way, it is about all of its kind. Blocks of whole sequences with the most heads, which read
    pages from one end to the other, are timed with both policies: either has been ahead by 3 % and more.

    Args:
        engine: a GPU, of ``roof_bench.UncheckedGpu``.
        problem: one that stage 09 takes.
        inputs: of the problem, on the GPU; sets that together pass the L2 cache.
        ways: that are timed first, one of each kind not counted.

    Returns:
        All that were timed: the second round, the fastest first, then who did not come so far.

    Raises:
        ValueError: ``ways`` is below 1, the batch is empty, or the stage does not take the problem.
    """
    if not problem.batch:
        raise ValueError("context_lengths=(): there is nothing to time without a sequence")
    if isinstance(ways, bool) or not isinstance(ways, int) or ways < 1:
        raise ValueError(f"ways={ways!r} must be a whole number of at least 1")
    cheapest = ways_by_cost(problem, engine.device)
    kinds: dict[tuple[int, int], Choice] = {}
    for choice in cheapest:
        kinds.setdefault(_kind(choice), choice)
    near = [choice for choice in kinds.values() if choice.cost <= NEAR * cheapest[0].cost]
    tried = [(choice, True) for choice in dict.fromkeys([*cheapest[:ways], *near])]
    most = max(choice.block_heads for choice in near)
    tried += [(choice, False) for choice in near if choice.whole and choice.block_heads == most]
    first = sorted(_timed(engine, problem, inputs, tried), key=lambda one: one.median_us)
    best = first[0]
    final = [(one.choice, one.evict_first) for one in first[:FINAL]]
    final.append((best.choice, not best.evict_first))
    for one in first[:FINAL]:
        rings = [choice for choice in cheapest if _kind(choice) == _kind(one.choice)]
        final += [(choice, one.evict_first) for choice in rings]
    final = list(dict.fromkeys(final))
    # Times of the two rounds are not of the same minute: the second alone says which is the fastest.
    second = sorted(_timed(engine, problem, inputs, final), key=lambda one: one.median_us)
    return [*second, *(one for one in first if (one.choice, one.evict_first) not in final)]


def tuned_plan(engine: Any, problem: Problem) -> Plan:
    """As ``stage.plan``, by timing instead of cost alone: seconds, once for a shape.

    Args:
        engine: a GPU, of ``roof_bench.UncheckedGpu``.
        problem: one that stage 09 takes.

    Raises:
        ValueError: as of ``tune``.
    """
    inputs = device_inputs(engine.xp, problem, sets_past_l2(problem))
    return STAGE.plan(problem, engine.device, **tune(engine, problem, inputs)[0].options)


def _kind(choice: Choice) -> tuple[int, int]:
    return choice.block_heads, choice.runs


def _timed(
    engine: Any, problem: Problem, inputs: DeviceInputs, those: Sequence[tuple[Choice, bool]]
) -> list[Tried]:
    """Each choice and policy, timed by turns."""
    device: Device = engine.device
    options = [{**way_options(choice, device), "evict_first": evict_first} for choice, evict_first in those]
    plans = [STAGE.plan(problem, device, **one) for one in options]
    engine.build(("", STAGE, plan) for plan in plans)
    calls = {
        number: [engine.bind(STAGE, problem, plan, one, inputs.scale) for one in inputs.sets]
        for number, plan in enumerate(plans)
    }
    timings = time_gpu(engine.xp, calls, ROUNDS, between=refill_l2(engine), graph_s=GRAPH_S)
    return [
        Tried(choice, evict_first, options[number], 1e6 * timings[number].median_s)
        for number, (choice, evict_first) in enumerate(those)
    ]


def sets_past_l2(problem: Problem) -> int:
    """Input sets that together pass any L2 cache, at least two and, of very small problems, at most 32."""
    return max(2, min(MOST_SETS, -(-L2_BYTES // max(1, problem.minimum_bytes))))


def table(found: Sequence[Tried]) -> Table:
    """What was timed beside its cost, in the order of ``found``."""
    shown = Table("work", "head sets a block", "ring slots", "L2", "cost µs", "median µs", "over the fastest")
    for column in shown.columns[1:3] + shown.columns[4:]:
        column.justify = "right"
    best = min(one.median_us for one in found)
    for one in found:
        runs = one.choice.runs
        shown.add_row(
            f"{runs} equal runs a multiprocessor" if runs else "whole sequences",
            str(one.choice.block_heads),
            str(one.choice.ring_slots),
            "evicted first" if one.evict_first else "as usual",
            f"{one.choice.cost:,.1f}",
            f"{one.median_us:,.1f}",
            f"{100 * (one.median_us / best - 1):.1f} %",
        )
    return shown


def parse_contexts(text: str) -> tuple[int, ...]:
    """``"4096x2,17"`` as ``(4096, 4096, 17)``; ValueError for anything else."""
    lengths: list[int] = []
    for word in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:x([1-9]\d*))?\s*", word)
        if match is None:
            raise ValueError(
                f"contexts {text!r}: allowed are TOKENS or TOKENSxSEQUENCES, by commas: 900,17,4096x8"
            )
        lengths += [int(match[1])] * int(match[2] or 1)
    return tuple(lengths)
