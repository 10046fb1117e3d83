"""Your turn: ``start`` writes a stage's kernel without its body, ``check`` tells what yours does."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from labs_common.check import Report, check_problems
from labs_common.check import check as check_source
from labs_common.course import Exercise, Step, exercise_of
from labs_common.diagnose import Diagnosis, diagnose_finding
from labs_common.engines import Engine, open_engine
from labs_common.faults import TOPICS
from labs_common.plans import Plan
from labs_common.problem import Problem
from labs_common.source import BEGIN, KERNELS, CutError, Source, regions, shown_path
from labs_common.stages import Stage, find_stage

OWN_KERNELS = KERNELS / "mine"
_WIDTH = 100
_OWN_PLAN = (
    "A plan of your own is a function of (entry, problem, device) as in labs_common/plans.py; it may change "
    "what the stage's own gives, dataclasses.replace(stage.planner(entry, problem, device), …). check(…, "
    "planner=…, problems=[…]) of labs_common.exercise takes it, in a notebook or in Python; so do "
    "count_mine(…, planner=…) and occupancy_mine of labs_common.lessons, which tells registers, shared "
    "memory and blocks on an SM."
)
_RETURNS_VALUE = re.compile(r"\breturn\b\s*[^;\s]")


def cut(source: Source, exercise: Exercise | None = None) -> Source:
    """A kernel without what is between its markers; numbered TODOs in its place.

    Signatures, helpers and markers stay, and so do comments that begin with ``STEP``. A region that returns a
    value returns an empty one, so that the cut kernel compiles.

    Args:
        source: a kernel with at least one region.
        exercise: its steps; without, regions are left empty.

    Raises:
        CutError: no region, a broken marker, or a step of a region that is not there.
    """
    spans = regions(source)
    if not spans:
        raise CutError(f"{source.name} has no {BEGIN}")
    steps = exercise.steps if exercise else ()
    if any(step.region >= len(spans) for step in steps):
        raise CutError(f"{source.name} has {len(spans)} regions; a step names another")
    lines = source.text.splitlines()
    kept: list[str] = []
    after = 0
    for number, (begin, end) in enumerate(spans):
        kept += lines[after : begin + 1]
        indent = lines[begin][: len(lines[begin]) - len(lines[begin].lstrip())]
        for position, step in enumerate(steps, 1):
            if step.region == number:
                kept += _todo(position, step, indent)
        body = lines[begin + 1 : end]
        kept += [line for line in body if line.strip().startswith("// STEP")]
        if any(_RETURNS_VALUE.search(line.split("//")[0]) for line in body):
            kept.append(f"{indent}return {{}};")
        after = end
    kept += lines[after:]
    return replace(source, text="\n".join(kept) + "\n")


def _todo(number: int, step: Step, indent: str) -> list[str]:
    return textwrap.wrap(
        f"TODO {number}: {step.task}",
        _WIDTH,
        initial_indent=f"{indent}// ",
        subsequent_indent=f"{indent}//   ",
    )


def start(stage: str | int, folder: Path = OWN_KERNELS, overwrite: bool = False) -> Path:
    """Write a stage's kernel for you to fill in, ``kernels/mine/<id>.cu``.

    A file that is there already is yours and stays as it is.

    Args:
        stage: by id or unique prefix.
        folder: where your kernels are.
        overwrite: begin anew; what was there is kept beside it as ``<id>.before-<n>.cu``.

    Returns:
        The path of your kernel.

    Raises:
        ValueError: no such stage, or one without exercise.
    """
    chosen = find_stage(stage)
    path = Path(folder) / chosen.path.name
    fresh = cut(chosen.source(), exercise_of(chosen.id)).text
    if path.exists():
        if not overwrite:
            print(f"{shown_path(path)} is there already, and is yours; start(…, overwrite=True) begins anew")
            return path
        if path.read_text(encoding="utf-8-sig") != fresh:
            _set_aside(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(fresh, encoding="utf-8")
    print(f"{shown_path(path)} is yours to fill in: {len(exercise_of(chosen.id).steps)} steps")
    return path


def _set_aside(path: Path) -> None:
    number = 1
    while (old := path.with_name(f"{path.stem}.before-{number}.cu")).exists():
        number += 1
    path.rename(old)
    print(f"what was there is now {shown_path(old)}")


def own_source(stage: str | int | Stage, folder: Path = OWN_KERNELS) -> Source:
    """Your kernel of a stage.

    Raises:
        FileNotFoundError: you have none yet; the message says how to begin.
    """
    chosen = stage if isinstance(stage, Stage) else find_stage(stage)
    path = Path(folder) / chosen.path.name
    if not path.exists():
        raise FileNotFoundError(f'there is no {shown_path(path)} yet; start("{chosen.id}") writes it')
    return Source.read(path)


def is_own(kernel: str, stage: str | None = None) -> bool:
    """Whether a command's kernel names a stage, and so means your own kernel of it, not a file."""
    return stage is None and not Path(kernel).suffix


