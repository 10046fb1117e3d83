"""Where a machine's figures come from: three tiers, each tried, and one call that takes the best of them.

=====================  ====================================================================================
counters               Nsight Compute around a stage, on this machine's GPU
events and attributes  times by CUDA events, registers and shared memory by CuPy, on this machine's GPU
recorded profiles      other machines' GPUs, in data/recorded/
=====================  ====================================================================================

Rows of one tier never pass for another's: `source`, `tool` and `gpu` of Metrics tell them apart, charts label
them, and no ratio mixes them.
"""

from __future__ import annotations

import functools
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from labs_common import metric_names as names
from labs_common.doctor import Ability, cupy_ability, gpu_ability, ncu_ability
from labs_common.gpus import display_name
from labs_common.metrics import Metrics, concat, select
from labs_common.ncu import read_profile
from labs_common.ncu_rows import ProfileError
from labs_common.problem import PRESETS, Problem
from labs_common.profile import capture, measure, refuse_empty
from labs_common.recorded import RECORDED, recorded_metrics, recorded_tables
from labs_common.stages import STAGES, Stage

COUNTERS, EVENTS, RECORDINGS = "counters", "events and attributes", "recorded profiles"


def tiers(folder: Path = RECORDED) -> list[Ability]:
    """The three tiers, best first, with what was found and what to do where one does not work.

    On a machine with a GPU and ncu the first is tried by profiling a tiny kernel, which takes seconds; the
    answer is kept for the life of the process (`forget` drops it).
    """
    return [_counters(), _events(), _recordings(folder)]


def best_tier(folder: Path = RECORDED) -> Ability:
    """The best tier that works.

    Raises:
        ProfileError: none does.
    """
    found = tiers(folder)
    for tier in found:
        if tier.works:
            return tier
    raise ProfileError("no figures on this machine: " + "; ".join(f"{t.name}: {t.detail}" for t in found))


def describe_tiers(folder: Path = RECORDED) -> str:
    """`tiers` in words, for the first cell of a notebook: where its figures come from, and why not better."""
    lines = []
    for tier in tiers(folder):
        mark = "yes" if tier.works else "no "
        lines.append(f"{mark} {tier.name}: {tier.detail}" + (f"; {tier.remedy}" if tier.remedy else ""))
    return f"figures come from: {best_tier(folder).name}\n" + "\n".join(lines)


def forget() -> None:
    """Try the counters again at the next call, as after a change of permissions."""
    _counters.cache_clear()


@functools.cache
def _counters() -> Ability:
    for needed in (gpu_ability(), cupy_ability(), ncu_ability()):
        if not needed.works:
            return Ability(COUNTERS, False, f"{needed.name}: {needed.detail}", needed.remedy)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            report = Path(scratch) / "try.ncu-rep"
            capture(STAGES[0], PRESETS["tiny"], report, timeout_s=120, full=False)
            refuse_empty(read_profile(report, source="measured", lines=False))
    except ProfileError as error:
        return Ability(COUNTERS, False, error.reason, error.remedy)
    return Ability(COUNTERS, True, f"Nsight Compute {needed.detail} measures on {gpu_ability().detail}")


def _events() -> Ability:
    for needed in (gpu_ability(), cupy_ability()):
        if not needed.works:
            return Ability(EVENTS, False, f"{needed.name}: {needed.detail}", needed.remedy)
    return Ability(EVENTS, True, gpu_ability().detail)


def _recordings(folder: Path) -> Ability:
    found = recorded_tables(folder)
    if not found:
        return Ability(RECORDINGS, False, f"none in {folder.name}", "check the lab out again: data/recorded/")
    told = []
    for gpu in dict.fromkeys(gpu for gpu, _, _ in found):
        stages = sorted({stage for of, stage, _ in found if of == gpu})
        problems = sorted({problem for of, _, problem in found if of == gpu})
        which = f"stages {stages[0][:2]} to {stages[-1][:2]}"
        told.append(f"{display_name(gpu)}, {which}: {', '.join(problems)}")
    return Ability(RECORDINGS, True, "; ".join(told))


def profile(
    stage: Stage,
    problem: Problem,
    options: Mapping[str, int] | None = None,
    progress: bool = True,
    keep: Path | None = None,
    folder: Path = RECORDED,
) -> Metrics:
    """The figures of a stage by the best tier of this machine, for notebooks and for `palab profile`.

    With counters: what Nsight Compute measures here, source "measured". With events: times and attributes
    measured here, and beside them the recorded profile. Else the recorded profile alone, source "recorded".

    Args:
        stage, problem, options: what to profile; options are of the stage's plan.
        progress: whether a bar is shown on stderr while Nsight Compute works.
        keep: where the report of a measured profile is kept.
        folder: of the recorded sets.

    Raises:
        ValueError: the stage does not take the problem.
        ProfileError: nothing can be measured here and nothing was recorded; the message says why and what
            is recorded.
        KeyboardInterrupt: nothing is left running.
    """
    from labs_common.open_kernels import is_open, kernel_of

    refused = stage.supports(problem)
    if refused is not None:
        raise ValueError(refused)
    counters, events, _ = tiers(folder)
    written = not is_open(kernel_of(stage))
    if counters.works and written:
        with _bar(stage, problem, progress) as tell:
            return measure(stage, problem, options, tell, keep)
    recorded = recorded_metrics(folder, tool="ncu", stage=stage.id, problem=problem.name)
    if events.works and written:
        return concat([_by_events(stage, problem, options), recorded])
    if recorded.empty:
        there = sorted({name for _, of, name in recorded_tables(folder) if of == stage.id})
        what = f"{stage.id} on problem {problem.name!r}"
        raise ProfileError(
            f"{what} is not measured here ({counters.detail if written else 'its kernel has no body yet'}) "
            "and not recorded",
            f"Recorded of this stage: {', '.join(there) or 'nothing'}",
        )
    return recorded


def _by_events(stage: Stage, problem: Problem, options: Mapping[str, int] | None) -> Metrics:
    """Time of the whole call by events, and each kernel's attributes."""
    from labs_common.benchmark import benchmark_stages
    from labs_common.engines import GpuEngine
    from labs_common.inputs import make_inputs
    from labs_common.open_kernels import kernel_of
    from labs_common.runner import benchmark_metrics

    engine, source = GpuEngine(), kernel_of(stage)
    plan = stage.plan(problem, engine.device, **(options or {}))
    outcome = engine.run(stage, problem, make_inputs(problem), source, plan)
    attributes = outcome.metrics[outcome.metrics["metric"] != names.TIME]
    benchmark = benchmark_stages([(stage.id, stage, plan)], problem, sources={stage.id: source})
    timed = benchmark_metrics(benchmark, [stage])
    return concat([select(attributes), timed])


@contextmanager
def _bar(stage: Stage, problem: Problem, shown: bool) -> Iterator[Callable[[str], None]]:
    """A bar of the kernels that Nsight Compute has profiled; gives what its log lines are to be told to."""
    launches = len(stage.plan(problem).launches)
    bar = tqdm(
        total=launches, desc=f"{stage.id} {problem.name}", unit="kernel", disable=not shown, file=sys.stderr
    )

    def tell(line: str) -> None:
        found = re.match(r'==PROF== Profiling "([^"]+)"(.*)', line)
        if found is None:
            return
        kernel, rest = found.groups()
        percent = re.findall(r"(\d+)%", rest)
        bar.set_postfix_str(f"{kernel} {percent[-1] if percent else 0} %")
        if rest.endswith("passes") and bar.n < launches:
            bar.update(1)

    with bar:
        yield tell
