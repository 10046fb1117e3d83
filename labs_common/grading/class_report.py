"""The class as a page: distributions, what most got wrong, what needs a person, how hard each step is."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from labs_common.chart_style import COLOURS, DPI, GREY, STYLE, WIDTH
from labs_common.grading.cases import TITLES
from labs_common.grading.pages import listed, page, points, text
from labs_common.grading.rubric import PARTS, Rubric
from labs_common.grading.store import write_text

Records = Sequence[Mapping[str, Any]]
MAX_BARS = 12


def write_report(
    path: Path, rubric: Rubric, records: Records, gpu: bool, versions: Mapping[str, str]
) -> None:
    """Write the class report."""
    write_text(path, report_page(rubric, records, gpu, versions))


def report_page(rubric: Rubric, records: Records, gpu: bool, versions: Mapping[str, str]) -> str:
    """The report as HTML."""
    graded = [record for record in records if "failed" not in record]
    body = [f"<h1>{text(rubric.name)}: class report</h1>"]
    where = "graded in the simulator" + (", speed on the GPU" if gpu else "; no speed marks")
    body.append(
        f'<p class="lead">{len(records)} submissions, {points(rubric.total(gpu))} points; {where}.</p>'
    )
    if graded:
        body.append(_facts(rubric, graded, gpu))
        with mpl.rc_context(STYLE):
            body += [
                _figure(totals_chart(rubric, graded, gpu), "Points of the class"),
                _figure(parts_chart(rubric, graded, gpu), "What part of the points each stage gave, by part"),
                _figure(
                    classes_chart(rubric, graded), "Which hidden problems were solved, of kernels handed in"
                ),
            ]
            faults = fault_counts(graded)
            if faults:
                body.append(_figure(faults_chart(faults), "What went wrong, by the number of kernels"))
    body.append(_look_at(records))
    body.append(_table(rubric, records))
    if versions:
        made = ", ".join(f"{name} {value}" for name, value in versions.items())
        body.append(f"<p class=lead>Graded with {text(made)}.</p>")
    return page(f"{rubric.name}: class report", "\n".join(part for part in body if part))


def _facts(rubric: Rubric, graded: Records, gpu: bool) -> str:
    totals = [record["total"] for record in graded]
    shares = stage_shares(rubric, graded, gpu)
    facts = [
        ("median", f"{points(float(np.median(totals)))} points"),
        (
            "middle half",
            f"{points(float(np.quantile(totals, 0.25)))} to {points(float(np.quantile(totals, 0.75)))}",
        ),
        ("full marks", f"{sum(t >= rubric.total(gpu) - 1e-9 for t in totals)}"),
    ]
    if shares:
        hardest = min(shares, key=lambda stage: shares[stage])
        facts.append(("hardest step", f"{hardest} ({shares[hardest]:.0%} of its points)"))
    cells = "".join(f"<li>{text(name)}<b>{text(value)}</b></li>" for name, value in facts)
    return f'<ul class="facts">{cells}</ul>'


def stage_shares(rubric: Rubric, graded: Records, gpu: bool) -> dict[str, float]:
    """Mean share of the points of each stage, over those who handed it in."""
    shares = {}
    for stage in rubric.stages:
        had = [r["stages"][stage]["total"] for r in graded if r["stages"].get(stage, {}).get("origin")]
        if had and rubric.maximum(stage, gpu):
            shares[stage] = float(np.mean(had)) / rubric.maximum(stage, gpu)
    return shares


def fault_counts(graded: Records) -> list[tuple[str, int]]:
    """What went wrong, most frequent first: a named fault, else a finding, else the reason's kind."""
    counts: Counter[str] = Counter()
    for record in graded:
        for grade in record["stages"].values():
            if not grade["origin"] or (
                grade["cases"] and all(c["ok"] and c["clean"] for c in grade["cases"])
            ):
                continue
            if grade["fault"] and grade["fault"] != "unknown":
                counts[grade["fault"].replace("_", " ")] += 1
            elif grade["flags"].keys() & {"forbidden include", "inputs changed", "keeps state"}:
                counts[next(f for f in grade["flags"])] += 1
            elif grade["findings"]:
                counts[grade["findings"][0].partition(" at ")[0]] += 1
            else:
                counts[_kind(grade)] += 1
    return counts.most_common(MAX_BARS)


def _kind(grade: Mapping[str, Any]) -> str:
    reason = next((case["reason"] for case in grade["cases"] if not case["ok"]), "")
    for start in (
        "it does not compile",
        "it does not end",
        "it cannot be launched",
        "it takes too much memory",
    ):
        if reason.startswith(start):
            return start
    return "refused before compiling" if not grade["cases"] else "wrong in no known way"


def totals_chart(rubric: Rubric, graded: Records, gpu: bool) -> Figure:
    """How many submissions have how many points."""
    figure, axes = _axes(2.6)
    most = rubric.total(gpu)
    axes.hist(
        [r["total"] for r in graded], bins=np.linspace(0, most, 21), color=COLOURS[0], edgecolor="white"
    )
    axes.set(xlabel="points", ylabel="submissions", xlim=(0, most), title="Totals")
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="x", visible=False)
    return figure


