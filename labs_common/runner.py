"""``palab run`` and ``palab check``: run stages, print what came of them, save the figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from labs_common import metric_names as names
from labs_common import metrics as metrics_table
from labs_common.annotated import copy_notes, heat_map
from labs_common.benchmark import Benchmark, benchmark_stages
from labs_common.check import Report
from labs_common.compare import Verdict, compare
from labs_common.engines import Engine, LaunchError, Outcome
from labs_common.gpus import gpu_id
from labs_common.inputs import make_inputs
from labs_common.metrics import Metrics
from labs_common.open_kernels import is_open, kernel_of, stand_in
from labs_common.problem import Problem
from labs_common.provenance import gpu_provenance, kernel_hash, read_provenance, write_provenance
from labs_common.reference import reference
from labs_common.simt.errors import SimulationError
from labs_common.source import Source
from labs_common.stages import Stage

_HABIT = (
    "it works on today's GPUs because the lanes of a warp happen to run together; CUDA promises that only "
    "after __syncwarp()"
)


@dataclass(frozen=True)
class Row:
    """One stage of the table: what it gave, or why it gave nothing.

    Attributes:
        stage: that was asked for.
        source: the kernel that ran, or was to run: in an edition without bodies yours.
        outcome, verdict: None where nothing ran.
        refused: why the stage was not run.
        failed: why its run ended early.
    """

    stage: Stage
    source: Source
    outcome: Outcome | None = None
    verdict: Verdict | None = None
    refused: str | None = None
    failed: str | None = None

    @property
    def wrong(self) -> bool:
        """Whether the stage ran and is not right."""
        return self.failed is not None or (
            self.verdict is not None and not (self.verdict.ok and not self.outcome.findings)
        )


def run_stages(
    stages: Sequence[Stage],
    problem: Problem,
    engine: Engine,
    console: Console,
    save: Path | None = None,
    command: str = "palab run",
) -> int:
    """Run, compare, print, save.

    Returns:
        The exit status: 0 where every stage that takes the problem is right, 1 where one is wrong, 2 where
        none takes it.
    """
    with _progress(console) as progress:
        task = progress.add_task("reference", total=len(stages) + 1)
        inputs = make_inputs(problem)
        expected = reference(problem, inputs)
        rows = []
        for stage in stages:
            progress.update(task, advance=1, description=stage.id)
            rows.append(_run_one(stage, problem, engine, inputs, expected))
        benchmark = None
        ran = [row.stage for row in rows if row.outcome is not None]
        if engine.name == "gpu" and ran and problem.batch:
            progress.update(task, description="timing")
            plans = [(stage.id, stage, stage.plan(problem, engine.device)) for stage in ran]
            sources = {row.stage.id: row.source for row in rows}
            benchmark = benchmark_stages(plans, problem, sources=sources)
        progress.update(task, completed=len(stages) + 1, description="done")
    console.print(stage_table(rows, problem, engine, benchmark))
    for row in rows:
        if row.outcome is not None:
            if (note := stand_in(row.stage, row.source)) is not None:
                console.print(escape(note), soft_wrap=True)
            for finding in row.outcome.findings:
                told = finding.reworded(row.source.readable)
                console.print(f"[red]{row.stage.id}[/] {escape(str(told))}")
    if save is not None:
        save_figures(rows, problem, engine, benchmark, save, command)
        console.print(f"figures saved in {save}")
    if all(row.refused for row in rows):
        return 2
    timed_wrong = benchmark is not None and not all(v.ok for v in benchmark.verdicts.values())
    return 1 if timed_wrong or any(row.wrong for row in rows) else 0


def _run_one(stage: Stage, problem: Problem, engine: Engine, inputs, expected) -> Row:
    source = kernel_of(stage)
    refused = stage.supports(problem, engine.device)
    if refused is None and is_open(source):
        refused = stand_in(stage, source)
    if refused is not None:
        return Row(stage, source, refused=refused)
    try:
        outcome = engine.run(stage, problem, inputs, source)
    except (LaunchError, SimulationError) as error:
        return Row(stage, source, failed=source.readable(str(error)))
    return Row(stage, source, outcome, compare(outcome.output, expected, stage.weights(problem)))


def stage_table(rows: Sequence[Row], problem: Problem, engine: Engine, benchmark: Benchmark | None) -> Table:
    """The stage table, with what the engine can say: times on a GPU, counts in the simulator."""
    table = Table(title=escape(str(problem)), caption=_caption(engine, benchmark), title_justify="left")
    table.add_column("stage", no_wrap=True)
    table.add_column("result", overflow="fold", min_width=6)
    table.add_column("max error", justify="right", no_wrap=True)
    columns = _time_columns if benchmark else _count_columns
    headers = (
        ("time", "faster", "bandwidth", "of ceiling")
        if benchmark
        else ("warp instr.", "load sectors", "per request", "smem wavefronts", "host")
    )
    for header in headers:
        table.add_column(header, justify="right", no_wrap=False, overflow="fold")
    previous = None
    for row in rows:
        if row.outcome is None:
            result = (
                f"[dim]refused: {escape(row.refused)}[/]" if row.refused else f"[red]{escape(row.failed)}[/]"
            )
            table.add_row(row.stage.id, result)
            continue
        ok = not row.wrong
        result = "[green]right[/]" if ok else f"[red]wrong: {escape(row.verdict.diagnosis)}[/]"
        table.add_row(
            row.stage.id, result, _number(row.verdict.max_error, ".1e"), *columns(row, previous, benchmark)
        )
        previous = row
    return table


def _time_columns(row: Row, previous: Row | None, benchmark: Benchmark) -> list[str]:
    timing = benchmark.timings[row.stage.id]
    ratio = benchmark.timings[previous.stage.id].median_s / timing.median_s if previous else math.nan
    bandwidth = benchmark.bandwidth(row.stage.id)
    return [
        f"{timing.median_s * 1e6:,.1f} us",
        _number(ratio, ".2f"),
        f"{bandwidth / 1e9:,.0f} GB/s",
        f"{100 * bandwidth / benchmark.ceiling:.1f} %",
    ]


def _count_columns(row: Row, previous: Row | None, benchmark: None) -> list[str]:
    totals = metrics_table.stage_totals(row.outcome.metrics)

    def value(metric: str) -> float:
        return metrics_table.value(totals, metric)

    sectors, requests = value(names.GLOBAL_LOAD_SECTORS), value(names.GLOBAL_LOAD_REQUESTS)
    return [
        _number(value(names.INSTRUCTIONS), ",.0f"),
        _number(sectors, ",.0f"),
        _number(sectors / requests if requests else math.nan, ".2f"),
        _number(value(names.SHARED_WAVEFRONTS), ",.0f"),
        f"{row.outcome.seconds:.2f} s",
    ]


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def _caption(engine: Engine, benchmark: Benchmark | None) -> str:
    if benchmark is None:
        return (
            f"{engine.name}: counts of {engine.front_end.label} code for {engine.device.arch}; "
            "host time is the simulator's, not a kernel's"
        )
    first = next(iter(benchmark.timings.values()))
    return (
        f"measured on {benchmark.gpu}: median of {first.rounds} interleaved graph replays over "
        f"{first.sets} input sets, merge included; read ceiling {benchmark.ceiling / 1e9:,.0f} GB/s over "
        f"{benchmark.ceiling_bytes / 2**30:g} GiB in the same run"
    )


def benchmark_metrics(benchmark: Benchmark, stages: Sequence[Stage]) -> Metrics:
    """A benchmark as Metrics rows: times of whole calls by events, and the read ceiling."""
    common = {
        "source": "measured",
        "tool": "events",
        "gpu": gpu_id(benchmark.gpu),
        "problem": benchmark.problem.name,
    }
    rows = [
        {
            **common,
            "stage": stage.id,
            "kernel": metrics_table.ALL_KERNELS,
            "metric": names.TIME,
            "value": benchmark.timings[stage.id].median_s * 1e9,
            "unit": "nsecond",
            "reason": f"median of {benchmark.timings[stage.id].rounds} graph replays over "
            f"{benchmark.timings[stage.id].sets} input sets",
        }
        for stage in stages
        if stage.id in benchmark.timings
    ]
    rows.append(
        {
            **common,
            "metric": names.PEAK_BANDWIDTH,
            "value": benchmark.ceiling,
            "unit": "byte/second",
            "reason": f"plain read of {benchmark.ceiling_bytes} bytes in the same run",
        }
    )
    rows.append(
        {
            **common,
            "metric": names.PEAK_FLOP_RATE,
            "value": benchmark.fp32_peak,
            "unit": "flop/second",
            "reason": "chains of fused multiply-adds in the same run",
        }
    )
    return metrics_table.build(rows)


def require_place(folder: Path, problem: Problem, stages: Sequence[Stage]) -> None:
    """ValueError where a run of these stages would take the place of figures of others.

    A file holds one run, whose times have their ceiling in common, so that another run's are not put beside
    them.
    """
    path = folder / f"{problem.name}.csv"
    there = set(metrics_table.load_csv(path)["stage"].dropna()) - {""} if path.exists() else set()
    if others := sorted(there - {stage.id for stage in stages}):
        raise ValueError(
            f"{path} holds figures of {', '.join(others)}, which this run would replace without measuring "
            "them again: choose another folder, or run them too"
        )


def save_figures(
    rows: Sequence[Row],
    problem: Problem,
    engine: Engine,
    benchmark: Benchmark | None,
    folder: Path,
    command: str,
) -> None:
    """Write ``<problem>.csv`` into a folder, and on a GPU the problem's entry of ``provenance.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    stages = [row.stage for row in rows if row.outcome is not None]
    if benchmark is None:
        tables = [row.outcome.metrics for row in rows if row.outcome is not None]
    else:
        tables = [benchmark_metrics(benchmark, stages)]
    metrics_table.save_csv(metrics_table.concat(tables), folder / f"{problem.name}.csv")
    if benchmark is not None:
        errors = {row.stage.id: row.verdict.max_error for row in rows if row.outcome is not None}
        entry = gpu_provenance(command)
        entry["problem"], entry["max_error"] = str(problem), errors
        entry["kernels_ptx_sha256"] = {
            stage.id: kernel_hash(stage, problem, str(entry["compute_capability"])) for stage in stages
        }
        write_provenance(folder, read_provenance(folder) | {problem.name: entry})


