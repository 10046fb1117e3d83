"""``palab bench``: long measurements, apart from the tests."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from labs_common.console import open_console
from labs_common.problem import PRESETS, find_problem
from labs_common.stages import STAGES, find_stage

app = typer.Typer(
    help="Long measurements: the simulator's speed, fuzzing, grading, public kernels.", no_args_is_help=True
)
console = open_console()


@app.command()
def simulator(
    stages: Annotated[
        list[str] | None, typer.Argument(help="stages by id or number; 01 to 04 by default")
    ] = None,
    problem: Annotated[str, typer.Option(help=f"one of {', '.join(PRESETS)}")] = "seed",
    blocks: Annotated[
        int | None,
        typer.Option(help="blocks of each grid to run, 0 for all; by default 2 G lane-instructions of them"),
    ] = None,
    numba: Annotated[
        bool, typer.Option("--numba", help="only stage 00 on tiny, beside numba's CUDA simulator")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """How fast the simulator runs each stage: counters on, with memcheck or all checks, on 1 core or all."""
    from labs_common.simt import benchmark
    from labs_common.simt.launch import ALL_CHECKS
    from labs_common.simulator_benchmark import beside_numba, first_results, stage_cases

    if numba:
        _show(beside_numba(find_problem("tiny")), as_json)
        return
    chosen = [find_stage(name) for name in stages] if stages else list(STAGES[1:5])
    cases = [
        case.of_work(benchmark.WORK) if blocks is None else case.sampled(blocks or None)
        for case in stage_cases(chosen, find_problem(problem))
    ]
    counted = [case.checked_by({"memcheck"}) for case in cases]
    checked = [case.checked_by(ALL_CHECKS) for case in cases]
    rows = (
        benchmark.measure(counted)
        + benchmark.measure(checked)
        + benchmark.measure(counted, engine="numpy", repeats=2)
    )
    cores = os.cpu_count() or 1
    for case in counted if cores > 1 else []:
        ratio = benchmark.speedup(case, cores)
        rows.append(
            {"stage": case.stage, "problem": case.problem, "engine": "llvm", "cores": cores, "speedup": ratio}
        )
    rows += first_results(chosen, find_problem("tiny"))
    _show(rows, as_json)


def _show(rows: list[dict], as_json: bool) -> None:
    """Rows of the simulator's benchmark, as a table or as JSON."""
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    beside = any("times_numba" in row for row in rows)
    ratio = "times_numba" if beside else "speedup"
    table = Table(
        *("stage", "engine", "cores", "checks", "G lane-instructions/s", "whole grid"),
        *("x numba" if beside else "x one core", "new kernel", "known kernel"),
    )
    for row in rows:
        rate = row.get("lane_instructions_per_s")
        table.add_row(
            row["stage"],
            row["engine"],
            str(row["cores"]),
            {0: "none", 1: "memcheck"}.get(len(row.get("checks", "?")), "all"),
            f"{rate / 1e9:.3g}" if rate else "",
            f"{row['grid_seconds']:.3g} s" if rate else "",
            f"{row[ratio]:,.2f}" if ratio in row else "",
            f"{row['new_s']:.2f} s" if "new_s" in row else "",
            f"{1e3 * row['known_s']:.0f} ms" if "known_s" in row else "",
        )
    console.print(table)


@app.command()
def fuzz(
    seconds: Annotated[float, typer.Option(help="after which no further case begins")] = 60,
    seed: Annotated[int | None, typer.Option(help="of the first case; each next one adds 1")] = None,
    cases: Annotated[int | None, typer.Option(help="cases at most; 1 repeats a single seed")] = None,
    out: Annotated[Path, typer.Option(help="folder for the texts of cases that fail")] = Path("out/fuzz"),
) -> None:
    """Random bytes, mutated PTX and mutated kernels through both engines: no crash, no hang, no silence."""
    import secrets

    from labs_common.fuzz import Report, fuzz

    first = secrets.randbelow(2**31) if seed is None else seed
    console.print(f"seeds from {first}", soft_wrap=True)
    with console.status("fuzzing") as status:

        def tell(report: Report) -> None:
            counts = ", ".join(f"{number} {kind}" for kind, number in sorted(report.counts.items()))
            status.update(f"{report.cases} cases: {counts}")

        report = fuzz(seconds, first, out, tell, cases)
    console.print(report.summary(), highlight=False, markup=False, soft_wrap=True)
    for case, outcome in report.failures:
        console.print(f"\nseed {case.seed}, {case.kind} of {case.origin}:", style="red")
        console.print(outcome.words[:2000], markup=False)
    if report.failures:
        console.print(f"texts are in {out}; one alone: palab bench fuzz --cases 1 --seed SEED")
    raise typer.Exit(1 if report.failures else 0)


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


