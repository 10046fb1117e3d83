"""Does a kernel do what its stage asks? The one implementation behind notebook, command line and grader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from labs_common import metric_names as names
from labs_common import metrics as metrics_table
from labs_common.compare import Verdict, compare
from labs_common.compiler import CompileError
from labs_common.diagnose import Diagnosis, diagnose_kernel, kinds_of_sequences, no_answer
from labs_common.engines import Engine, LaunchError, SimulatorEngine
from labs_common.inputs import Inputs, make_inputs
from labs_common.metrics import Metrics
from labs_common.plans import Device, Plan, most_block_heads
from labs_common.probes import score_level
from labs_common.problem import FP8, PRESETS, Problem
from labs_common.reference import reference
from labs_common.simt.errors import Fault, Finding, SimulationError
from labs_common.source import Source
from labs_common.stages import Stage

# What stands in place of a score that does not exist, a 0 above all, outweighs every token here.
NEGATIVE = Problem(4, 2, 64, 16, (45, 17, 5), name="very negative scores")
NEGATIVE_SCORE = -160.0  # exp of it is 0 in fp32
# Small first, then what breaks kernels: an empty context, one token, whole and partial pages, a head_dim
# that is no multiple of 32, groups that are no power of two and one of more than 8 that has no equal halves,
# odd page sizes, a page too large for shared memory, scores far below 0.
CHECK_PROBLEMS: tuple[Problem, ...] = (
    PRESETS["tiny"],
    PRESETS["ragged"],
    Problem(6, 2, 96, 8, (0, 7, 8, 9, 61), name="odd head_dim"),
    Problem(11, 1, 20, 5, (33, 1), name="odd group"),
    Problem(2, 2, 256, 32, (100,), name="wide head"),
    Problem(2, 1, 256, 128, (150,), name="large page"),
    NEGATIVE,
)
# For the stages towards the roof: their number formats, a page of two tiles, a tile of two pages. A block
# of 08 and 09 has 8 sets of heads in the third, 1 in the fourth, 2 in the others. The last set of the group
# of 11 is shorter, and its last sequence stays whole; the fourth and the sixth have three groups of sets,
# with cuts.
ROOF_PROBLEMS: tuple[Problem, ...] = (
    *CHECK_PROBLEMS[:2],
    Problem(24, 8, 96, 8, (0, 7, 8, 9, 61), name="eight heads"),
    Problem(3, 3, 256, 32, (100, 20), name="wide head, fp32"),
    Problem(11, 1, 64, 8, (530, 35), "float16", "HND", name="large group, HND"),
    Problem(12, 6, 128, 32, (1, 210), FP8, name="fp8 cache", key_scale=0.5, value_scale=1.5),
)
FEW_BLOCKS = 3
LONG_CONTEXT = 512  # tokens; a problem with a longer one has a block for every 48 tokens, and so many pieces
_ALIKE = 0.02  # of a row: what 16 bits may differ, and no forgotten factor is that near to 1
# In which problems may differ, in words.
_SET_APART = {
    "dtype": "the cache's numbers are",
    "layout": "the layout is",
    "head_dim": "head_dim is",
    "page_size": "a page's tokens are",
    "group_size": "the query heads to a key/value head are",
}


def check_problems(stage: Stage) -> tuple[Problem, ...]:
    """What a kernel of a stage is checked on, those first that are taught with."""
    if not stage.towards_roof:
        return CHECK_PROBLEMS
    taught = [stage.typed(problem) for problem in (*ROOF_PROBLEMS[:3], NEGATIVE)]
    return (*taught[:3], *ROOF_PROBLEMS[3:], taught[3])


def check_inputs(problem: Problem, seed: int = 0) -> Inputs:
    """The arrays that a check runs a problem on: ``make_inputs``, with the scores of ``NEGATIVE`` moved."""
    inputs = make_inputs(problem, seed)
    if not problem.name.startswith(NEGATIVE.name):
        return inputs
    return score_level(problem, inputs, np.full(problem.batch, NEGATIVE_SCORE))


def check_plan(stage: Stage, problem: Problem, device: Device) -> Plan:
    """A stage's launches for a problem of a check.

    Where the host plans runs for all multiprocessors, a small problem gives each block a single tile; all but
    the smallest are cut for few blocks, so that a block has several segments and a segment several tiles. A
    long context is cut into many pieces, so that threads of a merge share them. A block has as many sets of
    heads as can be. A planner of somebody's own is asked for what it takes of this.
    """
    plan = stage.plan(problem, device)
    if "segments" not in plan.tables or problem == stage.typed(CHECK_PROBLEMS[0]):
        return plan
    long = max(problem.context_lengths, default=0) > LONG_CONTEXT
    blocks = sum(problem.context_lengths) // 48 if long else FEW_BLOCKS
    asked = stage.taken_options(blocks=blocks, block_heads=most_block_heads(problem), whole=False)
    return stage.plan(problem, device, **asked)


@dataclass(frozen=True)
class Result:
    """One problem's part of a report.

    Attributes:
        problem: what was computed.
        verdict: None where the kernel did not finish.
        findings: what the checks found.
        metrics: what was counted or measured.
        error: why there is no verdict, or what is wrong beside the output, for a person.
        answered: whether any number of the output is finite and not 0.
        factor: what every wrong row is of the right one; None where they are something else.
        wrong_rows: sequences with a wrong row that ``factor`` is of.
    """

    problem: Problem
    verdict: Verdict | None
    findings: tuple[Finding, ...] = ()
    metrics: Metrics | None = None
    error: str | None = None
    answered: bool = False
    factor: float | None = None
    wrong_rows: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        """Right, and no error found; a warning does not count against a kernel."""
        errors = [finding for finding in self.findings if finding.severity == "error"]
        return self.verdict is not None and self.verdict.ok and self.error is None and not errors


@dataclass(frozen=True, repr=False)
class Report:
    """What ``check`` found.

    Attributes:
        stage: id of the stage that was asked for.
        source_name: file name of the kernel.
        engine: name of the engine.
        results: per problem; empty where the source does not compile.
        error: why nothing could be run, for a person.
        diagnosis: what is wrong, where something is and it could be told; see ``diagnose``.
    """

    stage: str
    source_name: str
    engine: str
    results: tuple[Result, ...] = ()
    error: str | None = None
    diagnosis: Diagnosis | None = None

    def __repr__(self) -> str:
        """Short: a notebook shows the last value of a cell."""
        return f"<Report on {self.source_name} as {self.stage}: {'right' if self.ok else 'not right'}>"

    @property
    def ok(self) -> bool:
        """Every problem is right and clean."""
        return self.error is None and all(result.ok for result in self.results)

    @property
    def warned(self) -> bool:
        """Whether a check found what works by habit and not by the rules."""
        return any(finding.severity == "warning" for result in self.results for finding in result.findings)

    @property
    def metrics(self) -> Metrics:
        """All that was counted or measured."""
        return metrics_table.concat([r.metrics for r in self.results if r.metrics is not None])


def check(
    source: Source,
    stage: Stage,
    engine: Engine,
    problems: Sequence[Problem] | None = None,
    seed: int = 0,
    diagnose: bool = True,
) -> Report:
    """Compile somebody's kernel in a stage's place, run it on each problem, and compare.

    Nothing that the kernel does raises: a compile error, a fault and a wrong answer are all in the report.

    Args:
        source: the kernel file; it must hold the stage's entry names.
        stage: whose plan and arguments are used.
        engine: where it runs.
        problems: by default those of ``check_problems``; what the stage refuses is left out.
        seed: of the inputs.
        diagnose: run a kernel that is not right on the probes of ``faults``, and name what is wrong.
    """
    if stage.fixes_shapes and isinstance(engine, SimulatorEngine):
        engine = engine.interpreting()
    results = []
    for problem in check_problems(stage) if problems is None else problems:
        if stage.supports(problem, engine.device) is not None:
            continue
        try:
            results.append(_run(source, stage, engine, problem, seed))
        except (CompileError, ValueError) as error:
            return Report(stage.id, source.name, engine.name, tuple(results), str(error))
    diagnosis = None
    if diagnose and not all(result.ok for result in results):
        findings = [finding for result in results for finding in result.findings]
        answered = any(result.answered for result in results)
        diagnosis = diagnose_kernel(source, stage, engine, findings, answered)
        diagnosis = diagnosis or scale_forgotten(results, stage, engine.device)
        diagnosis = diagnosis or set_apart(results, stage, engine.device)
        if diagnosis is not None and no_answer(diagnosis):
            diagnosis = replace(diagnosis, sentence=diagnosis.sentence + how_much_is_read(results, stage))
    return Report(stage.id, source.name, engine.name, tuple(results), diagnosis=diagnosis)


def set_apart(
    results: Sequence[Result], stage: Stage | None = None, device: Device | None = None
) -> Diagnosis | None:
    """How many problems are right, and what only the wrong ones have; None where none or all are wrong.

    Args:
        results: of the problems.
        stage, device: whose plan of each problem is compared as well.
    """
    wrong = [result.problem for result in results if not result.ok]
    right = [result.problem for result in results if result.ok]
    if not wrong or not right:
        return None
    others = {trait for problem in right for trait in _traits(problem, stage, device)}
    of_all = [_traits(problem, stage, device) for problem in wrong]
    only = [t for t in of_all[0] if t not in others and all(t in traits for traits in of_all)]
    called = ", ".join(f"“{problem.name}”" for problem in wrong)
    are = "is" if len(wrong) == 1 else "are"
    sentence = f"{len(right)} of {len(results)} problems are right; {called} {are} not"
    return Diagnosis(None, None, sentence + (f": only there {', '.join(only)}." if only else "."))


def _traits(problem: Problem, stage: Stage | None, device: Device | None) -> list[str]:
    """What a problem and a stage's plan for it are like, in words that another problem may share."""
    traits = [f"{words} {getattr(problem, field)}" for field, words in _SET_APART.items()]
    if problem.name.startswith(NEGATIVE.name):
        traits.append("all scores are far below 0")
    if stage is None or "segments" not in (plan := check_plan(stage, problem, device or Device())).tables:
        return traits
    sets = problem.kv_heads * -(-problem.group_size // 8)
    heads, most = plan.defines.get("BLOCK_HEADS"), plan.tables["segments"][:, 5].max(initial=0)
    if heads is not None:
        traits.append(f"a block attends for {heads} of {sets} sets of heads (BLOCK_HEADS {heads})")
    if problem.group_size > 8 and problem.group_size % 2:
        traits.append("the last set of a group has fewer heads")
    if plan.defines.get("MERGE_ROWS", 1) > 1:
        traits.append(f"{plan.defines['MERGE_ROWS']} threads of the merge share a column (MERGE_ROWS)")
    if most > 8:
        traits.append(f"a sequence is cut into {most} pieces")
    return traits


def scale_forgotten(
    results: Sequence[Result], stage: Stage, device: Device | None = None
) -> Diagnosis | None:
    """Says so where all that is wrong is wrong by value_scale, or by its inverse."""
    wrong = [result for result in results if not result.ok]
    for result in wrong[:1]:
        scale, factor = result.problem.value_scale, result.factor
        if factor is None or scale == 1 or any(other.factor is None for other in wrong):
            continue
        for what, of in (("is not applied", 1 / scale), ("is applied twice", scale)):
            if abs(factor / of - 1) <= _ALIKE:
                where = _which_sequences(result, check_plan(stage, result.problem, device or Device()))
                sentence = (
                    f"Every wrong row of “{result.problem.name}” is {factor:.3g} times the right one: "
                    f"value_scale, {scale:g} there, {what}{where}. All else is right."
                )
                return Diagnosis(None, "merge", sentence, result.problem.name, result.wrong_rows[0])
    return None


def _which_sequences(result: Result, plan: Plan) -> str:
    """Of which sequences the wrong rows are, where the plan leaves some whole and cuts others."""
    whole, cut = (
        {row for row, kind in enumerate(kinds_of_sequences(result.problem, plan)) if kind == one}
        for one in ("whole", "cut")
    )
    if not whole or not cut:
        return ""
    if set(result.wrong_rows) == cut:
        return " in sequences that were cut, which the merge writes"
    return " in whole sequences, which their block writes" if set(result.wrong_rows) == whole else ""


def how_much_is_read(results: Sequence[Result], stage: Stage) -> str:
    """How far a kernel without an answer gets: what it reads beside the keys and values that there are."""
    told = [result for result in results if result.metrics is not None and result.problem.kv_bytes]
    if not told:
        return ""
    result = max(told, key=lambda one: one.problem.kv_bytes)
    read = metrics_table.value(
        metrics_table.select(result.metrics, line=None), names.DRAM_READ_BYTES, kernel=stage.entry
    )
    if np.isnan(read):
        return ""
    share = f"{read / result.problem.kv_bytes:.0%} of the bytes" if read else "none"
    return f" Of the keys and values of “{result.problem.name}” it reads {share}, all that it reads counted."


def _run(source: Source, stage: Stage, engine: Engine, problem: Problem, seed: int) -> Result:
    inputs = check_inputs(problem, seed)
    try:
        outcome = engine.run(stage, problem, inputs, source, check_plan(stage, problem, engine.device))
    except Fault as error:
        return Result(problem, None, (error.finding.reworded(source.readable),), error="a check stopped it")
    except (LaunchError, SimulationError) as error:
        return Result(problem, None, error=source.readable(str(error)))
    expected = reference(problem, inputs)
    verdict = compare(outcome.output, expected, stage.weights(problem))
    output = np.asarray(outcome.output, np.float64)
    answered = bool((np.isfinite(output) & (output != 0)).any())
    factor, rows = (None, ()) if verdict.ok or not answered else common_factor(output, expected.output)
    findings = tuple(finding.reworded(source.readable) for finding in outcome.findings)
    error = None
    if outcome.counters_left:
        left = " and ".join(outcome.counters_left)
        error = f"after the call {left} is not zero again, and the next call goes on from there"
        error = f"the output is right, but {error}" if verdict.ok else f"{verdict.diagnosis}; and {error}"
    return Result(problem, verdict, findings, outcome.metrics, error, answered, factor, rows)


def common_factor(output: np.ndarray, expected: np.ndarray) -> tuple[float | None, tuple[int, ...]]:
    """What every wrong row of an output is of the right one, and the sequences of these rows.

    Args:
        output, expected: ``[batch, query_heads, head_dim]``, float64.

    Returns:
        (None, ()) where no single factor explains all rows.
    """
    size = (expected**2).sum(axis=2)
    told = size > 0
    factor = np.divide((output * expected).sum(axis=2), size, out=np.ones_like(size), where=told)
    rest = np.sqrt(((output - factor[..., None] * expected) ** 2).sum(axis=2))
    if not np.isfinite(output).all() or (rest > _ALIKE * np.sqrt(size)).any():
        return None, ()
    wrong = told & (np.abs(factor - 1) > _ALIKE)
    if not wrong.any() or np.ptp(factor[wrong]) > _ALIKE * np.abs(factor[wrong]).max():
        return None, ()
    return float(np.median(factor[wrong])), tuple(int(row) for row in np.flatnonzero(wrong.any(axis=1)))
