"""What is handed out runs by itself and shows no line of a solution; what the solution holds is whole."""

import bz2
import gzip
import io
import json
import lzma
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest

from labs_common import editions
from labs_common import notebooks as notebook_files
from labs_common.editions import open_notebook, release, solution
from labs_common.predictions import answer_cell, parse_predictions
from labs_common.source import regions
from labs_common.stages import ALL_STAGES, STAGES, find_stage

RUN = 3  # neighbouring lines of a solution that give it away


def code_lines(text):
    """Lines that say something, without comments and blanks."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    lines = [re.sub(r"\s+", "", line.split("//")[0]) for line in text.splitlines()]
    return [line for line in lines if len(line) > 8 and not line.startswith("#pragma")]


def scaffold():
    """Code that every student is given: what stands outside the regions."""
    kept = []
    for stage in ALL_STAGES:
        lines = stage.source().text.splitlines()
        for begin, end in reversed(regions(stage.source())):
            lines[begin : end + 1] = [""]
        kept += code_lines("\n".join(lines))
    return "".join(kept)


def solution_runs(stages=STAGES):
    """Every run of neighbouring lines in a solution region, with where it is from."""
    runs, given = {}, scaffold()
    for stage in stages:
        source = stage.source()
        lines = source.text.splitlines()
        for begin, end in regions(source):
            code = code_lines("\n".join(lines[begin + 1 : end]))
            for i in range(len(code) - RUN + 1):
                runs["".join(code[i : i + RUN])] = f"{source.name} after line {begin + 1}"
    return {run: where for run, where in runs.items() if run not in given}


def texts(name, data):
    """All that can be read in a file: itself, what it compresses, and the strings of JSON."""
    if data[:2] == b"\x1f\x8b":
        yield from texts(name, gzip.decompress(data))
    elif data[:6] == b"\xfd7zXZ\x00":
        yield from texts(name, lzma.decompress(data))
    elif data[:3] == b"BZh":
        yield from texts(name, bz2.decompress(data))
    elif data[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.namelist():
                yield from texts(member, archive.read(member))
    else:
        text = data.decode("utf-8", errors="replace")
        yield text
        if name.endswith((".json", ".ipynb")):
            strings = []

            def collect(value):
                if isinstance(value, str):
                    strings.append(value)
                elif isinstance(value, (list, tuple)):
                    for one in value:
                        collect(one)
                elif isinstance(value, dict):
                    collect(list(value.values()))

            collect(json.loads(text))
            yield "\n".join(strings)


def leaks(folder, runs):
    """(file, where the solution is) of every run of solution lines in a folder."""
    found = []
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file():
            for text in texts(path.name, path.read_bytes()):
                joined = "".join(code_lines(text))
                found += [(path.name, where) for run, where in runs.items() if run in joined]
    return found


@pytest.fixture(scope="module")
def student(tmp_path_factory, simulator):
    folder = tmp_path_factory.mktemp("student") / "edition"
    release(folder, engine=simulator)
    return folder


def test_no_run_of_solution_lines_is_handed_out(student):
    runs = solution_runs()
    assert len(runs) > 60

    assert leaks(student, runs) == []


@pytest.mark.parametrize("packed", ["plain", "gz", "xz", "bz2", "zip", "ipynb", "comments between"])
def test_the_search_finds_a_leak_however_it_is_packed(tmp_path, packed):
    source = STAGES[2].source().text
    begin, end = regions(STAGES[2].source())[0]
    lines = source.splitlines()[begin + 5 : end - 5]
    text = "\n".join(lines).encode()
    data = {
        "plain": text,
        "gz": gzip.compress(text),
        "xz": lzma.compress(text),
        "bz2": bz2.compress(text),
        "ipynb": json.dumps({"cells": [{"source": [line + "\n" for line in lines]}]}).encode(),
        "comments between": "\n// more\n   /* and\n more */ ".join(lines).encode(),
    }
    if packed == "zip":
        with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.cu", text)
    else:
        (tmp_path / f"x.{packed}").write_bytes(data[packed])

    assert leaks(tmp_path, solution_runs())


def test_nothing_that_shows_code_is_handed_out(student):
    suffixes = {path.suffix for path in student.rglob("*") if path.is_file()}

    assert suffixes & {".ptx", ".cubin", ".html", ".xz", ".ncu-rep", ".png", ".sass"} == set()
    assert not (student / "kernels" / "variants").exists()
    assert {p.name for p in (student / "kernels").glob("*.cu")} == {stage.path.name for stage in STAGES}


def test_notebooks_are_handed_out_unexecuted(student):
    names = {path.stem for path in (student / "notebooks").glob("*.ipynb")}
    assert "start_here" in names and len(names) >= 6
    for path in (student / "notebooks").glob("*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code":
                assert cell.outputs == [] and cell.execution_count is None


def test_counts_come_as_tables_of_every_stage(student):
    from labs_common.metrics import load_csv

    counts = load_csv(student / "data" / "counted" / "ragged.csv")

    assert set(counts["stage"]) == {stage.id for stage in STAGES}
    assert set(counts["source"]) == {"simulated"} and counts["line"].isna().all()


def palab(folder, *arguments):
    """Run the edition's own package, in its folder."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-m", "labs_common", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_the_edition_runs_by_itself(student):
    started = palab(student, "start", "3")
    assert started.returncode == 0, started.stderr
    own = student / "kernels" / "mine" / "03_gqa_reuse.cu"
    assert "TODO 1:" in own.read_text()

    checked = palab(student, "check", "3", "--engine", "sim")
    assert checked.returncode == 1, checked.stdout + checked.stderr
    assert "There is no answer yet" in " ".join(checked.stdout.split())

    own.write_text(STAGES[3].source().text)
    checked = palab(student, "check", "3", "--engine", "sim")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    own.unlink()


