"""What the readers of profiles share: their errors, and how printed values become Metrics."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from labs_common.gpus import gpu_id
from labs_common.metric_names import SECTIONS, from_display, other_name, unit_of
from labs_common.metrics import Metrics, build
from labs_common.stages import ALL_STAGES
from labs_common.units import UnitError, base_unit, decimal_mark, is_absent, is_number, parse_number, to_base


class ProfileError(ValueError):
    """A profile that cannot be read or made.

    Attributes:
        reason: why.
        remedy: what to do about it; empty where the reason says it, or nothing can be done.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{reason}. {remedy[0].upper()}{remedy[1:]}" if remedy else reason)

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.reason, self.remedy)


class NothingProfiled(ProfileError):
    """Nsight Compute ran, but no kernel was profiled."""


class CountersForbidden(ProfileError):
    """The user has no permission for the GPU's performance counters (ERR_NVGPUCTRPERM)."""


CONVERT = "ncu --import FILE --csv --page raw --print-units base > FILE.csv"

RULE_COLUMNS = ("kernel", "launch", "section", "rule", "kind", "message", "speedup_kind", "speedup_pct")


@dataclass(frozen=True)
class Context:
    """What a profile itself does not say, and what overrides it: see `ncu.read_profile`."""

    source: str = "recorded"
    gpu: str = ""
    stage: str = ""
    kernel: str = ""
    problem: str = ""
    decimal: str | None = None


@dataclass(frozen=True)
class Printed:
    """One value as a report prints it.

    Attributes:
        kernel: full name, "" when the report has none.
        launch: number within the report.
        section: as printed, "" when unknown.
        shown: display name, or Nsight Compute's own name of the metric.
        unit: as printed.
        text: the value as printed.
        gpu: device name or compute capability, "" when unknown.
        reason: what to note of the value, such as how many launches it averages.
    """

    kernel: str
    launch: int
    section: str
    shown: str
    unit: str
    text: str
    gpu: str = ""
    reason: str = ""


def base_name(kernel: str) -> str:
    """A kernel's function name, without return type, namespaces, template arguments and parameters."""
    depth, kept = 0, []
    text = kernel.strip().replace("<unnamed>::", "").replace("(anonymous namespace)::", "")
    text = re.sub(r"\((?:\w+ )*\w+\)(?=[\w-])", "", text)  # a cast within template arguments
    for c in text:
        if c in "(" and depth == 0:
            break
        depth += (c in "<[") - (c in ">]")
        if depth == 0 and c not in ">]":
            kept.append(c)
    words = "".join(kept).split()
    name = words[-1].rsplit("::", 1)[-1].lstrip("*&") if words else ""
    return name or kernel.strip()


def short_names(kernels: Iterable[str]) -> dict[str, str]:
    """The function name of each kernel; the full name where kernels of one report share a function name."""
    full = list(dict.fromkeys(kernels))
    by_name: dict[str, list[str]] = {}
    for kernel in full:
        by_name.setdefault(base_name(kernel), []).append(kernel)
    return {kernel: name if len(all_) == 1 else kernel for name, all_ in by_name.items() for kernel in all_}


def stage_of(kernel: str) -> str:
    """The lab's stage whose entry a kernel is, or one of its further kernels; "" for a foreign one."""
    matches = [s for s in ALL_STAGES if kernel == s.entry or kernel.startswith(s.entry + "_")]
    return max(matches, key=lambda s: len(s.entry)).id if matches else ""


def printed_metrics(values: Sequence[Printed], context: Context) -> Metrics:
    """Printed values as Metrics in base units under canonical names.

    Raises:
        ProfileError: an unknown unit, or a number whose decimal mark nothing in the report proves.
    """
    mark = context.decimal or decimal_mark(v.text for v in values)
    own_names = {(v.launch, v.shown) for v in values if not is_absent(v.text)}
    kernels = short_names(v.kernel for v in values)
    rows: dict[tuple[object, ...], dict[str, object]] = {}
    for v in values:
        try:
            row = _row(v, mark)
        except UnitError as error:
            raise ProfileError(
                f"{v.shown} of {v.kernel or 'a kernel'}, section {v.section!r}: {error}"
            ) from error
        except ValueError as error:
            raise ProfileError(f"{v.shown} of {v.kernel or 'a kernel'}: {error}") from error
        if row["metric"] != v.shown and (v.launch, row["metric"]) in own_names:
            # The canonical metric is collected as well: this is the other one of its name.
            row["metric"] = v.shown if "__" in v.shown else other_name(str(row["metric"]))
        row["kernel"] = context.kernel or kernels[v.kernel] or "unnamed"
        row["stage"] = context.stage or stage_of(str(row["kernel"]))
        row["gpu"] = context.gpu or (gpu_id(v.gpu) if v.gpu else "")
        key = tuple(row[name] for name in ("launch", "kernel", "section", "metric", "unit"))
        before = rows.setdefault(key, row)
        if _is_absent_row(before):
            rows[key] = row
        elif not _is_absent_row(row) and not _same(before, row):
            raise ProfileError(
                f"{v.shown} of {row['kernel']}, launch {v.launch}, stands twice in section {v.section!r}: "
                f"{before['value']} and {row['value']}"
            )
    return build(rows.values(), source=context.source, tool="ncu", problem=context.problem)


def _is_absent_row(row: dict[str, object]) -> bool:
    return not row["text"] and math.isnan(float(str(row["value"])))


def _same(a: dict[str, object], b: dict[str, object]) -> bool:
    return bool(a["text"] == b["text"] and (a["text"] or a["value"] == b["value"]))


def _row(v: Printed, mark: str | None) -> dict[str, object]:
    """Metric, value, text, unit and reason of a printed value."""
    section = SECTIONS.get(v.section, v.section)
    row: dict[str, object] = {
        "metric": from_display(section, v.shown, v.unit),
        "launch": v.launch,
        "section": section,
        "text": "",
        "reason": v.reason,
        "unit": base_unit(v.unit)[1],
        "sampled": "pcsamp" in v.shown,
    }
    text = v.text.strip()
    if text.startswith("(!)"):
        text = text.removeprefix("(!)").strip()
        row["reason"] = "marked (!) in the report"
    text = re.sub(r"^(\S+) \(.*;.*\)$", r"\1", text)  # "12 (5; 7)": a value with its instances
    if is_absent(text):
        if not v.unit:
            row["metric"] = from_display(section, v.shown, None)
            row["unit"] = unit_of(str(row["metric"])) or ""
        return row | {"value": math.nan, "reason": f"{text.strip() or 'empty'} in the report"}
    if is_number(text):
        return row | {"value": to_base(parse_number(text, mark), v.unit)[0]}
    return row | {"value": math.nan, "text": text}


def rules_frame(rows: Iterable[dict[str, object]]) -> pd.DataFrame:
    """Rules of a report as a table with the columns `RULE_COLUMNS`."""
    return pd.DataFrame(list(rows), columns=list(RULE_COLUMNS))


def speedup(text: str, mark: str | None) -> float:
    """A rule's estimated speed-up in percent; NaN where it has none."""
    return float(parse_number(text, mark)) if is_number(text) else math.nan