def parts_chart(rubric: Rubric, graded: Records, gpu: bool) -> Figure:
    """Per stage and part, the mean share of the points, of those who handed the stage in."""
    figure, axes = _axes(0.9 + 0.55 * len(rubric.stages))
    parts = [
        part
        for part in PARTS
        if (part != "speed" or gpu) and any(rubric.points[stage][part] for stage in rubric.stages)
    ]
    height = 0.8 / max(1, len(parts))
    for number, part in enumerate(parts):
        means = []
        for stage in rubric.stages:
            most = rubric.points[stage][part]
            handed_in = [r["stages"][stage] for r in graded if r["stages"].get(stage, {}).get("origin")]
            had = [grade["points"].get(part, 0.0) for grade in handed_in]
            means.append(float(np.mean(had)) / most if had and most else np.nan)
        rows = np.arange(len(rubric.stages)) + (number - (len(parts) - 1) / 2) * height
        axes.barh(rows, means, height * 0.9, color=COLOURS[number], label=part)
    axes.set_yticks(range(len(rubric.stages)), rubric.stages)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1), xlabel="mean share of the points", title="Stages")
    axes.xaxis.set_major_formatter(mpl.ticker.PercentFormatter(1.0))
    axes.grid(axis="y", visible=False)
    if parts:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def classes_chart(rubric: Rubric, graded: Records) -> Figure:
    """Per stage and class of hidden problems, the share of kernels that solve it."""
    kinds = [
        kind
        for kind in TITLES
        if any(c["kind"] == kind for r in graded for g in r["stages"].values() for c in g["cases"])
    ] or ["plain"]
    shares = np.full((len(rubric.stages), len(kinds)), np.nan)
    for row, stage in enumerate(rubric.stages):
        for column, kind in enumerate(kinds):
            solved = [
                case["ok"] and case["clean"]
                for r in graded
                for case in r["stages"].get(stage, {}).get("cases", [])
                if case["kind"] == kind
            ]
            if solved:
                shares[row, column] = np.mean(solved)
    figure, axes = _axes(1.4 + 0.4 * len(rubric.stages))
    image = axes.imshow(shares, cmap="cividis", vmin=0, vmax=1, aspect="auto")
    for (row, column), share in np.ndenumerate(shares):
        if np.isfinite(share):
            colour = "black" if share > 0.55 else "white"
            axes.text(column, row, f"{share:.0%}", ha="center", va="center", color=colour, fontsize=8)
    axes.set_xticks(range(len(kinds)), [k.replace("_", " ") for k in kinds], rotation=35, ha="right")
    axes.set_yticks(range(len(rubric.stages)), rubric.stages)
    axes.set_title("Hidden problems solved")
    axes.grid(visible=False)
    figure.colorbar(image, ax=axes, format=mpl.ticker.PercentFormatter(1.0), shrink=0.9)
    return figure


def faults_chart(faults: Sequence[tuple[str, int]]) -> Figure:
    """The commonest mistakes."""
    figure, axes = _axes(0.9 + 0.3 * len(faults))
    axes.barh([name for name, _ in faults], [count for _, count in faults], color=COLOURS[5])
    axes.invert_yaxis()
    axes.set(xlabel="kernels", title="Commonest mistakes")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="y", visible=False)
    for bar, (_, count) in zip(axes.patches, faults, strict=True):
        axes.annotate(
            str(count),
            (bar.get_width(), bar.get_y() + bar.get_height() / 2),
            (4, 0),
            textcoords="offset points",
            va="center",
            color=GREY,
            fontsize=8,
        )
    return figure


def _axes(height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def _figure(figure: Figure, caption: str) -> str:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=DPI, metadata={"Software": None})
    encoded = base64.b64encode(data.getvalue()).decode()
    return (
        f'<figure><img alt="{text(caption)}" src="data:image/png;base64,{encoded}">'
        f"<figcaption>{text(caption)}.</figcaption></figure>"
    )


def _look_at(records: Records) -> str:
    flagged, by_hand, failed = [], [], []
    for record in records:
        name = record["student"]
        flagged += [f"{name}: {flag} ({seen})" for flag, seen in record["flags"].items()]
        flagged += [
            f"{name}, {stage}: {flag} ({seen})"
            for stage, grade in record["stages"].items()
            for flag, seen in grade["flags"].items()
        ]
        waiting = [a["answer"] for a in record["answers"] if a["by_hand"]]
        by_hand += [f"{name}: {', '.join(waiting)}"] if waiting else []
        failed += [f"{name}: {record['failed']}"] if "failed" in record else []
    parts = []
    if failed:
        parts.append(f"<h2>The grader failed on</h2>{listed(failed)}")
    if flagged:
        parts.append(f"<h2>Integrity flags</h2>{listed([f[:400] for f in flagged])}")
    if by_hand:
        parts.append(f"<h2>Answers that wait for a person</h2>{listed(by_hand)}")
    return "\n".join(parts)


def _table(rubric: Rubric, records: Records) -> str:
    head = "".join(f"<th class=number>{text(stage[:2])}" for stage in rubric.stages)
    rows = []
    for record in records:
        cells = "".join(
            f"<td class=number>{points(record['stages'][s]['total']) if s in record['stages'] else ''}</td>"
            for s in rubric.stages
        )
        link = f'<a href="feedback/{text(record["slug"])}.html">{text(record["student"])}</a>'
        rows.append(f"<tr><td>{link}</td><td class=number>{points(record['total'])}</td>{cells}</tr>")
    return f"<h2>Students</h2><table><tr><th>student<th class=number>points{head}</tr>{''.join(rows)}</table>"
