"""A page for one student: points, reasons, what to look at. Nothing of a hidden problem's values is in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labs_common.grading.pages import listed, page, points, text
from labs_common.grading.rubric import Rubric
from labs_common.grading.store import write_text
from labs_common.grading.structure import EXPLAINED


def write_page(path: Path, rubric: Rubric, record: Mapping[str, Any]) -> None:
    """Write a student's page."""
    write_text(path, feedback_page(rubric, record))


def feedback_page(rubric: Rubric, record: Mapping[str, Any]) -> str:
    """The page as HTML."""
    body = [
        f"<h1>{text(rubric.name)}: {text(record['student'])}</h1>",
        f'<p class="lead">{points(record["total"])} of {points(record["out_of"])} points</p>',
    ]
    if "failed" in record:
        body.append('<p class="note">The grader failed on this submission; your instructor knows.</p>')
    if record["notes"] or record["flags"]:
        body.append("<h2>What was handed in</h2>")
        body.append(listed([*record["notes"], *(f"{k}: {v}" for k, v in record["flags"].items())]))
    body += [_stage(s, record["stages"][s]) for s in rubric.stages if s in record["stages"]]
    if record["answers"]:
        body.append("<h2>Answers</h2>")
        rows = [
            f"<tr><td>{text(a['answer'])}</td><td class=number>{_of(a['points'], a['maximum'])}</td>"
            f"<td>{text(a['reason'])}</td></tr>"
            for a in record["answers"]
        ]
        body.append(f"<table><tr><th>answer<th class=number>points<th>why</tr>{''.join(rows)}</table>")
    return page(f"{rubric.name}: {record['student']}", "\n".join(body))


def _stage(stage: str, grade: Mapping[str, Any]) -> str:
    rows = [
        f"<tr><td>{text(part)}</td><td class=number>{_of(grade['points'][part], most)}</td></tr>"
        for part, most in grade["maximum"].items()
    ]
    total = _of(grade["total"], grade["out_of"])
    rows.append(f"<tr class=sum><td>together</td><td class=number>{total}</td></tr>")
    parts = [
        f"<h2>{text(stage)}</h2>",
        f"<p class=lead>{text(grade['origin'] or 'not handed in')}</p>",
        f"<table>{''.join(rows)}</table>",
        listed(grade["reasons"]),
    ]
    shown_flags = {k: v for k, v in grade["flags"].items() if k != "needs a look"}
    if shown_flags:
        flags = [f"{flag}: {seen}" for flag, seen in shown_flags.items()]
        parts.append(f'<div class="note">Noticed:{listed(flags)}</div>')
    if grade["cases"] and any(not case["ok"] for case in grade["cases"]):
        rows = [
            f"<tr><td>{text(case['title'])}</td><td class=mark>{_mark(case)}</td></tr>"
            for case in grade["cases"]
        ]
        parts.append(f"<table><tr><th>hidden problems<th>right?</tr>{''.join(rows)}</table>")
    if grade["structure"]:
        rows = [
            f"<tr><td>{text(EXPLAINED[mark['count']])}</td><td class=number>{_ratio(mark)}</td>"
            f"<td class=number>{mark['share']:.0%}</td></tr>"
            for mark in grade["structure"]
            if mark["counts"]
        ]
        parts.append(
            "<table><tr><th>structure<th class=number>against the reference kernel"
            f"<th class=number>of its points</tr>{''.join(rows)}</table>"
        )
    return "\n".join(parts)


def _of(had: float, most: float) -> str:
    return f"{points(had)} of {points(most)}"


def _mark(case: Mapping[str, Any]) -> str:
    if case["ok"] and not case["clean"]:
        return '<span class="no">by luck</span>'
    return '<span class="yes">yes</span>' if case["ok"] else '<span class="no">no</span>'


def _ratio(mark: Mapping[str, Any]) -> str:
    return f"{mark['ratio']:+.0f} bytes" if mark["count"] == "spills" else f"{mark['ratio']:.2f}×"
