"""Nsight Compute's own .ncu-rep files, through the ncu-report package: no GPU and no ncu needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from labs_common.gpus import gpu_id
from labs_common.metric_names import canonical, unit_of
from labs_common.metrics import Metrics, build
from labs_common.ncu_rows import CONVERT, Context, ProfileError, rules_frame, short_names, stage_of
from labs_common.source import NEUTRAL_FOLDER
from labs_common.units import UnitError, to_base

# Metrics whose instances are instructions, worth a sum for each line of source.
LINE_METRICS = (
    "inst_executed",
    "thread_inst_executed",
    "memory_l1_wavefronts_shared",
    "memory_l1_wavefronts_shared_ideal",
    "memory_l1_tag_requests_global",
    "memory_l2_theoretical_sectors_global",
    "memory_l2_theoretical_sectors_global_ideal",
    "smsp__pcsamp_sample_count",
)
LINE_PREFIXES = ("smsp__pcsamp_warps_issue_stalled_",)
# What is counted by opcode only, under the names that the simulator counts it by too.
OPCODE_METRICS = {
    "smsp__inst_executed_op_shuffle.sum": "SHFL",
    "smsp__inst_executed_op_barrier.sum": "BAR",
}
_OPCODES = "sass__inst_executed_per_opcode"
# Entries that only list other metrics, for the tables and charts of Nsight Compute's window.
_LISTS_OF_METRICS = ("group:", "breakdown:")
_KINDS = {0: "none", 1: "OK", 2: "WRN", 3: "OPT", 4: "ERR"}


def read_report_file(
    path: Path, context: Context, wanted: Callable[[str], bool], lines: bool
) -> tuple[Metrics, pd.DataFrame]:
    """Metrics and rules of a report file.

    Args:
        path: an uncompressed .ncu-rep.
        context: what the report does not say.
        wanted: whether a metric of a given name is read.
        lines: whether figures of source lines are read too.

    Raises:
        ProfileError: ncu-report is missing or cannot load this file.
    """
    actions = _actions(path)
    kernels = short_names(_full_name(action) for action in actions)
    rows: list[dict[str, Any]] = []
    rules: list[dict[str, object]] = []
    for launch, action in enumerate(actions):
        kernel = context.kernel or kernels[_full_name(action)]
        common = {
            "launch": launch,
            "kernel": kernel,
            "stage": context.stage or stage_of(kernel),
            "gpu": context.gpu or gpu_id(_text(action, "device__attribute_display_name")),
        }
        rows += ({**common, **row} for row in _kernel_rows(action, wanted))
        if lines:
            rows += ({**common, **row} for row in _line_rows(action, wanted))
        rules += ({"kernel": kernel, "launch": launch, **rule} for rule in _rules(action))
    return build(rows, source=context.source, tool="ncu", problem=context.problem), rules_frame(rules)


def report_sources(path: Path) -> dict[str, str]:
    """Source files that a report carries, by name; those of the lab without their folder.

    Raises:
        ProfileError: as of `read_report_file`.
    """
    found: dict[str, str] = {}
    for action in _actions(path):
        files = action.source_files()
        found |= {_short(name): files[name] for name in files if files[name]}
    return found


def _actions(path: Path) -> list[Any]:
    """The profiled kernels of a report."""
    try:
        import ncu_report
    except ImportError as error:
        raise ProfileError(
            f"{path} is a report file of Nsight Compute, and the package ncu-report is not here ({error}): "
            f"pip install ncu-report, or export it with: {CONVERT}"
        ) from error
    try:
        report = ncu_report.load_report(str(path))
        actions = [action for block in report for action in block]
    except Exception as error:
        raise ProfileError(
            f"{path}: ncu-report cannot load this report file ({error}); it may be damaged or of a newer "
            f"Nsight Compute. Export it with the ncu that wrote it: {CONVERT}"
        ) from error
    if not actions:
        raise ProfileError(f"{path} holds no profiled kernel")
    return actions


def _full_name(action: Any) -> str:
    """The demangled name, by which instances of one template are told apart."""
    return str(action.name(action.NameBase_DEMANGLED))


def _text(action: Any, metric: str) -> str:
    try:
        return str(action[metric].value())
    except KeyError:
        return ""


def _sections(action: Any) -> dict[str, str]:
    """The first section that shows each metric; none where the package is too old to tell (before 2025.4)."""
    found: dict[str, str] = {}
    for section in action.sections() if hasattr(action, "sections") else ():
        for shown in (*section.header_metrics(), *section.body_metrics()):
            found.setdefault(shown if isinstance(shown, str) else shown.name(), section.name())
    return found


def _kernel_rows(action: Any, wanted: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
    """Whole-kernel values; a metric keeps another version's name where the canonical one is there as well."""
    values = {
        name: _figure(name, action[name])
        for name in action.metric_names()
        if not name.startswith(_LISTS_OF_METRICS)
    }
    sections = _sections(action)
    for name in sorted(values):
        own = canonical(name)
        if own != name and own in values and "reason" not in values[own]:
            own = name
        elif (
            own == name
            and "reason" in values[name]
            and any(canonical(n) == name for n in values if n != name)
        ):
            continue  # absent, but there under another name
        if wanted(own):
            row = {"metric": own, "section": sections.get(name, ""), "sampled": "pcsamp" in name}
            yield row | values[name]
    for own, opcode in OPCODE_METRICS.items():
        if own not in values and _OPCODES in values and wanted(own):
            yield {"metric": own, "unit": "inst", "value": _opcode_count(action[_OPCODES], opcode)}


