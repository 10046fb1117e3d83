"""Figures calculated from figures, as Metrics again: charts and explanations only pick them.

Their names begin with `lab__`. A figure whose inputs are absent is absent, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd

from labs_common import metric_names as names
from labs_common.gpus import find_gpu
from labs_common.metric_names import STALL_SAMPLES, STALL_SHARE
from labs_common.metrics import (
    ABSENT,
    Metrics,
    MetricsError,
    build,
    concat,
    group_launches,
    one,
    select,
    value,
)

FFMA, FMUL, FADD = (f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in ("ffma", "fmul", "fadd"))
SECTORS_PER_REQUEST = "lab__sectors_per_global_load_request.ratio"
_LOAD_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
_LOAD_REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
_KERNEL = ["source", "tool", "gpu", "stage", "kernel", "launch", "problem"]


def _launches(frame: Metrics) -> Iterator[tuple[dict[str, Any], Metrics]]:
    """Each kernel launch of a table: what identifies it, and its whole-kernel rows."""
    for key, rows in select(frame, line=None).groupby(_KERNEL, sort=False, dropna=False):
        yield dict(zip(_KERNEL, key, strict=True)), rows.reset_index(drop=True)


def _flops(rows: Metrics) -> tuple[float, str]:
    """fp32 operations of a launch, a fused multiply-add counted as two; or NaN and why.

    Nsight Compute's full set has the counts per elapsed cycle only; the product with the cycles is taken
    then.
    """
    counts = []
    for metric in (FFMA, FMUL, FADD):
        count = value(rows, metric)
        if count != count:
            cycles = value(rows, "smsp__cycles_elapsed.max")
            if cycles != cycles:
                cycles = value(rows, "gpc__cycles_elapsed.max")
            count = value(rows, f"{metric}.per_cycle_elapsed") * cycles
        counts.append(count)
    flops = 2 * counts[0] + counts[1] + counts[2]
    return flops, "" if flops == flops else f"fp32 instructions {ABSENT}"


def _ratio(above: float, below: float, reason: str) -> tuple[float, str]:
    if above != above or below != below:
        return float("nan"), reason
    if below == 0:
        return float("nan"), "divided by zero"
    return above / below, ""


def roofline_figures(frame: Metrics) -> Metrics:
    """fp32 operations, their rate, and their number per DRAM byte, of each launch."""
    rows = []
    for key, launch in _launches(frame):
        flops, why = _flops(launch)
        dram_bytes = value(launch, names.DRAM_READ_BYTES) + value(launch, names.DRAM_WRITE_BYTES)
        seconds = value(launch, names.TIME) / 1e9
        rate, why_rate = _ratio(flops, seconds, why or f"time {ABSENT}")
        intensity, why_intensity = _ratio(flops, dram_bytes, why or f"DRAM bytes {ABSENT}")
        rows += [
            {**key, "metric": names.FLOPS, "value": flops, "unit": "flop", "reason": why},
            {**key, "metric": names.FLOP_RATE, "value": rate, "unit": "flop/second", "reason": why_rate},
            {
                **key,
                "metric": names.INTENSITY,
                "value": intensity,
                "unit": "flop/byte",
                "reason": why_intensity,
            },
        ]
    return build(rows)


def ceilings_of(frame: Metrics, gpu: str, problem: str = "") -> Metrics:
    """What a GPU can reach at most, for `charts.roofline`: measured where it was, else its maker's figure.

    Args:
        frame: a table with `PEAK_BANDWIDTH` and `PEAK_FLOP_RATE` of benchmark runs, or without.
        gpu: id.
        problem: the run whose ceilings are taken; by default, and where that run has none, the highest.
    """
    rows = []
    known = find_gpu(gpu)
    for metric, unit, nominal in (
        (names.PEAK_BANDWIDTH, "byte/second", known and known.memory_bandwidth),
        (names.PEAK_FLOP_RATE, "flop/second", known and known.peak_fp32),
    ):
        measured = select(frame, gpu=gpu, metric=metric).dropna(subset="value").sort_values("value")
        same_run = measured[measured["problem"] == problem]
        if len(measured):
            best = (same_run if len(same_run) else measured).iloc[-1]
            kept = {name: best[name] for name in ("source", "tool", "value", "reason")}
        elif nominal:
            kept = {"source": "reported", "tool": "data sheet", "value": nominal, "reason": "nominal"}
        else:
            kept = {"source": "reported", "tool": "data sheet", "reason": ABSENT}
        rows.append({"gpu": gpu, "metric": metric, "unit": unit} | kept)
    return build(rows)


def access_figures(frame: Metrics) -> Metrics:
    """Sectors per global load request of each launch.

    4 when the lanes of a warp load neighbouring 4-byte words, 16 when 16-byte ones.
    """
    rows = []
    for key, launch in _launches(frame):
        sectors, requests = value(launch, _LOAD_SECTORS), value(launch, _LOAD_REQUESTS)
        each, why = _ratio(sectors, requests, f"sectors or requests {ABSENT}")
        row = {"metric": SECTORS_PER_REQUEST, "value": each, "unit": "sector/request", "reason": why}
        rows.append({**key, **row})
    return build(rows)


def stall_shares(frame: Metrics) -> Metrics:
    """Share of each stall reason in the warp samples of each launch, in percent; issuing warps among them.

    A launch without samples has no rows.
    """
    rows = []
    for key, launch in _launches(frame):
        counted = launch[
            launch["metric"].str.startswith(STALL_SAMPLES) & ~launch["metric"].str.endswith("_not_issued")
        ].drop_duplicates("metric")
        total = counted["value"].sum()
        if not total > 0:
            continue
        for metric, samples in zip(counted["metric"], counted["value"], strict=True):
            name = STALL_SHARE + metric.removeprefix(STALL_SAMPLES)
            rows.append({**key, "metric": name, "value": 100 * samples / total, "unit": "%", "sampled": True})
    return build(rows)


def with_derived(frame: Metrics) -> Metrics:
    """The table with all figures of this module added."""
    steps: tuple[Callable[[Metrics], Metrics], ...] = (roofline_figures, access_figures, stall_shares)
    return concat([frame, *(step(frame) for step in steps)])


def compare_sources(frame: Metrics, metrics: tuple[str, ...], reference: str = "simulated") -> pd.DataFrame:
    """The reference source's figures beside every other source's, kernel by kernel.

    Returns:
        Columns stage, kernel, problem, metric, unit, source, gpu, value, reference, ratio (value / reference)
        and reason, which is empty where both are there. Problems are never mixed.

    Raises:
        MetricsError: no row of the reference source.
    """
    grouped = group_launches(select(frame, line=None, metric=list(metrics)))
    base = select(grouped, source=reference)
    if base.empty:
        raise MetricsError(f"no {reference} rows of {', '.join(metrics)} to compare with")
    rows = []
    others = grouped[grouped["source"] != reference]
    by = ["stage", "kernel", "problem", "source", "tool", "gpu"]
    for key, kernel in others.groupby(by, sort=False):
        where = dict(zip(by, key, strict=True))
        same = select(base, stage=where["stage"], kernel=where["kernel"], problem=where["problem"])
        for metric in metrics:
            found, wanted = one(kernel, metric), one(same, metric)
            if found is None and wanted is None:
                continue
            sides = [float("nan") if side is None else side["value"] for side in (found, wanted)]
            missing = f"{where['source']}: {ABSENT}" if sides[0] != sides[0] else f"{reference}: {ABSENT}"
            ratio, reason = _ratio(*sides, missing)
            if sides == [0, 0]:
                reason = "both are zero"
            rows.append(
                {
                    **{name: where[name] for name in ("stage", "kernel", "problem")},
                    "metric": names.canonical(metric),
                    "unit": (wanted if found is None else found)["unit"],
                    "source": where["source"],
                    "gpu": where["gpu"],
                    "value": sides[0],
                    "reference": sides[1],
                    "ratio": ratio,
                    "reason": reason,
                }
            )
    columns = "stage kernel problem metric unit source gpu value reference ratio reason"
    return pd.DataFrame(rows, columns=columns.split())
