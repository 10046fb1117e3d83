"""What the notebooks call besides the lab's own parts: a kernel's text, counts in a table, recorded times."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers.c_like import CudaLexer

from labs_common import metric_names as names
from labs_common import metrics as metrics_table
from labs_common import tiers
from labs_common.check import Report, check
from labs_common.compare import Verdict, compare
from labs_common.compiler import CompileError
from labs_common.engines import Engine, SimulatorEngine
from labs_common.exercise import OWN_KERNELS, progress, stretch
from labs_common.explain import explain
from labs_common.gpus import display_name
from labs_common.inputs import make_inputs
from labs_common.metrics import Metrics
from labs_common.ncu_rows import ProfileError
from labs_common.open_kernels import GROWING, counted, growing, is_open, kernel_of
from labs_common.plans import Plan
from labs_common.predictions import score
from labs_common.predictions import table as score_table
from labs_common.problem import PRESETS, Problem
from labs_common.recorded import KNOWN, PROBLEMS, RECORDED, recorded_metrics
from labs_common.reference import reference
from labs_common.simt.errors import Fault, LaunchError, SimulationError
from labs_common.source import HEADERS, KERNELS, Source
from labs_common.stages import ALL_STAGES, Stage, find_stage
from labs_common.variants import VARIANTS

LINE = 100  # characters that fit beside a notebook's margin
FITS_IN_CACHE = 200_000_000  # bytes; the largest L2 caches hold about 130 MB

# A light ground with it: pygments' colours cannot be read on a dark one.
_CODE_STYLE = (
    "font-family: ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; font-size: 12px; "
    "line-height: 1.35; white-space: pre; overflow-x: auto; color: #1b1b1b; background: #f7f7f7; padding: 8px"
)

_LIMITS = ("registers", "shared_mem", "warps", "blocks")  # of the blocks on an SM

# What is worth comparing from stage to stage, by Nsight Compute's name; the simulator counts all of it.
COUNTED = {
    names.INSTRUCTIONS: "warp instructions",
    names.GLOBAL_LOAD_REQUESTS: "global load requests",
    names.GLOBAL_LOAD_SECTORS: "sectors they touch",
    "smsp__inst_executed_op_shared_ld.sum": "shared memory loads",
    "smsp__inst_executed_op_shared_st.sum": "shared memory stores",
    names.ASYNC_COPIES: "asynchronous copies",
    names.ASYNC_COPY_WAVEFRONTS: "wavefronts they take",
    "smsp__inst_executed_op_shuffle.sum": "shuffles",
    "smsp__inst_executed_op_barrier.sum": "block barriers",
    names.DRAM_READ_BYTES: "distinct bytes read",
}
_IF_ANY = (names.ASYNC_COPIES, names.ASYNC_COPY_WAVEFRONTS)  # stand in a table where some kernel copies


def show_kernel(stage: Stage) -> None:
    """Display a stage's kernel file with colours, its header comment first."""
    show_code(stage.source().text, f"the kernel file {stage.path.name}")


def show_header(name: str) -> None:
    """Display a header that kernel files include, such as ``cache_tile.cuh``.

    Raises:
        FileNotFoundError: there is no such header.
    """
    path = next((folder / name for folder in HEADERS if (folder / name).is_file()), KERNELS / name)
    show_code(path.read_text(encoding="utf-8"), f"the header {name}")


def show_code(text: str, what: str) -> None:
    """Display CUDA code with colours, in a fixed-width font wherever the notebook is looked at.

    The colours are in the HTML itself: a page that a notebook is exported to has no style for them.

    Args:
        text: the code.
        what: it is, for those who see no colours.
    """
    from IPython.display import display

    code = highlight(text, CudaLexer(), HtmlFormatter(noclasses=True, nowrap=True, style="default"))
    html = f'<pre style="{_CODE_STYLE}">{code.rstrip()}</pre>'
    plain = f"{what}, {text.count(chr(10))} lines"
    display({"text/html": html, "text/plain": plain}, raw=True)


def until(stage: Stage) -> list[str]:
    """Ids of the stages up to this one."""
    ids = [other.id for other in ALL_STAGES]
    return ids[: ids.index(stage.id) + 1]


