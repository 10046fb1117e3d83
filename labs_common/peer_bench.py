"""``palab bench peers``: the lab's kernels and public ones, shape by shape, in turn with plain reading."""

from __future__ import annotations

import functools
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from labs_common import peers
from labs_common.compare import compare
from labs_common.device_inputs import device_inputs, device_reference
from labs_common.known_shapes import SHAPES
from labs_common.peers import OURS, Missing, Ready, Setting
from labs_common.plans import Device
from labs_common.problem import FP8, Problem
from labs_common.provenance import gpu_provenance
from labs_common.reference import Reference
from labs_common.roof_bench import UncheckedGpu
from labs_common.roof_tune import tune
from labs_common.stages import ROOF, Stage, find_stage
from labs_common.timing import ROUNDS, ceiling_bytes, ceiling_calls, ceiling_of, figures, refill_l2, time_gpu

RECORDED = Path(__file__).resolve().parent.parent / "data" / "peers"
TUNED = f"{ROOF[-1].id}, tuned"
DTYPES = ("float16", FP8, "float32")
# Of ||output - reference|| / ||reference|| where queries or weights are fp8, whose unit roundoff is 2^-4.
LOOSE_ERROR = 0.1
GRAPH_S = 1e-3  # of a graph, about, at least; decode steps are such a graph, of one call for each layer
PLANNED = 5  # times that a host's planning is timed
CELL = ("problem", "dtype", "what")
FIGURES = ("median_us", "p90_us", "GB/s", "% of read ceiling", "ceiling_GB/s", "planning_us", "error")
METHOD = (
    "Decode with one query token a sequence, pages of 16 tokens in random order, queries twice as wide as "
    "keys and values (normal). The input sets share one pool and no page. Each contender's calls on them, by "
    f"turns and until they take about {1e3 * GRAPH_S:.0f} ms or more, are one CUDA graph; rounds replay "
    "every graph, in an order of their own, between events and after a read of more than the L2 cache "
    "holds, which leaves it full of what somebody else read; times are the median and the 90th percentile "
    "of the mean over the calls, merges included, planning by the host not. Stages 06 and 07 have the "
    "longest partitions that fill the GPU twice, the others their own plan, and what is tuned the fastest "
    "way of those that its cost found cheapest, timed before (options). "
    "The read ceiling is the best plain read of ceiling_bytes in the same rounds. "
    "Bandwidth counts the bytes that must move at least. "
    "error is ||output - float64|| / ||float64|| of the worst set that was timed. right: every element is "
    "within the lab's tolerance, or, where a peer rounds more than 16-bit products need (rounds), error is "
    f"at most {LOOSE_ERROR}. planning_us is the host's work for a decode step until the GPU has its result."
)


@dataclass(frozen=True)
class Entry:
    """A contender that is ready to be timed."""

    kind: str
    ready: Ready


