"""Stage 05's study as tables, charts and diagrams; expected figures are by hand or by a compiler."""

import re

import pandas as pd
import pytest
from test_charts import readable

from labs_common import chart_partitions, diagrams, partitioned_warp
from labs_common.compiler import compile_ptx
from labs_common.diagrams_partitioned import layouts_side_by_side, three_levels
from labs_common.partition_tables import planned_partitions, recorded_layouts, recorded_study
from labs_common.problem import PRESETS, Problem
from labs_common.recorded import RECORDED
from labs_common.source import Source
from labs_common.stages import find_stage

LONG = PRESETS["long"]
STUDIES = ("fp16", "fp32", "layouts", "floor", "sweep")


def sweep(gpu: str = "h200") -> pd.DataFrame:
    rows = [("1 x 1024", 64, 10.0, 2.0), ("1 x 1024", 1024, 50.0, 2.0), ("8 x 512", 512, 7.0, 3.5)]
    return pd.DataFrame(
        {
            "batch": [int(name.split()[0]) for name, *_ in rows],
            "context": [int(name.split()[2]) for name, *_ in rows],
            "partition_tokens": [float(size) for _, size, *_ in rows],
            "median_us": [time for *_, time, _ in rows],
            "read_us": [read for *_, read in rows],
            "gpu": gpu,
        }
    )


# Tables


@pytest.mark.parametrize("name", STUDIES)
def test_every_recorded_study_is_read(name):
    table = recorded_study(name)

    assert len(table) and set(table["gpu"]) == {"h200"}
    assert set(table["batch"]) <= {1, 8, 32, 64} and table["context"].between(1, 100_000).all()
    if name != "floor":
        assert (table["read_us"] < table["median_us"]).all()


def test_a_row_tells_its_shape_its_partition_and_the_time_of_a_plain_read(tmp_path):
    folder = tmp_path / "h200" / "partitions"
    folder.mkdir(parents=True)
    text = "batch 8, 24/4 heads, head_dim 256, page 16, context 4096, float16"
    rows = {"problem": [text] * 2, "what": ["partition 256", "Triton, 4 warps"]}
    figures = {"median_us": [200.0, 300.0], "% of read ceiling": [60.0, 40.0]}
    pd.DataFrame({**rows, **figures}).to_csv(folder / "fp16.csv", index=False)

    table = recorded_study("fp16", tmp_path)

    assert list(table["read_us"]) == [120.0, 120.0]
    assert list(table["batch"]) == [8, 8] and list(table["context"]) == [4096, 4096]
    assert table["partition_tokens"][0] == 256 and pd.isna(table["partition_tokens"][1])
    with pytest.raises(FileNotFoundError, match=r"'fp64'.*fp16"):
        recorded_study("fp64", tmp_path)


def test_every_layout_asks_for_the_same_and_packed_values_are_stored_by_hand():
    table = recorded_layouts()

    assert list(table.columns) == ["NHD", "HND", "packed"] and not table.isna().any(axis=None)
    requests, stores = table.loc["global load requests"], table.loc["shared memory stores"]
    # The table's own rows of the file, read without pandas.
    text = (RECORDED / "h200" / "partitions" / "sectors.csv").read_text(encoding="utf-8").splitlines()
    rows = [
        line for line in text if line.startswith("paged_attention_partitioned_gqa,") and "_op_ld.sum" in line
    ]
    wanted = [float(line.split(",")[2]) for line in rows if "requests" in line and "global_op_ld" in line]
    assert list(requests) == wanted
    assert stores["packed"] > 10 * stores["NHD"] == 10 * stores["HND"]


def test_partials_and_waves_of_the_documents_problem():
    planned = planned_partitions(LONG, (512, 1024))

    # 196 and 98 partitions of 4 kv heads; three blocks of 128 threads fit on each of 132 SMs.
    assert list(planned["blocks"]) == [784, 392]
    assert list(planned["blocks_per_sm"]) == [3, 3]
    assert list(planned["waves"]) == pytest.approx([784 / 396, 392 / 396])
    # Written and read: 24 query heads x partitions x (2 + 256) floats. K/V: 2 x 100,000 x 4 x 256 halves.
    assert list(planned["partial_bytes"]) == [2 * 24 * 196 * 1032, 2 * 24 * 98 * 1032]
    assert planned["% of keys and values"][512] == pytest.approx(100 * 9_709_056 / 409_600_000)


def test_only_partitions_with_tokens_are_counted():
    problem = LONG.replace(context_lengths=(0, 1, 512, 513))

    assert planned_partitions(problem, (512,))["blocks"][512] == 4 * (0 + 1 + 1 + 2)


def test_a_problem_that_the_stage_refuses_is_refused():
    with pytest.raises(ValueError, match="partition_tokens=100"):
        planned_partitions(LONG, (100,))


# Charts


def charts_and_diagrams():
    fp16 = recorded_study("fp16")
    yield "sweep", chart_partitions.splitting(recorded_study("sweep"))
    yield "fp16", chart_partitions.contenders(fp16, "Stage 05 in fp16")
    yield "fp32", chart_partitions.contenders(recorded_study("fp32"), "Stages 05 and 04")
    yield "layouts", chart_partitions.contenders(recorded_study("layouts"), "Layouts")
    yield "floor", chart_partitions.contenders(recorded_study("floor"), "The floor", against="05")
    sizes = [int(size) for size in fp16["partition_tokens"].dropna()]
    yield "cost", chart_partitions.partition_cost(planned_partitions(LONG, sizes), fp16)
    yield "bytes", layouts_side_by_side(LONG)
    yield "levels", three_levels(LONG, find_stage("05").plan(LONG))


