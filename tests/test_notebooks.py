"""Notebooks: committed as executed, re-executed without a change; and the machinery that does it."""

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from labs_common import notebooks
from labs_common.chart_style import new_chart
from labs_common.display import DATA_KEY, chart_data
from labs_common.gpus import GPUS, KIB
from labs_common.notebooks import NotebookError, code_cells, differences, execute_all, export, read, write
from labs_common.predictions import ANSWER_TAG, answer_cell
from labs_common.stages import ROOF, find_stage

SECTIONS = (
    "What you will learn",
    "What changed",
    "Predict",
    "The kernel",
    "Run it small",
    "Is it right?",
    "Profile",
    "Read the profile",
    "Your turn",
    "What is left",
)
LONGEST_CELL = 12
CHART_CELL = """
from labs_common.chart_style import new_chart
from labs_common.display import show
chart = new_chart(2, "title")
axes = chart.subplots()
axes.bar([0, 1], [3.0, {height}])
chart.description = "two bars"
show(chart)
"""


def small_notebook(folder: Path, *sources: str, name: str = "small") -> Path:
    cells = [new_code_cell(source, id=f"cell-{number}") for number, source in enumerate(sources)]
    path = folder / f"{name}.ipynb"
    write(new_notebook(cells=cells, metadata=notebooks.METADATA), path)
    return path


def run_small(folder: Path, *sources: str, **options):
    small_notebook(folder, *sources)
    return execute_all(["small"], folder, progress=False, **options)["small"]


# The committed notebooks


@pytest.fixture(params=notebooks.NAMES)
def committed(request):
    return request.param, read(notebooks.NOTEBOOKS / f"{request.param}.ipynb")


@pytest.mark.timeout(600)
def test_running_a_notebook_again_changes_neither_text_nor_chart_data(committed):
    name, before = committed
    after = execute_all([name], cell_timeout_s=60, gpu=False, progress=False)[name]

    assert differences(before, after) == []


def test_a_notebook_is_committed_executed_and_clean(committed):
    _, notebook = committed
    cells = code_cells(notebook)

    assert cells
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"] == []
    assert notebook.metadata == notebooks.METADATA
    # A memory address or a path differs from run to run and from machine to machine.
    text = "\n".join(str(output) for output in outputs)
    assert re.findall(r"\bat 0x[0-9a-f]{6,}", text) == []
    assert str(notebooks.ROOT) not in text


def test_every_figure_has_alt_text_and_its_data(committed):
    _, notebook = committed
    pictures = [o for c in code_cells(notebook) for o in c.outputs if "image/png" in o.get("data", {})]

    assert pictures
    for picture in pictures:
        assert len(picture.metadata["image/png"]["alt"]) > 40
        assert picture.metadata[DATA_KEY]


def test_code_cells_are_short(committed):
    _, notebook = committed

    forms = [
        c for c in code_cells(notebook) if any(t.startswith(ANSWER_TAG) for t in c.metadata.get("tags", ()))
    ]
    cells = [c for c in code_cells(notebook) if c not in forms]
    assert [c.id for c in cells if c.source.count("\n") + 1 > LONGEST_CELL] == []


def test_headings_are_in_order(committed):
    name, notebook = committed
    headings = [
        (len(marks), text)
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for marks, text in re.findall(r"^(#+) (.+)$", cell.source, re.M)
    ]

    assert headings[0][0] == 1 and [level for level, _ in headings].count(1) == 1
    assert all(b - a <= 1 for (a, _), (b, _) in itertools.pairwise(headings))
    if name != "start_here":
        assert tuple(text for level, text in headings if level == 2) == SECTIONS


@pytest.mark.parametrize("name", notebooks.NAMES[1:])
def test_a_stage_notebook_loads_its_kernel_and_compares_it(name):
    source = "\n".join(cell.source for cell in code_cells(read(notebooks.NOTEBOOKS / f"{name}.ipynb")))

    for call in ("engine.module(", "get_function(", "compare(", "reference("):
        assert call in source
    # the figures of the document that the stage comes from
    assert "reported_metrics(" in source or "design_table(" in source or find_stage(name) in ROOF
    assert f'find_stage("{name}")' in source


