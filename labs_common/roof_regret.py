"""How far stage 09's choice is from the best way that was timed: ``python -m labs_common.roof_regret``.

``data/roof/<gpu>/`` holds what ``roof_bench`` timed there of the known shapes and of random ones.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from labs_common.known_shapes import SHAPES
from labs_common.plans import RING_WARPS, Device, ring_tile_tokens
from labs_common.problem import Problem
from labs_common.roof_bench import Way, random_shapes, way
from labs_common.roof_choice import choices

RECORDED = Path(__file__).resolve().parent.parent / "data" / "roof"


def regret(gpu: str = "h200", device: Device | None = None) -> pd.DataFrame:
    """A row for every recorded problem: the choice's time over the best, both in microseconds.

    A way that was not timed is passed over for the next that the choice would make; one that was timed with
    other slots or the other L2 policy alone counts as the nearest of these.
    """
    device = device or Device()
    rows = []
    for path in sorted((RECORDED / gpu).glob("*.csv.xz")):
        timed = pd.read_csv(path)
        problems = _problems(path.name.removesuffix(".csv.xz"))
        for (name, dtype), group in timed[timed["what"].str.contains("heads a block")].groupby(
            ["problem", "dtype"], sort=False
        ):
            times = {way(row.what): row.median_us for row in group.itertuples()}
            problem = problems[name].replace(dtype=dtype)
            chosen, microseconds = _timed(problem, device, times)
            best = min(times.values())
            rows.append(
                {
                    "problem": name,
                    "dtype": dtype,
                    "chosen": chosen,
                    "chosen_us": microseconds,
                    "best_us": best,
                    "ratio": microseconds / best,
                }
            )
    return pd.DataFrame(rows)


def _problems(file: str) -> dict[str, Problem]:
    if file == "known":
        return SHAPES
    _, count, seed = file.split("-")
    return {problem.name: problem for problem in random_shapes(int(count), int(seed))}


def _timed(problem: Problem, device: Device, times: dict[Way, float]) -> tuple[str, float]:
    """The first choice that was timed, in words, and its microseconds."""
    ways = choices(
        problem, device.multiprocessors, device.max_shared_bytes, RING_WARPS, ring_tile_tokens(problem)
    )
    for one in ways:
        alike = [k for k in times if (k.block_heads, k.runs) == (one.block_heads, one.runs)]
        if alike:
            nearest = min(
                alike,
                key=lambda k: (k.evict_first != one.evict_first, abs(k.slots - one.ring_slots), k.slots),
            )
            kind = {0: "whole", 1: "equal runs", 2: "two equal runs"}[one.runs]
            return f"{kind}, {one.block_heads} heads a block, {nearest.slots} slots", times[nearest]
    raise ValueError(f"{problem.name}: nothing that stage 09 may choose was timed")


if __name__ == "__main__":
    table = regret()
    if table.empty:
        raise SystemExit(
            "data/roof has no timings here, as in an edition for students: nothing to compare with"
        )
    table = table.sort_values("ratio", ascending=False)
    print(table.to_string(index=False, float_format="{:.3f}".format))
    print(table["ratio"].describe(percentiles=(0.5, 0.9)).to_string(float_format="{:.3f}".format))