def up_to(stage: Stage, frame: Metrics) -> Metrics:
    """The rows of a stage and of those before it."""
    return metrics_table.select(frame, stage=until(stage))


def kernel(stage: Stage, folder: Path = OWN_KERNELS) -> Source:
    """The kernel that a notebook runs: the lab's own; in the student edition, where that has no body, yours.

    Says so where there is nothing to run yet.

    Args:
        stage: whose kernel.
        folder: where your kernels are.
    """
    source = kernel_of(stage, folder)
    if is_open(source):
        print(
            f"Nothing is written in {source.name} yet: cells that run it show what an empty kernel gives.\n"
            f"Read on; run the notebook again once kernels/mine/{source.name} is right (see Your turn)."
        )
    return source


def judge(verdict: Verdict, source: Source, stage: Stage) -> None:
    """Print what a comparison found. A kernel that the lab brings must be right; yours may still be in work.

    Args:
        verdict: of ``compare``.
        source: the kernel that ran.
        stage: in whose place.

    Raises:
        AssertionError: the lab's own kernel is wrong.
    """
    if is_open(source):
        print("an empty kernel has no answer: its outputs are unwritten, NaN or 0")
        return
    print(verdict.diagnosis)
    if not verdict.ok:
        assert is_open(stage.source()), f"the lab's own {source.name} is wrong"
        print("your kernel is not right yet: the cell under Your turn says more")


def change(source: Source, old: str, new: str = "", which: int | None = None) -> Source:
    """A kernel with something replaced, to see what happens then.

    Args:
        source: the kernel; where ``old`` does not occur in it, it stays as it is, and this is said.
        old: what to replace.
        new: what to put in its place.
        which: only this occurrence, from 0; -1 is the last one. By default all.
    """
    places = [i for i in range(len(source.text)) if source.text.startswith(old, i)]
    if which is not None:
        places = places[which:][:1] if -len(places) <= which < len(places) else []
    if not places:
        print(
            "an empty kernel cannot be broken"
            if is_open(source)
            else f"“{old}” is not in {source.name}: change yours by hand"
        )
    text = source.text
    for at in reversed(places):
        text = text[:at] + new + text[at + len(old) :]
    return replace(source, text=text)


def tell(report: Report) -> None:
    """Print what ``check`` found, a line per problem and per finding, as plain text."""
    from rich.console import Console

    from labs_common.runner import print_report

    print_report(report, Console(width=LINE, force_jupyter=False, color_system=None, highlight=False))


def check_mine(stage: Stage, engine: Engine, folder: Path = OWN_KERNELS) -> Report | None:
    """Check your kernel of a stage and print what is right and wrong, step by step.

    While you have none the lab's own kernel is checked in its place; where that has no body, nothing is.

    Args:
        stage: whose kernel.
        engine: where it runs.
        folder: where your kernels are.
    """
    path = folder / stage.path.name
    source = Source.read(path) if path.exists() else stage.source()
    if is_open(source):
        print(
            f"kernels/mine/{path.name} has no body yet: fill in its TODOs, then run this cell again"
            if path.exists()
            else f'there is no kernels/mine/{path.name} yet: start("{stage.id}") writes it'
        )
        return None
    report = check(source, stage, engine)
    tell(report)
    for state in progress(report):
        mark = {True: "done", False: "not yet", None: "open"}[state.done]
        print(
            f"step {state.number} {mark}: {textwrap.shorten(state.task, 70, placeholder=' …')} ({state.why})"
        )
    if report.ok and path.exists():
        for open_end in stretch(stage.id):
            print(textwrap.fill(f"stretch: {open_end}", LINE, subsequent_indent="    "))
    return report


def count_mine(
    stage: Stage, problem: Problem, folder: Path = OWN_KERNELS, planner: Callable[..., Plan] | None = None
) -> pd.DataFrame:
    """What your kernel counts beside what the lab's does; the lab's alone while you have none.

    Args:
        stage: whose kernel.
        problem: what to compute.
        folder: where your kernels are.
        planner: launches your kernel in place of the stage's own, as in ``exercise.check``.
    """
    return side_by_side(_labs_and_mine(stage, problem, folder, planner))


