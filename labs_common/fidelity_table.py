"""The comparison of simulator and GPU as Markdown and as a chart."""

from __future__ import annotations

from collections.abc import Sequence

from labs_common.charts import Chart, simulated_against_measured
from labs_common.fidelity import (
    DRAM_SMALLEST,
    EQUAL_BY_KERNEL,
    EQUAL_BY_LINE,
    LISTED_SHARE,
    RATIO_RANGE,
    RATIO_SPREAD,
    TOLD,
    Comparison,
    Exceeded,
    Listed,
    dram_ratio,
    listed_share,
)
from labs_common.metric_names import REGISTERS
from labs_common.metrics import concat
from labs_common.simt.counters import NCU_METRICS

_HEADINGS = {
    "global requests": ("global_load_requests", "global_store_requests"),
    "global sectors": ("global_load_sectors", "global_store_sectors"),
    "shared loads": ("shared_loads",),
    "shared stores": ("shared_stores",),
    "barriers": ("barriers",),
    "shuffles": ("shuffles",),
    "FFMA lanes": ("ffma_lanes",),
}


def markdown(
    comparisons: Sequence[Comparison], listed: Sequence[Listed], exceeded: Sequence[Exceeded]
) -> str:
    """Every figure of the comparison, what differs and why, as Markdown."""
    parts = (
        "Simulated over executed, summed over a stage's kernels. An = stands where both are the same number: "
        "in total and on every source line, FFMA lanes in each kernel.",
        _table(
            ("stage", "problem", *_HEADINGS, "warp instructions", "DRAM bytes read", "registers"),
            [_row(comparison) for comparison in comparisons],
        ),
        "Warp instructions are PTX's here and SASS's there: their ratio stays within "
        f"{RATIO_RANGE[0]} and {RATIO_RANGE[1]}, and varies by at most {RATIO_SPREAD:.0%} over the problems "
        "of a stage. DRAM bytes are distinct 32-byte sectors here: a lower bound, which a kernel reaches "
        "that streams each byte once (caches were flushed before). Kernels that read less than "
        f"{DRAM_SMALLEST >> 20} MiB are left out: code, constants and page tables count there too.",
        "What ptxas makes other instructions of:",
        _table(
            (
                "stage",
                "line or kernel",
                "count",
                "simulated / executed (share of the stage's)",
                "what ptxas did",
            ),
            _listed_rows(listed, comparisons),
        ),
        f"Listed differences come to at most {LISTED_SHARE:.0%} of their count over the stage. "
        + ("No limit is exceeded." if not exceeded else "These limits are not kept:"),
        _table(("stage", "limit", "why"), [(row.stage, row.limit, row.reason) for row in exceeded])
        if exceeded
        else "",
        "Told, not promised, since ptxas predicates short branches, unrolls loops further and merges loads "
        "(simulated / counted on the GPU):",
        _table(
            ("stage", "problem", *(count.replace("_", " ") for count in TOLD)),
            [_told_row(comparison) for comparison in comparisons],
        ),
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def chart(comparisons: Sequence[Comparison]) -> Chart:
    """Executed over simulated, count by count, of every kernel on every problem."""
    counts = (*EQUAL_BY_LINE, *EQUAL_BY_KERNEL, "warp_instructions", "dram_read_bytes")
    frame = concat(comparison.metrics for comparison in comparisons)
    return simulated_against_measured(frame, [NCU_METRICS[count] for count in counts])


def _row(comparison: Comparison) -> tuple[str, ...]:
    cells = [comparison.stage, comparison.problem]
    differing = {difference.metric for difference in comparison.differences()}
    for counts in _HEADINGS.values():
        executed = sum(comparison.total("executed", count) for count in counts)
        simulated = sum(comparison.total("simulated", count) for count in counts)
        if differing & set(counts):
            cells.append(f"{simulated / executed:.4f} of {executed:,}")
        else:
            cells.append(f"= {executed:,}" if executed else "none")
    cells.append(f"{comparison.ratio('warp_instructions'):.3f}")
    shares = [share for kernel in comparison.kernels if (share := dram_ratio(kernel)) == share]
    cells.append(", ".join(f"{share:.3f}" for share in shares))
    same = all(kernel.registers == kernel.counters[REGISTERS] for kernel in comparison.kernels)
    figures = ", ".join(str(kernel.registers) for kernel in comparison.kernels)
    return (*cells, f"= {figures}" if same else f"{figures}, not as recorded")


def _listed_rows(listed: Sequence[Listed], comparisons: Sequence[Comparison]) -> list[tuple[str, ...]]:
    """One row for what is the same on several problems."""
    of = {(comparison.stage, comparison.problem): comparison for comparison in comparisons}
    figures: dict[tuple[str, ...], list[str]] = {}
    for row in listed:
        difference = row.difference
        where = f"{difference.file}:{difference.line}" if difference.file else difference.kernel
        count = difference.metric.replace("_", " ")
        share = listed_share(of[difference.stage, difference.problem], difference.metric, [row])
        figures.setdefault((difference.stage, where, count, f"{row.kind}: {row.reason}"), []).append(
            f"{difference.problem} {difference.simulated:,} / {difference.executed:,} ({share:.2%})"
        )
    return [(*key[:3], "; ".join(numbers), key[3]) for key, numbers in figures.items()]


def _told_row(comparison: Comparison) -> tuple[str, ...]:
    cells = [comparison.stage, comparison.problem]
    for count in TOLD:
        counted = sum(kernel.counters.get(NCU_METRICS[count], 0) for kernel in comparison.kernels)
        simulated = comparison.total("simulated", count)
        cells.append(f"{simulated:,} / {counted:,.0f}" if simulated or counted else "none")
    return tuple(cells)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
