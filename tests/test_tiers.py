"""Three tiers of figures: which one a machine has and why, and that one call never mixes them up."""

import json
import os
import re
import sys
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from labs_common import metric_names as names
from labs_common import metrics, tiers
from labs_common.cli import app
from labs_common.ncu_rows import ProfileError
from labs_common.problem import PRESETS
from labs_common.profile import NO_NCU
from labs_common.recorded import PROBLEMS, RECORDED, recorded_metrics
from labs_common.stages import find_stage

STAGE = find_stage("03")
REPORT = RECORDED / "h200" / STAGE.id / "ragged.ncu-rep.xz"
TOOLS = ("ncu", "nvidia-smi")
SMI = "#!/bin/sh\necho '{}'\n"
CUPY = SimpleNamespace(
    __version__="14.2.0", cuda=SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=lambda: 1))
)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with what the test puts on PATH, and no ncu, nvidia-smi or CuPy of its own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    hidden = [p for p in os.environ["PATH"].split(":") if not any(os.path.exists(f"{p}/{x}") for x in TOOLS)]
    monkeypatch.setenv("PATH", ":".join([str(folder), *hidden]))
    monkeypatch.setattr("labs_common.doctor.TOOLKITS", tmp_path)
    monkeypatch.setitem(sys.modules, "cupy", None)
    tiers.forget()

    def put(gpu="NVIDIA H200, 580.159.04, 9.0", cupy=CUPY, ncu=None):
        if gpu is not None:
            _program(folder / "nvidia-smi", SMI.format(gpu))
        if cupy is not None:
            monkeypatch.setitem(sys.modules, "cupy", cupy)
        if ncu is not None:
            version = "if '--version' in sys.argv: print('Version 2025.3.1.0'); sys.exit()\n"
            head = f"#!{sys.executable}\nimport sys, lzma\nfrom pathlib import Path\n{version}"
            after = "after = lambda name: Path(sys.argv[sys.argv.index(name) + 1])\n"
            _program(folder / "ncu", head + after + ncu)
        tiers.forget()

    yield put
    tiers.forget()


def _program(path, text):
    path.write_text(text)
    path.chmod(0o755)


COPY = f"""report = after("--export").with_suffix(".ncu-rep")
report.write_bytes(lzma.decompress(Path({str(REPORT)!r}).read_bytes()))
"""
FORBIDDEN = "after('--log-file').write_text('==ERROR== ERR_NVGPUCTRPERM - no permission'); sys.exit(1)\n"


def test_no_gpu(machine):
    counters, events, recorded = tiers.tiers()

    assert not counters.works and counters.detail == "GPU: nvidia-smi finds none"
    assert not events.works and "simulator" in events.remedy
    assert recorded.works and "H200, stages 00 to 0" in recorded.detail and "seed" in recorded.detail
    assert tiers.best_tier().name == tiers.RECORDINGS


@pytest.mark.parametrize(
    ("found", "detail", "remedy", "events"),
    [
        (
            {"gpu": "Tesla T4, 470.82.01, 7.5"},
            "GPU: Tesla T4.*driver 470",
            "install driver 525 or newer",
            False,
        ),
        ({"cupy": None}, "CuPy: not installed", r"cuda13.*cuda12", False),
        (
            {
                "cupy": SimpleNamespace(
                    __version__="14",
                    cuda=SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=lambda: 1 / 0)),
                )
            },
            "CuPy: ZeroDivisionError",
            "driver and CuPy match",
            False,
        ),
        ({}, "Nsight Compute: no ncu found", NO_NCU[:20], True),
        ({"ncu": FORBIDDEN}, "ERR_NVGPUCTRPERM", "NVreg_RestrictProfilingToAdminUsers=0", True),
        ({"ncu": "sys.exit(3)"}, "exit status 3", "", True),
    ],
    ids=["old driver", "no cupy", "cupy fails", "no ncu", "no permission", "ncu fails"],
)
def test_each_lack_has_its_reason_and_remedy(machine, found, detail, remedy, events):
    machine(**found)

    counters, by_events, _ = tiers.tiers()

    assert not counters.works
    assert re.search(detail, counters.detail) and re.search(remedy, counters.remedy), counters
    assert by_events.works == events
    assert tiers.best_tier().name == (tiers.EVENTS if events else tiers.RECORDINGS)
    assert counters.detail in tiers.describe_tiers()


def test_counters_are_tried_and_measure(machine):
    machine(ncu=COPY)

    assert tiers.best_tier().name == tiers.COUNTERS
    frame = tiers.profile(STAGE, PRESETS["ragged"], progress=False)
    assert set(frame["source"]) == {"measured"}
    assert metrics.value(frame, names.TIME) == 148_480


def test_counters_that_are_all_nan_are_no_tier(machine, monkeypatch):
    machine(ncu=COPY)
    rows = [{"metric": names.DRAM_PCT, "unit": "%", "value": float("nan"), "reason": "nan in the report"}]
    broken = metrics.build(rows, source="measured", tool="ncu", kernel="k", launch=0)
    monkeypatch.setattr("labs_common.tiers.read_profile", lambda *_, **__: broken)

    counters = tiers.tiers()[0]
    assert not counters.works and "no value for any counter (nan in the report)" in counters.detail
    assert "virtual or shared GPU" in counters.remedy


def test_the_trial_is_made_once(machine, tmp_path):
    count = tmp_path / "count"
    machine(ncu=f"open({str(count)!r}, 'a').write('x')\n{COPY}")
    tiers.tiers()
    tiers.tiers()
    assert count.read_text() == "x"
    tiers.forget()
    tiers.tiers()
    assert count.read_text() == "xx"


