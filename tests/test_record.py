"""Recording a set: what is written, what an earlier set keeps, and that no path of the machine is left."""

import json
import lzma
import os
import sys
from types import SimpleNamespace

import pytest

from labs_common import metric_names as names
from labs_common import metrics
from labs_common.ncu import read_profile
from labs_common.ncu_rows import ProfileError
from labs_common.record import record, without_private_paths
from labs_common.recorded import PROBLEMS, RECORDED, changed_kernels, recorded_metrics, recorded_reports
from labs_common.stages import find_stage

REPORT = RECORDED / "h200" / "03_gqa_reuse" / "ragged.ncu-rep.xz"
STAGE = find_stage("03")
INTERPRETER = "/usr/bin/././././././python3"  # in the command line of the recorded report


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """A machine with a GPU and an ncu that writes a real report, in which INTERPRETER stands."""
    folder = tmp_path / "bin"
    folder.mkdir()
    smi = "#!/bin/sh\necho 'NVIDIA H200, 580.159.04, 9.0'\n"
    ncu = f"""#!{sys.executable}
import lzma, sys
from pathlib import Path
export = sys.argv[sys.argv.index("--export") + 1]
Path(export + ".ncu-rep").write_bytes(lzma.decompress(Path({str(REPORT)!r}).read_bytes()))
"""
    for name, text in (("nvidia-smi", smi), ("ncu", ncu)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    nvrtc = SimpleNamespace(getVersion=lambda: (13, 0))
    cupy = SimpleNamespace(__version__="14.2.0", cuda=SimpleNamespace(nvrtc=nvrtc))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return tmp_path


def test_a_set_is_written_and_read_back(gpu):
    target = record([STAGE], [PROBLEMS["ragged"]], gpu / "sets", "palab record 3")

    assert target == gpu / "sets" / "h200"
    assert recorded_reports(gpu / "sets") == [("h200", "03_gqa_reuse", "ragged")]
    frame = recorded_metrics(gpu / "sets")
    assert metrics.value(frame, names.TIME) == 148_480
    provenance = json.loads((target / "provenance.json").read_text())
    assert (provenance["gpu"], provenance["compute_capability"]) == ("NVIDIA H200", "9.0")
    assert provenance["problems"]["ragged"]["context_lengths"] == [0, 1, 16, 389, 512]
    assert list(provenance["kernels_ptx_sha256"]) == ["03_gqa_reuse"]
    assert changed_kernels(target) == []


def test_a_set_is_added_to(gpu):
    record([STAGE], [PROBLEMS["ragged"]], gpu / "sets", "first")
    target = record([find_stage("02")], [PROBLEMS["grouped"]], gpu / "sets", "second", {"02_vectorized": {}})

    assert [of for _, of, _ in recorded_reports(gpu / "sets")] == ["02_vectorized", "03_gqa_reuse"]
    provenance = json.loads((target / "provenance.json").read_text())
    assert set(provenance["problems"]) == {"ragged", "grouped"}
    assert {s: list(p) for s, p in provenance["kernels_ptx_sha256"].items()} == {
        "03_gqa_reuse": ["ragged"],
        "02_vectorized": ["grouped"],
    }


def test_a_stage_that_does_not_take_a_problem_is_left_out(gpu):
    target = record([STAGE], [PROBLEMS["ragged"].replace(dtype="float16")], gpu / "sets", "palab record 3")

    assert recorded_reports(gpu / "sets") == [] and target.name == "h200"


def test_what_was_recorded_before_a_failure_stays(gpu, monkeypatch):
    told = []

    def stop(line):
        told.append(line)
        if "grouped" in line:
            raise ProfileError("the GPU went away")

    with pytest.raises(ProfileError, match="went away"):
        record([STAGE], [PROBLEMS["ragged"], PROBLEMS["grouped"]], gpu / "sets", "x", on_progress=stop)
    assert recorded_reports(gpu / "sets") == [("h200", "03_gqa_reuse", "ragged")]
    assert json.loads((gpu / "sets" / "h200" / "provenance.json").read_text())["command"] == "x"


def test_no_path_of_this_machine_is_recorded(gpu, monkeypatch):
    monkeypatch.setattr("labs_common.record.sys", SimpleNamespace(executable=INTERPRETER))
    target = record([STAGE], [PROBLEMS["ragged"]], gpu / "sets", "palab record 3")

    data = lzma.decompress((target / "03_gqa_reuse" / "ragged.ncu-rep.xz").read_bytes())
    assert INTERPRETER.encode() in lzma.decompress(REPORT.read_bytes())
    assert INTERPRETER.encode() not in data and b"/lab/" + b"_" * 23 in data


@pytest.mark.parametrize(
    ("paths", "old", "new"),
    [
        (
            ["/home/ann/.venv/bin/python"],
            b"ncu /home/ann/.venv/bin/python -m",
            b"ncu /lab/_____________________ -m",
        ),
        (["/home/ann", "/home/ann/x"], b"/home/ann/x/y /home/ann", b"/lab/______/y /lab/____"),
        (["/usr/bin/python3.12", "/", "/tmp"], b"/usr/bin/python3.12 /tmp/a", b"/usr/bin/python3.12 /tmp/a"),
    ],
)
def test_paths_become_neutral_ones_of_the_same_length(paths, old, new):
    assert without_private_paths(old, paths) == new and len(new) == len(old)


def test_a_report_without_its_paths_reads_the_same(tmp_path):
    plain = lzma.decompress(REPORT.read_bytes())
    changed = tmp_path / "x.ncu-rep"
    changed.write_bytes(without_private_paths(plain, [INTERPRETER, "/tmp/lab_profile"]))

    assert changed.read_bytes() != plain
    assert read_profile(changed).equals(read_profile(REPORT))
