"""How near to plain reading the lab's kernels and public ones come, by dtype of the cache and shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from labs_common.chart_style import COLOURS, GREY, HATCHES, Chart, legend_below, new_chart, styled
from labs_common.gpus import display_name
from labs_common.known_shapes import SHAPES
from labs_common.peers import CONTIGUOUS, OURS, PAGED

KINDS = {
    OURS: "the lab's stages",
    PAGED: "public kernels on pages",
    CONTIGUOUS: "public, keys and values gathered before: no pages",
}
ROW_HEIGHT = 0.17  # inches of a bar's line
LEGEND_HEIGHT = 0.21  # inches of a line of the legend


@styled
def peer_chart(found: Mapping[str, Any]) -> Chart:
    """Bars of the share of the read ceiling, for every contender that ran somewhere in a dtype.

    Args:
        found: what ``peer_bench.measure_all`` gave.

    Raises:
        ValueError: nothing was measured.
    """
    rows, missing = found["rows"], found["missing"]
    if not rows:
        raise ValueError("nothing was measured: there is no chart to draw")
    shapes = list(dict.fromkeys(row["problem"] for row in rows))
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    names = {dtype: list(dict.fromkeys(r["what"] for r in rows if r["dtype"] == dtype)) for dtype in dtypes}
    heights = [len(names[dtype]) + 1.5 for dtype in dtypes]
    title = "Paged decode attention: part of the read ceiling that each kernel reaches"
    height = ROW_HEIGHT * sum(heights) + 0.9 + LEGEND_HEIGHT * (len(KINDS) + 2 + len(shapes))
    chart = new_chart(height, title)
    panels = chart.subplots(len(dtypes), len(shapes), sharex=True, squeeze=False, height_ratios=heights)
    cells = {(row["dtype"], row["problem"], row["what"]): row for row in rows}
    gone = {(one["dtype"], one["problem"], one["what"]): one["reason"] for one in missing}
    spoken = []
    for line, dtype in zip(panels, dtypes, strict=True):
        for axes, shape in zip(line, shapes, strict=True):
            spoken.append(_panel(axes, dtype, shape, names[dtype], cells, gone))
        line[0].set_yticks(range(len(names[dtype])), names[dtype], fontsize=7)
    panels[0][0].set_xlim(0, max(125, 1.2 * max(row["% of read ceiling"] for row in rows)))
    panels[-1][len(shapes) // 2].set_xlabel("% of the read ceiling")
    provenance = found["provenance"]
    gpu = display_name(provenance.get("gpu") or "")
    ceilings = [row["ceiling_GB/s"] for row in rows]
    measured = f"{gpu}, driver {provenance.get('driver')}, measured {provenance.get('date')} with events: "
    measured += "median of graph replays of about 1 ms each"
    if provenance.get("runs", 1) > 1:
        measured += f", then of {provenance['runs']} runs"
    each = "the same run" if provenance.get("runs", 1) == 1 else "each run, in the median"
    ceiling = f"100 %: the best plain read in {each}, {min(ceilings):,.0f} to {max(ceilings):,.0f} GB/s"
    words = [
        f"{measured}.",
        f"{ceiling}. * rounds queries to fp8; x wrong; \N{EN DASH} did not run.",
        *(_shape(name) for name in shapes if name in SHAPES),
    ]
    there = [kind for kind in KINDS if any(row["kind"] == kind for row in rows)]
    handles = [_patch(kind) for kind in there] + [Line2D([], [], ls="") for _ in words]
    legend_below(chart, handles, [KINDS[kind] for kind in there] + words)
    chart.description = f"{title}. {measured}. {ceiling}. " + " ".join(spoken)
    return chart


def _panel(
    axes: Axes,
    dtype: str,
    shape: str,
    names: list[str],
    cells: Mapping[tuple, Any],
    gone: Mapping[tuple, str],
) -> str:
    spoken = []
    for place, name in enumerate(names):
        row = cells.get((dtype, shape, name))
        if row is None:
            axes.text(2, place, "\N{EN DASH}", va="center", fontsize=7, color=GREY)
            spoken.append(f"{name} did not run: {gone.get((dtype, shape, name), 'not asked for')}")
            continue
        share = row["% of read ceiling"]
        kind = list(KINDS).index(row["kind"])
        axes.barh(place, share, 0.78, color=COLOURS[kind], hatch=HATCHES[kind], edgecolor="white", lw=0.4)
        mark = "*" if row["rounds"] else ""
        mark += "" if row["right"] else " x"
        number = f"{share:.0f}{mark}"
        inside = share > 80  # beside such a bar it would meet the line of 100 %
        axes.text(
            share - 2 if inside else share + 2,
            place,
            number,
            va="center",
            ha="right" if inside else "left",
            fontsize=6.5,
            bbox={"fc": "white", "ec": "none", "pad": 0.5},
        )
        spoken.append(f"{name} {share:.1f} %{' (wrong)' if not row['right'] else ''}")
    axes.set_title(f"{shape}, {_short(dtype)}", fontsize=8)
    axes.set_xticks((0, 50, 100))
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_yticks(range(len(names)), [""] * len(names))
    axes.axvline(100, color="black", lw=0.8, ls="--", zorder=0.5)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    return f"{shape}, {dtype}: {', '.join(spoken)}."


def _shape(name: str) -> str:
    problem = SHAPES[name]
    contexts = set(problem.context_lengths)
    span = f"{max(contexts):,}" if len(contexts) == 1 else f"{min(contexts):,} to {max(contexts):,}"
    heads = f"{problem.query_heads} query heads over {problem.kv_heads}, head_dim {problem.head_dim}"
    return f"{name}: batch {problem.batch}, context {span}, {heads}"


def _short(dtype: str) -> str:
    return {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}.get(dtype, "fp8")


def _patch(kind: str) -> Patch:
    number = list(KINDS).index(kind)
    return Patch(facecolor=COLOURS[number], hatch=HATCHES[number], edgecolor="white")