@app.command()
def peers(
    shape: Annotated[
        list[str] | None, typer.Option(help="one of S1, S1r, S2, S3, S4; may be repeated; all by default")
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(help="of the cache: float16, float8_e4m3fn or float32; all by default")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write what was measured")] = None,
    chart: Annotated[Path | None, typer.Option(help="draw it as PNG")] = None,
    replay: Annotated[
        list[Path] | None,
        typer.Option(help="show such a JSON file in place of measuring; of several the median"),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="measurements of each")] = 21,
) -> None:
    """The last stages beside public kernels (FlashInfer, cuDNN, torch and others) on this GPU."""
    from labs_common import peer_bench
    from labs_common.known_shapes import SHAPES
    from labs_common.peers import OURS

    for chosen, allowed in ((shape, tuple(SHAPES)), (dtype, peer_bench.DTYPES)):
        for name in chosen or ():
            if name not in allowed:
                raise ValueError(f"{name!r}: allowed are {', '.join(allowed)}")
    if replay:
        found = peer_bench.combined([peer_bench.read(path) for path in replay])
        console.print(peer_bench.table(found["rows"]))
    else:
        words = [
            "palab bench peers",
            *(f"--shape {s}" for s in shape or ()),
            *(f"--dtype {d}" for d in dtype or ()),
        ]
        found = peer_bench.measure_all(
            shape or tuple(SHAPES),
            dtype or peer_bench.DTYPES,
            " ".join(words),
            rounds,
            console,
            lambda so_far: peer_bench.write(so_far, json_file) if json_file else None,
        )
    for line in peer_bench.reasons(found["missing"]):
        console.print(f"not measured: {line}", markup=False, highlight=False, soft_wrap=True)
    if json_file:
        peer_bench.write(found, json_file)
    if chart:
        from labs_common.chart_peers import peer_chart

        chart.parent.mkdir(parents=True, exist_ok=True)
        chart.write_bytes(peer_chart(found).png())
    wrong = [row for row in found["rows"] if row["kind"] == OURS and not row["right"]]
    raise typer.Exit(1 if wrong else 0)


@app.command()
def tune(
    contexts: Annotated[str, typer.Argument(help="tokens of each sequence: 4096x64, or 900,17,4096x8")],
    query_heads: Annotated[int, typer.Option(min=1)] = 32,
    kv_heads: Annotated[int, typer.Option(min=1)] = 8,
    head_dim: Annotated[int, typer.Option(min=1)] = 128,
    page_size: Annotated[int, typer.Option(min=1)] = 16,
    dtype: Annotated[
        str, typer.Option(help="of the cache: float16, bfloat16, float8_e4m3fn or float32")
    ] = "float16",
    layout: Annotated[str, typer.Option(help="NHD or HND")] = "NHD",
    ways: Annotated[
        int | None, typer.Option(min=1, help="that are timed first, beside one of each kind; 6 by default")
    ] = None,
) -> None:
    """The ways that stage 09 finds cheapest for your own shape, timed on this GPU, the fastest first.

    Needs a GPU and CuPy. The last line is a call of stage.plan that takes the fastest way.
    """
    from labs_common import roof_tune
    from labs_common.device_inputs import device_inputs
    from labs_common.problem import Problem
    from labs_common.roof_bench import UncheckedGpu

    lengths = roof_tune.parse_contexts(contexts)
    problem = Problem(query_heads, kv_heads, head_dim, page_size, lengths, dtype, layout, name="yours")
    engine = UncheckedGpu()
    reason = roof_tune.STAGE.supports(problem, engine.device)
    if reason is not None:
        raise ValueError(reason)
    inputs = device_inputs(engine.xp, problem, roof_tune.sets_past_l2(problem))
    found = roof_tune.tune(engine, problem, inputs, ways or roof_tune.WAYS)
    console.print(roof_tune.table(found))
    options = ", ".join(f"{name}={value!r}" for name, value in found[0].options.items())
    console.print(f"stage.plan(problem, device, {options})", markup=False, highlight=False, soft_wrap=True)
