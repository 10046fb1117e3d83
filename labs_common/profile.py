"""Nsight Compute around one call of a stage: capture a report on this machine's GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from labs_common import metric_names as names
from labs_common.doctor import NO_NCU, find_ncu
from labs_common.metrics import Metrics, select
from labs_common.ncu import compact, log_problem, read_profile
from labs_common.ncu_rows import ProfileError
from labs_common.problem import Problem
from labs_common.source import KERNELS, NEUTRAL_FOLDER
from labs_common.stages import Stage

MADE_ON_THE_GPU = 1 << 28  # bytes of keys and values from which the host takes long to make them
KERNEL_FILTER = "regex:^paged_attention_"
# Asked for by name: --set full lacks some of them on some GPUs.
EXTRA_METRICS = (
    names.DRAM_PCT,
    names.DRAM_ACTIVE_CYCLES,
    names.DRAM_READ_BYTES,
    names.DRAM_WRITE_BYTES,
    names.GLOBAL_LOAD_REQUESTS,
    names.GLOBAL_LOAD_SECTORS,
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "smsp__inst_executed_op_shared_ld.sum",
    "smsp__inst_executed_op_shared_st.sum",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum",
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",
    "smsp__thread_inst_executed.sum",
    names.INSTRUCTIONS,
    "smsp__sass_branch_targets.sum",
    "smsp__sass_branch_targets_threads_divergent.sum",
    names.LSU_PCT,
    names.ISSUE_PCT,
)


def measure(
    stage: Stage,
    problem: Problem,
    options: Mapping[str, int] | None = None,
    on_progress: Callable[[str], None] = lambda text: None,
    keep: Path | None = None,
) -> Metrics:
    """Profile one call of a stage on this machine's GPU, and read the report: source "measured", tool "ncu".

    The figures are those of whole kernels that a recorded set keeps; a report that is kept has them by line.

    Args:
        stage, problem, options, on_progress: as of `capture`.
        keep: where the report is kept, a ``.ncu-rep``; by default it is deleted.

    Raises:
        ProfileError: as `capture`; or Nsight Compute gave no value for any counter.
        KeyboardInterrupt: nothing is left running.
    """
    with tempfile.TemporaryDirectory() as scratch:
        report = capture(stage, problem, keep or Path(scratch) / "profile.ncu-rep", options, on_progress)
        table = read_profile(
            report, source="measured", stage=stage.id, problem=problem.name, only=compact(), lines=False
        )
    refuse_empty(table)
    return table


def refuse_empty(table: Metrics) -> None:
    """Refuse a profile in which every counter is absent; a few absent ones are gaps with their reason.

    Raises:
        ProfileError: all counters that `capture` asks for are NaN or missing.
    """
    counters = select(table, metric=[m for m in EXTRA_METRICS if not m.startswith("smsp__sass")], line=None)
    if counters["value"].notna().any():
        return
    reasons = ", ".join(sorted(set(counters["reason"]))) or "none of them is in the report"
    raise ProfileError(
        f"not measured: Nsight Compute ran, but gave no value for any counter ({reasons})",
        "A virtual or shared GPU may have none; else try the ncu of the installed driver's CUDA version. "
        "Until then there are event times and recorded profiles",
    )


def capture(
    stage: Stage,
    problem: Problem,
    report: Path,
    options: Mapping[str, int] | None = None,
    on_progress: Callable[[str], None] = lambda text: None,
    timeout_s: float = 900.0,
    full: bool = True,
) -> Path:
    """Write the report of one call of a stage, after one that warms up.

    Clocks are left alone (``--clock-control none``) and caches are flushed before every pass, so durations
    are for cold caches and must not enter a ratio with times by events.

    Args:
        stage: what to profile.
        problem: on what.
        report: where the ``.ncu-rep`` goes.
        options: of the stage's plan, such as ``splits``.
        on_progress: is given what ncu prints, a line at a time; a line that grows is given again.
        timeout_s: wall time after which everything is stopped.
        full: all of Nsight Compute's sections with source lines, or `EXTRA_METRICS` alone.

    Raises:
        ValueError: a report by another name.
        ProfileError: no ncu, no permission, no kernel, or no report.
        KeyboardInterrupt: nothing is left running.
    """
    ncu = find_ncu()
    if ncu is None:
        raise ProfileError("not measured: there is no ncu on this machine", NO_NCU)
    if report.suffix != ".ncu-rep":
        raise ValueError(f"report={report}: its name must end in .ncu-rep")
    report = report.absolute()
    with tempfile.TemporaryDirectory() as scratch:
        log, output = Path(scratch) / "ncu.log", Path(scratch) / "output.txt"
        request = {"stage": stage.id, "problem": dataclasses.asdict(problem), "options": dict(options or {})}
        sections = ("--set", "full", "--import-source", "yes", "--source-folders", str(_sources(scratch)))
        command = [
            *(ncu, *(sections if full else ())),
            *("--clock-control", "none", "--cache-control", "all", "--profile-from-start", "off"),
            *("--kernel-name", KERNEL_FILTER, "--metrics", ",".join(EXTRA_METRICS)),
            *("--log-file", str(log), "--force-overwrite", "--export", str(report.with_suffix(""))),
            *(sys.executable, "-m", "labs_common.profile", json.dumps(request)),
        ]
        code = _run(command, log, output, on_progress, timeout_s)
        text, printed = (p.read_text(errors="replace") if p.exists() else "" for p in (log, output))
    problem_found = failure(text, code, report.exists(), printed)
    if problem_found is not None:
        raise problem_found
    return report


def failure(log: str, code: int, written: bool, printed: str = "") -> ProfileError | None:
    """What went wrong with a run of ncu, or None.

    Args:
        log: what ncu logged.
        code: its exit status.
        written: whether there is a report.
        printed: what the profiled program printed.
    """
    found = log_problem(log)
    program_failed = re.search(r"application returned an error", log) is not None
    if found is not None and not program_failed:
        return found
    if code == 0 and written and not program_failed:
        return None
    said = printed.strip().splitlines() or [line for line in log.splitlines() if line.startswith("==ERROR==")]
    last = said[-1] if said else "it said nothing"
    who = "the profiled program failed" if program_failed else f"ncu ended with exit status {code}"
    return ProfileError(f"not measured: {who}: {last}")


def _sources(scratch: str) -> Path:
    """A folder that holds the kernels under the neutral path they are compiled with."""
    folder = Path(scratch) / NEUTRAL_FOLDER.strip("/")
    folder.mkdir(parents=True)
    for path in KERNELS.rglob("*.cu*"):
        shutil.copy(path, folder)
    return Path(scratch)


def _run(
    command: list[str], log: Path, output: Path, on_progress: Callable[[str], None], timeout_s: float
) -> int:
    """Run ncu in its own process group, telling its log as it grows; the group never outlives the call."""
    with output.open("wb") as printed:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    told: list[str] = []
    deadline = time.monotonic() + timeout_s
    try:
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise ProfileError(f"not measured: ncu did not finish within {timeout_s:g} s")
            time.sleep(0.1)
            told = _tell(log, told, on_progress)
        _tell(log, told, on_progress)
        return process.returncode
    finally:
        _end(process)


def _tell(log: Path, told: list[str], on_progress: Callable[[str], None]) -> list[str]:
    """Give the log's lines that are new or have grown; the lines told so far."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    for i, line in enumerate(lines):
        if i >= len(told) or told[i] != line:
            on_progress(line)
    return lines


