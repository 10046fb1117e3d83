"""Marks for one kernel: hidden problems in a child, judged here against answers that the child never has."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from labs_common.compare import compare
from labs_common.diagnose import diagnose
from labs_common.grading.cases import Case, grading_cases, structure_problem
from labs_common.grading.execution import device_to, hash_inputs, inputs_to, problem_to
from labs_common.grading.isolation import ChildEnded, Sandbox, Session
from labs_common.grading.rubric import Rubric
from labs_common.grading.safety import LAB_HEADERS, refusals
from labs_common.grading.structure import Mark, mark_structure, measures, reads_too_little, structure_share
from labs_common.grading.submissions import Kernel
from labs_common.plans import Device
from labs_common.probes import probes_of
from labs_common.reference import Reference, reference
from labs_common.source import Source
from labs_common.stages import Stage, find_stage

MAX_TIMEOUTS = 2  # classes that a kernel may hang in before the others are left out
MAX_REASON = 600
GRADER_FAILED = "the grader failed on it; the instructor has been told"
ENDED = ("time", "memory", "crash", "protocol")  # errors that may have cost a child, or long time


class StageNotGradable(ValueError):
    """The grader's own kernel does not run here, so that nobody's can be marked; the message says why."""


@dataclass(frozen=True)
class CaseResult:
    """One class of hidden problems.

    Attributes:
        kind, title: of the class.
        ok: right at every call.
        clean: no check found anything.
        reason: for the student: what went wrong, without any hidden value.
        detail: for the instructor.
    """

    kind: str
    title: str
    ok: bool
    clean: bool = True
    reason: str = ""
    detail: str = ""


@dataclass
class StageGrade:
    """Marks of one stage.

    Attributes:
        stage: id.
        origin: file, or notebook and cell, of the kernel; "" where none was handed in.
        points, maximum: by part of the rubric.
        reasons: why points are missing, for the student.
        cases: by class of hidden problems.
        flags: integrity flags, with what was seen.
        findings: what the checks found, one line each.
        structure: counts against the reference's.
        speed: what was timed, on a GPU.
        diagnosis: the known mistake that its outputs show, in a sentence; or what is seen of an unknown one.
        fault: the mistake's name in ``faults.FAULTS``, "unknown", or "" where none was looked for.
    """

    stage: str
    origin: str
    points: dict[str, float] = field(default_factory=dict)
    maximum: dict[str, float] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    cases: list[CaseResult] = field(default_factory=list)
    flags: dict[str, str] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    structure: list[Mark] = field(default_factory=list)
    speed: dict[str, Any] = field(default_factory=dict)
    diagnosis: str = ""
    fault: str = ""

    @property
    def total(self) -> float:
        """Points of the stage."""
        return round(sum(self.points.values()), 2)

    @property
    def out_of(self) -> float:
        """Points that could be had."""
        return sum(self.maximum.values())

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {**asdict(self), "total": self.total, "out_of": self.out_of}


class SpeedMarks(Protocol):
    """What marks a kernel on a GPU; see ``speed.SpeedMarker``."""

    def cases(self, kernel: Kernel, stage: Stage, secret: Hidden, device: Device) -> list[CaseResult]:
        """Hidden problems that it does not solve there."""

    def time(self, kernel: Kernel, stage: Stage, device: Device) -> dict[str, Any]:
        """What was timed, with ``ratio``, or an ``error``."""


@dataclass(frozen=True, eq=False)
class Hidden:
    """What a stage is graded with: problems, right answers, and the reference kernel's counts.

    Compared by identity, so that what is worked out for one can be kept.
    """

    cases: tuple[Case, ...]
    expected: tuple[tuple[Reference, ...], ...]
    structure: Case
    structure_expected: Reference
    counts: Mapping[str, float]


def opening(stage: Stage, name: str, text: str, device: Device, engine: str = "sim") -> dict[str, Any]:
    """The first request to a child."""
    return {"stage": stage.id, "name": name, "text": text, "device": device_to(device), "engine": engine}


def case_request(case: Case, resources: bool = False) -> dict[str, Any]:
    """A request to run one hidden problem."""
    calls = [inputs_to(inputs) for inputs in case.calls]
    return {
        "problem": problem_to(case.problem),
        "options": dict(case.options),
        "calls": calls,
        "far": case.far,
        "resources": resources,
    }


@functools.lru_cache(maxsize=16)
def hidden(stage_id: str, seed: str, device: Device, sandbox: Sandbox) -> Hidden:
    """The hidden problems of a stage, with the reference kernel run through the same child as a submission.

    Raises:
        StageNotGradable: the reference kernel fails here.
    """
    stage = find_stage(stage_id)
    cases = grading_cases(stage, seed, device)
    expected = tuple(tuple(reference(case.problem, inputs) for inputs in case.calls) for case in cases)
    large = structure_problem(stage, seed, device)
    right = reference(large.problem, large.calls[0])
    own = stage.source()
    try:
        with sandbox.open() as session:
            session.request(opening(stage, own.name, own.text, device))
            for case, answers in zip(cases, expected, strict=True):
                result = judge(case, answers, session.request(case_request(case)))
                if not (result.ok and result.clean):
                    raise StageNotGradable(
                        f"stage {stage.id}: the lab's own kernel fails on {case.problem}: {result.detail}"
                    )
            answer = session.request(case_request(large, resources=True))
            result = judge(large, (right,), answer)
            if not (result.ok and result.clean):
                raise StageNotGradable(f"stage {stage.id}: the lab's own kernel fails: {result.detail}")
    except ChildEnded as error:
        raise StageNotGradable(f"stage {stage.id}: the lab's own kernel does not run here: {error}") from None
    counts = measures(large.problem, answer["calls"][0]["counters"], answer["resources"])
    return Hidden(cases, expected, large, right, counts)


def judge(case: Case, expected: tuple[Reference, ...], answer: Mapping[str, Any]) -> CaseResult:
    """Hold what a child sent against the right answers.

    What a child says is data: an output of another shape or dtype is wrong, whatever else it says.
    """
    result = functools.partial(CaseResult, case.kind, case.title)
    calls = answer.get("calls") if isinstance(answer.get("calls"), list) else []
    clean = not any(call.get("findings") for call in calls)
    for number, (call, inputs, right) in enumerate(zip(calls, case.calls, expected, strict=False), 1):
        output = call.get("output")
        if not isinstance(output, np.ndarray) or output.dtype != inputs.query.dtype:
            return result(False, clean, "no output of the right type", "no output of the right type")
        if call.get("inputs") != hash_inputs(inputs):
            return result(False, clean, "it writes to its inputs", f"inputs changed at call {number}")
        verdict = compare(output, right, case.weights)
        if not verdict.ok:
            return result(False, clean, *_wrong(number, output, right, verdict.diagnosis))
    if "error" in answer:
        error = answer["error"]
        if error.get("wrote_input"):
            where = f" (line {error['finding']['line']})" if error["finding"].get("line") else ""
            return result(
                False, clean, f"it writes to its inputs{where}", f"inputs changed: {error['message'][:2000]}"
            )
        return result(False, clean and "finding" not in error, _error_reason(error), error["message"][:2000])
    if len(calls) != len(case.calls):
        return result(False, clean, "no result", f"{len(calls)} of {len(case.calls)} calls came back")
    return result(True, clean)


def _wrong(number: int, output: np.ndarray, right: Reference, detail: str) -> tuple[str, str]:
    """Reasons for a wrong output: for the student without any value, for the instructor with all."""
    if output.shape != right.output.shape:
        return "an output of the wrong shape", detail
    finite = np.isfinite(output)
    if not finite.all():
        what = "every element" if not finite.any() else "some elements"
        reason = f"{what} of the output NaN or infinite, or never written"
    else:
        reason = "wrong output"
        if not output.any():
            reason = "the output is zero everywhere"
    if number > 1:
        reason += "; the first launch was right, a later one with other data was not"
    return reason, f"call {number}: {detail}"


def _error_reason(error: Mapping[str, Any]) -> str:
    message = str(error.get("message", ""))
    kind = error.get("kind")
    start = {
        "compile": "it does not compile",
        "time": "it does not end",
        "fault": "it was stopped at a fault",
        "launch": "it cannot be launched",
        "memory": "it takes too much memory",
        "unsupported": "it uses what the simulator does not have",
        "crash": "its process crashed",
        "protocol": "its process sent what is no answer",
        "internal": GRADER_FAILED,
    }.get(str(kind), "it failed")
    if kind == "internal":
        return start
    if kind == "fault" and isinstance(error.get("finding"), Mapping):
        # neither block nor address: they tell how large the hidden problem is
        return f"{start}: {_finding_line(error['finding'])}"
    message = message.replace("\0", "").strip()
    return f"{start}: {message[:MAX_REASON]}" if message else start


def mark_kernel(
    kernel: Kernel | None,
    stage: Stage,
    rubric: Rubric,
    seed: str,
    sandbox: Sandbox,
    device: Device | None = None,
    speed: SpeedMarks | None = None,
) -> StageGrade:
    """Points for one kernel in a stage's place.

    Args:
        kernel: None where none was handed in.
        stage: whose plan and problems are used.
        rubric: points and limits.
        seed: secret of the grading run.
        sandbox: where children come from.
        device: whose limits and architecture are taken, by default the recorded GPU's.
        speed: runs and times it on a GPU; None where there is none.

    Raises:
        StageNotGradable: the reference kernel does not run here.
    """
    device = device or Device()
    gpu = speed is not None
    parts = {p: v for p, v in rubric.points[stage.id].items() if p != "predictions" and (p != "speed" or gpu)}
    grade = StageGrade(stage.id, kernel.origin if kernel else "", dict.fromkeys(parts, 0.0), parts)
    if kernel is None:
        grade.reasons.append("no kernel was handed in for this stage")
        return grade
    refused = refusals(kernel.text, headers_of(stage))
    if refused:
        grade.reasons += [str(refusal) for refusal in refused[:5]]
        if any("include" in r.message or "import" in r.message or "embed" in r.message for r in refused):
            grade.flags["forbidden include"] = str(refused[0])
        return grade
    secret = hidden(stage.id, seed, device, sandbox)
    _run_cases(kernel, stage, secret, sandbox, device, grade)
    if gpu and _all_right(grade):
        grade.cases += speed.cases(kernel, stage, secret, device)
        if failed := [case.detail for case in grade.cases if case.reason == GRADER_FAILED]:
            grade.flags.setdefault("needs a look", f"on the GPU: {failed[0][:300]}")
    _mark_correctness(grade, rubric)
    if gpu and _all_right(grade):
        grade.speed = speed.time(kernel, stage, device)
        _mark_speed(grade, rubric)
    _apply_integrity(grade, rubric)
    return grade


@functools.lru_cache
def headers_of(stage: Stage) -> tuple[str, ...]:
    """Headers that a kernel in a stage's place may include: no later stage's, which may hold its answer."""
    return (*LAB_HEADERS, *sorted(stage.source().headers() - {*LAB_HEADERS}))


def _all_right(grade: StageGrade) -> bool:
    return all(case.ok and case.clean for case in grade.cases)


def _run_cases(
    kernel: Kernel, stage: Stage, secret: Hidden, sandbox: Sandbox, device: Device, grade: StageGrade
) -> None:
    """Every class in one child; a second one where the first was lost, and no third."""
    timeouts, session = 0, None
    name = stage.path.name
    try:
        for case, expected in zip(secret.cases, secret.expected, strict=True):
            if timeouts >= MAX_TIMEOUTS:
                reason = "not run: other problems took too long or ended the process"
                grade.cases.append(CaseResult(case.kind, case.title, False, True, reason, reason))
                continue
            try:
                if session is None:
                    session = sandbox.open()
                    session.request(opening(stage, name, kernel.text, device))
                answer = session.request(case_request(case))
            except ChildEnded as ended:
                answer = {"error": {"kind": ended.kind, "message": str(ended)}}
                session = None
            if answer.get("error", {}).get("kind") in ENDED:
                timeouts += 1
            _collect(answer, grade)
            grade.cases.append(judge(case, expected, answer))
            if case.kind == "plain" and answer.get("error", {}).get("kind") in (*ENDED, "compile"):
                break  # nothing else counts then; the others would only take as long, or fail alike
        if session is not None and all(case.ok and case.clean for case in grade.cases):
            _structure(session, secret, grade)
        elif session is not None and not timeouts and len(grade.cases) > 1:
            _diagnose(session, kernel, stage, device, grade)
    finally:
        if session is not None:
            session.close()


def _structure(session: Session, secret: Hidden, grade: StageGrade) -> None:
    case = secret.structure
    try:
        answer = session.request(case_request(case, resources=True))
    except ChildEnded as ended:
        answer = {"error": {"kind": ended.kind, "message": str(ended)}}
    _collect(answer, grade)
    result = judge(case, (secret.structure_expected,), answer)
    if not (result.ok and result.clean):
        grade.cases.append(result)
        return
    found = measures(case.problem, answer["calls"][0]["counters"], answer["resources"])
    grade.structure = [
        Mark(count, value, secret.counts[count], None, 0.0, False) for count, value in found.items()
    ]
    if reads_too_little(found, secret.counts):
        grade.flags["impossible bytes"] = (
            f"it read {found['kv_bytes']:.0f} distinct bytes, where the keys and values need "
            f"{secret.counts['kv_bytes']:.0f}"
        )


def _diagnose(session: Session, kernel: Kernel, stage: Stage, device: Device, grade: StageGrade) -> None:
    """Name the mistake by the lab's public probes: the sentence says where, and no hidden value."""
    outputs = {}
    try:
        for probe in probes_of(stage, device).values():
            answer = session.request({"probe": probe.name})
            output = answer.get("output")
            right_shape = (probe.problem.batch, probe.problem.query_heads, probe.problem.head_dim)
            if isinstance(output, np.ndarray) and output.shape == right_shape:
                outputs[probe.name] = output
    except ChildEnded:
        return
    found = diagnose(outputs, stage, device, Source(stage.path.name, kernel.text)) if outputs else None
    if found is not None:
        grade.diagnosis, grade.fault = found.sentence, found.fault or "unknown"


