"""What a child does: compile one submitted kernel, run it on the arrays that it is sent, send back what came.

Nothing here judges. The right answers, the seed and the rubric never enter the child.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import re
import resource
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from labs_common.check import check_plan
from labs_common.compiler import CompileError, compile_resources
from labs_common.engines import Call, LaunchError, SimulatorEngine
from labs_common.grading import channel
from labs_common.inputs import Inputs
from labs_common.plans import Device, Plan
from labs_common.probes import probes_of
from labs_common.problem import Problem
from labs_common.simt.cupy_like import SPACE, RawModule
from labs_common.simt.errors import BudgetError, Fault, Finding, SimulationError, UnsupportedError
from labs_common.source import NEUTRAL_FOLDER, Source
from labs_common.stages import Stage, find_stage

FAR_BYTES = 4 * 2**31  # of a cache of float32 whose elements 32 bits cannot count
BUDGET = 20_000_000  # instructions of one thread: some hundred times what a hidden problem needs
INTERPRETED = 300_000  # query elements times tokens up to which a kernel that is run once is interpreted
MAX_MESSAGE = 4000
_MACHINE = re.compile(r"%(?:clock|globaltimer|smid|nsmid|gridid|envreg|pm\d)\w*")
MAX_FINDINGS = 10


class GradingEngine(SimulatorEngine):
    """The simulator with one module per core and set of macros: state that a kernel keeps is kept."""

    def __init__(self, device: Device) -> None:
        super().__init__(device, force=True, front_end="nvrtc")  # counts of two compilers are no match
        self._modules: dict[tuple, RawModule] = {}
        self._initial: dict[int, bytes] = {}

    def module(self, source: Source, defines: Mapping[str, object] | None = None) -> RawModule:
        """As ``SimulatorEngine.module``; the same macros give the same module again."""
        key = (source, self.core, tuple(sorted((defines or {}).items())))
        if key not in self._modules:
            module = super().module(source, defines)
            module.budget = BUDGET
            self._modules[key] = module
        return self._modules[key]

    def changed_variables(self) -> list[str]:
        """Names of device variables whose bytes are not those they had when they were loaded."""
        changed = set()
        for module in self._modules.values():
            for name, address in module._addresses.items():
                now = SPACE.find(address).host.tobytes()
                if now != self._initial.setdefault(address, now):
                    changed.add(name)
        return sorted(changed)

    def machine_registers(self) -> list[str]:
        """Special registers that its code names and no attention needs: clocks, multiprocessors."""
        return sorted({name for module in self._modules.values() for name in _MACHINE.findall(module.ptx)})


def serve(sock: socket.socket, cpu_s: float) -> None:
    """Answer requests until the grader closes the channel.

    The first request has ``stage``, ``name``, ``text`` and ``device``; each further one a problem and the
    inputs of its calls. Every request is answered by one message, within ``cpu_s`` of processor time, or the
    process ends.
    """
    try:
        opening = channel.receive(sock)
        worker = _worker(opening)
        channel.send(sock, {"ok": True})
        while True:
            request = channel.receive(sock)
            _limit_processor_time(cpu_s)
            channel.send(sock, worker.answer(request))
    except channel.ChannelClosed:
        return


def _limit_processor_time(cpu_s: float) -> None:
    """SIGXCPU after this much more of it; the limit on the whole stays."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(time.process_time() + cpu_s)
    resource.setrlimit(
        resource.RLIMIT_CPU, (soft if most == resource.RLIM_INFINITY else min(soft, most), most)
    )


def _worker(opening: Mapping[str, Any]) -> Runner:
    if opening.get("engine") == "gpu":
        from labs_common.grading.gpu_execution import GpuRunner

        return GpuRunner(opening)
    return Runner(opening)


