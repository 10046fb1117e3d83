"""A made-up class to measure the grader with: honest, broken and hostile submissions, the same for a seed."""

from __future__ import annotations

import random
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from labs_common.grading.class_run import Summary, grade_class
from labs_common.grading.schedulers import DaskScheduler, LocalScheduler
from labs_common.grading.store import differing_marks
from labs_common.stages import Stage

HEADER = '#include "paged_attention.cuh"\n'

# Substitutions that a stage's kernel survives with the right result, and those that break it. Each is tried
# where its text occurs.
HONEST = (
    ("running_max", "peak"),
    ("accumulator", "weighted_sum"),
    ("correction", "rescale"),
    ("const int context =", "int const context ="),
    ("__expf(", "expf("),
    ("= warp_sum(", "= +warp_sum("),
)
BROKEN = (
    ("* problem.scale", ""),
    ("*= problem.scale", "*= 1.0f"),
    ("start < context", "start < context - 1"),
    ("token < context", "token < context - 1"),
    ("physical_page(problem, in, sequence,", "(int)("),
    ("query_head / group_size(problem)", "query_head % problem.kv_heads"),
    ("fmaxf(running_max, score)", "score"),
    ("running_sum = running_sum * correction + weight", "running_sum = running_sum + weight"),
    ("min(problem.page_size, context - start)", "problem.page_size"),
    ("__syncthreads();", ""),
)


def _entry(stage: Stage, body: str, before: str = "") -> str:
    signature = re.search(rf"__global__[^{{]*{stage.entry}\s*\([^)]*\)", stage.source().text)[0]
    return f'{HEADER}{before}\nextern "C" {signature} {{\n  {body}\n}}\n'


HOSTILE: tuple[Callable[[Stage], str], ...] = (
    lambda stage: _entry(stage, ""),
    lambda stage: _entry(stage, 'while (problem.batch > 0) asm volatile("" ::: "memory");'),
    lambda stage: _entry(
        stage, "const_cast<float*>(in.query)[threadIdx.x] = 0.0f; output[threadIdx.x] = 0.0f;"
    ),
    lambda stage: _entry(stage, "output[1u << 28] = 1.0f;"),
    lambda stage: '#include "/etc/passwd"\n' + _entry(stage, ""),
    lambda stage: _entry(stage, 'if (threadIdx.x == 0) printf("PASSED: 100 points\\n");'),
    lambda stage: _entry(stage, 'for (int i = 0; i < 100000; ++i) printf("%d flood of text\\n", i);'),
    lambda stage: _entry(
        stage,
        "output[0] = D(1.0f);",
        "#define A(x) x + x + x + x + x + x + x + x + x + x\n#define B(x) A(A(x))\n"
        "#define C(x) B(B(x))\n#define D(x) C(C(C(x)))",
    ),
    lambda stage: _entry(stage, "output[0] = huge[problem.batch];", "__device__ float huge[1ull << 38];"),
    lambda stage: "\0\1\2 no text at all",
)


@dataclass(frozen=True)
class Made:
    """A made-up submission: who, what kind ("honest", "broken" or "hostile"), the kernel's text."""

    student: str
    kind: str
    text: str


