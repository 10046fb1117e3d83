"""The corpus of planted bugs under NVIDIA's compute-sanitizer, beside what the simulator's checks say.

``python -m labs_common.sanitizer --out DIR`` needs a GPU, CuPy and compute-sanitizer. Every case runs in a
process of its own under each tool, some at a time, each limited in time; the verdicts go to
``DIR/sanitizer.csv``, the tool's own words to ``DIR/<case>.<tool>.txt``. ``markdown`` makes the table.

Arrays come from cudaMalloc one by one: in CuPy's memory pool an access behind one array lies in the next.
Output and scratch are left as allocated, so that initcheck can tell what nobody wrote.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labs_common import bugs
from labs_common.bugs import Case
from labs_common.engines import GpuEngine, SimulatorEngine

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
COLUMNS = (
    "case", "stage", "honest", "tool", "status", "kinds", "lines", "seconds",
    "expected_tool", "expected_line", "simulator", "simulator_line",
)  # fmt: skip
MAX_REPORTS = 6  # of one run that go into the table

_HEADLINE = re.compile(
    r"^=========\s(Invalid |Error: |Warning: |Barrier error|Uninitialized |Race reported|Potential )"
)
_PLACE = re.compile(r"\bin (\S+):(\d+)")
_HAZARDS = re.compile(r"\s*\[\d+ hazards?\]")


@dataclass(frozen=True)
class Report:
    """One report of compute-sanitizer: its first line, and the source lines it names as file:line."""

    kind: str
    lines: tuple[str, ...]


def parse(text: str) -> list[Report]:
    """The reports in the text output of one run, without repetitions."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if _HEADLINE.match(line):
            found.append((line.removeprefix("=========").strip(), []))
        elif not line.startswith("=========     ") or "Host Frame" in line:
            continue
        if found:
            places = [f"{Path(file).name}:{number}" for file, number in _PLACE.findall(line)]
            found[-1][1].extend(p for p in places if p not in found[-1][1])
    reports = []
    for kind, lines in found:
        short = _HAZARDS.sub("", re.split(r" at 0x| at \S+\+0x| at \S+ in ", kind)[0])
        report = Report(short.rstrip(". "), tuple(lines))
        if report not in reports:
            reports.append(report)
    return reports


class _BareGpu(GpuEngine):
    """Leaves output and scratch as the driver gave them."""

    def poisoned(self, shape: tuple[int, ...], dtype: Any, name: str) -> Any:
        """Memory that nobody has written."""
        return self.xp.empty(shape, dtype)


def run_case(case: Case) -> None:
    """Run a case's launches on the GPU, in this process; for use under compute-sanitizer."""
    import cupy

    cupy.cuda.set_allocator(None)
    engine = _BareGpu()
    bugs.prepare(case, engine)()
    cupy.cuda.runtime.deviceSynchronize()


def _under_tool(case: Case, tool: str, out: Path, timeout_s: float) -> dict[str, object]:
    log = out / f"{case.name}.{tool}.txt"
    command = [_program(), "--tool", tool, "--print-limit", "50", "--log-file", str(log), sys.executable]
    command += ["-m", "labs_common.sanitizer", "--case", case.name]
    started = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        status, said = "clean", done.stderr
    except subprocess.TimeoutExpired:
        status, said = "timeout", ""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    reports = parse(text)[:MAX_REPORTS]
    if reports:
        status = "report" if status == "clean" else status
    elif status == "clean" and ("ERROR SUMMARY: 0" not in text and "0 hazards displayed" not in text):
        status = "failed"
        log.write_text(text + "\n" + said, encoding="utf-8")
    return {
        "tool": tool,
        "status": status,
        "kinds": " | ".join(r.kind for r in reports),
        "lines": " | ".join(" ".join(r.lines) for r in reports),
        "seconds": round(time.perf_counter() - started, 1),
    }


def _program() -> str:
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.access(program, os.X_OK):
        raise SystemExit("compute-sanitizer is not installed here: it comes with the CUDA toolkit")
    return program