class Runner:
    """Runs one source in the simulator."""

    def __init__(self, opening: Mapping[str, Any]) -> None:
        self.stage: Stage = find_stage(opening["stage"])
        self.source = Source(opening["name"], opening["text"])
        self.engine = GradingEngine(device_from(opening["device"]))
        self._keep: list[Any] = []  # all arrays of all calls: no address is met twice

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Run the calls of one problem, or a public probe; whatever goes wrong is in the answer."""
        if "probe" in request:
            return self._probe(request["probe"])
        problem = problem_from(request["problem"])
        calls: list[dict[str, Any]] = []
        try:
            for number, sent in enumerate(request["calls"]):
                backwards, far = number % 2 == 1, request.get("far", False)
                plan = plan_of(self.stage, problem, self.engine.device, request)
                again = len(request["calls"]) > 1 or request.get("resources", False)
                self.engine.core = core_for(problem, plan, again)
                calls.append(self._call(problem, plan, sent, backwards, far, request.get("resources", False)))
            result: dict[str, Any] = {
                "calls": calls,
                "state": self.engine.changed_variables(),
                "asks": self.engine.machine_registers(),
            }
            if request.get("resources"):
                result["resources"] = self._resources(problem)
            return result
        except Exception as error:
            wrote = isinstance(error, Fault) and _writes_to_input(error.finding)
            return {"calls": calls, "error": describe(error) | ({"wrote_input": True} if wrote else {})}

    def _probe(self, name: str) -> dict[str, Any]:
        probe = probes_of(self.stage, self.engine.device)[name]
        try:
            plan = probe.plan(self.stage, self.engine.device)
            self.engine.core = core_for(probe.problem, plan, again=False)
            call = self.engine.prepare(self.stage, probe.problem, probe.inputs(), self.source, plan)
            self._keep.append(call)
            self._launch(call, backwards=False)
            return {"output": call.output.get()}
        except Exception as error:
            return {"error": describe(error)}

    def _call(
        self,
        problem: Problem,
        plan: Plan,
        sent: Mapping[str, Any],
        backwards: bool,
        far: bool,
        counted: bool,
    ) -> dict[str, Any]:
        inputs = inputs_from(sent)
        for array in inputs.arrays().values():
            array.flags.writeable = False  # else a kernel could use them as scratch and put all back
        self.engine.module(self.source, plan.defines)
        arrays = self._far_arrays(problem, inputs) if far else self.engine.upload(inputs)
        call = self.engine.prepare(self.stage, problem, inputs, self.source, plan, arrays)
        self.engine.changed_variables()  # notes what the variables are before the first launch
        self._keep.append((inputs, call))
        findings, counters, printed = self._launch(call, backwards)
        output = call.output.get()
        if counted:
            counters["busiest_warp"] = self._busiest_warps(call)
        return {
            "output": output,
            "inputs": hash_inputs(inputs),
            "findings": [finding_to(f) for f in findings[:MAX_FINDINGS]],
            "findings_total": len(findings),
            "counters": counters,
            "printed": printed,
        }

    def _launch(self, call: Call, backwards: bool) -> tuple[list[Finding], dict[str, int], int]:
        """Launch all kernels, every second call with its blocks in reverse order."""
        findings: list[Finding] = []
        counters: dict[str, int] = {}
        printed = 0
        for launch in call.launches:
            kernel = call.kernels[launch.entry]
            count = launch.grid[0] * launch.grid[1] * launch.grid[2]
            order = range(count - 1, -1, -1) if backwards else None
            kernel(launch.grid, launch.block, call.arguments, shared_mem=launch.shared_bytes, blocks=order)
            result = kernel.module.last_launch
            findings += [f for f in result.findings if f.severity == "error"]  # a warning costs nothing
            printed += len(result.output)
            counted = result.counters.totals() | {
                "lane_instructions": result.counters.lane_instructions,
                "ideal_sectors": result.counters.ideal_sectors(),
            }
            for name, value in counted.items():
                counters[name] = counters.get(name, 0) + value
        return findings, counters, printed

    def _busiest_warps(self, call: Call) -> int:
        """Instructions of the warp that executes most of them, within 5 percent, summed over the launches.

        Every block is run once more on its own, with a budget that tells whether a warp of it needs more than
        any before. No sum over the grid can replace it: a kernel whose first warp does the work of all others
        has the same sums.
        """
        total = 0
        for launch in call.launches:
            kernel = call.kernels[launch.entry]
            run = functools.partial(
                kernel, launch.grid, launch.block, call.arguments, shared_mem=launch.shared_bytes
            )
            most = 0
            for block in range(launch.grid[0] * launch.grid[1] * launch.grid[2]):
                if not _ends(kernel.module, run, block, most + most // 20):
                    most = _least_budget(kernel.module, run, block, most)
            total += most
        return total

    def _far_arrays(self, problem: Problem, inputs: Inputs) -> dict[str, Any]:
        """The second half of the pages at addresses past what 32 bits of elements reach.

        The simulator's addresses are virtual, so that nothing lies between the halves and takes no memory.
        """
        xp, near = self.engine.xp, len(inputs.key_cache) // 2
        page_bytes = inputs.key_cache[0].nbytes
        first_far = -(-FAR_BYTES // page_bytes) + near
        arrays = self.engine.upload(inputs)
        far_starts = {}
        for name in ("key_cache", "value_cache"):
            arrays[name] = xp.wrap(getattr(inputs, name)[:near], name)
            far_starts[name] = arrays[name].data.ptr + first_far * page_bytes
            SPACE._next += inputs.key_cache.nbytes  # so that the far halves do not meet either
        for name, start in far_starts.items():
            SPACE._next = start
            self._keep.append(xp.wrap(getattr(inputs, name)[near:], name))
        tables = inputs.block_tables.copy()
        tables[(tables >= near) & (tables < len(inputs.key_cache))] += first_far - near
        arrays["block_tables"] = xp.wrap(tables, "block_tables")
        return arrays

    def _resources(self, problem: Problem) -> dict[str, int]:
        plan = check_plan(self.stage, problem, self.engine.device)
        found = compile_resources(self.source, plan.defines, self.engine.device.arch)
        used = [found[launch.entry] for launch in plan.launches]
        return {
            "spill_bytes": max(r.spill_store_bytes + r.spill_load_bytes for r in used),
            "registers": max(r.registers for r in used),
            "shared_bytes": max(r.shared_bytes for r in used),
        }


def plan_of(stage: Stage, problem: Problem, device: Device, request: Mapping[str, Any]) -> Plan:
    """A stage's launches for a request's problem, with its options."""
    if options := request.get("options"):
        return stage.plan(problem, device, **options)
    return check_plan(stage, problem, device)


def core_for(problem: Problem, plan: Plan, again: bool) -> str:
    """The simulator's core for a problem: machine code, unless it takes longer to build than to do without.

    Args:
        problem, plan: where a plan fixes the shapes by macros, every shape is a kernel to be built.
        again: whether blocks are run again. Then it is machine code, which runs block after block, so that a
            kernel which depends on their order is told.
    """
    work = problem.query_heads * problem.head_dim * sum(problem.context_lengths)
    return "numpy" if "HEAD_DIM" in plan.defines and work <= INTERPRETED and not again else "llvm"


def _ends(module: RawModule, run: Callable[..., None], block: int, budget: int) -> bool:
    """Whether no warp of a block executes more instructions than this."""
    module.budget = budget
    try:
        run(blocks=[block])
    except BudgetError:
        return False
    finally:
        module.budget = BUDGET
    return True


def _least_budget(module: RawModule, run: Callable[..., None], block: int, low: int) -> int:
    """The least budget, above ``low`` and within 5 percent, that a block ends with; it has run to its end."""
    run(blocks=[block])
    high = int(module.last_launch.counters.warp_executions().sum())
    while high - low > max(1, high // 20):
        middle = (low + high) // 2
        if _ends(module, run, block, middle):
            high = middle
        else:
            low = middle
    run(blocks=[block])  # whole: what it wrote is read by the next launch
    return high


def _writes_to_input(finding: Finding) -> bool:
    """Whether a fault is a write to an array that is only to be read."""
    allocation = SPACE.find(finding.address) if finding.address is not None else None
    names = {field.name for field in dataclasses.fields(Inputs)}
    return allocation is not None and allocation.name in names and not allocation.host.flags.writeable


def describe(error: Exception) -> dict[str, Any]:
    """An error as a message: its kind, its words, the check's finding where there is one."""
    kinds = (
        (CompileError, "compile"),
        (BudgetError, "time"),
        (Fault, "fault"),
        (UnsupportedError, "unsupported"),
        (LaunchError, "launch"),
        (SimulationError, "launch"),
        (MemoryError, "memory"),
        (ValueError, "compile"),  # no kernel of this name, a header that the lab does not have
    )
    kind = next((name for type_, name in kinds if isinstance(error, type_)), "internal")
    text = str(error) if kind != "internal" else f"{type(error).__name__}: {error}"
    text = text.replace(f"{NEUTRAL_FOLDER}/", "")
    answer: dict[str, Any] = {"kind": kind, "message": text[:MAX_MESSAGE]}
    if isinstance(error, Fault):
        answer["finding"] = finding_to(error.finding)
    if isinstance(error, CompileError):
        answer["line"] = error.diagnostics[0][1] if error.diagnostics else 0
    return answer


