"""Roofline: a kernel's fp32 rate against its fp32 operations per DRAM byte, under the measured ceilings."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from labs_common import metric_names as names
from labs_common.chart_style import (
    COLOURS,
    GREY,
    MARKERS,
    Chart,
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
from labs_common.gpus import display_name
from labs_common.metrics import ABSENT, Metrics, MetricsError, build, group_launches, one, select

_LINES = ("-", "--", "-.", ":")


@styled
def roofline(frame: Metrics) -> Chart:
    """The kernels of a table under the roof of their GPU.

    Args:
        frame: `INTENSITY` and `FLOP_RATE` of each kernel (`derive.roofline_figures`), and for each GPU one
            row of `PEAK_BANDWIDTH` and `PEAK_FLOP_RATE`, which name the measurement in `tool`. A kernel
            without its two figures is named under the chart with the reason; a GPU without a ceiling is drawn
            without a roof.

    Raises:
        MetricsError: no kernel has its two figures.
    """
    frame = group_launches(select(frame, line=None))
    points = frame[frame["kernel"] != ""]
    chart = new_chart(5.0, "Roofline: fp32 operations against DRAM traffic")
    axes = chart.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    handles, labels, missing, spoken = [], [], [], []
    places: list[tuple[float, float, str]] = []
    for g, group in enumerate(groups(points[points["metric"].isin((names.INTENSITY, names.FLOP_RATE))])):
        mine = select(points, **group.where)
        for (stage, kernel), text in zip(kernels_of(mine), kernel_labels(kernels_of(mine)), strict=True):
            found = [one(mine, m, stage=stage, kernel=kernel) for m in (names.INTENSITY, names.FLOP_RATE)]
            reasons = [r for r in map(absence, found) if r]
            name = text.replace("\n", " ")
            if reasons:
                missing.append(f"{name}: {reasons[0]}")
                continue
            x, y = (row["value"] / shown_unit(row["unit"])[1] for row in found)
            axes.plot(x, y, MARKERS[g], color=COLOURS[g], ms=8, mec="white", zorder=3)
            places.append((x, y, name))
            spoken.append(
                f"{name} on {display_name(group.gpu)}: {number(y)} Gflop/s at {number(x)} flop per byte"
            )
        handles.append(Line2D([], [], marker=MARKERS[g], color=COLOURS[g], ls="", ms=8))
        labels.append(group.label)
    if not places:
        raise MetricsError(f"no kernel has {names.INTENSITY} and {names.FLOP_RATE}: {'; '.join(missing)}")
    span = (min(x for x, _, _ in places) / 5, max(x for x, _, _ in places) * 20)
    for n, gpu in enumerate(dict.fromkeys(frame["gpu"])):
        drawn = _roof(axes, select(frame, gpu=gpu, kernel=""), span, _LINES[n % len(_LINES)])
        if drawn:
            handles.append(Line2D([], [], color="black", ls=_LINES[n % len(_LINES)]))
            labels.append(f"{display_name(gpu)}: {drawn}")
        spoken.append(f"roof of {display_name(gpu)}: {drawn or 'no ceiling given'}")
    if missing:
        labels.append("Not drawn: " + "; ".join(missing))
        handles.append(Line2D([], [], ls=""))
    axes.set_xlim(*span)
    bottom, top = axes.get_ylim()
    axes.set_ylim(min(bottom, min(y for _, y, _ in places) / 3), top * 2)
    _name_points(axes, places)
    axes.set_xlabel("fp32 operations per DRAM byte")
    axes.set_ylabel("Gflop/s")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda tick, _: number(tick)))
        axis.set_minor_formatter(NullFormatter())
    legend_below(chart, handles, labels)
    chart.description = "Roofline. " + "; ".join([*spoken, *(f"not drawn: {m}" for m in missing)]) + "."
    return chart


def _name_points(axes: Axes, places: list[tuple[float, float, str]]) -> None:
    """Writes names beside points, moved apart where points nearly coincide, each tied to its point."""
    points_per_decade = 230 / np.log10(axes.get_ylim()[1] / axes.get_ylim()[0])
    below: list[tuple[float, float]] = []
    for x, y, name in sorted(places, key=lambda place: place[1]):
        height = points_per_decade * np.log10(y)
        free = height
        for other_x, other_height in below:
            if abs(np.log10(x / other_x)) < 0.7 and free - other_height < 12:
                free = other_height + 12
        below.append((x, free))
        line = {"arrowstyle": "-", "lw": 0.5, "color": GREY, "relpos": (0, 0.5)}
        axes.annotate(
            name, (x, y), (14, free - height), textcoords="offset points", va="center", fontsize=8,
            arrowprops=line if free - height > 4 else None,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.85},
        )  # fmt: skip


def _roof(axes: Axes, ceilings: Metrics, span: tuple[float, float], line: str) -> str:
    """Draws the roof that a GPU's ceilings make; gives them in words, "" when there are none."""
    bandwidth, peak = (one(ceilings, m) for m in (names.PEAK_BANDWIDTH, names.PEAK_FLOP_RATE))
    x = np.geomspace(*span, 200)
    parts, roofs = [], []
    for row, slope in ((bandwidth, x), (peak, np.ones_like(x))):
        if absence(row) is None:
            shown, factor = shown_unit(row["unit"])
            roofs.append(row["value"] / factor * slope)
            label = names.label(row["metric"]).lower()
            parts.append(f"{label} {number(row['value'] / factor)} {shown} ({row['source']}, {row['tool']})")
    if roofs:
        axes.plot(x, np.min(roofs, axis=0), color="black", lw=1.3, ls=line, zorder=1)
    missing = [
        names.label(m).lower()
        for m, r in zip((names.PEAK_BANDWIDTH, names.PEAK_FLOP_RATE), (bandwidth, peak), strict=True)
        if absence(r)
    ]
    return ", ".join(parts + [f"no {m}" for m in missing if parts])


def ceilings(gpu: str, source: str, tool: str, bandwidth: float | None, peak_fp32: float | None) -> Metrics:
    """Ceilings of a GPU as the rows that `roofline` draws its roof from.

    Args:
        gpu: id.
        source: measured, or where they were read.
        tool: what measured them, such as "read kernel" or "FFMA kernel".
        bandwidth: byte/second; None when not measured.
        peak_fp32: flop/second; None when not measured.
    """
    rows = []
    for metric, unit, value in (
        (names.PEAK_BANDWIDTH, "byte/second", bandwidth),
        (names.PEAK_FLOP_RATE, "flop/second", peak_fp32),
    ):
        absent = value is None or pd.isna(value)
        rows.append({"metric": metric, "unit": unit, "value": value, "reason": ABSENT if absent else ""})
    return build(rows, source=source, tool=tool, gpu=gpu)
