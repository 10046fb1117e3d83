"""``palab start``, ``hint``, ``release`` and ``solution``: the lab as a course."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from labs_common.console import open_console

console = open_console()
StageName = Annotated[str, typer.Argument(help="by id or number")]


def start(
    stage: StageName,
    overwrite: Annotated[bool, typer.Option(help="begin anew; what was there is kept beside it")] = False,
) -> None:
    """Write a stage's kernel without its body into kernels/mine, for you to fill in."""
    from labs_common.exercise import start as start_stage

    start_stage(stage, overwrite=overwrite)


def hint(
    stage: StageName,
    step: Annotated[int, typer.Argument(help="number of the TODO")],
    level: Annotated[int, typer.Option(help="1 asks, 2 gives the idea, 3 nearly the code")] = 1,
) -> None:
    """Help with one step of a stage."""
    from labs_common.exercise import hints

    console.print(escape(hints(stage, step, level)))


def release(
    folder: Annotated[Path, typer.Argument(help="new or empty")],
    stage: Annotated[list[str] | None, typer.Option(help="that it is for; 00 to 05 by default")] = None,
) -> None:
    """Write the student edition: kernels without body, open notebooks, counts as CSV."""
    from labs_common.editions import release as write_release

    _told(write_release(folder, stage), folder)


def solution(
    folder: Annotated[Path, typer.Argument(help="new or empty")],
    execute: Annotated[bool, typer.Option(help="run the notebooks now")] = True,
    stage: Annotated[list[str] | None, typer.Option(help="run only its notebook; all by default")] = None,
) -> None:
    """Write the solution: whole kernels and executed notebooks."""
    from labs_common.editions import solution as write_solution

    _told(write_solution(folder, execute, stage), folder)


def _told(files: list[Path], folder: Path) -> None:
    console.print(f"{len(files)} files in {escape(str(folder))}; EDITION.md says how to begin")
