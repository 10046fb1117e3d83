"""What the simulator counted in a launch, as Metrics by Nsight Compute's names."""

from __future__ import annotations

from labs_common import metrics as metrics_table
from labs_common.compiler import Resources
from labs_common.gpus import Gpu
from labs_common.metric_names import SHARED_WAVEFRONTS, unit_of
from labs_common.metrics import Metrics
from labs_common.occupancy import occupancy_metrics
from labs_common.plans import Launch
from labs_common.simt.counters import NCU_METRICS, Counters
from labs_common.source import NEUTRAL_FOLDER


def counted_metrics(
    counters: Counters,
    launch: Launch,
    number: int,
    resources: Resources | None,
    shared_static: int,
    gpu: Gpu,
    tool: str,
    stage: str,
    problem: str,
) -> Metrics:
    """The figures of one launch: for the kernel, and for each of its source lines.

    Counts are exact unless only some blocks were run; then they are scaled to the whole grid and marked
    sampled.
    An instruction belongs to the innermost line it was inlined from. Occupancy and waves are by formula.

    Args:
        counters: of the launch.
        launch: as planned.
        number: of the launch in its stage.
        resources: of the kernel, compiled for the GPU's architecture; None where no ptxas is at hand.
        shared_static: bytes of static shared memory of a block, as the PTX declares it.
        gpu: whose occupancy is calculated.
        tool: that counted; names the front end, where it is not the usual one.
        stage, problem: ids.
    """
    factor = counters.scaled()
    common = {"kernel": launch.entry, "launch": number, "sampled": counters.sampled}
    totals = counters.totals()
    rows = [_row(name, count * factor, **common) for name, count in totals.items()]
    wavefronts = totals["shared_load_wavefronts"] + totals["shared_store_wavefronts"]
    rows.append({"metric": SHARED_WAVEFRONTS, "value": wavefronts * factor, "unit": "", **common})
    lines: dict[tuple[str, int], dict[str, int]] = {}
    for location, counts in counters.by_line():
        if not location:
            continue
        place = (location[0].file.removeprefix(f"{NEUTRAL_FOLDER}/"), location[0].line)
        into = lines.setdefault(place, {})
        for name, count in counts.items():
            into[name] = into.get(name, 0) + count
    for (file, line), counts in lines.items():
        rows += [
            _row(name, count * factor, file=file, line=line, **common)
            for name, count in counts.items()
            if count
        ]
    counted = metrics_table.build(
        rows, source="simulated", tool=tool, gpu=gpu.id, stage=stage, problem=problem
    )
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
    by_formula = occupancy_metrics(
        gpu,
        launch.entry,
        blocks,
        threads,
        None if resources is None else resources.registers,
        launch.shared_bytes,
        shared_static if resources is None else resources.shared_bytes,
        stage,
        problem,
    )
    return metrics_table.concat([counted, by_formula])


def _row(name: str, count: float, **fields: object) -> dict[str, object]:
    metric = NCU_METRICS[name]
    return {"metric": metric, "value": float(count), "unit": unit_of(metric) or "", **fields}
