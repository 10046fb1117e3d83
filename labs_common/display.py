"""A chart in a notebook: the picture, its description in words, and the figures that it shows."""

from __future__ import annotations

import html
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from labs_common.chart_style import Chart

# Where an output's metadata keep the chart's figures; pictures differ with every version of matplotlib,
# figures only when something changed.
DATA_KEY = "palab_chart"
DESCRIPTION = "the chart in words"


def show(chart: Chart) -> None:
    """Display a chart in a notebook, with alt text, and with its figures in the output's metadata.

    JupyterLab gives pictures no alt text, so that the same words follow in a part that can be opened.
    """
    from IPython.display import display

    words = chart.alt_text()
    display(
        {"image/png": chart.png(), "text/plain": words},
        raw=True,
        metadata={"image/png": {"alt": words}, DATA_KEY: chart_data(chart)},
    )
    details = f"<details><summary>{DESCRIPTION}</summary><p>{html.escape(words)}</p></details>"
    display({"text/html": details, "text/plain": DESCRIPTION}, raw=True)


def chart_data(figure: Figure) -> list[dict[str, Any]]:
    """What a figure shows, free of fonts and pixels: one entry per visible panel.

    Positions and lengths are in data coordinates and rounded to six significant digits.

    Returns:
        Panels of JSON values: ``texts``, ``bars`` (x, y, width, height), ``lines`` (points), ``shapes`` and
        ``images``; kinds that a panel lacks are left out.
    """
    panels = [_panel(axes) for axes in figure.axes if axes.get_visible()]
    legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    loose = [text.get_text() for text in figure.texts if text.get_text()]
    return [{"texts": loose + legends}, *panels] if loose or legends else panels


def _panel(axes: Axes) -> dict[str, Any]:
    # "left" and "right" titles are separate artists that only get_title knows.
    titles = [axes.get_title(loc) for loc in ("left", "center", "right")]
    legend = axes.get_legend()
    texts = [*titles, axes.get_xlabel(), axes.get_ylabel(), *(text.get_text() for text in axes.texts)]
    texts += [text.get_text() for text in legend.get_texts()] if legend else []
    patches = [patch for patch in axes.patches if patch.get_visible()]
    found = {
        "texts": [text for text in texts if text],
        "bars": [
            _rounded((*patch.get_xy(), patch.get_width(), patch.get_height()))
            for patch in patches
            if isinstance(patch, Rectangle)
        ],
        "lines": [_rounded(line.get_xydata()) for line in axes.lines],
        "shapes": [_shape(artist) for artist in (*patches, *axes.collections) if not _is_bar(artist)],
        "images": [_image(image) for image in axes.images],
    }
    return {kind: values for kind, values in found.items() if values}


def _is_bar(artist: Artist) -> bool:
    return isinstance(artist, Rectangle)


def _shape(artist: Patch | Collection) -> dict[str, Any]:
    kind = type(artist).__name__
    if isinstance(artist, Collection):
        points = [_rounded(path.vertices) for path in artist.get_paths()]
        return {"kind": kind, "points": points, "offsets": _rounded(artist.get_offsets())}
    if isinstance(artist, FancyArrowPatch):  # its path is known only once it is drawn
        return {"kind": kind}
    path = artist.get_patch_transform().transform_path(artist.get_path())
    return {"kind": kind, "points": _rounded(path.vertices)}


def _image(image: Any) -> dict[str, Any]:
    array = np.asarray(image.get_array(), np.float32)
    return {"shape": list(array.shape), "crc32": zlib.crc32(array.tobytes())}


def _rounded(values: Iterable[Any]) -> list[Any]:
    """Nested lists of floats with six significant digits; not-a-number as None."""
    if np.ma.isMaskedArray(values):
        values = values.filled(np.nan)
    array = np.asarray(values, float)
    if array.ndim > 1:
        return [_rounded(row) for row in array]
    return [None if not np.isfinite(value) else float(f"{value:.6g}") for value in array]
