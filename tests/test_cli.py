"""The command line as a user types it."""

import csv
import json
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from labs_common import metrics
from labs_common.cli import app, main
from labs_common.stages import STAGES


def palab(*arguments):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(a) for a in arguments])


def test_run_prints_a_right_row_for_every_stage(tmp_path):
    result = palab("run", "0", "1", "2", "3", "4", "--engine", "sim", "--save", tmp_path)

    assert result.exit_code == 0, result.output
    for stage in STAGES[:5]:
        assert re.search(rf"{stage.id} +│ right", result.output), result.output
    assert "ragged: batch 5" in result.output
    saved = metrics.load_csv(tmp_path / "ragged.csv")
    assert set(saved["source"]) == {"simulated"}
    assert set(saved["stage"]) == {stage.id for stage in STAGES[:5]}


def test_saving_replaces_no_figures_of_other_stages(tmp_path):
    def saved(*stages):
        return palab("run", *stages, "--problem", "tiny", "--engine", "sim", "--save", tmp_path)

    def held():
        return set(metrics.load_csv(tmp_path / "tiny.csv")["stage"])

    assert saved("0").exit_code == saved("0", "1").exit_code == saved("0", "1").exit_code == 0
    both = {stage.id for stage in STAGES[:2]}
    assert held() == both

    refused = saved("1")
    assert "tiny.csv holds figures of 00_baseline, which" in str(refused.exception)
    refused = saved("7", "2")  # 07 takes fp16, in a file of its own: nothing runs where one is refused
    assert "tiny.csv holds figures of 00_baseline, 01_cooperative" in str(refused.exception)
    assert held() == both and not (tmp_path / "tiny-float16.csv").exists()


def test_a_stage_by_number_or_prefix():
    result = palab("run", "02_vec", "--problem", "tiny", "--engine", "sim")

    assert result.exit_code == 0
    assert "02_vectorized" in result.output and "01_cooperative" not in result.output


def test_a_refused_problem_is_said_and_is_no_success():
    result = palab("run", "2", "--problem", "long", "--engine", "sim")

    assert result.exit_code == 2
    assert "refused" in result.output and "float32" in result.output


def wrong_kernel(tmp_path, old, new):
    text = STAGES[0].path.read_text()
    assert old in text
    path = tmp_path / "mine.cu"
    path.write_text(text.replace(old, new))
    return path


def test_check_of_a_right_kernel(tmp_path):
    result = palab("check", STAGES[0].path, "--stage", "0", "--engine", "sim")

    assert result.exit_code == 0, result.output
    assert "00_baseline.cu is right as 00_baseline" in result.output


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("score *= problem.scale;", "", "rows are wrong"),
        ("token < context", "token < context - 1", "rows are wrong|not finite"),
        (
            "const int dim = threadIdx.x;",
            "const int dim = threadIdx.x",
            r'mine.cu\(\d+\): error: expected a ";"',
        ),
        ("token < context", "token < (1 << 20)", "memcheck"),
    ],
)
def test_check_of_a_wrong_kernel_says_what_is_wrong(tmp_path, old, new, said):
    result = palab("check", wrong_kernel(tmp_path, old, new), "--stage", "0", "--engine", "sim")

    assert result.exit_code == 1, result.output
    assert re.search(said, result.output), result.output


@pytest.mark.parametrize("right", [True, False], ids=["right", "wrong"])
def test_a_report_of_check_is_graded_as_its_kernel_is(tmp_path, right):
    """The one and the other are handed in; what the report says is changed to full marks, and is not read."""
    kernel = tmp_path / "00_baseline.cu"
    text = STAGES[0].path.read_text()
    kernel.write_text(text if right else text.replace("score *= problem.scale;", ""))
    report = tmp_path / "class" / "report" / "anna.json"
    result = palab("check", kernel, "--stage", "0", "--engine", "sim", "--report", report)
    assert result.exit_code == (0 if right else 1), result.output
    assert f"report: {report}" in result.output
    said = json.loads(report.read_text())
    assert (said["ok"], said["stage"], said["source"]) == (right, STAGES[0].id, kernel.read_text())
    forged = {**said, "ok": True, "points": 85, "results": [{**r, "ok": True} for r in said["results"]]}
    (tmp_path / "class" / "forged.json").write_text(json.dumps(forged))
    kernel.rename(tmp_path / "class" / "kernel.cu")

    result = palab("grade", tmp_path / "class", "--out", tmp_path / "out", "--stage", "0", "--workers", "1")

    assert result.exit_code == 0, result.output
    with open(tmp_path / "out" / "marks.csv", encoding="utf-8-sig", newline="") as file:
        marks = {row["student"]: row["total"] for row in csv.DictReader(file)}
    assert marks == dict.fromkeys(("report", "forged", "kernel"), "85.0" if right else "0.0")


def test_a_report_needs_the_name_that_the_grader_reads(tmp_path):
    result = palab(
        "check", STAGES[0].path, "--stage", "0", "--engine", "sim", "--report", tmp_path / "report.txt"
    )

    assert isinstance(result.exception, ValueError)
    assert "must end in .json" in str(result.exception)


def test_doctor_says_what_works_and_why_not_more():
    result = palab("doctor")

    assert result.exit_code == 0
    for ability in ("CUDA compiler", "Simulator", "GPU", "CuPy", "Nsight Compute"):
        assert ability in result.output
    assert "Stages run" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "7x"], "no stage called '7x'"),
        (["run", "--problem", "nosuch"], "problem 'nosuch': allowed are tiny"),
        (["check", "nosuch.cu", "--stage", "0"], "nosuch.cu"),
        (["check", ".", "--stage", "0"], "directory"),
    ],
)
def test_a_mistake_is_one_message_and_status_2(arguments, said, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["palab", *arguments])

    with pytest.raises(SystemExit) as stopped:
        main()

    assert stopped.value.code == 2
    output = capsys.readouterr()
    assert said in output.err.replace("\n", " ")
    assert "Traceback" not in output.err


def test_importing_the_package_needs_neither_cupy_nor_a_driver():
    """The modules that notebooks and grader import, in a process where CuPy cannot be imported."""
    code = (
        "import sys; sys.modules['cupy'] = None; import labs_common, labs_common.engines, labs_common.check, "
        "labs_common.cli, labs_common.charts; "
        "assert not [m for m in sys.modules if m.startswith('cuda.bindings.driver')]"
    )

    subprocess.run([sys.executable, "-c", code], check=True)
