"""Fit the costs that stage 09 chooses by to recorded timings: ``python -m labs_common.roof_fit``.

Prints the costs, and by cross-validation how far the choice is from the best way on problems that its costs
were not fitted to.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from tqdm import tqdm

from labs_common.known_shapes import SHAPES
from labs_common.plans import Device, way_arguments
from labs_common.roof_bench import Way
from labs_common.roof_choice import H200, Costs, cost
from labs_common.roof_regret import Timed, regret, timed_problems
from labs_common.roof_work import ways

FITTED = tuple(f.name for f in dataclasses.fields(Costs) if f.name != "bytes_per_us")
FOLDS = 10
NEAR = 4.0  # how fast a way counts less that is slower than the best: by e for every quarter
FAR = 0.03  # what the slowest counts for
OUTLIER = 0.15  # relative error from which a way pulls no more
KNOWN = 3.0  # weight of a shape on which peers are measured over a random one

# Where a fit begins, so that it knows nothing of the problems that are kept from it.
ROUGH = Costs(
    **{"bytes_in_flight": 1e4, "latency": 0.5, "elsewhere": 5.0, "late_partial": 0.1},
    **dict.fromkeys(("issue_float32", "issue_half", "issue_fp8"), 5e3),
    **dict.fromkeys(("tile_float32", "tile_half", "tile_fp8", "ring"), 0.5),
    **dict.fromkeys(("product_float32", "dimension_half", "dimension_fp8"), 1e-3),
    **dict.fromkeys(("early", "again", "split"), 0.1),
    **dict.fromkeys(("again_later", "segment", "segment_output", "block"), 1.0),
    **dict.fromkeys(("call", "cut", "partial"), 2.0),
)


@dataclass(frozen=True)
class Timings:
    """Every way that was timed, of all problems.

    Attributes:
        work: ``[ways]`` of `roof_work.WAY`.
        us: ``[ways]`` microseconds.
        slower: ``[ways]`` these over the best of the same problem.
        problem: ``[ways]`` whose way it is.
        weight: ``[ways]`` of its problem.
    """

    work: np.ndarray
    us: np.ndarray
    slower: np.ndarray
    problem: np.ndarray
    weight: np.ndarray

    def of(self, problems: np.ndarray) -> Timings:
        """Those of some problems alone."""
        mine = np.isin(self.problem, problems)
        return Timings(*(getattr(self, field.name)[mine] for field in dataclasses.fields(self)))


def timings(timed: Sequence[Timed]) -> Timings:
    """All that was timed, in the order of the problems."""
    parts = []
    for number, one in enumerate(timed):
        work = ways(*way_arguments(one.problem, Device()))
        names = ["block_heads", "ring_slots", "runs"]
        us = np.array([one.times.get(Way(*way.item(), evict_first=True), np.nan) for way in work[names]])
        mine = np.isfinite(us)
        slower = us[mine] / min(one.times.values())
        whose, weight = number, KNOWN if one.problem.name in SHAPES else 1.0
        parts.append((work[mine], us[mine], slower, *(np.full(mine.sum(), n) for n in (whose, weight))))
    return Timings(*map(np.concatenate, zip(*parts, strict=True)))


def fit(timed: Timings, start: Costs = ROUGH, rounds: int = 60) -> Costs:
    """The costs whose times are nearest to what was timed: Levenberg-Marquardt on logarithms."""
    values = np.log([getattr(start, name) for name in FITTED])
    error, damping = _errors(timed, _costs(values)), 1e-2
    for _ in range(rounds):
        slopes = np.stack(
            [(_errors(timed, _costs(values + 1e-3 * step)) - error) / 1e-3 for step in np.eye(len(FITTED))],
            axis=1,
        )
        square, down = slopes.T @ slopes, slopes.T @ error
        while damping < 1e4:
            step = np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-6), -down)
            there = _errors(timed, _costs(values + np.clip(step, -0.5, 0.5)))
            if there @ there < error @ error:
                break
            damping *= 4
        else:
            break
        gained = error @ error - there @ there
        values, error, damping = values + np.clip(step, -0.5, 0.5), there, damping / 4
        if gained < 1e-4 * (error @ error):
            break
    return _costs(values)


def _costs(values: np.ndarray) -> Costs:
    return dataclasses.replace(H200, **dict(zip(FITTED, np.exp(values).tolist(), strict=True)))


def _errors(timed: Timings, costs: Costs) -> np.ndarray:
    """Of every way its relative error in time, those of the fast ones more than of others."""
    weight = np.sqrt(timed.weight * (np.exp(-NEAR * (timed.slower - 1)) + FAR))
    return weight * np.clip(np.log(cost(timed.work, costs) / timed.us), -OUTLIER, OUTLIER)


def cross_validated(timed: Sequence[Timed], folds: int = FOLDS, progress: Callable = tqdm) -> pd.DataFrame:
    """``regret`` of every problem by costs that were fitted to the problems of other folds.

    Args:
        timed: problems; the same one always falls into the same fold.
        folds: parts, each left out of one fit.
        progress: wraps the folds.
    """
    keys = [(one.problem.name, one.problem.dtype) for one in timed]
    names = list(dict.fromkeys(keys))  # one that was timed twice is one problem
    fold_of = dict(zip(names, np.random.default_rng(0).permutation(len(names)) % folds, strict=True))
    fold = np.array([fold_of[key] for key in keys])
    everything, tables = timings(timed), []
    for left in progress(range(folds)):
        costs = fit(everything.of(np.flatnonzero(fold != left)))
        held_out = [one for one, its in zip(timed, fold, strict=True) if its == left]
        tables.append(regret(held_out, costs=costs))
    return pd.concat(tables, ignore_index=True)


def main() -> None:
    """Print what was fitted, and the quantiles of choosing by costs that had not seen the problem."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--folds", type=int, default=FOLDS, help="0: only the fit")
    options = parser.parse_args()
    if options.folds < 0 or options.folds == 1:
        raise SystemExit(f"--folds {options.folds}: 0, or at least 2")
    timed = timed_problems()
    if not timed:
        raise SystemExit("no timings here: data/roof holds none")
    if options.folds:
        table = cross_validated(timed, options.folds)
        print(table.nlargest(8, "ratio").to_string(index=False, float_format="{:.3f}".format))
        for words, known in (("random shapes", False), ("shapes that peers are measured on", True)):
            print(f"{words}:")
            ratio = table.loc[table["problem"].isin(SHAPES) == known, "ratio"]
            print(ratio.describe(percentiles=(0.5, 0.9)).to_string(float_format="{:.3f}".format))
    for name, value in dataclasses.asdict(fit(timings(timed))).items():
        print(f"{name:16} {value:.4g}")


if __name__ == "__main__":
    main()
