"""What the diagrams draw with: boxes, arrows, and fills that colour and hatch tell apart."""

from __future__ import annotations

import textwrap

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labs_common.chart_style import COLOURS, GREY, HATCHES


def fill(number: int) -> dict[str, object]:
    """Colour and hatch number ``number`` of the palette, as patch arguments."""
    return {"facecolor": COLOURS[number], "hatch": HATCHES[number], "edgecolor": "white"}


def plate() -> dict[str, object]:
    """A white ground that keeps text readable on a hatched box."""
    return {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}


def box(axes: Axes, x: float, y: float, width: float, height: float, style: dict[str, object]) -> None:
    """A rectangle from its corner, in data coordinates."""
    axes.add_patch(Rectangle((x, y), width, height, **{"linewidth": 0.8, **style}))


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], width: float) -> None:
    """An arrow from start to end; width in points."""
    axes.annotate(
        "",
        end,
        start,
        arrowprops={"arrowstyle": "-|>", "lw": width, "color": GREY, "shrinkA": 0, "shrinkB": 0},
    )


def wrapped(text: str) -> str:
    """A title in lines that fit a chart's width."""
    return textwrap.fill(text, 98)


def tokens(count: int) -> str:
    """Such as "1 token" or "389 tokens"."""
    return "1 token" if count == 1 else f"{count} tokens"


def bare(axes: Axes, x: tuple[float, float], y: tuple[float, float]) -> None:
    """No axes, only what is drawn; y may run downwards."""
    axes.set_xlim(*x)
    axes.set_ylim(*y)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
