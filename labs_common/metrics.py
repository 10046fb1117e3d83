"""Metrics: one tidy table for every figure, whoever measured, recorded, reported or simulated it.

A `Metrics` is a pandas DataFrame with the columns of `COLUMNS`; one row is one value of one launch, or of one
source line of it. Values are in base units (`labs_common.units`). A value that is absent is NaN with its
`reason`, never zero. A value that is no number, such as CachePreferNone, is in `text`.

====================  ======================================================================================
source                measured (here, now), recorded (on another machine, in data/), reported (in a document),
                      simulated (counted, or calculated by formula)
tool                  what gave the value: ncu, events, simulator, document, cubin, formula …
gpu, stage, problem   ids; "" where the tool does not know them
kernel, launch        entry name, and the launch's number in its profile (<NA> for a whole group or stage)
file, line            of the kernel's source, for a value of one line; "" and <NA> otherwise
section               Nsight Compute's section; tells apart metrics that a report prints alike
metric, value, unit   canonical name (`labs_common.metric_names`), float64, base unit
text                  the value where it is no number
sampled               whether the value is a sample count rather than an exact one
reason                why a value is absent, or "inferred: …", or how it was put together
====================  ======================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from labs_common import metric_names as names
from labs_common.units import base_unit

Metrics = pd.DataFrame

SOURCES = ("measured", "recorded", "reported", "simulated")
ABSENT = "not measured"

_STRINGS = (
    "source",
    "tool",
    "gpu",
    "stage",
    "kernel",
    "problem",
    "file",
    "section",
    "metric",
    "text",
    "unit",
    "reason",
)
COLUMNS: dict[str, str] = {
    **dict.fromkeys(("source", "tool", "gpu", "stage", "kernel"), "str"),
    "launch": "Int64",
    "problem": "str",
    "file": "str",
    "line": "Int64",
    "section": "str",
    "metric": "str",
    "value": "float64",
    "text": "str",
    "unit": "str",
    "sampled": "bool",
    "reason": "str",
}
KEY = (
    "source",
    "tool",
    "gpu",
    "stage",
    "kernel",
    "launch",
    "problem",
    "file",
    "line",
    "section",
    "metric",
    "unit",
)

# Metrics whose sum over the kernels of a stage is the stage's figure; percentages and rates are not among
# them.
_ADDITIVE_SUFFIXES = (".sum",)
_ADDITIVE = {names.TIME, names.DRAM_ACTIVE_CYCLES, "gpc__cycles_elapsed.max", "smsp__pcsamp_sample_count"}


class MetricsError(ValueError):
    """Metrics that do not say what they must, or a request that they cannot answer."""


def empty() -> Metrics:
    """A Metrics table without rows."""
    return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in COLUMNS.items()})


def build(rows: Iterable[Mapping[str, Any]], **common: Any) -> Metrics:
    """A validated Metrics table from rows.

    Args:
        rows: mappings of column to value; a column left out is empty, NaN, or False.
        common: values of columns that all rows share, such as source="measured"; a row's own value wins.

    Raises:
        MetricsError: an unknown column, or what `validate` finds.
    """
    rows = [{**common, **row} for row in rows]
    unknown = sorted({key for row in rows for key in row} - set(COLUMNS))
    if unknown:
        raise MetricsError(f"unknown columns {unknown}; Metrics has {list(COLUMNS)}")
    if not rows:
        return empty()
    return validate(_typed(pd.DataFrame.from_records(rows)))


def _typed(frame: pd.DataFrame) -> Metrics:
    """The columns of Metrics in their order and types, absent ones empty."""
    typed = {}
    for name, kind in COLUMNS.items():
        column = (
            frame[name] if name in frame else pd.Series([None] * len(frame), index=frame.index, dtype=object)
        )
        if name in _STRINGS:
            column = column.where(column.notna(), "").map(str)
        elif kind == "bool":
            column = column.where(column.notna(), False)
        elif kind == "float64":
            column = pd.to_numeric(column)
        typed[name] = column.astype(kind)
    return pd.DataFrame(typed).reset_index(drop=True)


def validate(frame: pd.DataFrame) -> Metrics:
    """The same table, checked.

    Raises:
        MetricsError: columns or types differ from `COLUMNS`; an unknown source; an empty tool or metric;
            a unit that is no base unit; a value absent without a reason or a text; the same value twice.
    """
    found = {name: str(kind) for name, kind in frame.dtypes.items()}
    if list(found) != list(COLUMNS):
        raise MetricsError(f"columns are {list(found)}, expected {list(COLUMNS)}")
    wrong = [f"{n} is {found[n]}, expected {k}" for n, k in COLUMNS.items() if found[n] != k]
    if wrong:
        raise MetricsError("; ".join(wrong))
    bad = frame.loc[~frame["source"].isin(SOURCES), "source"].unique()
    if len(bad):
        raise MetricsError(f"source {bad[0]!r} is none of {', '.join(SOURCES)}")
    for name in ("tool", "metric"):
        if (frame[name] == "").any():
            raise MetricsError(f"{name} is empty in row {frame.index[frame[name] == ''][0]}")
    for unit in frame["unit"].unique():
        base = base_unit(unit)[1]
        if base != unit:
            raise MetricsError(f"unit {unit!r} is no base unit; convert to {base!r}")
    silent = frame["value"].isna() & (frame["reason"] == "") & (frame["text"] == "")
    if silent.any():
        row = frame[silent].iloc[0]
        raise MetricsError(f"{row['metric']} of {row['kernel'] or row['stage']!r} is absent without a reason")
    twice = frame.duplicated(list(KEY), keep=False)
    if twice.any():
        row = frame[twice].iloc[0]
        where = f"stage {row['stage']!r}, kernel {row['kernel']!r}, launch {row['launch']}"
        raise MetricsError(f"{row['metric']} stands twice for {where}, section {row['section']!r}")
    return frame


def concat(frames: Iterable[Metrics]) -> Metrics:
    """Several tables as one, checked again: a value that stands in two of them is an error."""
    frames = [frame for frame in frames if len(frame)]
    return validate(pd.concat(frames, ignore_index=True)) if frames else empty()


def select(frame: Metrics, **where: Any) -> Metrics:
    """The rows that have the given values, one or a list of them for a column; order is kept.

    `metric` takes any version's name of a metric. `line=None` and `launch=None` ask for rows without one.

    Raises:
        MetricsError: an unknown column.
    """
    keep = pd.Series(True, index=frame.index)
    for column, wanted in where.items():
        if column not in COLUMNS:
            raise MetricsError(f"unknown column {column!r}; Metrics has {list(COLUMNS)}")
        if wanted is None:
            keep &= frame[column].isna()
            continue
        several = [wanted] if isinstance(wanted, str) or not isinstance(wanted, Iterable) else list(wanted)
        if column == "metric":
            several = [*several, *(names.canonical(m) for m in several)]
        keep &= frame[column].isin(several)
    return frame[keep].reset_index(drop=True)


def one(frame: Metrics, metric: str, **where: Any) -> pd.Series | None:
    """The one row of a metric, or None; whole-kernel rows only, unless `line` is asked for.

    A metric that several sections print is one row as long as they agree.

    Raises:
        MetricsError: rows that differ in value.
    """
    if "line" not in where:
        where["line"] = None
    rows = select(frame, metric=metric, **where)
    present = rows[rows["value"].notna() | (rows["text"] != "")]
    if present.empty:
        return None if rows.empty else rows.iloc[0]
    if len(present[["value", "text", "unit"]].drop_duplicates()) > 1:
        spread = present.drop_duplicates(["kernel", "launch", "gpu", "source", "problem", "section"])
        what = "; ".join(
            f"{r.source} {r.gpu} {r.stage} {r.kernel} launch {r.launch} {r.section}: {r.value}"
            for r in spread.itertuples()
        )
        raise MetricsError(f"{metric} is not one value here: {what}")
    return present.iloc[0]


def value(frame: Metrics, metric: str, **where: Any) -> float:
    """The value of a metric in its base unit; NaN where it is absent (`one`)."""
    row = one(frame, metric, **where)
    return float("nan") if row is None else float(row["value"])


def pivot(
    frame: Metrics,
    metrics: Sequence[str],
    by: Sequence[str] = ("source", "gpu", "problem", "stage", "kernel"),
) -> pd.DataFrame:
    """A wide table of whole-kernel values: a row for each of `by`, in order, a column for each metric.

    Raises:
        MetricsError: several values fall into one cell (launches are grouped first: `group_launches`).
    """
    wanted = select(frame, metric=list(metrics), line=None)
    cells = []
    for key, rows in wanted.groupby(list(by), sort=False, dropna=False):
        cells.append((key, [value(rows, m) for m in metrics]))
    index = pd.MultiIndex.from_tuples([key for key, _ in cells], names=list(by)) if cells else None
    return pd.DataFrame([row for _, row in cells], index=index, columns=list(metrics), dtype="float64")


def group_launches(frame: Metrics, warmup: int = 1) -> Metrics:
    """Several launches of one kernel as one: the median of each metric, after the warm-up launches.

    Of a kernel launched more than `warmup` times the first `warmup` launches are left out; a kernel launched
    less often keeps them all. The rows say so in `reason`, and have no launch number. Texts come from the
    last launch.
    """
    if warmup < 0:
        raise MetricsError(f"warmup is {warmup}; allowed is 0 or more")
    by = ["source", "tool", "gpu", "stage", "kernel", "problem"]
    parts = []
    for _, rows in frame.groupby(by, sort=False, dropna=False):
        launches = sorted(rows["launch"].dropna().unique())
        if len(launches) < 2:
            parts.append(rows)
            continue
        left_out = warmup if len(launches) > warmup else 0
        kept = rows[~rows["launch"].isin(launches[:left_out])].copy()
        count = len(launches) - left_out
        note = f"median of {count} launches" + (f", first {left_out} left out as warm-up" if left_out else "")
        cell = ["file", "line", "section", "metric", "unit"]
        median = kept.groupby(cell, dropna=False)["value"].transform("median")
        kept["reason"] = kept["reason"].where(kept["value"].isna() & median.isna(), note)
        kept["value"] = median
        kept["launch"] = pd.array([pd.NA] * len(kept), dtype="Int64")
        parts.append(kept.drop_duplicates(cell, keep="last"))
    return validate(pd.concat(parts).sort_index().reset_index(drop=True)) if parts else frame


def is_additive(metric: str, unit: str) -> bool:
    """Whether kernels add up to their stage: counts and times do, percentages and rates do not."""
    return unit != "%" and "/" not in unit and (metric in _ADDITIVE or metric.endswith(_ADDITIVE_SUFFIXES))


ALL_KERNELS = "all kernels"


def stage_totals(frame: Metrics) -> Metrics:
    """One row per metric of each stage: additive ones summed, percentages weighted by time, as `reason` says.

    A stage of one kernel keeps its values. Metrics that are neither (registers, block size, rates …) have no
    figure for several kernels and are absent with that reason. The kernel of the rows is `ALL_KERNELS`.

    Raises:
        MetricsError: several launches of one kernel; `group_launches` makes them one.
    """
    rows = select(frame, line=None)
    by = ["source", "tool", "gpu", "stage", "problem"]
    totals = []
    for key, stage in rows.groupby(by, sort=False, dropna=False):
        kernels = list(stage["kernel"].unique())
        for kernel in kernels:
            launches = stage.loc[stage["kernel"] == kernel, "launch"].nunique()
            if launches > 1:
                raise MetricsError(f"{kernel} has {launches} launches: group_launches first")
        times = {k: value(stage, names.TIME, kernel=k) for k in kernels}
        for cell, cases in stage.groupby(["section", "metric", "unit"], sort=False):
            row = dict(zip(by, key, strict=True), kernel=ALL_KERNELS) | dict(
                zip(("section", "metric", "unit"), cell, strict=True)
            )
            totals.append(row | _total(cases, cell[1], cell[2], kernels, times))
    return build(totals)


def _total(
    cases: pd.DataFrame, metric: str, unit: str, kernels: list[str], times: dict[str, float]
) -> dict[str, Any]:
    """Value, text, sampled and reason of one metric over a stage's kernels."""
    first = cases.iloc[0]
    sampled = bool(cases["sampled"].any())
    if len(kernels) == 1:
        return {"value": first["value"], "text": first["text"], "sampled": sampled, "reason": first["reason"]}
    have = cases.set_index("kernel")["value"]
    absent = [k for k in kernels if k not in have.index or pd.isna(have[k])]
    nothing = {"value": float("nan"), "sampled": sampled}
    if absent:
        return nothing | {"reason": f"{ABSENT} for {', '.join(absent)}"}
    if is_additive(metric, unit):
        return {
            "value": sum(have[k] for k in kernels),
            "sampled": sampled,
            "reason": f"sum of {len(kernels)} kernels",
        }
    if unit != "%":
        return nothing | {"reason": f"no one figure for {len(kernels)} kernels"}
    if any(pd.isna(t) for t in times.values()):
        return nothing | {"reason": "no times to weight the kernels by"}
    weighted = sum(have[k] * times[k] for k in kernels) / sum(times.values())
    return {"value": weighted, "sampled": sampled, "reason": f"weighted by time over {len(kernels)} kernels"}


