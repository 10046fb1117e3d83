"""Editions of the lab: one to hand out, whose kernels have no body, and one with all that was done."""

from __future__ import annotations

import ast
import copy
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from labs_common import notebooks as notebook_files
from labs_common.course import exercise_of
from labs_common.engines import Engine, open_engine
from labs_common.exercise import cut
from labs_common.open_kernels import write_tables
from labs_common.predictions import ANSWER_TAG, COUNTED
from labs_common.source import BEGIN, KERNELS, Source
from labs_common.stages import ALL_STAGES, STAGES, Stage, find_stage

ROOT = KERNELS.parent
EDITION_FILE = "edition.json"
KERNEL_TAG = "palab:kernel:"

_TOP_LEVEL = (
    "LICENSE",
    "Makefile",
    "README.md",
    "environment.yml",
    "pyproject.toml",
    ".gitignore",
    ".gitattributes",
)
_PACKAGE_SUFFIXES = {".py", ".cu", ".cuh", ".h", ".toml"}
_DATA_SUFFIXES = {".csv", ".json"}
_TODO_CELL = "### BEGIN SOLUTION", "### END SOLUTION"

# Earlier stages whose answers stand in a stage's file outside its regions, or in the headers it needs.
_HOLDS_ANSWERS = {
    "06_async_ring": ("05",),
    "07_tensor_core": ("05",),
    "08_balanced_plan": ("05", "06", "07"),
    "09_memory_roof": ("05", "06", "07", "08"),
}
_HEADERS = {
    "page_ring.cuh": "06",
    "partials.cuh": "06",
    "fragments.cuh": "07",
    "tile_fma.cuh": "08",
    "tile_mma.cuh": "08",
}  # and the first stage that needs each

_TEACHERS_COMMANDS = tuple(f"| `palab {name}" for name in ("record", "release", "grade", "bench"))

_GUIDE = """# Student edition

The kernels {names} have no body: they are yours to write.

1. `make lab` sets up and opens JupyterLab; begin with `notebooks/start_here.ipynb`.
2. `palab start {number}` (or `start("{first}")` in a notebook) writes `kernels/mine/{first}.cu`,
   a kernel with numbered TODOs in place of its body. It never overwrites your work.
3. Edit that file beside the notebook, then `palab check {number}`: it compiles your kernel, runs it on
   small and ragged problems with all checks, and names what is wrong. `palab hint {number} 1` helps with
   step 1; `--level 2` and `--level 3` say more. `palab run` and `palab simulate` take your kernel, too, once
   it is there.
4. `make test` checks all that you have in `kernels/mine`.

Counts of the lab's own kernels are in `data/counted`, profiles of real GPUs in `data/recorded`.
"""

_SOLUTION_GUIDE = """# Solution

All kernels are whole, in `kernels/` and `kernels/roof/`, and so are other ways to do the same in
`kernels/variants/`. The notebooks in `notebooks/` have their outputs; `out/` has those that were executed for
this edition as HTML, their figures as PNG. `make lab` sets up and opens JupyterLab. Profiles of real GPUs are
in `data/recorded`.
"""

_TESTS = '''"""Every kernel in kernels/mine is checked in its stage's place."""

import pytest

from labs_common.check import check
from labs_common.engines import open_engine
from labs_common.exercise import OWN_KERNELS
from labs_common.source import Source
from labs_common.stages import ALL_STAGES


@pytest.mark.parametrize("stage", ALL_STAGES, ids=lambda s: s.id)
def test_own_kernel(stage):
    path = OWN_KERNELS / stage.path.name
    if not path.exists():
        pytest.skip(f"no {path.name} yet")

    report = check(Source.read(path), stage, open_engine("auto"))

    assert report.ok, report.diagnosis or report.error or report.results
'''