@pytest.mark.parametrize("command", ["run", "simulate"])
def test_a_kernel_without_body_gives_way_to_ones_own(student, command):
    own = student / "kernels" / "mine" / "03_gqa_reuse.cu"

    empty = palab(student, command, "3", "--problem", "tiny")
    own.parent.mkdir(exist_ok=True)
    own.write_text((student / "kernels" / "03_gqa_reuse.cu").read_text())
    begun = palab(student, command, "3", "--problem", "tiny")
    own.write_text(STAGES[3].source().text)
    mine = palab(student, command, "3", "--problem", "tiny")
    own.unlink()

    told = " ".join((empty.stdout + empty.stderr).replace("│", " ").split())
    assert empty.returncode == 2
    assert "kernels/03_gqa_reuse.cu has no body yet: palab start 03" in told
    told = " ".join((begun.stdout + begun.stderr).replace("│", " ").split())
    assert begun.returncode == 2 and "kernels/mine/03_gqa_reuse.cu has no body yet: fill in" in told
    assert mine.returncode == 0, mine.stdout + mine.stderr
    assert "kernels/mine/03_gqa_reuse.cu: yours" in " ".join(mine.stdout.split())


def test_an_edition_of_some_stages_keeps_earlier_kernels_and_cuts_later_ones(tmp_path, simulator):
    release(tmp_path / "edition", [3], simulator)

    for stage in STAGES:
        handed_out = (tmp_path / "edition" / "kernels" / stage.path.name).read_text()
        assert (handed_out == stage.source().text) == (stage.id < "03")
    notebooks = {path.stem[:2] for path in (tmp_path / "edition" / "notebooks").glob("*.ipynb")}
    assert notebooks == {"st", "00", "01", "02", "03"}
    published = "".join("".join(code_lines(stage.source().text)) for stage in STAGES[:3])
    secret = {run: where for run, where in solution_runs(STAGES[3:]).items() if run not in published}
    assert len(secret) > 40
    assert leaks(tmp_path / "edition", secret) == []


HEADERS_OF = {
    "6": {"page_ring.cuh", "partials.cuh"},
    "7": {"page_ring.cuh", "partials.cuh", "fragments.cuh"},
    "9": {"page_ring.cuh", "partials.cuh", "fragments.cuh", "tile_fma.cuh", "tile_mma.cuh"},
}


@pytest.mark.parametrize("number", ["6", "7", "9"])
def test_an_edition_of_a_stage_towards_the_roof(tmp_path, monkeypatch, number):
    """Earlier kernels are whole, its own has no body, later ones and their headers are left out."""
    monkeypatch.setattr(editions, "write_tables", lambda folder, engine, stages: folder.mkdir())
    folder, stage = tmp_path / "edition", find_stage(number)

    release(folder, [number])

    roof = folder / "kernels" / "roof"
    assert {path.name for path in roof.glob("*.cuh")} == HEADERS_OF[number]
    held = ALL_STAGES[: int(number) + 1]
    for one in held:
        text = (folder / one.path.relative_to(editions.ROOT)).read_text()
        assert (text == one.source().text) == (one != stage)
    assert {path.stem for path in roof.glob("*.cu")} == {one.id for one in held[6:]}
    assert (folder / "notebooks" / f"{stage.id}.ipynb").exists()
    whole = "".join("".join(code_lines(one.source().text)) for one in held[:-1])
    secret = {run: where for run, where in solution_runs([stage]).items() if run not in whole}
    assert len(secret) > (3 if number == "9" else 15)
    assert leaks(folder, secret) == []
    links = {
        link
        for path in (folder / "notebooks").glob("*.ipynb")
        for link in re.findall(r"\]\((\w+)\.ipynb", path.read_text())
    }
    assert links and all((folder / "notebooks" / f"{link}.ipynb").exists() for link in links)
    guide = (folder / "EDITION.md").read_text()
    assert f"`palab start {number}`" in guide and f"kernels/mine/{stage.id}.cu" in guide
    told = palab(folder, "start", number)
    assert told.returncode == 0, told.stderr
    assert "no stage called" in palab(folder, "hint", "10", "1").stderr