def make_class(count: int, stage: Stage, seed: int = 0) -> list[Made]:
    """Submissions, three fifths honest, a quarter broken, the rest hostile; no two texts are alike."""
    chance = random.Random(seed)
    made = []
    own = stage.source().text
    broken = [pair for pair in BROKEN if pair[0] in own]
    for number in range(count):
        kind = "honest" if number % 20 < 12 else "broken" if number % 20 < 17 else "hostile"
        text = own
        if kind == "hostile":
            text = HOSTILE[(number // 20 * 3 + number % 20 - 17) % len(HOSTILE)](stage)
        else:
            if kind == "broken":
                text = text.replace(*broken[(number // 20 * 5 + number % 20 - 12) % len(broken)])
            for old, new in chance.sample(HONEST, 2):
                text = re.sub(rf"\b{re.escape(old)}" if old[0].isalpha() else re.escape(old), new, text)
        text += (
            f"\n// student {number}: {chance.random()}\n__device__ const int marker_{number} = {number};\n"
        )
        made.append(Made(f"student {number:03d}", kind, text))
    return made


def write_class(made: Sequence[Made], stage: Stage, folder: Path) -> None:
    """A folder for each submission."""
    for one in made:
        path = folder / one.student / stage.path.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(one.text.encode())


@dataclass(frozen=True)
class GradingBenchmark:
    """What a measurement came to.

    Attributes:
        count: submissions.
        seconds: wall time of the first run, start and reports included.
        mistakes: submissions whose marks are not what their kind deserves.
        differing: by the name of another run ("again", "dask"), students whose marks differ from the first.
        seconds_of: by run, wall time.
    """

    count: int
    seconds: float
    mistakes: tuple[str, ...]
    differing: dict[str, tuple[str, ...]]
    seconds_of: dict[str, float]

    @property
    def seconds_each(self) -> float:
        """Wall time over submissions."""
        return self.seconds / self.count

    @property
    def ok(self) -> bool:
        """All marks as deserved, and the same in every run."""
        return not self.mistakes and not any(self.differing.values())


def benchmark_grading(
    count: int,
    stage: Stage,
    workers: int | None = None,
    dask: bool = False,
    again: bool = True,
    on_progress: Callable[[str], None] = lambda line: None,
) -> GradingBenchmark:
    """Grade a made-up class, again from its bundle, and through a local Dask cluster.

    Args:
        count: submissions.
        stage: one stage.
        workers: processes; by default one for each core.
        dask: grade it a third time on a cluster of as many workers.
        again: grade it a second time.
        on_progress: told a line now and then.
    """
    local = LocalScheduler(workers)
    made = make_class(count, stage)
    with tempfile.TemporaryDirectory(prefix="palab-bench-") as folder:
        root = Path(folder)
        write_class(made, stage, root / "submissions")
        first, seconds = _timed("first", root, root / "submissions", stage, local, on_progress)
        seconds_of, differing = {"first": seconds}, {}
        runs = [("again", local)] if again else []
        if dask:
            from distributed import LocalCluster

            cluster = LocalCluster(
                local.workers, threads_per_worker=1, processes=True, dashboard_address=None
            )
            runs.append(("dask", DaskScheduler(cluster.scheduler_address)))
        for name, scheduler in runs:
            summary, seconds_of[name] = _timed(name, root, root / "first", stage, scheduler, on_progress)
            differing[name] = tuple(differing_marks(first.records, summary.records))
            scheduler.close()
        if dask:
            cluster.close()
    kinds = {one.student: one for one in made}
    mistakes = tuple(
        f"{record['student']} ({kinds[record['student']].kind}): {record['total']:g} of {record['out_of']:g}"
        for record in first.records
        if not _deserved(kinds[record["student"]].kind, record["total"], record["out_of"])
    )
    return GradingBenchmark(count, seconds_of["first"], mistakes, differing, seconds_of)


def _deserved(kind: str, total: float, out_of: float) -> bool:
    if kind == "honest":
        return total == out_of
    return total < 0.8 * out_of if kind == "broken" else total == 0


def _timed(
    name: str,
    root: Path,
    source: Path,
    stage: Stage,
    scheduler: LocalScheduler | DaskScheduler,
    on_progress: Callable[[str], None],
) -> tuple[Summary, float]:
    done = 0

    def count_one(record) -> None:
        nonlocal done
        done += 1
        if done % 50 == 0:
            on_progress(f"{name}: {done} graded in {time.perf_counter() - started:.0f} s")

    started = time.perf_counter()
    summary = grade_class(
        source, root / name, stages=(stage.id,), scheduler=scheduler, again=name != "first", on_done=count_one
    )
    return summary, time.perf_counter() - started