def occupancy_mine(
    stage: Stage, problem: Problem, folder: Path = OWN_KERNELS, planner: Callable[..., Plan] | None = None
) -> pd.DataFrame:
    """What each launch of your kernel takes of an SM beside the lab's: registers, shared memory, occupancy.

    Args:
        stage: whose kernel.
        problem: what to compute.
        folder: where your kernels are.
        planner: as for ``count_mine``.
    """
    table = {}
    for who, frame in _labs_and_mine(stage, problem, folder, planner).items():
        whole = metrics_table.select(frame, line=None)
        for kernel in whole["kernel"].unique():

            def of(metric: str, rows: Metrics = whole, kernel: str = kernel) -> float:
                return metrics_table.value(rows, metric, kernel=kernel)

            shared = of("launch__shared_mem_per_block_dynamic") + of("launch__shared_mem_per_block_static")
            table[f"{who}: {kernel.removeprefix('paged_attention_')}"] = {
                "registers a thread": _figure(of(names.REGISTERS)),
                "shared bytes a block": _figure(shared),
                "blocks on an SM": _figure(min(of(f"launch__occupancy_limit_{limit}") for limit in _LIMITS)),
                "theoretical occupancy, %": _figure(of(names.THEORETICAL_OCCUPANCY)),
                "shared memory wavefronts": _figure(of(names.SHARED_WAVEFRONTS)),
            }
    return pd.DataFrame(table)


def _labs_and_mine(
    stage: Stage, problem: Problem, folder: Path, planner: Callable[..., Plan] | None
) -> dict[str, Metrics]:
    runs, path = {}, folder / stage.path.name
    if is_open(stage.source()) and counted([stage.id], problem) is None:
        print(f"this edition has no counts of the lab's kernel for {problem}")
    else:
        runs["the lab's"] = count([stage.id], problem)
    if planner is not None:
        print(f"yours is launched as {planner.__name__} plans it, the lab's as {stage.planner.__name__} does")
    if path.exists() and not is_open(own := Source.read(path)):
        launched = stage if planner is None else replace(stage, planner=planner)
        try:
            runs["yours"] = SimulatorEngine().run(launched, problem, make_inputs(problem), own).metrics
        except (CompileError, Fault, LaunchError, SimulationError) as error:
            print(f"your kernel does not run through, so it has no counts: {own.readable(str(error))}")
    return runs


def count_variant(variant: str, problem: Problem) -> Metrics:
    """Run another way to do a stage's work, print whether it is right, and give its counts.

    Where the student edition leaves its kernel out, the counts are those that came with the edition.

    Args:
        variant: id of one of ``variants.VARIANTS``.
        problem: what to compute.

    Raises:
        FileNotFoundError: there is neither its kernel nor counts of it.
    """
    known = next(one for one in VARIANTS if one.id == variant)
    if not known.path.exists() and (table := counted([variant], problem)) is not None:
        print(f"{known.path.name} would show the solution and is not in this edition; its counts are")
        return table
    inputs = make_inputs(problem)
    outcome = SimulatorEngine().run(known, problem, inputs)
    print(compare(outcome.output, reference(problem, inputs)).diagnosis)
    return outcome.metrics


def show_predictions(answers: Mapping[str, object], stage: Stage) -> None:
    """Display each prediction beside what was counted and recorded, with an explanation of every miss.

    Raises:
        ValueError: an answer of the wrong kind; the message says what is allowed.
    """
    from IPython.display import display

    with pd.option_context("display.max_colwidth", None, "display.width", 200):
        display(score_table(score(answers, stage)))


def count(stages: Sequence[str], problem: Problem, engine: Engine | None = None) -> Metrics:
    """Run stages on a problem and give what the engine counted or measured.

    Args:
        stages: ids.
        problem: what to compute.
        engine: by default the simulator, also where there is a GPU: its counts are the same everywhere. In an
            edition whose kernels have no body they are those that came with it.

    Raises:
        ValueError: an unknown stage, or one that does not take the problem.
    """
    if engine is None and (table := counted(stages, problem)) is not None:
        return table
    engine = engine or SimulatorEngine()
    inputs = make_inputs(problem)
    runs = [engine.run(find_stage(stage), problem, inputs).metrics for stage in stages]
    return metrics_table.concat(runs)