def _end(process: subprocess.Popen) -> None:
    """End a process and all of its group, politely first: ncu removes its locks when it is asked to end."""
    try:
        _signal(process, signal.SIGTERM)
        waited = time.monotonic() + 2.0
        while time.monotonic() < waited and _alive(process):
            time.sleep(0.05)
    finally:
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _alive(process: subprocess.Popen) -> bool:
    """Whether anything of a process's group still runs."""
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _profiled(request: str) -> None:
    """What runs under ncu: one call to warm up, one that is profiled."""
    from labs_common.device_inputs import device_inputs
    from labs_common.engines import GpuEngine
    from labs_common.inputs import make_inputs
    from labs_common.open_kernels import kernel_of
    from labs_common.stages import find_stage

    asked = json.loads(request)
    asked["problem"]["context_lengths"] = tuple(asked["problem"]["context_lengths"])
    problem, stage = Problem(**asked["problem"]), find_stage(asked["stage"])
    engine, source = GpuEngine(), kernel_of(stage)
    plan = stage.plan(problem, engine.device, **asked["options"])
    if problem.minimum_bytes < MADE_ON_THE_GPU:
        call = engine.prepare(stage, problem, make_inputs(problem), source, plan)
    else:
        inputs = device_inputs(engine.xp, problem, sets=1)
        call = engine.bind(stage, problem, plan, inputs.sets[0], inputs.scale, source)
    call()
    engine.xp.cuda.Device().synchronize()
    engine.xp.cuda.profiler.start()
    call()
    engine.xp.cuda.Device().synchronize()
    engine.xp.cuda.profiler.stop()


if __name__ == "__main__":
    _profiled(sys.argv[1])
