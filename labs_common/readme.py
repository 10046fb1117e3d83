"""The README's tables, made from the registry and from recorded data: ``python -m labs_common.readme``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from labs_common import metric_names as names
from labs_common import metrics as metrics_table
from labs_common.metrics import ALL_KERNELS, Metrics
from labs_common.problem import PRESETS, Problem
from labs_common.recorded import PROBLEMS, recorded_metrics
from labs_common.stages import ALL_STAGES, STAGES, Stage

README = Path(__file__).resolve().parent.parent / "README.md"


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


TABLES = {"stages": stage_table, "roof": roof_table}


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
