"""How true the simulator is: its counts against those of recorded GPU profiles, in total and line by line.

The simulator runs the source that stands in the report, compiled by the same NVRTC for the same architecture,
on the same inputs. What differs, differs because ptxas made other machine code of the PTX; each such count is
in ``data/fidelity/differences.csv`` with its reason. Whatever is not in that table is equal, or a test fails.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from labs_common import metrics as metrics_table
from labs_common.engines import Engine
from labs_common.inputs import make_inputs
from labs_common.metric_names import DRAM_READ_BYTES, REGISTERS, unit_of
from labs_common.metrics import Metrics
from labs_common.recorded import PROBLEMS, RECORDED
from labs_common.sass import Recording, SassKernel, read_recording
from labs_common.simt.counters import NCU_METRICS
from labs_common.source import NEUTRAL_FOLDER, Source
from labs_common.stages import STAGES, Stage

FOLDER = Path(__file__).resolve().parent.parent / "data" / "fidelity"
DIFFERENCES, EXCEEDED = FOLDER / "differences.csv", FOLDER / "exceeded.csv"
SPREAD = "spread of warp instructions"
COMPARED_STAGES = STAGES[:5]
COMPARED_PROBLEMS = ("ragged", "grouped", "uniform")

# Counts that are equal in total and on every source line, but for listed differences.
EQUAL_BY_LINE = (
    "global_load_requests",
    "global_store_requests",
    "global_load_sectors",
    "global_store_sectors",
    "shared_loads",
    "shared_stores",
    "barriers",
    "shuffles",
)
# Equal over each kernel, but for listed differences. Not by line: ptxas drops the inlined frame of an
# instruction whose line number is, by chance, that of the call.
EQUAL_BY_KERNEL = ("ffma_lanes", "fmul_lanes", "fadd_lanes")
# Told beside the others, never promised: ptxas predicates short branches and merges loads.
TOLD = ("branches", "divergent_branches", "shared_load_wavefronts", "shared_store_wavefronts")
LISTED_SHARE = 0.05  # of its metric over the stage, that listed differences may come to
RATIO_SPREAD = 0.05  # of simulated over executed warp instructions, over the problems of a stage
RATIO_RANGE = (0.8, 1.25)
DRAM_TOLERANCE = 0.05
# A kernel that reads less is not held to a share: code, constants and page tables are read as well.
DRAM_SMALLEST = 1 << 20


@dataclass(frozen=True)
class Difference:
    """One count that is not equal: of a source line (the innermost), or of a whole kernel ("" and 0)."""

    stage: str
    problem: str
    kernel: str
    metric: str
    file: str
    line: int
    simulated: int
    executed: int

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file else self.kernel
        return (
            f"{self.stage} on {self.problem}, {where}: {self.metric} "
            f"{self.simulated:,} simulated, {self.executed:,} executed"
        )


KINDS = ("removed", "merged", "predicated", "duplicated", "expanded")


@dataclass(frozen=True)
class Listed:
    """A row of ``differences.csv``: a difference, what ptxas did (one of `KINDS`), and how SASS shows it."""

    difference: Difference
    kind: str
    reason: str


@dataclass(frozen=True)
class Exceeded:
    """A row of ``exceeded.csv``: a limit that a stage does not keep, and why.

    ``limit`` is ``listed share of <count>`` or ``spread of warp instructions``.
    """

    stage: str
    limit: str
    reason: str


@dataclass(frozen=True)
class KernelComparison:
    """One launch, counted by the simulator and executed by the GPU.

    Attributes:
        simulated, executed: count -> sum over the launch; executed by the report's instructions.
        simulated_lines, executed_lines: (file, line) -> count -> sum.
        counters: what the hardware counted, by Nsight Compute's names.
        registers: per thread, by ptxas here.
    """

    name: str
    simulated: dict[str, int]
    executed: dict[str, int]
    simulated_lines: dict[tuple[str, int], dict[str, int]]
    executed_lines: dict[tuple[str, int], dict[str, int]]
    counters: dict[str, float]
    registers: int


@dataclass(frozen=True)
class Comparison:
    """One stage on one problem.

    Attributes:
        metrics: both sides as Metrics, for charts.
    """

    stage: str
    problem: str
    kernels: tuple[KernelComparison, ...]
    metrics: Metrics

    def total(self, side: str, metric: str) -> int:
        """Sum over the stage's kernels; ``side`` is ``simulated`` or ``executed``."""
        return sum(getattr(kernel, side).get(metric, 0) for kernel in self.kernels)

    def ratio(self, metric: str) -> float:
        """Simulated over executed, summed over the stage's kernels; NaN where nothing was executed."""
        executed = self.total("executed", metric)
        return self.total("simulated", metric) / executed if executed else float("nan")

    def differences(self) -> list[Difference]:
        """What is not equal, in order of kernel, metric and line."""
        found = []
        for kernel in self.kernels:
            for metric in EQUAL_BY_LINE:
                for place in sorted(set(kernel.simulated_lines) | set(kernel.executed_lines)):
                    simulated = kernel.simulated_lines.get(place, {}).get(metric, 0)
                    executed = kernel.executed_lines.get(place, {}).get(metric, 0)
                    if simulated != executed:
                        key = (self.stage, self.problem, kernel.name, metric, *place)
                        found.append(Difference(*key, simulated, executed))
            for metric in EQUAL_BY_KERNEL:
                simulated, executed = kernel.simulated.get(metric, 0), kernel.executed.get(metric, 0)
                if simulated != executed:
                    key = (self.stage, self.problem, kernel.name, metric, "", 0)
                    found.append(Difference(*key, simulated, executed))
        return found


