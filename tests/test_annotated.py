"""Counts beside the code, and a warp's lanes step by step."""

import re

import numpy as np
from typer.testing import CliRunner

from labs_common.annotated import heat_map, lane_view, line_counts
from labs_common.cli import app
from labs_common.engines import SimulatorEngine
from labs_common.inputs import make_inputs
from labs_common.problem import PRESETS, Problem
from labs_common.stages import find_stage


def test_counts_stand_beside_their_line(simulator):
    """Stage 01 on 57 tokens, 4 heads: two barriers per token, 2 warps each."""
    stage, problem = find_stage(1), PRESETS["tiny"]
    outcome = simulator.run(stage, problem, make_inputs(problem))
    lines = stage.source().text.splitlines()
    barriers = [number for number, text in enumerate(lines, 1) if "__syncthreads" in text]

    counts = line_counts(outcome.metrics, stage.path.name)

    tokens, heads, warps = 40 + 17, 4, 2
    assert [counts[n]["smsp__inst_executed_op_barrier.sum"] for n in barriers] == [tokens * heads * warps] * 2


def test_the_page_has_every_line_escaped_and_names_its_source(simulator):
    stage, problem = find_stage(3), PRESETS["tiny"]
    outcome = simulator.run(stage, problem, make_inputs(problem))

    page = heat_map(stage.source(), outcome.metrics, "03 on tiny")

    assert page.count("<tr>") > len(stage.source().text.splitlines())
    assert "slot &lt; valid" in page or "token &lt; tokens" in page
    assert "simulated counts" in page
    assert "<script" not in page


def test_the_lane_view_shows_a_butterfly_sum():
    """After the last exchange and addition all 32 lanes hold the same dot product."""
    stage, problem = find_stage(2), Problem(1, 1, 128, 16, (1,))
    engine = SimulatorEngine()
    inputs = make_inputs(problem)
    call = engine.prepare(stage, problem, inputs)

    view = lane_view(call, engine, opcodes=("shfl", "add"), most=40)

    key = inputs.key_cache[inputs.block_tables[0, 0], 0, 0].astype(np.float64)
    product = float(inputs.query[0, 0].astype(np.float64) @ key)
    exchanges = [i for i, (_, name, _, _) in enumerate(view.rows) if name.startswith("shfl")]
    _, name, active, total = view.rows[exchanges[-1] + 1]
    assert len(exchanges) == 5
    assert (name, active) == ("add.ftz.f32", 0xFFFFFFFF)
    np.testing.assert_allclose(total, np.full(32, product), rtol=1e-5)
    assert len(set(view.rows[exchanges[0]][3].tolist())) == 32
    assert view._repr_html_().count("<td>") > 32


def test_simulate_writes_a_page_and_says_what_it_saw(tmp_path):
    page = tmp_path / "page.html"

    result = CliRunner(env={"COLUMNS": "200"}).invoke(
        app, ["simulate", "3", "--problem", "tiny", "--out", str(page)]
    )

    assert result.exit_code == 0, result.output
    assert re.search(r"paged_attention_gqa_reuse: [\d,]+ lane-instructions: .*ffma", result.output)
    assert "03_gqa_reuse.cu" in page.read_text()


def test_simulate_tells_of_copies_between_lines_that_lie_differently(tmp_path):
    """The lab's own is 16 bytes off a line: 12 passes where 4 would do, on an H200 too."""
    text = find_stage("05").source().text
    kernel = tmp_path / "straight.cu"
    kernel.write_text(text.replace("extern __shared__ uint4", "extern __shared__ __align__(128) uint4"))
    page = str(tmp_path / "page.html")

    straight, crooked = (
        CliRunner(env={"COLUMNS": "200"}).invoke(
            app, ["simulate", *what, "--problem", "ragged", "--out", page]
        )
        for what in ([str(kernel), "--stage", "05"], ["05"])
    )

    assert crooked.exit_code == straight.exit_code == 0, crooked.output + straight.output
    assert re.search(r"cache_tile.cuh:\d+: asynchronous copies take 12 wavefronts each", crooked.output)
    assert "asynchronous copies" not in straight.output
