"""``palab bench``: long measurements, apart from the tests."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer
from rich.table import Table

from labs_common.console import open_console
from labs_common.problem import PRESETS, find_problem
from labs_common.stages import STAGES, find_stage

app = typer.Typer(help="Long measurements: the simulator's speed, fuzzing, grading.", no_args_is_help=True)
console = open_console()


@app.command()
def simulator(
    stages: Annotated[
        list[str] | None, typer.Argument(help="stages by id or number; 01 to 04 by default")
    ] = None,
    problem: Annotated[str, typer.Option(help=f"one of {', '.join(PRESETS)}")] = "seed",
    blocks: Annotated[int, typer.Option(help="blocks of each grid to run; 0 runs all")] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """How fast the simulator runs each stage: counters on, with memcheck or all checks, on 1 core or all."""
    from labs_common.simt import benchmark
    from labs_common.simt.launch import ALL_CHECKS
    from labs_common.simulator_benchmark import stage_cases

    chosen = [find_stage(name) for name in stages] if stages else list(STAGES[1:5])
    cases = [case.sampled(blocks or None) for case in stage_cases(chosen, find_problem(problem))]
    counted = [case.checked_by({"memcheck"}) for case in cases]
    checked = [case.checked_by(ALL_CHECKS) for case in cases]
    rows = (
        benchmark.measure(counted)
        + benchmark.measure(checked)
        + benchmark.measure(checked, engine="numpy", repeats=1)
    )
    cores = os.cpu_count() or 1
    for case in counted if cores > 1 else []:
        ratio = benchmark.speedup(case, cores)
        rows.append(
            {"stage": case.stage, "problem": case.problem, "engine": "llvm", "cores": cores, "speedup": ratio}
        )
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table("stage", "engine", "cores", "checks", "G lane-instructions/s", "whole grid", "x one core")
    for row in rows:
        rate = row.get("lane_instructions_per_s")
        table.add_row(
            row["stage"],
            row["engine"],
            str(row["cores"]),
            "all" if len(row.get("checks", ())) > 1 else "memcheck",
            f"{rate / 1e9:.2f}" if rate else "",
            f"{row['grid_seconds']:.1f} s" if rate else "",
            f"{row['speedup']:.2f}" if "speedup" in row else "",
        )
    console.print(table)


@app.command()
def grading(
    count: Annotated[int, typer.Option(help="submissions, made up: honest, broken and hostile ones")] = 300,
    stage: Annotated[str, typer.Option(help="the stage that they hand in")] = "02",
    workers: Annotated[int | None, typer.Option(help="processes; by default one a core")] = None,
    dask: Annotated[bool, typer.Option(help="grade them once more on a local Dask cluster")] = True,
) -> None:
    """Wall time over submissions, and whether a second run and a cluster give the same marks."""
    from labs_common.grading.synthetic import benchmark_grading

    found = benchmark_grading(count, find_stage(stage), workers, dask, on_progress=console.print)
    for name, seconds in found.seconds_of.items():
        console.print(f"{name}: {seconds:.1f} s, {seconds / found.count:.2f} s a submission")
    for name, students in found.differing.items():
        console.print(f"{name}: {len(students)} of {found.count} marks differ from the first run's")
    console.print(f"marks not as deserved: {len(found.mistakes)}")
    for mistake in found.mistakes[:20]:
        console.print(f"  {mistake}", markup=False)
    raise typer.Exit(0 if found.ok else 1)