def recorded_source(stage: Stage, recording: Recording) -> Source:
    """The kernel file that a report was made from, its headers as they were then in their places.

    Raises:
        ValueError: the report lacks the kernel file.
    """
    name = stage.path.name
    if name not in recording.files:
        raise ValueError(f"the report holds {', '.join(recording.files)}, not {name}")
    lines = []
    for number, line in enumerate(recording.files[name].splitlines(), 1):
        included = line.split('"')[1] if line.startswith('#include "') else None
        if included in recording.files:
            before = f'#line 1 "{NEUTRAL_FOLDER}/{included}"\n'
            after = f'\n#line {number + 1} "{NEUTRAL_FOLDER}/{name}"'
            line = before + recording.files[included].rstrip("\n") + after
        lines.append(line)
    return Source(name, "\n".join(lines) + "\n")


def recording_of(stage: Stage, problem: str, folder: Path = RECORDED / "h200") -> Recording:
    """The report of a stage on a recorded problem."""
    return read_recording(folder / stage.id / f"{problem}.ncu-rep.xz")


def compare_recording(stage: Stage, problem: str, engine: Engine, recording: Recording) -> Comparison:
    """Simulate what was recorded, and set both sides beside each other.

    Raises:
        ValueError: the launches are not those that were recorded: record the stage again.
    """
    shape = PROBLEMS[problem]
    plan = stage.plan(shape, engine.device)
    launched = [(launch.entry, launch.grid, launch.block) for launch in plan.launches]
    recorded = [
        (
            kernel.name,
            tuple(int(kernel.figures[f"launch__grid_dim_{axis}"]) for axis in "xyz"),
            tuple(int(kernel.figures[f"launch__block_dim_{axis}"]) for axis in "xyz"),
        )
        for kernel in recording.kernels
    ]
    if launched != recorded:
        raise ValueError(f"{stage.id} on {problem}: recorded were {recorded}, the plan now has {launched}")
    source = recorded_source(stage, recording)
    simulated = engine.run(stage, shape, make_inputs(shape), source, plan, checks=False).metrics
    kernels = tuple(
        _kernel(simulated[simulated["kernel"] == kernel.name], kernel) for kernel in recording.kernels
    )
    rows = [
        {
            "kernel": kernel.name,
            "launch": number,
            "metric": metric,
            "value": value,
            "unit": unit_of(metric) or "",
        }
        for number, kernel in enumerate(kernels)
        for metric, value in kernel.counters.items()
    ]
    table = metrics_table.build(
        rows, source="recorded", tool="ncu", gpu="h200", stage=stage.id, problem=problem
    )
    return Comparison(stage.id, problem, kernels, metrics_table.concat([simulated, table]))


def _kernel(simulated: Metrics, kernel: SassKernel) -> KernelComparison:
    """One launch of both sides."""
    ours = {metric: name for name, metric in NCU_METRICS.items()}
    totals: dict[str, int] = {}
    lines: dict[tuple[str, int], dict[str, int]] = {}
    registers = 0
    for row in simulated.itertuples():
        if row.metric == REGISTERS:
            registers = int(row.value)
        name = ours.get(row.metric)
        if name is None:
            continue
        if row.file:
            lines.setdefault((row.file, int(row.line)), {})[name] = int(row.value)
        else:
            totals[name] = int(row.value)
    named = (*NCU_METRICS.values(), REGISTERS)
    counters = {metric: kernel.figures[metric] for metric in named if metric in kernel.figures}
    for name in (*EQUAL_BY_LINE, *EQUAL_BY_KERNEL):  # what ncu has no counter for, from its instructions
        counters.setdefault(NCU_METRICS[name], float(kernel.totals.get(name, 0)))
    return KernelComparison(
        kernel.name, totals, dict(kernel.totals), lines, dict(kernel.by_line), counters, registers
    )


