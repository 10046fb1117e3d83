"""The README's tables, made from the registry and from recorded data: ``python -m labs_common.readme``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from labs_common import bugs, peer_bench
from labs_common import metric_names as names
from labs_common import metrics as metrics_table
from labs_common.known_shapes import SHAPES
from labs_common.metrics import ALL_KERNELS, Metrics
from labs_common.peers import PAGED
from labs_common.problem import FP8, PRESETS, Problem
from labs_common.recorded import PROBLEMS, recorded_metrics
from labs_common.sanitizer import markdown
from labs_common.stages import ALL_STAGES, STAGES, Stage

README = Path(__file__).resolve().parent.parent / "README.md"
SANITIZED = README.parent / "data" / "sanitizer"


def stage_table(
    stages: Sequence[Stage] = STAGES, problem: Problem = PRESETS["seed"], gpu: str = "h200"
) -> str:
    """Markdown: stages with their ideas and what was recorded of them on a GPU.

    Args:
        stages: in order; each is compared with the one before.
        problem: that was recorded.
        gpu: whose records.
    """
    frame = recorded_metrics(gpu=gpu, problem=problem.name)
    events = metrics_table.select(frame, tool="events")
    ceiling = metrics_table.value(metrics_table.select(events, stage=""), names.PEAK_BANDWIDTH)
    least = problem.minimum_bytes
    lines = [
        "| stage | idea | time | times faster | of the read ceiling | registers | occupancy |",
        "|---|---|---|---|---|---|---|",
    ]
    before = None
    for stage in stages:
        nanoseconds = metrics_table.value(events, names.TIME, stage=stage.id, kernel=ALL_KERNELS)
        if nanoseconds != nanoseconds:
            lines.append(f"| `{stage.id}` | {stage.idea} | not measured | | | | |")
            continue
        profile = metrics_table.select(frame, tool="ncu", stage=stage.id, kernel=stage.entry)
        share = least / (nanoseconds * 1e-9) / ceiling
        lines.append(
            f"| `{stage.id}` | {stage.idea} | {nanoseconds / 1e3:,.0f} µs | "
            f"{f'{before / nanoseconds:.2f}' if before else ''} | {100 * share:.1f} % | "
            f"{' | ' if profile.empty else _resources(profile)} |"
        )
        before = nanoseconds
    return "\n".join(lines)


def _resources(profile: Metrics) -> str:
    registers, achieved, theoretical = (
        metrics_table.value(profile, name)
        for name in (names.REGISTERS, names.ACHIEVED_OCCUPANCY, names.THEORETICAL_OCCUPANCY)
    )
    return f"{registers:.0f} | {achieved:.0f} of {theoretical:.0f} %"


def roof_table() -> str:
    """Markdown: stage 05 and those towards the roof, on the same problem in fp16."""
    return stage_table(ALL_STAGES[5:], PROBLEMS["seed-float16"])


def sanitizer_table(gpu: str = "h200") -> str:
    """Markdown: planted bugs and honest kernels under the simulator's checks and under compute-sanitizer."""
    return markdown(SANITIZED / gpu / "sanitizer.csv", [*bugs.bugs(), *bugs.honest()]).rstrip()


def peers_table(gpu: str = "h200") -> str:
    """Markdown: 09, tuned, beside the best public kernel that reads pages, in % of the read ceiling."""
    rows = peer_bench.recorded(gpu)["rows"]
    share = "% of read ceiling"
    lines = [f"| | {' | '.join(SHAPES)} |", f"|---|{'---|' * len(SHAPES)}"]
    for dtype, label in (("float16", "fp16"), (FP8, "fp8 cache, exact queries"), ("float32", "fp32")):
        cells = []
        for shape in SHAPES:
            here = [row for row in rows if (row["problem"], row["dtype"]) == (shape, dtype)]
            ours = next(row for row in here if row["what"] == peer_bench.TUNED)
            paged = [row for row in here if row["kind"] == PAGED and row["right"]]
            best = min(paged, key=lambda row: row["median_us"], default=None)
            there = f" / {best[share]:.1f} ({best['what']}{'*' * bool(best['rounds'])})" if best else ""
            cells.append(f"{ours[share]:.1f}{there}")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


TABLES = {"stages": stage_table, "roof": roof_table, "peers": peers_table, "sanitizer": sanitizer_table}


def rewritten(text: str) -> str:
    """The README with its tables made anew, between their markers."""
    for name, make in TABLES.items():
        block = f"<!-- {name}: made by python -m labs_common.readme -->\n{make()}\n<!-- end -->"
        text, count = re.subn(
            rf"<!-- {name}:.*?<!-- end -->", lambda _, block=block: block, text, flags=re.DOTALL
        )
        if count != 1:
            raise ValueError(f"README.md: {count} places marked '{name}'; there must be one")
    return text


if __name__ == "__main__":
    README.write_text(rewritten(README.read_text(encoding="utf-8")), encoding="utf-8")
