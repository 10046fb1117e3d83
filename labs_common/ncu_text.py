"""Nsight Compute's plain text report: sections of tables, kernel by kernel, as printed or pasted."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

import pandas as pd

from labs_common.metrics import Metrics
from labs_common.ncu_rows import Context, Printed, ProfileError, printed_metrics, rules_frame, speedup
from labs_common.units import decimal_mark

_KERNEL = re.compile(
    r"^ {0,6}(?P<name>\S.*?)"
    r"(?: (?P<grid>\(\d+, \d+, \d+\))x(?P<block>\(\d+, \d+, \d+\)))?"
    r"(?:, \d{4}-\w{3}-\d{2} \d{2}:\d{2}:\d{2})?"
    r", (?P<rest>(?:Context \d+, Stream \d+|Device \d+|Block Size ).*)$"
)
_SECTION = re.compile(r"^\s*Section: (?P<name>.+?)\s*$")
_DASHES = re.compile(r"^\s*-+( -+){2,}\s*$")
_RULE = re.compile(r"^\s{0,4}(?P<kind>OPT|INF|WRN|ERR)\s{2,}(?P<text>\S.*)$")
_SPEEDUP = re.compile(r"^Est(?:imated|\.) (?P<kind>Local )?Speedup: (?P<percent>[\d.,]+)%$")


def looks_like_report(text: str) -> bool:
    """Whether a text has one of the report's tables: a ruler of at least three columns over a value."""
    return any(_DASHES.match(line) for line in text.splitlines())


@dataclass
class _State:
    """Where the reader stands, and what it has found."""

    kernel: str = ""
    launch: int = -1
    gpu: str = ""
    invocations: str = ""
    section: str = ""
    seen: set[str] = field(default_factory=set)
    columns: list[tuple[int, int]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    filled: bool = False
    summaries: dict[str, int] = field(default_factory=dict)
    header: str = ""
    values: list[Printed] = field(default_factory=list)
    rules: list[dict[str, object]] = field(default_factory=list)


def read_text(text: str, context: Context) -> tuple[Metrics, pd.DataFrame]:
    """Metrics and rules of a text report.

    A table belongs to the kernel named above it. Tables pasted without a kernel's name belong to launch 0,
    and to the next launch when a metric comes again.

    Raises:
        ProfileError: a row that does not fit its table's columns, or as `printed_metrics`.
    """
    state = _State()
    for number, line in enumerate(text.expandtabs().splitlines(), 1):
        line = line.rstrip()
        if _DASHES.match(line):
            _ruler(state, line)
        elif state.columns and line.strip():
            _table_row(state, line, number)
        else:
            state.columns = []
            _outside(state, line)
    mark = context.decimal or decimal_mark(v.text for v in state.values)
    for rule in state.rules:
        lines = str(rule["message"]).split("\n")
        found = _SPEEDUP.match(lines[0])
        if found:
            rule["speedup_kind"] = "local" if found["kind"] else "global"
            rule["speedup_pct"] = speedup(found["percent"], mark)
            lines = lines[1:]
        rule["message"] = " ".join(lines)
    return printed_metrics(state.values, context), rules_frame(state.rules)


def _ruler(state: _State, line: str) -> None:
    """A line of dashes opens a table, closes its header, or ends it."""
    spans = [(m.start(), m.end()) for m in re.finditer(r"-+", line)]
    if state.columns and state.filled:
        state.columns, state.names, state.filled = [], [], False
    elif not state.columns:
        header = state.header.ljust(len(line))
        names = [header[start:end].strip() for start, end in spans] if state.header else []
        state.columns, state.names, state.filled = spans, names, False
    state.header = ""


def _table_row(state: _State, line: str, number: int) -> None:
    """The header of a table, or a row of values."""
    starts = [start for start, _ in state.columns]
    broken = [s for s in starts[1:] if s <= len(line) and line[s - 1 : s].strip()]
    if broken:
        raise ProfileError(f"line {number} does not fit the columns of its table: {line.strip()!r}")
    bounds = [*starts, len(line)]
    cells = [line[a:b].strip() for a, b in pairwise(bounds)]
    if not state.names and cells[0] == "Metric Name":
        state.names = cells
        return
    if not state.names:
        state.names = ["Metric Name", "Metric Unit", "Metric Value"][: len(cells)]
    row = dict(zip(state.names, cells, strict=False))
    value = row.get("Metric Value", row.get("Average"))
    if value is None or not row.get("Metric Name"):
        raise ProfileError(f"line {number} has no value under {state.names}: {line.strip()!r}")
    state.filled = True
    if state.launch < 0 or (not state.kernel and _again(state, row["Metric Name"])):
        state.launch += 1
        state.seen.clear()
    state.seen.add(f"{state.section}/{row['Metric Name']}")
    state.values.append(
        Printed(
            kernel=state.kernel,
            launch=state.launch,
            section=state.section,
            shown=row["Metric Name"],
            unit=row.get("Metric Unit", ""),
            text=value,
            gpu=state.gpu,
            reason=f"average of {state.invocations or 'several'} launches" if "Average" in row else "",
        )
    )


def _again(state: _State, metric: str) -> bool:
    return f"{state.section}/{metric}" in state.seen


def _outside(state: _State, line: str) -> None:
    """A line between tables: a section, a kernel's name, a rule or the rest of one, or anything else."""
    section, kernel, rule = _SECTION.match(line), _KERNEL.match(line), _RULE.match(line)
    state.header = line if line.lstrip().startswith("Metric Name") else ""
    if section:
        state.section = section["name"]
    elif rule:
        state.rules.append(
            {
                "kernel": state.kernel,
                "launch": max(state.launch, 0),
                "section": state.section,
                "rule": "",
                "kind": rule["kind"],
                "message": rule["text"].strip(),
                "speedup_kind": "",
                "speedup_pct": float("nan"),
            }
        )
    elif kernel and not line.startswith("=="):
        _new_kernel(state, kernel)
    elif state.rules and re.match(r"^ {8,}\S", line) and not re.match(r"^ *-", line):
        state.rules[-1]["message"] = f"{state.rules[-1]['message']}\n{line.strip()}"


def _new_kernel(state: _State, named: re.Match[str]) -> None:
    """A kernel's name begins a launch; a summary's name may come again and again for the same launches."""
    rest = named["rest"]
    cc, counted = re.search(r"CC (\d+\.\d+)", rest), re.search(r"Invocations (\d+)|(\d+) invocations", rest)
    state.kernel, state.section = named["name"], ""
    state.gpu = f"cc {cc[1]}" if cc else ""
    state.invocations = (counted[1] or counted[2]) if counted else ""
    state.seen.clear()
    newest = max((v.launch for v in state.values), default=-1)
    state.launch = max(newest, state.launch) + 1
    if counted:
        state.launch = state.summaries.setdefault(named[0].strip(), state.launch)
