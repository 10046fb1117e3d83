"""A class at a time: find, grade, keep, resume, report."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite
import numpy as np

from labs_common.compiler import OPTIONS, compiler_version
from labs_common.engines import EngineMissing, GpuEngine
from labs_common.grading import class_report, feedback, tables
from labs_common.grading.grade import Task, grade_submission, sandbox
from labs_common.grading.isolation import Limits
from labs_common.grading.marking import hidden
from labs_common.grading.rubric import Rubric, load_rubric, parse_rubric, rubric_path
from labs_common.grading.schedulers import DaskScheduler, LocalScheduler, run_all
from labs_common.grading.store import Store, differing_marks
from labs_common.grading.submissions import Submission, find_submissions
from labs_common.plans import Device
from labs_common.simt.llvm_cache import engine_version


@dataclass(frozen=True)
class Summary:
    """What a run came to.

    Attributes:
        records: of all submissions, in the order of students.
        graded: how many were graded now; the others were done before.
        failed: students whom the grader itself failed on; they are graded again at the next run.
        differing: students whose marks are not those of the bundle that was graded again.
    """

    records: Sequence[Mapping[str, Any]]
    graded: int
    failed: tuple[str, ...]
    differing: tuple[str, ...] | None = None


def toolchain() -> dict[str, str]:
    """What marks may depend on besides source, seed and rubric."""
    try:
        version = importlib.metadata.version("paged-attention-lab")
    except importlib.metadata.PackageNotFoundError:
        version = "not installed"
    return {
        "lab": version,
        "nvrtc": compiler_version(),
        "options": " ".join(OPTIONS),
        "arch": Device().arch,
        "simulator": engine_version()[:16],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "llvmlite": llvmlite.__version__,
    }


def grade_class(
    submissions: Path,
    out: Path,
    assignment: Path | None = None,
    stages: tuple[str, ...] = (),
    scheduler: LocalScheduler | DaskScheduler | None = None,
    gpu: bool = False,
    by_hand: Path | None = None,
    again: bool = False,
    limits: Limits | None = None,
    on_start: Callable[[int, int], None] = lambda done, total: None,
    on_done: Callable[[Mapping[str, Any]], None] = lambda record: None,
) -> Summary:
    """Grade a folder of submissions, or an earlier run again; write marks, feedback and the class report.

    Records that are there already, of the same content and rubric, are kept: a stopped run goes on. Nothing
    is written before everything that was given is known to be right.

    Args:
        submissions: the folder.
        out: output folder.
        assignment: the rubric, as ``rubric_path`` takes it; by default the lab's, or the bundle's where one
            is graded again.
        stages: in place of the rubric's.
        scheduler: where; by default processes of this machine.
        gpu: whether to mark speed, where the work is done.
        by_hand: CSV with student, answer, points, in place of all that were given before; they are kept in
            the bundle, and count until another file is given.
        again: ``submissions`` is the output folder of an earlier run, to repeat with its seed and rubric.
        limits: of each submission's child.
        on_start: told (submissions done before, all).
        on_done: told each record.

    Raises:
        ValueError, OSError: a wrong rubric, folder or table of points, marks in ``out`` that would be
            replaced, or a stage that cannot be graded here.
        EngineMissing: ``gpu``, and there is none where the work is done.
    """
    limits, scheduler = limits or Limits(), scheduler or LocalScheduler()
    store, source = Store(out), Store(submissions)
    if source.exists() and not again:
        raise ValueError(f"{submissions} is the output of an earlier run; to grade it again, say --again")
    if not again and submissions.resolve() in (out.resolve(), *out.resolve().parents):
        raise ValueError(f"--out {out} lies in {submissions}: it would be taken for a submission there")
    head = source.head() if again else store.head() if store.exists() else {}
    rubric, text = _rubric(assignment, stages, head if again else {})
    found = source.submissions() if again else find_submissions(submissions, rubric.name)
    hand = _read_by_hand(by_hand, found, rubric) if by_hand else head.get("by_hand", {})
    seed = store.take_up(rubric, gpu, head.get("seed"))
    tasks = [
        Task(s, rubric, seed, gpu, limits, given)
        for s in found
        if store.result(s, rubric, gpu, given := hand.get(s.student, {})) is None
    ]
    if tasks:
        _check_stages(rubric, seed, limits)
        if gpu and (missing := _missing_gpu_of(scheduler)):
            raise EngineMissing(f"--gpu: {missing}")
    store.begin(rubric, text, toolchain(), seed, found, gpu, hand)
    on_start(len(found) - len(tasks), len(found))
    for record in run_all(scheduler, grade_submission, tasks, _failed):
        store.add_result(record)
        on_done(record)
    records = store.results(found)
    write_reports(out, rubric, records, gpu, store.head()["toolchain"])
    failed = tuple(record["student"] for record in records if "failed" in record)
    differing = None
    if again and submissions.resolve() != out.resolve():
        differing = tuple(differing_marks(source.results(found), records))
    return Summary(records, len(tasks), failed, differing)


def write_reports(
    out: Path, rubric: Rubric, records: Sequence[Mapping[str, Any]], gpu: bool, versions: Mapping[str, str]
) -> None:
    """CSV and JSON of the class, a page per student and of nobody else, and the class report."""
    tables.write_tables(out, rubric, records, gpu)
    pages = {out / "feedback" / f"{record['slug']}.html": record for record in records}
    for old in set((out / "feedback").glob("*.html")) - pages.keys():
        old.unlink()
    for path, record in pages.items():
        feedback.write_page(path, rubric, record)
    class_report.write_report(out / "class.html", rubric, records, gpu, versions)


def _rubric(assignment: Path | None, stages: tuple[str, ...], head: Mapping[str, Any]) -> tuple[Rubric, str]:
    if assignment is None and head:
        return parse_rubric(
            head["rubric_text"], "the bundle's rubric", stages or tuple(head["stages"])
        ), head["rubric_text"]
    path = rubric_path(assignment)
    return load_rubric(path, stages), path.read_text(encoding="utf-8-sig")


def _check_stages(rubric: Rubric, seed: str, limits: Limits) -> None:
    """Run the lab's own kernels first: a stage that cannot be graded here stops the run, not a student."""
    for stage in rubric.stages:
        if rubric.maximum(stage, gpu=False):
            hidden(stage, seed, Device(), sandbox(limits))


