"""Nsight Compute's report by SASS instruction: what each is, where it comes from, how often it ran.

``ncu_report`` gives the counts; the source position comes from the cubin that the report holds, since
``source_info`` of ncu_report often gives the line of the call where the instruction is an inlined function's.
"""

from __future__ import annotations

import lzma
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from labs_common.cubin import Cubin, Place, find_cubins
from labs_common.ncu_rows import ProfileError
from labs_common.source import NEUTRAL_FOLDER

# SASS opcode -> the simulator's name of what its warp instructions are (`simt.counters.NCU_METRICS`).
WARP_COUNTS = {
    "LDG": "global_load_requests",
    "STG": "global_store_requests",
    "LDS": "shared_loads",
    "STS": "shared_stores",
    "BAR": "barriers",
    "SHFL": "shuffles",
}
SECTOR_COUNTS = {"LDG": "global_load_sectors", "STG": "global_store_sectors"}
LANE_COUNTS = {"FFMA": "ffma_lanes", "FMUL": "fmul_lanes", "FADD": "fadd_lanes"}


@dataclass(frozen=True)
class SassInstruction:
    """One machine instruction of a recorded launch.

    Attributes:
        offset: bytes from the kernel's first instruction.
        text: as Nsight Compute disassembles it, with its predicate.
        places: source position, innermost first; empty where ptxas gives none.
        ptx: the PTX instruction that ptxas made it from, "" where it names none.
        warps: warps that executed it (``inst_executed``), those with every lane predicated off included.
        lanes: lanes it was executed for whose predicate held (``thread_inst_executed_true``).
        sectors: 32-byte sectors of global memory it asked for.
    """

    offset: int
    text: str
    places: tuple[Place, ...]
    ptx: str
    warps: int
    lanes: int
    sectors: int

    @property
    def opcode(self) -> str:
        """Without predicate and modifiers, such as ``LDG``."""
        words = [word for word in self.text.split() if not word.startswith("@")]
        return words[0].split(".")[0] if words else ""

    def counts(self) -> dict[str, int]:
        """What it adds to the simulator's counts, by their names."""
        found = {"warp_instructions": self.warps}
        if self.opcode in WARP_COUNTS:
            found[WARP_COUNTS[self.opcode]] = self.warps
        if self.opcode in SECTOR_COUNTS:
            found[SECTOR_COUNTS[self.opcode]] = self.sectors
        if self.opcode in LANE_COUNTS:
            found[LANE_COUNTS[self.opcode]] = self.lanes
        return found


@dataclass(frozen=True)
class SassKernel:
    """One recorded launch.

    Attributes:
        name: its entry.
        instructions: in the order of the code.
        figures: every metric of the report that is a number.
        code: machine code that ran, without the no-operations that fill its end.
    """

    name: str
    instructions: tuple[SassInstruction, ...]
    figures: Mapping[str, float]
    code: bytes

    @cached_property
    def totals(self) -> dict[str, int]:
        """Simulator's name of a count -> the sum over the instructions."""
        return _sum(instruction.counts() for instruction in self.instructions)

    @cached_property
    def by_line(self) -> dict[tuple[str, int], dict[str, int]]:
        """(file, line) of the innermost frame -> counts."""
        lines: dict[tuple[str, int], list[dict[str, int]]] = {}
        for instruction in self.instructions:
            if instruction.places:
                place = (instruction.places[0].file, instruction.places[0].line)
                lines.setdefault(place, []).append(instruction.counts())
        return {place: _sum(counts) for place, counts in lines.items()}


@dataclass(frozen=True)
class Recording:
    """A report with what it was made from.

    Attributes:
        kernels: the launches in order.
        files: name -> text of each source file, as it was when this was recorded.
        ptx: what ptxas compiled, by line; lines of directives are empty.
    """

    kernels: tuple[SassKernel, ...]
    files: Mapping[str, str]
    ptx: tuple[str, ...]


def read_recording(path: Path | str) -> Recording:
    """Read a report, packed (``.xz``) or not. No GPU is needed.

    Raises:
        ProfileError: it cannot be loaded, or lacks the cubin, the source or the counts of instructions.
    """
    import ncu_report

    path = Path(path)
    data = path.read_bytes()
    if path.suffix == ".xz":
        data = lzma.decompress(data)
    with tempfile.TemporaryDirectory() as folder:
        unpacked = Path(folder) / "profile.ncu-rep"
        unpacked.write_bytes(data)
        try:
            report = ncu_report.load_report(str(unpacked))
        except Exception as error:
            raise ProfileError(f"{path}: ncu-report cannot load this report file ({error})") from error
        cubins = find_cubins(data)
        actions = [action for block in report for action in block]
        if not actions or not cubins:
            raise ProfileError(f"{path} holds no profiled kernel, or none with its code")
        kernels = tuple(_kernel(action, cubins, path) for action in actions)
        files = {
            name.removeprefix(f"{NEUTRAL_FOLDER}/"): text
            for action in actions
            for name, text in dict(action.source_files()).items()
        }
    return Recording(kernels, files, tuple(cubins[0].ptx))


def _kernel(action: Any, cubins: list[Cubin], path: Path) -> SassKernel:
    name = str(action.name())
    cubin = next((c for c in cubins if f".text.{name}" in c.sections), None)
    if cubin is None:
        raise ProfileError(f"{path}: no code of {name} in the report")
    warps = _instances(action, "inst_executed")
    if not warps:
        raise ProfileError(
            f"{path}: no counts of instructions for {name}; it was made without source counters"
        )
    lanes = _instances(action, "thread_inst_executed_true")
    sectors = _instances(action, "memory_l2_theoretical_sectors_global")
    start = min(warps)
    instructions = []
    for pc in sorted(warps):
        line = cubin.ptx_line(name, pc - start)
        instructions.append(
            SassInstruction(
                pc - start,
                " ".join(action.sass_by_pc(pc).split()),
                cubin.place(name, pc - start),
                cubin.ptx[line - 1].strip() if 0 < line <= len(cubin.ptx) else "",
                int(warps[pc]),
                int(lanes.get(pc, 0)),
                int(sectors.get(pc, 0)),
            )
        )
    figures = {n: float(v) for n in action.metric_names() if isinstance(v := action[n].value(), int | float)}
    return SassKernel(name, tuple(instructions), figures, cubin.code(name))


def _instances(action: Any, metric: str) -> dict[int, float]:
    """Address of an instruction -> value; empty where the report lacks the metric."""
    try:
        found = action[metric]
    except KeyError:
        return {}
    if not found.has_correlation_ids():
        return {}
    addresses = found.correlation_ids()
    return {int(addresses.value(i)): found.value(i) for i in range(found.num_instances())}


def _sum(parts: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            total[name] = total.get(name, 0) + count
    return total
