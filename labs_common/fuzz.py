"""`palab bench fuzz`: texts that nobody would write, through both engines, in a process that may die.

Every case must end in an error that names a line and a reason, or in a run on which both engines agree:
counts, findings, and every byte of memory. Cases follow from their seed alone. A case runs in a child
process, so that a crash and a hang are results too.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import random
import re
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from labs_common import zig
from labs_common.compiler import DEFAULT_ARCH, CompileError, compile_ptx
from labs_common.engines import SimulatorEngine
from labs_common.inputs import make_inputs
from labs_common.mutate import mutate_cuda, mutate_ptx, random_text
from labs_common.plans import Device
from labs_common.problem import Problem
from labs_common.simt import cupy_like as xp
from labs_common.simt.cupy_like import SPACE, RawModule
from labs_common.simt.errors import BudgetError, Fault, LaunchError, PtxError, SimulationError
from labs_common.simt.launch import Result
from labs_common.simt.memory import Allocation
from labs_common.simt.parse import parse
from labs_common.source import Source
from labs_common.stages import STAGES, Stage
from labs_common.worker import Worker, WorkerDied

KERNELS = Path(__file__).resolve().parent / "fuzz_kernels.cu"
ENGINES = ("numpy", "llvm")
KINDS = {"bytes": 0.1, "ptx": 0.5, "kernel": 0.4}  # and how often
STAGE_SHARE = 0.2  # of mutated texts that come from a stage
ZIG_SHARE = 0.3  # of mutated PTX texts of small kernels that come from the other front end, if it is there
BUDGET = 20_000  # instructions of a thread: enough for each of the originals
ELEMENTS = 256  # of each array of a small kernel
LIMIT_S = 60  # of one case's compilation, and of its runs
MEMORY_BYTES = 12 << 30  # of the child's address space

# Of both some blocks have several warps, whose order no engine promises; see `_verdict`.
ONE_WARP = Problem(1, 1, 32, 4, (7,), name="one warp")
WARPS = Problem(4, 2, 64, 4, (9, 3), name="warps")


@dataclass(frozen=True)
class Case:
    """One text and how it is run.

    Attributes:
        seed: that it came from.
        kind: ``bytes`` (run as PTX), ``ptx`` or ``kernel`` (CUDA, compiled by NVRTC).
        origin: what was mutated.
        text: the result.
        stage: whose launches it gets; None for a small kernel, which gets one block.
        threads: of that block.
    """

    seed: int
    kind: str
    origin: str
    text: str
    stage: Stage | None = None
    threads: int = 32


@dataclass(frozen=True)
class Outcome:
    """What came of a case.

    Attributes:
        kind: ``refused`` before it ran, ``stopped`` by a finding or the budget, ``ran`` with the engines
            agreeing, ``order`` where they agree on one warp only, or ``failed``.
        words: the error's, or what failed.
    """

    kind: str
    words: str = ""


@dataclass
class Report:
    """A session: how many cases came to what, and those that failed."""

    first_seed: int
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[Case, Outcome]] = field(default_factory=list)
    compilers: list[Case] = field(default_factory=list)  # on which NVRTC did not end in time

    @property
    def cases(self) -> int:
        """How many there were."""
        return sum(self.counts.values())

    def summary(self) -> str:
        """What came out, in a sentence or two."""
        words = {
            "refused": "refused with line and reason",
            "stopped": "stopped with line and reason",
            "ran": "ran, the engines agreeing",
            "order": "agreeing on one warp, depending on the order of several",
            "failed": "FAILED",
        }
        counts = ", ".join(f"{self.counts[kind]} {words[kind]}" for kind in words if self.counts[kind])
        last = self.first_seed + self.cases - 1
        slow = ", ".join(str(case.seed) for case in self.compilers)
        return f"{self.cases} cases, seeds {self.first_seed} to {last}: {counts}" + (
            f"; NVRTC did not end within {LIMIT_S} s on seeds {slow}" if slow else ""
        )


@functools.cache
def small_kernels() -> dict[str, str]:
    """The kernels of ``fuzz_kernels.cu`` by name."""
    parts = re.split(r"^// kernel: (\w+)\n", KERNELS.read_text(encoding="utf-8"), flags=re.M)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def make_case(seed: int) -> Case:
    """The case of a seed; the same in every process, and on every machine with the same compilers."""
    rng = random.Random(seed)
    kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
    if kind == "bytes":
        return Case(seed, kind, "", random_text(rng, _vocabulary()))
    stage = rng.choice(STAGES) if rng.random() < STAGE_SHARE else None
    if stage is not None:
        threads = rng.choice((32, 64))
        source = stage.source()
        origin, text = stage.id, source.text if kind == "kernel" else _stage_ptx(stage, threads)
    else:
        threads = rng.choice((32, 32, 64, 96))
        origin = rng.choice(list(small_kernels()))
        text = small_kernels()[origin]
        if kind == "ptx":
            by_zig = rng.random() < ZIG_SHARE and zig.available()
            source = Source(f"{origin}.cu", text)
            text = zig.compile_ptx(source, {}, DEFAULT_ARCH) if by_zig else compile_ptx(source)
    changed = mutate_ptx(rng, text) if kind == "ptx" else mutate_cuda(rng, text)
    return Case(seed, kind, origin, changed, stage, threads)


def compiled(case: Case) -> str | Outcome:
    """The PTX of a case, or that it does not compile."""
    if case.kind != "kernel":
        return case.text
    try:
        defines = _plan(case.stage, case.threads).defines if case.stage else {}
        return compile_ptx(Source(f"{case.origin}.cu", case.text), defines)
    except CompileError as error:
        if error.diagnostics:
            return Outcome("refused", str(error))
        return Outcome("failed", f"a compile error without a line: {error}")
    except ValueError as error:  # a header that there is not
        known = re.search(r"line \d+: ", str(error))
        return Outcome("refused" if known else "failed", str(error))
    except Exception:
        return Outcome("failed", traceback.format_exc())


def judge(case: Case, ptx: str) -> Outcome:
    """Run a case's PTX on both engines and compare."""
    seen = _both(case, ptx, case.threads)
    outcome = _verdict(*seen)
    if outcome.kind != "failed" or case.threads == 32 or any(one.failed for one in seen):
        return outcome
    # Warps of a block, and blocks, have no order: a kernel that depends on it is no proof against an engine.
    alone = _verdict(*_both(case, ptx, 32))
    return alone if alone.kind == "failed" else Outcome("order", outcome.words)


