"""Make the tables of ``roof_code``: what the machine code of stage 09 takes.

``python -m labs_common.roof_count registers FILE`` compiles 6,576 kernels (20 minutes on two cores, no GPU).
``python -m labs_common.roof_count instructions FILE`` counts under Nsight Compute: each kernel attends to one
sequence of two lengths; what the longer one takes more, divided by its tokens more, is what a token takes.
Both plan with the tables that are there, whose figures they do not use.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from tqdm import tqdm

from labs_common import metric_names as names
from labs_common.compiler import compile_resources
from labs_common.device_inputs import device_inputs
from labs_common.ncu import read_profile
from labs_common.plans import Device, Plan
from labs_common.problem import FP8, Problem
from labs_common.roof_bench import UncheckedGpu
from labs_common.roof_code import HEAD_DIMS, Key, instructions_key, registers_key, sets_and_heads
from labs_common.roof_work import RING_SLOTS
from labs_common.stages import ROOF

STAGE = ROOF[-1]
LENGTHS = (2048, 6144)
KV_HEADS = 8
KEY_COLUMNS = ["kind", "head_dim", "heads", "block_heads", "page_size", "ring_slots", "layout"]


class Kernel(NamedTuple):
    """A problem, how it is attended to, and the plan for it."""

    problem: Problem
    block_heads: int
    ring_slots: int
    plan: Plan


def kernels(key: Callable[[Problem, int, int], Key]) -> list[Kernel]:
    """One for each key, of all that fit into a block."""
    found: dict[Key, Kernel] = {}
    sizes = itertools.product(
        ("float32", "float16", FP8),
        HEAD_DIMS,
        range(1, 17),  # heads of a group
        (8, 16),  # tokens of a page
        ("NHD", "HND"),
        (1, 2, 4, 8),
        RING_SLOTS,
    )
    for dtype, head_dim, group, page_size, layout, block_heads, slots in sizes:
        problem = Problem(
            group * KV_HEADS, KV_HEADS, head_dim, page_size, (LENGTHS[0],), dtype, layout, name="counted"
        )
        which = key(problem, block_heads, slots)
        if which in found:
            continue
        options = {"block_heads": block_heads, "ring_slots": slots, "evict_first": True, "whole": True}
        try:
            plan = STAGE.plan(problem, Device(), **options)
        except ValueError:
            continue  # a ring that no block can have
        found[which] = Kernel(problem, block_heads, slots, plan)
    return list(found.values())


def registers(progress: Callable[..., Iterable[int]] = tqdm) -> pd.DataFrame:
    """Of every kernel, as ptxas gives them for sm_90."""
    those = kernels(registers_key)
    with ProcessPoolExecutor() as pool:
        counts = list(progress(pool.map(_registers, those, chunksize=8), total=len(those)))
    keys = [registers_key(one.problem, one.block_heads, one.ring_slots) for one in those]
    rows = [(*which, count) for which, count in zip(keys, counts, strict=True)]
    return pd.DataFrame(rows, columns=[*KEY_COLUMNS, "sets", "registers"])


def _registers(one: Kernel) -> int:
    return compile_resources(STAGE.source(), one.plan.defines)[STAGE.entry].registers


def lengths(one: Kernel) -> tuple[Problem, Problem]:
    """The two problems that a kernel attends to."""
    short, long = (one.problem.replace(context_lengths=(length,)) for length in LENGTHS)
    return short, long


def launch() -> None:
    """Each kernel for both lengths, in the order of `kernels`: what runs under Nsight Compute."""
    engine = UncheckedGpu()
    those = kernels(instructions_key)
    engine.build(("", STAGE, one.plan) for one in those)
    for one in those:
        for problem in lengths(one):
            options = {"block_heads": one.block_heads, "ring_slots": one.ring_slots}
            plan = STAGE.plan(problem, engine.device, **options, evict_first=True, whole=True)
            inputs = device_inputs(engine.xp, problem, 1)
            engine.bind(STAGE, problem, plan, inputs.sets[0], inputs.scale)()
            engine.xp.cuda.Device().synchronize()


def instructions(counts: Sequence[float]) -> pd.DataFrame:
    """Of every kernel, of a warp, for a token of one set of heads.

    Args:
        counts: warp instructions of each launch of `launch`.
    """
    rows = []
    for one, short, long in zip(kernels(instructions_key), counts[::2], counts[1::2], strict=True):
        sets = KV_HEADS * sets_and_heads(one.problem)[0]
        which = instructions_key(one.problem, one.block_heads, one.ring_slots)
        rows.append((*which, round((long - short) / (LENGTHS[1] - LENGTHS[0]) / sets, 3)))
    return pd.DataFrame(rows, columns=[*KEY_COLUMNS, "instructions"])


def main(arguments: list[str]) -> int:
    """Write a table."""
    if arguments == ["launch"]:
        launch()
        return 0
    if len(arguments) != 2 or arguments[0] not in ("registers", "instructions"):
        raise SystemExit("usage: python -m labs_common.roof_count registers|instructions FILE")
    what, file = arguments
    if what == "registers":
        registers().to_csv(file, index=False)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "counted.csv"
        command = ["ncu", "--csv", "--page", "raw", "--clock-control", "none", "--log-file", str(log)]
        command += ["--metrics", names.INSTRUCTIONS]
        command += ["-k", f"regex:^{STAGE.entry}$", sys.executable, "-m", "labs_common.roof_count", "launch"]
        subprocess.run(command, check=True)
        metrics = read_profile(log)
    counted = metrics[metrics["metric"] == names.INSTRUCTIONS].sort_values("launch")["value"]
    instructions(counted.tolist()).to_csv(file, index=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
