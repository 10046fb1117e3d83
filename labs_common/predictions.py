"""Predict first: questions about a stage's profile, a student's answers, and what they are scored against.

An answer cell has the tag ``palab:answer:<stage>-predictions`` and assigns one dictionary literal. It is read
as text and never run. Counts come from the simulator, or from a table of them where kernels have no body yet;
time, registers, occupancy and limiter come from a recorded profile of a named GPU and toolkit.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from labs_common import metric_names as names
from labs_common import metrics as metrics_table
from labs_common.engines import Engine, open_engine
from labs_common.explain import limiter_of
from labs_common.gpus import display_name
from labs_common.inputs import make_inputs
from labs_common.metrics import Metrics
from labs_common.problem import PRESETS, Problem
from labs_common.recorded import RECORDED, recorded_metrics
from labs_common.stages import Stage, find_stage, stage_before

ANSWER_TAG = "palab:answer:"
COUNTED = RECORDED.parent / "counted"  # tables of counts, in editions whose kernels have no body
COUNTED_PROBLEM = PRESETS["ragged"]  # in the number format that a stage is taught with, as the next one
TIMED_PROBLEM = PRESETS["seed"]
DEFAULT_GPU = "h200"
DIRECTIONS = ("up", "down", "same")
_EXACT = 1.1  # an amount so near needs no explanation, though one further off may still have its point

# What a student may call a limiter, and the rules of ``explain`` that it stands for.
LIMITERS: dict[str, tuple[str, ...]] = {
    "dram": ("dram", "dram_leaning"),
    "load_store": ("lsu", "redundant_loads"),
    "issue": ("issue", "redundant_work"),
    "compute": ("compute", "leaning"),
    "cache": ("l1", "l2", "leaning"),
    "latency": ("latency",),
}


@dataclass(frozen=True)
class Question:
    """One prediction.

    Attributes:
        id: key of the answer.
        asks: the question, with the unit of the answer; in ``QUESTIONS`` with the problem's name left open.
        kind: "amount" (a number, within a factor), or "choice" (one of ``choices``).
        choices: allowed answers of a choice.
        factor: how far an amount may be off, up or down.
        needs_previous: it compares with the stage before.
    """

    id: str
    asks: str
    kind: str
    choices: tuple[str, ...] = ()
    factor: float = 1.0
    needs_previous: bool = False


QUESTIONS: tuple[Question, ...] = (
    Question(
        "megabytes_read",
        "MB that its kernels read on problem {counted}, each sector once",
        "amount",
        factor=1.25,
    ),
    Question(
        "load_requests",
        "global load requests of the stage before, divided by this one's, on {counted}",
        "amount",
        factor=1.5,
        needs_previous=True,
    ),
    Question("limiter", "what limits it on problem {timed}, on an H200", "choice", tuple(LIMITERS)),
    Question(
        "times_faster",
        "how many times faster than the stage before, on problem {timed}, on an H200",
        "amount",
        factor=1.5,
        needs_previous=True,
    ),
    Question(
        "registers",
        "registers per thread against the stage before, compiled for an H200",
        "choice",
        DIRECTIONS,
        needs_previous=True,
    ),
    Question(
        "occupancy",
        "theoretical occupancy against the stage before, on an H200",
        "choice",
        DIRECTIONS,
        needs_previous=True,
    ),
)


@dataclass(frozen=True)
class Truth:
    """What a question's answer is.

    Attributes:
        value: a number, or one of several accepted choices; None where nothing is recorded.
        said: the value in words, with its source.
        why: what a miss should be told.
    """

    value: float | tuple[str, ...] | None
    said: str
    why: str


@dataclass(frozen=True)
class Scored:
    """One prediction, scored.

    Attributes:
        id, asks: of the question.
        answer: as given, in words; empty without one.
        truth: as it is, in words, with its source.
        points: 1, 0.5 for an amount within the square of the factor, or 0; NaN where nothing is recorded.
        why: for a miss, or an amount that is only near, what explains it.
    """

    id: str
    asks: str
    answer: str
    truth: str
    points: float
    why: str


def questions(stage: str | int | Stage) -> tuple[Question, ...]:
    """The predictions that a stage asks for; the first stage has none before it to compare with."""
    chosen = _stage(stage)
    problems = {"counted": chosen.typed(COUNTED_PROBLEM).name, "timed": chosen.typed(TIMED_PROBLEM).name}
    return tuple(
        dataclasses.replace(question, asks=question.asks.format(**problems))
        for question in QUESTIONS
        if stage_before(chosen) or not question.needs_previous
    )


def answer_cell(stage: str | int | Stage) -> str:
    """Source of a stage's answer cell, every answer open."""
    lines = ["predictions = {"]
    for question in questions(stage):
        hint = f", one of {', '.join(question.choices)}" if question.choices else ""
        lines.append(f"    # {question.asks}{hint}")
        lines.append(f'    "{question.id}": None,')
    return "\n".join([*lines, "}"])