@pytest.mark.parametrize("asked", [["5", "6"], ["6", "8"], ["7", "9"], ["8", "9"]])
def test_a_stage_that_holds_anothers_answer_is_not_handed_out_beside_it(tmp_path, asked):
    with pytest.raises(ValueError, match="in an edition of its own"):
        release(tmp_path / "edition", asked)
    assert not (tmp_path / "edition").exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("work")

    for write in (release, solution):
        with pytest.raises(ValueError, match="has something in it"):
            write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_kernel_that_cannot_be_cut_is_not_handed_out(tmp_path, monkeypatch, simulator):
    path = tmp_path / "00_baseline.cu"
    path.write_text(STAGES[0].source().text.replace("// BEGIN SOLUTION", ""))
    monkeypatch.setattr("labs_common.stages.Stage.path", property(lambda self: path))

    with pytest.raises(ValueError, match=r"00_baseline\.cu"):
        release(tmp_path / "edition", engine=simulator)


def test_the_solution_is_whole(tmp_path):
    files = solution(tmp_path / "edition", execute=False)

    for stage in ALL_STAGES:
        copied = tmp_path / "edition" / stage.path.relative_to(editions.ROOT)
        assert copied.read_text() == stage.source().text
    for name in notebook_files.NAMES:
        path = notebook_files.NOTEBOOKS / f"{name}.ipynb"
        if path.exists():
            copied = (tmp_path / "edition" / "notebooks" / path.name).read_text()
            assert nbformat.reads(copied, 4).cells == notebook_files.read(path).cells
    assert any(str(path).endswith(".ncu-rep.xz") for path in files)


def test_the_solution_executes_its_notebooks(tmp_path, monkeypatch):
    cell = nbformat.v4.new_code_cell("print(6 * 7)", id="one")
    folder = tmp_path / "notebooks"
    folder.mkdir()
    notebook_files.write(nbformat.v4.new_notebook(cells=[cell]), folder / "start_here.ipynb")
    monkeypatch.setattr(notebook_files, "NOTEBOOKS", folder)
    monkeypatch.setattr(notebook_files, "NAMES", ("start_here",))
    original = notebook_files.execute_all
    monkeypatch.setattr(
        editions.notebook_files,
        "execute_all",
        lambda names: original(names, folder, gpu=False, progress=False),
    )

    solution(tmp_path / "edition")

    executed = nbformat.read(tmp_path / "edition" / "notebooks" / "start_here.ipynb", as_version=4)
    assert executed.cells[0].outputs[0].text == "42\n"
    assert "42" in (tmp_path / "edition" / "out" / "start_here.html").read_text()


