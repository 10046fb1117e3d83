"""``palab bench``: rates of the engines, the ratio to numba's simulator, fuzzing from the command line."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from labs_common import cli_bench, simulator_benchmark
from labs_common.problem import PRESETS
from labs_common.simulator_benchmark import beside_numba

FOUND = {"seconds": 12.5, "max_error": 1e-7, "right": True}


def answer(found, returncode=0, stderr=""):
    """What the child process of numba gives back."""
    return lambda *args, **kwargs: SimpleNamespace(
        returncode=returncode, stdout=json.dumps(found), stderr=stderr
    )


@pytest.fixture
def with_numba(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(subprocess, "run", answer(FOUND))


def test_the_ratio_is_numbas_seconds_over_ours(with_numba):
    rows = {row["engine"]: row for row in beside_numba(PRESETS["tiny"])}

    assert list(rows) == ["llvm", "numpy", "numba"]
    for engine in ("llvm", "numpy"):
        assert rows[engine]["times_numba"] == pytest.approx(12.5 / rows[engine]["seconds"])
    lanes = rows["llvm"]["lane_instructions"]
    assert lanes == rows["numpy"]["lane_instructions"] > 1e6
    assert rows["numba"]["lane_instructions_per_s"] == pytest.approx(lanes / 12.5)
    assert rows["numba"]["checks"] == [] and rows["numba"]["stage"] == "00_baseline"


def test_the_table_has_the_ratio(with_numba, monkeypatch):
    rows = [
        {"stage": "00_baseline", "engine": engine, "cores": 1, "checks": checks, "grid_seconds": seconds,
         "lane_instructions_per_s": 6e6 / seconds, "times_numba": 12.5 / seconds}
        for engine, checks, seconds in (("llvm", ["memcheck"], 0.001), ("numba", [], 12.5))
    ]  # fmt: skip
    monkeypatch.setattr(simulator_benchmark, "beside_numba", lambda problem: rows)
    result = CliRunner().invoke(cli_bench.app, ["simulator", "--numba"])

    assert result.exit_code == 0
    assert "x numba" in result.output and "12,500.00" in result.output
    assert json.loads(CliRunner().invoke(cli_bench.app, ["simulator", "--numba", "--json"]).output) == rows


def test_without_numba_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"numba is not installed: pip install -e '\.\[bench\]'"):
        beside_numba(PRESETS["tiny"])


@pytest.mark.parametrize(
    ("child", "said"),
    [
        (answer({}, 1, "ImportError: no cuda"), "failed: ImportError: no cuda"),
        (answer(FOUND | {"right": False, "max_error": 0.5}), "wrong: largest error 0.5"),
    ],
)
def test_a_run_of_numba_that_failed_gives_no_ratio(with_numba, monkeypatch, child, said):
    monkeypatch.setattr(subprocess, "run", child)
    with pytest.raises(ValueError, match=said):
        beside_numba(PRESETS["tiny"])


def test_fuzzing_from_the_command_line_prints_its_seeds_and_saves_nothing_when_all_is_well(tmp_path):
    result = CliRunner().invoke(
        cli_bench.app, ["fuzz", "--cases", "2", "--seed", "1", "--out", str(tmp_path / "out")]
    )

    assert result.exit_code == 0, result.output
    assert "seeds from 1" in result.output and "2 cases, seeds 1 to 2" in result.output
    assert not (tmp_path / "out").exists()