def simulate(
    stage: Stage, source: Source, problem: Problem, engine: Engine, console: Console, page: Path
) -> int:
    """Run a kernel in the simulator, print its instruction mix and busiest lines, write its heat map.

    Returns:
        The exit status: 0 where the output is right and nothing was found, else 1.
    """
    inputs = make_inputs(problem)
    outcome = engine.run(stage, problem, inputs, source)
    verdict = compare(outcome.output, reference(problem, inputs), stage.weights(problem))
    console.print(
        f"{source.name} on {problem}, compiled by {engine.front_end.label}: {verdict.diagnosis}",
        highlight=False,
    )
    for finding in outcome.findings:
        console.print(f"[red]{escape(str(finding.reworded(source.readable)))}[/]")
    for kernel, mix in outcome.mix.items():
        total = sum(mix.values())
        shares = ", ".join(f"{group} {100 * count / total:.1f} %" for group, count in list(mix.items())[:10])
        console.print(f"{kernel}: {total:,} lane-instructions: {shares}", highlight=False, soft_wrap=True)
    for note in copy_notes(outcome.metrics):
        console.print(escape(note), highlight=False, soft_wrap=True)
    page.parent.mkdir(parents=True, exist_ok=True)
    title = f"{stage.id} on {problem.name}, {engine.front_end.label}"
    body = heat_map(source, outcome.metrics, title)
    page.write_text(
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title>{body}</html>",
        encoding="utf-8",
    )
    console.print(f"counts per line: {page}", highlight=False, soft_wrap=True)
    return 0 if verdict.ok and not outcome.findings else 1