def speedup(before: Metrics, after: Metrics) -> float:
    """How many times less time `after` takes: the sum over the kernels of each.

    Raises:
        MetricsError: no time, or times of different tools, GPUs or problems, which no ratio may mix
            (Nsight Compute replays a kernel with flushed caches; events do not).
    """
    times = []
    for side, frame in (("before", before), ("after", after)):
        rows = select(frame, metric=names.TIME, line=None)
        totals = select(stage_totals(rows), metric=names.TIME)
        if len(totals) != 1 or totals["value"].isna().any():
            raise MetricsError(f"{side} has {len(totals)} stage times, expected one")
        times.append(totals.iloc[0])
    for column in ("source", "tool", "gpu", "problem"):
        if times[0][column] != times[1][column]:
            raise MetricsError(
                f"a speed-up needs one {column}: before is {times[0][column]!r}, "
                f"after is {times[1][column]!r}"
            )
    return float(times[0]["value"] / times[1]["value"])


def save_csv(frame: Metrics, path: Path | str) -> None:
    """Writes Metrics as UTF-8 CSV with every column; `load_csv` gives back exactly the same table."""
    whole = {
        name: frame[name].astype("string").fillna("") for name, kind in COLUMNS.items() if kind == "Int64"
    }
    out = validate(frame).assign(**whole)
    out.to_csv(path, index=False, na_rep="nan", lineterminator="\n", encoding="utf-8")