def has_steps(source: Source, stage: Stage) -> bool:
    """Whether a kernel was written into what ``start`` gives, so that its steps can be told of."""
    try:
        return len(regions(source)) == len(regions(stage.source())) > 0
    except CutError:
        return False


def chosen_kernel(kernel: str, stage: str | None = None, folder: Path = OWN_KERNELS) -> tuple[Source, Stage]:
    """The kernel that a command means, and the stage in whose place it runs.

    Args:
        kernel: a file, or a stage for your own kernel of it.
        stage: of a file; by default the one that the file is named after.
        folder: where your kernels are.

    Raises:
        FileNotFoundError: no such file, or no kernel of yours.
        ValueError: neither a file nor a stage, or a file whose stage is not known.
    """
    path = Path(kernel)
    if is_own(kernel, stage):
        chosen = find_stage(kernel)
        return own_source(chosen, folder), chosen
    source = Source.read(path)
    try:
        return source, find_stage(path.stem if stage is None else stage)
    except ValueError as error:
        hint = "; name the stage with --stage" if stage is None else ""
        raise ValueError(f"{error}{hint}") from None


def hints(stage: str | int, step: int, level: int = 1) -> str:
    """A hint on one step of a stage.

    Args:
        stage: by id or unique prefix.
        step: its number, as in the kernel's TODO.
        level: 1 asks a question, 2 gives the idea, 3 nearly the code.

    Raises:
        ValueError: no such stage, step or level; the message says what there is.
    """
    chosen = find_stage(stage)
    steps = exercise_of(chosen.id).steps
    if not _whole_in(step, len(steps)):
        raise ValueError(f"step={step!r}: {chosen.id} has steps 1 to {len(steps)}")
    levels = steps[step - 1].hints
    if not _whole_in(level, len(levels)):
        raise ValueError(f"level={level!r}: there are levels 1 to {len(levels)}")
    return levels[level - 1]