def parse_predictions(text: str) -> dict[str, object]:
    """The answers of an answer cell, read without running it.

    Args:
        text: Python that assigns one dictionary literal of numbers, texts and None.

    Raises:
        ValueError: anything else; the message says what was expected.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the answer cell is no Python: {error}") from None
    found = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    if len(found) != 1 or not isinstance(found[0], ast.Dict):
        raise ValueError('the answer cell must assign one dictionary: predictions = {"limiter": …}')
    answers: dict[str, object] = {}
    for key, value in zip(found[0].keys, found[0].values, strict=True):
        try:
            name, answer = ast.literal_eval(key) if key else None, ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            raise ValueError(
                f"line {value.lineno} of the answer cell: an answer is a number, a text or None"
            ) from None
        if not isinstance(name, str):
            raise ValueError(f"line {value.lineno} of the answer cell: a key is a text")
        if not (answer is None or isinstance(answer, (int, float, str))):
            raise ValueError(f"{name}: an answer is a number, a text or None, not {type(answer).__name__}")
        answers[name] = answer
    return answers


def score(
    answers: Mapping[str, object] | str,
    stage: str | int | Stage,
    gpu: str = DEFAULT_GPU,
    engine: Engine | None = None,
    recorded: Metrics | None = None,
    counted: Metrics | None = None,
) -> list[Scored]:
    """Score a stage's predictions.

    Args:
        answers: by question, or the text of an answer cell.
        stage: by id or unique prefix.
        gpu: whose recorded profile decides about time, registers, occupancy and limiter.
        engine: that counts, where no table of counts is at hand; by default the simulator.
        recorded, counted: in place of what is found in ``data/``.

    Raises:
        ValueError: an unknown stage, a text that is no answer cell, an unknown question, or an answer of the
            wrong kind; the message says what is allowed.
    """
    chosen = _stage(stage)
    if isinstance(answers, str):
        answers = parse_predictions(answers)
    asked = questions(chosen)
    unknown = sorted(set(answers) - {question.id for question in asked})
    if unknown:
        raise ValueError(
            f"{unknown[0]!r} is no question of {chosen.id}; there are {', '.join(q.id for q in asked)}"
        )
    truths = _truths(chosen, gpu, engine, recorded, counted)
    return [_score(question, answers.get(question.id), truths[question.id]) for question in asked]


def table(scored: Sequence[Scored]) -> pd.DataFrame:
    """Scores for a notebook, a row per prediction."""
    return pd.DataFrame(
        [
            {
                "prediction": one.asks,
                "yours": one.answer or "–",
                "it is": one.truth,
                "points": metrics_table.ABSENT if math.isnan(one.points) else f"{one.points:g}",
                "why": one.why,
            }
            for one in scored
        ]
    )


def _score(question: Question, answer: object, truth: Truth) -> Scored:
    given = "" if answer is None else f"{answer:g}" if _is_number(answer) else str(answer)
    if answer is not None:
        _check_kind(question, answer)
    common = (question.id, question.asks, given, truth.said)
    if truth.value is None:
        return Scored(*common, math.nan, "nothing is recorded to score it against")
    if answer is None:
        return Scored(*common, 0.0, "not predicted")
    if question.kind == "choice":
        right = str(answer).strip().casefold() in truth.value
        return Scored(*common, float(right), "" if right else truth.why)
    off = _off(float(answer), float(truth.value))
    points = 1.0 if off <= question.factor else 0.5 if off <= question.factor**2 else 0.0
    return Scored(*common, points, "" if off <= _EXACT else f"off by a factor of {off:.2g}. {truth.why}")


def _off(answer: float, truth: float) -> float:
    """How far apart two amounts are, as a factor of at least 1."""
    if answer == truth:
        return 1.0
    if answer <= 0 or truth <= 0 or not math.isfinite(answer):
        return math.inf
    return max(answer / truth, truth / answer)


def _is_number(answer: object) -> bool:
    """Whether it is one that a float can hold: an integer may have thousands of digits."""
    if isinstance(answer, int) and not isinstance(answer, bool):
        return abs(answer) <= sys.float_info.max
    return isinstance(answer, float)


def _check_kind(question: Question, answer: object) -> None:
    if question.kind == "amount" and not _is_number(answer):
        raise ValueError(f"{question.id}={answer!r:.60}: it is a number, or None for no prediction")
    if question.kind == "choice" and str(answer).strip().casefold() not in question.choices:
        raise ValueError(f"{question.id}={answer!r}: it is one of {', '.join(question.choices)}, or None")


# ---- what is true ----------------------------------------------------------------------------------------


def reference_counts(stages: Sequence[str], problem: Problem, engine: Engine | None = None) -> Metrics:
    """What the lab's own kernels count on a problem.

    In an edition whose kernels have no body the counts are those of ``data/counted/<problem>.csv``.

    Args:
        stages: ids.
        problem: what to compute.
        engine: that counts where there is no table; by default the simulator.
    """
    path = COUNTED / f"{problem.name}.csv"
    if path.exists():
        return metrics_table.select(metrics_table.load_csv(path), stage=list(stages))
    return count_stages(stages, problem, engine or open_engine("sim"))


def count_stages(stages: Sequence[str], problem: Problem, engine: Engine) -> Metrics:
    """Counts of the stages that take a problem, run on it by an engine."""
    inputs = make_inputs(problem)
    tables = [
        engine.run(find_stage(stage), problem, inputs).metrics
        for stage in stages
        if find_stage(stage).supports(problem, engine.device) is None
    ]
    return metrics_table.concat(tables)


def _truths(
    stage: Stage, gpu: str, engine: Engine | None, recorded: Metrics | None, counted: Metrics | None
) -> dict[str, Truth]:
    previous, timed = stage_before(stage), stage.typed(TIMED_PROBLEM).name
    ids = [one.id for one in (previous, stage) if one]
    if counted is None:
        counted = reference_counts(ids, stage.typed(COUNTED_PROBLEM), engine)
    if recorded is None:
        recorded = recorded_metrics(problem=timed, gpu=gpu)
    counts = metrics_table.stage_totals(
        metrics_table.group_launches(metrics_table.select(counted, line=None))
    )
    profile = metrics_table.select(recorded, gpu=gpu, problem=timed)
    ncu, events = (metrics_table.select(profile, tool=tool) for tool in ("ncu", "events"))
    where = _named(gpu)
    before = previous.id if previous else ""
    return {
        "megabytes_read": _bytes(counts, stage),
        "load_requests": _requests(counts, stage, before),
        "limiter": _limiter(ncu, stage, where),
        "times_faster": _faster(events, stage, before, where),
        "registers": _direction(ncu, stage, before, names.REGISTERS, "registers", where),
        "occupancy": _direction(ncu, stage, before, names.THEORETICAL_OCCUPANCY, "% occupancy", where),
    }


def _named(gpu: str) -> str:
    """GPU and toolkit of a recorded set, in words."""
    provenance = RECORDED / gpu / "provenance.json"
    toolkit = json.loads(provenance.read_text(encoding="utf-8")).get("nvrtc") if provenance.exists() else None
    return f"{display_name(gpu)}" + (f", NVRTC {toolkit}" if toolkit else "")


def _bytes(counts: Metrics, stage: Stage) -> Truth:
    amount = metrics_table.value(counts, names.DRAM_READ_BYTES, stage=stage.id)
    problem = stage.typed(COUNTED_PROBLEM)
    least = problem.minimum_bytes / 1e6
    return _amount(
        amount / 1e6,
        "MB, distinct sectors counted",
        f"Every valid key and value once, with queries and tables {least:.2f} MB: two caches, kv_heads (not "
        f"query_heads) times head_dim times {problem.itemsize} bytes for each token. What is more is partial "
        "results, which a merge reads.",
    )


def _requests(counts: Metrics, stage: Stage, before: str) -> Truth:
    now = metrics_table.value(counts, names.GLOBAL_LOAD_REQUESTS, stage=stage.id)
    then = metrics_table.value(counts, names.GLOBAL_LOAD_REQUESTS, stage=before) if before else math.nan
    why = (
        "A request is one load instruction of one warp, whatever its width: count the load instructions for "
        "one token, and how many warps execute them."
    )
    if stage.id >= "08":
        why += (
            " From 08 on the plan decides as much: a block for every tile and a merge of all their pieces, "
            "or whole sequences without one."
        )
    return _amount(then / now if now else math.nan, f"({then:,.0f} before, {now:,.0f} now, counted)", why)


def _faster(events: Metrics, stage: Stage, before: str, where: str) -> Truth:
    now = metrics_table.value(events, names.TIME, stage=stage.id)
    then = metrics_table.value(events, names.TIME, stage=before) if before else math.nan
    return _amount(
        then / now if now else math.nan,
        f"({then / 1e3:,.1f} µs before, {now / 1e3:,.1f} µs now, by events, {where})",
        "Fewer instructions help only as far as the kernel waited for them: the limiter of the stage before "
        "says for what it waited.",
    )


def _amount(value: float, unit: str, why: str) -> Truth:
    if math.isnan(value):
        return Truth(None, metrics_table.ABSENT, why)
    return Truth(value, f"{value:.3g} {unit}", why)


def _first_kernel(ncu: Metrics, stage: str) -> Metrics:
    rows = metrics_table.select(
        metrics_table.group_launches(metrics_table.select(ncu, line=None)), stage=stage
    )
    return rows if rows.empty else metrics_table.select(rows, kernel=rows["kernel"].iloc[0])


def _limiter(ncu: Metrics, stage: Stage, where: str) -> Truth:
    rows = _first_kernel(ncu, stage.id)
    if rows.empty:
        return Truth(None, metrics_table.ABSENT, "")
    found = limiter_of(rows)
    accepted = tuple(choice for choice, rules in LIMITERS.items() if found.rule in rules)
    return Truth(accepted or None, f"{found.title} ({where})", found.sentence)


def _direction(ncu: Metrics, stage: Stage, before: str, metric: str, unit: str, where: str) -> Truth:
    now = metrics_table.value(_first_kernel(ncu, stage.id), metric)
    then = metrics_table.value(_first_kernel(ncu, before), metric) if before else math.nan
    if math.isnan(now) or math.isnan(then):
        return Truth(None, metrics_table.ABSENT, "")
    way = "same" if now == then else "up" if now > then else "down"
    return Truth(
        (way,),
        f"{way}: {then:g} to {now:g} {unit} ({where})",
        "Another toolkit or GPU may go the other way: registers are the compiler's choice; occupancy is set "
        "by whichever of registers, shared memory, threads and blocks runs out first on that GPU.",
    )


def _stage(stage: str | int | Stage) -> Stage:
    return stage if isinstance(stage, Stage) else find_stage(stage)


def read_answer_cells(path: Path) -> dict[str, str]:
    """Sources of a notebook's answer cells, by id.

    Raises:
        ValueError: two cells have the same id; the message names it.
    """
    found: dict[str, str] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        for tag in cell.get("metadata", {}).get("tags", ()):
            if tag.startswith(ANSWER_TAG):
                answer = tag.removeprefix(ANSWER_TAG)
                if answer in found:
                    raise ValueError(f"{path.name}: two cells have the tag {tag}")
                source = cell["source"]
                found[answer] = source if isinstance(source, str) else "".join(source)
    return found
