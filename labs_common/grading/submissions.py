"""Who handed in what: a folder of submissions as kernels and answers per student. Nothing of it is run."""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from labs_common.grading.archives import (
    ARCHIVE_SUFFIXES,
    Files,
    decode,
    is_archive,
    printable,
    read_files,
    shown,
)
from labs_common.grading.notebook_cells import Cells, read_notebook
from labs_common.grading.safety import MAX_SOURCE_BYTES, normalised
from labs_common.stages import ALL_STAGES, Stage, find_stage

_REPORT_FAMILY = "palab check report"
REPORT_FORMAT = f"{_REPORT_FAMILY} 1"

# Bounded, as students choose the text: an open-ended gap would make a hostile file quadratic to search.
_ENTRY = re.compile(r"__global__\b[^;{]{0,300}?\bpaged_attention_(\w{1,60})\s*\(")
NBGRADER_NAMES = frozenset(
    ("source", "release", "submitted", "autograded", "feedback", "exchange", "gradebook.db", "header.ipynb")
)
_FOLDER_RANK = {"mine": 0, "": 1}  # the student edition's own kernels lie beside the student's


@dataclass(frozen=True)
class Kernel:
    """A kernel as it was handed in.

    Attributes:
        stage: id of the stage in whose place it is graded.
        text: CUDA C++, line ends made uniform.
        origin: file, or notebook and cell, that it was taken from.
    """

    stage: str
    text: str
    origin: str


@dataclass(frozen=True)
class Submission:
    """What one student handed in, as far as it can be read.

    Attributes:
        student: the name of the folder or file, or of the student's folder in nbgrader's layout.
        kernels: by stage id.
        answers: text by answer id.
        notes: what was left out, renamed, doubled or damaged, for a person.
        suspicious: what no honest submission holds.
    """

    student: str
    kernels: dict[str, Kernel] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    suspicious: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 over all that marks depend on."""
        content = [
            [[k.stage, k.text] for _, k in sorted(self.kernels.items())],
            sorted(self.answers.items()),
            self.notes,
            self.suspicious,
        ]
        return hashlib.sha256(json.dumps(content).encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def slug(self) -> str:
        """A file name for this student that no other has, nor can find a name to have: 64 bits of a hash."""
        plain = unicodedata.normalize("NFKD", self.student).encode("ascii", "ignore").decode()
        plain = re.sub(r"[^A-Za-z0-9]+", "-", plain).strip("-").lower()[:40]
        digest = hashlib.sha256(self.student.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{plain or 'student'}-{digest[:16]}"


def find_submissions(folder: Path, assignment: str = "") -> list[Submission]:
    """All submissions in a folder, sorted by student.

    Taken are: a folder, an archive, a notebook, a kernel file or a check report per student, or nbgrader's
    ``submitted/STUDENT/ASSIGNMENT/``. A single file is one submission.

    Args:
        folder: of the submissions, or one file.
        assignment: folder name that nbgrader's layout is recognised by.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it holds nothing.
    """
    if not folder.exists():
        raise FileNotFoundError(f"no such folder: {folder}")
    if folder.is_file():
        return [_read(folder, _stem(folder.name))]
    entries = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    inner = folder / "submitted"
    # only among nbgrader's own folders: a student may be called "submitted"
    others = {p.name for p in entries if p.suffix != ".py"}
    if inner.is_dir() and not inner.is_symlink() and others <= NBGRADER_NAMES:
        folder = inner
        entries = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    students = [p for p in entries if p.is_dir() and not p.is_symlink()]
    nested = [p for p in students if assignment and os.path.isdir(p / assignment)]  # no error if unreadable
    if nested or (folder.name == "submitted" and students):
        return _apart([(student, _read_nbgrader(student, assignment)) for student in students])
    if not entries:
        raise ValueError(f"{folder} holds no submissions")
    names = [_stem(p.name) if not p.is_dir() else p.name for p in entries]
    return _apart(
        [
            (path, _read(path, name if names.count(name) == 1 else path.name))
            for path, name in zip(entries, names, strict=True)
        ]
    )


def _apart(found: list[tuple[Path, Submission]]) -> list[Submission]:
    """Submissions whose names look alike once they are normalised get the hash of their file name behind it.

    Otherwise the marks of one would be written over another's.
    """
    names = Counter(submission.student for _, submission in found)
    apart = []
    for path, submission in found:
        if names[submission.student] > 1:
            digest = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:8]
            note = f"another submission's name reads {submission.student} too"
            submission = replace(
                submission,
                student=f"{submission.student} ({digest})",
                suspicious=(*submission.suspicious, note),
            )
        apart.append(submission)
    return apart


def _stem(name: str) -> str:
    for suffix in (*ARCHIVE_SUFFIXES, ".cu", ".ipynb", ".json"):
        if name.lower().endswith(suffix):
            return name[: -len(suffix)] or name
    return name


def _read_nbgrader(student: Path, assignment: str) -> Submission:
    try:
        folders = sorted(p for p in student.iterdir() if p.is_dir() and not p.is_symlink())
    except OSError as error:
        return Submission(_name(student.name), notes=(f"the folder cannot be read ({error.strerror})",))
    named = [p for p in folders if p.name == assignment]
    if named or len(folders) == 1:
        return _read((named or folders)[0], student.name)
    note = f"no folder {assignment!r}; there are {', '.join(shown(p.name) for p in folders) or 'none'}"
    return Submission(_name(student.name), notes=(note,))


def _name(name: str) -> str:
    return shown(unicodedata.normalize("NFC", name))


def _read(path: Path, student: str) -> Submission:
    return from_files(_name(student), read_files(path))


def from_files(student: str, files: Files) -> Submission:
    """The kernels and answers in the files of one submission.

    Where a stage is handed in more than once, a file in a folder ``mine`` goes before one at the top, that
    before a notebook's cell, that before a check report, and that before files in other folders.
    """
    notes, suspicious = list(files.notes), list(files.suspicious)
    candidates: list[tuple[int, Kernel]] = []
    answers: dict[str, list[tuple[str, str]]] = {}
    for name, data in files.contents.items():
        text = decode(data, name, notes)
        if text is None:
            continue
        lower = name.lower()
        if lower.endswith(".cu"):
            folder = PurePosixPath(name).parent.name
            rank = _FOLDER_RANK.get(folder, 4 if folder == "kernels" else 1)
            _add_kernel(candidates, rank, PurePosixPath(name).name, "", text, shown(name), notes)
        elif lower.endswith(".ipynb"):
            cells = read_notebook(text, shown(name))
            notes += cells.notes
            _add_cells(candidates, answers, cells, notes)
        else:
            _add_report(candidates, text, shown(name), notes)
    kernels = _choose(candidates, notes)
    chosen = {}
    for answer, given in answers.items():
        said = [text for text, _ in given if text.strip()]
        chosen[answer] = said[0] if said else ""
        if len({text.strip() for text in said}) > 1:
            notes.append(f"answer {answer}: given more than once; the first that says something is graded")
    if not kernels and not chosen:
        notes.append("no kernel and no answer was found")
    notes = [printable(note) for note in dict.fromkeys(notes)]
    return Submission(student, kernels, chosen, tuple(notes), tuple(suspicious))


def _add_cells(candidates: list, answers: dict, cells: Cells, notes: list[str]) -> None:
    for file_name, stage, text, where in cells.kernels:
        _add_kernel(candidates, 2, file_name, stage, text, where, notes)
    for answer, given in cells.answers.items():
        answers.setdefault(answer, []).extend(given)


def _add_report(candidates: list, text: str, name: str, notes: list[str]) -> None:
    """A report that ``check`` wrote: its source is graded again, its verdicts are not looked at."""
    try:
        report = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        notes.append(f"{name}: damaged JSON, so no check report ({str(error)[:80]}); left out")
        return
    if not isinstance(report, dict) or not str(report.get("format")).startswith(_REPORT_FAMILY):
        return  # somebody's settings or data
    if report["format"] != REPORT_FORMAT:
        notes.append(f"{name}: a check report of another version of the lab; left out")
        return
    stage, source = report.get("stage"), report.get("source")
    if not isinstance(stage, str) or not isinstance(source, str):
        notes.append(f"{name}: a check report without a stage or a source; left out")
        return
    notes.append(f"{name}: a check report; its kernel is graded again, what it claims is not read")
    _add_kernel(candidates, 3, "", stage, source, name, notes)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. No writer gives a key twice, and a person would read the one that is not graded."""
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key stands in it twice")
    return value


