"""Stage 05 measured from every side on a GPU: ``python -m labs_common.study_partitions DIR [TABLE…]``.

Every table is one interleaved run with its own read ceiling; what fails is printed with its reason, and the
rest goes on.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from labs_common.baselines import floor_call
from labs_common.compare import compare
from labs_common.engines import Engine, GpuEngine
from labs_common.gpus import gpu_id
from labs_common.inputs import Inputs, make_inputs
from labs_common.metrics import select
from labs_common.ncu import read_profile
from labs_common.open_kernels import STUDIED_SIZES
from labs_common.plans import Plan
from labs_common.problem import LAYOUTS, PRESETS, Problem
from labs_common.profile import EXTRA_METRICS, capture
from labs_common.provenance import gpu_provenance, kernel_hash, write_provenance
from labs_common.reference import reference
from labs_common.stages import Stage, find_stage
from labs_common.timing import ceiling_calls, ceiling_of, figures, refill_l2, time_gpu
from labs_common.variants import VARIANTS

SETS = 2  # of inputs that calls rotate through; together they pass the L2 cache where it matters
Contender = tuple[str, Stage, Plan]


class Bench:
    """Inputs of one problem on the GPU, and the calls that are timed on them."""

    def __init__(self, engine: Engine, problem: Problem, sets: int = SETS):
        self.engine, self.problem = engine, problem
        self.inputs: list[Inputs] = [make_inputs(problem, seed) for seed in range(sets)]
        self.arrays = [engine.upload(one) for one in self.inputs]
        self.expected = reference(problem, self.inputs[0])

    def calls(self, contenders: Iterable[Contender]) -> dict[str, list[Any]]:
        """Each contender bound to every set of inputs; one that cannot be is told and left out."""
        bound = {}
        for label, stage, plan in contenders:
            try:
                bound[label] = [
                    self.engine.prepare(stage, self.problem, one, plan=plan, arrays=arrays)
                    for one, arrays in zip(self.inputs, self.arrays, strict=True)
                ]
            except Exception as error:  # one contender's failure must not cost the others their measurement
                print(f"{label}: {type(error).__name__}: {str(error)[:400]}")
        return bound

    def table(
        self,
        calls: dict[str, Sequence[Callable[[], None]]],
        outputs: dict[str, Callable[[], Any]] | None = None,
    ) -> pd.DataFrame:
        """Time calls against each other and a plain read of the same size; check what they wrote."""
        nbytes = self.problem.kv_bytes // 16 * 16
        everything = {**calls, **ceiling_calls(self.engine, nbytes)}
        timings = time_gpu(self.engine.xp, everything, between=refill_l2(self.engine))
        ceiling = ceiling_of(timings, nbytes)
        rows = []
        for label, bound in calls.items():
            written = (outputs or {}).get(label, lambda first=bound[0]: getattr(first, "output", None))()
            verdict = "" if written is None else compare(self.engine.xp.asnumpy(written), self.expected)
            rows.append(
                {
                    "problem": str(self.problem),
                    "what": label,
                    **figures(timings[label], self.problem, ceiling),
                    "right": getattr(verdict, "ok", verdict),
                    "diagnosis": getattr(verdict, "diagnosis", ""),
                }
            )
        return pd.DataFrame(rows)


def fp16(engine: Engine) -> pd.DataFrame:
    """The document's problem: partition sizes, variants, Triton, and the kernel without its merge."""
    bench = Bench(engine, PRESETS["long"])
    stage, problem = find_stage("05"), PRESETS["long"]
    contenders = [
        (f"partition {n}", stage, stage.plan(problem, engine.device, partition_tokens=n))
        for n in STUDIED_SIZES
    ]
    contenders += [(v.id, v, v.plan(problem, engine.device)) for v in VARIANTS]
    calls = bench.calls(contenders)
    whole = stage.plan(problem, engine.device)
    if "partition 512" in calls:
        calls["partition 512, no merge"] = [
            _first_launch(call, whole) for call in bench.calls([("", stage, whole)])[""]
        ]
    outputs = {}
    for warps in (4, 8):
        label = f"Triton, {warps} warps"
        try:
            from labs_common.triton_stage import prepare_triton

            bound = [
                prepare_triton(engine.xp, problem, arrays, one.scale, num_warps=warps)
                for one, arrays in zip(bench.inputs, bench.arrays, strict=True)
            ]
            for call, _ in bound:
                _on_torchs_stream(engine.xp, call)()
            calls[label] = [_on_torchs_stream(engine.xp, call) for call, _ in bound]
            outputs[label] = lambda first=bound[0][1]: first
        except Exception as error:  # Triton or torch may be missing
            print(f"{label}: {type(error).__name__}: {str(error)[:400]}")
    return bench.table(calls, outputs)


def fp32(engine: Engine) -> pd.DataFrame:
    """The same in fp32, against stage 04 at several split counts."""
    problem = PRESETS["long"].replace(dtype="float32")
    five, four = find_stage("05"), find_stage("04")
    contenders = [
        (f"05, partition {n}", five, five.plan(problem, engine.device, partition_tokens=n))
        for n in (256, 512, 1024)
    ]
    contenders += [
        (f"04, {n} splits", four, four.plan(problem, engine.device, splits=n))
        for n in (32, 64, 128, 256, 391)
    ]
    bench = Bench(engine, problem)
    return bench.table(bench.calls(contenders))


