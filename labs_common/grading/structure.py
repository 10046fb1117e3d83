"""What a kernel's counted work says about its structure, as ratios to the reference kernel's own counts.

Both are counted by the same simulator, from the same front end and architecture, on the same problem: an
absolute count would change with any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from labs_common.grading.rubric import Limit
from labs_common.problem import Problem

BARRIER_SLACK = 0.1  # barriers a token: one more in a prologue is no matter
IMPOSSIBLE = 0.95  # of the distinct bytes that a right kernel of the stage reads

EXPLAINED = {
    "requests": "requests to global memory",
    "sectors": "32-byte sectors that the loads touch",
    "sectors_per_request": "sectors for the bytes that are asked for (coalescing)",
    "multiplies": "multiplications for the products that are needed",
    "instructions": "instructions executed, of whatever kind",
    "busiest_warp": "share of the work that the busiest warp has",
    "barriers_per_token": "block barriers a token",
    "kv_bytes": "distinct bytes read",
    "shared_wavefronts": "wavefronts of shared memory (bank conflicts)",
    "spills": "bytes of registers spilled a thread",
}


@dataclass(frozen=True)
class Mark:
    """One count's part of the structure marks.

    Attributes:
        count: its name in the rubric.
        value, reference: the student's and the reference kernel's.
        ratio: of the two, or the excess where the limit is on that; None where it is left out.
        share: of the points, 0 to 1.
        counts: whether it is looked at.
    """

    count: str
    value: float
    reference: float
    ratio: float | None
    share: float
    counts: bool

    @property
    def reason(self) -> str:
        """Why it is not all of the points. Ratios only: a count would tell the hidden problem's size."""
        if self.count == "spills":
            return f"{EXPLAINED[self.count]}: {self.value:g}, the reference kernel's {self.reference:g}"
        return f"{EXPLAINED[self.count]}: {self.ratio:.2f} times the reference kernel's"


def measures(problem: Problem, counters: Mapping[str, int], resources: Mapping[str, int]) -> dict[str, float]:
    """The counts that the rubric names, of one run.

    ``multiplies`` is FFMA and FMUL lanes over 2·tokens·query_heads·head_dim, the products of q·K and p·V;
    ``sectors_per_request`` is sectors over those that the asked bytes would fill. ``instructions`` are those
    of all threads, so that work which no other count sees (in double precision, in local memory) is seen;
    ``busiest_warp`` is the part of the work that the busiest warp does: a grid in name only is seen.
    """
    tokens = max(1, sum(problem.context_lengths))
    products = 2 * tokens * problem.query_heads * problem.head_dim
    return {
        "requests": counters["global_load_requests"],
        "sectors": counters["global_load_sectors"],
        "sectors_per_request": counters["global_load_sectors"] / max(1, counters["ideal_sectors"]),
        "multiplies": (counters["ffma_lanes"] + counters["fmul_lanes"]) / products,
        "instructions": counters["lane_instructions"],
        "busiest_warp": counters["busiest_warp"] / max(1, counters["warp_instructions"]),
        "barriers_per_token": counters["barriers"] / tokens,
        "kv_bytes": counters["dram_read_bytes"],
        "shared_wavefronts": sum(
            counters[f"{what}_wavefronts"] for what in ("shared_load", "shared_store", "async_copy")
        ),
        "spills": resources["spill_bytes"],
    }


def mark_structure(
    found: Mapping[str, float], reference: Mapping[str, float], limits: Mapping[str, Limit]
) -> list[Mark]:
    """Every count against the reference's; one that the reference does not have at all is left out."""
    marks = []
    for count, limit in limits.items():
        value, right = found[count], reference[count]
        if count == "spills":
            ratio: float | None = max(0.0, value - right)
        elif count == "barriers_per_token":
            ratio = (value + BARRIER_SLACK) / (right + BARRIER_SLACK)
        elif right == 0:
            ratio = None
        else:
            ratio = value / right
        share = limit.share(ratio) if ratio is not None else 1.0
        marks.append(Mark(count, value, right, ratio, share, limit.counts and ratio is not None))
    return marks


def structure_share(marks: list[Mark]) -> float:
    """The share of the worst count, as a kernel is as slow as its narrowest part; 1 where none counts."""
    return min((mark.share for mark in marks if mark.counts), default=1.0)


def reads_too_little(found: Mapping[str, float], reference: Mapping[str, float]) -> bool:
    """Whether a kernel read fewer distinct bytes than the keys and values are."""
    return found["kv_bytes"] < IMPOSSIBLE * reference["kv_bytes"]
