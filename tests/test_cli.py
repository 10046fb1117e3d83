"""The command line as a user types it."""

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
        (["run", "--problem", "nosuch"], "problem 'nosuch': the presets are"),
        (["check", "nosuch.cu", "--stage", "0"], "nosuch.cu"),
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