def layouts(engine: Engine) -> pd.DataFrame:
    """The document's problem in every layout; each layout is a run of its own."""
    tables = []
    for layout in LAYOUTS:
        problem = PRESETS["long"].replace(layout=layout)
        bench, stage = Bench(engine, problem), find_stage("05")
        tables.append(bench.table(bench.calls([(layout, stage, stage.plan(problem, engine.device))])))
    return pd.concat(tables)


def sectors(engine: Engine) -> pd.DataFrame:
    """What Nsight Compute counts of stage 05 in every layout, on a ragged problem in half precision."""
    rows = []
    for layout in LAYOUTS:
        problem = PRESETS["ragged"].replace(layout=layout, dtype="float16")
        with tempfile.TemporaryDirectory() as scratch:
            report = Path(scratch) / "layout.ncu-rep"
            capture(find_stage("05"), problem, report, full=False)
            frame = read_profile(report, source="measured", gpu=gpu_id(engine.device.name), lines=False)
        chosen = select(frame, metric=[name for name in EXTRA_METRICS if name.endswith(".sum")])
        rows.append(chosen[["kernel", "metric", "value", "unit"]].assign(problem=str(problem), layout=layout))
    return pd.concat(rows)


def floor(engine: Engine) -> pd.DataFrame:
    """The document's floor in CuPy and torch, eager, against stage 05 eager."""
    problem, stage = PRESETS["long"], find_stage("05")
    bench = Bench(engine, problem, sets=1)
    xp = engine.xp
    arrays, scale = bench.arrays[0], bench.inputs[0].scale
    eager = {"05": bench.calls([("05", stage, stage.plan(problem, engine.device))])["05"][0]}
    for repeat in (False, True):
        how = "repeated" if repeat else "broadcast"
        eager[f"CuPy, {how}"] = floor_call(xp, problem, arrays, scale, repeat)
        try:
            import torch

            tensors = {name: torch.as_tensor(array, device="cuda") for name, array in arrays.items()}
            eager[f"torch, {how}"] = floor_call(torch, problem, tensors, scale, repeat)
        except ImportError as error:
            print(f"torch, {how}: {error}")
    rows = []
    for label, call in eager.items():
        try:
            rows.append({"problem": str(problem), "what": label, "eager_us": 1e6 * _eager_seconds(xp, call)})
        except Exception as error:  # the repeated floor may run out of memory
            print(f"{label}: {type(error).__name__}: {str(error)[:400]}")
    return pd.DataFrame(rows)


def sweep(engine: Engine) -> pd.DataFrame:
    """When splitting pays: batch and context against the partition size, down to no split at all."""
    tables = []
    for batch, context in ((1, 1024), (1, 8192), (1, 32768), (8, 4096), (32, 2048), (64, 4096)):
        problem = PRESETS["long"].replace(context_lengths=(context,) * batch, name=f"{batch} x {context}")
        stage = find_stage("05")
        sizes = sorted({64, 256, 512, 2048, max(32, -(-context // 32) * 32)})
        contenders = [
            (f"partition {n}", stage, stage.plan(problem, engine.device, partition_tokens=n))
            for n in sizes
            if n <= max(context, 64)
        ]
        bench = Bench(engine, problem)
        tables.append(bench.table(bench.calls(contenders)))
    return pd.concat(tables)


def _first_launch(call: Any, plan: Plan) -> Callable[[], None]:
    launch = plan.launches[0]
    kernel = call.kernels[launch.entry]
    return lambda: kernel(launch.grid, launch.block, call.arguments, shared_mem=launch.shared_bytes)


def _on_torchs_stream(xp: Any, call: Callable[[], None]) -> Callable[[], None]:
    """Triton launches on torch's current stream: make that CuPy's."""
    import torch

    def run() -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(xp.cuda.get_current_stream().ptr)):
            call()

    return run


def _eager_seconds(xp: Any, call: Callable[[], Any], rounds: int = 11) -> float:
    """Median time from an idle GPU to an idle GPU, host work included."""
    seconds = []
    for _ in range(rounds + 2):
        xp.cuda.Device().synchronize()
        start, end = xp.cuda.Event(), xp.cuda.Event()
        start.record()
        call()
        xp.cuda.Device().synchronize()
        end.record()
        end.synchronize()
        seconds.append(xp.cuda.get_elapsed_time(start, end) / 1e3)
    return float(np.median(seconds[2:]))


STUDIES = (fp16, fp32, layouts, sectors, floor, sweep)


def main(folder: str, names: Sequence[str] = ()) -> None:
    """Run every table, or those named, print it, and write it to ``FOLDER/NAME.csv``."""
    engine = GpuEngine()
    Path(folder).mkdir(parents=True, exist_ok=True)
    pd.set_option("display.width", 250, "display.max_columns", None, "display.max_rows", None)
    for study in STUDIES:
        if names and study.__name__ not in names:
            continue
        try:
            table = study(engine)
        except Exception:  # one table's failure must not cost the others
            traceback.print_exc()
            continue
        shown = table.drop(columns="problem").to_string(index=False)
        print(f"\n{study.__name__}, {engine.device.name}\n{shown}", flush=True)
        table.to_csv(Path(folder) / f"{study.__name__}.csv", index=False)
        engine.xp.get_default_memory_pool().free_all_blocks()
    capability = ".".join(map(str, engine.device.compute_capability))
    stage = find_stage("05_partitioned_gqa")
    hashes = {stage.id: {"long": kernel_hash(stage, PRESETS["long"], capability)}}
    provenance = gpu_provenance("python -m labs_common.study_partitions")
    write_provenance(Path(folder), {**provenance, "kernels_ptx_sha256": hashes})


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "out/partitions", sys.argv[2:])
