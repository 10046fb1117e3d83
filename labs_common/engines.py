"""Where kernels run: on the GPU through CuPy, or in the simulator through the same calls."""

from __future__ import annotations

import copy
import functools
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from labs_common import metric_names as names
from labs_common import metrics as metrics_table
from labs_common.compiler import (
    OPTIONS,
    CompileError,
    Resources,
    compile_ptx,
    include_folders,
)
from labs_common.counted import counted_metrics
from labs_common.dependent_launch import DependentKernel
from labs_common.doctor import engine_choice
from labs_common.front_ends import FrontEnd, open_front_end
from labs_common.gpus import find_gpu
from labs_common.inputs import Inputs, validate_inputs
from labs_common.metrics import Metrics
from labs_common.plans import SHARED_WITHOUT_OPT_IN, Device, Launch, Plan
from labs_common.problem import Problem, storage_dtype
from labs_common.simt import cupy_like
from labs_common.simt.arguments import check_arguments
from labs_common.simt.cupy_like import RATES, RawKernel, RawModule
from labs_common.simt.errors import Finding, LaunchError
from labs_common.simt.launch import ALL_CHECKS
from labs_common.simt.parse import Function, Instruction, parse
from labs_common.source import Source
from labs_common.stages import Stage
from labs_common.worker import Worker, WorkerDied

MAX_SECONDS = 120  # of a simulation that nobody forced
SAMPLED_FROM = 30_000_000  # query elements times tokens from which a simulation is estimated first

# What outputs and scratch memory hold before a kernel writes them, by the size of an element: a NaN in each
# of the lab's dtypes, with bits that no arithmetic gives.
POISON = {2: 0x7FDA, 4: 0x7FDADADA, 8: 0x7FDADADADADADADA}

# The CUDA structs of kernels/paged_attention.cuh. align=True pads as C does.
PROBLEM_STRUCT = np.dtype(
    [(name, np.int32) for name in ("batch", "query_heads", "kv_heads", "head_dim", "page_size", "max_pages")]
    + [("scale", np.float32)],
    align=True,
)
INPUTS_STRUCT = np.dtype(
    [(name, np.uint64) for name in ("query", "key_cache", "value_cache", "block_tables", "context_lengths")],
    align=True,
)


class EngineMissing(RuntimeError):
    """This machine cannot run the engine that was asked for; the message says what is missing."""


@dataclass(frozen=True)
class Outcome:
    """What came of one run.

    Attributes:
        output: ``[batch, query_heads, head_dim]`` in NumPy; NaN where the kernel wrote nothing.
        metrics: what was counted or read off, as a Metrics table.
        findings: what the checks found; empty on a GPU.
        engine: name of the engine that ran it.
        seconds: host time of the launches; a simulator's speed, never a kernel's.
        mix: per kernel, lane-instructions by class, most first; empty on a GPU.
        counters_left: names of the plan's counters that are not zero again, as they must be.
    """

    output: np.ndarray
    metrics: Metrics
    findings: tuple[Finding, ...]
    engine: str
    seconds: float
    mix: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    counters_left: tuple[str, ...] = ()


@dataclass
class Call:
    """A stage bound to arrays: calling it launches its kernels.

    Attributes:
        launches: of the plan.
        kernels: the compiled functions, by entry name.
        arguments: of every launch.
        output: array of the engine, poisoned with NaN.
        keep: arrays that the arguments point into; they must outlive the call.
        counters: those of the plan, by name.
    """

    launches: tuple[Launch, ...]
    kernels: Mapping[str, Any]
    arguments: tuple[Any, ...]
    output: Any
    keep: list[Any] = field(default_factory=list)
    counters: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> None:
        """Launch every kernel, in order, without waiting."""
        for launch in self.launches:
            self.kernels[launch.entry](
                launch.grid, launch.block, self.arguments, shared_mem=launch.shared_bytes
            )