def compare_all(engine: Engine) -> list[Comparison]:
    """Every stage and problem that the table covers."""
    return [
        compare_recording(stage, problem, engine, recording_of(stage, problem))
        for stage in COMPARED_STAGES
        for problem in COMPARED_PROBLEMS
    ]


def load_listed(path: Path = DIFFERENCES) -> list[Listed]:
    """The table of explained differences.

    Raises:
        ValueError: a row of an unknown kind, without a reason, or twice there.
    """
    found: dict[Difference, Listed] = {}
    for number, row in _rows(path):
        kind, reason = row.pop("kind"), row.pop("reason")
        if kind not in KINDS:
            raise ValueError(f"{path.name}, line {number}: kind={kind!r}; allowed are {', '.join(KINDS)}")
        numbers = {name: int(row[name]) for name in ("line", "simulated", "executed")}
        difference = Difference(**{**row, **numbers})
        if difference in found:
            raise ValueError(f"{path.name}, line {number}: {difference} stands there twice")
        found[difference] = Listed(difference, kind, reason)
    return list(found.values())


def load_exceeded(path: Path = EXCEEDED) -> list[Exceeded]:
    """The limits that some stage does not keep.

    Raises:
        ValueError: a row without a reason.
    """
    return [Exceeded(**row) for _, row in _rows(path)]


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    with path.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            if not row["reason"].strip():
                raise ValueError(f"{path.name}, line {number}: no reason is given")
            yield number, row


def unexplained(
    comparisons: Iterable[Comparison], listed: Sequence[Listed], exceeded: Sequence[Exceeded]
) -> list[str]:
    """What breaks the promise, in words; empty where every difference is listed, small, and still occurs."""
    comparisons = list(comparisons)
    found = {difference for comparison in comparisons for difference in comparison.differences()}
    known = {row.difference for row in listed}
    covered = {(comparison.stage, comparison.problem) for comparison in comparisons}
    words = [f"not listed: {difference}" for difference in sorted(found - known, key=str)]
    words += [
        f"listed, but does not occur: {difference}"
        for difference in sorted(known - found, key=str)
        if (difference.stage, difference.problem) in covered
    ]
    broken = {
        (c.stage, f"listed share of {metric}")
        for c in comparisons
        for metric in (*EQUAL_BY_LINE, *EQUAL_BY_KERNEL)
        if listed_share(c, metric, listed) > LISTED_SHARE
    }
    broken |= {
        (stage, SPREAD)
        for stage in {c.stage for c in comparisons}
        if ratio_spread(comparisons, stage) > RATIO_SPREAD
    }
    allowed = {(row.stage, row.limit) for row in exceeded}
    words += [f"{stage}: {limit} is over its limit" for stage, limit in sorted(broken - allowed)]
    words += [
        f"{stage}: {limit} keeps its limit, and is listed as if it did not"
        for stage, limit in sorted(allowed - broken)
        if stage in {c.stage for c in comparisons}
    ]
    return words


def listed_share(comparison: Comparison, metric: str, listed: Sequence[Listed]) -> float:
    """Listed differences of a count, as a share of the stage's: the larger of both sides."""
    amount = sum(
        abs(row.difference.simulated - row.difference.executed)
        for row in listed
        if (row.difference.stage, row.difference.problem, row.difference.metric)
        == (comparison.stage, comparison.problem, metric)
    )
    total = max(comparison.total("executed", metric), comparison.total("simulated", metric))
    return amount / total if total else float(amount > 0)


def ratio_spread(comparisons: Iterable[Comparison], stage: str) -> float:
    """How far simulated over executed warp instructions varies over a stage's problems: max/min - 1."""
    ratios = [c.ratio("warp_instructions") for c in comparisons if c.stage == stage]
    return max(ratios) / min(ratios) - 1


def dram_ratio(kernel: KernelComparison) -> float:
    """Distinct bytes read over what DRAM delivered; NaN where a kernel reads less than `DRAM_SMALLEST`."""
    read = kernel.counters[DRAM_READ_BYTES]
    return kernel.simulated["dram_read_bytes"] / read if read >= DRAM_SMALLEST else float("nan")
