"""What every chart shares: the Chart class, the palette, how units are shown, gaps and source lines."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labs_common.gpus import display_name
from labs_common.metrics import ABSENT, Metrics, MetricsError

WIDTH = 9.0  # inches: the width of a notebook's output cell
DPI = 110

# Okabe and Ito's colours, told apart with every common colour vision; hatch and marker repeat the
# distinction.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++")
MARKERS = ("o", "s", "^", "D", "v", "P")
GREY = "#595959"

STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "figure.facecolor": "white",
    "hatch.linewidth": 0.6,
}

# Base unit -> the unit a chart shows, and how many base units it is.
SHOWN_UNITS = {
    "nsecond": ("ms", 1e6),
    "cycle": ("million", 1e6),
    "byte": ("MB", 1e6),
    "byte/second": ("GB/s", 1e9),
    "hz": ("GHz", 1e9),
    "flop": ("Gflop", 1e9),
    "flop/second": ("Gflop/s", 1e9),
    "flop/byte": ("flop per DRAM byte", 1.0),
    "inst": ("million", 1e6),
    "sector": ("million", 1e6),
    "request": ("million", 1e6),
    "byte/block": ("KiB per block", 1024.0),
    "register/thread": ("", 1.0),
    "sample": ("", 1.0),
}


def lab_style() -> AbstractContextManager[None]:
    """matplotlib's defaults with the lab's style on top, whatever the caller has set."""
    defaults = {key: value for key, value in mpl.rcParamsDefault.items() if not key.startswith("backend")}
    return mpl.rc_context({**defaults, **STYLE})


class Chart(Figure):
    """A matplotlib Figure that a notebook shows as PNG, with a description for those who cannot see it."""

    description = ""

    def alt_text(self) -> str:
        """What the chart shows, in words and with its figures."""
        return self.description

    def png(self, dpi: int = DPI) -> bytes:
        """The chart as PNG; the same bytes for the same chart."""
        buffer = io.BytesIO()
        with lab_style():
            self.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
        return buffer.getvalue()

    def _repr_png_(self) -> bytes:
        return self.png()


def styled(chart: Callable[..., Chart]) -> Callable[..., Chart]:
    """Draws a chart in the lab's style whatever the caller's matplotlib settings are."""

    @wraps(chart)
    def inner(*args: Any, **kwargs: Any) -> Chart:
        with lab_style():
            return chart(*args, **kwargs)

    return inner


def new_chart(height: float, title: str) -> Chart:
    """An empty chart of notebook width, height in inches."""
    chart = Chart(figsize=(WIDTH, height), layout="constrained")
    chart.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
    return chart


@dataclass(frozen=True)
class Group:
    """The rows that one colour stands for: one GPU, source, tool and problem."""

    source: str
    tool: str
    gpu: str
    problem: str

    @property
    def label(self) -> str:
        """Such as "H200, problem seed, recorded with ncu"."""
        gpu = display_name(self.gpu) if self.gpu else "unnamed GPU"
        problem = f", problem {self.problem}" if self.problem else ""
        return f"{gpu}{problem}, {SOURCE_WORDS[self.source].format(tool=self.tool)}"

    @property
    def where(self) -> dict[str, str]:
        """The group as arguments of `select`."""
        return {"source": self.source, "tool": self.tool, "gpu": self.gpu, "problem": self.problem}


SOURCE_WORDS = {
    "measured": "measured here with {tool}",
    "recorded": "recorded with {tool}",
    "reported": "reported by the {tool}",
    "simulated": "simulated ({tool}): counted or by formula, not measured",
}


def groups(frame: Metrics) -> list[Group]:
    """The groups of a table in order of appearance.

    Raises:
        ValueError: more groups than the palette tells apart.
    """
    found = [
        Group(*key)
        for key in frame[["source", "tool", "gpu", "problem"]].drop_duplicates().itertuples(index=False)
    ]
    if len(found) > len(COLOURS):
        raise ValueError(
            f"{len(found)} groups in one chart; at most {len(COLOURS)} can be told apart: select some"
        )
    return found


def kernels_of(frame: Metrics) -> list[tuple[str, str]]:
    """Stage and kernel of every kernel, by stage, a stage's kernels in order of appearance.

    Raises:
        MetricsError: no kernel.
    """
    rows = frame.loc[frame["kernel"] != "", ["stage", "kernel"]].drop_duplicates()
    if rows.empty:
        raise MetricsError("no kernel in these metrics to draw")
    return list(rows.sort_values("stage", kind="stable").itertuples(index=False, name=None))


def kernel_labels(kernels: Sequence[tuple[str, str]]) -> list[str]:
    """Kernels on an axis: the stage's number and name in two lines, or "partial" and "merge"."""
    labels = []
    for stage, kernel in kernels:
        ordinal, _, name = stage.partition("_")
        if sum(other == stage for other, _ in kernels) > 1:
            name = kernel.removeprefix(f"paged_attention_{name}").lstrip("_") or "partial"
        labels.append(f"{ordinal}\n{name.replace('_', ' ')}" if stage else kernel)
    return labels


def shown_unit(unit: str) -> tuple[str, float]:
    """The unit a chart shows for a base unit, and how many base units it is."""
    return SHOWN_UNITS.get(unit, (unit, 1.0))


def number(amount: float) -> str:
    """Three significant digits without an exponent, such as 120, 3.35 or 0.0226."""
    if amount == 0 or 0.001 <= abs(amount) < 1e6:
        text = f"{amount:.3g}" if abs(amount) < 1000 else f"{amount:,.0f}"
        return text if "e" not in text else f"{amount:.0f}"
    return f"{amount:.2e}"


def absence(row: pd.Series | None) -> str | None:
    """Why there is no value, or None when there is one."""
    if row is None:
        return ABSENT
    if pd.isna(row["value"]):
        return row["reason"] or f"is text: {row['text']}"
    return None


def gap(axes: Axes, x: float, reason: str) -> None:
    """Marks a missing value where its bar would stand, with the reason; nothing is drawn at zero."""
    axes.text(
        x, 0.03, reason, transform=axes.get_xaxis_transform(), rotation=90,
        ha="center", va="bottom", fontsize=6.5, color=GREY, style="italic",
    )  # fmt: skip


def legend_below(chart: Chart, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """One legend for the whole chart, under the panels."""
    columns = len(labels) if sum(map(len, labels)) + 8 * len(labels) < 130 else 1
    chart.legend(handles, labels, loc="outside lower left", ncols=columns)
