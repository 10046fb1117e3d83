"""``palab``: the lab from the command line."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from labs_common import cli_bench, cli_course, cli_grade
from labs_common.console import open_console
from labs_common.doctor import diagnose, engine_choice
from labs_common.problem import PRESETS, Problem
from labs_common.stages import ALL_STAGES, find_stage

app = typer.Typer(
    help="Paged attention kernel lab: run, check and measure the stages, with a GPU or without.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(cli_bench.app, name="bench")
app.command()(cli_grade.grade)
for command in (cli_course.start, cli_course.hint, cli_course.release, cli_course.solution):
    app.command()(command)
console = open_console()
errors = open_console(stderr=True)


class EngineName(StrEnum):
    """Where kernels run."""

    AUTO = "auto"
    GPU = "gpu"
    SIM = "sim"


class FrontEndName(StrEnum):
    """What compiles for the simulator."""

    AUTO = "auto"
    NVRTC = "nvrtc"
    ZIG = "zig"


Engine = Annotated[EngineName, typer.Option(help="where to run: the GPU, or the simulator")]
FrontEnd = Annotated[
    FrontEndName,
    typer.Option(help="what compiles for the simulator: NVRTC, or the clang of ziglang where it is missing"),
]
ProblemName = Annotated[str, typer.Option(help=f"one of {', '.join(PRESETS)}")]


@app.command()
def run(
    stages: Annotated[list[str] | None, typer.Argument(help="stages by id or number; all by default")] = None,
    problem: ProblemName = "ragged",
    engine: Engine = EngineName.AUTO,
    save: Annotated[Path | None, typer.Option(help="folder for the figures as CSV, with provenance")] = None,
    force: Annotated[bool, typer.Option(help="simulate even what takes minutes")] = False,
    front_end: FrontEnd = FrontEndName.AUTO,
) -> None:
    """Run stages on a problem, hold each against the float64 reference, and print the stage table.

    Stages that do not take the problem's number format run it in their own, in a table of their own.
    """
    from labs_common import runner

    asked = _find_problem(problem)
    chosen = [find_stage(name) for name in stages] if stages else list(ALL_STAGES)
    runs = {
        one: [stage for stage in chosen if stage.taken(asked) == one]
        for one in dict.fromkeys(stage.taken(asked) for stage in chosen)
    }
    if save is not None:
        for one, stages_of_one in runs.items():
            runner.require_place(save, one, stages_of_one)
    opened = _open(engine, force, front_end)
    statuses = [
        runner.run_stages(stages_of_one, one, opened, console, save, _command())
        for one, stages_of_one in runs.items()
    ]
    raise typer.Exit(max(statuses))


@app.command()
def check(
    kernel: Annotated[str, typer.Argument(help="a kernel file, or a stage for yours in kernels/mine")],
    stage: Annotated[
        str | None, typer.Option(help="in whose place a file runs; by default the one it is named after")
    ] = None,
    engine: Engine = EngineName.AUTO,
    front_end: FrontEnd = FrontEndName.AUTO,
    report_file: Annotated[
        Path | None,
        typer.Option(
            "--report", help="JSON file to hand in: the kernel, and what was found, which is found again"
        ),
    ] = None,
) -> None:
    """Run your own kernel in a stage's place on small and ragged problems, and name what is wrong."""
    from labs_common import runner
    from labs_common.check import check as check_kernel
    from labs_common.exercise import chosen_kernel, has_steps, print_steps

    source, chosen = chosen_kernel(kernel, stage)
    report = check_kernel(source, chosen, _open(engine, front_end=front_end))
    runner.print_report(report, console)
    if has_steps(source, chosen):
        print_steps(report, console)
    if report_file is not None:
        from labs_common.grading.check_report import write_report

        write_report(report_file, report, source)
        console.print(f"report: {escape(str(report_file))}")
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def doctor() -> None:
    """Say what this machine can do, and why not more."""
    from labs_common.tiers import tiers

    table = Table("", "", "what was found", "what to do")
    for ability in diagnose():
        mark = "[green]yes[/]" if ability.works else "[yellow]no[/]"
        table.add_row(ability.name, mark, escape(ability.detail), escape(ability.remedy))
    console.print(table)
    engine, reason = engine_choice()
    where = "on the GPU" if engine == "gpu" else "in the simulator"
    console.print(f"Stages run {where} ({escape(reason)}).")
    table = Table("", "figures by", "what was found", "what to do")
    with errors.status("trying the GPU's counters"):
        found = tiers()
    for tier in found:
        mark = "[green]yes[/]" if tier.works else "[yellow]no[/]"
        table.add_row(mark, tier.name, escape(tier.detail), escape(tier.remedy))
    console.print(table)


@app.command()
def profile(
    stages: Annotated[list[str] | None, typer.Argument(help="stages by id or number; all by default")] = None,
    problem: Annotated[str, typer.Option(help="a preset, or a problem of the recorded sets")] = "seed",
    as_json: Annotated[bool, typer.Option("--json", help="rows as JSON instead of tables")] = False,
    keep: Annotated[Path | None, typer.Option(help="folder in which reports are kept as .ncu-rep")] = None,
) -> None:
    """Measure stages with Nsight Compute, or show what was recorded where that cannot be done."""
    from labs_common.metrics import concat
    from labs_common.ncu_rows import ProfileError
    from labs_common.profile_table import MAIN
    from labs_common.tiers import profile as profile_stage

    asked = _find_problem(problem)
    if stages:
        chosen = [find_stage(name) for name in stages]
    else:
        chosen = [stage for stage in ALL_STAGES if stage.supports(stage.taken(asked)) is None]
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    tables = []
    for stage in chosen:
        taken = stage.taken(asked)
        report = None if keep is None else keep / f"{stage.id}-{taken.name}.ncu-rep"
        try:
            tables.append(profile_stage(stage, taken, keep=report))
        except ProfileError as error:
            if len(chosen) == 1:
                raise
            errors.print(f"[yellow]{escape(str(error))}[/]")
    if not tables:
        raise typer.Exit(2)
    _show(concat(tables), as_json, MAIN)


