"""How far stage 09's choice is from the best way that was timed: ``python -m labs_common.roof_regret``.

``data/roof/<gpu>/`` holds what ``roof_bench`` timed there of the known shapes and of random ones. Shapes that
were drawn after the last fit (``unseen-…``) are kept from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from labs_common.known_shapes import SHAPES
from labs_common.plans import Device, ways_by_cost
from labs_common.problem import Problem
from labs_common.roof_bench import Way, random_shapes, way
from labs_common.roof_choice import H200, Choice, Costs

RECORDED = Path(__file__).resolve().parent.parent / "data" / "roof"
UNSEEN = "unseen-"


def recorded_table(name: str, gpu: str = "h200") -> pd.DataFrame:
    """A study of stage 09 that was measured and kept; empty where it was not.

    Args:
        name: of its CSV file.
        gpu: the kind that it was measured on.
    """
    path = RECORDED / gpu / f"{name}.csv"
    return pd.read_csv(path) if path.exists() else pd.DataFrame()


@dataclass(frozen=True)
class Timed:
    """A problem and the microseconds of every way that was timed."""

    problem: Problem
    times: dict[Way, float]

    def ways(self, device: Device, costs: Costs = H200) -> list[tuple[Choice, Way]]:
        """All that stage 09 may choose and that was timed, in its order."""
        found = []
        for one in ways_by_cost(self.problem, device, costs):
            key = Way(one.block_heads, one.ring_slots, one.runs, evict_first=True)
            if key in self.times:
                found.append((one, key))
        return found


def timed_problems(gpu: str = "h200", unseen: bool = False) -> list[Timed]:
    """What was recorded; empty where the lab was given without it.

    Args:
        gpu: on which.
        unseen: the shapes that the last fit has not seen, in place of all others.
    """
    found = []
    for path in sorted((RECORDED / gpu).glob("*.csv.xz")):
        name = path.name.removesuffix(".csv.xz")
        if name.startswith(UNSEEN) != unseen:
            continue
        timed = pd.read_csv(path)
        problems = _problems(name.removeprefix(UNSEEN))
        rows = timed[timed["what"].str.contains("heads a block")]
        for (problem, dtype), group in rows.groupby(["problem", "dtype"], sort=False):
            times = {way(row.what): row.median_us for row in group.itertuples()}
            found.append(Timed(problems[problem].replace(dtype=dtype), times))
    return found


def regret(timed: list[Timed], device: Device | None = None, costs: Costs = H200) -> pd.DataFrame:
    """A row for every problem: the choice's time over the best, both in microseconds.

    A way that was not timed is passed over for the next that the choice would make: ``first`` says whether it
    was the first.

    Args:
        timed: problems.
        device: that the choice is made for, by default an H200.
        costs: that it is made by.
    """
    rows = []
    for one in timed:
        choice, chosen = one.ways(device or Device(), costs)[0]
        best = min(one.times.values())
        kind = {0: "whole", 1: "equal runs", 2: "two equal runs", 3: "three equal runs"}[chosen.runs]
        rows.append(
            {
                "problem": one.problem.name,
                "dtype": one.problem.dtype,
                "chosen": f"{kind}, {chosen.block_heads} heads a block, {chosen.slots} slots",
                "chosen_us": one.times[chosen],
                "best_us": best,
                "ratio": one.times[chosen] / best,
                "first": choice == ways_by_cost(one.problem, device or Device(), costs)[0],
            }
        )
    columns = ["problem", "dtype", "chosen", "chosen_us", "best_us", "ratio", "first"]
    return pd.DataFrame(rows, columns=columns)


def _problems(file: str) -> dict[str, Problem]:
    if file.startswith("known"):
        return SHAPES
    count, seed = file.removeprefix("random-").split("-")
    return {problem.name: problem for problem in random_shapes(int(count), int(seed))}


def main() -> None:
    """Print the tables and their quantiles."""
    for words, unseen in (("what the costs were fitted to", False), ("drawn after the fit", True)):
        table = regret(timed_problems(unseen=unseen))
        if table.empty:
            print(f"{words}: no timings here: {RECORDED} holds none")
            continue
        print(f"{words}:")
        print(
            table.sort_values("ratio", ascending=False).to_string(index=False, float_format="{:.3f}".format)
        )
        print(f"{(~table['first']).sum()} of {len(table)} by their second choice: the first was not timed")
        print(table["ratio"].describe(percentiles=(0.5, 0.9)).to_string(float_format="{:.3f}".format))


if __name__ == "__main__":
    main()
