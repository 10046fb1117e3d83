"""Capturing with Nsight Compute, on a stand-in for the ncu program: failures, progress, and Ctrl-C."""

import json
import lzma
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from labs_common import metric_names as names
from labs_common import metrics
from labs_common.ncu_rows import CountersForbidden, NothingProfiled, ProfileError
from labs_common.problem import PRESETS
from labs_common.profile import EXTRA_METRICS, capture, measure, refuse_empty
from labs_common.recorded import RECORDED
from labs_common.stages import find_stage

STAGE, PROBLEM = find_stage("04"), PRESETS["ragged"]
PERMISSION = (
    "==PROF== Connected to process 7 (/usr/bin/python3)\n"
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access GPU Performance Counters\n"
)
PROFILING = '==PROF== Profiling "paged_attention_split_kv" - 0: 0%'


@pytest.fixture
def ncu(tmp_path, monkeypatch):
    """Puts a program called ncu on PATH that runs some Python with `log` and `export` from its options."""

    def install(body):
        folder = tmp_path / "bin"
        folder.mkdir()
        program = folder / "ncu"
        head = f"""\
            #!{sys.executable}
            import json, os, subprocess, sys, time
            from pathlib import Path
            options = sys.argv[1:]
            Path({str(tmp_path / "arguments.json")!r}).write_text(json.dumps(options))
            after = lambda name: options[options.index(name) + 1]
            log, export = Path(after("--log-file")), Path(after("--export") + ".ncu-rep")
            """
        program.write_text(textwrap.dedent(head) + textwrap.dedent(body))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        return tmp_path / "arguments.json"

    return install


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (
            f"log.write_text({PERMISSION!r}); sys.exit(1)",
            CountersForbidden,
            "NVreg_RestrictProfilingToAdminUsers",
        ),
        (
            "log.write_text('==PROF== Connected to process 7\\n==WARNING== No kernels were profiled.\\n"
            "Available Kernels:\\n     1. cupy_fill\\n')",
            NothingProfiled,
            "0 kernels matched; seen: cupy_fill",
        ),
        (
            "log.write_text('==ERROR== The application returned an error code (1).\\n'); "
            "print('Traceback\\nImportError: no module named cupy', file=sys.stderr); sys.exit(1)",
            ProfileError,
            "the profiled program failed: ImportError: no module named cupy",
        ),
        ("sys.exit(9)", ProfileError, "ncu ended with exit status 9: it said nothing"),
        ("log.write_text('==ERROR== Unknown option\\n'); sys.exit(1)", ProfileError, "Unknown option"),
        ("log.write_text('all is well')", ProfileError, "ncu ended with exit status 0"),
        (
            "log.write_text('==ERROR== The Cuda driver is not compatible with Nsight.\\n'); sys.exit(1)",
            ProfileError,
            "driver is too old.*Update the driver",
        ),
        (
            "log.write_text('==ERROR== Profiling is not supported on device 0.\\n'); sys.exit(1)",
            ProfileError,
            "does not support this GPU.*--list-chips",
        ),
        (
            "log.write_text('==ERROR== Failed to profile: Driver resource was unavailable.\\n'); sys.exit(1)",
            ProfileError,
            "counters are in use.*End other profilers",
        ),
    ],
)
def test_what_goes_wrong_is_told_with_its_remedy(ncu, tmp_path, body, error, message):
    ncu(body)

    with pytest.raises(ProfileError, match=message) as caught:
        capture(STAGE, PROBLEM, tmp_path / "x.ncu-rep")
    assert type(caught.value) is error
    assert not (tmp_path / "x.ncu-rep").exists()


def test_without_ncu_the_remedy_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr("labs_common.profile.find_ncu", lambda: None)
    with pytest.raises(ProfileError, match=r"no ncu on this machine\. Install Nsight Compute"):
        capture(STAGE, PROBLEM, tmp_path / "x.ncu-rep")


REPORT = RECORDED / "h200" / "04_split_kv" / "ragged.ncu-rep.xz"
COPY = f"import lzma; export.write_bytes(lzma.decompress(Path({str(REPORT)!r}).read_bytes()))\n"


