"""What can go wrong in a simulation, and how it is told: one exception family and one record, `Finding`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Finding:
    """One report of a check, in compute-sanitizer's words.

    tool: "memcheck", "initcheck", "racecheck" or "synccheck"; kind: what was seen, e.g. "Invalid __global__
    read of size 4 bytes". block and thread are (x, y, z) or None where no single one is meant; address is the
    virtual byte address (global) or the byte offset (shared, local). line 0: the PTX has no source line.
    severity: "error", or "warning" for what works on today's GPUs by habit and not by the rules.
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

    def __str__(self) -> str:
        who = "".join(
            f" {label} {value}" for label, value in (("block", self.block), ("thread", self.thread)) if value
        )
        at = f" address {self.address:#x}" if self.address is not None else ""
        return f"{self.tool}: {self.kind} at {self.place}{who}{at}: {self.message}"

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.file}:{self.line}" if self.line else "unknown source line"

    def reworded(self, change: Callable[[str], str]) -> Finding:
        """The same with other words for its file, there and in the message."""
        return replace(self, file=change(self.file), message=change(self.message))


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
