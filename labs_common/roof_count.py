"""Count what the machine code of stage 09 takes: ``python -m labs_common.roof_count FILE`` (GPU and ncu).

Every kernel that ``roof_code`` knows of attends to one sequence of two lengths under Nsight Compute. What the
longer one takes more, divided by its tokens more, is what a token takes: beginnings and ends cancel out.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from labs_common import metric_names as names
from labs_common.device_inputs import device_inputs
from labs_common.ncu import read_profile
from labs_common.plans import Plan
from labs_common.problem import FP8, Problem
from labs_common.roof_bench import UncheckedGpu
from labs_common.roof_code import KINDS, key
from labs_common.stages import ROOF

LENGTHS = (2048, 6144)
KV_HEADS = 2
COLUMNS = ["kind", "head_dim", "heads", "page_size", "ring_slots", "instructions", "registers"]


def problems() -> Iterator[tuple[Problem, int, int]]:
    """One for each kernel, with its query heads of a set and its slots, of the first of `LENGTHS`."""
    for code, dtype in zip(KINDS, ("float32", "float16", FP8), strict=True):
        for head_dim in (64, 96, 128, 192, 256):
            for heads in range(1, 9) if code == "float32" else (4,):
                for page_size in (16,) if code == "float32" else (8, 16):
                    for slots in (2, 3, 4):
                        lengths = (LENGTHS[0],)
                        yield (
                            Problem(heads * KV_HEADS, KV_HEADS, head_dim, page_size, lengths, dtype),
                            heads,
                            slots,
                        )


def planned(engine: UncheckedGpu) -> list[tuple[Problem, int, int, Plan]]:
    """The kernels that fit, each with the plans of both lengths."""
    found = []
    for problem, heads, slots in problems():
        for length in LENGTHS:
            longer = problem.replace(context_lengths=(length,))
            try:
                plan = ROOF[-1].plan(
                    longer, engine.device, block_heads=1, ring_slots=slots, evict_first=True, whole=True
                )
            except ValueError:
                break  # a ring that no block can have
            found.append((longer, heads, slots, plan))
    return found


def launch() -> None:
    """Each kernel once for each length, in the order of `planned`: what runs under Nsight Compute."""
    engine = UncheckedGpu()
    those = planned(engine)
    engine.build(("", ROOF[-1], plan) for *_, plan in those)
    for problem, _, _, plan in those:
        inputs = device_inputs(engine.xp, problem, 1)
        engine.bind(ROOF[-1], problem, plan, inputs.sets[0], inputs.scale)()
        engine.xp.cuda.Device().synchronize()


def counted(
    those: list[tuple[Problem, int, int, Plan]], instructions: list[float], registers: list[float]
) -> pd.DataFrame:
    """The table of ``roof_code``.

    Args:
        those: as `planned`.
        instructions: of warps, in each launch.
        registers: of a thread.
    """
    rows = []
    for number in range(0, len(those), 2):
        problem, heads, slots, _ = those[number]
        more = (instructions[number + 1] - instructions[number]) / (LENGTHS[1] - LENGTHS[0]) / KV_HEADS
        rows.append((*key(problem, heads, slots), round(more, 3), int(registers[number])))
    return pd.DataFrame(rows, columns=COLUMNS)


def main(arguments: list[str]) -> int:
    """Write the table."""
    if arguments == ["--launch"]:
        launch()
        return 0
    (file,) = arguments
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "counted.csv"
        command = ["ncu", "--csv", "--page", "raw", "--metrics", f"{names.INSTRUCTIONS},{names.REGISTERS}"]
        command += ["-k", f"regex:^{ROOF[-1].entry}$", "--log-file", str(log)]
        subprocess.run([*command, sys.executable, "-m", "labs_common.roof_count", "--launch"], check=True)
        metrics = read_profile(log)
    values = [
        metrics[metrics["metric"] == name].sort_values("launch")["value"].tolist()
        for name in (names.INSTRUCTIONS, names.REGISTERS)
    ]
    counted(planned(UncheckedGpu()), *values).to_csv(file, index=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
