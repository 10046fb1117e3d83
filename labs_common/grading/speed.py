"""Speed on a GPU: the student's kernel against the grader's own, in one process, in alternating rounds."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from labs_common.compare import compare
from labs_common.grading.cases import Case, generator
from labs_common.grading.isolation import ChildEnded, Limits, Sandbox, Session
from labs_common.grading.marking import (
    CaseResult,
    Hidden,
    StageNotGradable,
    case_request,
    judge,
    opening,
)
from labs_common.grading.rubric import Rubric
from labs_common.grading.submissions import Kernel
from labs_common.inputs import Inputs, make_inputs
from labs_common.plans import Device
from labs_common.problem import Problem
from labs_common.reference import Reference, reference
from labs_common.stages import Stage

ROUNDS = 15
SETS = 2
# The problem of each kind of stage: 134 MB of keys and values a set, past any L2 cache when two alternate.
WIDE = Problem(32, 8, 128, 16, (1024,) * 16, name="speed")
LONG = Problem(32, 8, 128, 16, (8192,) * 2, name="speed")
LONG_16 = Problem(32, 8, 128, 16, (16384,) * 2, name="speed")  # the same bytes in 16 bits
ROOF_MARGIN = 1.10  # reading faster than this many times the measured ceiling is impossible
GPU_LIMITS = {
    "memory_bytes": 0,
    "file_bytes": 64 << 20,
    "open_files": 1024,
    "cpu_s": 120.0,
    "total_cpu_s": 300.0,
}


def speed_problem(stage: Stage) -> Problem:
    """What a stage is timed on: many sequences, or few long ones where the context is split."""
    if stage.tensor_cores:
        return stage.typed(LONG_16)
    return LONG if stage.id[:2] >= "04" else WIDE


class SpeedMarker:
    """Runs kernels that are right in the simulator on a GPU: the hidden problems, then the time."""

    def __init__(self, rubric: Rubric, seed: str, limits: Limits) -> None:
        self.rubric, self.seed = rubric, seed
        self.sandbox = _gpu_sandbox(dataclasses.replace(limits, **GPU_LIMITS))

    def cases(self, kernel: Kernel, stage: Stage, secret: Hidden, device: Device) -> list[CaseResult]:
        """Every hidden problem once more, on the GPU; a hang or a fault costs a child and no more.

        Raises:
            StageNotGradable: the lab's own kernel fails there.
        """
        taken = _taken(stage, secret, device, self.sandbox)
        answers = _answers(self.sandbox, stage, kernel.text, device, [case for case, _ in taken])
        with contextlib.closing(answers):
            for (case, expected), answer in zip(taken, answers, strict=True):
                result = judge(case, expected, answer)
                if not result.ok:  # right in the simulator and wrong here: one such problem says enough
                    return [dataclasses.replace(result, title=f"on the GPU, {case.title}")]
        return []

    def time(self, kernel: Kernel, stage: Stage, device: Device) -> dict[str, Any]:
        """Ratio of the kernel's time to the reference's; measured again where it falls near an edge."""
        found = self._time_once(kernel, stage, device, "first")
        if "error" in found:
            return found
        limit, near = self.rubric.speed, self.rubric.again_within
        if any(abs(found["ratio"] / edge - 1) <= near for edge in (limit.full, limit.none)):
            again = self._time_once(kernel, stage, device, "again")
            if "error" in again:
                return again
            ratios = found["ratios"] + again["ratios"]
            found |= {"ratios": ratios, "ratio": float(np.median(ratios)), "measured": 2}
        return found

    def _time_once(self, kernel: Kernel, stage: Stage, device: Device, run: str) -> dict[str, Any]:
        problem = speed_problem(stage)
        sets, expected = _timed_inputs(stage.id, self.seed)
        random = generator(self.seed, stage.id, "signs", run)
        signs = random.choice([-1, 1], (ROUNDS, SETS)).tolist()
        case = Case("speed", "the timed problem", problem, sets)
        request = {**case_request(case), "rounds": ROUNDS, "signs": signs}
        try:
            with self.sandbox.open() as session:
                session.request(opening(stage, stage.path.name, kernel.text, device, "gpu"))
                answer = session.request(request)
        except ChildEnded as ended:
            return {"error": str(ended)}
        if "error" in answer:
            return {"error": str(answer["error"].get("message", ""))[:300]}
        return judge_timing(problem, answer, signs, expected, stage.weights(problem))


def judge_timing(
    problem: Problem,
    answer: Mapping[str, Any],
    signs: list[list[int]],
    expected: list[dict[int, Reference]],
    weights: str = "float32",
) -> dict[str, Any]:
    """The ratio of a timing whose outputs are all right.

    Args:
        problem: what was timed.
        answer: of ``GpuRunner._time``.
        signs: that the queries had, by round and set.
        expected: by set, the right answer for each sign.
        weights: the dtype that softmax weights may be rounded to.
    """
    outputs = answer["outputs"]
    if len(outputs) != len(signs):
        return {"error": f"{len(outputs)} of {len(signs)} timed outputs came back"}
    for number, timed in enumerate(outputs):
        chosen = number % len(expected)
        verdict = compare(timed["output"], expected[chosen][signs[number][chosen]], weights)
        if not verdict.ok:
            return {"error": "a timed call gave a wrong output: it does not do its work every time"}
    student, own = (np.array(answer["seconds"][name], float) for name in ("student", "reference"))
    if student.shape != own.shape or not (np.isfinite(student).all() and (student > 0).all()):
        return {"error": "the times cannot be read"}
    ratios = (student / own).tolist()
    bandwidth = problem.minimum_bytes / float(np.median(student))
    found = {
        "ratio": float(np.median(ratios)),
        "ratios": ratios,
        "median_s": float(np.median(student)),
        "reference_s": float(np.median(own)),
        "bandwidth": bandwidth,
        "ceiling": answer["ceiling"],
        "gpu": answer["gpu"],
        "measured": 1,
    }
    if bandwidth > ROOF_MARGIN * answer["ceiling"]:
        found["impossible"] = (
            f"{bandwidth / 1e9:.0f} GB/s of keys and values, where plain reading reaches "
            f"{answer['ceiling'] / 1e9:.0f} GB/s"
        )
    return found


def _answers(
    sandbox: Sandbox, stage: Stage, text: str, device: Device, cases: Sequence[Case]
) -> Iterator[dict[str, Any]]:
    """What children answer to each problem; where one is lost, the next problem has a new one."""
    session: Session | None = None
    try:
        for case in cases:
            try:
                if session is None:
                    session = sandbox.open()
                    session.request(opening(stage, stage.path.name, text, device, "gpu"))
                answer = session.request(case_request(case))
            except ChildEnded as ended:
                answer = {"error": {"kind": ended.kind, "message": str(ended)}}
            if answer.get("error", {}).get("kind", "device") != "device" and session is not None:
                session.close()
                session = None
            yield answer
    finally:
        if session is not None:
            session.close()


@functools.lru_cache(maxsize=16)
def _taken(
    stage: Stage, secret: Hidden, device: Device, sandbox: Sandbox
) -> tuple[tuple[Case, tuple[Reference, ...]], ...]:
    """The hidden problems that fit on the GPU, with right answers; the lab's own kernel solves each there.

    Raises:
        StageNotGradable: it does not, or the plainest problem does not fit.
    """
    near = [pair for pair in zip(secret.cases, secret.expected, strict=True) if not pair[0].far]
    answers = _answers(sandbox, stage, stage.source().text, device, [case for case, _ in near])
    taken, refused = [], ""
    with contextlib.closing(answers):
        for (case, expected), answer in zip(near, answers, strict=True):
            if (
                answer.get("error", {}).get("kind") == "device"
            ):  # a smaller GPU than the one that is simulated
                refused = str(answer["error"].get("message", ""))
                continue
            result = judge(case, expected, answer)
            if not result.ok:
                where = f"on the GPU, on {case.problem}"
                raise StageNotGradable(
                    f"stage {stage.id}: the lab's own kernel fails {where}: {result.detail}"
                )
            taken.append((case, expected))
    if not any(case.kind == "plain" for case, _ in taken):
        raise StageNotGradable(f"stage {stage.id} does not run on this GPU: {refused}")
    return tuple(taken)


@functools.lru_cache(maxsize=8)
def _timed_inputs(stage_id: str, seed: str) -> tuple[tuple[Inputs, ...], list[dict[int, Reference]]]:
    """Input sets, and the right answers for the query and for its opposite."""
    from labs_common.stages import find_stage

    problem = speed_problem(find_stage(stage_id))
    random = generator(seed, stage_id, "speed")
    sets = tuple(make_inputs(problem, int(random.integers(2**63))) for _ in range(SETS))
    expected = [
        {sign: reference(problem, dataclasses.replace(one, query=sign * one.query)) for sign in (1, -1)}
        for one in sets
    ]
    return sets, expected


@functools.lru_cache(maxsize=2)
def _gpu_sandbox(limits: Limits) -> Sandbox:
    return Sandbox(limits, gpu=True)