def counts_table(frame: Metrics, metrics: Mapping[str, str] = COUNTED) -> pd.DataFrame:
    """Figures as text, a row per metric, a column per stage; a stage's kernels are added up.

    A figure that the engine does not have is "not measured"; asynchronous copies have rows where some kernel
    has any. The last row divides sectors by requests.
    """
    totals = metrics_table.stage_totals(metrics_table.group_launches(metrics_table.select(frame, line=None)))
    stages = list(dict.fromkeys(totals["stage"]))
    rows = {}
    for metric, label in metrics.items():
        values = [metrics_table.value(totals, metric, stage=stage) for stage in stages]
        if metric not in _IF_ANY or any(value > 0 for value in values):
            rows[label] = [_figure(value) for value in values]
    ratios = [
        metrics_table.value(totals, names.GLOBAL_LOAD_SECTORS, stage=stage)
        / metrics_table.value(totals, names.GLOBAL_LOAD_REQUESTS, stage=stage)
        for stage in stages
    ]
    rows["sectors per request"] = [_figure(ratio, ".2f") for ratio in ratios]
    return pd.DataFrame.from_dict(rows, orient="index", columns=stages)


def side_by_side(runs: Mapping[str, Metrics], metrics: Mapping[str, str] = COUNTED) -> pd.DataFrame:
    """``counts_table`` of several runs, a column per run under its own name, in the order given.

    Args:
        runs: the metrics of each run, such as those of one stage on several layouts.
        metrics: names and what to call them.

    Raises:
        ValueError: no run.
    """
    if not runs:
        raise ValueError("runs is empty: a table needs at least one run")
    table = counts_table(
        metrics_table.concat(frame.assign(stage=label) for label, frame in runs.items()), metrics
    )
    return table[list(runs)]


def per_token(columns: Mapping[str, tuple[str, str]]) -> pd.DataFrame:
    """What one more token costs a query head: counts of two contexts, subtracted, so that all else cancels.

    Args:
        columns: for each column's name a stage and the dtype of its cache.
    """
    few, many = GROWING
    table = {}
    for name, (stage, dtype) in columns.items():
        before, after = (
            metrics_table.stage_totals(
                metrics_table.group_launches(metrics_table.select(count([stage], problem), line=None))
            )
            for problem in (growing(tokens, dtype) for tokens in GROWING)
        )
        costs = {
            metric: metrics_table.value(after, metric) - metrics_table.value(before, metric)
            for metric in COUNTED
        }
        heads = growing(many, dtype).query_heads
        table[name] = [f"{cost / ((many - few) * heads):,.2f}" for cost in costs.values()]
    return pd.DataFrame(table, index=list(COUNTED.values()))


def profile_table(frame: Metrics) -> pd.DataFrame:
    """Time, shares of what the GPU can do, registers and occupancy: a row for each problem and kernel.

    Args:
        frame: profiles of one GPU.
    """
    columns = {
        "DRAM, %": names.DRAM_PCT,
        "L2, %": names.L2_PCT,
        "SM, %": names.COMPUTE_PCT,
        "issue active, %": names.ISSUE_PCT,
        "achieved occupancy, %": names.ACHIEVED_OCCUPANCY,
    }
    rows = {}
    for problem, kernel in dict.fromkeys(zip(frame["problem"], frame["kernel"], strict=True)):
        one = metrics_table.select(frame, problem=problem, kernel=kernel, line=None)
        figures = {"time, µs": _figure(metrics_table.value(one, names.TIME) / 1e3, ",.1f")}
        figures |= {
            name: _figure(metrics_table.value(one, metric), ".1f") for name, metric in columns.items()
        }
        figures["registers"] = _figure(metrics_table.value(one, names.REGISTERS))
        rows[problem, kernel.removeprefix("paged_attention_")] = figures
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["problem", "kernel"])