@pytest.mark.parametrize("name", notebooks.NAMES[1:])
def test_a_stage_notebook_asks_scores_and_checks(name):
    """Predictions are asked for before the profile, scored after it; then your own kernel is checked."""
    notebook = read(notebooks.NOTEBOOKS / f"{name}.ipynb")
    sources = [cell.source for cell in notebook.cells]
    (form,) = [
        cell for cell in notebook.cells if f"{ANSWER_TAG}{name}-predictions" in cell.metadata.get("tags", ())
    ]

    assert form.source == answer_cell(name)
    order = [
        form.source,
        "lessons.show_predictions(predictions, stage)",
        "lessons.check_mine(stage, engine);",
    ]
    places = [sources.index(source) for source in order]
    headings = [
        next(n for n, s in enumerate(sources) if f"## {title}" in s)
        for title in ("Profile", "Read the profile")
    ]
    assert places[0] < headings[0] < headings[1] < places[1] < places[2]
    assert f'start("{name}")' in "\n".join(sources)


def test_shared_memory_of_an_sm_is_a_named_gpus():
    cells = [cell.source for cell in read(notebooks.NOTEBOOKS / "03_gqa_reuse.ipynb").cells]
    (question,) = [text for text in cells if "How many such blocks" in text]

    for name, words in (("document_36sm", "on the {}"), ("h200", "on an H200")):
        size = GPUS[name].capability.shared_sizes[-1] // KIB
        assert f"{size} KiB" in question and words.format(GPUS[name].name) in question
    assert question.count("KiB") == 2


# The machinery


def test_a_fresh_kernel_of_the_running_interpreter_is_used(tmp_path):
    executed = run_small(tmp_path, "import sys, os; print(sys.executable)\nprint(os.getcwd())")

    assert executed.cells[0].outputs[0].text == f"{sys.executable}\n{tmp_path}\n"


def test_executing_changes_no_source_and_leaves_no_trace_of_the_run(tmp_path):
    path = small_notebook(tmp_path, "print(1)", "2")
    before = path.read_bytes()
    first = execute_all(["small"], tmp_path, progress=False)["small"]
    assert path.read_bytes() == before

    write(first, path)
    executed = path.read_bytes()
    write(execute_all(["small"], tmp_path, progress=False)["small"], path)

    assert path.read_bytes() == executed
    assert all("execution" not in cell.metadata for cell in first.cells)
    assert first.metadata == notebooks.METADATA


def test_a_notebook_that_was_written_and_read_equals_the_fresh_one(tmp_path):
    executed = run_small(
        tmp_path, CHART_CELL.format(height=4), "import pandas; pandas.DataFrame({'b': [1], 'a': [2]})"
    )
    write(executed, tmp_path / "small.ipynb")

    assert differences(read(tmp_path / "small.ipynb"), executed) == []


def test_streams_are_one_output_however_often_they_are_flushed(tmp_path):
    executed = run_small(
        tmp_path, "import time\nfor i in range(5):\n    print(i, flush=True); time.sleep(0.1)"
    )

    assert [output.text for output in executed.cells[0].outputs] == ["0\n1\n2\n3\n4\n"]


@pytest.mark.parametrize(
    ("sources", "options", "words"),
    [
        (("1", "1 / 0"), {}, "small, code cell 2.*ZeroDivisionError"),
        (("import time; time.sleep(60)",), {"cell_timeout_s": 1}, "small, code cell 1.*timed out"),
        (("import os; os._exit(1)",), {}, "small, code cell 1.*died"),
    ],
)
def test_a_failing_notebook_is_an_error_that_names_the_cell(tmp_path, sources, options, words):
    with pytest.raises(NotebookError, match=re.compile(words, re.S | re.I)):
        run_small(tmp_path, *sources, **options)


def test_a_failing_notebook_stops_the_others(tmp_path):
    small_notebook(tmp_path, "1 / 0", name="bad")
    small_notebook(tmp_path, "import time; time.sleep(600)", name="slow")
    started = time.monotonic()

    with pytest.raises(NotebookError, match="bad"):
        execute_all(["slow", "bad"], tmp_path, progress=False)

    assert time.monotonic() - started < 60


@pytest.mark.parametrize("text", ["{", '{"cells": 3}'])
def test_a_broken_file_is_refused_by_name(tmp_path, text):
    (tmp_path / "broken.ipynb").write_text(text, encoding="utf-8")

    with pytest.raises(NotebookError, match="broken"):
        read(tmp_path / "broken.ipynb")
    with pytest.raises(NotebookError, match="missing"):
        read(tmp_path / "missing.ipynb")


