"""Fit the costs that stage 09 chooses by to recorded timings: ``python -m labs_common.roof_fit`` (minutes).

Prints the costs, and by cross-validation how far the choice is from the best way on problems that its costs
were not fitted to.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pandas as pd
from tqdm import tqdm

from labs_common.plans import Device
from labs_common.roof_choice import H200, Costs
from labs_common.roof_regret import Timed, regret, timed_problems

FITTED = tuple(f.name for f in dataclasses.fields(Costs) if f.name != "bytes_per_us")
FOLDS = 5
NEAR = 4.0  # how fast a way counts less that is slower than the best: by e for every quarter
FAR = 0.03  # what the slowest counts for
OUTLIER = 0.15  # relative error from which a way pulls no more
RANK = 3.0  # weight of choosing well over being right about the time
TIE = 0.02  # relative difference of costs that is a toss-up

# Where a fit begins, so that it knows nothing of the problems that are kept from it.
ROUGH = Costs(
    **{"bytes_in_flight": 1e4, "alone": 10, "late_partial": 0.1},
    **dict.fromkeys(("issue_float32", "issue_half", "issue_fp8"), 5e3),
    **dict.fromkeys(("tile_float32", "tile_half", "tile_fp8"), 0.5),
    **dict.fromkeys(("product_float32", "dimension_half", "dimension_fp8"), 1e-3),
    **dict.fromkeys(("early", "again", "several_runs", "fixed"), 0.1),
    **dict.fromkeys(("again_later", "segment", "segment_output", "block"), 1.0),
    **dict.fromkeys(("call", "cut", "partial"), 2.0),
)


def fit(timed: Sequence[Timed], start: Costs = ROUGH, rounds: int = 40) -> Costs:
    """The costs whose choices and times are nearest to what was timed: Levenberg-Marquardt on logarithms."""
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


def _errors(timed: Sequence[Timed], costs: Costs) -> np.ndarray:
    """Of every way its relative error in time, of every problem what choosing by these costs loses."""
    found = []
    for one in timed:
        ways = one.ways(Device(), costs)
        if not ways:
            continue
        cost = np.array([choice.cost for choice, _ in ways])
        slower = np.array([one.times[way] for _, way in ways]) / min(one.times.values())
        weight = np.sqrt(np.exp(-NEAR * (slower - 1)) + FAR)
        error = np.log(cost / (slower * min(one.times.values())))
        found.append(weight * np.clip(error, -OUTLIER, OUTLIER))
        if not one.by_tiles:
            likely = (cost / cost.min()) ** (-1 / TIE)
            found.append([RANK * float(likely @ (slower - 1)) / likely.sum()])
    return np.concatenate(found)


def _held_out(fold: tuple[Sequence[Timed], Sequence[Timed]]) -> pd.DataFrame:
    fitted, held_out = fold
    return regret([one for one in held_out if not one.by_tiles], costs=fit(fitted))


def cross_validated(
    timed: Sequence[Timed], folds: int = FOLDS, jobs: int | None = None, progress: Callable = tqdm
) -> pd.DataFrame:
    """``regret`` of every problem by costs that were fitted to the problems of other folds.

    Args:
        timed: problems; the same one always falls into the same fold.
        folds: parts, each left out of one fit.
        jobs: processes.
        progress: wraps the folds.
    """
    keys = [(one.problem.name, one.problem.dtype) for one in timed]
    names = list(dict.fromkeys(keys))  # one that was timed twice is one problem
    fold_of = dict(zip(names, np.random.default_rng(0).permutation(len(names)) % folds, strict=True))
    order = [fold_of[key] for key in keys]
    parts = [
        (
            [one for one, fold in zip(timed, order, strict=True) if fold != left],
            [one for one, fold in zip(timed, order, strict=True) if fold == left],
        )
        for left in range(folds)
    ]
    with ProcessPoolExecutor(jobs) as pool:
        return pd.concat(list(progress(pool.map(_held_out, parts), total=folds)), ignore_index=True)


def main() -> None:
    """Print what was fitted, and the quantiles of choosing by costs that had not seen the problem."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--folds", type=int, default=FOLDS, help="0: only the fit")
    parser.add_argument(
        "--save", help="a CSV for the problems, each chosen for by costs that had not seen it"
    )
    options = parser.parse_args()
    timed = timed_problems()
    if not timed:
        raise SystemExit("no timings here: data/roof holds none")
    if options.folds:
        table = cross_validated(timed, options.folds)
        if options.save:
            table.round(4).to_csv(options.save, index=False)
        print(table.nlargest(8, "ratio").to_string(index=False, float_format="{:.3f}".format))
        print(table["ratio"].describe(percentiles=(0.5, 0.9)).to_string(float_format="{:.3f}".format))
    for name, value in dataclasses.asdict(fit(timed)).items():
        print(f"{name:16} {value:.4g}")


if __name__ == "__main__":
    main()
