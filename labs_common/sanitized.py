"""Every stage once in this process, for compute-sanitizer around it.

    compute-sanitizer --tool racecheck python -m labs_common.sanitized [STAGE…]

CuPy's memory pool rounds allocations up and so hides overruns; it is switched off.
"""

from __future__ import annotations

import sys

from labs_common.compare import compare
from labs_common.engines import GpuEngine
from labs_common.inputs import make_inputs
from labs_common.problem import PRESETS, Problem
from labs_common.reference import reference
from labs_common.stages import ALL_STAGES, find_stage

PROBLEMS = (
    PRESETS["tiny"],
    Problem(8, 2, 128, 16, (0, 1, 16, 77), name="ragged small"),
    Problem(6, 1, 96, 8, (600, 33), name="odd"),
    Problem(6, 1, 64, 16, (530, 17), dtype="float16", name="half"),
    Problem(6, 1, 64, 16, (530, 17), dtype="float16", layout="packed", name="half packed"),
)


def main(names: list[str]) -> int:
    """Run stages on small problems; 1 where an output is wrong, else 0."""
    engine = GpuEngine()
    engine.xp.cuda.set_allocator(None)
    wrong = 0
    for stage in [find_stage(name) for name in names] or ALL_STAGES:
        for problem in PROBLEMS:
            if stage.supports(problem, engine.device) is not None:
                continue
            inputs = make_inputs(problem)
            call = engine.prepare(stage, problem, inputs)
            call()
            engine.xp.cuda.Device().synchronize()
            verdict = compare(engine.read(call, problem), reference(problem, inputs), stage.weights(problem))
            print(f"{stage.id} {problem.name}: {verdict.diagnosis}")
            wrong += not verdict.ok
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
