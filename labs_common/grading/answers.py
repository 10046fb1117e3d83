"""Marks for answers, by the rubric's key. An answer is text; nothing of it is evaluated."""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from labs_common.grading.rubric import AnswerKey
from labs_common.metrics import Metrics
from labs_common.predictions import COUNTED_PROBLEM, reference_counts, score
from labs_common.stages import Stage, find_stage, stage_before

_NUMBER = re.compile(r"[-+]?(?:\d[\d_]*(?:[.,]\d+)*|[.,]\d+)(?:\s*[eE][-+]?\d+)?")


@dataclass(frozen=True)
class AnswerGrade:
    """Marks of one answer.

    Attributes:
        answer: its id.
        points, maximum: had and to be had.
        reason: why points are missing.
        by_hand: whether a person must still look at it.
    """

    answer: str
    points: float
    maximum: float
    reason: str = ""
    by_hand: bool = False

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON."""
        return asdict(self)


def mark_answers(
    given: Mapping[str, str], keys: Mapping[str, AnswerKey], by_hand: Mapping[str, float] | None = None
) -> list[AnswerGrade]:
    """Marks for every answer of the key; one that is missing gets none.

    Args:
        given: texts by answer id.
        keys: of the rubric.
        by_hand: points that a person gave, by answer id.
    """
    return [_mark(answer, given.get(answer, ""), key, by_hand or {}) for answer, key in keys.items()]


def _mark(answer: str, text: str, key: AnswerKey, by_hand: Mapping[str, float]) -> AnswerGrade:
    if answer in by_hand:
        return AnswerGrade(answer, min(key.points, max(0.0, by_hand[answer])), key.points, "marked by hand")
    if not text.strip():
        return AnswerGrade(answer, 0.0, key.points, "no answer")
    if key.kind == "hand":
        return AnswerGrade(answer, 0.0, key.points, "to be marked by hand", by_hand=True)
    if key.kind == "number":
        number = read_number(text)
        if number is None:
            return AnswerGrade(answer, 0.0, key.points, "no number, or more than one, in the answer")
        right = _near(number, key)
    else:
        right = plain(text) in {plain(accepted) for accepted in key.accept}
    if right:
        return AnswerGrade(answer, key.points, key.points)
    return AnswerGrade(answer, 0.0, key.points, "not right" + (f": {key.why}" if key.why else ""))


def mark_predictions(text: str, stage: Stage) -> tuple[float, list[str]]:
    """The share of a stage's predictions that came true, and why the others did not.

    What nothing is recorded for is left out.

    Args:
        text: of the answer cell.
        stage: whose notebook it is in.
    """
    if not text.strip():
        return 0.0, ["predictions: no answer cell"]
    try:
        scored = score(text, stage, counted=_counts(stage.id))
    except ValueError as error:
        return 0.0, [f"predictions: {error}"]
    known = [one for one in scored if not math.isnan(one.points)]
    if not known:
        return 1.0, []
    reasons = [
        f"predicted {one.answer or 'nothing'} for: {one.asks}. {one.why}" for one in known if one.points < 1
    ]
    return sum(one.points for one in known) / len(known), reasons


@functools.lru_cache(maxsize=16)
def _counts(stage_id: str) -> Metrics:
    """Counts of the lab's own kernels, of this stage and the one before."""
    stage = find_stage(stage_id)
    ids = [one.id for one in (stage_before(stage), stage) if one]
    return reference_counts(ids, stage.typed(COUNTED_PROBLEM))


def _near(number: float, key: AnswerKey) -> bool:
    if key.factor is None:
        return abs(number - key.value) <= key.tolerance
    if key.value == 0 or number == 0 or (number < 0) != (key.value < 0):
        return number == key.value
    return 1 / key.factor <= number / key.value <= key.factor


def read_number(text: str) -> float | None:
    """The number of an answer such as ``about 3.5 ms`` or ``1,5``; None for none or several.

    A comma before exactly three digits groups thousands; any other is a decimal comma.
    """
    found = _NUMBER.findall(text)
    if len(found) != 1:
        return None
    number = found[0].replace("_", "").replace(" ", "")
    if re.fullmatch(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?", number):
        number = number.replace(",", "")
    try:
        return float(number.replace(",", "."))
    except ValueError:
        return None


def plain(text: str) -> str:
    """Text without case, accents, punctuation and markup, its words apart by one blank."""
    folded = unicodedata.normalize("NFKD", text).casefold()
    kept = "".join(c if c.isalnum() else " " for c in folded if not unicodedata.combining(c))
    return " ".join(kept.split())