def time_table(frame: Metrics) -> pd.DataFrame:
    """Time of each stage, how many times faster it is than the one before, and its DRAM-active cycles."""
    totals = metrics_table.stage_totals(metrics_table.group_launches(frame))
    rows, before = {}, None
    for stage in dict.fromkeys(totals["stage"]):
        nanoseconds = metrics_table.value(totals, names.TIME, stage=stage)
        cycles = metrics_table.value(totals, names.DRAM_ACTIVE_CYCLES, stage=stage)
        rows[stage] = [
            f"{nanoseconds / 1e6:,.2f} ms",
            f"{before / nanoseconds:.2f}" if before else "",
            metrics_table.ABSENT if pd.isna(cycles) else f"{cycles / 1e6:.1f} million",
        ]
        before = nanoseconds
    return pd.DataFrame.from_dict(
        rows, orient="index", columns=["time", "times faster", "DRAM-active cycles"]
    )


def recorded_profiles(stages: Sequence[str], problem: str = "seed", folder: Path = RECORDED) -> Metrics:
    """What Nsight Compute recorded of stages on one problem, of every GPU; empty where there is nothing."""
    return recorded_metrics(folder, tool="ncu", stage=list(stages), problem=problem)


def measured_profiles(stages: Sequence[str], problem: str = "seed") -> Metrics:
    """What Nsight Compute measures of stages on this machine, some ten seconds each.

    Your own kernel is measured where the lab's has no body. Where it cannot, the reason is printed, and the
    table is empty or lacks that stage.

    Args:
        stages: ids.
        problem: the name of one, which every stage runs in the number format that it takes.
    """
    counters = tiers.tiers()[0]
    if not counters.works:
        print(f"not measured on this machine: {counters.detail}")
        return metrics_table.empty()
    found = []
    for stage in map(find_stage, stages):
        try:
            profiled = tiers.profile(stage, stage.taken((PRESETS | KNOWN)[problem]))
        except ProfileError as error:
            print(f"{stage.id} is not measured: {error}")
            continue
        found.append(metrics_table.select(profiled, source="measured"))
        if found[-1].empty:
            print(f"{stage.id} is not measured: its kernel has no body yet")
    return metrics_table.concat(found) if found else metrics_table.empty()


def recorded_times(folder: Path = RECORDED) -> Metrics:
    """Times of whole stages by events, and read ceilings, of every recorded GPU."""
    return recorded_metrics(folder, tool="events")


def explain_stage(stage: Stage, frame: Metrics) -> None:
    """Print what limits a stage and what changed since the one before, a paragraph per GPU."""
    if metrics_table.select(frame, stage=stage.id).empty:
        print("no profile of this stage is recorded")
        return
    for explanation in explain(up_to(stage, frame)):
        if explanation.stage == stage.id:
            print(textwrap.fill(str(explanation), LINE), end="\n\n")


def read_shares(stage: Stage, frame: Metrics) -> list[str]:
    """How near a stage comes to plain reading, a sentence per GPU and problem that has both times.

    The share is the problem's minimum bytes over the stage's time (events, merge included), over the read
    ceiling of the same run. A profiler's durations are not used: it flushes the caches. Problems that fit in
    a cache say nothing about DRAM and are left out.
    """
    problems = PRESETS | PROBLEMS
    told = []
    timed = metrics_table.select(frame, tool="events", metric=names.TIME, stage=stage.id)
    for row in timed.itertuples():
        same_run = {"tool": "events", "gpu": row.gpu, "problem": row.problem}
        ceiling = metrics_table.value(frame, names.PEAK_BANDWIDTH, **same_run)
        if pd.isna(ceiling) or row.problem not in problems:
            continue
        if problems[row.problem].minimum_bytes < FITS_IN_CACHE:
            continue
        rate = problems[row.problem].bandwidth(row.value * 1e-9)
        told.append(
            f"{stage.id} on {display_name(row.gpu)}, problem {row.problem}: {row.value / 1e3:,.1f} µs, "
            f"{rate / 1e9:,.0f} GB/s, {100 * rate / ceiling:.0f} % of what a plain read reaches"
        )
    return told


def _figure(amount: float, form: str = ",.0f") -> str:
    return metrics_table.ABSENT if pd.isna(amount) else format(amount, form)