def print_report(report: Report, console: Console) -> None:
    """A report for a person: one line per problem, then what is wrong."""
    if report.error is not None:
        console.print(
            f"[red]{report.source_name} cannot run as {report.stage}[/]\n{escape(report.error)}",
            soft_wrap=True,
        )
    for result in report.results:
        verdict = result.verdict
        if result.ok:
            mark, words = "[green]right[/]", verdict.diagnosis
            if result.findings:  # an error would not be ok
                mark, words = "[yellow]right, with a warning[/]", f"{words}:"
        elif verdict is not None and verdict.ok and result.error is None:
            mark = "[red]unsafe[/]"
            found = len(result.findings)
            faults = "a fault" if found == 1 else f"{found} faults"
            words = f"the output was right this time, but the checks found {faults}:"
        else:
            mark = "[red]wrong[/]"
            words = result.error or (verdict.diagnosis if verdict else "")
            words += ":" if result.findings else ""
        console.print(f"{mark} {escape(str(result.problem))}: {escape(words)}", soft_wrap=True)
        for finding in result.findings:
            console.print(f"      {escape(str(finding))}", soft_wrap=True)
    if report.diagnosis is not None:
        sentence = report.diagnosis.sentence
        for finding in {str(f): f for result in report.results for f in result.findings}.values():
            sentence = sentence.replace(str(finding), f"{finding.tool} at {finding.place}, as told above")
        console.print(f"[bold]diagnosis:[/] {escape(sentence)}", soft_wrap=True)
    if report.ok:
        warning = f"[yellow], with a warning[/]: {_HABIT}" if report.warned else ""
        console.print(
            f"[green]{report.source_name} is right as {report.stage}[/] ({report.engine}){warning}",
            soft_wrap=True,
        )


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
