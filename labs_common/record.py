"""``palab record``: a set of Nsight Compute reports of this machine's GPU, for those who have none.

What a set holds is said in `labs_common.recorded`, which reads it.
"""

from __future__ import annotations

import dataclasses
import lzma
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from labs_common import metrics as metrics_table
from labs_common.compiler import include_folders
from labs_common.gpus import gpu_id
from labs_common.ncu import compact, read_profile
from labs_common.problem import Problem
from labs_common.profile import capture
from labs_common.provenance import gpu_provenance, kernel_hash, read_provenance, write_provenance
from labs_common.recorded import PROBLEMS, RECORDED, REPORT_SUFFIX
from labs_common.stages import Stage

NEUTRAL = b"/lab/"
__all__ = ["PROBLEMS", "RECORDED", "record", "tabulate"]


def record(
    stages: Sequence[Stage],
    problems: Sequence[Problem],
    folder: Path,
    command: str,
    options: Mapping[str, Mapping[str, int]] | None = None,
    on_progress: Callable[[str], None] = lambda line: None,
    keep_reports: bool = True,
) -> Path:
    """Profile every stage on every problem that it takes, and write the set; a set that is there is added to.

    Args:
        stages, problems: what to profile.
        folder: in which ``<gpu>/`` is made.
        command: that was given, for the provenance.
        options: of a stage's plan, by stage id.
        on_progress: is given a line for each step.
        keep_reports: also Nsight Compute's reports, with all figures by source line; else tables alone.

    Returns:
        The set's folder.

    Raises:
        ProfileError: nothing could be measured; what was written before stays.
    """
    provenance = gpu_provenance(command)
    target = folder / gpu_id(str(provenance["gpu"]))
    before = read_provenance(target)
    provenance["problems"] = before.get("problems", {}) | {p.name: _described(p) for p in problems}
    provenance["options"] = before.get("options", {}) | {s: dict(o) for s, o in (options or {}).items()}
    hashes = provenance["kernels_ptx_sha256"] = before.get("kernels_ptx_sha256", {})
    for stage in stages:
        for problem in problems:
            if stage.supports(problem) is not None:
                continue
            on_progress(f"{stage.id} {problem.name}")
            hashes.setdefault(stage.id, {})[problem.name] = kernel_hash(
                stage, problem, str(provenance["compute_capability"]), (options or {}).get(stage.id)
            )
            place = target / stage.id
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory() as scratch:
                report = Path(scratch) / f"{problem.name}.ncu-rep"
                capture(stage, problem, report, (options or {}).get(stage.id), on_progress)
                if keep_reports:
                    plain = without_private_paths(report.read_bytes(), _private_paths(scratch))
                    (place / f"{problem.name}{REPORT_SUFFIX}").write_bytes(compressed(plain))
                else:
                    _tabulate(report, place / f"{problem.name}.csv")
            write_provenance(target, provenance)
    tabulate(target)
    return target


def _private_paths(scratch: str) -> list[str]:
    """What Nsight Compute writes of this machine into a report: command line, program, CUDA's headers."""
    return [
        *map(str, include_folders()),
        sys.executable,
        os.path.realpath(sys.executable),
        scratch,
        tempfile.gettempdir(),
        str(Path.home()),
    ]


def without_private_paths(report: bytes, paths: Iterable[str]) -> bytes:
    """A report with some paths replaced by neutral ones of the same length, which keeps the file readable.

    Args:
        report: the content of a ``.ncu-rep``.
        paths: to replace, the longest first; a short one such as ``/`` or ``/tmp`` is left alone, and so is a
            Python of the system.
    """
    for path in sorted(set(paths), key=len, reverse=True):
        old = path.encode()
        if len(old) > len(NEUTRAL) and not re.fullmatch(r"/usr/bin/python[\d.]*", path):
            report = report.replace(old, NEUTRAL + b"_" * (len(old) - len(NEUTRAL)))
    return report


def compressed(report: bytes) -> bytes:
    """The smaller .xz of two: literals told apart by the byte before them, which suits text, or not."""
    filters = (
        {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": lc, "pb": 0} for lc in (0, 3)
    )
    return min((lzma.compress(report, filters=[one]) for one in filters), key=len)


def tabulate(target: Path) -> None:
    """Read every report of a set into the CSV of its kernels' figures."""
    for report in sorted(target.glob(f"*/*{REPORT_SUFFIX}")):
        _tabulate(report, report.with_name(f"{report.name.removesuffix(REPORT_SUFFIX)}.csv"))


def _tabulate(report: Path, path: Path) -> None:
    """The figures of a report's kernels as a CSV in the set's folder of their stage."""
    table = read_profile(
        report,
        source="recorded",
        gpu=path.parents[1].name,
        stage=path.parent.name,
        problem=path.stem,
        only=compact(),
        lines=False,
    )
    table = table[~table["metric"].str.endswith("_not_issued")].reset_index(drop=True)
    metrics_table.save_csv(table, path)


def _described(problem: Problem) -> dict[str, object]:
    fields = dataclasses.asdict(problem)
    lengths = problem.context_lengths
    if len(set(lengths)) == 1 and len(lengths) > 1:
        fields["context_lengths"] = f"{lengths[0]} x {len(lengths)}"
    return fields