def _missing_gpu_of(scheduler: LocalScheduler | DaskScheduler) -> str:
    with scheduler.executor() as executor:
        return executor.submit(missing_gpu).result()


def missing_gpu() -> str:
    """What this process lacks for a GPU, "" for nothing; run where submissions are graded."""
    try:
        GpuEngine()
    except EngineMissing as error:
        return str(error)
    return ""


def _failed(task: Task, error: BaseException) -> dict[str, Any]:
    """The record of a submission that ended the grading process itself."""
    submission: Submission = task.submission
    return {
        "version": 0,
        "student": submission.student,
        "slug": submission.slug,
        "digest": submission.digest,
        "rubric": task.rubric.digest,
        "gpu": task.gpu,
        "notes": list(submission.notes),
        "flags": {"needs a look": "it ended the process that grades"},
        "failed": f"the grading process ended ({type(error).__name__}); look at this one by hand",
        "stages": {},
        "answers": [],
        "total": 0.0,
        "out_of": task.rubric.total(task.gpu),
    }


def _read_by_hand(path: Path, found: Sequence[Submission], rubric: Rubric) -> dict[str, dict[str, float]]:
    """Points by student and answer.

    Raises:
        ValueError: the line, and what in it is not of this class, this rubric or a number of its points.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 (byte {error.start})") from None
    rows = csv.DictReader(io.StringIO(text, newline=""))
    missing = {"student", "answer", "points"} - set(rows.fieldnames or ())
    if missing:
        raise ValueError(f"{path}: no column {', '.join(sorted(missing))}")
    students = {submission.student for submission in found}
    points: dict[str, dict[str, float]] = {}
    for row in rows:
        student, answer, given = row["student"], row["answer"], row["points"]
        line = f"{path}, line {rows.line_num}"
        if student not in students:
            raise ValueError(f"{line}: student={student!r} has no submission")
        if answer not in rubric.answers:
            allowed = ", ".join(rubric.answers) or "none"
            raise ValueError(f"{line}: answer={answer!r} is none of the rubric's: {allowed}")
        most = rubric.answers[answer].points
        try:
            number = float(given)
        except (TypeError, ValueError):
            raise ValueError(f"{line}: points={given!r} is no number") from None
        if not 0 <= number <= most:
            raise ValueError(f"{line}: points={given!r} of answer {answer!r}: allowed is 0 to {most:g}")
        if answer in points.setdefault(student, {}):
            raise ValueError(f"{line}: student={student!r}, answer={answer!r} a second time")
        points[student][answer] = number
    return points
