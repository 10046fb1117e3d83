"""Charts: what is drawn is what the Metrics say, gaps stay gaps, and every text can be read."""

import math
from itertools import combinations
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.table import Cell
from matplotlib.text import Text

from labs_common import charts, derive, metrics
from labs_common import metric_names as names
from labs_common.chart_way import way_to_the_roof
from labs_common.gpus import GPUS
from labs_common.occupancy import occupancy_metrics
from labs_common.problem import Problem
from labs_common.recorded import recorded_lines, recorded_metrics, recorded_sources
from labs_common.reported import reported_metrics

KERNELS = Path(__file__).parent.parent / "kernels"
LOADS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
STALLS = {"long_scoreboard": 6000, "barrier": 2500, "wait": 900, "selected": 600}
STAGES = {
    "00_baseline": ["paged_attention_baseline"],
    "02_vectorized": ["paged_attention_vectorized"],
    "03_gqa_reuse": ["paged_attention_gqa_reuse"],
    "04_split_kv": ["paged_attention_split_kv", "paged_attention_split_kv_merge"],
}


def profile(**common):
    """A small profile with round figures: 2 Gflop and 1 GB of DRAM traffic in 1, 2, 3 … ms."""
    rows = []
    for n, (stage, kernel) in enumerate((s, k) for s, ks in STAGES.items() for k in ks):
        key = {"stage": stage, "kernel": kernel}
        for metric, value, unit in (
            (names.TIME, (n + 1) * 1e6, "nsecond"),
            (derive.FFMA, 1e9, "inst"),
            (derive.FMUL, 0.0, "inst"),
            (derive.FADD, 0.0, "inst"),
            (names.DRAM_READ_BYTES, 0.9e9, "byte"),
            (names.DRAM_WRITE_BYTES, 0.1e9, "byte"),
            (names.DRAM_PCT, 20.0 + n, "%"),
            (LOADS, 1e6, "request"),
            (SECTORS, 4e6 * (n + 1), "sector"),
        ):
            rows.append({**key, "metric": metric, "value": value, "unit": unit})
        for reason, samples in STALLS.items():
            metric = derive.STALL_SAMPLES + reason
            rows.append({**key, "metric": metric, "value": samples, "unit": "warp", "sampled": True})
    defaults = {"source": "recorded", "tool": "ncu", "gpu": "h200", "problem": "s1"}
    return metrics.build(rows, **{**defaults, **common})


def every_chart():
    reported, recorded = reported_metrics(), derive.with_derived(profile())
    simulated = profile(source="simulated", tool="simulator", gpu="")
    counted = metrics.select(simulated, metric=[LOADS, SECTORS, derive.FFMA, names.DRAM_READ_BYTES])
    ceilings = charts.ceilings("h200", "measured", "read kernel", 4.6e12, 6.1e13)
    third = metrics.select(reported, stage="03_gqa_reuse")
    source = (KERNELS / "03_gqa_reuse.cu").read_text()
    by_line = ["inst_executed", "memory_l1_wavefronts_shared", "smsp__pcsamp_sample_count"]
    lines = metrics.build(
        [
            {"line": n, "metric": m, "value": 100.0 * n, "unit": "", "sampled": "pcsamp" in m}
            for n in range(20, 40)
            for m in by_line
        ],
        source="recorded",
        tool="ncu",
        gpu="h200",
        stage="03_gqa_reuse",
        kernel="paged_attention_gqa_reuse",
        file="/lab/kernels/03_gqa_reuse.cu",
    )
    yield "progression", charts.stage_progression(reported)
    yield "two GPUs", charts.stage_progression(metrics.concat([reported, recorded]))
    yield "roofline", charts.roofline(metrics.concat([recorded, ceilings]))
    yield "stalls", charts.stall_reasons(recorded)
    yield "memory", charts.memory_table(recorded)
    yield "occupancy, block", charts.occupancy_curve(third)
    yield "occupancy, shared", charts.occupancy_curve(third, "shared")
    yield "simulated", charts.simulated_against_measured(metrics.concat([recorded, counted]))
    yield "lines", charts.source_lines(lines, source, by_line)
    yield from recorded_charts()


