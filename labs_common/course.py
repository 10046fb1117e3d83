"""What a student does in each stage: steps with hints, and exercises that stay open, from ``course.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Step:
    """One graded step of a stage.

    Attributes:
        region: which of the kernel's solution regions it belongs to, from 0.
        task: what is to be done, a sentence or two; it stands in the cut kernel.
        topics: parts of the computation that it is judged by, of ``faults.TOPICS``.
        hints: a question, then the idea, then nearly the code.
        barriers: whether it places barriers, and so answers for a race.
        faults: names of ``faults.FAULTS`` that are this step's, whatever their topic.
    """

    region: int
    task: str
    topics: tuple[str, ...]
    hints: tuple[str, str, str]
    barriers: bool = False
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exercise:
    """A stage as a student meets it.

    Attributes:
        steps: in order; every step after the first can be judged by itself.
        stretch: open ends, for those who are done.
    """

    steps: tuple[Step, ...]
    stretch: tuple[str, ...]


@cache
def _course() -> dict[str, Exercise]:
    stages = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {
        stage: Exercise(
            tuple(
                Step(
                    step["region"],
                    step["task"],
                    tuple(step["topics"]),
                    tuple(step["hints"]),
                    step.get("barriers", False),
                    tuple(step.get("faults", ())),
                )
                for step in exercise["steps"]
            ),
            tuple(exercise["stretch"]),
        )
        for stage, exercise in stages.items()
    }


def exercise_of(stage_id: str) -> Exercise:
    """The exercise of a stage.

    Raises:
        ValueError: the stage has none; the message lists those that have.
    """
    course = _course()
    if stage_id not in course:
        raise ValueError(f"stage {stage_id} has no exercise; there are {', '.join(course)}")
    return course[stage_id]