TIMED = ("sweep", "fp16", "fp32", "layouts", "floor", "cost")
DRAWN = (*TIMED, "bytes", "levels")


@pytest.fixture(scope="module")
def drawn():
    return dict(charts_and_diagrams())


@pytest.mark.parametrize("name", DRAWN)
def test_every_text_can_be_read_and_there_is_an_alt_text(drawn, name):
    assert tuple(drawn) == DRAWN
    readable(drawn[name])
    assert len(drawn[name].alt_text()) > 60 and drawn[name].get_size_inches()[0] == 9


@pytest.mark.parametrize("name", TIMED)
def test_a_chart_of_times_names_its_gpu_and_that_they_were_recorded(drawn, name):
    words = " ".join(text.get_text() for text in drawn[name].findobj(lambda a: hasattr(a, "get_text")))

    assert "H200" in words and "recorded" in words


def test_splitting_marks_the_whole_context_and_compares_with_it():
    chart = chart_partitions.splitting(sweep())

    first, second = (axes for axes in chart.axes if axes.get_visible())
    assert [patch.get_height() for patch in first.patches] == [10, 50]
    assert [patch.get_hatch() for patch in first.patches] == ["", "////"]
    assert first.get_title(loc="left") == "1 x 1,024 tokens: 5 times faster"
    assert second.get_title(loc="left") == "8 x 512 tokens: 1 times faster"
    assert list(first.lines[0].get_ydata()) == [2, 2]


def test_contenders_are_drawn_to_scale_and_compared():
    table = pd.DataFrame({"what": ["05", "slow"], "eager_us": [10.0, 25.0], "problem": "p", "gpu": "h200"})
    chart = chart_partitions.contenders(table, "title", against="05")

    assert [patch.get_width() for patch in chart.axes[0].patches] == [10, 25]
    assert "slow 25 µs, 2.5 times" in chart.alt_text()
    with pytest.raises(ValueError, match=r"against='06'.*05, slow"):
        chart_partitions.contenders(table, "title", against="06")


@pytest.mark.parametrize("rows", [pd.concat([sweep(), sweep("rtx_4090")]), sweep().iloc[:0]])
def test_a_chart_is_of_one_gpu(rows):
    with pytest.raises(ValueError, match="one GPU"):
        chart_partitions.splitting(rows)


# Diagrams


def test_layouts_touch_the_sectors_that_their_shapes_say():
    words = layouts_side_by_side(LONG).alt_text()

    # fp16, head_dim 256: 512 bytes in a row are 16 sectors; 32 chunks of 16 bytes, each in a sector of its
    # own; 256 numbers 32 bytes apart.
    for layout, sectors in (("NHD", 16), ("HND", 16), ("packed, keys", 32), ("packed, values", 256)):
        assert re.search(rf"{layout}[^;]* touches {sectors} sectors", words)


def test_the_levels_are_the_plans():
    words = three_levels(LONG, find_stage("05").plan(LONG)).alt_text()

    assert "merges 4 lanes of each query head" in words
    assert "the 4 warps" in words and "196 partitions of each of 24 query heads" in words


@pytest.mark.parametrize(
    ("query_heads", "kv_heads", "head_dim", "dtype"),
    [
        (24, 4, 256, "float16"),
        (24, 4, 256, "float32"),
        (8, 2, 128, "float32"),
        (3, 3, 64, "float16"),
        (16, 1, 80, "float16"),
        (12, 1, 64, "float32"),
        (1, 1, 8, "float16"),
    ],
)
def test_the_warps_shape_is_the_compilers(query_heads, kv_heads, head_dim, dtype):
    """Arrays as long as the kernel's constants: the PTX tells their sizes."""
    problem = Problem(query_heads, kv_heads, head_dim, 16, (40,), dtype)
    stage = find_stage("05")
    plan = stage.plan(problem)
    probe = (
        "\n__device__ int a[HEAD_SLOTS], b[STEP_TOKENS], c[ROW_LANES];"
        '\nextern "C" __global__ void probe(int* o) {'
        " o[0] = a[threadIdx.x] + b[threadIdx.x] + c[threadIdx.x]; }"
    )
    ptx = compile_ptx(Source("05_probe.cu", stage.source().text + probe), plan.defines)

    sizes = {name: int(size) // 4 for name, size in re.findall(r"\.global .*?\b([abc])\[(\d+)\]", ptx)}
    assert sizes == {
        "a": partitioned_warp.head_slots(plan),
        "b": partitioned_warp.step_tokens(plan),
        "c": partitioned_warp.row_lanes(plan, problem),
    }


@pytest.mark.parametrize(
    ("head_dim", "dtype", "lane", "owned"),
    [
        (256, "float16", 1, range(8, 16)),
        (256, "float32", 31, [*range(124, 128), *range(252, 256)]),
        (64, "float16", 9, range(8, 16)),  # 8 chunks, so that lanes 1, 9, 17 and 25 own the same
    ],
)
def test_a_lane_of_stage_05_owns_chunks_of_16_bytes(head_dim, dtype, lane, owned):
    problem = Problem(3, 3, head_dim, 16, (40,), dtype)
    plan = find_stage("05").plan(problem)

    assert diagrams.owned_dimensions(plan, problem, lane) == list(owned)
