"""A notebook in JupyterLab in a real browser: run by its menu, charts seen, a wrong kernel diagnosed.

Screenshots are kept in ``out/browser``.
"""

import pytest
from jupyter_browser import Lab, Notebook, browser_missing

from labs_common import notebooks
from labs_common.stages import find_stage

STAGE = find_stage("02_vectorized")
SCALED = "warp_sum(partial) * problem.scale"
CHECK = "lessons.check_mine(stage, engine);"
MISSING = browser_missing()

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(MISSING is not None, reason=f"browser: {MISSING}"),
    pytest.mark.timeout(280),
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    server = Lab(tmp_path_factory.mktemp("browser"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def notebook(lab):
    page = Notebook(lab.url(STAGE.id), notebooks.ROOT / "out" / "browser")
    yield page
    page.close()


def test_a_notebook_runs_from_top_to_bottom_by_its_menu_and_shows_its_charts(notebook):
    committed = notebooks.read(notebooks.NOTEBOOKS / f"{STAGE.id}.ipynb")
    pictures = [
        output
        for cell in notebooks.code_cells(committed)
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    notebook.menu("Edit", "Clear Outputs of All Cells")
    notebook.wait("no output", lambda: not notebook.charts(), 10)

    notebook.menu("Run", "Run All Cells")
    notebook.wait_until_all_ran(180)

    assert notebook.prompts() == [f"[{n}]:" for n in range(1, len(notebooks.code_cells(committed)) + 1)]
    assert notebook.errors() == []
    charts = notebook.wait("charts", lambda: [c for c in notebook.charts() if c["complete"]], 10)
    words = notebook.descriptions()
    assert len(words) == len(charts) == len(pictures) and all(len(each) > 40 for each in words)
    assert all(chart["width"] >= 900 and chart["shown"] > 500 for chart in charts)
    notebook.picture("1_all_cells_run")
    for number, image in enumerate(notebook.find(".jp-OutputArea-output img"), 1):
        notebook.show(image)
        notebook.picture(f"2_chart_{number}")


def test_the_kernel_is_shown_in_a_fixed_width_font(notebook):
    (code,) = [pre for pre in notebook.find(".jp-OutputArea-output pre") if STAGE.entry in pre.text]

    notebook.show(code)
    notebook.picture("3_kernel")
    widths = notebook.driver.execute_script(
        """
        const pen = document.createElement('canvas').getContext('2d');
        pen.font = getComputedStyle(arguments[0]).font;
        return [pen.measureText('iiiiiiiiii').width, pen.measureText('MMMMMMMMMM').width]
        """,
        code,
    )
    assert widths[0] == pytest.approx(widths[1])


def test_a_wrong_kernel_is_diagnosed_and_then_corrected(notebook, lab):
    text = STAGE.source().text
    assert text.count(SCALED) == 1
    wrong = text.replace(SCALED, "warp_sum(partial)")
    file, check = notebook.add_cell(), notebook.add_cell()

    notebook.write(file, f"%%writefile ../kernels/mine/{STAGE.path.name}\n{wrong}")
    assert "Writing" in notebook.run(file, 20)
    notebook.write(check, CHECK)
    told = notebook.run(check, 60)
    notebook.picture("4_wrong_kernel")

    assert (lab.root / "kernels" / "mine" / STAGE.path.name).read_text().rstrip() == wrong.rstrip()
    assert "wrong tiny" in told and "scale" in told
    assert "Traceback" not in told

    notebook.write(file, f"%%writefile ../kernels/mine/{STAGE.path.name}\n{text}")
    assert "Overwriting" in notebook.run(file, 20)
    told = notebook.run(check, 60)
    notebook.picture("5_corrected_kernel")

    assert f"is right as {STAGE.id}" in told and "wrong" not in told
