"""A class at a time: stopped and resumed, killed, repeated from its bundle, reported without a leak."""

import csv
import io
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor

import pytest

from labs_common.engines import EngineMissing
from labs_common.grading import class_run
from labs_common.grading.cases import grading_cases
from labs_common.grading.class_run import grade_class
from labs_common.grading.rubric import PARTS, parse_rubric
from labs_common.grading.schedulers import LocalScheduler, run_all
from labs_common.grading.store import Store, differing_marks, read_json
from labs_common.grading.synthetic import benchmark_grading
from labs_common.grading.tables import canvas_csv, marks_csv, moodle_csv, nbgrader_csv
from labs_common.stages import find_stage

STAGE = find_stage("02")
RIGHT = STAGE.source().text
WRONG = RIGHT.replace("* problem.scale", "")
EMPTY = """#include "paged_attention.cuh"
extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {}
"""


class Inline(Executor):
    """Runs a task when it is submitted, in this process."""

    workers = 1

    def executor(self):
        return self

    def submit(self, function, *arguments, **options):
        future = Future()
        future.set_result(function(*arguments, **options))
        return future


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A small class, graded once."""
    root = tmp_path_factory.mktemp("class")
    folder = root / "submissions"
    folder.mkdir()
    (folder / "anna.cu").write_text(RIGHT)
    (folder / "ben.cu").write_text(WRONG)
    (folder / "=HYPERLINK(evil).cu").write_text(EMPTY)
    (folder / "<script>alert(1)<&>.cu").write_text(RIGHT.replace("start < context", "start < context - 9"))
    (folder / "Борис").mkdir()
    text = {"cells": [{"cell_type": "markdown", "metadata": {"tags": ["palab:answer:a"]}, "source": "4"}]}
    (folder / "Борис" / "lab.ipynb").write_text(json.dumps(text))
    rubric = root / "rubric.toml"
    rubric.write_text(
        '[assignment]\nname = "lab2"\nstages = ["02"]\n'
        '[answers.a]\npoints = 2\nkind = "number"\nvalue = 4\nfactor = 1.1\n'
        '[answers.b]\npoints = 3\nkind = "hand"\n'
    )
    summary = grade_class(folder, root / "out", rubric, scheduler=Inline())
    return root, summary


def totals(summary):
    return {record["student"]: record["total"] for record in summary.records}


def test_everybody_has_marks(graded):
    _, summary = graded

    marks = totals(summary)

    assert marks["anna"] == 85
    assert marks["ben"] == marks["=HYPERLINK(evil)"] == 0
    assert marks["Борис"] == 2
    assert 0 < marks["<script>alert(1)<&>"] < 85
    assert summary.failed == ()


def test_a_second_run_grades_nothing_again(graded):
    root, first = graded

    again = grade_class(root / "submissions", root / "out", root / "rubric.toml", scheduler=Inline())

    assert again.graded == 0
    assert again.records == first.records


def test_what_was_handed_in_anew_is_graded_anew(graded, tmp_path):
    root, first = graded
    folder = tmp_path / "submissions"
    folder.mkdir()
    for path in (root / "submissions").glob("*.cu"):
        (folder / path.name).write_text(path.read_text())
    (folder / "ben.cu").write_text(RIGHT)
    out = tmp_path / "out"
    (out / "bundle").mkdir(parents=True)
    (out / "bundle" / "bundle.json").write_text((root / "out" / "bundle" / "bundle.json").read_text())
    (out / "results").mkdir()
    for path in (root / "out" / "results").glob("*.json"):
        (out / "results" / path.name).write_text(path.read_text())

    again = grade_class(folder, out, root / "rubric.toml", scheduler=Inline())

    assert again.graded == 1
    assert totals(again)["ben"] == 85
    assert totals(again)["anna"] == totals(first)["anna"]


def test_a_bundle_gives_the_same_marks(graded, tmp_path):
    root, first = graded

    again = grade_class(root / "out", tmp_path / "again", scheduler=Inline(), again=True)

    assert again.graded == len(first.records)
    assert again.differing == ()
    assert differing_marks(first.records, again.records) == []
    assert Store(tmp_path / "again").head()["seed"] == Store(root / "out").head()["seed"]


def test_a_bundle_is_not_taken_for_submissions(graded, tmp_path):
    """A student who hands in a folder with a bundle in it chooses neither seed nor rubric."""
    root, _ = graded

    with pytest.raises(ValueError, match="say --again"):
        grade_class(root / "out", tmp_path / "out", scheduler=Inline())
    with pytest.raises(ValueError, match="is no grading bundle"):
        grade_class(root / "submissions", tmp_path / "out", scheduler=Inline(), again=True)


def test_other_marks_are_noticed(graded):
    _, first = graded
    changed = json.loads(json.dumps(first.records))
    changed[1]["stages"][STAGE.id]["points"]["correctness"] += 1

    assert differing_marks(first.records, changed) == [changed[1]["student"]]


def test_a_bundle_says_what_marks_depend_on(graded):
    root, _ = graded
    head = Store(root / "out").head()

    assert set(head["toolchain"]) >= {"nvrtc", "arch", "simulator", "options", "lab"}
    assert len(head["seed"]) == 32
    assert (root / "out" / "bundle" / "bundle.json").stat().st_mode & 0o077 == 0


def test_a_half_written_record_is_graded_again(graded, tmp_path):
    store = Store(tmp_path)
    root, _ = graded
    (submission,) = [s for s in Store(root / "out").submissions() if s.student == "anna"]
    rubric = parse_rubric((root / "rubric.toml").read_text())
    path = root / "out" / "results" / f"{submission.slug}.json"
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / path.name).write_text(path.read_text()[:-40])

    assert store.result(submission, rubric, gpu=False) is None
    (tmp_path / "results" / path.name).write_text(path.read_text())
    assert store.result(submission, rubric, gpu=False)["total"] == 85
    assert store.result(submission, parse_rubric(""), gpu=False) is None
    assert store.result(submission, rubric, gpu=True) is None


def test_points_by_hand(graded, tmp_path):
    root, _ = graded
    hand = tmp_path / "hand.csv"
    hand.write_text("student,answer,points\nБорис,b,2.5\n", encoding="utf-8-sig")
    out = tmp_path / "out"
    grade_class(root / "out", out, scheduler=Inline(), again=True)

    again = grade_class(root / "out", out, scheduler=Inline(), again=True, by_hand=hand)

    assert again.graded == 1
    assert totals(again)["Борис"] == 4.5
    hand.write_text("student,points\nx,1\n")
    with pytest.raises(ValueError, match="no column answer"):
        grade_class(root / "out", out, scheduler=Inline(), again=True, by_hand=hand)


def test_points_by_hand_stay_until_another_file(graded, tmp_path):
    """Through a run without the file, a submission handed in anew, and the bundle graded again."""
    folder, out, hand = tmp_path / "submissions", tmp_path / "out", tmp_path / "hand.csv"
    folder.mkdir()
    (folder / "anna.cu").write_text(EMPTY)
    (folder / "ben.cu").write_text(EMPTY)
    hand.write_text("student,answer,points\nanna,b,2\nben,b,1\n")
    rubric = graded[0] / "rubric.toml"

    assert totals(grade_class(folder, out, rubric, scheduler=Inline(), by_hand=hand)) == {"anna": 2, "ben": 1}
    (folder / "anna.cu").write_text(EMPTY + "// anew")
    anew = grade_class(folder, out, rubric, scheduler=Inline())
    assert anew.graded == 1 and totals(anew) == {"anna": 2, "ben": 1}
    again = grade_class(out, tmp_path / "again", scheduler=Inline(), again=True)
    assert again.differing == () and totals(again) == {"anna": 2, "ben": 1}
    hand.write_text("student,answer,points\nanna,b,3\n")
    other = grade_class(folder, out, rubric, scheduler=Inline(), by_hand=hand)
    assert other.graded == 2 and totals(other) == {"anna": 3, "ben": 0}


WRONG_BY_HAND = {
    "anna,b,3.5": "line 3: points='3.5' of answer 'b': allowed is 0 to 3",
    "anna,b,-1": "allowed is 0 to 3",
    "anna,b,nan": "allowed is 0 to 3",
    "anna,b,many": "line 3: points='many' is no number",
    "anna,b": "points=None is no number",
    "Anna,b,1": "line 3: student='Anna' has no submission",
    "anna,B,1": "answer='B' is none of the rubric's: a, b",
    "Борис,b,1": "a second time",
}


@pytest.mark.parametrize("line", WRONG_BY_HAND)
def test_a_wrong_line_by_hand_is_named(graded, tmp_path, line):
    root, _ = graded
    hand = tmp_path / "hand.csv"
    hand.write_text(f"student,answer,points\nБорис,b,1\n{line}\n", encoding="utf-8")

    with pytest.raises(ValueError, match="hand.csv.*" + re.escape(WRONG_BY_HAND[line])):
        grade_class(root / "out", tmp_path / "out", scheduler=Inline(), again=True, by_hand=hand)
    hand.write_bytes("student,answer,points\nMüller,b,1\n".encode("cp1252"))
    with pytest.raises(ValueError, match=r"hand\.csv: not UTF-8"):
        grade_class(root / "out", tmp_path / "out", scheduler=Inline(), again=True, by_hand=hand)


# ---- what is there is not lost ---------------------------------------------------------------------------


@pytest.fixture
def done(graded, tmp_path):
    """Submissions and a finished run of one student, and what its files hold."""
    folder, out = tmp_path / "submissions", tmp_path / "out"
    folder.mkdir()
    (folder / "ben.cu").write_text(EMPTY)
    grade_class(folder, out, graded[0] / "rubric.toml", scheduler=Inline())
    return folder, out


def held(out):
    return {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def wrong_runs(graded, folder, tmp_path):
    """Arguments that cannot be graded by, each with what is said of it."""
    root, _ = graded
    rubric = root / "rubric.toml"
    other = tmp_path / "other.toml"
    other.write_text('[assignment]\nstages = ["02"]\n[points]\ncorrectness = 50\n')
    hand = tmp_path / "hand.csv"
    hand.write_text("student,answer,points\nnobody,b,1\n")
    missing = tmp_path / "nowhere"
    return {
        "another rubric": ((folder, other), {}, "marks by another rubric"),
        "another stage": ((folder, rubric, ("01",)), {}, "marks by another rubric"),
        "no rubric": ((folder, missing), {}, "no such file"),
        "no submissions": ((missing, rubric), {}, "no such folder"),
        "no table": ((folder, rubric), {"by_hand": missing}, "No such file"),
        "a wrong table": ((folder, rubric), {"by_hand": hand}, "has no submission"),
        "a folder as table": ((folder, rubric), {"by_hand": folder}, "directory"),
        "another seed": ((root / "out",), {"again": True}, "another seed"),
        "no GPU": ((folder, rubric), {"gpu": True}, "--gpu: no GPU here"),
    }


RUNS = ("another rubric", "another stage", "no rubric", "no submissions", "no table", "a wrong table")


@pytest.mark.parametrize("what", [*RUNS, "a folder as table", "another seed", "no GPU"])
def test_a_run_that_cannot_be_changes_nothing(graded, done, tmp_path, monkeypatch, what):
    folder, out = done
    before = held(out)
    monkeypatch.setattr(class_run, "missing_gpu", lambda: "no GPU here")
    (submissions, *rest), options, said = wrong_runs(graded, folder, tmp_path)[what]

    with pytest.raises((ValueError, OSError, EngineMissing), match=said):
        grade_class(submissions, out, *rest, scheduler=Inline(), **options)

    assert held(out) == before


def test_marks_for_speed_are_not_replaced_by_a_run_without(graded, done):
    folder, out = done
    head = json.loads(Store(out).bundle_file.read_text())
    Store(out).bundle_file.write_text(json.dumps({**head, "gpu": True}))

    with pytest.raises(ValueError, match="holds marks for speed; say --gpu"):
        grade_class(folder, out, graded[0] / "rubric.toml", scheduler=Inline())


def test_who_withdrew_is_no_part_of_the_run_any_more(graded, done, tmp_path):
    folder, out = done
    (folder / "carla.cu").write_text(EMPTY)
    rubric = graded[0] / "rubric.toml"
    assert len(grade_class(folder, out, rubric, scheduler=Inline()).records) == 2
    (folder / "carla.cu").unlink()

    assert totals(grade_class(folder, out, rubric, scheduler=Inline())) == {"ben": 0}
    assert len(list((out / "feedback").glob("*.html"))) == 1
    again = grade_class(out, tmp_path / "again", scheduler=Inline(), again=True)
    assert totals(again) == {"ben": 0} and again.differing == ()


def test_an_output_folder_among_the_submissions_is_refused(graded, done):
    folder, _ = done
    for out in (folder / "out", folder, folder / "deep" / "er"):
        with pytest.raises(ValueError, match="would be taken for a submission"):
            grade_class(folder, out, graded[0] / "rubric.toml", scheduler=Inline())


def test_a_rubric_of_answers_alone(tmp_path, done):
    """Stages without a point leave nothing to draw of their parts."""
    folder, _ = done
    rubric = tmp_path / "answers.toml"
    parts = "\n".join(f"{part} = 0" for part in PARTS)
    rubric.write_text(
        f'[assignment]\nstages = ["02"]\n[points]\n{parts}\n[answers.a]\npoints = 2\nkind = "hand"\n'
    )

    summary = grade_class(folder, tmp_path / "answers", rubric, scheduler=Inline())

    assert totals(summary) == {"ben": 0} and (tmp_path / "answers" / "class.html").exists()


# ---- what is written -------------------------------------------------------------------------------------


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_marks_as_a_table(graded):
    root, summary = graded
    rubric = parse_rubric((root / "rubric.toml").read_text())

    table = {row["student"]: row for row in rows(marks_csv(rubric, summary.records, gpu=False))}

    assert table["anna"]["02_vectorized structure"] == "25.0"
    assert table["ben"]["faults"] == "02_vectorized: unscaled"
    assert table["Борис"]["answer a"] == "2.0"
    assert "'=HYPERLINK(evil)" in table
    assert (root / "out" / "marks.csv").read_bytes().startswith(b"\xef\xbb\xbf")


def test_gradebooks_import_formats(graded):
    root, summary = graded
    rubric = parse_rubric((root / "rubric.toml").read_text())

    nbgrader = rows(nbgrader_csv(rubric, summary.records))
    moodle = rows(moodle_csv(rubric, summary.records))
    canvas = rows(canvas_csv(rubric, summary.records, gpu=False))

    anna = next(row for row in nbgrader if row["student_id"] == "anna")
    assert (anna["assignment"], anna["score"], anna["max_score"]) == ("lab2", "85.0", "90.0")
    assert {row["ID number"]: row["lab2"] for row in moodle}["ben"] == "0.0"
    assert canvas[0]["Student"].strip() == "Points Possible" and canvas[0]["lab2"] == "90.0"


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=cmd()", "'=cmd()"),
        ("anna;=cmd()", "anna;'=cmd()"),  # where a semicolon ends a cell, as in German or French
        ("anna; +1", "anna;' +1"),
        ("\uff1dcmd()", "'\uff1dcmd()"),
        ("anna = ben", "anna = ben"),
    ],
)
def test_no_name_is_a_formula_in_any_spreadsheet(graded, name, cell):
    _, summary = graded
    record = {**summary.records[0], "student": name}
    rubric = parse_rubric('[assignment]\nstages = ["02"]')

    table = moodle_csv(rubric, [record])

    assert list(csv.reader(io.StringIO(table)))[1][0] == cell


def test_feedback_tells_reasons_and_no_hidden_value(graded):
    root, summary = graded
    seed = Store(root / "out").head()["seed"]
    hidden = [str(c.problem.context_lengths) for c in grading_cases(STAGE, seed)]
    hidden += [str(c.problem) for c in grading_cases(STAGE, seed)]
    for record in summary.records:
        page = (root / "out" / "feedback" / f"{record['slug']}.html").read_text(encoding="utf-8")
        details = [case["detail"] for g in record["stages"].values() for case in g["cases"] if case["detail"]]

        assert seed not in page
        assert not [value for value in (*hidden, *details) if value in page]
        assert "instead of" not in page
        assert "<script" not in page.lower()

    (ben,) = [r for r in summary.records if r["student"] == "ben"]
    page = (root / "out" / "feedback" / f"{ben['slug']}.html").read_text(encoding="utf-8")
    assert "scores are not multiplied by scale" in page
    assert "0 of 50" in page


def test_the_class_report(graded):
    root, summary = graded
    page = (root / "out" / "class.html").read_text(encoding="utf-8")

    assert page.count('src="data:image/png;base64,') == 4
    assert "hardest step" in page and "unscaled" not in page  # the chart is a picture
    assert "&lt;script&gt;" in page and "<script" not in page.lower()
    assert "http" not in page.replace("http-equiv", "")
    assert Store(root / "out").head()["seed"] not in page
    for record in summary.records:
        assert f"feedback/{record['slug']}.html" in page


# ---- killed, and workers that die ------------------------------------------------------------------------


def test_kill_9_loses_what_is_in_flight_at_most(tmp_path):
    folder = tmp_path / "submissions"
    folder.mkdir()
    for number in range(6):
        (folder / f"s{number}.cu").write_text(f"{RIGHT}\n__device__ int number{number};\n")
    command = [sys.executable, "-m", "labs_common", "grade", str(folder), "--out", str(tmp_path / "out")]
    command += ["--stage", "02", "--workers", "1"]
    results = tmp_path / "out" / "results"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while len(list(results.glob("s*.json"))) < 2:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    done = {path: path.stat().st_mtime_ns for path in results.glob("s*.json")}
    assert all(read_json(path)["total"] == 85 for path in done)

    summary = grade_class(folder, tmp_path / "out", stages=("02",), scheduler=Inline())

    assert summary.graded == 6 - len(done)
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert [record["total"] for record in summary.records] == [85] * 6


def test_ctrl_c_says_that_it_stopped_and_what_to_do(tmp_path):
    folder = tmp_path / "submissions"
    folder.mkdir()
    for number in range(4):
        (folder / f"s{number}.cu").write_text(f"{RIGHT}\n__device__ int number{number};\n")
    command = [sys.executable, "-m", "labs_common", "grade", str(folder), "--out", str(tmp_path / "out")]
    command += ["--stage", "02", "--workers", "1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, start_new_session=True, **pipes)
    try:
        deadline = time.monotonic() + 120
        while not list((tmp_path / "out" / "results").glob("s*.json")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        said, errors = process.communicate(timeout=60)
    finally:
        process.kill()

    assert process.returncode == 130 and errors.strip().endswith("stopped")
    assert "the same command goes on from there" in said and "Traceback" not in said + errors


def task(item):
    """A worker's work: even numbers are honest, the others end their process when they first see it."""
    number, folder = item
    with open(os.path.join(folder, f"runs-{number}"), "a") as file:
        file.write("x")
    if number % 5 == 1:
        os._exit(3)
    return number


