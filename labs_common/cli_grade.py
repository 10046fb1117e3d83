"""``palab grade``: marks for a folder of submissions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from labs_common.console import open_console

console = open_console()


def grade(
    submissions: Annotated[Path, typer.Argument(help="folder of submissions, or one file")],
    out: Annotated[Path, typer.Option(help="folder for marks, feedback and the class report")],
    assignment: Annotated[
        Path | None, typer.Option(help="rubric (TOML), or one of the lab's own: default, roof")
    ] = None,
    stage: Annotated[
        list[str] | None, typer.Option(help="grade only these, in place of the rubric's")
    ] = None,
    gpu: Annotated[bool, typer.Option(help="mark speed too, on this machine's or the workers' GPU")] = False,
    workers: Annotated[int | None, typer.Option(help="local processes; by default one a core")] = None,
    scheduler: Annotated[str | None, typer.Option(help="address of a Dask scheduler to grade on")] = None,
    again: Annotated[
        bool, typer.Option("--again", help="repeat an earlier run: its --out in place of submissions")
    ] = False,
    by_hand: Annotated[
        Path | None,
        typer.Option(
            help="CSV with student, answer, points; in place of an earlier one, kept until the next"
        ),
    ] = None,
) -> None:
    """Grade a class. A run that was stopped goes on where it was."""
    from labs_common.grading.class_run import grade_class
    from labs_common.grading.schedulers import DaskScheduler, LocalScheduler

    where = DaskScheduler(scheduler, gpu) if scheduler else LocalScheduler(1 if gpu else workers)
    columns = (TextColumn("[bold]grading"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, TextColumn("{task.fields[last]}"), console=console) as progress:
            bar = progress.add_task("grading", total=None, last="the lab's own kernels first")

            def started(done: int, total: int) -> None:
                progress.update(bar, completed=done, total=total, last=f"{done} done before" if done else "")

            def finished(record) -> None:
                last = f"{record['student']}: {record['total']:g}"
                progress.update(bar, advance=1, last=escape(last[:40]))

            summary = grade_class(
                submissions,
                out,
                assignment,
                tuple(stage or ()),
                where,
                gpu,
                by_hand,
                again,
                on_start=started,
                on_done=finished,
            )
    except KeyboardInterrupt:
        console.print("what was graded is kept: the same command goes on from there, and writes marks.csv")
        raise typer.Exit(130) from None
    finally:
        where.close()
    console.print(
        f"{len(summary.records)} submissions, {summary.graded} graded now; marks in {out / 'marks.csv'}"
    )
    console.print(f"class report: {out / 'class.html'}; feedback: {out / 'feedback'}")
    if summary.differing is not None:
        same = len(summary.records) - len(summary.differing)
        console.print(f"{same} of {len(summary.records)} have the marks of the run that was graded again")
        for student in summary.differing:
            console.print(f"  [red]differs:[/] {escape(student)}")
    for student in summary.failed:
        console.print(f"  [red]the grader failed on[/] {escape(student)}; it is tried again at the next run")
    raise typer.Exit(1 if summary.failed or summary.differing else 0)