def _collect(answer: Mapping[str, Any], grade: StageGrade) -> None:
    """Findings and flags out of an answer."""
    found = [f for call in answer.get("calls", []) for f in call.get("findings", [])]
    if "finding" in answer.get("error", {}):
        found.append(answer["error"]["finding"])
    for finding in found:
        line = _finding_line(finding)
        if line not in grade.findings:
            grade.findings.append(line)
    if answer.get("state"):
        names = ", ".join(map(str, answer["state"][:3]))
        grade.flags.setdefault("keeps state", f"device variables changed from launch to launch: {names}")
    if answer.get("error", {}).get("kind") in ("internal", "unsupported", "protocol"):
        grade.flags.setdefault("needs a look", str(answer["error"].get("message", ""))[:300])
    if answer.get("asks"):
        asked = ", ".join(map(str, answer["asks"][:3]))
        grade.flags.setdefault("looks at the machine", f"it reads {asked}, which tell a simulator from a GPU")
    if any(call.get("printed") for call in answer.get("calls", [])):
        grade.flags.setdefault("prints", "it prints from the device; what it prints is not read")


def _finding_line(finding: Mapping[str, Any]) -> str:
    return f"{finding['tool']}: {finding['kind']} at {_place(finding)}"


def _place(finding: Mapping[str, Any]) -> str:
    file = str(finding.get("file", "")).rpartition("/")[2]
    if not finding.get("line"):
        return "an unknown line"
    caller, _, line = str(finding.get("called", "")).rpartition("/")[2].rpartition(":")
    return f"{file} line {finding['line']}" + (f", called at {caller} line {line}" if caller else "")


