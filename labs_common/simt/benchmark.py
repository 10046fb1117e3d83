"""How fast the simulator runs: lane-instructions per second, by engine and cores, with counters on.

A lane-instruction is an executed PTX instruction times its active lanes. Knows launches only; where they come
from (the lab's stages, anything else) is the caller's business.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from . import llvm_engine, numpy_engine
from .launch import Launch, Result
from .memory import AddressSpace

WORK = 2e9  # lane-instructions of a run: long beside what a launch costs by itself
PAIRS = 7  # interleaved runs of one core and of several, for the speed-up


@dataclass(frozen=True)
class Case:
    """A launch to be timed.

    Attributes:
        stage, problem: names for the table.
        launch, space, addresses: as an engine's `run` takes them.
        keep: whatever must live as long as the case, such as the arrays that the launch points into.
    """

    stage: str
    problem: str
    launch: Launch
    space: AddressSpace
    addresses: dict[str, int]
    keep: object = None

    def sampled(self, blocks: int | None) -> Case:
        """The same with at most so many of its blocks, spread evenly over the grid."""
        total = self.launch.block_count
        if blocks is None or blocks >= total:
            return self
        chosen = np.unique(np.linspace(0, total - 1, blocks).astype(np.int64))
        return replace(self, launch=replace(self.launch, blocks=tuple(int(b) for b in chosen)))

    def of_work(self, lane_instructions: float) -> Case:
        """The same with as many of its blocks as execute about so many lane-instructions; at least 8."""
        some = run_once(self.sampled(8), "llvm", 1).counters
        each = some.lane_instructions / max(1, some.blocks_run)
        return self.sampled(max(8, round(lane_instructions / max(1.0, each))))

    def checked_by(self, checks: Iterable[str]) -> Case:
        """The same with other checks."""
        return replace(self, launch=replace(self.launch, checks=frozenset(checks)))


def run_once(case: Case, engine: str, cores: int) -> Result:
    """One run on an engine, "llvm" or "numpy" (which has one core)."""
    if engine == "numpy":
        return numpy_engine.run(case.launch, case.space, case.addresses)
    return llvm_engine.run(case.launch, case.space, case.addresses, workers=cores)


def measure(
    cases: Iterable[Case], engine: str = "llvm", cores: int = 1, repeats: int = 3
) -> list[dict[str, object]]:
    """The best of some runs of each case.

    Returns one dict for each: stage, problem, engine, cores, checks, blocks, blocks_of_grid,
    lane_instructions, seconds, lane_instructions_per_s, and grid_seconds (what the whole grid would take at
    that rate).
    """
    rows = []
    for case in cases:
        _warm(case, engine)
        results = [run_once(case, engine, cores) for _ in range(repeats)]
        seconds = min(r.seconds for r in results)
        counters = results[0].counters
        lanes = counters.lane_instructions
        rows.append(
            {
                "stage": case.stage,
                "problem": case.problem,
                "engine": engine,
                "cores": cores,
                "checks": sorted(case.launch.checks),
                "blocks": counters.blocks_run,
                "blocks_of_grid": counters.blocks_total,
                "lane_instructions": lanes,
                "seconds": seconds,
                "lane_instructions_per_s": lanes / seconds,
                "grid_seconds": seconds * counters.scaled(),
            }
        )
    return rows


def speedup(case: Case, cores: int, pairs: int = PAIRS, run: Callable = run_once) -> float:
    """Time on one core over time on several: the median of interleaved pairs."""
    _warm(case, "llvm")
    ratios = []
    for _ in range(pairs):
        one = run(case, "llvm", 1).seconds
        several = run(case, "llvm", cores).seconds
        ratios.append(one / several)
    return statistics.median(ratios)


def _warm(case: Case, engine: str) -> None:
    """Have the optimised code, and the memory of the case in the machine's."""
    if engine == "llvm":
        llvm_engine.prepare(case.launch).settle()
    run_once(case.sampled(1), engine, 1)