def simulated(case: Case) -> tuple[str, str]:
    """(tool, file:line) of what the simulator reports of a case: the expected finding first of all."""
    found, _ = bugs.simulate(case, SimulatorEngine(core="numpy"))
    if not found:
        return "none", ""
    met = [f for f in found if case.expect and case.expect.met_by(f)]
    first = (met or found)[0]
    return first.tool, f"{Path(first.file).name}:{first.line}"


def run_all(
    cases: Iterable[tuple[Case, bool]], out: Path, jobs: int, timeout_s: float, tools: tuple[str, ...] = TOOLS
) -> Path:
    """Run (case, whether it is honest) under every tool; the path of the table."""
    out.mkdir(parents=True, exist_ok=True)
    cases = list(cases)
    with ThreadPoolExecutor(jobs) as pool:
        pending = [
            (case, fair, pool.submit(_under_tool, case, tool, out, timeout_s))
            for case, fair in cases
            for tool in tools
        ]
        path = out / "sanitizer.csv"
        told: dict[str, tuple[str, str]] = {}
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            for case, fair, future in pending:
                if case.name not in told:
                    told[case.name] = simulated(case)
                writer.writerow(_row(case, fair, told[case.name], future.result()))
                file.flush()  # what is there stays, whatever happens to the rest
    return path


def _row(case: Case, fair: bool, told: tuple[str, str], heard: dict[str, object]) -> dict[str, object]:
    expected = case.expect
    return {
        "case": case.name,
        "stage": case.stage.id,
        "honest": fair,
        **heard,
        "expected_tool": expected.tool if expected else "none",
        "expected_line": f"{Path(expected.file).name}:{expected.line}" if expected else "",
        "simulator": told[0],
        "simulator_line": told[1],
    }


def markdown(table: Path, cases: Iterable[Case]) -> str:
    """The table as Markdown: a row for each case, both verdicts, and why they differ where they do."""
    by_name = {case.name: case for case in cases}
    rows: dict[str, list[dict[str, str]]] = {}
    with table.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rows.setdefault(row["case"], []).append(row)
    lines = ["| case | simulator | compute-sanitizer | |", "|---|---|---|---|"]
    for name, runs in rows.items():
        first = runs[0]
        told = f"{first['simulator']} {first['simulator_line']}".strip()
        heard = "; ".join(_verdict(run) for run in runs if run["status"] != "clean") or "none"
        same = _agree(first, runs)
        why = by_name[name].why if name in by_name else ""
        lines.append(f"| {name} | {told} | {heard} | {'same' if same else why or 'differs'} |")
    for case in by_name.values():
        if case.name not in rows:
            lines.append(f"| {case.name} | {case.expect.tool if case.expect else 'none'} | not run | |")
    return "\n".join(lines) + "\n"


def _verdict(run: dict[str, str]) -> str:
    if run["status"] != "report":
        return f"{run['tool']}: {run['status']}"
    places = list(dict.fromkeys(run["lines"].replace("|", " ").split()))
    return f"{run['tool']} {', '.join(places)}".strip()


def _agree(first: dict[str, str], runs: list[dict[str, str]]) -> bool:
    """Whether the simulator's tool reports here too, and names its line; or neither reports anything."""
    if first["simulator"] == "none":
        return all(run["status"] == "clean" for run in runs)
    return any(
        run["tool"] == first["simulator"]
        and first["simulator_line"] in run["lines"].replace("|", " ").split()
        for run in runs
    )


def main() -> None:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for the table and the tool's own words")
    parser.add_argument("--jobs", type=int, default=8, help="processes at a time")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds that one run may take")
    parser.add_argument("--only", default="", help="part of the names of the cases to run")
    parser.add_argument("--tools", default=",".join(TOOLS), help="compute-sanitizer's tools, by comma")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        folders = (bugs.CORPUS / options.case, bugs.CORPUS / "honest" / options.case)
        run_case(bugs.read_case(next(f for f in folders if f.exists())))
        return
    if options.out is None:
        parser.error("--out is needed")
    cases = [(c, False) for c in bugs.bugs()] + [(c, True) for c in bugs.honest()]
    cases = [(c, fair) for c, fair in cases if options.only in c.name]
    tools = tuple(options.tools.split(","))
    path = run_all(cases, options.out, options.jobs, options.timeout, tools)
    text = markdown(path, [c for c, _ in cases])
    (options.out / "sanitizer.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