def _opcode_count(metric: Any, opcode: str) -> float:
    """Warp instructions of one opcode; a kernel's opcodes are listed without those that it lacks."""
    opcodes = metric.correlation_ids()
    counts = {opcodes.value(i): float(metric.value(i)) for i in range(metric.num_instances())}
    return counts.get(opcode, 0.0)


def _figure(name: str, metric: Any) -> dict[str, Any]:
    """Value, text, unit and reason of a whole-kernel metric.

    A text may stand in the metric's only instance instead of the metric itself (launch__kernel_name).
    """
    value = metric.value()
    if value == "" and metric.num_instances() == 1:
        value = metric.value(0)
    return _value(name, value, metric.unit())


def _value(name: str, value: Any, unit: str) -> dict[str, Any]:
    """Value, text, unit and reason; what has an unknown unit is absent, as nothing can be said of it."""
    if isinstance(value, str):
        return {"text": value, "value": math.nan, "reason": "" if value else "empty in the report"}
    if value is None:
        return {"value": math.nan, "reason": "no value in the report"}
    if not math.isfinite(value):
        return {"value": math.nan, "reason": f"{value} in the report"}
    try:
        amount, base = to_base(float(value), unit)
    except UnitError as error:
        return {"value": math.nan, "reason": str(error)}
    return {"value": amount, "unit": base or unit_of(canonical(name)) or ""}


def _line_rows(action: Any, wanted: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
    """Sums over the instructions of each source line; nothing without line information."""
    available = set(action.metric_names())
    places: dict[int, tuple[str, int] | None] = {}
    for name in sorted(available):
        if not (name in LINE_METRICS or name.startswith(LINE_PREFIXES)) or not wanted(name):
            continue
        metric = action[name]
        if not metric.has_correlation_ids():
            continue
        ids = metric.correlation_ids()
        sums: dict[tuple[str, int], float] = {}
        for i in range(metric.num_instances()):
            pc = int(ids.value(i))
            if pc not in places:
                info = action.source_info(pc)
                places[pc] = None if info is None else (_short(info.file_name()), int(info.line()))
            place = places[pc]
            if place is not None and place[1] > 0:
                sums[place] = sums.get(place, 0.0) + float(metric.value(i) or 0)
        for (file, line), total in sorted(sums.items()):
            row = {"metric": name, "file": file, "line": line, "sampled": "pcsamp" in name}
            yield row | _value(name, total, metric.unit())


def _short(file: str) -> str:
    """A file of the lab by its name alone, as the simulator gives it."""
    return file.removeprefix(f"{NEUTRAL_FOLDER}/")


def _rules(action: Any) -> Iterator[dict[str, object]]:
    for rule in action.rule_results_as_dicts():
        message = rule.get("rule_message") or {}
        speedup = rule.get("speedup_estimation") or {}
        yield {
            "section": rule.get("section_identifier", ""),
            "rule": rule.get("rule_identifier", ""),
            "kind": _KINDS.get(message.get("type", 0), "none"),
            "message": message.get("message", ""),
            "speedup_kind": {1: "local", 2: "global"}.get(speedup.get("type", 0), ""),
            "speedup_pct": float(speedup.get("speedup", math.nan)),
        }