def _whole_in(number: object, last: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= last


def stretch(stage: str | int) -> tuple[str, ...]:
    """What there is to do in a stage for those who are done; nothing checks it."""
    return exercise_of(find_stage(stage).id).stretch


@dataclass(frozen=True)
class StepState:
    """How far one step is.

    Attributes:
        number: from 1.
        task: what is to be done.
        done: True, False, or None where it cannot be told before other steps are right.
        why: for a person.
    """

    number: int
    task: str
    done: bool | None
    why: str


def progress(report: Report) -> list[StepState]:
    """Which steps of a stage a kernel has right.

    A right kernel has all of them. A known fault is of one step, or of one topic: the steps of other topics
    are right, since the output is exactly that of the one fault. Where several steps have a part in its
    topic, it is told of each that it may be in the others. With a right output and a race it is the steps
    that place barriers. Otherwise nothing can be told step by step.

    Args:
        report: of ``check``.

    Raises:
        ValueError: the stage has no exercise.
    """
    steps = exercise_of(report.stage).steps
    blamed = _blamed(report.diagnosis, steps)
    races = _only_races(report)
    placing = [number for number, step in enumerate(steps, 1) if step.barriers]
    fine = sum(result.ok for result in report.results)
    states = []
    for number, step in enumerate(steps, 1):
        if report.ok:
            done, why = True, "right, with the warning above" if report.warned and step.barriers else "right"
        elif races and step.barriers:
            done, why = False, "a barrier is missing, or stands in the wrong place"
        elif races:
            done, why = True, "right, as far as the numbers show"
            why += "" if placing else "; the race is between lines that were given"
        elif not blamed:
            done, why = (
                None,
                "cannot be told yet"
                + (f"; {fine} of {len(report.results)} problems are right" if fine else ""),
            )
        elif number in blamed:
            done, why = False, f"something is wrong with {TOPICS[report.diagnosis.topic]}"
            if others := " or ".join(str(other) for other in blamed if other != number):
                done, why = None, f"{why}, here or in step {others}"
        else:
            done, why = True, "right, as far as the numbers show"
        states.append(StepState(number, step.task, done, why))
    return states


def _blamed(diagnosis: Diagnosis | None, steps: Sequence[Step]) -> list[int]:
    """Numbers of the steps that a diagnosis may be of; none where it names no step's fault or topic."""
    if diagnosis is None or diagnosis.topic is None:
        return []
    named = [number for number, step in enumerate(steps, 1) if diagnosis.fault in step.faults]
    return named or [number for number, step in enumerate(steps, 1) if diagnosis.topic in step.topics]


def _only_races(report: Report) -> bool:
    """Whether every output is right and all that was found are races."""
    found = [one for result in report.results for one in result.findings if one.severity == "error"]
    return (
        bool(found)
        and all(one.tool == "racecheck" for one in found)
        and all(result.verdict is not None and result.verdict.ok for result in report.results)
    )


def check(
    stage: str | int,
    engine: Engine | None = None,
    folder: Path = OWN_KERNELS,
    planner: Callable[..., Plan] | None = None,
    problems: Sequence[Problem] | None = None,
) -> Report:
    """Compile your kernel of a stage, run it on small and ragged problems, and print what is right and wrong.

    Args:
        stage: by id or unique prefix.
        engine: where it runs; by default the GPU where there is one, else the simulator.
        folder: where your kernels are.
        planner: launches your kernel in place of the stage's own, for a stretch exercise that changes the
            launch; called with (entry, problem, device) and, of the options with which ``check`` makes a plan
            harder (blocks, block_heads, whole), with those that it takes.
        problems: in place of the usual ones; those that the planner refuses are left out.

    Raises:
        FileNotFoundError: you have no kernel of the stage yet.
        ValueError: the planner refuses every problem, or cannot be called as the functions of ``plans`` are.
    """
    from labs_common.runner import print_report

    console = Console(width=110)
    chosen = find_stage(stage)
    if planner is not None:
        _refuse_signature(planner)
        chosen = replace(chosen, planner=planner)
    engine = engine or open_engine("auto")
    asked = () if problems is None else (problems,)
    source = own_source(chosen, folder)
    report = check_source(source, chosen, engine, *asked, diagnose=planner is None)
    if not report.results and report.error is None:
        reasons = {chosen.supports(problem, engine.device) for problem in problems or check_problems(chosen)}
        raise ValueError(f"nothing was run: {'; '.join(sorted(map(str, reasons)))}")
    if planner is not None and (findings := [one for result in report.results for one in result.findings]):
        report = replace(report, diagnosis=diagnose_finding(findings[0], source, chosen))
    print_report(report, console)
    if planner is None or report.ok:
        print_steps(report, console)
    elif report.error is None:
        _print_whose(source, find_stage(stage), planner, engine, console)
    return report


def _print_whose(
    source: Source, stage: Stage, planner: Callable[..., Plan], engine: Engine, console: Console
) -> None:
    """Whether it is a plan of somebody's own that is wrong, as far as the lab's own plan shows."""
    with_labs = check_source(source, stage, engine, diagnose=False)
    right = sum(result.ok for result in with_labs.results)
    if with_labs.ok:
        told = (
            "your kernel is right, and so are its steps: what is wrong is the plan, or what this kernel "
            "expects of it (grid, tables, scratch, counters)"
        )
    else:
        told = (
            f"{right} of {len(with_labs.results)} problems are right, so that it cannot be told whether plan "
            "or kernel is wrong; steps are judged by check without planner"
        )
    name = getattr(planner, "__name__", "the planner")
    console.print(
        escape(f"this was with {name}'s plan; with the lab's own, on its usual problems, {told}"),
        soft_wrap=True,
    )


def _refuse_signature(planner: Callable[..., Plan]) -> None:
    """ValueError where a planner does not take what it is called with."""
    try:
        inspect.signature(planner).bind("entry", None, None)
    except TypeError as error:
        raise ValueError(
            f"{planner.__name__}{inspect.signature(planner)}: a planner is called with "
            f"(entry, problem, device), the kernel's name first ({error})"
        ) from None


def print_steps(report: Report, console: Console) -> None:
    """How far each step of the report's stage is, a line each; then what is left for those who are done."""
    for state in progress(report):
        mark = {True: "[green]done[/]", False: "[red]not yet[/]", None: "[dim]open[/]"}[state.done]
        task = textwrap.shorten(state.task, 70, placeholder=" …")
        console.print(f"step {state.number} {mark}: {escape(task)} ({escape(state.why)})")
    if report.ok:
        for open_end in stretch(report.stage):
            console.print(f"stretch: {escape(open_end)}", soft_wrap=True)
        console.print(_OWN_PLAN, soft_wrap=True)
