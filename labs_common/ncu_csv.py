"""Nsight Compute's CSV: the details page, the raw page (units in a row under the header), and summaries."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

import pandas as pd

from labs_common.metrics import Metrics
from labs_common.ncu_rows import Context, Printed, ProfileError, printed_metrics, rules_frame, speedup
from labs_common.units import decimal_mark

_IDENTITY = {
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream"),
    *("Block Size", "Grid Size", "Device", "CC", "Invocations", "Section Name"),
    *("Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup"),
}
_DEVICE_NAME = "device__attribute_display_name"


def is_header(line: str) -> bool:
    """Whether a line is the header of one of the CSV pages."""
    return line.startswith('"') and '"Kernel Name"' in line and ('"Metric Name"' in line or '"ID"' in line)


def _records(lines: list[str]) -> Iterator[list[str]]:
    """Rows of the table among other output; a field may span lines."""
    pending = ""
    for line in lines:
        if not pending and not line.startswith('"'):
            continue
        pending = f"{pending}\n{line}" if pending else line
        if pending.count('"') % 2 == 0:
            yield from csv.reader([pending])
            pending = ""
    if pending:
        raise ProfileError(f"the CSV ends within a quoted field: {pending[:80]!r}")


def read_csv(text: str, context: Context, processes: set[str]) -> tuple[Metrics, pd.DataFrame]:
    """Metrics and rules of a CSV page, whatever stands around it.

    Args:
        text: from the header on.
        context: what the page does not say.
        processes: ids of the profiled processes as the log names them; rows of others are no profile's.

    Raises:
        ProfileError: no or several headers, a row that does not fit its header, or as `printed_metrics`.
    """
    records = list(_records(text.splitlines()))
    heads = [i for i, record in enumerate(records) if "Kernel Name" in record and is_header(_joined(record))]
    if len(heads) != 1:
        raise ProfileError(
            f"{len(heads)} CSV headers, expected one: profile with --log-file, so that nothing a program "
            "prints can look like a profile, and read one log at a time"
        )
    header, *rows = records[heads[0] :]
    rows = [row for row in rows if len(row) > 1]
    column = {name: i for i, name in reversed(list(enumerate(header)))}
    too_long = next((row for row in rows if len(row) > len(header)), None)
    if too_long is not None:
        raise ProfileError(f"a row has {len(too_long)} fields under {len(header)} columns: {too_long[:8]}")
    table = [{name: row[i] if i < len(row) else "" for name, i in column.items()} for row in rows]
    if processes and "Process ID" in column:
        table = [row for row in table if row["Process ID"] in processes | {""}]
    if "Metric Name" not in column:
        return printed_metrics(list(_raw(table, header)), context), rules_frame([])
    if "Metric Value" not in column and "Average" not in column:
        raise ProfileError(f"columns {header} have neither 'Metric Value' nor 'Average'")
    _number_launches(table)
    values = [_detail(row) for row in table if row["Metric Name"]]
    mark = context.decimal or decimal_mark(v.text for v in values)
    return printed_metrics(values, context), rules_frame(_rules(table, mark))


def _joined(record: list[str]) -> str:
    return ",".join(f'"{field}"' for field in record)


def _number_launches(table: list[dict[str, str]]) -> None:
    """Gives each row its launch: its ID, or a running number where there is none or processes count alike."""
    key = ("Process ID", "ID") if table and "ID" in table[0] else ("Kernel Name", "Block Size", "Grid Size")
    seen: dict[tuple[str, ...], int] = {}
    for row in table:
        seen.setdefault(tuple(row.get(name, "") for name in key), len(seen))
    ids = [found[-1] for found in seen]
    own = key[-1] == "ID" and len(set(ids)) == len(ids) and all(i.isdigit() for i in ids)
    for row in table:
        found = tuple(row.get(name, "") for name in key)
        row["launch"] = found[-1] if own else str(seen[found])


def _gpu(row: dict[str, str]) -> str:
    return f"cc {row['CC']}" if row.get("CC") else ""


def _detail(row: dict[str, str]) -> Printed:
    """A row of the details page, or of a summary, whose average is the value."""
    average = "Metric Value" not in row
    return Printed(
        kernel=row["Kernel Name"],
        launch=int(row["launch"]),
        section=row.get("Section Name", ""),
        shown=row["Metric Name"],
        unit=row.get("Metric Unit", ""),
        text=row["Average"] if average else row["Metric Value"],
        gpu=_gpu(row),
        reason=f"average of {row.get('Invocations', '') or 'several'} launches" if average else "",
    )


def _rules(table: list[dict[str, str]], mark: str | None) -> Iterator[dict[str, object]]:
    for row in table:
        if row.get("Rule Name"):
            yield {
                "kernel": row["Kernel Name"],
                "launch": int(row["launch"]),
                "section": row.get("Section Name", ""),
                "rule": row["Rule Name"],
                "kind": row.get("Rule Type", ""),
                "message": row.get("Rule Description", ""),
                "speedup_kind": row.get("Estimated Speedup Type", ""),
                "speedup_pct": speedup(row.get("Estimated Speedup", ""), mark),
            }


def _raw(table: list[dict[str, str]], header: list[str]) -> Iterator[Printed]:
    """Values of the raw page: one row a launch, one column a metric, the units in the first row."""
    if not table or table[0]["ID"] or table[0]["Kernel Name"]:
        raise ProfileError("a raw page needs its row of units under the header; none is there")
    units, *launches = table
    _number_launches(launches)
    nvtx = re.compile("Push/Pop_Range|Start/Stop_Range")
    metrics = [name for name in header if name not in _IDENTITY and not nvtx.search(name)]
    for row in launches:
        for metric in metrics:
            yield Printed(
                kernel=row["Kernel Name"],
                launch=int(row["launch"]),
                section="",
                shown=metric,
                unit=units[metric],
                text=row[metric],
                gpu=row.get(_DEVICE_NAME, "") or _gpu(row),
            )
