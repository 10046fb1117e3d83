"""Marks for one submission, as a record of plain data: what every scheduler runs and every report reads."""

from __future__ import annotations

import functools
import os
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from labs_common.grading.answers import mark_answers, mark_predictions
from labs_common.grading.archives import printable
from labs_common.grading.isolation import Limits, Sandbox
from labs_common.grading.marking import StageGrade, mark_kernel
from labs_common.grading.rubric import Rubric
from labs_common.grading.submissions import Submission
from labs_common.plans import Device
from labs_common.stages import find_stage

RECORD_VERSION = 2


@dataclass(frozen=True)
class Task:
    """All that is needed to grade one submission anywhere.

    Attributes:
        submission: what was handed in.
        rubric: points and limits.
        seed: secret of the grading run.
        gpu: whether speed is marked.
        limits: of the child.
        by_hand: points that a person gave, by answer id.
    """

    submission: Submission
    rubric: Rubric
    seed: str
    gpu: bool = False
    limits: Limits = field(default_factory=Limits)
    by_hand: Mapping[str, float] = field(default_factory=dict)


def grade_submission(task: Task) -> dict[str, Any]:
    """Grade every stage and answer of one submission.

    Nothing that the submission holds raises. A failure of the grader itself is in the record as ``failed``;
    such a record is not final, and the submission is graded again at the next run.
    """
    started = time.perf_counter()
    submission, rubric = task.submission, task.rubric
    record: dict[str, Any] = {
        "version": RECORD_VERSION,
        "student": submission.student,
        "slug": submission.slug,
        "digest": submission.digest,
        "rubric": rubric.digest,
        "gpu": task.gpu,
        "by_hand": dict(task.by_hand),
        "notes": list(submission.notes),
        "flags": {"suspicious files": "; ".join(submission.suspicious[:5])} if submission.suspicious else {},
    }
    try:
        stages = {stage: _grade_stage(task, stage).to_json() for stage in rubric.stages}
    except Exception as error:
        record["failed"] = f"{type(error).__name__}: {error}"
        record["trace"] = traceback.format_exc()[-4000:]
        stages = {}
    answers = [a.to_json() for a in mark_answers(submission.answers, rubric.answers, task.by_hand)]
    if "suspicious files" in record["flags"] and "suspicious files" in rubric.zero:
        for stage in stages.values():
            stage["points"] = dict.fromkeys(stage["points"], 0.0)
            stage["total"] = 0.0
    record["stages"], record["answers"] = stages, answers
    record["total"] = round(sum(s["total"] for s in stages.values()) + sum(a["points"] for a in answers), 2)
    record["out_of"] = rubric.total(task.gpu)
    record["seconds"] = round(time.perf_counter() - started, 3)
    record["worker"] = os.getpid()
    return _printable(record)


def _printable(value: Any) -> Any:
    """The same with every text fit to be shown: compilers and assertions repeat what a student wrote."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, (list, tuple)) else value


def _grade_stage(task: Task, stage_id: str) -> StageGrade:
    stage = find_stage(stage_id)
    speed = None
    if task.gpu:
        from labs_common.grading.speed import SpeedMarker

        speed = SpeedMarker(task.rubric, task.seed, task.limits)
    grade = mark_kernel(
        task.submission.kernels.get(stage_id),
        stage,
        task.rubric,
        task.seed,
        sandbox(task.limits),
        Device(),
        speed,
    )
    if most := task.rubric.points[stage_id]["predictions"]:
        text = task.submission.answers.get(f"{stage_id}-predictions", "")
        share, reasons = mark_predictions(text, stage)
        grade.maximum["predictions"] = most
        grade.points["predictions"] = round(most * share, 2)
        grade.reasons += reasons
    return grade


@functools.lru_cache(maxsize=4)
def sandbox(limits: Limits) -> Sandbox:
    """This process's source of children with these limits."""
    return Sandbox(limits)


def final_marks(record: Mapping[str, Any]) -> dict[str, Any]:
    """What two gradings of the same submission must agree on: everything but times and who did it."""
    return {key: value for key, value in record.items() if key not in ("seconds", "worker", "trace")}
