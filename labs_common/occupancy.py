"""Theoretical occupancy, its limiter, and waves: what a kernel's registers, shared memory and block allow.

The rules are those of NVIDIA's `cuda_occupancy.h`: registers are given to whole warps in units, per
scheduler; shared memory to blocks in units, with the driver's part; warps and blocks have a limit of their
own. Barriers and clusters are left out, as no kernel here is limited by them.
"""

from __future__ import annotations

from dataclasses import dataclass

from labs_common import metric_names as names
from labs_common.gpus import WARP_SIZE, Capability, Gpu, find_gpu, gpu_id
from labs_common.metrics import Metrics, MetricsError, build, value

UNLIMITED = 2**31 - 1


@dataclass(frozen=True)
class Occupancy:
    """What fits on one SM.

    Attributes:
        blocks: resident blocks; 0 where the block cannot be launched.
        warps: resident warps.
        max_warps: that the SM can hold.
        limits: blocks that each resource alone would allow: registers, shared memory, warps, blocks.
        limiters: the resources that allow the fewest.
        shared_config: bytes of shared memory that the SM must be configured to for these blocks.
    """

    blocks: int
    warps: int
    max_warps: int
    limits: dict[str, int]
    limiters: tuple[str, ...]
    shared_config: int

    @property
    def percent(self) -> float:
        """Theoretical occupancy in percent of the SM's warps."""
        return 100 * self.warps / self.max_warps

    def waves(self, grid_blocks: int, sms: int) -> float:
        """How often the GPU is filled by the grid; a fraction where the last time it is not filled.

        Raises:
            ValueError: no block fits, or a count that is not positive.
        """
        if self.blocks == 0:
            raise ValueError(f"no block fits on an SM, limited by {' and '.join(self.limiters)}: no waves")
        if grid_blocks < 1 or sms < 1:
            raise ValueError(f"grid_blocks={grid_blocks}, sms={sms}: both must be at least 1")
        return grid_blocks / (self.blocks * sms)


