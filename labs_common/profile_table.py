"""Profiles as tables for a terminal: a line a metric, a column a kernel, absent figures with their reason."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from rich.markup import escape
from rich.table import Table

from labs_common import metric_names as names
from labs_common.chart_style import absence, groups, kernel_labels, kernels_of, number, shown_unit
from labs_common.metrics import Metrics, group_launches, one, select

# What a profile is read for first; `palab metrics` shows every named metric.
MAIN = (
    names.TIME,
    names.DRAM_PCT,
    names.COMPUTE_PCT,
    names.ACHIEVED_OCCUPANCY,
    names.THEORETICAL_OCCUPANCY,
    names.REGISTERS,
    names.WAVES,
    names.DRAM_ACTIVE_CYCLES,
    names.DRAM_READ_BYTES,
    names.INSTRUCTIONS,
    names.GLOBAL_LOAD_REQUESTS,
    names.GLOBAL_LOAD_SECTORS,
    "smsp__inst_executed_op_shared_ld.sum",
    "smsp__inst_executed_op_shuffle.sum",
    "smsp__inst_executed_op_barrier.sum",
)


def named_metrics(frame: Metrics) -> list[str]:
    """The metrics of a table that have a label, in the order of the lab's list of names."""
    there = set(select(frame, line=None)["metric"])
    return [m for m in dict.fromkeys(name.metric for name in names.NAMES) if m in there]


def profile_tables(frame: Metrics, metrics: Sequence[str] = MAIN) -> list[Table]:
    """A table for each GPU, source, tool and problem, titled with it.

    Several launches of a kernel are grouped (`group_launches`). A metric that a kernel lacks says why.

    Raises:
        MetricsError: no kernel.
    """
    whole = group_launches(select(frame, line=None))
    whole = whole[whole["kernel"] != ""]
    tables = []
    for group in groups(whole):
        mine = select(whole, **group.where)
        table = Table(title=escape(group.label), title_justify="left")
        table.add_column("")
        table.add_column("unit")
        kernels = kernels_of(mine)
        for label in kernel_labels(kernels):
            table.add_column(escape(label.replace("\n", " ")), justify="right")
        for metric in metrics:
            rows = [one(mine, metric, stage=stage, kernel=kernel) for stage, kernel in kernels]
            unit, factor = next((shown_unit(row["unit"]) for row in rows if row is not None), ("", 1.0))
            table.add_row(names.label(metric), unit, *(escape(_cell(row, factor)) for row in rows))
        tables.append(table)
    return tables


def _cell(row: pd.Series | None, factor: float) -> str:
    if row is not None and row["text"]:
        return str(row["text"])
    missing = absence(row)
    return missing if row is None or missing is not None else number(row["value"] / factor)
