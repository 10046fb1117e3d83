"""What is marked, and with how many points: a TOML file, checked in every field before anything is graded."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from labs_common.grading.cases import TITLES
from labs_common.stages import find_stage

# The lab's own rubrics, by the name that `palab grade --assignment` takes in place of a file.
OWN = {name: Path(__file__).with_name(f"{name}_rubric.toml") for name in ("default", "roof")}
DEFAULT = OWN["default"]
PARTS = ("correctness", "cleanliness", "structure", "speed", "predictions")
COUNTS = (
    "requests",
    "sectors",
    "sectors_per_request",
    "multiplies",
    "instructions",
    "busiest_warp",
    "barriers_per_token",
    "kv_bytes",
    "shared_wavefronts",
    "spills",
)
FLAGS = (
    "inputs changed",
    "keeps state",
    "forbidden include",
    "impossible bytes",
    "impossible speed",
    "suspicious files",
    "prints",
    "looks at the machine",
    "needs a look",
)


@dataclass(frozen=True)
class Limit:
    """How a ratio becomes a share of points: all up to ``full``, none from ``none`` on."""

    full: float
    none: float
    counts: bool = True

    def share(self, ratio: float) -> float:
        """Between 1 and 0; linear in the logarithm of the ratio, or in a count that may be 0."""
        if ratio <= self.full:
            return 1.0
        if ratio >= self.none:
            return 0.0
        if self.full <= 0:
            return (self.none - ratio) / (self.none - self.full)
        return math.log(self.none / ratio) / math.log(self.none / self.full)


@dataclass(frozen=True)
class AnswerKey:
    """How an answer is graded.

    Attributes:
        points: for a right answer.
        kind: "number", "choice" or "hand".
        value: of a number.
        factor: a number is right within this factor (1.25: from value/1.25 to value·1.25).
        tolerance: or within this absolute distance.
        accept: texts of a choice, compared without case, blanks and punctuation.
        why: told to a student who misses.
    """

    points: float
    kind: str
    value: float | None = None
    factor: float | None = None
    tolerance: float | None = None
    accept: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Rubric:
    """A validated rubric.

    Attributes:
        name: of the assignment.
        stages: ids, in order.
        points: by stage id, points by part.
        weights: of the classes of hidden problems.
        structure: limits by count.
        speed: limit of the time ratio.
        again_within: how close to an edge a speed mark is measured again, relative.
        zero: flags that take all points of a stage.
        answers: keys by answer id.
    """

    name: str
    stages: tuple[str, ...]
    points: Mapping[str, Mapping[str, float]]
    weights: Mapping[str, float]
    structure: Mapping[str, Limit]
    speed: Limit
    again_within: float
    zero: tuple[str, ...]
    answers: Mapping[str, AnswerKey] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 over everything that marks depend on."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def maximum(self, stage: str, gpu: bool) -> float:
        """Points of a stage; those for speed only where there is a GPU."""
        return sum(p for part, p in self.points[stage].items() if part != "speed" or gpu)

    def total(self, gpu: bool) -> float:
        """Points of everything."""
        return sum(self.maximum(s, gpu) for s in self.stages) + sum(k.points for k in self.answers.values())


class RubricError(ValueError):
    """A wrong rubric; the message names the file, the field, its value and what is allowed."""


def rubric_path(given: Path | None) -> Path:
    """The file of a rubric.

    Args:
        given: a TOML file, or a name in ``OWN``; the default one where None.

    Raises:
        FileNotFoundError: neither; the message lists the names.
    """
    if given is None:
        return DEFAULT
    if given.is_file():
        return given
    if str(given) not in OWN:
        raise FileNotFoundError(f"{given}: no such file, and the lab's own rubrics are {', '.join(OWN)}")
    return OWN[str(given)]


def load_rubric(path: Path | None = None, stages: tuple[str, ...] = ()) -> Rubric:
    """Read and check a rubric.

    Args:
        path: as ``rubric_path`` takes it.
        stages: grade only these, in place of the file's.

    Raises:
        FileNotFoundError: there is no such file.
        RubricError: see there.
    """
    path = rubric_path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RubricError(f"{path.name}: not UTF-8 (byte {error.start})") from None
    return parse_rubric(text, path.name, stages)


def parse_rubric(text: str, name: str = "rubric", stages: tuple[str, ...] = ()) -> Rubric:
    """As ``load_rubric``, of a text. What it leaves out is as in the default rubric."""
    try:
        given = tomllib.loads(text)
        default = tomllib.loads(DEFAULT.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise RubricError(f"{name}: no TOML: {error}") from None
    return _Reader(name, given, default).rubric(stages)


class _Reader:
    """Takes a rubric's tables apart, with errors that name the field."""

    def __init__(self, file: str, given: Mapping[str, Any], default: Mapping[str, Any]) -> None:
        self.file, self.given, self.default = file, given, default

    def rubric(self, stages: tuple[str, ...]) -> Rubric:
        known = ("assignment", "points", "stage", "correctness", "structure", "speed", "integrity", "answers")
        self.only(self.given, known, "")
        assignment = self.table(self.given, "assignment", "")
        self.only(assignment, ("name", "stages"), "assignment.")
        listed = stages or assignment.get("stages", self.default["assignment"]["stages"])
        if not isinstance(listed, (list, tuple)) or not listed:
            raise self.error("assignment.stages", listed, "a list of stage ids, not empty")
        ids = []
        for stage in listed:
            try:
                ids.append(find_stage(stage).id)
            except ValueError as error:
                raise self.error("assignment.stages", stage, f"the lab's: {error}") from None
        if len(set(ids)) != len(ids):
            raise self.error("assignment.stages", list(listed), "every stage once")
        name = assignment.get("name", self.default["assignment"]["name"])
        if not isinstance(name, str) or not name or "/" in name or name.startswith("."):
            raise self.error("assignment.name", name, "a folder name")
        integrity = {**self.default["integrity"], **self.table(self.given, "integrity", "")}
        self.only(integrity, ("zero",), "integrity.")
        allowed = f"a list out of {', '.join(FLAGS)}"
        if not isinstance(integrity["zero"], list):
            raise self.error("integrity.zero", integrity["zero"], allowed)
        for flag in integrity["zero"]:
            if flag not in FLAGS:
                raise self.error("integrity.zero", flag, allowed)
        speed = {**self.default["speed"], **self.table(self.given, "speed", "")}
        self.only(speed, ("full", "none", "again_within"), "speed.")
        return Rubric(
            name=name,
            stages=tuple(ids),
            points=self.points(ids),
            weights=self.weights(),
            structure=self.structure(),
            speed=self.limit(speed, "speed."),
            again_within=self.number(speed["again_within"], "speed.again_within", 0, 1),
            zero=tuple(integrity["zero"]),
            answers=self.answers(),
        )

    def points(self, ids: list[str]) -> dict[str, dict[str, float]]:
        base = {**self.default["points"], **self.table(self.given, "points", "")}
        self.only(base, PARTS, "points.")
        own = {}
        for key, table in self.table(self.given, "stage", "").items():
            try:
                own[find_stage(key).id] = table
            except ValueError as error:
                raise self.error("stage", key, str(error)) from None
            if not isinstance(table, Mapping):
                raise self.error(f"stage.{key}", table, "a table of points")
            self.only(table, PARTS, f"stage.{key}.")
        return {
            stage: {
                part: self.number({**base, **own.get(stage, {})}[part], f"points.{part} of {stage}", 0)
                for part in PARTS
            }
            for stage in ids
        }

    def weights(self) -> dict[str, float]:
        given = {**self.default["correctness"], **self.table(self.given, "correctness", "")}
        self.only(given, tuple(TITLES), "correctness.")
        weights = {kind: self.number(given.get(kind, 1), f"correctness.{kind}", 0) for kind in TITLES}
        if weights["plain"] <= 0:
            raise self.error("correctness.plain", weights["plain"], "more than 0: it gates all other points")
        return weights

    def structure(self) -> dict[str, Limit]:
        given = self.table(self.given, "structure", "")
        self.only(given, COUNTS, "structure.")
        limits = {}
        for count in COUNTS:
            table = {**self.default["structure"][count], **self.table(given, count, "structure.")}
            self.only(table, ("full", "none", "counts"), f"structure.{count}.")
            limits[count] = self.limit(table, f"structure.{count}.")
        return limits

    def answers(self) -> dict[str, AnswerKey]:
        keys = {}
        for answer, table in self.table(self.given, "answers", "").items():
            where = f"answers.{answer}"
            if not isinstance(table, Mapping):
                raise self.error(where, table, "a table")
            self.only(table, ("points", "kind", "value", "factor", "tolerance", "accept", "why"), f"{where}.")
            kind = table.get("kind")
            if kind not in ("number", "choice", "hand"):
                raise self.error(f"{where}.kind", kind, "number, choice or hand")
            optional = {
                name: self.number(table[name], f"{where}.{name}", least)
                for name, least in (("value", -math.inf), ("factor", 1), ("tolerance", 0))
                if name in table
            }
            if kind == "number" and ("value" not in optional or len(optional) != 2):
                raise self.error(where, dict(table), "value, and either factor or tolerance")
            accept = table.get("accept", [])
            if not isinstance(accept, list) or not all(isinstance(a, str) and a.strip() for a in accept):
                raise self.error(f"{where}.accept", accept, "a list of texts")
            if kind == "choice" and not accept:
                raise self.error(f"{where}.accept", accept, "at least one text")
            points = self.number(table.get("points"), f"{where}.points", 0)
            keys[answer] = AnswerKey(
                points, kind, accept=tuple(accept), why=str(table.get("why", "")), **optional
            )
        return keys

    def limit(self, table: Mapping[str, Any], where: str) -> Limit:
        full = self.number(table["full"], f"{where}full", 0)
        none = self.number(table["none"], f"{where}none", 0)
        if none <= full:
            raise self.error(f"{where}none", none, f"more than full, {full:g}")
        counts = table.get("counts", True)
        if not isinstance(counts, bool):
            raise self.error(f"{where}counts", counts, "true or false")
        return Limit(full, none, counts)

    def number(self, value: Any, where: str, least: float, most: float = math.inf) -> float:
        right = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not right or not least <= value <= most:
            span = f"from {least:g}" + ("" if most == math.inf else f" to {most:g}")
            raise self.error(where, value, "a number" if least == -math.inf else f"a number {span}")
        return float(value)

    def table(self, parent: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
        value = parent.get(key, {})
        if not isinstance(value, Mapping):
            raise self.error(f"{where}{key}", value, "a table")
        return value

    def only(self, table: Mapping[str, Any], allowed: tuple[str, ...], where: str) -> None:
        for key in table:
            if key not in allowed:
                raise RubricError(f"{self.file}: {where}{key} is unknown; allowed are {', '.join(allowed)}")

    def error(self, where: str, value: Any, allowed: str) -> RubricError:
        return RubricError(f"{self.file}: {where} = {value!r}; it must be {allowed}")