class Engine:
    """Runs kernels on arrays of ``xp``, a module with CuPy's calls.

    Attributes:
        name: shown in tables.
        xp: ``cupy``, or the simulator's module of the same calls.
        device: the limits launches must keep.
    """

    name: str
    xp: ModuleType
    device: Device

    def module(self, source: Source, defines: Mapping[str, object] | None = None) -> Any:
        """Compile a kernel file; ``get_function(entry)`` of what comes back gives a kernel.

        Raises:
            CompileError: on the author's own file and lines.
        """
        raise NotImplementedError

    def kernel(self, module: Any, launch: Launch) -> Any:
        """What a launch calls, of what ``module`` gave.

        Raises:
            ValueError: there is no such kernel, or it is launched early and has no wait. Whether a wait is in
                the right place is not looked at.
        """
        raise NotImplementedError

    def upload(self, inputs: Inputs) -> dict[str, Any]:
        """The arrays of a problem where kernels can read them, by name."""
        return {name: self.xp.asarray(plain(array)) for name, array in inputs.arrays().items()}

    def poisoned(self, shape: tuple[int, ...], dtype: Any, name: str) -> Any:
        """An array of ``POISON`` that a kernel is to write."""
        dtype = np.dtype(dtype)
        filled = self.xp.full(shape, POISON[dtype.itemsize], dtype=f"u{dtype.itemsize}")
        return filled if dtype.kind == "V" else filled.view(dtype)

    def poison(self, array: Any) -> None:
        """Fill an array that ``poisoned`` made with ``POISON`` again."""
        size = array.dtype.itemsize
        array.view(f"u{size}").fill(POISON[size])

    def prepare(
        self,
        stage: Stage,
        problem: Problem,
        inputs: Inputs,
        source: Source | None = None,
        plan: Plan | None = None,
        arrays: Mapping[str, Any] | None = None,
    ) -> Call:
        """Compile a stage, upload its inputs, poison its output and scratch with NaN.

        Args:
            stage: what to run.
            problem: shapes and dtype.
            inputs: checked against the problem.
            source: somebody's own kernel in place of the stage's file.
            plan: in place of the stage's own for this problem.
            arrays: the inputs, where they are uploaded already.

        Raises:
            ValueError: the inputs do not fit, the stage does not take the problem, or the source has no such
                kernel.
            CompileError: the source does not compile.
        """
        validate_inputs(problem, inputs)
        plan = plan or stage.plan(problem, self.device)
        return self.bind(stage, problem, plan, arrays or self.upload(inputs), inputs.scale, source)

    def bind(
        self,
        stage: Stage,
        problem: Problem,
        plan: Plan,
        arrays: Mapping[str, Any],
        scale: float,
        source: Source | None = None,
    ) -> Call:
        """As ``prepare``, of arrays that are the engine's already and that nobody checks.

        Args:
            arrays: query, key_cache, value_cache, block_tables and context_lengths.
            scale: factor on every score, the scale of fp8 keys included.
        """
        module = self.module(source or stage.source(), plan.defines)
        kernels = {launch.entry: self.kernel(module, launch) for launch in plan.launches}
        for launch in plan.launches:
            # The limit is of static and dynamic memory together; to opt in below it changes nothing.
            # Nor may it shrink: calls of other plans share the kernel.
            kernel = kernels[launch.entry]
            if launch.shared_bytes > max(SHARED_WITHOUT_OPT_IN // 2, kernel.max_dynamic_shared_size_bytes):
                kernel.max_dynamic_shared_size_bytes = launch.shared_bytes
        output = self.poisoned(tuple(arrays["query"].shape), storage_dtype(problem.query_dtype), "output")
        scratch = {name: self.poisoned(shape, np.float32, name) for name, shape in plan.scratch.items()}
        counters = {name: self.xp.zeros(shape, dtype=np.int32) for name, shape in plan.counters.items()}
        scratch |= counters
        scratch |= {name: self.xp.asarray(table) for name, table in plan.tables.items()}
        columns = arrays["block_tables"].shape[1]
        arguments = [_problem_struct(problem, columns, scale), pointer_struct(arrays), output]
        if scratch:
            arguments.append(pointer_struct(scratch))
        arguments += [np.float32(n) if isinstance(n, float) else np.int32(n) for n in plan.numbers.values()]
        return Call(plan.launches, kernels, tuple(arguments), output, [arrays, scratch], counters)

    def counters_left(self, call: Call) -> tuple[str, ...]:
        """Names of the counters that a call has not left at zero, from which the next one would go on."""
        return tuple(name for name, array in call.counters.items() if self.xp.asnumpy(array).any())

    def read(self, call: Call, problem: Problem) -> np.ndarray:
        """A call's output in NumPy, of the problem's query_dtype."""
        return self.xp.asnumpy(call.output).view(storage_dtype(problem.query_dtype))

    def run(
        self,
        stage: Stage,
        problem: Problem,
        inputs: Inputs,
        source: Source | None = None,
        plan: Plan | None = None,
        checks: bool = True,
        metrics: bool = True,
    ) -> Outcome:
        """Run a stage once.

        Args:
            checks: look for misuse of memory and synchronisation, where the engine can.
            metrics: make the table of metrics; without, the simulator is sooner done.

        Raises:
            as ``prepare``; LaunchError: a launch failed.
        """
        if problem.batch == 0:  # CUDA has no empty grid
            validate_inputs(problem, inputs)
            empty = np.zeros((0, problem.query_heads, problem.head_dim), inputs.query.dtype)
            return Outcome(empty, metrics_table.empty(), (), self.name, 0.0)
        return self._execute(stage, problem, inputs, source, plan, checks, metrics)

    def _execute(
        self,
        stage: Stage,
        problem: Problem,
        inputs: Inputs,
        source: Source | None,
        plan: Plan | None,
        checks: bool,
        metrics: bool,
    ) -> Outcome:
        return self._run(self.prepare(stage, problem, inputs, source, plan), stage, problem, checks, metrics)

    def _run(self, call: Call, stage: Stage, problem: Problem, checks: bool, metrics: bool) -> Outcome:
        raise NotImplementedError


def unwritten(output: np.ndarray) -> np.ndarray:
    """Which elements of a call's output no kernel has written."""
    size = output.dtype.itemsize
    return output.view(f"u{size}") == POISON[size]


def plain(array: np.ndarray) -> np.ndarray:
    """The same bytes in a dtype that CuPy knows: it has no fp8, and bfloat16 only in some versions."""
    return array.view(f"u{array.itemsize}") if array.dtype.kind == "V" else array


def problem_struct(problem: Problem, inputs: Inputs) -> np.void:
    """CUDA's ``Problem`` by value."""
    return _problem_struct(problem, inputs.block_tables.shape[1], inputs.scale)


def _problem_struct(problem: Problem, columns: int, scale: float) -> np.void:
    return np.array(
        (
            problem.batch,
            problem.query_heads,
            problem.kv_heads,
            problem.head_dim,
            problem.page_size,
            columns,
            scale,
        ),
        PROBLEM_STRUCT,
    )[()]


def pointer_struct(arrays: Mapping[str, Any]) -> np.void:
    """A CUDA struct of pointers by value, in the order of ``arrays``."""
    dtype = np.dtype([(name, np.uint64) for name in arrays], align=True)
    return np.array(tuple(array.data.ptr for array in arrays.values()), dtype)[()]


class GpuEngine(Engine):
    """CuPy's ``RawModule`` on the first GPU.

    ``run`` works in a child process: an illegal address poisons a CUDA context for good, and must not take
    the notebook or the next stage with it.
    """

    name = "gpu"

    def __init__(self, timeout_s: float = 120.0) -> None:
        """Open the first GPU.

        Args:
            timeout_s: wall time of one run, after which a hanging kernel's process is killed.

        Raises:
            EngineMissing: CuPy or a usable GPU is missing; the message says which and what to do.
        """
        try:
            import cupy
        except ImportError as error:
            raise EngineMissing(
                f"no GPU to use: CuPy cannot be imported ({error}); see palab doctor"
            ) from None
        try:
            properties = cupy.cuda.runtime.getDeviceProperties(0)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise EngineMissing(f"no usable GPU ({error})") from None
        self.xp = cupy
        self.timeout_s = timeout_s
        self.device = Device(
            name=properties["name"].decode(),
            compute_capability=(properties["major"], properties["minor"]),
            max_threads=properties["maxThreadsPerBlock"],
            max_grid=tuple(properties["maxGridSize"]),
            max_shared_bytes=properties["sharedMemPerBlockOptin"],
            multiprocessors=properties["multiProcessorCount"],
        )
        self._worker = Worker()

    def module(self, source: Source, defines: Mapping[str, object] | None = None) -> CheckedModule:
        """As ``Engine.module``, by CuPy's NVRTC."""
        raw = self.raw_module(source, defines)
        # The parameters of each kernel are read off the PTX: CuPy passes on whatever it is given.
        return CheckedModule(raw, parse(compile_ptx(source, defines, self.device.arch)).functions)

    def raw_module(self, source: Source, defines: Mapping[str, object] | None = None) -> Any:
        """CuPy's own ``RawModule``, compiled, whose kernels check nothing."""
        options = [*OPTIONS, *(f"-I{folder}" for folder in include_folders())]
        options += [f"-D{name}={value}" for name, value in sorted((defines or {}).items())]
        raw = self.xp.RawModule(code=source.expanded(), options=tuple(options))
        try:
            raw.compile()
        except self.xp.cuda.compiler.CompileException as error:
            raise CompileError(error.get_message()) from None
        return raw

    def kernel(self, module: Any, launch: Launch) -> Any:
        """As ``Engine.kernel``; of a ``raw_module`` nobody looks whether it waits."""
        kernel = module.get_function(launch.entry)
        if launch.early:
            checked = isinstance(kernel, CheckedKernel)
            return kernel.early(self.xp) if checked else DependentKernel(kernel, self.xp)
        return kernel

    def _execute(
        self,
        stage: Stage,
        problem: Problem,
        inputs: Inputs,
        source: Source | None,
        plan: Plan | None,
        checks: bool,
        metrics: bool,
    ) -> Outcome:
        plan = plan or stage.plan(problem, self.device)
        arguments = (stage, problem, inputs, source or stage.source(), plan, checks, metrics)
        try:
            return self._worker.call(_run_in_child, arguments, timeout_s=self.timeout_s)
        except LaunchError:
            self._worker.discard()
            raise
        except WorkerDied as error:
            raise LaunchError(f"{stage.entry}: {error}") from None

    def _run(self, call: Call, stage: Stage, problem: Problem, checks: bool, metrics: bool) -> Outcome:
        runtime_error = (self.xp.cuda.runtime.CUDARuntimeError, self.xp.cuda.driver.CUDADriverError)
        rows = []
        started = time.perf_counter()
        for number, launch in enumerate(call.launches):
            kernel = call.kernels[launch.entry]
            start, end = self.xp.cuda.Event(), self.xp.cuda.Event()
            try:
                start.record()
                kernel(launch.grid, launch.block, call.arguments, shared_mem=launch.shared_bytes)
                end.record()
                end.synchronize()
            except runtime_error as error:
                raise LaunchError(f"{launch.entry}: {error}") from None
            common = {"kernel": launch.entry, "launch": number}
            nanoseconds = 1e6 * self.xp.cuda.get_elapsed_time(start, end)
            rows.append({**common, "metric": names.TIME, "value": nanoseconds, "unit": "nsecond"})
            rows.append(
                {**common, "metric": names.REGISTERS, "value": kernel.num_regs, "unit": "register/thread"}
            )
        seconds = time.perf_counter() - started
        table = metrics_table.build(
            rows, source="measured", tool="events", gpu=self.device.name, stage=stage.id, problem=problem.name
        )
        left = self.counters_left(call)
        return Outcome(self.read(call, problem), table, (), self.name, seconds, counters_left=left)


class TooLong(ValueError):
    """A simulation that would take minutes; the message has the estimate and a smaller problem."""


class SimulatorEngine(Engine):
    """The simulator, through CuPy's calls. Runs in this process: no kernel can harm it."""

    def __init__(
        self,
        device: Device | None = None,
        core: str = "llvm",
        force: bool = False,
        front_end: str = "auto",
        schedule: int | None = None,
    ) -> None:
        """Open the simulator.

        Args:
            device: whose limits and architecture to take; by default the recorded GPU's.
            core: "llvm" for machine code on all cores, "numpy" for the reference that single-steps.
            force: run even what is estimated to take longer than ``MAX_SECONDS``.
            front_end: what compiles, see ``front_ends.open_front_end``; opened when first needed.
            schedule: seed of the order in which blocks and warps get their turn, by default ascending.

        Raises:
            ValueError: an unknown core.
        """
        if core not in RATES:
            raise ValueError(f"core={core!r}: allowed are {', '.join(RATES)}")
        self.xp = cupy_like
        self.device = device or Device()
        self.core = core
        self.force = force
        self._front_end_name = front_end
        self.schedule = schedule

    def interpreting(self) -> SimulatorEngine:
        """The same without machine code, which for a large kernel takes longer than a small problem."""
        other = copy.copy(self)
        other.core = "numpy"
        return other

    @functools.cached_property
    def front_end(self) -> FrontEnd:
        """What compiles the kernels.

        Raises:
            ValueError: an unknown name.
            CompilerMissing: it is not installed here.
        """
        return open_front_end(self._front_end_name)

    @property
    def name(self) -> str:
        """``simulator``, with the front end where it is not the usual one: counts are of its code."""
        return self.front_end.tool

    def module(self, source: Source, defines: Mapping[str, object] | None = None) -> RawModule:
        """As ``Engine.module``: the front end's PTX, run by the simulator; resource figures are ptxas's."""
        ptx = self.front_end.compile_ptx(source, defines, self.device.arch)

        def resources(kernel: str) -> _FunctionFigures | None:
            compiled = self.front_end.compile_resources(source, defines, self.device.arch)
            return None if compiled is None else _FunctionFigures(compiled[kernel])

        return RawModule(code=ptx, resources=resources, engine=self.core, schedule=self.schedule)

    def kernel(self, module: RawModule, launch: Launch) -> RawKernel:
        """As ``Engine.kernel``. Launches run one after the other here, also those that may begin early."""
        kernel = module.get_function(launch.entry)
        if launch.early:
            _require_wait(launch.entry, kernel.program.instructions)
        return kernel

    def upload(self, inputs: Inputs) -> dict[str, Any]:
        """The arrays themselves, without a copy: kernels and NumPy see the same memory."""
        return {name: self.xp.wrap(array, name) for name, array in inputs.arrays().items()}

    def poisoned(self, shape: tuple[int, ...], dtype: Any, name: str) -> Any:
        """``POISON`` everywhere, and initcheck knows that no kernel has written it."""
        dtype = np.dtype(dtype)
        filled = np.full(shape, POISON[dtype.itemsize], f"u{dtype.itemsize}")
        return self.xp.wrap(filled.view(dtype), name, track_written=True)

    def _run(self, call: Call, stage: Stage, problem: Problem, checks: bool, metrics: bool) -> Outcome:
        for kernel in call.kernels.values():
            kernel.module.checks = ALL_CHECKS if checks else frozenset({"memcheck"})
        if not self.force:
            self._refuse_long(call, problem)
        gpu = find_gpu(self.device.name)
        tables, findings, mix, seconds = [], [], {}, 0.0
        with ThreadPoolExecutor(1) as beside:  # ptxas works while the launches run
            wanted = call.kernels if metrics else {}
            figures = {name: beside.submit(k.module.resources, name) for name, k in wanted.items()}
            for number, launch in enumerate(call.launches):
                kernel = call.kernels[launch.entry]
                kernel(launch.grid, launch.block, call.arguments, shared_mem=launch.shared_bytes)
                result = kernel.module.last_launch
                findings += result.findings
                mix[launch.entry] = result.counters.mix()
                seconds += result.seconds
                if not metrics:
                    continue
                found = figures[launch.entry].result()
                tables.append(
                    counted_metrics(
                        result.counters,
                        launch,
                        number,
                        found and found.resources,
                        kernel.program.shared_static,
                        gpu,
                        self.front_end.tool,
                        stage.id,
                        problem.name,
                    )
                )
        table = metrics_table.concat(tables) if tables else metrics_table.empty()
        output, left = self.read(call, problem), self.counters_left(call)
        return Outcome(output, table, tuple(findings), self.name, seconds, mix, left)

    def _refuse_long(self, call: Call, problem: Problem) -> None:
        """Raise TooLong where a sample of the blocks says so; small problems are not sampled."""
        if problem.query_heads * problem.head_dim * sum(problem.context_lengths) < SAMPLED_FROM:
            return
        launch = call.launches[0]
        estimate = call.kernels[launch.entry].estimate(
            launch.grid, launch.block, call.arguments, launch.shared_bytes
        )
        if estimate is None:
            return
        cores = (os.cpu_count() or 1) if self.core == "llvm" else 1
        seconds = estimate.seconds / cores
        if seconds <= MAX_SECONDS:
            return
        longest = max(1, int(max(problem.context_lengths) * MAX_SECONDS / 4 / seconds))
        raise TooLong(
            f"{launch.entry} on {problem}: about {estimate.lane_instructions / 1e9:,.0f} G "
            f"lane-instructions, {seconds:,.0f} s here, more than the {MAX_SECONDS} s that are run unasked. "
            f"Take contexts of {longest:,} tokens, or --force it"
        )


@dataclass(frozen=True)
class _FunctionFigures:
    """Resources under the names of CuPy's function attributes."""

    resources: Resources

    num_regs = property(lambda self: self.resources.registers)
    shared_size_bytes = property(lambda self: self.resources.shared_bytes)
    local_size_bytes = property(lambda self: self.resources.stack_bytes)
    const_size_bytes = property(lambda self: None)


class CheckedModule:
    """A CuPy ``RawModule`` whose kernels check what they are given before they launch."""

    def __init__(self, raw: Any, functions: Mapping[str, Function]) -> None:
        self._raw = raw
        self._functions = functions

    def get_function(self, name: str) -> CheckedKernel:
        """The kernel called ``name``.

        Raises:
            ValueError: there is none; the message lists those there are.
        """
        entries = [function.name for function in self._functions.values() if function.entry]
        if name not in entries:
            raise ValueError(f"no kernel named {name}; found {', '.join(entries) or 'none'}")
        called = [function for function in self._functions.values() if not function.entry]
        return CheckedKernel(self._raw.get_function(name), self._functions[name], called)


class CheckedKernel:
    """A CuPy kernel that refuses arguments it would misread; all else is CuPy's."""

    def __init__(self, raw: Any, function: Function, called: Sequence[Function] = ()) -> None:
        object.__setattr__(self, "_raw", raw)
        object.__setattr__(self, "_function", function)
        object.__setattr__(self, "_called", called)

    def __call__(self, grid: tuple, block: tuple, args: tuple, *, shared_mem: int = 0) -> None:
        """Launch, as CuPy does; LaunchError where an argument does not fit its parameter."""
        check_arguments(self._function, args)
        self._raw(grid, block, args, shared_mem=shared_mem)

    def early(self, xp: Any) -> CheckedKernel:
        """The same for launches that may begin early; ValueError where its code does not wait."""
        functions = (self._function, *self._called)
        _require_wait(self._function.name, (step for function in functions for step in function.body))
        return CheckedKernel(DependentKernel(self._raw, xp), self._function, self._called)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._raw, name, value)