def fuzz(
    seconds: float,
    first_seed: int,
    folder: Path,
    tell: Callable[[Report], None] = lambda report: None,
    most: int | None = None,
) -> Report:
    """Run cases, one after the other, for some time.

    Args:
        seconds: after which no further case begins.
        first_seed: of the first case; each next one adds 1.
        folder: where the text of a failing case is written, with what failed.
        tell: called after every case.
        most: cases at most.
    """
    report = Report(first_seed)
    worker = Worker()
    with tempfile.TemporaryDirectory(prefix="palab-fuzz") as cache:
        deadline = time.monotonic() + seconds
        try:
            _call(worker, _prepare_child, cache)
            seed = first_seed
            while time.monotonic() < deadline and report.cases != most:
                case, outcome = _in_child(worker, seed, cache, report)
                report.counts[outcome.kind] += 1
                if outcome.kind == "failed":
                    report.failures.append((case, outcome))
                    save(case, outcome, folder)
                tell(report)
                seed += 1
        finally:
            worker.discard()
    return report


def save(case: Case, outcome: Outcome, folder: Path) -> Path:
    """Write a case as ``<seed>.cu`` or ``<seed>.ptx``, and what failed as ``<seed>.txt``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{case.seed}.{'cu' if case.kind == 'kernel' else 'ptx'}"
    path.write_text(case.text, encoding="utf-8", errors="surrogatepass")
    about = f"seed {case.seed}: {case.kind} of {case.origin or 'nothing'}, {case.threads} threads"
    path.with_suffix(".txt").write_text(f"{about}\n{outcome.words}\n", encoding="utf-8")
    return path


# ---- the child


def _in_child(worker: Worker, seed: int, cache: str, report: Report) -> tuple[Case, Outcome]:
    case = Case(seed, "unknown", "", "")
    doing = "making the case"
    try:
        case = _call(worker, make_case, seed)
        doing = "compiling"
        ptx = _call(worker, compiled, case)
        if isinstance(ptx, Outcome):
            return case, ptx
        doing = "running"
        return case, _call(worker, judge, case, ptx)
    except WorkerDied as death:
        _call(worker, _prepare_child, cache)
        if doing == "compiling" and "no answer" in str(death):
            report.compilers.append(case)
            return case, Outcome("refused", f"NVRTC did not end within {LIMIT_S} s")
        return case, Outcome("failed", f"while {doing}: {death}")
    except Exception:
        return case, Outcome("failed", f"while {doing}: {traceback.format_exc()}")


def _call(worker: Worker, function: Callable, *arguments: Any) -> Any:
    return worker.call(function, *arguments, timeout_s=LIMIT_S)


def _prepare_child(cache: str) -> None:
    """Keep the machine code of mutants out of the user's cache, and a mutant's memory within limits."""
    os.environ["XDG_CACHE_HOME"] = cache
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, hard))


@dataclass(frozen=True)
class _Seen:
    """What one engine made of a case: an error, or counts, findings and memory."""

    error: str = ""
    refused: bool = False
    failed: bool = False
    counts: tuple = ()
    findings: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()
    printed: str = ""


def _both(case: Case, ptx: str, threads: int) -> list[_Seen]:
    seen = [_observe(case, ptx, engine, threads, BUDGET) for engine in ENGINES]
    if sum(one.error.startswith("BudgetError") for one in seen) == 1:
        # One engine looks at the budget at every block, the other where it branches back: give both more.
        seen = [_observe(case, ptx, engine, threads, 4 * BUDGET) for engine in ENGINES]
    return seen


def _verdict(first: _Seen, second: _Seen) -> Outcome:
    for name, seen in zip(ENGINES, (first, second), strict=True):
        if seen.failed:
            return Outcome("failed", f"{name}: {seen.error}")
    if first != second:
        lines = [
            f"{what}:\n  {ENGINES[0]}: {_only(a, b)}\n  {ENGINES[1]}: {_only(b, a)}"
            for what in ("error", "findings", "counts", "memory", "printed")
            if (a := getattr(first, what)) != (b := getattr(second, what))
        ]
        return Outcome("failed", "the engines do not agree on " + "\n".join(lines))
    if first.error:
        return Outcome("refused" if first.refused else "stopped", first.error)
    return Outcome("ran", "; ".join(first.findings))


def _only(some: Any, others: Any) -> Any:
    """What the others have not got too."""
    return [one for one in some if one not in others] or some if isinstance(some, tuple) else some


def _observe(case: Case, ptx: str, engine: str, threads: int, budget: int) -> _Seen:
    printed = io.StringIO()
    try:
        with _same_addresses(), contextlib.redirect_stdout(printed):
            return replace(_run(case, ptx, engine, threads, budget), printed=printed.getvalue())
    except Fault as error:
        return _Seen(f"{type(error).__name__}: {error}", failed=error.finding.line < 1)
    except BudgetError as error:
        what, _, place = str(error).partition(" and is at ")  # somewhere in the loop
        return _Seen(f"BudgetError: {what}", failed=not re.search(r":[1-9]", place))
    except PtxError as error:
        return _Seen(f"{type(error).__name__}: {error}", refused=True, failed=error.line < 1)
    except LaunchError as error:
        return _Seen(f"LaunchError: {error}", refused=True)
    except SimulationError as error:
        return _Seen(f"an error without a line: {error}", failed=True)
    except Exception:
        return _Seen(traceback.format_exc(), failed=True)


@contextlib.contextmanager
def _same_addresses() -> Iterator[None]:
    """Whatever is allocated inside gets the addresses that it would have got the last time."""
    before, start = SPACE.allocations, SPACE._next
    try:
        yield
    finally:
        for allocation in _since(before):
            SPACE.free(allocation)
        SPACE._next = start


def _since(before: list[Allocation]) -> list[Allocation]:
    """What was allocated since, of what is left; others may have been freed meanwhile."""
    known = set(map(id, before))
    return [allocation for allocation in SPACE.allocations if id(allocation) not in known]


def _run(case: Case, ptx: str, engine: str, threads: int, budget: int) -> _Seen:
    parse(ptx)  # RawModule takes what has no .version for CUDA
    before = SPACE.allocations
    keep, results = _launch(case, ptx, engine, threads, budget)
    memory = tuple(hashlib.sha256(a.host.tobytes()).hexdigest()[:12] for a in _since(before))
    del keep
    counts = [(*result.counters.totals().items(), *result.counters.by_line()) for result in results]
    return _Seen(
        counts=tuple(str(count) for count in sum(counts, ())),
        findings=tuple(sorted(str(finding) for result in results for finding in result.findings)),
        memory=memory,
    )


def _launch(case: Case, ptx: str, engine: str, threads: int, budget: int) -> tuple[Any, list[Result]]:
    """Launch, and return what must be kept alive, and the results."""
    module = RawModule(ptx, engine=engine, budget=budget)
    if case.stage is not None:
        problem = ONE_WARP if threads == 32 else WARPS
        call = _TextEngine(module).prepare(case.stage, problem, make_inputs(problem))
        results = []
        for launch in call.launches:
            kernel = call.kernels[launch.entry]
            kernel(launch.grid, launch.block, call.arguments, shared_mem=launch.shared_bytes)
            results.append(module.last_launch)
        return call, results
    rng = np.random.default_rng(5)
    arrays = (
        xp.asarray(rng.normal(size=ELEMENTS).astype(np.float32)),
        xp.asarray(rng.integers(-50, 50, ELEMENTS).astype(np.int32)),
        xp.full(ELEMENTS, np.nan, np.float32),
        xp.zeros(ELEMENTS, np.int32),
    )
    module.get_function("k")(1, threads, arrays, shared_mem=16 * threads)
    return (module, arrays), [module.last_launch]


class _TextEngine(SimulatorEngine):
    """Whatever kernel is asked for, it comes from one module."""

    def __init__(self, module: RawModule) -> None:
        super().__init__(force=True)
        self._module = module

    def module(self, source: Source, defines: Any = None) -> RawModule:
        return self._module


def _plan(stage: Stage, threads: int) -> Any:
    return stage.plan(ONE_WARP if threads == 32 else WARPS, Device())


@functools.cache
def _stage_ptx(stage: Stage, threads: int) -> str:
    return compile_ptx(stage.source(), _plan(stage, threads).defines)


@functools.cache
def _vocabulary() -> list[str]:
    """The words of the small kernels' PTX."""
    texts = [compile_ptx(Source(f"{name}.cu", text)) for name, text in small_kernels().items()]
    return sorted({word for text in texts for word in re.findall(r"[^\s,]+", text)})
