"""The corpora of submissions: a folder each with ``expected.toml`` and what is handed in.

What is handed in lies in ``submission/``, or is a stage's own kernel with replacements (``[kernel]``), so
that it follows that kernel's edits. ``points`` are those of the default rubric without a GPU; ``most``
bounds partial credit; ``reason`` is a regular expression that a reason or note must match; ``flags`` must
be raised. Table ``[gpu]`` says what differs where a GPU marks too: ``points`` without those for speed,
``reason``, and ``slow`` for a kernel that no noise can make as fast as to have points for its speed.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from labs_common.grading.archives import Files, read_files
from labs_common.grading.rubric import load_rubric
from labs_common.grading.submissions import Submission, from_files
from labs_common.stages import find_stage

FOLDER = Path(__file__).with_name("submissions")


@dataclass(frozen=True)
class Expected:
    """A folder of a corpus."""

    name: str
    title: str
    stage: str
    points: float | None
    most: float | None
    reason: str
    flags: tuple[str, ...]
    submission: Submission
    gpu_points: float | None
    gpu_reason: str
    slow: bool


def load(kind: str) -> list[Expected]:
    """All folders of ``dishonest``, ``honest`` or ``half``."""
    return [
        _read(folder) for folder in sorted((FOLDER / kind).iterdir()) if (folder / "expected.toml").exists()
    ]


def _read(folder: Path) -> Expected:
    table = tomllib.loads((folder / "expected.toml").read_text(encoding="utf-8"))
    files = read_files(folder / "submission") if (folder / "submission").exists() else Files()
    if kernel := table.get("kernel"):
        stage = find_stage(kernel["from"])
        text = stage.source().text
        for old, new in kernel["replace"]:
            assert old in text, f"{folder.name}: the kernel no longer has {old!r}"
            text = text.replace(old, new)
        files.add(stage.path.name, text.encode())
    return Expected(
        name=folder.name,
        title=table["title"],
        stage=table["stage"],
        points=table.get("points"),
        most=table.get("most"),
        reason=table.get("reason", ""),
        flags=tuple(table.get("flags", ())),
        submission=from_files(folder.name, files),
        gpu_points=table.get("gpu", {}).get("points"),
        gpu_reason=table.get("gpu", {}).get("reason", ""),
        slow=table.get("gpu", {}).get("slow", False),
    )


def said(record: dict, stage: str) -> list[str]:
    """Every reason, note and flag that a record gives for a stage."""
    grade = record["stages"][stage]
    flags = [f"{flag}: {seen}" for flag, seen in (*grade["flags"].items(), *record["flags"].items())]
    return [*grade["reasons"], *record["notes"], *flags]


def mistakes(expected: Expected, record: dict) -> list[str]:
    """How a record differs from what its folder expects; empty where it is right."""
    grade = record["stages"].get(expected.stage)
    if grade is None:
        return [f"not graded: {record.get('failed')}"]
    total, out_of = (
        round(sum(points for part, points in table.items() if part != "speed"), 2)
        for table in (grade["points"], grade["maximum"])
    )
    points, reason = expected.points, expected.reason
    if record["gpu"]:
        points = points if expected.gpu_points is None else expected.gpu_points
        reason = expected.gpu_reason or reason
    reasons = said(record, expected.stage)
    found = []
    if points is not None and total != points:
        found.append(f"{total} points instead of {points}")
    if expected.most is not None and total > expected.most:
        found.append(f"{total} points, more than {expected.most}")
    if points is None and expected.most is None and total != out_of:
        found.append(f"{total} of {out_of} points")
    if reason and not any(re.search(reason, given) for given in reasons):
        found.append(f"no reason matches {reason!r}")
    if record["gpu"]:
        found += _speed_mistakes(expected, grade)
    raised = {*grade["flags"], *record["flags"]}
    found += [f"the flag {flag!r} is not raised" for flag in expected.flags if flag not in raised]
    if found:
        found.append(f"reasons: {reasons}")
    return found


def _speed_mistakes(expected: Expected, grade: dict) -> list[str]:
    """How the marks for speed differ from what was measured, whatever a busy GPU made of it."""
    given, timed = grade["points"]["speed"], grade["speed"]
    if any(grade["points"][part] < grade["maximum"][part] for part in ("correctness", "cleanliness")):
        return [f"{given} points for the speed of a kernel that is not right"] if given else []
    if "ratio" not in timed:
        return [f"right, but not timed: {timed}"]
    limit = load_rubric().speed
    deserved = round(grade["maximum"]["speed"] * limit.share(timed["ratio"]), 2)
    found = [f"{given} points for a ratio of {timed['ratio']}"] if given != deserved else []
    if expected.slow and timed["ratio"] < limit.none:
        found.append(f"a ratio of {timed['ratio']} only")
    return found