def test_workers_that_die_take_nobody_with_them(tmp_path):
    items = [(number, str(tmp_path)) for number in range(12)]

    results = sorted(run_all(LocalScheduler(2), task, items, alone=lambda item, error: -item[0]))

    assert results == sorted([n if n % 5 != 1 else -n for n in range(12)])
    runs = {n: len((tmp_path / f"runs-{n}").read_text()) for n in range(12)}
    assert sum(runs.values()) <= 12 + 3 * (2 * 2)  # run again is what was in flight with a bad one, no more


class Stillborn(LocalScheduler):
    """Processes that end as they start, as where the main module cannot be imported again."""

    def executor(self):
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.workers, mp_context=context, initializer=os._exit, initargs=(1,))


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers_are_refused(workers):
    with pytest.raises(ValueError, match=f"workers={workers}: allowed is at least 1"):
        LocalScheduler(workers)


def test_workers_that_do_not_start_are_nobodys_fault():
    with pytest.raises(RuntimeError, match="do not start"):
        list(run_all(Stillborn(1), task, [(0, "")], alone=lambda item, error: item))


def test_twenty_made_up_submissions_twice():
    """What `palab bench grading` does with 300: marks as deserved, and the same again from the bundle."""
    found = benchmark_grading(20, STAGE, workers=2)

    assert found.mistakes == ()
    assert found.differing == {"again": ()}
