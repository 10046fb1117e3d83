"""The comparison of simulator and GPU as Markdown and as a chart.

``python -m labs_common.fidelity_table`` writes both into ``docs/``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from labs_common.charts import Chart, simulated_against_measured
from labs_common.engines import open_engine
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
    compare_all,
    dram_ratio,
    listed_share,
    load_exceeded,
    load_listed,
)
from labs_common.metric_names import REGISTERS
from labs_common.metrics import concat
from labs_common.simt.counters import NCU_METRICS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "simulator.md"
CHART = "simulator.png"

_INTRODUCTION = f"""# How true is the simulator?

Stages 00 to 04 were profiled with Nsight Compute on an H200, on three small problems. The simulator runs
the same problems: the source is the one in the report, NVRTC has the same version, and the machine code it
makes is byte for byte the code that the GPU ran. For each machine instruction the report tells how often it
was executed; ptxas's line tables in its cubin tell the source line. So the two can be held against each
other line by line, and a test does.

Every count that is not equal is listed below with what ptxas did to the PTX. A difference that is not listed
fails the test, and so does one that is listed and no longer occurs.

![executed over simulated]({CHART})
"""

_HEADINGS = {
    "global requests": ("global_load_requests", "global_store_requests"),
    "global sectors": ("global_load_sectors", "global_store_sectors"),
    "shared loads": ("shared_loads",),
    "shared stores": ("shared_stores",),
    "barriers": ("barriers",),
    "shuffles": ("shuffles",),
    "FFMA lanes": ("ffma_lanes",),
}
_COPIES = """
## Asynchronous copies

What a `cp.async.cg` of 512 bytes costs depends on how its source and its target lie in their lines of 128
bytes. The simulator counts it as an H200 does, here with the target some bytes further in its line than the
source:

| further | sectors looked up | sectors from L2 | wavefronts | where an H200 counted it |
| --- | --- | --- | --- | --- |
| 0 | 16 | 16 | 4 | 09, and 05 with its shared array declared `__align__(128)` as 09's is |
| 16 | 20 | 32 | 12 | 05 on ragged: 63,488 sectors from L2 and 23,808 wavefronts of 1,984 copies |
| 64 | 16 | 16 | 8 | 09 without it, fp32, a query head a group: 8,388,608 wavefronts of 1,048,576 copies |
| 80 | 20 | 32 | 16 | 05 on 100,000 tokens in fp16: 12,800,000 wavefronts of 800,000 copies |

The rule is in `labs_common/simt/counters.py`; tests hold stage 05 on ragged against the H200's numbers, in
both number formats and three layouts. Copies through L1 (`cp.async.ca`) were not measured: they count as a
load and a store would. Nor were lanes that only write zeros: they fetch nothing, and a line of shared memory
that they alone write takes a wavefront.
"""


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
        "Warp instructions are PTX's here and SASS's there. PTX moves every operand of a shuffle into a "
        "register first, a third of its instructions from 02 on; SASS needs two instructions for a 64-bit "
        "addition, as of 00's addresses, and some twenty for an integer division. Their ratio stays within "
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


def page(comparisons: Sequence[Comparison]) -> str:
    """The page of `PAGE`."""
    return f"{_INTRODUCTION}\n{markdown(comparisons, load_listed(), load_exceeded())}{_COPIES}"


def write(comparisons: Sequence[Comparison]) -> None:
    """Write the page and its chart."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(comparisons), encoding="utf-8")
    chart(comparisons).savefig(PAGE.with_name(CHART), dpi=120)


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


if __name__ == "__main__":
    write(compare_all(open_engine("sim", front_end="nvrtc")))