@pytest.mark.skipif(os.name != "posix", reason="gpu: signals to a process group need POSIX")
def test_ctrl_c_leaves_no_kernel_behind(tmp_path):
    child = tmp_path / "child"
    slow = (
        "import os, pathlib, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(child)!r}).write_text(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)"
    )
    small_notebook(tmp_path, slow)
    code = (
        "import sys; from pathlib import Path; from labs_common import notebooks as n; "
        f"n.NAMES = ('small',); n.NOTEBOOKS = Path({str(tmp_path)!r}); "
        "n.execute_all.__defaults__ = (n.NAMES, n.NOTEBOOKS, *n.execute_all.__defaults__[2:]); "
        "sys.exit(n.main([]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=notebooks.ROOT, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (child.exists() and child.read_text().count(" ") == 1):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)

    os.killpg(process.pid, signal.SIGINT)

    assert process.wait(60) == 130
    for pid in map(int, child.read_text().split()):
        gone = time.monotonic() + 10
        while _alive(pid):
            assert time.monotonic() < gone, f"process {pid} is still there"
            time.sleep(0.1)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


def test_a_kernel_sees_no_gpu_when_it_must_not(tmp_path):
    source = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"

    assert run_small(tmp_path, source, gpu=False).cells[0].outputs[0].text == "-1\n"


def test_export_writes_html_with_alt_text_and_each_figure(tmp_path):
    executed = run_small(tmp_path, CHART_CELL.format(height=4), "print('words')", CHART_CELL.format(height=5))
    out = tmp_path / "out"
    (out / "figures").mkdir(parents=True)
    (out / "figures" / "small_09.png").write_bytes(b"of an earlier run")

    written = export("small", executed, out)

    html = (out / "small.html").read_text(encoding="utf-8")
    assert 'alt="two bars"' in html and "words" in html
    assert [path.name for path in written] == ["small.html", "small_01.png", "small_02.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG\r\n") for path in written[1:])
    assert sorted(path.name for path in (out / "figures").iterdir()) == ["small_01.png", "small_02.png"]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("print('max error 1.0e-06')", "print('max error 1.1e-06')", "max error 1.1e-06"),
        ("3.5", "3.25", "3.25"),
        (CHART_CELL.format(height=4), CHART_CELL.format(height=4.001), "4.001"),
        ("print(1)", "pass", "1 outputs became 0"),
    ],
)
def test_a_changed_number_is_told(tmp_path, before, after, words):
    old, new = run_small(tmp_path, before), run_small(tmp_path, after)
    new.cells[0].source = old.cells[0].source

    assert [words in line for line in differences(old, new)] == [True]


def test_only_pixels_changed_is_no_change(tmp_path):
    old = run_small(tmp_path, CHART_CELL.format(height=4))
    new = nbformat.from_dict(old)
    new.cells[0].outputs[0].data["image/png"] = "iVBORw0KGgo="

    assert differences(old, new) == []


def test_a_picture_without_data_counts_as_changed():
    cell = new_code_cell("x", id="a")
    cell.outputs = [nbformat.v4.new_output("display_data", {"image/png": "iVBORw0KGgo="})]
    notebook = new_notebook(cells=[cell])

    assert len(differences(notebook, nbformat.from_dict(notebook))) == 1


def test_what_tells_about_the_machine_may_differ_and_nothing_else():
    cell = new_code_cell("x", id="a", metadata={"tags": [notebooks.MACHINE_TAG]})
    cell.outputs = [nbformat.v4.new_output("stream", text="a GPU")]
    old = new_notebook(cells=[cell])
    new = nbformat.from_dict(old)
    new.cells[0].outputs[0].text = "no GPU"

    assert differences(old, new) == []
    new.cells[0].source = "y"
    assert differences(old, new) == ["cell a: source"]


def test_a_moved_cell_is_told():
    cells = [new_markdown_cell("a", id="a"), new_markdown_cell("b", id="b")]

    assert differences(new_notebook(cells=cells), new_notebook(cells=cells[::-1])) != []


def test_chart_data_holds_what_a_chart_shows():
    chart = new_chart(2, "heading")
    axes = chart.subplots()
    axes.bar([0], [2.5], width=1.0)
    axes.plot([0, 1], [3, float("nan")])
    axes.hlines(7, 0, 1)
    axes.set_xlabel("stage")
    axes.set_title("Time", loc="left")
    axes.annotate("note", (0, 1))

    (loose, panel) = chart_data(chart)

    assert loose["texts"] == ["heading"]
    assert panel["texts"] == ["Time", "stage", "note"]
    assert panel["bars"] == [[-0.5, 0.0, 1.0, 2.5]]
    assert panel["lines"] == [[[0.0, 3.0], [1.0, None]]]
    assert panel["shapes"][0]["points"] == [[[0.0, 7.0], [1.0, 7.0]]]


def test_an_unknown_notebook_is_refused_by_name(capsys):
    with pytest.raises(SystemExit, match="2"):
        notebooks.main(["05_nothing"])

    assert "05_nothing" in capsys.readouterr().err
