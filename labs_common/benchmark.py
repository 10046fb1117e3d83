"""Stages against each other and against the read ceiling, on the GPU, in one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labs_common.compare import Verdict, compare
from labs_common.engines import GpuEngine
from labs_common.inputs import make_inputs
from labs_common.plans import Plan
from labs_common.problem import Problem
from labs_common.reference import reference
from labs_common.source import Source
from labs_common.stages import Stage
from labs_common.timing import (
    ROUNDS,
    Timing,
    ceiling_bytes,
    ceiling_calls,
    ceiling_of,
    fp32_peak,
    refill_l2,
    time_gpu,
)
from labs_common.worker import Worker

MAX_SETS = 8


@dataclass(frozen=True)
class Benchmark:
    """What one run measured.

    Attributes:
        gpu: name of the GPU.
        problem: what was computed.
        timings: per label, a whole call (a merge included).
        verdicts: per label, the worst over the input sets, of outputs written by the timed calls.
        ceiling: bytes per second of plain reading in the same run.
        ceiling_bytes: size of the buffer that was read.
        fp32_peak: fp32 operations per second of nothing but fused multiply-adds, two for each, right after.
    """

    gpu: str
    problem: Problem
    timings: dict[str, Timing]
    verdicts: dict[str, Verdict]
    ceiling: float
    ceiling_bytes: int
    fp32_peak: float

    def bandwidth(self, label: str) -> float:
        """Bytes per second: the problem's minimum bytes over the median time."""
        return self.problem.bandwidth(self.timings[label].median_s)


def benchmark_stages(
    contenders: Sequence[tuple[str, Stage, Plan]],
    problem: Problem,
    rounds: int = ROUNDS,
    sources: Mapping[str, Source] | None = None,
) -> Benchmark:
    """Time stages (label, stage, plan) interleaved in a child process that is ended afterwards.

    The input sets together pass four times the L2 cache; every timed output is checked.

    Args:
        contenders: labels are their names in what comes back.
        problem: what to compute.
        rounds: of the interleaved measurement.
        sources: by label, kernels in place of the stages' own files.

    Raises:
        EngineMissing: no GPU.
        LaunchError: a kernel failed.
    """
    worker = Worker()
    try:
        return worker.call(_benchmark, list(contenders), problem, rounds, dict(sources or {}))
    finally:
        worker.discard()


def _benchmark(
    contenders: list[tuple[str, Stage, Plan]], problem: Problem, rounds: int, sources: Mapping[str, Source]
) -> Benchmark:
    engine = GpuEngine()
    xp = engine.xp
    cache_bytes = xp.cuda.runtime.getDeviceProperties(0)["l2CacheSize"]
    sets = min(MAX_SETS, max(2, -(-4 * cache_bytes // problem.minimum_bytes)))
    inputs = [make_inputs(problem, seed) for seed in range(sets)]
    arrays = [engine.upload(one) for one in inputs]
    calls = {
        label: [
            engine.prepare(stage, problem, one, sources.get(label), plan, uploaded)
            for one, uploaded in zip(inputs, arrays, strict=True)
        ]
        for label, stage, plan in contenders
    }
    nbytes = ceiling_bytes(engine)
    everything = {**calls, **ceiling_calls(engine, nbytes)}
    timings = time_gpu(xp, everything, rounds, between=refill_l2(engine))
    expected = [reference(problem, one) for one in inputs]
    verdicts = {}
    weights = {label: stage.weights(problem) for label, stage, _ in contenders}
    for label, bound in calls.items():
        found = [
            compare(engine.read(call, problem), right, weights[label])
            for call, right in zip(bound, expected, strict=True)
        ]
        verdicts[label] = min(found, key=lambda verdict: (verdict.ok, -verdict.max_error))
    return Benchmark(
        engine.device.name,
        problem,
        {label: timings[label] for label in calls},
        verdicts,
        ceiling_of(timings, nbytes),
        nbytes,
        fp32_peak(engine),
    )
