"""The whole course in one chart: how near every stage comes to plain reading."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from labs_common import metric_names as names
from labs_common.chart_style import COLOURS, GREY, Chart, new_chart, number, styled
from labs_common.gpus import display_name
from labs_common.metrics import Metrics, select, value
from labs_common.problem import Problem

ROW_HEIGHT = 0.27  # inches of a bar and the space beside it
PANEL_HEIGHT = 0.85  # inches of a panel's title and axis


@styled
def way_to_the_roof(times: Metrics, problems: Mapping[str, Problem]) -> Chart:
    """A bar for each stage, a panel for each GPU and problem: the part of the read ceiling that it reaches.

    The part is the problem's minimum bytes over the stage's time (events, merge included), over the read
    ceiling of the same run.

    Args:
        times: rows of ``palab run`` on a GPU: times of whole stages and read ceilings.
        problems: by name; rows of others are left out.

    Raises:
        ValueError: no stage was timed on one of the problems in a run that has a ceiling.
    """
    timed = select(times, tool="events", metric=names.TIME)
    panels = []
    for gpu in dict.fromkeys(timed["gpu"]):
        for name, problem in problems.items():
            rows = select(timed, gpu=gpu, problem=name).sort_values("stage")
            ceiling = value(times, names.PEAK_BANDWIDTH, tool="events", gpu=gpu, problem=name)
            if len(rows) and ceiling > 0:
                panels.append((gpu, problem, rows, ceiling))
    if not panels:
        raise ValueError(f"no stage was timed beside a read ceiling on {', '.join(problems) or 'no problem'}")
    title = "From the baseline to the roof: the part of a plain read's speed that every stage reaches"
    heights = [PANEL_HEIGHT / ROW_HEIGHT + len(rows) for _, _, rows, _ in panels]
    chart = new_chart(ROW_HEIGHT * sum(heights) + 0.5, title)
    spoken = []
    for axes, panel in zip(
        chart.subplots(len(panels), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0],
        panels,
        strict=True,
    ):
        spoken.append(_panel(axes, *panel))
    chart.axes[-1].set_xlabel("% of the read ceiling of the same run")
    source = "times of whole calls by events, merge included: median of graph replays, stages in turn"
    chart.supxlabel(source, fontsize=7.5, color=GREY, x=0.01, ha="left")
    chart.description = f"{title}; {source}. {' '.join(spoken)}"
    return chart


def _panel(axes: Axes, gpu: str, problem: Problem, rows: Metrics, ceiling: float) -> str:
    """One GPU and problem; gives its figures in words."""
    labels = [stage.replace("_", " ") for stage in rows["stage"]]
    spoken = []
    for place, (label, nanoseconds) in enumerate(zip(labels, rows["value"], strict=True)):
        share = 100 * problem.bandwidth(nanoseconds * 1e-9) / ceiling
        axes.barh(place, share, 0.75, color=COLOURS[0], edgecolor="white", lw=0.4)
        text = f"{share:.1f} %, {number(nanoseconds / 1e3)} µs"
        inside = share > 60  # beside a long bar it would meet the line of 100 %
        axes.annotate(
            text,
            (share, place),
            (-4 if inside else 3, 0),
            textcoords="offset points",
            va="center",
            ha="right" if inside else "left",
            fontsize=7.5,
            bbox={"fc": "white", "ec": "none", "pad": 0.6},
        )
        spoken.append(f"{label} {text}")
    axes.axvline(100, color="black", lw=1.1, ls="--")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(0, 128)
    axes.set_xticks((0, 20, 40, 60, 80, 100))
    axes.grid(axis="y", visible=False)
    where = f"{display_name(gpu)}, problem {problem.name}, {problem.dtype}"
    read = f"100 % is {ceiling / 1e9:,.0f} GB/s"
    axes.set_title(f"{where}: {problem.minimum_bytes / 1e6:,.0f} MB to read, {read}", fontsize=8.5)
    return f"{where}, {read}: {', '.join(spoken)}."