def test_a_measured_profile_says_that_it_is_measured(ncu, tmp_path):
    arguments = ncu(COPY)

    frame = measure(STAGE, PROBLEM, {"splits": 3}, keep=tmp_path / "kept.ncu-rep")

    assert set(frame["source"]) == {"measured"} and set(frame["tool"]) == {"ncu"}
    assert set(frame["stage"]) == {STAGE.id} and set(frame["problem"]) == {"ragged"}
    assert metrics.value(frame, names.TIME, kernel="paged_attention_split_kv") == 132_608
    assert (tmp_path / "kept.ncu-rep").read_bytes() == lzma.decompress(REPORT.read_bytes())
    given = json.loads(arguments.read_text())
    assert given[given.index("--set") + 1] == "full" and given[given.index("--clock-control") + 1] == "none"
    assert set(given[given.index("--metrics") + 1].split(",")) == set(EXTRA_METRICS)
    request = json.loads(given[-1])
    assert request["stage"] == STAGE.id and request["options"] == {"splits": 3}
    assert request["problem"]["context_lengths"] == list(PROBLEM.context_lengths)
    assert given[-4:-1] == [sys.executable, "-m", "labs_common.profile"]


def test_a_report_has_its_usual_name(ncu, tmp_path):
    ncu(COPY)
    with pytest.raises(ValueError, match=r"x\.rep: its name must end in \.ncu-rep"):
        capture(STAGE, PROBLEM, tmp_path / "x.rep")


def test_progress_is_told_as_it_grows(ncu, tmp_path):
    ncu(
        f"""
        for text in ("", "....50%", "....50%....100% - 38 passes"):
            log.write_text({PROFILING!r} + text + "\\n")
            time.sleep(0.4)
        export.write_bytes(b"NVR")
        """
    )
    told = []
    capture(STAGE, PROBLEM, tmp_path / "x.ncu-rep", on_progress=told.append)

    assert told == [PROFILING, PROFILING + "....50%", PROFILING + "....50%....100% - 38 passes"]


def test_a_profile_without_any_value_is_refused():
    rows = [
        {"metric": m, "unit": "%", "value": float("nan"), "reason": "nan in the report"}
        for m in EXTRA_METRICS
    ]
    common = {"source": "measured", "tool": "ncu", "kernel": "k", "launch": 0}
    launch = {"metric": names.REGISTERS, "unit": "register/thread", "value": 32.0}
    empty = metrics.build([*rows, launch], **common)

    with pytest.raises(ProfileError, match=r"no value for any counter \(nan in the report\).*virtual"):
        refuse_empty(empty)
    with pytest.raises(ProfileError, match="none of them is in the report"):
        refuse_empty(metrics.build([launch], **common))
    rows[0] = {"metric": EXTRA_METRICS[0], "unit": "%", "value": 3.0}
    refuse_empty(metrics.build(rows, **common))  # one value is there, the others are gaps


def test_a_measurement_that_hangs_is_ended(ncu, tmp_path):
    ncu(f"{SLEEP}\ntime.sleep(60)")

    with pytest.raises(ProfileError, match="did not finish within 1 s"):
        capture(STAGE, PROBLEM, tmp_path / "x.ncu-rep", timeout_s=1)
    assert_gone(json.loads((tmp_path / "x.pids").read_text()))


# Starts a child that ignores polite requests, as a kernel that never ends would, and tells both their ids.
SLEEP = """\
import signal
child = subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"],
    stdout=subprocess.PIPE)
child.stdout.readline()
pids = export.with_suffix(".new")
pids.write_text(json.dumps([os.getpid(), child.pid]))
pids.rename(export.with_suffix(".pids"))
"""


def assert_gone(pids):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(running(pid) for pid in pids):
        time.sleep(0.05)
    assert not [pid for pid in pids if running(pid)]


def running(pid):
    """Whether a process is there and has not ended; a zombie only waits for its parent to be told."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_ctrl_c_leaves_nothing_running(ncu, tmp_path):
    ncu(f"{SLEEP}\ntime.sleep(60)")
    program = f"""
from pathlib import Path
from labs_common.problem import PRESETS
from labs_common.profile import capture
from labs_common.stages import find_stage
try:
    capture(find_stage("04"), PRESETS["ragged"], Path({str(tmp_path / "x.ncu-rep")!r}))
except KeyboardInterrupt:
    print("interrupted")
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    pids = tmp_path / "x.pids"
    deadline = time.monotonic() + 60
    while not pids.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    started = json.loads(pids.read_text())
    assert all(running(pid) for pid in started)

    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=30)

    assert said == "interrupted\n"
    assert_gone(started)
