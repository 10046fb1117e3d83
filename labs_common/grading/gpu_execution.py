"""What a child does on a GPU: run hidden problems, and time a kernel interleaved with the reference kernel.

As in ``execution``, nothing here judges. A kernel is timed on queries that change from round to round, into
outputs that are poisoned before each, so that one which skips work gives a wrong output in that round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labs_common.engines import Call, GpuEngine, plain
from labs_common.grading.execution import describe, hash_inputs, inputs_from, plan_of, problem_from
from labs_common.inputs import Inputs
from labs_common.plans import Plan
from labs_common.problem import Problem
from labs_common.source import Source
from labs_common.stages import Stage, find_stage
from labs_common.timing import captured, ceiling_bytes, read_ceiling, refill_l2

CEILING_ROUNDS = 5


class GpuRunner:
    """Runs one source, and the stage's own beside it, on the GPU of this process."""

    def __init__(self, opening: Mapping[str, Any]) -> None:
        self.stage: Stage = find_stage(opening["stage"])
        self.source = Source(opening["name"], opening["text"])
        self.engine = GpuEngine()
        self.xp = self.engine.xp
        self._modules: dict[tuple, Any] = {}
        self._keep: list[Any] = []

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Run the calls of one problem, or time one; whatever goes wrong is in the answer."""
        problem = problem_from(request["problem"])
        if reason := self.stage.supports(problem, self.engine.device):
            return {"error": {"kind": "device", "message": reason}}
        errors = (self.xp.cuda.runtime.CUDARuntimeError, self.xp.cuda.driver.CUDADriverError)
        try:
            if "rounds" in request:
                sets = [inputs_from(sent) for sent in request["calls"]]
                return self._time(problem, sets, request["rounds"], request["signs"])
            plan = plan_of(self.stage, problem, self.engine.device, request)
            return {"calls": [self._call(problem, plan, inputs_from(sent)) for sent in request["calls"]]}
        except errors as error:  # the context is lost: the grader starts another child
            return {"error": {"kind": "fault", "message": str(error)[:1000]}}
        except Exception as error:
            return {"error": describe(error)}

    def _prepare(self, problem: Problem, inputs: Inputs, source: Source, plan: Plan, arrays: Any) -> Call:
        key = (source, tuple(sorted(plan.defines.items())))
        if key not in self._modules:  # one module for all calls: state that a kernel keeps is kept
            self._modules[key] = self.engine.module(source, plan.defines)
        module = self._modules[key]
        engine = _WithModule(self.engine, module)
        call = engine.prepare(self.stage, problem, inputs, source, plan, arrays)
        self._keep.append(call)
        return call

    def _call(self, problem: Problem, plan: Plan, inputs: Inputs) -> dict[str, Any]:
        arrays = self.engine.upload(inputs)
        call = self._prepare(problem, inputs, self.source, plan, arrays)
        call()
        self.xp.cuda.runtime.deviceSynchronize()
        back = Inputs(**{name: self.xp.asnumpy(a) for name, a in arrays.items()}, scale=inputs.scale)
        return {"output": self.engine.read(call, problem), "inputs": hash_inputs(back), "findings": []}

    def _time(
        self, problem: Problem, sets: list[Inputs], rounds: int, signs: list[list[int]]
    ) -> dict[str, Any]:
        """Both kernels over all sets in every round, in alternating order, each as one CUDA graph.

        Args:
            problem, sets: the sets together pass the L2 cache.
            rounds: measurements.
            signs: per round and set, 1 or −1: what the query is multiplied by in that round.
        """
        xp, ceiling = self.xp, self._ceiling()
        with xp.cuda.Stream(non_blocking=True) as stream:
            arrays = [self.engine.upload(inputs) for inputs in sets]
            queries = [{sign: xp.asarray(plain(sign * one.query)) for sign in (1, -1)} for one in sets]
            plan = self.stage.plan(problem, self.engine.device)
            contenders = {
                name: [
                    self._prepare(problem, one, source, plan, array)
                    for one, array in zip(sets, arrays, strict=True)
                ]
                for name, source in (("student", self.source), ("reference", self.stage.source()))
            }
            graphs = {name: captured(stream, calls) for name, calls in contenders.items()}
            between = refill_l2(self.engine)  # each finds the same in it, whatever ran and was filled before
            seconds: dict[str, list[float]] = {name: [] for name in contenders}
            outputs = []
            for number in range(rounds):
                for array, query, sign in zip(arrays, queries, signs[number], strict=True):
                    array["query"][...] = query[sign]
                names = list(contenders) if number % 2 == 0 else list(contenders)[::-1]
                for name in names:
                    for call in contenders[name]:
                        self.engine.poison(call.output)
                    start, end = xp.cuda.Event(), xp.cuda.Event()
                    between()
                    start.record(stream)
                    graphs[name].launch(stream)
                    end.record(stream)
                    end.synchronize()
                    seconds[name].append(xp.cuda.get_elapsed_time(start, end) / 1e3 / len(sets))
                chosen = number % len(sets)
                output = self.engine.read(contenders["student"][chosen], problem)
                outputs.append({"set": chosen, "output": output})
        # Of two: a neighbour on the GPU may slow one down, and a kernel that is as fast is no cheat then.
        ceiling = max(ceiling, self._ceiling())
        return {"seconds": seconds, "outputs": outputs, "ceiling": ceiling, "gpu": self.engine.device.name}

    def _ceiling(self) -> float:
        """Bytes per second of plain reading."""
        return read_ceiling(self.engine, min(ceiling_bytes(self.engine), 1 << 30), CEILING_ROUNDS)


class _WithModule(GpuEngine):
    """The engine with a module that is compiled already."""

    def __init__(self, engine: GpuEngine, module: Any) -> None:
        self.__dict__.update(engine.__dict__)
        self._module = module

    def module(self, source: Source, defines: Mapping[str, object] | None = None) -> Any:
        """The module that was given, whatever is asked for."""
        return self._module