def recorded_charts():
    """The same charts of what was measured on a real GPU, with its long numbers and small shares."""
    every = recorded_metrics(tool="ncu", stage=list(STAGES))
    seed = derive.with_derived(metrics.select(every, problem="seed"))
    ceilings = derive.ceilings_of(recorded_metrics(tool="events"), "h200", "seed")
    lines = metrics.select(recorded_lines("03", "seed"), file="03_gqa_reuse.cu")
    by_line = ["inst_executed", "smsp__pcsamp_sample_count", "memory_l2_theoretical_sectors_global"]
    yield "H200", charts.stage_progression(seed)
    yield "H200 and document", charts.stage_progression(metrics.concat([reported_metrics(), seed]))
    problems = ["ragged", "seed", "long-float32"]
    yield "H200, three problems", charts.stage_progression(metrics.select(every, problem=problems))
    first = metrics.select(metrics.concat([reported_metrics(), seed]), stage="00_baseline")
    yield "one stage, two GPUs", charts.stage_progression(first)
    first = ["00_baseline", "01_cooperative", "02_vectorized"]
    three = metrics.select(metrics.concat([reported_metrics(), recorded_metrics(tool="ncu")]), problem="seed")
    three = metrics.select(three, stage=first)
    yield "three stages, two GPUs", charts.stage_progression(three)
    eight = metrics.select(recorded_metrics(tool="ncu"), problem="long-float32")
    yield "eight kernels", charts.stage_progression(eight)
    yield "H200 roofline", charts.roofline(metrics.concat([seed, ceilings]))
    yield "H200 stalls", charts.stall_reasons(seed)
    yield "H200 memory", charts.memory_table(seed)
    yield "H200 occupancy", charts.occupancy_curve(metrics.select(seed, stage="03_gqa_reuse"))
    source = recorded_sources("03", "seed")["03_gqa_reuse.cu"]
    yield "H200 lines", charts.source_lines(lines, source, by_line)


CHARTS = [
    *("progression", "two GPUs", "roofline", "stalls", "memory"),
    *("occupancy, block", "occupancy, shared", "simulated", "lines"),
    *("H200", "H200 and document", "H200, three problems", "one stage, two GPUs"),
    *("three stages, two GPUs", "eight kernels"),
    "H200 roofline",
    *("H200 stalls", "H200 memory", "H200 occupancy", "H200 lines"),
]


@pytest.fixture(scope="module")
def drawn():
    return dict(every_chart())


def test_every_chart_is_looked_at(drawn):
    assert list(drawn) == CHARTS


def texts(chart):
    canvas = FigureCanvasAgg(chart)
    canvas.draw()
    every = [*chart.findobj(Text), *(cell.get_text() for cell in chart.findobj(Cell))]
    found = [t for t in every if t.get_visible() and t.get_text().strip()]
    return [(t, t.get_window_extent(canvas.get_renderer())) for t in found]


@pytest.mark.parametrize("name", CHARTS)
def test_every_text_is_inside_and_none_covers_another(drawn, name):
    readable(drawn[name])


def inside(chart):
    """The texts of a chart and their places; fails where one is cut off."""
    chart.draw_without_rendering()
    width, height = chart.bbox.size
    placed = [(t, box) for t, box in texts(chart) if box.width * box.height > 0]
    hidden = {id(t) for axes in chart.axes for t in _unused_tick_labels(axes)}
    placed = [(t, box) for t, box in placed if id(t) not in hidden]

    for text, box in placed:
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1, text
    return placed


def readable(chart):
    """Fails where a text of a chart is cut off or covered by another."""
    placed = inside(chart)
    assert len(placed) > 6
    for (a, one), (b, other) in combinations(placed, 2):
        overlap_x = min(one.x1, other.x1) - max(one.x0, other.x0)
        overlap_y = min(one.y1, other.y1) - max(one.y0, other.y0)
        assert overlap_x < 2 or overlap_y < 2.5, f"{a.get_text()!r} covers {b.get_text()!r}"


