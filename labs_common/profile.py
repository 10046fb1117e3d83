"""Nsight Compute around one call of a stage: capture a report on this machine's GPU."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from labs_common import metric_names as names
from labs_common.problem import Problem
from labs_common.source import KERNELS, NEUTRAL_FOLDER
from labs_common.stages import Stage

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


class ProfileError(RuntimeError):
    """Nothing could be measured; the message gives the reason and the remedy."""


def find_ncu() -> str | None:
    """Path of the ``ncu`` program: on PATH, or in the newest toolkit under the usual folder."""
    usual = sorted(Path("/usr/local").glob("cuda*/bin/ncu"), reverse=True)
    return shutil.which("ncu") or next((str(path) for path in usual), None)


def capture(
    stage: Stage,
    problem: Problem,
    report: Path,
    options: Mapping[str, int] | None = None,
    on_progress: Callable[[str], None] = lambda line: None,
    timeout_s: float = 900.0,
) -> Path:
    """Profile one call of a stage, after one that warms up, with the full set of Nsight Compute's sections.

    Clocks are left alone (``--clock-control none``) and caches are flushed before every pass, so durations
    are for cold caches and must not enter a ratio with times by events.

    Args:
        stage: what to profile.
        problem: on what.
        report: where the ``.ncu-rep`` goes.
        options: of the stage's plan, such as ``splits``.
        on_progress: is given each line that ncu prints.
        timeout_s: wall time after which everything is stopped.

    Raises:
        ProfileError: no ncu, no permission, no kernel, or no report.
        KeyboardInterrupt: nothing is left running.
    """
    ncu = find_ncu()
    if ncu is None:
        raise ProfileError(
            "there is no ncu on this machine: install Nsight Compute, or use recorded profiles"
        )
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "ncu.log"
        request = {"stage": stage.id, "problem": dataclasses.asdict(problem), "options": dict(options or {})}
        command = [
            *(ncu, "--set", "full", "--import-source", "yes", "--source-folders", str(_sources(scratch))),
            *("--clock-control", "none", "--cache-control", "all", "--profile-from-start", "off"),
            *("--kernel-name", KERNEL_FILTER, "--metrics", ",".join(EXTRA_METRICS)),
            *("--log-file", str(log), "--force-overwrite", "--export", str(report.with_suffix(""))),
            *(sys.executable, "-m", "labs_common.profile", json.dumps(request)),
        ]
        code = _run(command, log, on_progress, timeout_s)
        text = log.read_text(errors="replace") if log.exists() else ""
    explain_failure(text, code, report)
    return report


def explain_failure(log: str, code: int, report: Path) -> None:
    """Raise the ProfileError that a log of ncu calls for, if any.

    Raises:
        ProfileError: with the reason and the remedy.
    """
    if "ERR_NVGPUCTRPERM" in log:
        raise ProfileError(
            "not measured: this user may not read the GPU's counters (ERR_NVGPUCTRPERM). Remedy: run as root, "
            "or have an administrator load the driver with NVreg_RestrictProfilingToAdminUsers=0; in a "
            "container add --cap-add=SYS_ADMIN. Times by events and recorded profiles work without."
        )
    if "No kernels were profiled" in log:
        seen = ", ".join(re.findall(r'Profiling "([^"]+)"', log)) or "none"
        raise ProfileError(f"not measured: 0 kernels matched {KERNEL_FILTER}; seen: {seen}")
    if code != 0 or not report.exists():
        errors = [line for line in log.splitlines() if "ERROR" in line] or log.splitlines()[-5:]
        raise ProfileError(f"not measured: ncu ended with exit status {code}: " + " ".join(errors))


def _sources(scratch: str) -> Path:
    """A folder that holds the kernels under the neutral path they are compiled with."""
    folder = Path(scratch) / NEUTRAL_FOLDER.strip("/")
    folder.mkdir(parents=True)
    for path in KERNELS.glob("*.cu*"):
        shutil.copy(path, folder)
    return Path(scratch)


def _run(command: list[str], log: Path, on_progress: Callable[[str], None], timeout_s: float) -> int:
    """Run ncu in its own process group, telling its log's lines as they come."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    told, waited = 0, 0.0
    try:
        while True:
            try:
                return process.wait(0.5)
            except subprocess.TimeoutExpired:
                waited += 0.5
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            for line in lines[told:]:
                on_progress(line)
            told = len(lines)
            if waited > timeout_s:
                raise ProfileError(f"not measured: ncu did not finish within {timeout_s:g} s")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _profiled(request: str) -> None:
    """What runs under ncu: one call to warm up, one that is profiled."""
    from labs_common.engines import GpuEngine
    from labs_common.inputs import make_inputs
    from labs_common.stages import find_stage

    asked = json.loads(request)
    asked["problem"]["context_lengths"] = tuple(asked["problem"]["context_lengths"])
    problem, stage = Problem(**asked["problem"]), find_stage(asked["stage"])
    engine = GpuEngine()
    call = engine.prepare(
        stage, problem, make_inputs(problem), plan=stage.plan(problem, engine.device, **asked["options"])
    )
    call()
    engine.xp.cuda.Device().synchronize()
    engine.xp.cuda.profiler.start()
    call()
    engine.xp.cuda.Device().synchronize()
    engine.xp.cuda.profiler.stop()


if __name__ == "__main__":
    _profiled(sys.argv[1])
