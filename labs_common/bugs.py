"""Kernels with a planted bug each, and honest ones that look suspicious: read from folders, run on an engine.

A folder of ``tests/bugs`` (``tests/bugs/honest``) holds ``bug.toml``:

- ``stage`` (the id of a stage, a variant or a roof kernel) and ``about``, the bug in a sentence;
- ``[problem]``, the fields of ``Problem``; ``pool_pages`` for a larger cache of zeros;
- ``[[edit]]``, ``find`` and ``replace`` once in the stage's kernel; or the folder's own ``kernel.cu``;
- ``[[input]]``, ``array``, ``index`` and ``value``: what is wrong with the inputs;
- ``[plan]``: ``options`` of the stage's plan, ``shared_bytes`` of its first launch, ``numbers`` it passes on;
- ``[expect]``: ``tool``, ``kind`` (part of it), ``line`` (part of its text; ``file`` where it is a header's)
  and ``severity``;
- ``[sanitizer]``: ``tool`` and ``why``, where compute-sanitizer says something else.
"""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from labs_common.engines import Call, Engine, SimulatorEngine
from labs_common.inputs import Inputs, make_inputs
from labs_common.plans import Plan
from labs_common.problem import Problem
from labs_common.simt.errors import Fault, Finding
from labs_common.source import HEADERS, KERNELS, NEUTRAL_FOLDER, Source
from labs_common.stages import ALL_STAGES, Stage
from labs_common.variants import VARIANTS

CORPUS = Path(__file__).resolve().parent.parent / "tests" / "bugs"


@dataclass(frozen=True)
class Expected:
    """What must be reported: the tool, part of the kind, and where."""

    tool: str
    kind: str
    file: str
    line: int
    severity: str = "error"

    def met_by(self, finding: Finding) -> bool:
        """Whether a finding is this one."""
        return (
            finding.tool == self.tool
            and self.kind in finding.kind
            and (finding.file, finding.line) == (self.file, self.line)
            and finding.severity == self.severity
        )


@dataclass(frozen=True)
class Case:
    """One folder of the corpus.

    Attributes:
        name: of the folder.
        about: the bug, or what makes an honest kernel suspicious.
        stage, problem, source: what runs.
        expect: what must be found; None where nothing may be.
        plan_changes, input_changes: the tables of ``bug.toml``.
        sanitizer: the tool of compute-sanitizer that reports it, "none" where none does.
        why: the reason for a difference between the two.
    """

    name: str
    about: str
    stage: Stage
    problem: Problem
    source: Source
    expect: Expected | None
    sanitizer: str
    why: str = ""
    plan_changes: dict[str, Any] = field(default_factory=dict)
    input_changes: tuple[dict[str, Any], ...] = ()
    pool_pages: int = 0

    def plan(self, engine: Engine) -> Plan:
        """The stage's plan with the case's changes."""
        plan = self.stage.plan(self.problem, engine.device, **self.plan_changes.get("options", {}))
        launches = list(plan.launches)
        if "shared_bytes" in self.plan_changes:
            launches[0] = dataclasses.replace(launches[0], shared_bytes=self.plan_changes["shared_bytes"])
        numbers = {**plan.numbers, **self.plan_changes.get("numbers", {})}
        return dataclasses.replace(plan, launches=tuple(launches), numbers=numbers)

    def arrays(self, inputs: Inputs) -> dict[str, np.ndarray]:
        """The inputs with the case's changes; they may be what no honest caller passes."""
        arrays = {name: array.copy() for name, array in inputs.arrays().items()}
        if self.pool_pages:
            for name in ("key_cache", "value_cache"):
                small = arrays[name]
                arrays[name] = np.zeros((self.pool_pages, *small.shape[1:]), small.dtype)
                arrays[name][: len(small)] = small
        for change in self.input_changes:
            arrays[change["array"]][tuple(change["index"])] = change["value"]
        return arrays


def read_case(folder: Path) -> Case:
    """The case of a folder.

    Raises:
        ValueError: a text of an edit or of the expected line is not there, or more than once; the message
            names folder and text.
    """
    table = tomllib.loads((folder / "bug.toml").read_text(encoding="utf-8"))
    stage = next(s for s in (*ALL_STAGES, *VARIANTS) if table["stage"] in (s.id, s.id[:2]))
    own = folder / "kernel.cu"
    source = Source(f"{stage.id}.cu", own.read_text(encoding="utf-8")) if own.exists() else stage.source()
    for edit in table.get("edit", ()):
        found = source.text.count(edit["find"])
        if found != 1:
            raise ValueError(f"{folder.name}: {source.name} has {found} times, not once: {edit['find']!r}")
        source = Source(source.name, source.text.replace(edit["find"], edit["replace"]))
    lengths = tuple(table["problem"].pop("context_lengths"))
    problem = Problem(**table["problem"], context_lengths=lengths, name=folder.name)
    expect = table.get("expect")
    sanitizer = table.get("sanitizer", {})
    return Case(
        folder.name,
        table["about"],
        stage,
        problem,
        source,
        _expected(folder, source, expect) if expect else None,
        sanitizer.get("tool", expect["tool"] if expect else "none"),
        sanitizer.get("why", ""),
        table.get("plan", {}),
        tuple(table.get("input", ())),
        table.get("pool_pages", 0),
    )


def _expected(folder: Path, source: Source, table: dict[str, str]) -> Expected:
    name = table.get("file", source.name)
    header = next((folder / name for folder in HEADERS if (folder / name).is_file()), KERNELS / name)
    text = source.text if name == source.name else header.read_text(encoding="utf-8")
    lines = [n for n, line in enumerate(text.splitlines(), 1) if table["line"] in line]
    if len(lines) != 1:
        raise ValueError(f"{folder.name}: {name} has {len(lines)} lines, not one, with {table['line']!r}")
    path = f"{NEUTRAL_FOLDER}/{name}"
    return Expected(table["tool"], table["kind"], path, lines[0], table.get("severity", "error"))


def bugs(corpus: Path = CORPUS) -> list[Case]:
    """Every planted bug, by name."""
    return [read_case(p.parent) for p in sorted(corpus.glob("*/bug.toml"))]


def honest(corpus: Path = CORPUS) -> list[Case]:
    """Every honest variant, by name."""
    return [read_case(p.parent) for p in sorted((corpus / "honest").glob("*/bug.toml"))]


def prepare(case: Case, engine: Engine) -> Call:
    """The case's launches, bound to arrays."""
    inputs = make_inputs(case.problem, 0)
    arrays = {
        name: engine.xp.wrap(array, name) if hasattr(engine.xp, "wrap") else engine.xp.asarray(array)
        for name, array in case.arrays(inputs).items()
    }
    return engine.prepare(case.stage, case.problem, inputs, case.source, case.plan(engine), arrays)


def simulate(case: Case, engine: SimulatorEngine) -> tuple[list[Finding], np.ndarray | None]:
    """(what the checks find, the fault that ended it included; the output, None after a fault)."""
    call = prepare(case, engine)
    found: list[Finding] = []
    for launch in call.launches:
        kernel = call.kernels[launch.entry]
        try:
            kernel(launch.grid, launch.block, call.arguments, shared_mem=launch.shared_bytes)
        except Fault as fault:
            return [*found, fault.finding], None
        found += kernel.module.last_launch.findings
    return found, engine.xp.asnumpy(call.output)