@app.command()
def metrics(
    file: Annotated[Path, typer.Argument(help="a report, CSV or text of Nsight Compute, or a Metrics CSV")],
    as_json: Annotated[bool, typer.Option("--json", help="all rows as JSON instead of tables")] = False,
    decimal: Annotated[str | None, typer.Option(help="decimal mark, where the file does not tell")] = None,
) -> None:
    """Show what a profile holds, whichever form it has."""
    from labs_common.ncu import read_profile
    from labs_common.profile_table import named_metrics

    table = read_profile(file, decimal=decimal)
    _show(table, as_json, named_metrics(table))


def _show(table, as_json: bool, chosen: Sequence[str]) -> None:
    """Figures as tables with what they say in words, or as JSON on stdout."""
    from labs_common.explain import explain_text
    from labs_common.metrics import to_records
    from labs_common.profile_table import profile_tables

    if as_json:
        print(json.dumps(to_records(table), ensure_ascii=False, indent=1))
        return
    for one_table in profile_tables(table, chosen):
        console.print(one_table)
    console.print(escape(explain_text(table)))


@app.command()
def record(
    stages: Annotated[list[str] | None, typer.Argument(help="stages by id or number; all by default")] = None,
    problem: Annotated[list[str] | None, typer.Option(help="problems of the set; all by default")] = None,
    out: Annotated[Path, typer.Option(help="folder in which a folder for this GPU is made")] = Path(
        "data/recorded"
    ),
    tables_only: Annotated[bool, typer.Option(help="keep the figures, not the reports")] = False,
) -> None:
    """Profile stages with Nsight Compute into a set that others can replay."""
    from labs_common import record as recording
    from labs_common.recorded import KNOWN

    unknown = sorted(set(problem or ()) - set(KNOWN))
    if unknown:
        raise ValueError(f"problem {unknown[0]!r}: a set has {', '.join(KNOWN)}")
    chosen = [find_stage(name) for name in stages] if stages else list(ALL_STAGES)
    problems = [KNOWN[name] for name in problem] if problem else list(recording.PROBLEMS.values())
    target = recording.record(
        chosen, problems, out, _command(), on_progress=console.print, keep_reports=not tables_only
    )
    console.print(f"recorded in {target}")


@app.command()
def simulate(
    kernel: Annotated[str, typer.Argument(help="a stage by id or number, or a kernel file with --stage")],
    stage: Annotated[str | None, typer.Option(help="the stage in whose place a kernel file runs")] = None,
    problem: ProblemName = "ragged",
    out: Annotated[Path | None, typer.Option(help="HTML file; by default out/simulate/<kernel>.html")] = None,
    force: Annotated[bool, typer.Option(help="simulate even what takes minutes")] = False,
    front_end: FrontEnd = FrontEndName.AUTO,
) -> None:
    """Count a kernel line by line in the simulator: its instruction mix here, its source as HTML."""
    from labs_common import runner
    from labs_common.open_kernels import is_open, kernel_of, stand_in
    from labs_common.source import Source

    is_file = kernel.endswith(".cu")
    if is_file and stage is None:
        raise ValueError(f"{kernel}: say with --stage in which stage's place it runs")
    chosen = find_stage(stage if is_file else kernel)
    source = Source.read(kernel) if is_file else kernel_of(chosen)
    if not is_file and (told := stand_in(chosen, source)) is not None:
        if is_open(source):
            raise ValueError(told)
        console.print(escape(told), soft_wrap=True)
    page = out or Path("out/simulate") / f"{Path(source.name).stem}.html"
    opened = _open(EngineName.SIM, force, front_end)
    taken = chosen.taken(_find_problem(problem))
    raise typer.Exit(runner.simulate(chosen, source, taken, opened, console, page))


def _find_problem(name: str) -> Problem:
    """A preset, or a problem of the recorded sets."""
    from labs_common.recorded import KNOWN

    known = PRESETS | KNOWN
    if name not in known:
        raise ValueError(f"problem {name!r}: allowed are {', '.join(known)}")
    return known[name]


def _command() -> str:
    """What was typed, as provenance keeps it: no folder of this machine."""
    return shlex.join(["palab", *(Path(a).name if Path(a).is_absolute() else a for a in sys.argv[1:])])


def _open(name: EngineName, force: bool = False, front_end: FrontEndName = FrontEndName.AUTO):
    from labs_common.engines import open_engine

    return open_engine(name.value, force=force, front_end=front_end.value)


def main() -> None:
    """Entry point: errors that a user can mend are one message and exit status 2."""
    from labs_common.compiler import CompilerMissing
    from labs_common.engines import EngineMissing

    try:
        app()
    except (ValueError, OSError, EngineMissing, CompilerMissing) as error:
        errors.print(f"[red]error:[/] {escape(str(error))}")
        raise SystemExit(2) from None
    except SystemExit as ended:  # what typer makes of Ctrl-C
        if ended.code == 130:
            errors.print("stopped")
        raise