def _unused_tick_labels(axes):
    """Labels of ticks outside the axis limits, which matplotlib keeps but does not draw."""
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
            outside = not low * (1 - 1e-9) <= tick.get_loc() <= high * (1 + 1e-9)
            for label in (tick.label1, tick.label2):
                if outside or not axes.axison:
                    yield label


@pytest.mark.parametrize("name", CHARTS)
def test_every_chart_says_its_source_and_has_an_alt_text(drawn, name):
    chart = drawn[name]
    shown = " ".join(t.get_text() for t in chart.findobj(Text))

    assert any(word in shown for word in ("reported", "recorded", "measured", "simulated"))
    assert any(c.isdigit() for c in chart.alt_text()) and len(chart.alt_text()) > 60
    assert chart.get_size_inches()[0] == 9


def test_a_chart_is_the_same_bytes_again_whatever_the_caller_has_set(monkeypatch):
    third = metrics.select(reported_metrics(), stage="03_gqa_reuse")
    first = charts.occupancy_curve(third).png()
    monkeypatch.setitem(mpl.rcParams, "font.size", 23)

    assert charts.occupancy_curve(third).png() == first
    assert first.startswith(b"\x89PNG")


def bars(axes):
    return [round(p.get_height(), 6) for p in axes.patches]


def test_the_progression_draws_the_documents_figures_and_keeps_gaps():
    chart = charts.stage_progression(reported_metrics())
    panels = {axes.get_title(loc="left").split(",")[0]: axes for axes in chart.axes}

    assert bars(panels["Time"]) == [119.98, 7.5, 4.95, 3.35, 3.92, 0.02256]
    assert bars(panels["DRAM throughput"]) == [2.4, 37.92, 57.42, 84.86, 73.41, 85.68]
    assert bars(panels["Registers per thread"]) == [31, 64, 39]
    gaps = [t.get_text() for t in panels["Registers per thread"].texts]
    assert gaps.count("not in the document") == 3
    assert bars(panels["DRAM-active cycles"]) == [39.68348, 39.23504, 39.229512, 0.27]


def test_a_stage_of_two_kernels_is_never_one_percentage():
    chart = charts.stage_progression(metrics.select(reported_metrics(), stage="04_split_kv"))
    panels = {axes.get_title(loc="left").split(",")[0]: axes for axes in chart.axes}

    assert bars(panels["DRAM throughput"]) == [73.41, 85.68]
    assert "3.92\nstage 3.94" in [t.get_text() for t in panels["Time"].texts]
    assert not any("stage" in t.get_text() for t in panels["DRAM throughput"].texts)


def test_the_axis_of_times_is_logarithmic_where_stages_are_far_apart():
    """Few ticks of two stages, decades of many; stages that are near each other would look equal there."""
    ticks, titles = {}, {}
    chosen = {
        "two": ["00_baseline", "01_cooperative"],
        "near": ["03_gqa_reuse", "04_split_kv"],  # the latter's merge takes hundreds of times less
        "all": None,
    }
    for name, stages in chosen.items():
        frame = reported_metrics() if stages is None else metrics.select(reported_metrics(), stage=stages)
        chart = charts.stage_progression(frame, (names.TIME,))
        chart.draw_without_rendering()
        low, high = chart.axes[0].get_ylim()
        axis, titles[name] = chart.axes[0].yaxis, chart.axes[0].get_title(loc="left")
        ticks[name] = [
            tick.label1.get_text()
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
            if low <= tick.get_loc() <= high and tick.label1.get_text()
        ]

    assert set(ticks["two"]) <= {"5", "10", "20", "50", "100", "200"} and len(ticks["two"]) >= 2
    assert ticks["near"][:2] == ["0", "1"]
    assert {name for name, title in titles.items() if "logarithmic" in title} == {"two", "all"}
    assert len(ticks["all"]) >= 4 and set(ticks["all"]) <= {"0.01", "0.1", "1", "10", "100", "1,000"}