def _mark_correctness(grade: StageGrade, rubric: Rubric) -> None:
    cases = grade.cases
    for case in cases:
        if "inputs changed" in case.detail:
            grade.flags.setdefault("inputs changed", "it writes to the arrays that it is given to read")
    weights = {case.kind: rubric.weights.get(case.kind, 1.0) for case in cases}
    by_kind: dict[str, list[CaseResult]] = {}
    for case in cases:
        by_kind.setdefault(case.kind, []).append(case)
    share = {
        kind: min(1.0 if c.ok and c.clean else 0.5 if c.ok else 0.0 for c in found)
        for kind, found in by_kind.items()
    }
    compiled = len(cases) > 1
    gained = sum(weights[kind] * share[kind] for kind in share) / max(sum(weights.values()), 1e-12)
    if share.get("plain", 0) == 0 or not compiled:
        gained = 0.0
    by_reason: dict[str, list[str]] = {}
    for case in cases:
        if not case.ok:
            by_reason.setdefault(case.reason, []).append(case.title)
    grade.reasons += [_grouped(reason, titles, len(cases)) for reason, titles in by_reason.items()]
    if grade.diagnosis:
        grade.reasons.append(grade.diagnosis)
    if gained == 0.0 and any(case.ok for case in cases):
        grade.reasons.append("wrong on the plainest problems, so that nothing else counts")
    grade.points["correctness"] = round(grade.maximum["correctness"] * gained, 2)
    distinct = len(grade.findings)
    grade.points["cleanliness"] = round(grade.maximum["cleanliness"] * gained * max(0.0, 1 - distinct / 2), 2)
    if distinct:
        grade.reasons += [f"found while it ran: {line}" for line in grade.findings[:5]]
        if any(case.ok and not case.clean for case in cases):
            grade.reasons.append("a right result with such a finding is luck: its problems count half")
    if grade.structure and all(case.ok and case.clean for case in cases):
        found = {mark.count: mark.value for mark in grade.structure}
        right = {mark.count: mark.reference for mark in grade.structure}
        grade.structure = mark_structure(found, right, rubric.structure)
        share_of = structure_share(grade.structure)
        grade.points["structure"] = round(grade.maximum["structure"] * share_of, 2)
        grade.reasons += [f"structure: {m.reason}" for m in grade.structure if m.counts and m.share < 1]
    else:
        grade.structure = []
        if grade.maximum.get("structure"):
            grade.reasons.append("structure is marked once every problem is right and clean")


def _grouped(reason: str, titles: list[str], total: int) -> str:
    if len(titles) == total and total > 1:
        return f"on every problem: {reason}"
    return f"{'; '.join(titles)}: {reason}"


def _mark_speed(grade: StageGrade, rubric: Rubric) -> None:
    speed = grade.speed
    if "error" in speed:
        grade.reasons.append(f"speed: {speed['error']}")
        grade.flags.setdefault("needs a look", f"right everywhere, and when it was timed: {speed['error']}")
        return
    share = rubric.speed.share(speed["ratio"])
    grade.points["speed"] = round(grade.maximum["speed"] * share, 2)
    if share < 1:
        grade.reasons.append(f"speed: {speed['ratio']:.2f} times the reference kernel's time")
    if speed.get("impossible"):
        grade.flags["impossible speed"] = str(speed["impossible"])


def _apply_integrity(grade: StageGrade, rubric: Rubric) -> None:
    taken = [flag for flag in grade.flags if flag in rubric.zero]
    if taken and any(grade.points.values()):
        grade.points = dict.fromkeys(grade.points, 0.0)
        grade.reasons.insert(0, f"no points: {'; '.join(grade.flags[flag] for flag in taken)}")
