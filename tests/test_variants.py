"""Variants of stages: right wherever the stage is, on every engine."""

import pytest

from labs_common.compare import compare
from labs_common.inputs import make_inputs
from labs_common.problem import Problem
from labs_common.reference import reference
from labs_common.source import KERNELS
from labs_common.variants import VARIANTS

PROBLEMS = (
    Problem(12, 2, 64, 16, (40, 17, 0, 1, 600)),
    Problem(12, 2, 64, 16, (40, 17, 0, 1, 600), "float16", "packed"),
    Problem(16, 1, 96, 8, (77, 64), "float16", "HND"),
    Problem(3, 3, 256, 16, (33,)),
)
by_id = pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.id)


def test_every_file_is_registered():
    assert sorted(v.id for v in VARIANTS) == sorted(p.stem for p in (KERNELS / "variants").glob("*.cu"))


@by_id
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_a_variant_is_right(engine, variant, problem):
    inputs = make_inputs(problem)

    outcome = engine.run(
        variant, problem, inputs, plan=variant.plan(problem, engine.device, partition_tokens=64)
    )

    assert outcome.findings == ()
    verdict = compare(outcome.output, reference(problem, inputs))
    assert verdict.ok, verdict.diagnosis


@by_id
def test_a_second_call_on_the_same_scratch_is_right_again(engine, variant):
    """Counters are back at zero when a call ends."""
    problem = PROBLEMS[0]
    inputs = make_inputs(problem)
    call = engine.prepare(variant, problem, inputs, plan=variant.plan(problem, partition_tokens=64))

    for _ in range(2):
        call.output.fill(float("nan"))
        call()

        assert compare(engine.xp.asnumpy(call.output), reference(problem, inputs)).ok
