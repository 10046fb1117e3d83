"""Kernels and answers out of a submitted notebook, read as text: no cell is ever run."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

ANSWER_TAG = "palab:answer:"
KERNEL_TAG = "palab:kernel:"
MAX_CELLS = 5000
MAX_ANSWER = 20_000  # characters

_WRITEFILE = re.compile(
    r"\s*%%(?:writefile|file)\s+(?:-a\s+)?[\"']?([^\"'\n]+?\.cu)[\"']?\s*\n", re.IGNORECASE
)
# Every gap in these is bounded by its line or its closing quotes, so that no text makes them quadratic.
_STRING = re.compile(r"(?P<prefix>[rRuU]?)(?P<quotes>\"\"\"|''')(?P<body>.*?)(?P=quotes)", re.DOTALL)
_ESCAPE = re.compile(r"\\(\n|[\\'\"ntr])")
_ESCAPED = {"\n": "", "n": "\n", "t": "\t", "r": "\r"}


@dataclass
class Cells:
    """What a notebook holds that is graded.

    Attributes:
        kernels: (file name or "", stage named by a tag or "", text, where).
        answers: by id, all texts that were given, each with where.
        notes: what a person should know.
        executed: whether any cell has been run, by the notebook's own word.
    """

    kernels: list[tuple[str, str, str, str]] = field(default_factory=list)
    answers: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    executed: bool = False


def read_notebook(text: str, name: str) -> Cells:
    """Find kernels and answers in a notebook of format 3 or 4, however damaged.

    A kernel is a ``%%writefile NN_name.cu`` cell, a cell with the tag ``palab:kernel:<stage>``, a
    triple-quoted string that defines a ``__global__`` function, or any other cell that does. An answer is a
    cell with the tag ``palab:answer:<id>``, or with that as its nbgrader id or first line where the metadata
    was lost.
    """
    found = Cells()
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        found.notes.append(f"{name}: no notebook ({type(error).__name__}: {str(error)[:80]})")
        return found
    for number, cell in enumerate(_cells(document), 1):
        if number > MAX_CELLS:
            found.notes.append(f"{name}: more than {MAX_CELLS} cells; the rest is not read")
            break
        _read_cell(cell, f"{name}, cell {number}", found)
    for answer, given in found.answers.items():
        if len(given) > 1:
            places = ", ".join(where.rpartition(", ")[2] for _, where in given)
            same = len({text.strip() for text, _ in given}) == 1
            found.notes.append(
                f"{name}: {ANSWER_TAG}{answer} stands in {places}; "
                + ("they say the same" if same else "the first that says something is graded")
            )
    return found


def _cells(document: object) -> list[dict]:
    if not isinstance(document, dict):
        return []
    cells = document.get("cells")
    if not isinstance(cells, list):  # format 3
        sheets = document.get("worksheets")
        cells = []
        for sheet in sheets if isinstance(sheets, list) else []:
            if isinstance(sheet, dict) and isinstance(sheet.get("cells"), list):
                cells += sheet["cells"]
    return [cell for cell in cells if isinstance(cell, dict)]


def _source(cell: dict) -> str:
    source = cell.get("source", cell.get("input", ""))
    if isinstance(source, list):
        source = "".join(part for part in source if isinstance(part, str))
    return source if isinstance(source, str) else ""


def _read_cell(cell: dict, where: str, found: Cells) -> None:
    text, kind = _source(cell), cell.get("cell_type")
    metadata = cell.get("metadata") if isinstance(cell.get("metadata"), dict) else {}
    tags = metadata.get("tags")
    tags = [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
    nbgrader = metadata.get("nbgrader") if isinstance(metadata.get("nbgrader"), dict) else {}
    grade_id = nbgrader.get("grade_id") if isinstance(nbgrader.get("grade_id"), str) else ""
    if kind == "code" and isinstance(cell.get("execution_count"), int):
        found.executed = True

    answers = [tag[len(ANSWER_TAG) :] for tag in [*tags, grade_id] if tag.startswith(ANSWER_TAG)]
    if not answers and (match := re.match(rf"\W*{re.escape(ANSWER_TAG)}([\w.-]+)[^\n]*\n?", text)):
        answers = [match[1]]
        found.notes.append(f"{where}: answer {match[1]} has lost its tag; it is graded by its first line")
    for answer in dict.fromkeys(answers):
        body = re.sub(rf"\A\W*{re.escape(ANSWER_TAG)}[\w.-]+[^\n]*\n?", "", text)
        if len(body) > MAX_ANSWER:
            found.notes.append(f"{where}: answer {answer} is cut after {MAX_ANSWER} characters")
        found.answers.setdefault(answer, []).append((body[:MAX_ANSWER], where))
    if answers:
        return

    stages = [tag[len(KERNEL_TAG) :] for tag in tags if tag.startswith(KERNEL_TAG)]
    stage = stages[0] if stages else ""
    if match := _WRITEFILE.match(text):
        found.kernels.append(
            (match[1].replace("\\", "/").rpartition("/")[2], stage, text[match.end() :], where)
        )
        return
    if "__global__" not in text:
        return
    strings = [
        _unescaped(m["body"], raw=m["prefix"] in "rR" and m["prefix"] != "")
        for m in _STRING.finditer(text)
        if "__global__" in m["body"]
    ]
    if kind == "code" and strings:
        found.kernels += [("", stage, string, where) for string in strings]
        return
    if stage or re.search(r'extern\s+"C"\s+__global__', text):
        if kind != "code":
            found.notes.append(
                f"{where}: a kernel in a cell of type {str(kind)[:20]}; it is graded all the same"
            )
            text = re.sub(r"^[ \t]*```[^\n]*$", "", text, flags=re.MULTILINE)
        found.kernels.append(("", stage, text, where))


def _unescaped(body: str, raw: bool) -> str:
    return body if raw else _ESCAPE.sub(lambda m: _ESCAPED.get(m[1], m[1]), body)
