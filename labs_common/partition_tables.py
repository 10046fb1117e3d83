"""Stage 05's partitions as tables: what `study_partitions` measured on a GPU, and what the plan says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from labs_common import metric_names as names
from labs_common.design_figures import partial_bytes
from labs_common.gpus import GPUS, Gpu
from labs_common.occupancy import occupancy
from labs_common.open_kernels import resources
from labs_common.plans import Device
from labs_common.problem import LAYOUTS, Problem
from labs_common.recorded import RECORDED
from labs_common.stages import find_stage

STUDY = "partitions"  # the folder of a GPU's set
LAYOUT_COUNTS = {
    names.INSTRUCTIONS: "warp instructions",
    names.GLOBAL_LOAD_REQUESTS: "global load requests",
    names.GLOBAL_LOAD_SECTORS: "sectors they touch",
    "smsp__inst_executed_op_shared_st.sum": "shared memory stores",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": "bank conflicts",
    names.DRAM_READ_BYTES: "DRAM bytes read",
}
_BATCH_CONTEXT = re.compile(r"batch (\d+),.* context (\d+)")
_PARTITION = re.compile(r"partition (\d+)$")


def recorded_study(name: str, folder: Path = RECORDED) -> pd.DataFrame:
    """One table of the study, of every GPU that has it, in the order in which it was measured.

    Args:
        name: ``fp16``, ``fp32``, ``layouts``, ``floor`` or ``sweep``, as `study_partitions` calls them.
        folder: of the recorded sets.

    Returns:
        The columns as measured (times in microseconds), and ``gpu``; ``batch`` and ``context`` from the
        problem; ``partition_tokens``, NaN where a row is of something else; and where the table has a read
        ceiling ``read_us``, the time of a plain read of the problem's minimum bytes in the same run.

    Raises:
        FileNotFoundError: no GPU has such a table; the message lists those there are.
    """
    paths = sorted(folder.glob(f"*/{STUDY}/{name}.csv"))
    if not paths:
        there = sorted({path.stem for path in folder.glob(f"*/{STUDY}/*.csv")})
        raise FileNotFoundError(f"no table {name!r} is recorded; there are {', '.join(there) or 'none'}")
    table = pd.concat(
        (pd.read_csv(path).assign(gpu=path.parent.parent.name) for path in paths), ignore_index=True
    )
    shape = table["problem"].str.extract(_BATCH_CONTEXT)
    table["batch"], table["context"] = shape[0].astype(int), shape[1].astype(int)
    table["partition_tokens"] = table["what"].str.extract(_PARTITION)[0].astype(float)
    if "% of read ceiling" in table:
        table["read_us"] = table["median_us"] * table["% of read ceiling"] / 100
    return table


def recorded_layouts(gpu: str = "h200", folder: Path = RECORDED) -> pd.DataFrame:
    """What Nsight Compute counted of stage 05's first kernel in each layout, on one problem of the study.

    Args:
        gpu: whose set.
        folder: of the recorded sets.

    Returns:
        A row per count, labelled; a column per layout, in the order of ``LAYOUTS``.

    Raises:
        FileNotFoundError: the GPU has no such table.
    """
    table = pd.read_csv(folder / gpu / STUDY / "sectors.csv")
    first = table[table["kernel"] == find_stage("05").entry]
    wide = first.pivot(index="metric", columns="layout", values="value")
    return wide.loc[list(LAYOUT_COUNTS), list(LAYOUTS)].rename(index=LAYOUT_COUNTS).rename_axis(None)


def planned_partitions(problem: Problem, sizes: Sequence[int], gpu: Gpu = GPUS["h200"]) -> pd.DataFrame:
    """What stage 05 launches for each partition size, without running it.

    Args:
        problem: that stage 05 takes.
        sizes: partition sizes in tokens.
        gpu: whose SMs the blocks are to fill.

    Returns:
        A row per size: ``blocks`` of the first launch that have tokens, ``blocks_per_sm`` that fit, ``waves``
        (blocks over what the whole GPU holds at a time), ``partial_bytes`` that are written and read again,
        and those as ``% of keys and values``.

    Raises:
        ValueError: stage 05 does not take the problem or a size, or the GPU's number of SMs is not known.
    """
    if gpu.sms is None:
        raise ValueError(f"gpu={gpu.id}: its number of SMs is not known")
    stage = find_stage("05")
    version = tuple(int(part) for part in gpu.capability.version.split("."))
    device = Device(gpu.name, version)
    rows = {}
    for size in sizes:
        plan = stage.plan(problem, device, partition_tokens=size)
        launch = plan.launches[0]
        compiled = resources(stage, plan.defines, device.arch)
        fits = occupancy(
            gpu.capability,
            launch.block[0],
            compiled.registers,
            launch.shared_bytes,
            compiled.shared_bytes,
        )
        partitions = sum(-(-length // size) for length in problem.context_lengths)
        moved = 2 * partitions * problem.query_heads * partial_bytes(problem.head_dim)
        rows[size] = {
            "blocks": partitions * problem.kv_heads,
            "blocks_per_sm": fits.blocks,
            "waves": fits.waves(partitions * problem.kv_heads, gpu.sms),
            "partial_bytes": moved,
            "% of keys and values": 100 * moved / problem.kv_bytes,
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("partition_tokens")