def occupancy(
    capability: Capability,
    block_threads: int,
    registers: int,
    shared_dynamic: int = 0,
    shared_static: int = 0,
    shared_config: int | None = None,
) -> Occupancy:
    """Theoretical occupancy of a kernel on an SM.

    Args:
        capability: from `gpus.capability` or a GPU.
        block_threads: threads of a block.
        registers: per thread, as ptxas or the driver gives them.
        shared_dynamic, shared_static: bytes per block, without the driver's part.
        shared_config: bytes that the SM is configured to, one of `capability.shared_sizes`; by default the
            most.

    Raises:
        ValueError: an argument that no kernel can have on this capability.
    """
    c = capability
    _within("block_threads", block_threads, 1, c.threads_per_block)
    _within("registers", registers, 0, c.registers_per_thread)
    _within("shared_dynamic", shared_dynamic, 0, UNLIMITED)
    _within("shared_static", shared_static, 0, UNLIMITED)
    if shared_config is not None and shared_config not in c.shared_sizes:
        raise ValueError(
            f"shared_config={shared_config} is no configuration of {c.version}: {c.shared_sizes}"
        )

    warps = -(-block_threads // WARP_SIZE)
    shared = _round_up(shared_dynamic + shared_static + c.shared_driver, c.shared_unit)
    limits = {
        "registers": _register_limit(c, warps, registers),
        "shared memory": _shared_limit(c, shared, shared_config),
        "warps": c.warps // warps,
        "blocks": c.blocks,
    }
    blocks = min(limits.values())
    fitting = [size for size in c.shared_sizes if size >= blocks * shared]
    return Occupancy(
        blocks=blocks,
        warps=blocks * warps,
        max_warps=c.warps,
        limits=limits,
        limiters=tuple(name for name, limit in limits.items() if limit == blocks),
        shared_config=next(size for size in fitting if size >= (shared_config or 0)),
    )


def _within(name: str, given: int, low: int, high: int) -> None:
    if not low <= given <= high:
        raise ValueError(f"{name}={given} is not allowed: {low} to {high}")


def _round_up(amount: int, unit: int) -> int:
    return -(-amount // unit) * unit


def _register_limit(c: Capability, warps: int, registers: int) -> int:
    """Blocks that the register file holds; the check of one block assumes evenly filled schedulers."""
    per_warp = _round_up(registers * WARP_SIZE, c.register_unit)
    if per_warp == 0:
        return UNLIMITED
    if per_warp * _round_up(warps, c.partitions) > c.registers:
        return 0
    return c.registers // c.partitions // per_warp * c.partitions // warps


def _shared_limit(c: Capability, shared: int, config: int | None) -> int:
    """Blocks whose shared memory fits; none where one block exceeds its own limit.

    A configuration too small for one block gives way to the smallest that holds one.
    """
    if shared > c.shared_per_block + c.shared_driver:
        return 0
    if shared == 0:
        return UNLIMITED
    if config is None:
        config = c.shared_sizes[-1]
    if config < shared:
        config = next(size for size in c.shared_sizes if size >= shared)
    return config // shared


NO_REGISTERS = "not measured: registers are known to ptxas alone, which came with no front end here"
_FROM_REGISTERS = {
    names.REGISTERS,
    names.THEORETICAL_OCCUPANCY,
    names.WAVES,
    "sm__maximum_warps_avg_per_active_cycle",
    "launch__occupancy_limit_registers",
}


def occupancy_metrics(
    gpu: Gpu,
    kernel: str,
    grid_blocks: int,
    block_threads: int,
    registers: int | None,
    shared_dynamic: int = 0,
    shared_static: int = 0,
    stage: str = "",
    problem: str = "",
) -> Metrics:
    """Launch figures of a kernel by formula, by Nsight Compute's names: source "simulated", tool "formula".

    Where the registers are not known (None), neither are occupancy and waves.

    Raises:
        ValueError: as `occupancy`.
    """
    found = occupancy(gpu.capability, block_threads, registers or 0, shared_dynamic, shared_static)
    rows: list[dict[str, object]] = [
        {"metric": "launch__block_size", "value": block_threads, "unit": ""},
        {"metric": "launch__grid_size", "value": grid_blocks, "unit": ""},
        {"metric": names.REGISTERS, "value": registers, "unit": "register/thread"},
        {"metric": "launch__shared_mem_per_block_dynamic", "value": shared_dynamic, "unit": "byte/block"},
        {"metric": "launch__shared_mem_per_block_static", "value": shared_static, "unit": "byte/block"},
        {
            "metric": "launch__shared_mem_per_block_driver",
            "value": gpu.capability.shared_driver,
            "unit": "byte/block",
        },
        {"metric": names.THEORETICAL_OCCUPANCY, "value": found.percent, "unit": "%"},
        {"metric": "sm__maximum_warps_avg_per_active_cycle", "value": found.warps, "unit": "warp"},
    ]
    for resource, limit in found.limits.items():
        row: dict[str, object] = {
            "metric": f"launch__occupancy_limit_{resource.replace('shared memory', 'shared_mem')}",
            "unit": "block",
        }
        absent = {"value": float("nan"), "reason": "not limited: the kernel takes none"}
        rows.append(row | (absent if limit == UNLIMITED else {"value": limit}))
    waves: dict[str, object] = {"metric": names.WAVES, "unit": ""}
    if gpu.sms is None:
        rows.append(
            waves | {"value": float("nan"), "reason": f"the number of SMs of {gpu.name} is not known"}
        )
    elif found.blocks == 0:
        reason = f"no block fits on an SM, limited by {' and '.join(found.limiters)}"
        rows.append(waves | {"value": float("nan"), "reason": reason})
    else:
        rows.append(waves | {"value": found.waves(grid_blocks, gpu.sms)})
    if registers is None:
        for row in rows:
            if row["metric"] in _FROM_REGISTERS:
                row |= {"value": float("nan"), "reason": NO_REGISTERS}
    common = {"stage": stage, "kernel": kernel, "problem": problem, "gpu": gpu_id(gpu.id)}
    return build(rows, source="simulated", tool="formula", **common)


LAUNCH_METRICS = {
    "grid_blocks": "launch__grid_size",
    "block_threads": "launch__block_size",
    "registers": names.REGISTERS,
    "shared_dynamic": "launch__shared_mem_per_block_dynamic",
    "shared_static": "launch__shared_mem_per_block_static",
}


def launch_of(rows: Metrics) -> tuple[Gpu, dict[str, int]]:
    """The GPU of one kernel's rows, and its launch as arguments of `occupancy`, with the grid if known.

    Args:
        rows: one kernel on one GPU; shared memory that is not among them counts as none.

    Raises:
        MetricsError: several kernels or GPUs, an unknown GPU, or no block or registers.
    """
    cells = rows[["gpu", "stage", "kernel", "problem"]].drop_duplicates()
    if len(cells) != 1:
        raise MetricsError(f"occupancy by formula is of one kernel on one GPU, not of {len(cells)}")
    gpu_name, _, kernel, _ = cells.iloc[0]
    gpu = find_gpu(gpu_name)
    if gpu is None:
        raise MetricsError(f"GPU {gpu_name!r} is not in the table of labs_common.gpus")
    launch = {name: value(rows, metric) for name, metric in LAUNCH_METRICS.items()}
    missing = [
        LAUNCH_METRICS[name] for name in ("block_threads", "registers") if launch[name] != launch[name]
    ]
    if missing:
        raise MetricsError(f"no {', '.join(missing)} for {kernel} on {gpu_name}")
    figures = {name: int(figure) for name, figure in launch.items() if figure == figure}
    return gpu, {"shared_dynamic": 0, "shared_static": 0, **figures}


def occupancy_of(rows: Metrics) -> Metrics:
    """The launch figures by formula of a kernel that was profiled, from its own launch; to hold against it.

    Raises:
        MetricsError: as `launch_of`, or no grid.
    """
    gpu, launch = launch_of(rows)
    stage, kernel, problem = rows.iloc[0][["stage", "kernel", "problem"]]
    if "grid_blocks" not in launch:
        raise MetricsError(f"no launch__grid_size for {kernel} on {gpu.id}")
    return occupancy_metrics(gpu, kernel, stage=stage, problem=problem, **launch)
