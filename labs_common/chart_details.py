"""Charts of one profile's details: stall reasons, the memory table, figures beside lines of code."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.patches import Patch

from labs_common import metric_names as names
from labs_common.chart_style import (
    COLOURS,
    GREY,
    HATCHES,
    MARKERS,
    Chart,
    Group,
    absence,
    groups,
    kernel_labels,
    kernels_of,
    legend_below,
    new_chart,
    number,
    shown_unit,
    styled,
)
from labs_common.derive import SECTORS_PER_REQUEST, STALL_SHARE, compare_sources
from labs_common.gpus import display_name
from labs_common.metrics import ABSENT, Metrics, MetricsError, group_launches, one, select

MEMORY = (
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    SECTORS_PER_REQUEST,
    "smsp__inst_executed_op_shared_ld.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "l1tex__t_sector_hit_rate.pct",
    "lts__t_sector_hit_rate.pct",
    names.DRAM_READ_BYTES,
    names.DRAM_WRITE_BYTES,
)
COUNTED = (
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "smsp__inst_executed_op_shared_ld.sum",
    "smsp__inst_executed_op_shared_st.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    names.DRAM_READ_BYTES,
    names.THEORETICAL_OCCUPANCY,
    names.WAVES,
)


@styled
def stall_reasons(frame: Metrics, most: int = 7) -> Chart:
    """What the warps of each kernel were waiting for: shares of their samples, one panel a kernel.

    Args:
        frame: `derive.stall_shares` of a profile, or a table with them.
        most: reasons a panel shows; the others are named together in the panel's title.

    Raises:
        MetricsError: no stall shares.
    """
    frame = group_launches(select(frame, line=None))
    shares = frame[frame["metric"].str.startswith(STALL_SHARE)]
    if shares.empty:
        raise MetricsError(f"no stall samples in these metrics: {ABSENT}")
    drawn = groups(shares)
    cells = [(g, pair) for g in range(len(drawn)) for pair in kernels_of(select(shares, **drawn[g].where))]
    columns = min(3, len(cells))
    rows = -(-len(cells) // columns)
    chart = new_chart(
        0.9 + (0.6 + 0.21 * most) * rows + 0.2 * len(drawn), "What the warps wait for, % of their samples"
    )
    panels = chart.subplots(rows, columns, squeeze=False).ravel()
    labels = {pair: kernel_labels(kernels_of(shares))[i] for i, pair in enumerate(kernels_of(shares))}
    spoken = []
    for axes, (g, (stage, kernel)) in zip(panels, cells, strict=False):
        mine = select(shares, stage=stage, kernel=kernel, **drawn[g].where).sort_values(
            "value", ascending=False
        )
        top = mine.head(most)
        reasons = [m.removeprefix(STALL_SHARE).replace("_", " ") for m in top["metric"]]
        bars = axes.barh(
            range(len(top)), top["value"], color=COLOURS[g], hatch=HATCHES[g], edgecolor="white", lw=0.4
        )
        axes.bar_label(bars, [number(v) for v in top["value"]], padding=2, fontsize=7)
        axes.set_yticks(range(len(top)), reasons, fontsize=7.5)
        axes.invert_yaxis()
        axes.set_xlim(0, 115)
        axes.set_xticks([0, 50, 100])
        axes.grid(axis="y", visible=False)
        name = labels[stage, kernel].replace("\n", " ")
        left = len(mine) - len(top)
        axes.set_title(name + (f" (+{left} smaller)" if left else ""), fontsize=8.5)
        figures = ", ".join(f"{r} {number(v)} %" for r, v in zip(reasons, top["value"], strict=True))
        spoken.append(f"{name} on {display_name(drawn[g].gpu)}: {figures}")
    for axes in panels[len(cells) :]:
        axes.set_visible(False)
    _group_legend(chart, drawn)
    chart.description = "Shares of warp samples by stall reason. " + "; ".join(spoken) + "."
    return chart


def _group_legend(chart: Chart, drawn: Sequence[Group]) -> None:
    handles = [Patch(facecolor=COLOURS[i], hatch=HATCHES[i], edgecolor="white") for i in range(len(drawn))]
    legend_below(chart, handles, [g.label for g in drawn])


@styled
def memory_table(frame: Metrics, metrics: Sequence[str] = MEMORY) -> Chart:
    """A table of memory figures, one line a metric, one column a kernel; absent figures say so.

    Raises:
        MetricsError: no kernel, or more columns than fit.
    """
    frame = group_launches(select(frame, line=None))
    drawn = groups(frame[frame["kernel"] != ""])
    cells = [(group, pair) for group in drawn for pair in kernels_of(select(frame, **group.where))]
    if len(cells) > 10:
        raise MetricsError(f"{len(cells)} kernels in one table; at most 10 fit: select some")
    labels = {pair: text for group in drawn for pair, text in _labelled(select(frame, **group.where))}
    body, spoken = [], []
    for metric in metrics:
        line, unit = [], ""
        for group, (stage, kernel) in cells:
            row = one(frame, metric, stage=stage, kernel=kernel, **group.where)
            if absence(row) is None:
                unit, factor = shown_unit(row["unit"])
                line.append(number(row["value"] / factor))
            else:
                line.append("–")
        title = names.label(metric) + (f", {unit}" if unit else "")
        body.append([title, *line])
        spoken.append(f"{title}: " + ", ".join(line))
    chart = new_chart(1.0 + 0.27 * len(body) + 0.18 * len(drawn), "Memory, kernel by kernel")
    axes = chart.subplots()
    axes.axis("off")
    multiple = len(drawn) > 1
    head = [labels[pair] + (f"\n{display_name(group.gpu)}" if multiple else "") for group, pair in cells]
    first = 0.30
    table = axes.table(
        cellText=body, colLabels=["", *head], loc="upper left", cellLoc="right", edges="horizontal",
        colWidths=[first, *[(1 - first) / len(cells)] * len(cells)], bbox=(0, 0, 1, 1),
    )  # fmt: skip
    table.auto_set_font_size(False)
    table.set_fontsize(8 if len(cells) <= 7 else 7)
    for (row, column), cell in table.get_celld().items():
        cell.set_edgecolor("#bbbbbb")
        cell.set_height((2.4 if row == 0 else 1) * cell.get_height())
        if column == 0:
            cell.set_text_props(ha="left")
    note = "– means not measured. " + " | ".join(g.label for g in drawn)
    chart.supxlabel(note, fontsize=7.5, color=GREY, x=0.01, ha="left")
    chart.description = (
        f"Table of {len(cells)} kernels ({', '.join(h.replace(chr(10), ' ') for h in head)}). "
        + "; ".join(spoken)
    )
    return chart


def _labelled(frame: Metrics) -> list[tuple[tuple[str, str], str]]:
    return list(zip(kernels_of(frame), kernel_labels(kernels_of(frame)), strict=True))


@styled
def simulated_against_measured(frame: Metrics, metrics: Sequence[str] = COUNTED) -> Chart:
    """How far the simulator's counts are from a GPU's: the measured figure over the simulated one.

    A ratio of 1 says that the count is the same. What one of the sides lacks is listed under the chart.

    Raises:
        MetricsError: no simulated rows, or nothing to compare them with.
    """
    table = compare_sources(frame, tuple(metrics))
    if table.empty:
        raise MetricsError("nothing but simulated rows: no measured figure to compare them with")
    there = table[table["reason"] == ""]
    order = [m for m in map(names.canonical, metrics) if m in set(table["metric"])]
    pairs = list(
        dict.fromkeys(
            table[["stage", "kernel"]].sort_values("stage", kind="stable").itertuples(index=False, name=None)
        )
    )
    texts = [text.replace("\n", " ") for text in kernel_labels(pairs)]
    if len(pairs) > len(COLOURS):
        raise MetricsError(
            f"{len(pairs)} kernels in one chart; at most {len(COLOURS)} can be told apart: select some"
        )
    chart = new_chart(1.5 + 0.36 * len(order), "Measured over simulated, count by count")
    axes = chart.subplots()
    axes.axvline(1, color="black", lw=1)
    spoken = []
    for p, pair in enumerate(pairs):
        mine = there[(there["stage"] == pair[0]) & (there["kernel"] == pair[1])]
        heights = [order.index(m) + 0.11 * (p - (len(pairs) - 1) / 2) for m in mine["metric"]]
        axes.plot(
            mine["ratio"], heights, MARKERS[p], color=COLOURS[p], ms=6, mec="white", mew=0.4, label=texts[p]
        )
        spoken += [f"{texts[p]} {names.label(r.metric)} {number(r.ratio)}" for r in mine.itertuples()]
    axes.set_yticks(range(len(order)), [names.label(m) for m in order])
    axes.invert_yaxis()
    low, high = (there["ratio"].min(), there["ratio"].max()) if len(there) else (1.0, 1.0)
    axes.set_xlim(min(0.5, low * 0.9), max(1.5, high * 1.1))
    if high > 4 or low < 0.25:
        axes.set_xscale("log")
    axes.set_xlabel("measured / simulated")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    absent = table[table["reason"] != ""]
    sources = ", ".join(sorted({f"{display_name(r.gpu)} ({r.source})" for r in table.itertuples()}))
    lacking = sorted({f"{names.label(r.metric)} ({r.reason})" for r in absent.itertuples()})
    note = f"Simulated: PTX instructions, before ptxas joins or splits them. Measured: {sources}." + (
        " Absent: " + "; ".join(lacking) if lacking else ""
    )
    chart.supxlabel(note, fontsize=7.5, color=GREY, x=0.01, ha="left", wrap=True)
    chart.description = "Measured over simulated: " + "; ".join(spoken) + ". " + note
    return chart


@styled
def source_lines(
    frame: Metrics, source: str, metrics: Sequence[str], first: int | None = None, last: int | None = None
) -> Chart:
    """Figures of each line of a kernel beside its code, one column of bars a metric.

    Args:
        frame: rows with a line, of one kernel of one group.
        source: the file's text; line 1 is its first.
        metrics: one to three of the rows' metrics.
        first, last: lines to show; by default those with figures and two around them, at most 70.

    Raises:
        MetricsError: no such rows, several kernels, or a line that the text does not have.
    """
    if not 1 <= len(metrics) <= 3:
        raise ValueError(f"{len(metrics)} metrics are not allowed: one to three")
    rows = select(frame, metric=list(metrics))
    rows = rows[rows["line"].notna() & rows["value"].notna()]
    if rows.empty:
        raise MetricsError(f"no figures by line of {', '.join(metrics)}: {ABSENT}")
    cells = rows[["source", "tool", "gpu", "problem", "stage", "kernel", "launch", "file"]].drop_duplicates()
    if len(cells) != 1:
        raise MetricsError(f"lines of {len(cells)} kernels, launches or files; select one")
    code = source.splitlines()
    if rows["line"].max() > len(code):
        raise MetricsError(f"a figure for line {rows['line'].max()}, but the source has {len(code)} lines")
    first = max(1, int(rows["line"].min()) - 2) if first is None else first
    last = min(len(code), int(rows["line"].max()) + 2, first + 69) if last is None else last
    count = last - first + 1
    chart = new_chart(1.0 + 0.155 * count, f"Line by line: {cells.iloc[0]['kernel']}")
    panels = chart.subplots(
        1, len(metrics) + 1, sharey=True, width_ratios=[*[0.9] * len(metrics), 6 - 0.6 * len(metrics)]
    )
    spoken = []
    for n, (axes, metric) in enumerate(zip(panels, metrics, strict=False)):
        mine = select(rows, metric=metric).groupby("line")["value"].first()
        mine = mine[(mine.index >= first) & (mine.index <= last)]
        axes.barh(mine.index.astype(int), mine, color=COLOURS[n], hatch=HATCHES[n], edgecolor="white", lw=0.4)
        top = mine.max() if len(mine) else 1
        for line, amount in mine[mine > 0].items():
            axes.text(amount + 0.03 * top, line, _short(amount), va="center", fontsize=6)
        axes.set_xlim(0, max(top, 1e-9) * 1.6)
        axes.set_xticks([])
        axes.grid(visible=False)
        sampled = " (sampled)" if select(rows, metric=metric)["sampled"].any() else ""
        axes.set_title(textwrap.fill(names.label(metric) + sampled, 16), fontsize=7)
        best = mine.sort_values(ascending=False).head(3)
        spoken.append(
            f"{names.label(metric)}: most at "
            + ", ".join(
                f"line {line} ({_short(v)}, {code[int(line) - 1].strip()})" for line, v in best.items()
            )
        )
    text = panels[-1]
    for line in range(first, last + 1):
        text.text(
            0.0,
            line,
            f"{line:4d}  {_cut(code[line - 1], 92)}",
            family="DejaVu Sans Mono",
            fontsize=6.6,
            va="center",
        )
    text.axis("off")
    panels[0].set_ylim(last + 0.7, first - 0.7)
    for axes in panels:
        axes.tick_params(left=False, labelleft=False)
    chart.supxlabel(groups(rows)[0].label, fontsize=7.5, color=GREY, x=0.01, ha="left")
    chart.description = f"Figures beside lines {first} to {last}. " + "; ".join(spoken) + "."
    return chart


def _cut(line: str, most: int) -> str:
    return line if len(line) <= most else line[: most - 1] + "…"


def _short(amount: float) -> str:
    """A count in few characters, such as 512, 12.6k or 4.2M."""
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(amount) >= factor:
            return f"{amount / factor:.3g}{suffix}"
    return f"{amount:.3g}"
