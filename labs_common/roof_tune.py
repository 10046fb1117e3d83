"""Stage 09 tuned on the GPU at hand: the ways that its cost finds cheapest, timed against each other.

A cost is an estimate, and cards of one kind differ. What comes back are options for ``stage.plan``: they hold
for the steps that follow, whose contexts are hardly longer, and cost those nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labs_common.device_inputs import DeviceInputs
from labs_common.plans import Device, way_options, ways_by_cost
from labs_common.problem import Problem
from labs_common.roof_choice import Choice
from labs_common.stages import ROOF
from labs_common.timing import plain_reading, time_gpu

STAGE = ROOF[-1]
WAYS = 6  # that are timed first
ROUNDS = 11
GRAPH_S = 2e-4  # of a graph, about, at least


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
    """Time the cheapest ways, then other ring lengths and L2's usual policy for the fastest of them.

    Args:
        engine: a GPU, of ``roof_bench.UncheckedGpu``.
        problem: one that stage 09 takes.
        inputs: of the problem, on the GPU; sets that together pass the L2 cache.
        ways: that are timed first.

    Returns:
        All that were timed, the fastest first.

    Raises:
        ValueError: ``ways`` is below 1, or the stage does not take the problem.
    """
    if isinstance(ways, bool) or not isinstance(ways, int) or ways < 1:
        raise ValueError(f"ways={ways!r} must be a whole number of at least 1")
    cheapest = ways_by_cost(problem, engine.device)
    first = _timed(engine, problem, inputs, [(choice, True) for choice in cheapest[:ways]])
    best = min(first, key=lambda one: one.median_us).choice
    rings = [c for c in cheapest[ways:] if (c.block_heads, c.runs) == (best.block_heads, best.runs)]
    second = _timed(
        engine, problem, inputs, [(best, True), (best, False), *((choice, True) for choice in rings)]
    )
    rest = [one for one in first if one.choice is not best]
    return sorted([*second, *rest], key=lambda one: one.median_us)


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
    timings = time_gpu(engine.xp, calls, ROUNDS, between=plain_reading(engine), graph_s=GRAPH_S)
    return [
        Tried(choice, evict_first, options[number], 1e6 * timings[number].median_s)
        for number, (choice, evict_first) in enumerate(those)
    ]