@pytest.mark.parametrize("reason", ["no permission for counters", "n/a on this GPU"])
def test_what_is_not_measured_is_a_labelled_gap_and_the_rest_is_drawn(reason):
    frame = profile().copy()
    hit = (frame["metric"] == names.DRAM_PCT) & (frame["stage"] == "02_vectorized")
    frame.loc[hit, ["value", "reason"]] = [math.nan, reason]

    axes = charts.stage_progression(frame, (names.DRAM_PCT, names.COMPUTE_PCT)).axes

    assert bars(axes[0]) == [20, 22, 23, 24]
    assert [t.get_text() for t in axes[0].texts].count(reason) == 1
    assert bars(axes[1]) == []
    assert [t.get_text() for t in axes[1].texts] == ["not measured"] * 5


def test_eight_launches_are_one_bar():
    frame = profile()
    launches = metrics.concat(
        frame.assign(launch=n).astype({"launch": "Int64"}).assign(value=frame["value"] * (1 if n else 9))
        for n in range(8)
    )

    assert bars(charts.stage_progression(launches, (names.DRAM_PCT,)).axes[0]) == [20, 21, 22, 23, 24]


def test_the_roof_is_the_lower_of_the_two_ceilings():
    ceilings = charts.ceilings("h200", "measured", "read kernel", 1e12, 1e13)
    axes = charts.roofline(metrics.concat([derive.roofline_figures(profile()), ceilings])).axes[0]
    roof = max(axes.lines, key=lambda line: len(line.get_xdata()))

    for x, y in zip(*roof.get_data(), strict=True):
        assert y == pytest.approx(min(1000 * x, 10_000))
    points = [line for line in axes.lines if len(line.get_xdata()) == 1]
    assert [(p.get_xdata()[0], round(p.get_ydata()[0])) for p in points] == [
        (2, 2000),
        (2, 1000),
        (2, 667),
        (2, 500),
        (2, 400),
    ]


def test_a_kernel_without_counts_is_named_not_drawn():
    frame = profile()
    frame = frame[~((frame["metric"] == derive.FFMA) & (frame["stage"] == "00_baseline"))]
    chart = charts.roofline(derive.roofline_figures(frame))

    assert "not drawn: 00 baseline: fp32 instructions not measured" in chart.alt_text()
    with pytest.raises(metrics.MetricsError, match="fp32 instructions not measured"):
        charts.roofline(derive.roofline_figures(reported_metrics()))


def test_operation_counts_per_cycle_serve_where_sums_are_not_collected():
    rows = [
        {"metric": f"{m}.per_cycle_elapsed", "value": v, "unit": "inst/cycle"}
        for m, v in ((derive.FFMA, 100.0), (derive.FMUL, 10.0), (derive.FADD, 1.0))
    ]
    rows += [{"metric": "gpc__cycles_elapsed.max", "value": 1000.0, "unit": "cycle"}]
    frame = metrics.build(rows, source="recorded", tool="ncu", gpu="h200", stage="s", kernel="k")

    assert metrics.value(derive.roofline_figures(frame), names.FLOPS) == 211_000


def test_shares_of_samples():
    shares = derive.stall_shares(metrics.select(profile(), stage="00_baseline"))

    found = {
        m.removeprefix(derive.STALL_SHARE): v for m, v in zip(shares["metric"], shares["value"], strict=True)
    }
    assert found == {"long_scoreboard": 60, "barrier": 25, "wait": 9, "selected": 6}
    assert shares["sampled"].all()