def finding_to(finding: Finding) -> dict[str, Any]:
    """A finding as a message; of its callers the outermost, as file:line in "called"."""
    fields = dataclasses.asdict(finding)
    callers = fields.pop("callers")
    if callers:
        fields["called"] = f"{callers[-1][0]}:{callers[-1][1]}"
    return {k: v[:MAX_MESSAGE] if isinstance(v, str) else v for k, v in fields.items()}


def hash_inputs(inputs: Inputs) -> dict[str, str]:
    """BLAKE2 of each array's bytes, to see whether a kernel wrote to what it was to read."""
    return {
        name: hashlib.blake2b(np.ascontiguousarray(array).view(np.uint8).data, digest_size=16).hexdigest()
        for name, array in inputs.arrays().items()
    }


def inputs_to(inputs: Inputs) -> dict[str, Any]:
    """Inputs as a message."""
    return {**inputs.arrays(), "scale": inputs.scale}


def inputs_from(sent: Mapping[str, Any]) -> Inputs:
    """Inputs from a message."""
    return Inputs(**{field.name: sent[field.name] for field in dataclasses.fields(Inputs)})


def problem_to(problem: Problem) -> dict[str, Any]:
    """A problem as a message."""
    return dataclasses.asdict(problem)


def problem_from(sent: Mapping[str, Any]) -> Problem:
    """A problem from a message."""
    return Problem(**{**sent, "context_lengths": tuple(sent["context_lengths"])})


def device_to(device: Device) -> dict[str, Any]:
    """A device as a message."""
    return dataclasses.asdict(device)


def device_from(sent: Mapping[str, Any]) -> Device:
    """A device from a message."""
    lists = ("compute_capability", "max_grid")
    return Device(**{**sent, **{name: tuple(sent[name]) for name in lists}})