def release(
    folder: Path, stages: Sequence[str | int] | None = None, engine: Engine | None = None
) -> list[Path]:
    """Write the edition that students get.

    The kernels of the given stages and of later ones have no body: a later stage holds an earlier one's
    answer. Stages towards the roof come up to the last given one only, since their headers hold answers too.
    Notebooks are those up to the last given stage, not executed, answers open. Reports and other files that
    show a kernel's code are left out; counts of the lab's own kernels come as CSV.

    Args:
        folder: new or empty.
        stages: that the edition is for; 00 to 05 by default.
        engine: that counts; by default the simulator.

    Returns:
        The files written, relative to ``folder``.

    Raises:
        ValueError: an unknown stage, stages of which one holds another's answer, a folder with something in
            it, or a kernel that cannot be cut.
    """
    chosen = [find_stage(stage) for stage in stages] if stages else list(STAGES)
    last = max(ALL_STAGES.index(stage) for stage in chosen)
    held = ALL_STAGES[: max(last + 1, len(STAGES))]
    emptied = held[min(ALL_STAGES.index(stage) for stage in chosen) :]
    _refuse_answers(held, emptied)
    _prepare(folder)
    _copy_package(folder)
    readme = folder / "README.md"
    readme.write_text(student_readme(readme.read_text(encoding="utf-8"), held), encoding="utf-8")
    for path in sorted([*KERNELS.glob("*.cuh"), *(KERNELS / "roof").glob("*.cuh")]):
        if path.parent == KERNELS or _HEADERS[path.name] <= held[-1].id:
            _copy(path, folder)
    for stage in held:
        target = folder / stage.path.relative_to(ROOT)
        target.parent.mkdir(exist_ok=True)
        text = _emptied(stage).text if stage in emptied else stage.source().text
        target.write_text(text, encoding="utf-8")
    for name in ("start_here", *(stage.id for stage in ALL_STAGES[: last + 1])):
        path = notebook_files.NOTEBOOKS / f"{name}.ipynb"
        if path.exists():
            notebook = open_notebook(notebook_files.read(path))
            _drop_links(notebook, [stage.id for stage in ALL_STAGES[: last + 1]])
            notebook_files.write(notebook, folder / "notebooks" / path.name)
    _copy_data(folder, emptied[0])
    write_tables(folder / COUNTED.relative_to(ROOT), engine or open_engine("sim"), held)
    (folder / "tests").mkdir()
    (folder / "tests" / "test_own_kernels.py").write_text(_TESTS, encoding="utf-8")
    names, first = ", ".join(stage.id for stage in emptied), emptied[0].id
    _finish(folder, "student", chosen, _GUIDE.format(names=names, first=first, number=int(first[:2])))
    return _written(folder)


def _refuse_answers(held: Sequence[Stage], emptied: Sequence[Stage]) -> None:
    """ValueError where the files of a stage would show what another one asks for."""
    for stage in held:
        told = [one.id for one in emptied if one.id[:2] in _HOLDS_ANSWERS.get(stage.id, ())]
        if told:
            raise ValueError(
                f"{stage.id} and its headers hold the answer to {' and '.join(told)}: "
                f"hand it out in an edition of its own"
            )


def solution(folder: Path, execute: bool = True, stages: Sequence[str | int] | None = None) -> list[Path]:
    """Write the edition with all kernels, and notebooks with their outputs.

    Args:
        folder: new or empty.
        execute: run the notebooks now, on this machine; else they are taken as they are committed.
        stages: run only these stages' notebooks, and take the others as they are committed.

    Returns:
        The files written, relative to ``folder``.

    Raises:
        ValueError: an unknown stage, or a folder with something in it.
        NotebookError: a notebook does not run through.
    """
    chosen = None if stages is None else [find_stage(stage).id for stage in stages]
    _prepare(folder)
    _copy_package(folder)
    for path in sorted(
        [*KERNELS.glob("*.cu*"), *(KERNELS / "roof").glob("*.cu*"), *(KERNELS / "variants").glob("*.cu*")]
    ):
        _copy(path, folder)
    names = [name for name in notebook_files.NAMES if (notebook_files.NOTEBOOKS / f"{name}.ipynb").exists()]
    to_run = [name for name in names if execute and (chosen is None or name in chosen)]
    executed = notebook_files.execute_all(to_run) if to_run else {}
    for name in names:
        path = notebook_files.NOTEBOOKS / f"{name}.ipynb"
        notebook_files.write(
            executed.get(name) or notebook_files.read(path), folder / "notebooks" / path.name
        )
        if name in executed:
            notebook_files.export(name, executed[name], folder / "out")
    for path in sorted((ROOT / "data").rglob("*")):
        if path.is_file():
            _copy(path, folder)
    _finish(folder, "solution", ALL_STAGES, _SOLUTION_GUIDE)
    return _written(folder)


def student_readme(text: str, held: Sequence[Stage] = STAGES) -> str:
    """The README without answers to predictions, commands of teachers, and links that lead nowhere.

    Args:
        text: the lab's README.
        held: stages that the edition has.
    """
    ideas = ["| stage | idea |", "|---|---|", *(f"| `{stage.id}` | {stage.idea} |" for stage in held)]
    begin, end = text.index("## The stages"), text.index("## `palab`")
    stages = "\n".join(
        [
            "## The stages",
            "",
            *ideas,
            "",
            "A stage is `kernels/NN_name.cu` (from 06 on in `kernels/roof/`) and `notebooks/NN_name.ipynb`.",
        ]
    )
    text = f"{text[:begin]}{stages}\n\n{text[end:]}"
    begin = text.index("## Grading a class")
    text = text[:begin] + text[text.index("\n## ", begin) + 1 :]
    lines = [line for line in text.split("\n") if not line.startswith(_TEACHERS_COMMANDS)]
    return re.sub(r"\[(docs/[^]]+)\]\(\1\)", r"`\1` of the whole lab", "\n".join(lines))