def measure(
    engine: Any, problem: Problem, sets: int = 2, rounds: int = ROUNDS
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Time the lab's stages and every peer on one problem.

    Args:
        engine: a GPU, of ``UncheckedGpu``.
        problem: of the layout NHD.
        sets: input sets, which together should pass the L2 cache.
        rounds: measurements.

    Returns:
        A row for each that ran, and for each that did not its name and the reason.
    """
    xp = engine.xp
    setting = Setting(xp, device_inputs(xp, problem, sets))
    expected = [device_reference(xp, setting.inputs, number) for number in range(sets)]
    entries: dict[str, Entry] = {}
    missing: list[dict[str, str]] = []
    for name, kind, prepare in contenders(engine, setting):
        try:
            ready = prepare()
            _try(xp, ready)
            entries[name] = Entry(kind, ready)
        except Exception as error:  # one that fails must not cost the others their measurement
            reason = (
                str(error) if isinstance(error, Missing | ValueError) else f"{type(error).__name__}: {error}"
            )
            missing.append(
                {"problem": problem.name, "dtype": problem.dtype, "what": name, "reason": reason[:500]}
            )
    planning = {name: _planning_seconds(xp, entry.ready) for name, entry in entries.items()}
    nbytes = ceiling_bytes(engine)
    calls = {name: entry.ready.calls for name, entry in entries.items()}
    calls |= ceiling_calls(engine, nbytes)
    timings = time_gpu(xp, calls, rounds, between=refill_l2(engine), graph_s=GRAPH_S)
    ceiling = ceiling_of(timings, nbytes)
    rows = []
    for name, entry in entries.items():
        rows.append(
            {
                "problem": problem.name,
                "dtype": problem.dtype,
                "what": name,
                "kind": entry.kind,
                **figures(timings[name], problem, ceiling),
                "ceiling_bytes": nbytes,
                "sets": sets,
                "rounds_timed": rounds,
                "calls_in_a_graph": timings[name].calls,
                "planning_us": planning[name] and 1e6 * planning[name],
                "rounds": entry.ready.rounds,
                "options": dict(entry.ready.options),
                **judge(entry.ready, expected),
            }
        )
    return rows, missing


def contenders(engine: Any, setting: Setting) -> Iterable[tuple[str, str, Callable[[], Ready]]]:
    """Name and kind of everything that is timed, and what makes it ready."""
    problem, inputs = setting.problem, setting.inputs

    def bind(stage: Stage, options: Callable[[], Mapping[str, Any]]) -> Ready:
        given = options()
        plan = stage.plan(problem, engine.device, **given)
        calls = [engine.bind(stage, problem, plan, one, inputs.scale) for one in inputs.sets]

        def again() -> list[Any]:
            tables = stage.plan(problem, engine.device, **given).tables
            return [engine.xp.asarray(table) for table in tables.values()]

        outputs = [lambda call=call: engine.read(call, problem) for call in calls]
        return Ready(calls, outputs, stage.weights(problem), plan=again, options=given)

    for stage in (find_stage("05"), *ROOF):
        known = functools.partial(options_of, stage, problem, engine.device)
        yield stage.id, OURS, functools.partial(bind, stage, known)
    yield TUNED, OURS, functools.partial(bind, ROOF[-1], lambda: tune(engine, problem, inputs)[0].options)
    for peer in peers.PEERS:
        yield peer.name, peer.kind, functools.partial(peer.prepare, setting)


def options_of(stage: Stage, problem: Problem, device: Device) -> dict[str, int]:
    """Of a stage's plan: 06 and 07 take the longest partitions that fill the GPU twice.

    Their default suits short contexts; stages 08 and 09 choose for themselves.
    """
    if stage.id[:2] not in ("06", "07"):
        return {}
    blocks = 2 * device.multiprocessors / problem.kv_heads
    longest = max(512, sum(problem.context_lengths) / blocks)
    return {"partition_tokens": 1 << int(longest).bit_length() - 1}


def judge(ready: Ready, expected: list[Reference]) -> dict[str, Any]:
    """Error, whether it is right, and a sentence, over all sets of a contender."""
    worst, right, diagnosis = 0.0, True, ""
    for output, reference in zip(ready.outputs, expected, strict=True):
        found = np.asarray(output())
        size = float(np.linalg.norm(reference.output))
        error = float(np.linalg.norm(found.astype(np.float64) - reference.output)) / size if size else 0.0
        verdict = compare(found, reference, ready.weights)
        ok = error <= LOOSE_ERROR if ready.rounds else verdict.ok
        # NaN passes no comparison, and must be the worst error
        worst = error if not error <= worst else worst
        if right and not ok:
            right, diagnosis = False, verdict.diagnosis
        diagnosis = diagnosis or verdict.diagnosis
    return {"error": worst if np.isfinite(worst) else None, "right": right, "diagnosis": diagnosis}


def _try(xp: Any, ready: Ready) -> None:
    """Call once and capture once, so that what cannot be timed fails alone."""
    stream = xp.cuda.Stream(non_blocking=True)
    xp.cuda.Device().synchronize()  # this stream does not wait for copies and fills on the default one
    with stream:
        ready.calls[0]()
        ready.calls[0]()  # what it allocates while the last output is still there, too
        stream.synchronize()
        stream.begin_capture()
        try:
            ready.calls[0]()
        finally:
            graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()


def _planning_seconds(xp: Any, ready: Ready) -> float | None:
    """Median host time of a peer's planning, until the GPU has it."""
    if ready.plan is None:
        return None
    seconds = []
    for _ in range(PLANNED):
        xp.cuda.Device().synchronize()
        begin = time.perf_counter()
        ready.plan()
        xp.cuda.Device().synchronize()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def measure_all(
    names: Iterable[str],
    dtypes: Iterable[str],
    command: str,
    rounds: int,
    console: Console,
    keep: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure shapes in dtypes on the first GPU.

    Args:
        names: of ``SHAPES``.
        dtypes: of the cache.
        command: that provenance names.
        rounds: measurements of each.
        console: where each table is printed when it is there.
        keep: called with what there is after every table, so that a later failure costs none.

    Raises:
        EngineMissing: no CuPy or no GPU.
    """
    engine = UncheckedGpu()
    problems = [SHAPES[name].replace(dtype=dtype) for name in names for dtype in dtypes]
    found: dict[str, Any] = {
        "provenance": {**gpu_provenance(command), "peers": peers.versions()},
        "method": METHOD,
        "rows": [],
        "missing": [],
    }
    planned = []
    for stage in (find_stage("05"), *ROOF):
        for problem in problems:
            if stage.supports(problem, engine.device) is None:
                options = options_of(stage, problem, engine.device)
                planned.append((stage.id, stage, stage.plan(problem, engine.device, **options)))
    engine.build(planned)
    for problem in problems:
        rows, missing = measure(engine, problem, rounds=rounds)
        found["rows"] += rows
        found["missing"] += missing
        console.print(table(rows))
        keep(found)
        _free(engine.xp)
    return found


def _free(xp: Any) -> None:
    """Give memory back between problems: CuPy and torch each keep what they once had."""
    import gc
    import sys

    gc.collect()
    xp.get_default_memory_pool().free_all_blocks()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


def table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Rows as a table, the fastest of each problem first; ``ceiling`` is the part of the read ceiling."""
    figures = ("median µs", "p90 µs", "GB/s", "ceiling", "error", "plan µs")
    shown = Table("shape", "cache", "what", *figures, "right", "note")
    for column in shown.columns[3 : 3 + len(figures)]:
        column.justify = "right"
    order: dict[tuple[str, str], int] = {}
    for row in rows:
        order.setdefault((row["problem"], row["dtype"]), len(order))
    for row in sorted(rows, key=lambda r: (order[r["problem"], r["dtype"]], r["median_us"])):
        notes = [row["rounds"], "" if row["right"] else row["diagnosis"]]
        shown.add_row(
            row["problem"],
            row["dtype"],
            row["what"],
            f"{row['median_us']:,.1f}",
            f"{row['p90_us']:,.1f}",
            f"{row['GB/s']:,.0f}",
            f"{row['% of read ceiling']:.1f} %",
            "not finite" if row["error"] is None else f"{row['error']:.1e}",
            f"{row['planning_us']:,.0f}" if row["planning_us"] is not None else "",
            "yes" if row["right"] else "NO",
            "; ".join(filter(None, notes)),
            style="bold" if row["kind"] == OURS else None,
        )
    return shown


def reasons(missing: Iterable[Mapping[str, str]]) -> list[str]:
    """A line for each contender and reason, with the problems it holds for."""
    places: dict[tuple[str, str], dict[str, list[str]]] = {}
    for one in missing:
        dtypes = places.setdefault((one["what"], one["reason"]), {})
        dtypes.setdefault(one["dtype"], []).append(one["problem"])
    lines = []
    for (what, reason), dtypes in places.items():
        where = "; ".join(f"{dtype} {' '.join(names)}" for dtype, names in dtypes.items())
        lines.append(f"{what}: {reason} ({where})")
    return lines


def write(found: Mapping[str, Any], path: Path) -> None:
    """Write what was measured as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def recorded(gpu: str) -> dict[str, Any]:
    """What was measured and kept of a kind of GPU, such as ``h200``: the median of its runs."""
    return combined([read(path) for path in sorted((RECORDED / gpu).glob("*.json"))])


def combined(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several runs as one: medians of every figure, parts of a ceiling of the ceiling of their own run.

    Cards of one kind differ by a point or two in some cells. A contender that some run lacks is left out,
    with the reason that the run gives; one that was ever wrong stays wrong. Its error is the largest. Options
    and the card are each run's own, and left out.

    Raises:
        ValueError: there is no run, or they are of different GPUs or contenders' versions.
    """
    if not runs:
        raise ValueError("runs=[]: at least one is needed")
    for name in ("gpu", "peers"):
        kinds = [run["provenance"].get(name) for run in runs]
        if any(kind != kinds[0] for kind in kinds):
            raise ValueError(f"runs: {name} must be the same, not {' and '.join(map(str, kinds))}")
    if len(runs) == 1:
        return dict(runs[0])
    named = [{tuple(row[k] for k in CELL): row for row in run["rows"]} for run in runs]
    rows, missing = [], {}
    for name in dict.fromkeys(name for run in named for name in run):
        mine = [run[name] for run in named if name in run]
        if len(mine) < len(runs):
            reason = f"measured in {len(mine)} of {len(runs)} runs"
            missing[name] = {**dict(zip(CELL, name, strict=True)), "reason": reason}
            continue
        row = dict(next((row for row in mine if not row["right"]), mine[0]))
        row.pop("options", None)
        for figure in FIGURES:
            values = [one[figure] for one in mine]
            worst = max if figure == "error" else statistics.median
            row[figure] = worst(values) if None not in values else None
        rows.append(row)
    missing |= {tuple(one[k] for k in CELL): one for run in runs for one in run["missing"]}
    provenance = {name: value for name, value in runs[0]["provenance"].items() if name != "card"}
    return {
        "provenance": {**provenance, "runs": len(runs)},
        "method": f"{runs[0]['method']} Each figure is the median of {len(runs)} such runs.",
        "rows": rows,
        "missing": list(missing.values()),
    }


def read(path: Path) -> dict[str, Any]:
    """What ``write`` wrote.

    Raises:
        ValueError: it is another kind of file.
        FileNotFoundError: there is none.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        found["provenance"], found["rows"], found["missing"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
        raise ValueError(f"{path}: not a file that palab bench peers --json wrote") from None
    return found
