"""Reading compute-sanitizer's words, and the table of both verdicts; a stand-in plays the program itself."""

from __future__ import annotations

import csv
import os
import stat

import pytest

from labs_common import bugs, sanitizer
from labs_common.sanitizer import Report, markdown, parse, run_all

MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at paged_attention_baseline+0x5d0 in /lab/kernels/00_baseline.cu:31
=========     by thread (3,0,0) in block (0,1,0)
=========     Access at 0x7f0000000010 is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernel in driver.c:12 [0x2f]
=========
========= Invalid __global__ read of size 4 bytes
=========     at paged_attention_baseline+0x5d0 in /lab/kernels/00_baseline.cu:31
=========     by thread (4,0,0) in block (0,1,0)
========= Program hit CUDA_ERROR_LAUNCH_FAILED (error 719) on CUDA API call to cuCtxSynchronize.
========= ERROR SUMMARY: 3 errors
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at cooperative+0x660 in 01_cooperative.cu:39
=========     and Read access at cooperative+0x6e0 in 01_cooperative.cu:43 [2048 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
SYNCCHECK = """========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at paged_attention_gqa_reuse+0x400 in 03_gqa_reuse.cu:56
=========     by thread (64,0,0) in block (1,0,0)
========= ERROR SUMMARY: 1 error
"""


def test_reports_are_read_once_each_with_their_lines():
    assert parse(MEMCHECK) == [Report("Invalid __global__ read of size 4 bytes", ("00_baseline.cu:31",))]
    assert parse(SYNCCHECK) == [
        Report("Barrier error detected. Divergent thread(s) in block", ("03_gqa_reuse.cu:56",))
    ]
    (race,) = parse(RACECHECK)
    assert race.kind == "Error: Race reported between Write access"
    assert race.lines == ("01_cooperative.cu:39", "01_cooperative.cu:43")
    assert parse("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n") == []


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A program of the same name on the path: it reports a race under racecheck and hangs under synccheck."""
    program = tmp_path / "bin" / "compute-sanitizer"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        'while [ "$1" != "--tool" ]; do shift; done; tool="$2"\n'
        'while [ "$1" != "--log-file" ]; do shift; done; log="$2"\n'
        'if [ "$tool" = synccheck ]; then sleep 30; fi\n'
        f'if [ "$tool" = racecheck ]; then cat > "$log" <<\'END\'\n{RACECHECK}END\n'
        'elif [ "$tool" = initcheck ]; then echo broken >&2\n'
        'else echo "========= ERROR SUMMARY: 0 errors" > "$log"; fi\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_every_case_runs_under_every_tool_and_both_verdicts_are_told(stand_in):
    case = bugs.read_case(bugs.CORPUS / "01_missing_first_barrier")

    path = run_all([(case, False)], stand_in / "out", jobs=4, timeout_s=2.0)

    with path.open(encoding="utf-8", newline="") as file:
        rows = {row["tool"]: row for row in csv.DictReader(file)}
    assert {tool: row["status"] for tool, row in rows.items()} == {
        "memcheck": "clean", "racecheck": "report", "initcheck": "failed", "synccheck": "timeout"
    }  # fmt: skip
    line = rows["racecheck"]["simulator_line"]
    assert rows["racecheck"]["simulator"] == "racecheck" and line.startswith("01_cooperative.cu:")
    assert rows["racecheck"]["expected_line"] == line
    text = markdown(path, [case])
    assert "| 01_missing_first_barrier | racecheck" in text
    assert "racecheck 01_cooperative.cu:39, 01_cooperative.cu:43" in text
    assert "synccheck: timeout" in text and "initcheck: failed" in text


def test_the_table_says_where_verdicts_agree_and_why_they_differ(tmp_path):
    base = dict.fromkeys(sanitizer.COLUMNS, "")
    rows = [
        {**base, "case": "a", "tool": "racecheck", "status": "report", "lines": "k.cu:3 k.cu:5",
         "simulator": "racecheck", "simulator_line": "k.cu:5"},
        {**base, "case": "01_sums_of_absent_warps", "tool": "initcheck", "status": "clean",
         "simulator": "initcheck", "simulator_line": "k.cu:9"},
        {**base, "case": "c", "tool": "memcheck", "status": "clean", "simulator": "none"},
        {**base, "case": "d", "tool": "memcheck", "status": "report", "lines": "k.cu:2", "simulator": "none"},
    ]  # fmt: skip
    path = tmp_path / "table.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, sanitizer.COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    cases = [bugs.read_case(bugs.CORPUS / "01_sums_of_absent_warps")]

    last = [line.rstrip(" |").split("| ")[-1] for line in markdown(path, cases).splitlines()[2:]]

    assert last == ["same", cases[0].why, "same", "differs"]


def test_without_the_program_the_message_says_where_it_comes_from(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sanitizer.os, "access", lambda *_: False)
    case = bugs.read_case(bugs.CORPUS / "00_bad_page_id")

    with pytest.raises(SystemExit, match="CUDA toolkit"):
        run_all([(case, False)], tmp_path / "out", 1, 1.0, ("memcheck",))
