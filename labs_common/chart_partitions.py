"""Charts of stage 05's study: when splitting pays, contenders side by side, what partitions and merges cost.

They draw tables of `partition_tables`; every chart names the GPU and that its times were recorded.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from labs_common.chart_style import COLOURS, GREY, HATCHES, Chart, legend_below, new_chart, number, styled
from labs_common.gpus import display_name


@styled
def splitting(sweep: pd.DataFrame) -> Chart:
    """When splitting pays: time against the partition size, a panel for each batch and context.

    The largest partition of a panel is the whole context: no split. A line marks the time of a plain read of
    the same bytes.

    Args:
        sweep: `recorded_study("sweep")` of one GPU.

    Raises:
        ValueError: no rows, or rows of several GPUs.
    """
    gpu = _one_gpu(sweep)
    cells = list(sweep.groupby(["batch", "context"], sort=False))
    columns = min(3, len(cells))
    rows = -(-len(cells) // columns)
    chart = new_chart(2.25 * rows + 0.8, "When splitting pays: time of a decode step by partition size")
    panels = chart.subplots(rows, columns, squeeze=False).ravel()
    spoken = []
    for axes, ((batch, context), mine) in zip(panels, cells, strict=False):
        whole = mine["partition_tokens"] >= context
        texts = [f"{size:,.0f}" for size in mine["partition_tokens"]]
        for place, (split, time) in enumerate(zip(~whole, mine["median_us"], strict=True)):
            kind = 0 if split else 1
            axes.bar(place, time, 0.8, color=COLOURS[kind], hatch=HATCHES[kind], edgecolor="white", lw=0.4)
            _above(axes, place, time)
        axes.axhline(mine["read_us"].median(), color="black", lw=1.1, ls="--")
        axes.set_xticks(range(len(texts)), texts)
        axes.set_ylim(0, 1.2 * mine["median_us"].max())
        axes.grid(axis="x", visible=False)
        axes.tick_params(axis="x", length=0)
        best = mine.loc[mine["median_us"].idxmin()]
        gain = mine.loc[whole, "median_us"].min() / best["median_us"]
        axes.set_title(f"{batch} x {context:,} tokens: {gain:.3g} times faster", fontsize=8.5)
        times = ", ".join(f"{t} tokens {number(u)}" for t, u in zip(texts, mine["median_us"], strict=True))
        spoken.append(
            f"batch {batch}, context {context}: {times} microseconds; best {gain:.3g} times faster "
            f"than no split, a plain read {number(mine['read_us'].median())}"
        )
    for axes in panels[len(cells) :]:
        axes.set_visible(False)
    for axes in panels[::columns]:
        axes.set_ylabel("time, µs")
    for axes in panels[len(cells) - columns : len(cells)]:
        axes.set_xlabel("tokens of a partition")
    handles = [_patch(0), _patch(1), _dashed()]
    legend_below(
        chart, handles, [f"split ({display_name(gpu)}, recorded with events)", "not split", "plain read"]
    )
    chart.description = f"Times recorded on {display_name(gpu)}. " + ". ".join(spoken) + "."
    return chart


@styled
def contenders(table: pd.DataFrame, title: str, against: str | None = None) -> Chart:
    """Ways to do the same work, as bars of time, with their share of a plain read's speed.

    Args:
        table: rows of one recorded study on one problem and GPU.
        title: of the chart.
        against: ``what`` of the row that the others are compared with, in place of a plain read.

    Raises:
        ValueError: no rows, several GPUs, or no row called ``against``.
    """
    gpu = _one_gpu(table)
    times = table["eager_us"] if "eager_us" in table else table["median_us"]
    unit = "eager call, µs" if "eager_us" in table else "time, µs"
    if against is not None and against not in set(table["what"]):
        raise ValueError(f"against={against!r}: the rows are {', '.join(table['what'])}")
    labels = [text.replace("_", " ") for text in table["what"]]
    chart = new_chart(1.15 + 0.29 * len(table), title)
    axes = chart.subplots()
    spoken = []
    for place, (_, row) in enumerate(table.iterrows()):
        kind = 1 if row["what"] == against else 0
        time = times[row.name]
        axes.barh(place, time, 0.75, color=COLOURS[kind], hatch=HATCHES[kind], edgecolor="white", lw=0.4)
        text = f"{number(time)} µs"
        if against is not None:
            text += f", {time / times[table['what'] == against].iloc[0]:.3g} times" if kind == 0 else ""
        else:
            text += f", {row['% of read ceiling']:.1f} %"
        axes.annotate(text, (time, place), (3, 0), textcoords="offset points", va="center", fontsize=7.5)
        spoken.append(f"{labels[place]} {text}")
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.22 * times.max())
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(unit)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: number(tick)))
    source = f"{display_name(gpu)}, recorded with events; {table['problem'].iloc[0]}"
    chart.supxlabel(source, fontsize=7.5, color=GREY, x=0.01, ha="left")
    if against is None:
        read = table["read_us"].median()
        axes.axvline(read, color="black", lw=1.1, ls="--")
        words = f"plain read of the same bytes, 100 %: {number(read)} µs"
        axes.legend([_dashed()], [words], loc="lower right", bbox_to_anchor=(1.0, 1.0), borderpad=0)
    chart.description = f"{title}. {source}: " + "; ".join(spoken) + "."
    return chart


@styled
def partition_cost(planned: pd.DataFrame, measured: pd.DataFrame) -> Chart:
    """What a partition size costs: bytes of partials by plan, and the measured speed beside its waves.

    Args:
        planned: of `planned_partitions`, for the sizes that were measured.
        measured: `recorded_study("fp16")` of one GPU.

    Raises:
        ValueError: several GPUs, or no size in common.
    """
    gpu = _one_gpu(measured)
    both = planned.join(measured.set_index("partition_tokens")["% of read ceiling"], how="inner")
    if both.empty:
        raise ValueError("planned and measured have no partition size in common")
    chart = new_chart(3.5, "What a partition size costs, and what it gains")
    bytes_axes, speed_axes = chart.subplots(1, 2, width_ratios=(1, 1.35))
    spoken = []
    for place, (size, row) in enumerate(both.iterrows()):
        bytes_axes.bar(
            place,
            row["% of keys and values"],
            0.8,
            color=COLOURS[1],
            hatch=HATCHES[1],
            edgecolor="white",
            lw=0.4,
        )
        _above(bytes_axes, place, row["% of keys and values"])
        speed_axes.bar(
            place,
            row["% of read ceiling"],
            0.8,
            color=COLOURS[0],
            hatch=HATCHES[0],
            edgecolor="white",
            lw=0.4,
        )
        _above(speed_axes, place, row["% of read ceiling"])
        spoken.append(
            f"{size:.0f} tokens: {row['blocks']:.0f} blocks, {row['waves']:.2f} waves, partials "
            f"{number(row['% of keys and values'])} % of keys and values, "
            f"{number(row['% of read ceiling'])} % of a plain read's speed"
        )
    sizes = [f"{size:,.0f}" for size in both.index]
    bytes_axes.set_xticks(range(len(sizes)), sizes)
    with_waves = [f"{size}\n{waves:.2f}" for size, waves in zip(sizes, both["waves"], strict=True)]
    speed_axes.set_xticks(range(len(sizes)), with_waves)
    bytes_axes.set_title("partials, % of keys and values (by plan)", fontsize=8.5)
    speed_axes.set_title(f"% of a plain read's speed ({display_name(gpu)}, recorded)", fontsize=8.5)
    bytes_axes.set_xlabel("tokens of a partition")
    speed_axes.set_xlabel("tokens of a partition, and below it the waves of its blocks")
    bytes_axes.set_ylim(0, 1.18 * both["% of keys and values"].max())
    speed_axes.set_ylim(0, 100)
    for axes in (bytes_axes, speed_axes):
        axes.grid(axis="x", visible=False)
        axes.tick_params(axis="x", length=0)
    chart.description = f"Stage 05 on {display_name(gpu)}. " + "; ".join(spoken) + "."
    return chart


def _one_gpu(table: pd.DataFrame) -> str:
    gpus = list(dict.fromkeys(table["gpu"]))
    if len(gpus) != 1:
        raise ValueError(f"a chart of one GPU, not of {len(gpus)}: {', '.join(gpus) or 'no rows'}")
    return gpus[0]


def _above(axes: Axes, place: float, height: float) -> None:
    axes.annotate(
        number(height),
        (place, height),
        (0, 2),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=7.5,
    )


def _patch(kind: int) -> Patch:
    return Patch(facecolor=COLOURS[kind], hatch=HATCHES[kind], edgecolor="white")


def _dashed() -> Line2D:
    return Line2D([], [], color="black", lw=1.1, ls="--")
