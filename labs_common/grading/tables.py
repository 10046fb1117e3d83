"""Marks of a class as CSV and JSON: one table with everything, and those that gradebooks import."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labs_common.grading.rubric import PARTS, Rubric
from labs_common.grading.store import write_json, write_text


def write_tables(out: Path, rubric: Rubric, records: Sequence[Mapping[str, Any]], gpu: bool) -> None:
    """``marks.csv``, ``marks.json`` and the gradebooks' files."""
    write_json(
        out / "marks.json", {"assignment": rubric.name, "out_of": rubric.total(gpu), "students": records}
    )
    write_text(out / "marks.csv", "\ufeff" + marks_csv(rubric, records, gpu))  # Excel asks for the mark
    write_text(out / "gradebook_nbgrader.csv", nbgrader_csv(rubric, records))
    write_text(out / "gradebook_moodle.csv", moodle_csv(rubric, records))
    write_text(out / "gradebook_canvas.csv", canvas_csv(rubric, records, gpu))


def marks_csv(rubric: Rubric, records: Sequence[Mapping[str, Any]], gpu: bool) -> str:
    """A row per student: total, every part of every stage, every answer, flags, notes."""
    parts = [part for part in PARTS if part != "speed" or gpu]
    header = ["student", "total", "maximum"]
    header += [f"{stage} {part}" for stage in rubric.stages for part in parts]
    header += [f"answer {answer}" for answer in rubric.answers]
    header += ["flags", "faults", "notes", "failed"]
    rows = []
    for record in records:
        stages = record["stages"]
        answers = {a["answer"]: a["points"] for a in record["answers"]}
        row = [record["student"], record["total"], record["out_of"]]
        row += [stages.get(s, {}).get("points", {}).get(part, "") for s in rubric.stages for part in parts]
        row += [answers.get(answer, "") for answer in rubric.answers]
        flags = [
            *record["flags"],
            *(f"{s}: {flag}" for s, grade in stages.items() for flag in grade["flags"]),
        ]
        faults = [f"{s}: {grade['fault']}" for s, grade in stages.items() if grade.get("fault")]
        row += ["; ".join(flags), "; ".join(faults), "; ".join(record["notes"]), record.get("failed", "")]
        rows.append(row)
    return _csv([header, *rows])


def nbgrader_csv(rubric: Rubric, records: Sequence[Mapping[str, Any]]) -> str:
    """The columns that ``nbgrader export`` writes and its importers read."""
    header = ["assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email"]
    header += ["raw_score", "late_submission_penalty", "score", "max_score"]
    rows = [
        [rubric.name, "", "", r["student"], "", "", "", r["total"], 0.0, r["total"], r["out_of"]]
        for r in records
    ]
    return _csv([header, *rows])


def moodle_csv(rubric: Rubric, records: Sequence[Mapping[str, Any]]) -> str:
    """For Moodle's "Import from CSV": map ``ID number``, the grade item and its feedback."""
    header = ["ID number", rubric.name, f"{rubric.name} feedback"]
    rows = [[r["student"], r["total"], "; ".join(_first_reasons(r))] for r in records]
    return _csv([header, *rows])


def canvas_csv(rubric: Rubric, records: Sequence[Mapping[str, Any]], gpu: bool) -> str:
    """For Canvas' gradebook import, which has the points possible in the second line."""
    header = ["Student", "ID", "SIS Login ID", "Section", rubric.name]
    possible = ["    Points Possible", "", "", "", rubric.total(gpu)]
    rows = [[r["student"], "", r["student"], "", r["total"]] for r in records]
    return _csv([header, possible, *rows])


def _first_reasons(record: Mapping[str, Any]) -> list[str]:
    return [
        f"{stage}: {grade['reasons'][0][:200]}"
        for stage, grade in record["stages"].items()
        if grade["reasons"]
    ]


def _csv(rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return out.getvalue()


# Where a cell may begin: spreadsheets of other countries split at semicolons, quotes or not, and East Asian
# ones take the wide signs for the narrow.
_FORMULA = re.compile(r"(^|[;|])(\s*[=+\-@\uff1d\uff0b\uff0d\uff20])")


def _cell(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula: names and notes come from students."""
    if isinstance(value, str):
        value = " ".join(value.split()) if "\n" in value or "\r" in value or "\t" in value else value
        return _FORMULA.sub(r"\1'\2", value)
    return value
