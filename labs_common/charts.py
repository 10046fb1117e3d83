"""Charts: Metrics in, a matplotlib Figure out; they pick rows and units, `derive` calculates.

Every chart says in its title or legend where its figures come from, tells groups apart by colour and by hatch
or marker, and draws an absent value as a gap with its reason. `Chart.alt_text()` says in words what it shows.
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from labs_common import metric_names as names
from labs_common.chart_details import memory_table, simulated_against_measured, source_lines, stall_reasons
from labs_common.chart_occupancy import occupancy_curve
from labs_common.chart_roofline import ceilings, roofline
from labs_common.chart_style import (
    COLOURS,
    HATCHES,
    Chart,
    Group,
    absence,
    gap,
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
from labs_common.metrics import (
    Metrics,
    group_launches,
    is_additive,
    one,
    select,
    stage_totals,
    value,
)

__all__ = [
    "Chart",
    "ceilings",
    "memory_table",
    "occupancy_curve",
    "roofline",
    "simulated_against_measured",
    "source_lines",
    "stage_progression",
    "stall_reasons",
]

PROGRESSION = (
    names.TIME,
    names.DRAM_PCT,
    names.COMPUTE_PCT,
    names.ACHIEVED_OCCUPANCY,
    names.REGISTERS,
    names.DRAM_ACTIVE_CYCLES,
)
_LOG_PANELS = {names.TIME}  # where stages are far apart
_FAR_APART = 5.0  # times; on a logarithmic axis, bars that differ by less look equal


@styled
def stage_progression(frame: Metrics, metrics: tuple[str, ...] = PROGRESSION) -> Chart:
    """One panel a metric, one bar a kernel, GPUs and sources side by side.

    The occupancy panel also marks the theoretical occupancy. Kernels of one stage stand apart, as a sum of
    percentages means nothing; where one does, as of times, the stage's sum is written at its first kernel.
    Several launches of a kernel are one bar, by `group_launches`.

    Raises:
        MetricsError: no kernel to draw.
    """
    frame = group_launches(select(frame, line=None))
    kernels, drawn = kernels_of(frame), groups(frame)
    rows = -(-len(metrics) // 2)
    turned = 0.8 if len(kernels) > MOST_UPRIGHT else 0.0  # names of kernels that run upwards
    chart = new_chart(2.15 * rows + 0.75 + 0.2 * len(drawn) + turned, "From stage to stage, kernel by kernel")
    panels = np.atleast_1d(chart.subplots(rows, 2, sharex=True)).ravel()
    words = []
    for axes, metric in zip(panels, metrics, strict=False):
        words.append(_bars(axes, frame, metric, kernels, drawn))
    for axes in panels[len(metrics) :]:
        axes.set_visible(False)
    handles = [Patch(facecolor=COLOURS[i], hatch=HATCHES[i], edgecolor="white") for i in range(len(drawn))]
    legend_below(chart, handles, [g.label for g in drawn])
    chart.description = f"Bars of {len(kernels)} kernels. " + " ".join(words)
    return chart


def _bars(axes: Axes, frame: Metrics, metric: str, kernels: list[tuple[str, str]], drawn: list[Group]) -> str:
    """One panel of `stage_progression`; gives its figures in words."""
    width = 0.8 / len(drawn)
    apart = PANEL_WIDTH_POINTS / (len(kernels) + 0.2) * (1 if len(drawn) == 1 else width)
    turn = 0 if apart >= WIDEST_LABEL_POINTS else 90
    unit, spoken = "", []
    labels: list[tuple[float, str]] = []
    tops: list[tuple[float, bool]] = []  # of the bars, and whether it is its stage's first kernel
    totals = (
        stage_totals(select(frame, metric=[metric, names.TIME]))
        if is_additive(metric, "")
        else frame.iloc[:0]
    )
    names_on_axis = [text.replace("\n", " ") for text in kernel_labels(kernels)]
    for g, group in enumerate(drawn):
        for k, (stage, kernel) in enumerate(kernels):
            place = k + (g - (len(drawn) - 1) / 2) * width
            who = f"{names_on_axis[k]} on {display_name(group.gpu)}"
            row = one(frame, metric, stage=stage, kernel=kernel, **group.where)
            reason = absence(row)
            if reason is not None:
                gap(axes, place, reason)
                spoken.append(f"{who}: {reason}")
                continue
            unit, factor = shown_unit(row["unit"])
            height = row["value"] / factor
            tops.append((height, k == 0 or kernels[k - 1][0] != stage))
            axes.bar(
                place, height, width * 0.92, color=COLOURS[g], hatch=HATCHES[g], edgecolor="white", lw=0.4
            )
            text, top = number(height), height
            if metric == names.ACHIEVED_OCCUPANCY:
                limit = value(frame, names.THEORETICAL_OCCUPANCY, stage=stage, kernel=kernel, **group.where)
                if limit == limit:
                    axes.hlines(limit, place - width / 2, place + width / 2, color="black", lw=1.6)
                    text, top = f"{text} of {number(limit)}", max(limit, height)
            if sum(s == stage for s, _ in kernels) > 1 and (k == 0 or kernels[k - 1][0] != stage):
                total = value(totals, metric, stage=stage, **group.where)
                between = " (stage {})" if turn else "\nstage {}"
                text += between.format(number(total / factor)) if total == total else ""
            labels.append((top, text))
            axes.annotate(
                text, (place, top), (0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=7,
                rotation=turn,
            )  # fmt: skip
            spoken.append(f"{who}: {text.replace(chr(10), ', ')} {unit}".rstrip())
    label = names.label(metric) + (", line: theoretical" if metric == names.ACHIEVED_OCCUPANCY else "")
    firsts = [top for top, first in tops if first]
    logarithmic = metric in _LOG_PANELS and bool(firsts) and max(firsts) > _FAR_APART * min(firsts)
    axes.set_title(", ".join(filter(None, (label, unit, "logarithmic" if logarithmic else ""))))
    if len(kernels) <= MOST_UPRIGHT:
        axes.set_xticks(range(len(kernels)), kernel_labels(kernels))
    else:
        axes.set_xticks(range(len(kernels)), names_on_axis, rotation=90)
    axes.grid(axis="x", visible=False)
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.6, len(kernels) - 0.4)
    _scale(axes, unit, logarithmic, labels, turned=turn != 0)
    return f"{label}: " + "; ".join(spoken) + "."


PANEL_POINTS = 130.0  # height of a panel of `stage_progression`, roughly
CHARACTER_POINTS, LINE_POINTS = 3.6, 9.0  # of a bar's label
PANEL_WIDTH_POINTS = 290.0
WIDEST_LABEL_POINTS = 44.0  # such as "38.7 of 50"
MOST_UPRIGHT = 6  # kernels whose names fit side by side


def _scale(axes: Axes, unit: str, logarithmic: bool, labels: list[tuple[float, str]], turned: bool) -> None:
    """The axis of values, with room above the bars for their labels.

    Args:
        axes, unit: of the panel.
        logarithmic: whether the axis is.
        labels: where each stands on, and its text.
        turned: whether they run upwards.
    """
    if not labels:
        return
    shares = []
    for _, text in labels:
        lines = text.split("\n")
        points = CHARACTER_POINTS * max(map(len, lines)) if turned else LINE_POINTS * len(lines)
        shares.append(min(0.8, (points + 6) / PANEL_POINTS))
    tops = [top for top, _ in labels]
    if logarithmic:
        axes.set_yscale("log")
        bottom = axes.get_ylim()[0] / 2
        top = max(bottom * (t / bottom) ** (1 / (1 - share)) for t, share in zip(tops, shares, strict=True))
        axes.set_ylim(bottom, top)
        # Decades, or 1, 2 and 5 of each where there are hardly any; labels of all nine would crowd.
        few = math.log10(top / bottom) < 2
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda tick, _: number(tick)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        return
    top = max(t / (1 - share) for t, share in zip(tops, shares, strict=True))
    if unit == "%":
        axes.set_ylim(0, max(118, top))
        axes.set_yticks(range(0, 101, 25))
    else:
        axes.set_ylim(0, top or 1)