def _prepare(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} has something in it; an edition needs a new or an empty folder")
    for name in ("kernels", "notebooks", "data"):
        (folder / name).mkdir(parents=True)


def _copy(path: Path, folder: Path) -> None:
    target = folder / path.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


def _copy_package(folder: Path) -> None:
    for name in _TOP_LEVEL:
        if (ROOT / name).exists():
            _copy(ROOT / name, folder)
    for path in sorted((ROOT / "labs_common").rglob("*")):
        if path.is_file() and path.suffix in _PACKAGE_SUFFIXES and "__pycache__" not in path.parts:
            _copy(path, folder)


def _emptied(stage: Stage) -> Source:
    source = stage.source()
    if BEGIN not in source.text:
        raise ValueError(f"{source.name} has no {BEGIN}: it would be handed out whole")
    try:
        return cut(source, exercise_of(stage.id))
    except ValueError as error:
        if "has no exercise" not in str(error):
            raise
        return cut(source)


def _copy_data(folder: Path, first_emptied: Stage) -> None:
    """Tables and where they come from. Reports hold source and machine code, and stay behind."""
    for path in sorted((ROOT / "data").rglob("*")):
        if path.is_file() and path.suffix in _DATA_SUFFIXES and COUNTED not in path.parents:
            _copy(path, folder)


def _finish(folder: Path, kind: str, stages: Sequence[Stage], guide: str) -> None:
    described = {"kind": kind, "stages": [stage.id for stage in stages]}
    (folder / EDITION_FILE).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    (folder / "EDITION.md").write_text(guide, encoding="utf-8")


def _written(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


# ---- notebooks -------------------------------------------------------------------------------------------


def open_notebook(notebook: NotebookNode) -> NotebookNode:
    """A notebook as it is handed out: no outputs, answers open, nbgrader's metadata on answer cells.

    Args:
        notebook: is not changed.

    Raises:
        ValueError: two answer cells with the same id, or with ids that differ only in punctuation.
    """
    opened = notebook_files.tidy(copy.deepcopy(notebook))
    seen: set[str] = set()
    for cell in opened.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        cell.source = _without_python_solutions(cell.source)
        answer = answer_id(cell)
        if answer is None:
            continue
        metadata = nbgrader_metadata(answer, cell.cell_type)
        if metadata["grade_id"] in seen:
            raise ValueError(
                f"two cells have the tag {ANSWER_TAG}{answer}, or one that nbgrader takes for it"
            )
        seen.add(metadata["grade_id"])
        if cell.cell_type == "code":
            cell.source = _open_answers(cell.source)
        cell.metadata["nbgrader"] = metadata
    nbformat.validate(opened)
    return opened


def _drop_links(notebook: NotebookNode, held: Sequence[str]) -> None:
    """Leave, in place, the text alone of links to notebooks of stages that an edition does not have."""

    def kept(link: re.Match[str]) -> str:
        return link.group() if link.group(2) in held else f"{link.group(1)} (not in this edition)"

    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"\[([^]]+)\]\((\d\d_\w+)\.ipynb[^)]*\)", kept, cell.source)


def answer_id(cell: NotebookNode) -> str | None:
    """What stands behind ``palab:answer:`` in a cell's tags; None for other cells."""
    for tag in cell.metadata.get("tags", ()):
        if tag.startswith(ANSWER_TAG):
            return tag.removeprefix(ANSWER_TAG)
    return None


def nbgrader_metadata(answer: str, cell_type: str) -> dict[str, object]:
    """Metadata of nbgrader's schema 3 for a cell with an answer that a person or the lab's grader marks."""
    return {
        "schema_version": 3,
        "grade": True,
        "grade_id": re.sub(r"[^a-zA-Z0-9_-]", "-", f"{ANSWER_TAG}{answer}"),
        "locked": False,
        "points": 1,
        "solution": True,
        "task": False,
        "cell_type": cell_type,
    }


def _without_python_solutions(source: str) -> str:
    begin, end = _TODO_CELL
    lines, inside = [], False
    for line in source.split("\n"):
        if line.strip() == begin:
            inside = True
            lines.append(line[: len(line) - len(line.lstrip())] + "# your code")
        elif line.strip() == end:
            inside = False
        elif not inside:
            lines.append(line)
    return "\n".join(lines)


def _open_answers(source: str) -> str:
    """An answer cell with None in place of every answer of its dictionary; comments stay."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return source
    values = [
        value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
        for value in node.value.values
    ]
    lines = source.encode().split(b"\n")  # ast counts columns in bytes
    for value in sorted(values, key=lambda v: (v.lineno, v.col_offset), reverse=True):
        first, last = value.lineno - 1, value.end_lineno - 1
        joined = lines[first][: value.col_offset] + b"None" + lines[last][value.end_col_offset :]
        lines[first : last + 1] = [joined]
    return b"\n".join(lines).decode()