def test_without_counters_the_recorded_profile_is_shown_as_recorded(machine):
    frame = tiers.profile(STAGE, PROBLEMS["seed"])

    assert set(frame["source"]) == {"recorded"} and set(frame["gpu"]) == {"h200"}
    assert frame.equals(recorded_metrics(tool="ncu", stage=STAGE.id, problem="seed"))


def test_events_stand_beside_the_recorded_profile(machine, monkeypatch):
    machine()
    rows = [{"metric": names.TIME, "unit": "nsecond", "value": 5.0}]
    events = metrics.build(
        rows,
        source="measured",
        tool="events",
        gpu="rtx_4090",
        stage=STAGE.id,
        problem="seed",
        kernel="all kernels",
    )
    monkeypatch.setattr("labs_common.tiers._by_events", lambda *_: events)

    frame = tiers.profile(STAGE, PROBLEMS["seed"])

    groups = frame[["source", "tool", "gpu"]].drop_duplicates().values.tolist()
    assert groups == [["measured", "events", "rtx_4090"], ["recorded", "ncu", "h200"]]
    with pytest.raises(metrics.MetricsError, match="speed-up needs one source"):
        metrics.speedup(metrics.select(frame, tool="events"), metrics.select(frame, tool="ncu"))


def test_what_is_neither_measured_nor_recorded_says_so(machine, tmp_path):
    with pytest.raises(
        ProfileError, match=r"03_gqa_reuse on problem 'tiny' is not measured here \(GPU: .*seed"
    ):
        tiers.profile(STAGE, PRESETS["tiny"])
    with pytest.raises(ProfileError, match="Recorded of this stage: nothing"):
        tiers.profile(STAGE, PRESETS["tiny"], folder=tmp_path)
    with pytest.raises(ValueError, match="takes float32"):
        tiers.profile(STAGE, PRESETS["long"])
    with pytest.raises(ProfileError, match="no figures on this machine"):
        tiers.best_tier(tmp_path)


def test_the_bar_goes_kernel_by_kernel(capsys):
    stage = find_stage("04")
    with tiers._bar(stage, PRESETS["ragged"], True) as tell:
        tell("==PROF== Connected to process 5")
        tell('==PROF== Profiling "paged_attention_split_kv" - 0: 0%....50%')
        tell('==PROF== Profiling "paged_attention_split_kv" - 0: 0%....50%....100% - 38 passes')
        tell('==PROF== Profiling "paged_attention_split_kv_merge" - 1: 0%....50%....100% - 38 passes')
    shown = capsys.readouterr().err

    assert "0/2" in shown and "2/2" in shown and "paged_attention_split_kv_merge 100 %" in shown


def palab(*arguments):
    return CliRunner(env={"COLUMNS": "160"}).invoke(app, [str(a) for a in arguments])


def test_palab_profile_shows_what_was_recorded(machine):
    told = palab("profile", "3", "--problem", "ragged")

    assert told.exit_code == 0 and "H200, problem ragged, recorded with ncu" in told.stdout
    assert "0.148" in told.stdout and "03 gqa reuse is latency-bound" in told.stdout


def test_palab_profile_gives_json(machine):
    rows = json.loads(palab("profile", "3", "--problem", "ragged", "--json").stdout)

    times = [row for row in rows if row["metric"] == names.TIME]
    assert [(row["value"], row["unit"], row["source"]) for row in times] == [(148_480, "nsecond", "recorded")]


def test_palab_profile_measures_where_it_can(machine, tmp_path):
    machine(ncu=COPY)
    told = palab("profile", "3", "--problem", "ragged", "--keep", tmp_path / "reports")

    assert told.exit_code == 0 and "H200, problem ragged, measured here with ncu" in told.stdout
    assert (tmp_path / "reports" / "03_gqa_reuse-ragged.ncu-rep").read_bytes().startswith(b"NVR")


def test_palab_profile_names_what_it_does_not_know(machine):
    assert "problem 'sed': allowed are tiny" in str(palab("profile", "3", "--problem", "sed").exception)
    assert "not recorded" in str(palab("profile", "3", "--problem", "tiny").exception)


def test_palab_profile_of_all_stages_goes_on_where_one_is_missing(machine, monkeypatch):
    monkeypatch.setattr("labs_common.cli.ALL_STAGES", [find_stage("00"), find_stage("01")])
    known = tiers.recorded_metrics
    without = lambda *a, **w: known(*a, **w).iloc[:0] if w.get("stage") == "00_baseline" else known(*a, **w)  # noqa: E731
    monkeypatch.setattr("labs_common.tiers.recorded_metrics", without)

    told = palab("profile", "--problem", "ragged")
    assert told.exit_code == 0 and "01 cooperative" in told.stdout
    assert "00_baseline on problem 'ragged' is not measured here" in told.stderr


def test_palab_metrics_reads_any_form(machine):
    told = palab("metrics", REPORT).stdout
    assert "DRAM throughput" in told and "0.263" in told

    rows = json.loads(palab("metrics", REPORT.with_name("ragged.csv"), "--json").stdout)
    registers = [row["value"] for row in rows if row["metric"] == names.REGISTERS]
    assert registers == [64]


def test_palab_metrics_names_what_it_cannot_read(machine, tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    assert "Readable are .ncu-rep" in str(palab("metrics", tmp_path / "x.csv").exception)
    assert isinstance(palab("metrics", tmp_path / "none.csv").exception, FileNotFoundError)


def test_palab_doctor_tells_the_tiers(machine):
    told = palab("doctor").stdout

    assert "counters" in told and "recorded profiles" in told and "H200" in told
