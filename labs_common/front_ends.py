"""What turns CUDA C++ into the PTX that the simulator runs: NVRTC, or the clang of ziglang in its absence.

Counts depend on the compiler, so every output names the front end that its counts come from, and the two are
never compared: a reference and a submission take one front end, and grading takes NVRTC.
`docs/front_ends.md` has where they differ.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from labs_common import compiler, zig
from labs_common.compiler import CompilerMissing, Resources
from labs_common.source import Source

ENVIRONMENT = "PALAB_FRONT_END"
FRONT_ENDS = ("nvrtc", "zig")


@dataclass(frozen=True)
class FrontEnd:
    """A compiler from CUDA C++ to PTX.

    Attributes:
        name: ``nvrtc`` or ``zig``.
        label: with its version, as tables and ``palab doctor`` show it.
    """

    name: str
    label: str

    @property
    def tool(self) -> str:
        """The ``tool`` of Metrics for what the simulator counts in this front end's PTX."""
        return "simulator" if self.name == "nvrtc" else f"simulator, {self.name}"

    def compile_ptx(self, source: Source, defines: Mapping[str, object] | None, arch: str) -> str:
        """The PTX of a kernel file, with line information.

        Args:
            source: the kernel file; local headers are inlined.
            defines: macros, as with ``-D``.
            arch: ``sm_90`` and the like.

        Raises:
            CompileError: the source does not compile; messages are on the author's own file and lines.
        """
        if self.name == "zig":
            return zig.compile_ptx(source, defines, arch)
        return compiler.compile_ptx(source, defines, arch)

    def compile_resources(
        self, source: Source, defines: Mapping[str, object] | None, arch: str
    ) -> dict[str, Resources] | None:
        """Registers, spills and shared memory of each kernel; None where only ptxas would know (zig).

        Raises:
            CompileError: as ``compile_ptx``.
        """
        return None if self.name == "zig" else compiler.compile_resources(source, defines, arch)


def open_front_end(name: str = "auto") -> FrontEnd:
    """A front end by name; ``auto`` is the one that ``PALAB_FRONT_END`` names, else NVRTC, else zig.

    Raises:
        ValueError: an unknown name.
        CompilerMissing: it is not installed here; the message says how to get it.
    """
    chosen, where = name, "front_end"
    if name == "auto":
        chosen, where = os.environ.get(ENVIRONMENT) or "auto", ENVIRONMENT
    if chosen not in ("auto", *FRONT_ENDS):
        raise ValueError(f"{where}={chosen!r}: allowed are auto, {', '.join(FRONT_ENDS)}")
    if chosen != "zig":
        try:
            return FrontEnd("nvrtc", f"NVRTC {compiler.compiler_version()}")
        except CompilerMissing as missing:
            if chosen == "nvrtc":
                raise
            if not zig.available():
                raise CompilerMissing(f"{missing}; or pip install ziglang") from None
    return FrontEnd("zig", zig.version())