def load_csv(path: Path | str) -> Metrics:
    """Reads what `save_csv` wrote.

    Raises:
        MetricsError: a column is missing or unknown, or what `validate` finds; the message names the file.
    """
    raw = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
    if list(raw.columns) != list(COLUMNS):
        raise MetricsError(f"{path}: columns are {list(raw.columns)}, expected {list(COLUMNS)}")
    try:
        for name, kind in COLUMNS.items():
            if kind == "Int64":
                raw[name] = [pd.NA if cell == "" else int(cell) for cell in raw[name]]
            elif kind == "float64":
                raw[name] = [float(cell) for cell in raw[name]]
            elif kind == "bool":
                raw[name] = [{"True": True, "False": False}[cell] for cell in raw[name]]
        return validate(_typed(raw))
    except (ValueError, KeyError) as error:
        raise MetricsError(f"{path}: {error}") from error


def to_records(frame: Metrics) -> list[dict[str, Any]]:
    """Rows as plain Python values for JSON: absent numbers are None, empty columns are left out."""
    records = []
    for row in frame.astype(object).to_dict("records"):
        plain = {name: None if pd.isna(cell) else cell for name, cell in row.items()}
        records.append(
            {name: cell for name, cell in plain.items() if name == "value" or cell not in (None, "")}
        )
    return records
