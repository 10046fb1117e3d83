"""Occupancy curve: what another block size or more shared memory would allow, and where a kernel stands."""

from __future__ import annotations

import math

from labs_common import metric_names as names
from labs_common.chart_style import COLOURS, GREY, Chart, new_chart, number, styled
from labs_common.gpus import KIB, WARP_SIZE
from labs_common.metrics import Metrics, group_launches, one, select
from labs_common.occupancy import Occupancy, launch_of, occupancy

_LIMITERS = {
    "registers": (COLOURS[0], "o"),
    "shared memory": (COLOURS[1], "s"),
    "warps": (COLOURS[2], "^"),
    "blocks": (COLOURS[3], "D"),
}


@styled
def occupancy_curve(frame: Metrics, against: str = "block") -> Chart:
    """Theoretical occupancy by formula against block size or shared memory, one kernel's point on it.

    Args:
        frame: rows of one kernel on one GPU that `gpus` knows: block size, registers and shared memory per
            block; achieved occupancy is marked when it is there.
        against: "block" for threads per block, "shared" for bytes of shared memory per block.

    Raises:
        MetricsError: several kernels or GPUs, an unknown GPU, or a launch figure that is missing.
        ValueError: another word for `against`.
    """
    if against not in ("block", "shared"):
        raise ValueError(f"against={against!r} is not allowed: 'block' or 'shared'")
    frame = group_launches(select(frame, line=None))
    gpu, launch = launch_of(frame)
    launch.pop("grid_blocks", None)
    stage, kernel = frame.iloc[0][["stage", "kernel"]]
    here = occupancy(gpu.capability, **launch)

    c = gpu.capability
    if against == "block":
        xs = list(range(WARP_SIZE, c.threads_per_block + 1, WARP_SIZE))
        curve = [occupancy(c, **{**launch, "block_threads": x}) for x in xs]
        place, label = float(launch["block_threads"]), "threads per block"
    else:
        sizes = list(range(0, c.shared_per_block - launch["shared_static"] + 1, KIB))
        xs = [size / KIB for size in sizes]
        curve = [occupancy(c, **{**launch, "shared_dynamic": size}) for size in sizes]
        place, label = launch["shared_dynamic"] / KIB, "dynamic shared memory per block, KiB"

    chart = new_chart(3.6, f"Occupancy of {kernel or stage} on the {gpu.name.removeprefix('NVIDIA ')}")
    axes = chart.subplots()
    for limiter, (colour, marker) in _LIMITERS.items():
        points = [(x, o.percent) for x, o in zip(xs, curve, strict=True) if limiter == o.limiters[0]]
        if points:
            axes.plot(*zip(*points, strict=True), marker, color=colour, ms=4, label=f"limited by {limiter}")
    axes.plot(xs, [o.percent for o in curve], color=GREY, lw=0.6, zorder=1)
    axes.plot(
        place, here.percent, "o", ms=12, mfc="none", mec="black", mew=1.8, label="this kernel, by formula"
    )
    achieved = one(frame, names.ACHIEVED_OCCUPANCY)
    spoken = _spoken(here)
    if achieved is not None and not math.isnan(achieved["value"]):
        axes.plot(
            place, achieved["value"], "x", ms=8, color="black", mew=2, label=f"achieved, {achieved['source']}"
        )
        spoken += f"; achieved {number(achieved['value'])} %"
    axes.set_ylim(0, 110)
    axes.set_yticks(range(0, 101, 25))
    axes.set_xlabel(label)
    axes.set_ylabel("theoretical occupancy, %")
    axes.set_title(f"{launch['registers']} registers a thread, compute capability {c.version}: {spoken}")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    lowest, highest = (number(f(o.percent for o in curve)) for f in (min, max))
    chart.description = (
        f"Theoretical occupancy of {kernel or stage} on {gpu.name} against {label}: {lowest} to {highest} %. "
        f"This kernel, at {number(place)}: {spoken}."
    )
    return chart


def _spoken(here: Occupancy) -> str:
    return f"{number(here.percent)} %, limited by {' and '.join(here.limiters)}"