def test_the_occupancy_point_names_its_limiter():
    third = metrics.select(reported_metrics(), stage="03_gqa_reuse")
    chart = charts.occupancy_curve(third)

    assert "41.7 %, limited by shared memory; achieved 36.8 %" in chart.alt_text()
    by_formula = occupancy_metrics(GPUS["h200"], "k", 512, 128, 38, 16384)
    assert "75 %, limited by registers" in charts.occupancy_curve(by_formula, "shared").alt_text()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: charts.stage_progression(metrics.empty()), "no kernel"),
        (lambda: charts.stall_reasons(reported_metrics()), "no stall samples"),
        (lambda: charts.occupancy_curve(reported_metrics()), "one kernel on one GPU"),
        (
            lambda: charts.occupancy_curve(metrics.select(reported_metrics(), stage="00_baseline")),
            "launch__reg",
        ),
        (lambda: charts.occupancy_curve(profile(gpu="abacus").head(9)), "abacus"),
        (lambda: charts.occupancy_curve(reported_metrics(), "warps"), "against='warps' is not allowed"),
        (lambda: charts.simulated_against_measured(profile()), "no simulated rows"),
        (lambda: charts.source_lines(profile(), "x", [names.TIME]), "no figures by line"),
    ],
)
def test_what_cannot_be_drawn_says_so(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_simulated_ratios_and_what_one_side_lacks():
    counted = metrics.select(profile(source="simulated", tool="simulator", gpu=""), metric=[LOADS, SECTORS])
    measured = profile().copy()
    measured.loc[measured["metric"] == LOADS, "value"] = 1.5e6

    table = derive.compare_sources(
        metrics.concat([measured, counted]), (LOADS, SECTORS, names.DRAM_READ_BYTES)
    )

    assert set(table.loc[table["metric"] == LOADS, "ratio"]) == {1.5}
    assert set(table.loc[table["metric"] == SECTORS, "ratio"]) == {1.0}
    dram = table[table["metric"] == names.DRAM_READ_BYTES]
    assert set(dram["reason"]) == {"simulated: not measured"} and dram["ratio"].isna().all()


def test_lines_of_code_carry_their_figures():
    rows = [
        {"line": n, "metric": "inst_executed", "value": v, "unit": "inst"} for n, v in ((2, 5.0), (3, 7.0))
    ]
    frame = metrics.build(rows, source="recorded", tool="ncu", gpu="h200", kernel="k", file="/lab/k.cu")
    chart = charts.source_lines(frame, "a;\nb;\nc;\nd;", ["inst_executed"])

    assert [p.get_width() for p in chart.axes[0].patches] == [5, 7]
    assert "line 3 (7, c;), line 2 (5, b;)" in chart.alt_text()
    with pytest.raises(metrics.MetricsError, match="line 3, but the source has 2 lines"):
        charts.source_lines(frame, "a;\nb;", ["inst_executed"])


def test_the_way_to_the_roof_is_bytes_over_time_over_the_ceiling():
    """2 MB in 1 µs and in 4 µs, where a plain read reaches 4 TB/s: 50 and 12.5 %."""
    problem = Problem(2, 1, 64, 16, (3900,), name="some")
    nbytes = problem.minimum_bytes
    assert nbytes == 2 * 4 * 64 * 3900 + 4 * 244 + 4 + 2 * 4 * 2 * 64
    times = metrics.build(
        [
            {
                "metric": names.TIME,
                "stage": stage,
                "kernel": metrics.ALL_KERNELS,
                "value": ns,
                "unit": "nsecond",
            }
            for stage, ns in (("09_memory_roof", nbytes / 2e3), ("00_baseline", nbytes / 5e2))
        ]
        + [{"metric": names.PEAK_BANDWIDTH, "value": 4e12, "unit": "byte/second"}],
        source="recorded",
        tool="events",
        gpu="h200",
        problem="some",
    )

    chart = way_to_the_roof(times, {"some": problem})

    (axes,) = chart.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["00 baseline", "09 memory roof"]
    assert [round(bar.get_width(), 6) for bar in axes.patches] == [12.5, 50.0]
    assert "100 % is 4,000 GB/s" in chart.description and "09 memory roof 50.0 %" in chart.description


def test_a_way_without_times_is_refused():
    with pytest.raises(ValueError, match="no stage was timed beside a read ceiling on nothing"):
        way_to_the_roof(
            recorded_metrics(tool="events"), {"nothing": Problem(2, 1, 64, 16, (3900,), name="nothing")}
        )
