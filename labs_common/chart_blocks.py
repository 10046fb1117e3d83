"""When the multiprocessors of a GPU come to their end."""

from __future__ import annotations

import numpy as np
import pandas as pd

from labs_common.chart_style import COLOURS, GREY, MARKERS, Chart, new_chart, number, styled
from labs_common.gpus import display_name


@styled
def ends_of_multiprocessors(blocks: pd.DataFrame, gpu: str) -> Chart:
    """A line for each problem: the end of each multiprocessor's last block, the earliest first.

    Args:
        blocks: of ``block_times``, with the columns problem, dtype and runs, of which they are the median.
        gpu: that was measured.

    Raises:
        ValueError: no blocks.
    """
    if blocks.empty:
        raise ValueError("blocks: there are none to draw")
    title = "Who waits for whom: the end of each multiprocessor's last block"
    chart = new_chart(3.4, title)
    axes = chart.subplots()
    spoken = []
    for place, ((problem, dtype), mine) in enumerate(blocks.groupby(["problem", "dtype"], sort=False)):
        ends = np.sort(mine.groupby("multiprocessor")["end_us"].max().to_numpy())
        label = f"{problem}, {dtype}: {len(mine)} blocks"
        axes.plot(
            np.arange(1, len(ends) + 1),
            100 * ends / ends[-1],
            color=COLOURS[place % len(COLOURS)],
            marker=MARKERS[place % len(MARKERS)],
            ms=3.2,
            lw=0.9,
            label=f"{label}, the last after {number(ends[-1])} µs",
        )
        early = int((ends < 0.9 * ends[-1]).sum())
        spoken.append(
            f"{label} on {len(ends)} multiprocessors: the first ends after {number(ends[0])} µs, half "
            f"after {number(np.median(ends))}, the last after {number(ends[-1])}; {early} end more than a "
            "tenth early"
        )
    axes.set_xlabel("multiprocessors, in the order in which they end")
    axes.set_ylabel("end, % of the last one's")
    axes.legend(loc="lower right")
    runs = blocks["runs"].min()
    source = f"recorded on {display_name(gpu)}: a clock around stage 09's kernel, the median of {runs} runs"
    chart.supxlabel(source, fontsize=7.5, color=GREY, x=0.01, ha="left")
    chart.description = f"{title}; {source}. {'. '.join(spoken)}."
    return chart
