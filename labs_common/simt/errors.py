"""What can go wrong in a simulation, and how it is told: one exception family and one record, `Finding`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

Dim3 = tuple[int, int, int]
Site = tuple[str, int]  # file and line


@dataclass(frozen=True)
class Finding:
    """One report of a check, in compute-sanitizer's words.

    tool: "memcheck", "initcheck", "racecheck" or "synccheck"; kind: what was seen, e.g. "Invalid __global__
    read of size 4 bytes". block and thread are (x, y, z) or None where no single one is meant; address is the
    virtual byte address (global) or the byte offset (shared, local). line 0: the PTX has no source line.
    severity: "error", or "warning" for what works on today's GPUs by habit and not by the rules.
    callers: where the line's function was inlined, innermost first; () for a line of the kernel itself.
    """

    tool: str
    kind: str
    file: str
    line: int
    block: Dim3 | None
    thread: Dim3 | None
    address: int | None
    message: str
    severity: str = "error"
    callers: tuple[Site, ...] = field(default=(), compare=False)  # one place may have several

    def __str__(self) -> str:
        who = "".join(
            f" {label} {value}" for label, value in (("block", self.block), ("thread", self.thread)) if value
        )
        at = f" address {self.address:#x}" if self.address is not None else ""
        return f"{self.tool}: {self.kind} at {self.place}{_called(self.callers)}{who}{at}: {self.message}"

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.file}:{self.line}" if self.line else "unknown source line"

    def reworded(self, change: Callable[[str], str]) -> Finding:
        """The same with other words for its file, there and in the message."""
        callers = tuple((change(file), line) for file, line in self.callers)
        return replace(self, file=change(self.file), message=change(self.message), callers=callers)

    def inlined(self, location: Sequence) -> Finding:
        """The same with the callers of a source position, the frames of ``parse.Location``."""
        return replace(self, callers=_sites(location)[1:])


def elsewhere(location: Sequence, file: str) -> str:
    """A source position as a finding in a file tells it: "line 20" in that file, else file and line.

    Args:
        location: frames as in ``parse.Location``.
        file: of the finding.
    """
    sites = _sites(location)
    if not sites:
        return "an unknown source line"
    (inner, line), *callers = sites
    return (f"line {line}" if inner == file else f"{inner}:{line}") + _called(callers)


def _sites(location: Sequence) -> tuple[Site, ...]:
    return tuple((frame.file, frame.line) for frame in location)


def _called(callers: Sequence[Site]) -> str:
    """The outermost caller, which is a line of the kernel; those between would only make it long."""
    return f", called at {callers[-1][0]}:{callers[-1][1]}" if callers else ""


def without_explained(findings: list[Finding]) -> list[Finding]:
    """Without the warnings of a source line at which the same check found an error."""
    errors = {(f.tool, f.file, f.line) for f in findings if f.severity == "error"}
    return [f for f in findings if f.severity == "error" or (f.tool, f.file, f.line) not in errors]


class SimulationError(Exception):
    """Every error that the simulator raises on purpose."""


class PtxError(SimulationError):
    """The PTX cannot be read. `line` is the line of the PTX text, `source` its (file, line) where known."""

    def __init__(self, message: str, line: int = 0, source: tuple[str, int] | None = None):
        self.message, self.line, self.source = message, line, source
        where = f"PTX line {line}" if line else "PTX"
        if source:
            where += f" ({source[0]}:{source[1]})"
        super().__init__(f"{where}: {message}")


class UnsupportedError(PtxError):
    """The PTX is well formed and asks for something that is not simulated. Raised before anything runs."""


class LaunchError(SimulationError, ValueError):
    """A launch that CUDA would refuse: grid, block, shared memory, or the arguments."""


class BudgetError(SimulationError):
    """The launch executed more instructions than its budget allows; an endless loop, as a rule."""


class Fault(SimulationError):
    """A finding that ends the launch, as an illegal address does on a GPU."""

    def __init__(self, finding: Finding):
        self.finding = finding
        super().__init__(str(finding))


class TrapError(Fault):
    """`trap` or a failed `assert` in the kernel."""
