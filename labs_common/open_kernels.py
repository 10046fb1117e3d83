"""Kernels that still have to be written: which those are, and what came with the edition in their place.

In the student edition the lab's kernels have no body. What a notebook shows of them, counts and registers,
comes with the edition as tables in ``data/counted``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from labs_common import metrics as metrics_table
from labs_common.compiler import Resources, compile_resources
from labs_common.engines import Engine
from labs_common.exercise import OWN_KERNELS
from labs_common.inputs import make_inputs
from labs_common.metrics import Metrics
from labs_common.plans import Device
from labs_common.predictions import COUNTED, count_stages
from labs_common.problem import FP8, LAYOUTS, PRESETS, Problem
from labs_common.source import BEGIN, Source, regions
from labs_common.stages import ALL_STAGES, STAGES, Stage, find_stage
from labs_common.variants import VARIANTS

CUB = "05_partitioned_gqa_cub"  # the variant that a notebook counts
_RESOURCES = "resources.json"
STUDIED_SIZES = (256, 512, 768, 1024, 1536, 2048)  # partitions in tokens, of the recorded study
_COUNTED_PRESETS = ("tiny", "ragged")
_COUNTED_HALF = "ragged-float16"
GROWING = (256, 512)  # tokens: within one partition of stages 05 to 07
_SHORTENED = PRESETS["long"].replace(context_lengths=(1_300,), name="long, shortened")
_SHORT = PRESETS["long"].replace(context_lengths=(600,), name="600 tokens")


def growing(tokens: int, dtype: str) -> Problem:
    """A context that two counts of it tell what one more token costs."""
    return Problem(32, 8, 128, 16, (tokens,), dtype, name=f"{tokens} tokens, {dtype}")


_GROWING = {
    f"{tokens}_tokens_{dtype}": growing(tokens, dtype)
    for tokens in GROWING
    for dtype in ("float32", "float16", FP8)
}
_ROOFS_OWN = (_COUNTED_HALF, *_GROWING)  # that only notebooks from 06 on count

# The problems that notebooks count kernels on, by the name of their table.
COUNTED_PROBLEMS: dict[str, Problem] = {
    **{name: PRESETS[name] for name in _COUNTED_PRESETS},
    _COUNTED_HALF: PRESETS["ragged"].replace(dtype="float16", name=_COUNTED_HALF),
    "shortened_fp32": _SHORTENED.replace(dtype="float32", name="long, shortened, fp32"),
    **_GROWING,
    **{f"600_tokens_{layout}": _SHORT.replace(layout=layout) for layout in LAYOUTS},
}


def is_open(source: Source) -> bool:
    """Whether nothing is written yet in any of a kernel's solution regions."""
    if BEGIN not in source.text:
        return False
    lines = source.text.splitlines()
    inside = [line.strip() for begin, end in regions(source) for line in lines[begin + 1 : end]]
    return all(not line or line.startswith("//") or line == "return {};" for line in inside)


def kernel_of(stage: Stage, folder: Path = OWN_KERNELS) -> Source:
    """The kernel that a notebook runs: the lab's, or yours where that has no body.

    Args:
        stage: whose kernel.
        folder: where your kernels are.
    """
    lab, path = stage.source(), folder / stage.path.name
    return Source.read(path) if is_open(lab) and path.exists() else lab


def stand_in(stage: Stage, source: Source) -> str | None:
    """What to tell a person where a stage's kernel is not the lab's own; None where it is.

    Args:
        stage: whose kernel was asked for.
        source: what runs in its place, of ``kernel_of``.
    """
    lab = stage.source()
    if is_open(source):
        started = source.shown != lab.shown
        todo = "fill in its TODOs" if started else f"palab start {stage.id[:2]} writes one to fill in"
        return f"{source.shown or source.name} has no body yet: {todo}"
    if is_open(lab):
        return f"{source.shown or source.name}: yours, as this edition's has no body"
    return None


def counted(stages: Sequence[str], problem: Problem) -> Metrics | None:
    """The edition's counts of the lab's own kernels; None where no table came with it."""
    for name, known in COUNTED_PROBLEMS.items():
        path = COUNTED / f"{name}.csv"
        if problem == known and path.exists():
            return metrics_table.select(metrics_table.load_csv(path), stage=list(stages))
    return None


def resources(stage: Stage, defines: Mapping[str, object], arch: str) -> Resources:
    """What the stage's first kernel takes; of a kernel without body, what came with the edition.

    Raises:
        CompilerMissing: there is no compiler on this machine, and no table.
    """
    table = COUNTED / _RESOURCES
    if is_open(stage.source()) and table.exists():
        known = json.loads(table.read_text(encoding="utf-8"))
        if (key := _key(stage, defines, arch)) in known:
            return Resources(**known[key])
    return compile_resources(stage.source(), defines, arch)[stage.entry]


def write_tables(folder: Path, engine: Engine, stages: Sequence[Stage] = ALL_STAGES) -> None:
    """Write what takes the place of kernels without body: counts of each problem, and resources of stage 05.

    Args:
        folder: for the tables.
        engine: that counts.
        stages: that the edition has.
    """
    folder.mkdir(parents=True)
    ids = [stage.id for stage in stages]
    cub = next(variant for variant in VARIANTS if variant.id == CUB)
    for name, problem in COUNTED_PROBLEMS.items():
        if name in _ROOFS_OWN and len(ids) <= len(STAGES):
            continue
        counts = [count_stages(ids[5:8] if problem in _GROWING.values() else ids, problem, engine)]
        if problem == _SHORT:
            counts.append(engine.run(cub, problem, make_inputs(problem)).metrics)
        # Of whole kernels only: lines would show how the code is laid out.
        whole = metrics_table.select(metrics_table.concat(counts), line=None)
        metrics_table.save_csv(whole, folder / f"{name}.csv")
    stage, device, long = find_stage("05"), Device(), PRESETS["long"]
    plans = [stage.plan(long, device, partition_tokens=size).defines for size in STUDIED_SIZES]
    known = {
        _key(stage, defines, device.arch): vars(
            compile_resources(stage.source(), defines, device.arch)[stage.entry]
        )
        for defines in plans
    }
    (folder / _RESOURCES).write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _key(stage: Stage, defines: Mapping[str, object], arch: str) -> str:
    settings = ", ".join(f"{name}={defines[name]}" for name in sorted(defines))
    return f"{stage.entry} {arch}: {settings}"
