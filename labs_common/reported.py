"""The figures that the first source document reports for its 36-SM GPU; provenance in data/reported/."""

from __future__ import annotations

from pathlib import Path

from labs_common.metrics import Metrics, concat, load_csv

REPORTED = Path(__file__).resolve().parent.parent / "data" / "reported"


def reported_metrics(folder: Path = REPORTED) -> Metrics:
    """All reported figures as Metrics: source "reported", tool "document", a launch per kernel.

    Raises:
        FileNotFoundError: no CSV file in the folder.
    """
    files = sorted(folder.glob("*.csv"))
    if not files:
        raise FileNotFoundError(f"no reported figures in {folder}")
    return concat(load_csv(file) for file in files)
