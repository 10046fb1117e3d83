"""Recorded profiles: a set of Nsight Compute reports of this machine's GPU, for those who have none.

A set is a folder ``data/recorded/<gpu>/`` that holds, for every stage and problem,
``<stage>/<problem>.ncu-rep.xz`` (the report) and ``<stage>/<problem>.csv`` (its Metrics), and
``provenance.json``: GPU, driver, toolkit, command, date, the
problems in full and a hash of each kernel's source.
"""

from __future__ import annotations

import dataclasses
import lzma
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from labs_common import metrics as metrics_table
from labs_common.gpus import gpu_id
from labs_common.problem import PRESETS, Problem
from labs_common.profile import capture
from labs_common.provenance import gpu_provenance, write_provenance
from labs_common.stages import Stage

# What a set holds: the presets in fp32, and two shapes small enough for a test to simulate whole.
PROBLEMS: dict[str, Problem] = {
    problem.name: problem
    for problem in (
        PRESETS["ragged"],
        Problem(12, 4, 64, 32, (700,) * 8, name="grouped"),
        Problem(32, 8, 128, 16, (1024,) * 16, name="uniform"),
        PRESETS["seed"],
        PRESETS["long"].replace(dtype="float32", name="long-float32"),
    )
}
RECORDED = Path(__file__).resolve().parent.parent / "data" / "recorded"


def record(
    stages: Sequence[Stage],
    problems: Sequence[Problem],
    folder: Path,
    command: str,
    options: Mapping[str, Mapping[str, int]] | None = None,
    on_progress: Callable[[str], None] = lambda line: None,
) -> Path:
    """Profile every stage on every problem that it takes, and write the set.

    Args:
        stages, problems: what to profile.
        folder: in which ``<gpu>/`` is made.
        command: that was given, for the provenance.
        options: of a stage's plan, by stage id.
        on_progress: is given a line for each step.

    Returns:
        The set's folder.

    Raises:
        ProfileError: nothing could be measured; what was written before stays.
    """
    provenance = gpu_provenance(command)
    target = folder / gpu_id(str(provenance["gpu"]))
    provenance["problems"] = {problem.name: _described(problem) for problem in problems}
    provenance["options"] = {stage: dict(chosen) for stage, chosen in (options or {}).items()}
    for stage in stages:
        for problem in problems:
            if stage.supports(problem) is not None:
                continue
            on_progress(f"{stage.id} {problem.name}")
            place = target / stage.id
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory() as scratch:
                report = Path(scratch) / f"{problem.name}.ncu-rep"
                capture(stage, problem, report, (options or {}).get(stage.id), on_progress)
                packed = lzma.compress(report.read_bytes(), preset=6)
            (place / f"{problem.name}.ncu-rep.xz").write_bytes(packed)
    write_provenance(target, provenance)
    return target


def tabulate(target: Path) -> None:
    """Read every report of a set into its CSV: the figures of each kernel and of each source line."""
    from labs_common.ncu import read_profile

    for report in sorted(target.glob("*/*.ncu-rep.xz")):
        problem = report.name.removesuffix(".ncu-rep.xz")
        table = read_profile(report, source="recorded", stage=report.parent.name, problem=problem)
        metrics_table.save_csv(table, report.with_name(f"{problem}.csv"))


def _described(problem: Problem) -> dict[str, object]:
    fields = dataclasses.asdict(problem)
    lengths = problem.context_lengths
    if len(set(lengths)) == 1 and len(lengths) > 1:
        fields["context_lengths"] = f"{lengths[0]} x {len(lengths)}"
    return fields