def printed(notebook):
    """All that a notebook's cells print or show as text; an error is its name."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "\n".join(
        output.get("text") or output.get("ename") or output.get("data", {}).get("text/plain", "")
        for output in outputs
    )


def test_the_solution_of_a_stage_is_executed_here_and_now(tmp_path):
    solution(tmp_path / "edition", stages=["0"])

    executed = nbformat.read(tmp_path / "edition" / "notebooks" / "00_baseline.ipynb", as_version=4)
    assert all(cell.execution_count for cell in executed.cells if cell.cell_type == "code")
    assert "00_baseline.cu is right as 00_baseline" in printed(executed)
    assert "right: largest error" in printed(executed)
    assert {path.stem for path in (tmp_path / "edition" / "out").glob("*.html")} == {"00_baseline"}
    assert "make test" not in (tmp_path / "edition" / "EDITION.md").read_text()


@pytest.mark.parametrize("name", ["00_baseline", "01_cooperative", "05_partitioned_gqa"])
def test_a_notebook_runs_through_before_anything_is_written(student, monkeypatch, name):
    monkeypatch.setenv("PYTHONPATH", str(student))  # the edition's own package, not the lab's

    executed = notebook_files.execute_all([name], student / "notebooks", gpu=False, progress=False)[name]

    said = " ".join(printed(executed).split())
    assert f"Nothing is written in {name}.cu yet" in said
    assert f'there is no kernels/mine/{name}.cu yet: start("{name}") writes it' in said
    # Counts are those of the lab's own kernel, though it has no body here.
    reads = {"00_baseline": "7,579,168", "01_cooperative": "60,960", "05_partitioned_gqa": "22,444"}
    assert reads[name] in said


def test_a_notebook_runs_your_kernel_once_it_is_written(student, monkeypatch):
    own = student / "kernels" / "mine" / "00_baseline.cu"
    own.parent.mkdir(exist_ok=True)
    own.write_text(STAGES[0].source().text, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(student))

    executed = notebook_files.execute_all(["00_baseline"], student / "notebooks", gpu=False, progress=False)
    own.unlink()

    said = printed(executed["00_baseline"])
    assert "right: largest error" in said and "00_baseline.cu is right as 00_baseline" in said
    assert "rows are wrong" in said  # without the scale
    assert "yours" in said and "Nothing is written" not in said


def test_the_students_readme_has_no_answers_and_no_dead_links(student):
    text = (student / "README.md").read_text(encoding="utf-8")

    assert "times faster" not in text and "of the read ceiling" not in text
    assert "palab grade" not in text and "palab release" not in text and "Grading a class" not in text
    assert "## `palab`" in text and "## conda" in text
    assert "| `00_baseline` | every thread repeats every dot product |" in text
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert links and all((student / link).exists() for link in links if "://" not in link)


# ---- answer cells ------------------------------------------------------------------------------------

# The schema of nbgrader's cell metadata, version 3, as its documentation has it.
FIELDS = {
    "schema_version": int,
    "grade": bool,
    "locked": bool,
    "solution": bool,
    "task": bool,
    "grade_id": str,
    "points": (int, float),
    "checksum": str,
    "cell_type": str,
}


def check_nbgrader(notebook):
    """nbgrader's own rules for a notebook; how many cells have its metadata."""
    ids = []
    for cell in notebook.cells:
        if "nbgrader" not in cell.metadata:
            continue
        meta = cell.metadata["nbgrader"]
        assert set(meta) <= set(FIELDS)
        assert {"schema_version", "grade", "locked", "solution"} <= set(meta)
        assert all(isinstance(value, FIELDS[name]) for name, value in meta.items())
        assert meta["schema_version"] == 3
        assert re.fullmatch(r"[a-zA-Z0-9_\-]+", meta["grade_id"])
        assert not meta["grade"] or meta["points"] >= 0
        assert meta["cell_type"] == cell.cell_type
        if cell.cell_type == "markdown" and not meta["task"]:
            assert meta["grade"] == meta["solution"]
        ids.append(meta["grade_id"])
    assert len(ids) == len(set(ids))
    return len(ids)


def answer(source, tag="palab:answer:03-predictions", kind="code"):
    new = nbformat.v4.new_code_cell if kind == "code" else nbformat.v4.new_markdown_cell
    return new(source, metadata={"tags": [tag]})


def test_answer_cells_are_opened_and_have_nbgraders_metadata():
    source = answer_cell(3).replace("None", "1.5", 1).replace("None,", '"üp",  # I think', 1)
    assert parse_predictions(source)["megabytes_read"] == 1.5
    notebook = nbformat.v4.new_notebook(
        cells=[
            answer(source),
            answer("because", "palab:answer:03 why?", "markdown"),
            nbformat.v4.new_code_cell("a = 1\n### BEGIN SOLUTION\nb = 2\n### END SOLUTION\nc = 3"),
        ]
    )

    opened = open_notebook(notebook)

    assert set(parse_predictions(opened.cells[0].source).values()) == {None}
    assert "# I think" in opened.cells[0].source and "1.5" not in opened.cells[0].source
    assert opened.cells[2].source == "a = 1\n# your code\nc = 3"
    assert check_nbgrader(opened) == 2
    assert opened.cells[0].metadata["nbgrader"]["grade_id"] == "palab-answer-03-predictions"
    assert opened.cells[1].metadata["nbgrader"]["grade_id"] == "palab-answer-03-why-"
    assert notebook.cells[0].source == source


@pytest.mark.parametrize("other", ["palab:answer:03-predictions", "palab:answer:03.predictions"])
def test_two_answers_of_one_name_are_refused(other):
    """Or of names that nbgrader cannot tell apart."""
    notebook = nbformat.v4.new_notebook(cells=[answer("a = {}"), answer("b = {}", other)])

    with pytest.raises(ValueError, match=other):
        open_notebook(notebook)


def test_the_committed_notebooks_open_and_are_valid():
    for name in notebook_files.NAMES:
        path = notebook_files.NOTEBOOKS / f"{name}.ipynb"
        if path.exists():
            opened = open_notebook(notebook_files.read(path))
            nbformat.validate(opened)
            tags = [t for cell in opened.cells for t in cell.metadata.get("tags", ()) if "palab:answer:" in t]
            assert check_nbgrader(opened) == len(tags)
