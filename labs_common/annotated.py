"""A kernel's source with its counts per line as a heat map, and a warp's registers step by step: HTML."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from labs_common import metric_names as names
from labs_common import metrics as metrics_table
from labs_common.engines import Call, SimulatorEngine
from labs_common.metrics import Metrics
from labs_common.simt import cupy_like
from labs_common.simt.numpy_engine import Step, trace_warp
from labs_common.simt.program import Program
from labs_common.source import KERNELS, Source

COLUMNS: dict[str, str] = {
    names.INSTRUCTIONS: "warp instr.",
    "smsp__thread_inst_executed.sum": "thread instr.",
    names.GLOBAL_LOAD_REQUESTS: "load requests",
    names.GLOBAL_LOAD_SECTORS: "load sectors",
    "smsp__inst_executed_op_shared_ld.sum": "shared loads",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": "shared wavefronts",
    names.ASYNC_COPIES: "async copies",
    names.ASYNC_COPY_WAVEFRONTS: "their wavefronts",
    "smsp__inst_executed_op_barrier.sum": "barriers",
    "smsp__inst_executed_op_shuffle.sum": "shuffles",
    "smsp__sass_branch_targets_threads_divergent.sum": "divergent",
}
MOST_PASSES = 4.5  # of an asynchronous copy; few that reach over a page's end are no reason to speak
_STYLE = """<style>
.palab {font-family: sans-serif; font-size: 13px; color: #1b1b1b; background: #fff}
.palab table {border-collapse: collapse; width: 100%}
.palab th, .palab td {padding: 1px 6px; text-align: right; border-bottom: 1px solid #eee; white-space: nowrap}
.palab td.code {text-align: left; font-family: monospace; white-space: pre; width: 100%}
.palab th {position: sticky; top: 0; background: #fff}
.palab .off {color: #aaa}
.palab caption {text-align: left; font-weight: bold; padding: 6px 0}
</style>"""


def line_counts(frame: Metrics, file: str) -> dict[int, dict[str, float]]:
    """Per line of a file: metric name to value, summed over kernels and launches."""
    rows = metrics_table.select(frame, file=file)
    rows = rows[rows["line"].notna() & rows["metric"].isin(list(COLUMNS))]
    counts: dict[int, dict[str, float]] = {}
    for (line, metric), value in rows.groupby(["line", "metric"])["value"].sum().items():
        counts.setdefault(int(line), {})[metric] = float(value)
    return counts


def heat_map(source: Source, frame: Metrics, title: str) -> str:
    """A page part with the file and the headers it includes, a row per line, counts beside the code.

    The shade of a cell is its share of the column's sum; the number is there too, so colour is not needed.

    Args:
        source: the kernel file.
        frame: Metrics that hold counts per line, of whatever source; the caption names it.
        title: of the table.
    """
    origin = " and ".join(sorted(set(frame["source"]))) or "no"
    sampled = ", sampled blocks" if bool(frame["sampled"].any()) else ""
    files = [(source.name, source.text)]
    files += [(path.name, path.read_text(encoding="utf-8")) for path in sorted(KERNELS.glob("*.cuh"))]
    parts = [_STYLE, '<div class="palab">']
    for name, text in files:
        counts = line_counts(frame, name)
        if counts:
            caption = f"{title}: {name} ({origin} counts{sampled})"
            parts.append(_table(text.splitlines(), counts, caption))
    parts.append("</div>")
    return "\n".join(parts)


def copy_notes(frame: Metrics) -> list[str]:
    """A sentence for each line whose asynchronous copies cost more than their bytes do.

    What a warp copies, 512 bytes at most, takes 4 passes where it lies in shared memory as in global memory.
    """
    figures = frame[frame["line"].notna()].pivot_table(
        index=["file", "line"], columns="metric", values="value", aggfunc="sum"
    )
    if names.ASYNC_COPY_SECTORS not in figures:
        return []
    notes = []
    for (file, line), row in figures[figures[names.ASYNC_COPY_SECTORS] > 0].iterrows():
        each = row[names.ASYNC_COPY_WAVEFRONTS] / row[names.ASYNC_COPIES]
        if each > MOST_PASSES:
            notes.append(
                f"{file}:{line:.0f}: asynchronous copies take {each:.3g} wavefronts each where 4 would do, "
                "as what they read and where it goes lie differently in their lines of 128 bytes. A shared "
                "array begins on such a line where it is declared __align__(128)."
            )
    return notes


def _table(lines: Sequence[str], counts: Mapping[int, Mapping[str, float]], caption: str) -> str:
    shown = [metric for metric in COLUMNS if any(metric in line for line in counts.values())]
    sums = {metric: sum(line.get(metric, 0) for line in counts.values()) for metric in shown}
    head = "".join(f'<th scope="col">{COLUMNS[metric]}</th>' for metric in shown)
    rows = [
        f"<table><caption>{html.escape(caption)}</caption>",
        f'<tr>{head}<th scope="col">line</th><th scope="col" style="text-align:left">source</th></tr>',
    ]
    for number, text in enumerate(lines, 1):
        line = counts.get(number, {})
        cells = "".join(_cell(line.get(metric), sums[metric]) for metric in shown)
        rows.append(f'<tr>{cells}<td>{number}</td><td class="code">{html.escape(text)}</td></tr>')
    rows.append("</table>")
    return "\n".join(rows)


def _cell(value: float | None, total: float) -> str:
    if value is None:
        return "<td></td>"
    share = value / total if total else 0.0
    return f'<td style="background: rgba(213, 94, 0, {0.05 + 0.75 * share:.2f})">{value:,.0f}</td>'


@dataclass(frozen=True)
class LaneView:
    """What one warp computed, instruction by instruction.

    Attributes:
        rows: (source line, PTX instruction, active lanes as a mask, the 32 values) per step.
        title: says which warp of which kernel.
    """

    rows: tuple[tuple[int, str, int, np.ndarray], ...]
    title: str

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col">{lane}</th>' for lane in range(32))
        parts = [
            _STYLE,
            f'<div class="palab"><table><caption>{html.escape(self.title)}</caption>',
            '<tr><th scope="col">line</th><th scope="col" style="text-align:left">instruction</th>',
            f"{head}</tr>",
        ]
        for line, text, active, values in self.rows:
            cells = "".join(
                f"<td>{_short(value)}</td>" if active >> lane & 1 else '<td class="off">-</td>'
                for lane, value in enumerate(values)
            )
            parts.append(f'<tr><td>{line}</td><td class="code">{html.escape(text)}</td>{cells}</tr>')
        parts.append("</table></div>")
        return "\n".join(parts)


def _short(value: np.generic) -> str:
    return f"{value:.3g}" if value.dtype.kind == "f" else str(value)


def lane_view(
    call: Call,
    engine: SimulatorEngine,
    opcodes: Sequence[str] = ("shfl", "add"),
    lines: range | None = None,
    block: int = 0,
    warp: int = 0,
    most: int = 12,
) -> LaneView:
    """Step one warp of a stage's first launch and show what its lanes held.

    Args:
        call: a stage bound to arrays by ``engine.prepare``.
        engine: a simulator.
        opcodes: PTX opcodes to show.
        lines: source lines to show, by default all.
        block: linear number of the block; it runs whole.
        warp: number of the warp in it.
        most: steps shown at most, the first ones.
    """
    launch = call.launches[0]
    kernel = call.kernels[launch.entry]
    prepared = kernel.prepare(launch.grid, launch.block, call.arguments, launch.shared_bytes)
    steps = trace_warp(prepared, cupy_like.SPACE, kernel.module.addresses, block, warp)
    chosen = [row for step in steps if (row := _row(kernel.program, step, opcodes, lines)) is not None]
    return LaneView(tuple(chosen[:most]), f"{launch.entry}, block {block}, warp {warp}: values by lane")


def _row(
    program: Program, step: Step, opcodes: Sequence[str], lines: range | None
) -> tuple[int, str, int, np.ndarray] | None:
    instruction = program.instructions[step.instruction]
    line = instruction.source[1] if instruction.source else 0
    if instruction.opcode not in opcodes or not step.values or (lines is not None and line not in lines):
        return None
    values = step.values[0]
    if values.dtype == np.uint32 and instruction.opcode == "shfl":
        values = values.view(np.float32)  # the stages shuffle floats; PTX moves their bits
    elif "f32" in instruction.types and values.dtype != np.float32:
        values = values.view(np.float32)
    return line, instruction.name, step.active, values
