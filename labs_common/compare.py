"""Is an output right? One verdict for the notebooks, the command line and the grader."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from labs_common.problem import storage_dtype
from labs_common.reference import Reference

# Largest relative error of rounding to nearest: 2^-(bits of the significand).
UNIT_ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


@dataclass(frozen=True)
class Verdict:
    """Whether an output is right, and if not, where it is worst.

    Attributes:
        ok: every element is finite and within its row's tolerance.
        max_error: largest of |output − expected| over the row's magnitude; NaN where something is not finite.
        tolerance: the limit that ``max_error`` was held against, at the worst element.
        worst: batch, query head and dimension of the worst element; None where nothing was compared.
        diagnosis: one sentence for a person.
    """

    ok: bool
    max_error: float
    tolerance: float
    worst: tuple[int, int, int] | None
    diagnosis: str


def tolerance(expected: Reference, weights: str = "float32") -> np.ndarray:
    """How far each element of the output may be off, relative to its row's ``expected.magnitude``.

    With u = 2^-24, the unit roundoff of fp32 arithmetic, and T the context length, a row is allowed

    * 4·sqrt(T)·u for adding T weighted values: at most T·u, about sqrt(T)·u for independent rounding errors
      (Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., sections 2.8 and 3.1);
    * 8·score_size·u for the scores: each errs by about u relative to scale·sum|q·k|, and exp turns that
      absolute error into a relative one of the weight, in numerator and denominator;
    * 16·u for the exponentials (``__expf`` errs by 2 and more units in the last place) and the division.

    An output stored in 16 bits may be off by half a unit in its own last place besides. Where a kernel rounds
    the softmax weights to 16 bits, as tensor cores need them, each errs by up to the dtype's unit roundoff
    relative to itself, and so does their weighted sum relative to the row's magnitude.

    A token left out of random data at 4,096 tokens is seen; from some 30,000 on it drowns in what rounding
    may do, and only inputs made for it (one token with nearly all the weight) show it.

    Args:
        expected: from ``reference``.
        weights: dtype that the kernel's softmax weights are rounded to.

    Returns:
        ``[batch, query_heads, head_dim]`` float64.
    """
    unit = UNIT_ROUNDOFF["float32"]
    context = np.array(expected.problem.context_lengths, float)[:, None]
    row = unit * (16 + 4 * np.sqrt(context) + 8 * expected.score_size)
    allowed = np.broadcast_to(row[:, :, None], expected.output.shape)
    stored = expected.problem.query_dtype
    if stored != "float32":
        smallest = 0.5 * float(ml_dtypes.finfo(storage_dtype(stored)).smallest_subnormal)
        half_unit = np.maximum(np.abs(expected.output) * UNIT_ROUNDOFF[stored], smallest)
        allowed = allowed + half_unit / np.maximum(expected.magnitude, 2.0**-1022)[:, :, None]
    if weights != "float32":
        allowed = allowed + UNIT_ROUNDOFF[weights]
    return allowed


def compare(output: np.ndarray, expected: Reference, weights: str = "float32") -> Verdict:
    """Hold an output against the reference, row by row (a row is one query head of one sequence).

    Args:
        output: ``[batch, query_heads, head_dim]``, any float dtype.
        expected: from ``reference`` on the same problem and inputs.
        weights: dtype that the kernel's softmax weights are rounded to; see ``tolerance``.
    """
    output = np.asarray(output)
    if output.shape != expected.output.shape:
        return Verdict(False, np.nan, np.nan, None, f"shape {output.shape}, expected {expected.output.shape}")
    if output.size == 0:
        return Verdict(True, 0.0, 0.0, None, "right (an empty batch)")
    output = output.astype(np.float64)
    finite = np.isfinite(output)
    if not finite.all():
        worst = tuple(int(i) for i in np.argwhere(~finite)[0])
        count = finite.size - int(finite.sum())
        return Verdict(
            False,
            np.nan,
            np.nan,
            worst,
            f"{count} of {finite.size} elements are not finite, the first at {_place(worst)}",
        )
    allowed = tolerance(expected, weights)
    # An empty context has magnitude 0 and must be exactly 0: any error there is infinite.
    difference = np.abs(output - expected.output)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(difference == 0, 0.0, difference / expected.magnitude[:, :, None])
    excess = error / allowed
    worst = tuple(int(i) for i in np.unravel_index(np.argmax(excess), excess.shape))
    limit, worst_error = float(allowed[worst]), float(error[worst])
    if worst_error <= limit:
        return Verdict(
            True, worst_error, limit, worst, f"right: largest error {worst_error:.1e} of {limit:.1e} allowed"
        )
    rows = int((excess.max(axis=2) > 1).sum())
    return Verdict(
        False,
        worst_error,
        limit,
        worst,
        f"{rows} of {error.shape[0] * error.shape[1]} rows are wrong, the worst at {_place(worst)}: "
        f"{output[worst]:.6g} instead of {expected.output[worst]:.6g}",
    )


def _place(index: tuple[int, ...]) -> str:
    return f"batch {index[0]}, head {index[1]}, dimension {index[2]}"
