"""What a child does on a GPU: run hidden problems, and time a kernel interleaved with the reference kernel.

As in ``execution``, nothing here judges. A kernel is timed on queries that change from round to round, into
outputs that are poisoned before each, so that one which skips work gives a wrong output in that round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from labs_common.engines import Call, GpuEngine
from labs_common.grading.execution import describe, hash_inputs, inputs_from, problem_from
from labs_common.inputs import Inputs
from labs_common.problem import Problem
from labs_common.source import Source
from labs_common.stages import Stage, find_stage
from labs_common.timing import ceiling_bytes, plain_reading, read_ceiling

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
        errors = (self.xp.cuda.runtime.CUDARuntimeError, self.xp.cuda.driver.CUDADriverError)
        try:
            if "rounds" in request:
                sets = [inputs_from(sent) for sent in request["calls"]]
                return self._time(problem, sets, request["rounds"], request["signs"])
            return {"calls": [self._call(problem, inputs_from(sent)) for sent in request["calls"]]}
        except errors as error:  # the context is lost: the grader starts another child
            return {"error": {"kind": "fault", "message": str(error)[:1000]}}
        except Exception as error:
            return {"error": describe(error)}

    def _prepare(self, problem: Problem, inputs: Inputs, source: Source, arrays: Any = None) -> Call:
        plan = self.stage.plan(problem, self.engine.device)
        key = (source, tuple(sorted(plan.defines.items())))
        if key not in self._modules:  # one module for all calls: state that a kernel keeps is kept
            self._modules[key] = self.engine.module(source, plan.defines)
        module = self._modules[key]
        engine = _WithModule(self.engine, module)
        call = engine.prepare(self.stage, problem, inputs, source, plan, arrays)
        self._keep.append(call)
        return call

    def _call(self, problem: Problem, inputs: Inputs) -> dict[str, Any]:
        arrays = self.engine.upload(inputs)
        call = self._prepare(problem, inputs, self.source, arrays)
        call()
        self.xp.cuda.runtime.deviceSynchronize()
        back = Inputs(**{name: self.xp.asnumpy(a) for name, a in arrays.items()}, scale=inputs.scale)
        return {"output": self.xp.asnumpy(call.output), "inputs": hash_inputs(back), "findings": []}

    def _time(
        self, problem: Problem, sets: list[Inputs], rounds: int, signs: list[list[int]]
    ) -> dict[str, Any]:
        """Both kernels over all sets in every round, in alternating order.

        Args:
            problem, sets: the sets together pass the L2 cache.
            rounds: measurements.
            signs: per round and set, 1 or −1: what the query is multiplied by in that round.
        """
        xp = self.xp
        arrays = [self.engine.upload(inputs) for inputs in sets]
        queries = [array["query"].copy() for array in arrays]
        own = self.stage.source()
        contenders = {
            "student": [self._prepare(problem, i, self.source, a) for i, a in zip(sets, arrays, strict=True)],
            "reference": [self._prepare(problem, i, own, a) for i, a in zip(sets, arrays, strict=True)],
        }
        for calls in contenders.values():
            for call in calls:
                call()  # modules are loaded at the first launch
        xp.cuda.runtime.deviceSynchronize()
        between = plain_reading(self.engine)  # neither kernel may leave the other a worse L2 cache
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        outputs = []
        for number in range(rounds):
            for array, query, sign in zip(arrays, queries, signs[number], strict=True):
                xp.multiply(query, sign, out=array["query"])
            names = list(contenders) if number % 2 == 0 else list(contenders)[::-1]
            for name in names:
                for call in contenders[name]:
                    call.output.fill(np.nan)
                start, end = xp.cuda.Event(), xp.cuda.Event()
                between()
                xp.cuda.runtime.deviceSynchronize()
                start.record()
                for call in contenders[name]:
                    call()
                end.record()
                end.synchronize()
                seconds[name].append(xp.cuda.get_elapsed_time(start, end) / 1e3 / len(sets))
            chosen = number % len(sets)
            outputs.append({"set": chosen, "output": xp.asnumpy(contenders["student"][chosen].output)})
        nbytes = min(ceiling_bytes(self.engine), 1 << 30)
        return {
            "seconds": seconds,
            "outputs": outputs,
            "ceiling": read_ceiling(self.engine, nbytes, CEILING_ROUNDS),
            "gpu": self.engine.device.name,
        }


class _WithModule(GpuEngine):
    """The engine with a module that is compiled already."""

    def __init__(self, engine: GpuEngine, module: Any) -> None:
        self.__dict__.update(engine.__dict__)
        self._module = module

    def module(self, source: Source, defines: Mapping[str, object] | None = None) -> Any:
        """The module that was given, whatever is asked for."""
        return self._module
