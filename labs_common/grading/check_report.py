"""What ``check`` found as a file to hand in. The grader takes the kernel from it and nothing else."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from labs_common.check import Report
from labs_common.grading.store import write_text
from labs_common.grading.submissions import REPORT_FORMAT
from labs_common.source import Source


def report_json(report: Report, source: Source) -> str:
    """A check report with its kernel, as JSON text.

    Args:
        report: of ``check``.
        source: the kernel that was checked.
    """
    results = [
        {
            "problem": str(result.problem),
            "ok": result.ok,
            "max_error": _finite(result.verdict.max_error) if result.verdict else None,
            "diagnosis": result.verdict.diagnosis if result.verdict else result.error,
            "findings": [str(finding) for finding in result.findings],
        }
        for result in report.results
    ]
    value: dict[str, Any] = {
        "format": REPORT_FORMAT,
        "stage": report.stage,
        "source_name": source.name,
        "source": source.text,
        "engine": report.engine,
        "ok": report.ok,
        "error": report.error,
        "results": results,
    }
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def write_report(path: Path, report: Report, source: Source) -> None:
    """As ``report_json``, into a file whose folders are made.

    Raises:
        ValueError: the file's name does not end in ``.json``, so that the grader would not read it.
    """
    if path.suffix.lower() != ".json":
        raise ValueError(f"{path}: the name of a report must end in .json")
    write_text(path, report_json(report, source))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
