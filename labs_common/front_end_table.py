"""``docs/front_ends.md``: what the second front end can do, and where its counts differ from NVRTC's.

``python -m labs_common.front_end_table`` writes it; a test holds it against what comes out now.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from labs_common import zig
from labs_common.engines import SimulatorEngine
from labs_common.front_ends import open_front_end
from labs_common.inputs import make_inputs
from labs_common.metrics import Metrics
from labs_common.problem import PRESETS, Problem
from labs_common.simt.counters import NCU_METRICS
from labs_common.stages import STAGES, Stage

PAGE = Path(__file__).resolve().parent.parent / "docs" / "front_ends.md"
PROBLEMS = (PRESETS["ragged"], PRESETS["ragged"].replace(dtype="float16", name="ragged, fp16"))
COUNTS = {
    "global requests": ("global_load_requests", "global_store_requests"),
    "global sectors": ("global_load_sectors", "global_store_sectors"),
    "shared accesses": ("shared_loads", "shared_stores", "async_copies"),
    "shared wavefronts": ("shared_load_wavefronts", "shared_store_wavefronts", "async_copy_wavefronts"),
    "barriers": ("barriers",),
    "shuffles": ("shuffles",),
    "FFMA lanes": ("ffma_lanes",),
    "FMUL and FADD lanes": ("fmul_lanes", "fadd_lanes"),
    "branches": ("branches",),
    "warp instructions": ("warp_instructions",),
}

_TEXT = """# Two front ends

The simulator runs PTX. NVRTC makes it where NVRTC is installed: on Linux and Windows, with a GPU or
without. There is none for macOS. There, or with `--front-end zig`, or with `PALAB_FRONT_END=zig`, the clang
in the `ziglang` wheel compiles the same `.cu` with no CUDA toolkit. Tables, charts and figures say so:
"simulator, zig".

Two compilers make two programs, so compare counts of one front end only. Grading always takes NVRTC. These
counts are of {nvrtc} and {zig}, for {arch}. An = stands where they are the same in total.

{table}

Memory accesses, barriers and shuffles of stages 00 to 04 are the same on every source line too; a test
holds them. In 05 some belong to other lines. What differs, and why:

- **FFMA, FMUL, FADD.** Both fuse a product and a sum, but not the same ones: of `a * b + c * d`, say,
  either product can go into the fma. In 01 NVRTC leaves sums alone which clang fuses.
- **Branches and warp instructions.** Loops are unrolled otherwise, addresses computed otherwise.
- **Lines.** Where clang merges or moves instructions it may say line 0: they count for the file, for no
  line.
- **Atomics** go through generic addresses, since they are inline PTX; NVRTC finds out the address space.

Registers, spills, occupancy and waves are **not measured**: only ptxas knows them, and it comes with NVRTC.

## What it knows

What NVRTC has built in and a kernel of this lab may want: coordinates, barriers, fences, shuffles, votes,
match and reduce, atomics, loads and stores with cache hints, bit tricks, fp32 and fp64 arithmetic,
conversions, vector types, `printf`, `assert`, inline PTX. Its own headers: {headers}. Flags are NVRTC's of
this lab: C++17, denormals flushed, precise division and square root, products and sums fused.

`cuda_fp16.h` has storage, conversions, arithmetic, comparisons and exchanges of `half` and `half2`, each as
the instruction that NVIDIA's header has. `cuda_bf16.h` has conversions only.

`expf` and `logf` are not libdevice's but as accurate (within 4 ulp). Other functions of libdevice are not
there, and using one is an error that names it: {missing}.

No header of the C++ library, no `mma.h` (as under NVRTC), no CUB, no `cooperative_groups`, no fp8 and fp4
types.
"""


def totals(stage: Stage, problem: Problem, front_end: str) -> dict[str, int]:
    """Counts over all kernels of a stage, by the names of `COUNTS`."""
    outcome = SimulatorEngine(front_end=front_end).run(stage, problem, make_inputs(problem), checks=False)
    return {name: _sum(outcome.metrics, counts) for name, counts in COUNTS.items()}


def rows() -> list[tuple[str, ...]]:
    """A row for each stage and problem that it takes: zig's count over NVRTC's, or the count of both."""
    found = []
    for problem in PROBLEMS:
        for stage in STAGES:
            if stage.supports(problem) is not None:
                continue
            nvrtc, ours = totals(stage, problem, "nvrtc"), totals(stage, problem, "zig")
            found.append((stage.id, problem.name, *(_cell(ours[name], nvrtc[name]) for name in COUNTS)))
    return found


def page() -> str:
    """The page of `PAGE`."""
    table = [("stage", "problem", *COUNTS), ("---",) * (2 + len(COUNTS)), *rows()]
    return _TEXT.format(
        nvrtc=open_front_end("nvrtc").label,
        zig=open_front_end("zig").label,
        arch=SimulatorEngine().device.arch,
        table="\n".join("| " + " | ".join(row) + " |" for row in table),
        headers=", ".join(f"`{path.name}`" for path in sorted(zig.HEADERS.glob("*.h"))),
        missing=", ".join(f"`{name}`" for name in zig.missing_functions()),
    )


def _sum(metrics: Metrics, counts: Sequence[str]) -> int:
    wanted = {NCU_METRICS[count] for count in counts}
    return round(metrics[metrics["metric"].isin(wanted) & metrics["line"].isna()]["value"].sum())


def _cell(ours: int, nvrtcs: int) -> str:
    if ours == nvrtcs:
        return f"= {ours:,}" if ours else "none"
    return f"{ours / nvrtcs:.3f} of {nvrtcs:,}" if nvrtcs else f"{ours:,} of none"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
