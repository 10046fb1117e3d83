"""Recorded profiles and times of other machines' GPUs: reading them, and whether they are of today's kernels.

A GPU's folder ``data/recorded/<gpu>/`` holds, for every stage and problem,

- ``<stage>/<problem>.ncu-rep.xz``: Nsight Compute's report, with everything that it measured; left out where
  the sets would be too large (``palab record --tables-only``);
- ``<stage>/<problem>.csv``: the figures of each kernel that `ncu.compact` names, as Metrics. Figures of
  source lines are read from the report (`recorded_lines`);
- ``events/<problem>.csv``: times of whole calls by events, and the read ceiling of the same run;
- other folders: studies with tables and a provenance of their own;
- ``provenance.json`` in the GPU's folder and in ``events/``: GPU, driver, toolkit, command, date, problems in
  full, and under ``kernels_ptx_sha256`` a hash of each stage's PTX (`provenance.ptx_hash`).

``palab record`` writes such a set (`labs_common.record`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from labs_common.compiler import compiler_version
from labs_common.known_shapes import PROFILED
from labs_common.metrics import Metrics, concat, load_csv, select
from labs_common.ncu import read_profile, read_sources
from labs_common.problem import PRESETS, Problem
from labs_common.provenance import kernel_hash
from labs_common.stages import ALL_STAGES, find_stage

# What a set holds: the presets, in fp32 and fp16, and two shapes small enough for a test to simulate whole.
PROBLEMS: dict[str, Problem] = {
    problem.name: problem
    for problem in (
        PRESETS["ragged"],
        Problem(12, 4, 64, 32, (700,) * 8, name="grouped"),
        Problem(32, 8, 128, 16, (1024,) * 16, name="uniform"),
        PRESETS["seed"],
        PRESETS["long"].replace(dtype="float32", name="long-float32"),
        PRESETS["long"],
        PRESETS["ragged"].replace(dtype="float16", name="ragged-float16"),
        PRESETS["seed"].replace(dtype="float16", name="seed-float16"),
    )
}
KNOWN = PROBLEMS | PROFILED  # that a set may hold profiles of
RECORDED = Path(__file__).resolve().parent.parent / "data" / "recorded"
REPORT_SUFFIX = ".ncu-rep.xz"


def recorded_metrics(folder: Path = RECORDED, **where: Any) -> Metrics:
    """Everything that was recorded on other machines, of kernels and whole calls; empty where nothing is.

    Args:
        folder: of the sets.
        where: columns and the values to keep, as of `metrics.select`, such as ``problem="seed", tool="ncu"``.

    Raises:
        MetricsError: an unknown column, or a damaged file.
    """
    stages, problems = (_listed(where.get(column)) for column in ("stage", "problem"))
    folders = {*({stage.id for stage in ALL_STAGES} if stages is None else stages), "events"}
    paths = [
        path
        for path in sorted(folder.glob("*/*/*.csv"))
        if path.parent.name in folders and (problems is None or path.stem in problems)
    ]
    table = concat(load_csv(path) for path in paths)
    table["source"] = table["source"].replace("measured", "recorded")  # there and then, not here
    return select(table, **where)


def _listed(wanted: Any) -> set[str] | None:
    """Names that one or several values of a column stand for; None where any will do."""
    if wanted is None:
        return None
    return {wanted} if isinstance(wanted, str) else set(wanted)


def recorded_tables(folder: Path = RECORDED) -> list[tuple[str, str, str]]:
    """GPU, stage and problem of every recorded profile; some are tables without their report."""
    stages = {stage.id for stage in ALL_STAGES}
    found = sorted(path for path in folder.glob("*/*/*.csv") if path.parent.name in stages)
    return [(path.parts[-3], path.parent.name, path.stem) for path in found]


def recorded_reports(folder: Path = RECORDED) -> list[tuple[str, str, str]]:
    """GPU, stage and problem of every report that was kept."""
    found = sorted(folder.glob(f"*/*/*{REPORT_SUFFIX}"))
    return [(p.parts[-3], p.parent.name, p.name.removesuffix(REPORT_SUFFIX)) for p in found]


def recorded_lines(stage: str, problem: str, gpu: str = "h200", folder: Path = RECORDED) -> Metrics:
    """The figures of each source line of one recorded profile.

    A line without a row of a metric that other lines of the kernel have has none of it: instructions that
    were never executed, stalls that were never sampled.

    Raises:
        FileNotFoundError: nothing of the kind is recorded; the message lists what is.
        ProfileError: the report cannot be read.
    """
    stage = find_stage(stage).id
    report = _report(stage, problem, gpu, folder)
    table = read_profile(report, source="recorded", gpu=gpu, stage=stage, problem=problem)
    return table[table["line"].notna() & (table["value"] != 0)].reset_index(drop=True)


def recorded_sources(stage: str, problem: str, gpu: str = "h200", folder: Path = RECORDED) -> dict[str, str]:
    """The source files that a recorded profile is of, text by file name: its lines are lines of these.

    Raises:
        FileNotFoundError, ProfileError: as of `recorded_lines`.
    """
    return read_sources(_report(find_stage(stage).id, problem, gpu, folder))


def _report(stage: str, problem: str, gpu: str, folder: Path) -> Path:
    report = folder / gpu / stage / f"{problem}{REPORT_SUFFIX}"
    if not report.exists():
        there = [f"{of} {name}" for where, of, name in recorded_reports(folder) if where == gpu]
        raise FileNotFoundError(
            f"no profile of {stage} on problem {problem!r} is recorded for {gpu}; there are: "
            + (", ".join(there) or "none")
        )
    return report


def changed_kernels(gpu_folder: Path) -> list[str]:
    """Stages and problems whose kernels are no longer those that a set was recorded with.

    Kernels are compared by their PTX, made here by the toolkit that the set names: comments, names and
    headers that change no instruction don't count.

    Args:
        gpu_folder: one with a ``provenance.json``.

    Returns:
        Such as ``"03_gqa_reuse on seed"``; empty where all is up to date.

    Raises:
        ValueError: this machine has another NVRTC than the set was recorded with, or the set has no hashes.
    """
    provenance = json.loads((gpu_folder / "provenance.json").read_text(encoding="utf-8"))
    here = compiler_version()
    if here != provenance["nvrtc"]:
        raise ValueError(f"{gpu_folder.name} was recorded with NVRTC {provenance['nvrtc']}, here is {here}")
    hashes = provenance.get("kernels_ptx_sha256")
    if not hashes:
        raise ValueError(f"{gpu_folder / 'provenance.json'} has no kernels_ptx_sha256")
    changed = []
    for stage, by_problem in hashes.items():
        options = provenance.get("options", {}).get(stage, {})
        for problem, recorded in by_problem.items():
            now = kernel_hash(find_stage(stage), KNOWN[problem], provenance["compute_capability"], options)
            if now != recorded:
                changed.append(f"{stage} on {problem}")
    return changed