def _add_kernel(
    candidates: list[tuple[int, Kernel]],
    rank: int,
    file_name: str,
    tag: str,
    text: str,
    origin: str,
    notes: list[str],
) -> None:
    text = normalised(text)
    stage = _stage_of(file_name, tag, text)
    if stage is None:
        notes.append(f"{origin}: belongs to no stage, by its name or by its kernel's; left out")
        return
    if file_name and file_name != stage.path.name:
        notes.append(f"{origin}: taken for {stage.path.name}")
    candidates.append((rank, Kernel(stage.id, text, origin)))


def _stage_of(file_name: str, tag: str, text: str) -> Stage | None:
    """By the file's name or the tag, else by the name of a kernel in the text."""
    names = [tag, file_name.removesuffix(".cu"), file_name[:2] if re.match(r"\d\d[_ .-]", file_name) else ""]
    for name in names:
        if name:
            try:
                return find_stage(name)
            except ValueError:
                continue
    entries = {match[1] for match in _ENTRY.finditer(text[:MAX_SOURCE_BYTES])}
    matches = [stage for stage in ALL_STAGES if stage.id[3:] in entries]
    return matches[0] if len(matches) == 1 else None


def _choose(candidates: Iterable[tuple[int, Kernel]], notes: list[str]) -> dict[str, Kernel]:
    by_stage: dict[str, list[tuple[int, Kernel]]] = {}
    for rank, kernel in candidates:
        by_stage.setdefault(kernel.stage, []).append((rank, kernel))
    chosen = {}
    for stage, found in sorted(by_stage.items()):
        best = min(found, key=lambda item: item[0])[1]  # the first of the lowest rank
        chosen[stage] = best
        if len({kernel.text for _, kernel in found}) > 1:
            others = ", ".join(kernel.origin for _, kernel in found if kernel is not best)
            notes.append(f"stage {stage}: {best.origin} is graded, not {others}")
    return chosen


__all__ = ["REPORT_FORMAT", "Kernel", "Submission", "find_submissions", "from_files", "is_archive"]