def _require_wait(entry: str, instructions: Iterable[Instruction]) -> None:
    if not any(one.name == "griddepcontrol.wait" for one in instructions):
        raise ValueError(
            f"{entry} may begin before the launch before it has ended, and has no griddepcontrol.wait: it "
            "would read results that are not there yet"
        )


_child_engine: GpuEngine | None = None


def _run_in_child(arguments: tuple) -> Outcome:
    global _child_engine
    _child_engine = _child_engine or GpuEngine()
    stage, problem, inputs, source, plan, checks, metrics = arguments
    return _child_engine._run(
        _child_engine.prepare(stage, problem, inputs, source, plan), stage, problem, checks, metrics
    )


def open_engine(name: str = "auto", force: bool = False, front_end: str = "auto") -> Engine:
    """An engine by name: ``gpu``, ``sim``, or ``auto`` for the GPU where there is one and else the simulator.

    Args:
        name: of the engine.
        force: simulate even what would take minutes.
        front_end: of the simulator, see ``front_ends.open_front_end``; a GPU has NVRTC.

    Raises:
        ValueError: an unknown name.
        EngineMissing: it cannot run here.
    """
    if name == "auto":
        name, _ = engine_choice()
    if name == "gpu":
        return GpuEngine()
    if name == "sim":
        return SimulatorEngine(force=force, front_end=front_end)
    raise ValueError(f"engine {name!r}: allowed are auto, gpu, sim")
