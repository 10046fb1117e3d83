"""The Metrics table, its units and names, and the reported figures against the document's tables."""

import json
import math
from decimal import Decimal

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labs_common import metric_names as names
from labs_common import metrics
from labs_common.reported import reported_metrics
from labs_common.units import UnitError, base_unit, decimal_mark, parse_number, to_base

MERGE = "paged_attention_split_kv_merge"
PARTIAL = "paged_attention_split_kv"


def table(*rows, **common):
    defaults = {"source": "measured", "tool": "ncu", "gpu": "g", "stage": "s", "kernel": "k", "problem": "p"}
    return metrics.build(rows, **{**defaults, **common})


def row(metric=names.TIME, value=1.0, unit="nsecond", **more):
    return {"metric": metric, "value": value, "unit": unit, **more}


# --- units: C1
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "unit", "expected", "base"),
    [
        ("3.92", "ms", 3_920_000.0, "nsecond"),
        ("22.56", "us", 22_560.0, "nsecond"),
        ("119.98", "ms", 119_980_000.0, "nsecond"),
        ("14.46", "usecond", 14_460.0, "nsecond"),
        ("1", "second", 1e9, "nsecond"),
        ("21058944", "ns", 21_058_944.0, "nsecond"),
        ("1.21", "cycle/nsecond", 1.21e9, "hz"),
        ("585.5", "cycle/usecond", 585.5e6, "hz"),
        ("2.60", "Ghz", 2.6e9, "hz"),
        ("585.00", "Mhz", 585e6, "hz"),
        ("16.38", "Kbyte/block", 16_380.0, "byte/block"),
        ("102.40", "Kbyte", 102_400.0, "byte"),
        ("197.74", "Gbyte/s", 197.74e9, "byte/second"),
        ("1.5", "Tbyte/second", 1.5e12, "byte/second"),
        ("3", "byte/nsecond", 3e9, "byte/second"),
        ("39", "register/thread", 39.0, "register/thread"),
        ("0.03", "inst/cycle", 0.03, "inst/cycle"),
        ("7", "sectors", 7.0, "sector"),
        ("7", "branches", 7.0, "branch"),
        ("36", "SM", 36.0, "SM"),
        ("89.78", "%", 89.78, "%"),
        ("4.74", "", 4.74, ""),
    ],
)
def test_units_come_to_their_base(text, unit, expected, base):
    assert to_base(parse_number(text, "."), unit) == (expected, base)


@pytest.mark.parametrize(
    "unit", ["furlong", "Xbyte", "byte/fortnight", "kilo", "%%", "mm", "Gb", "/s", "byte/"]
)
def test_unknown_units_are_errors(unit):
    with pytest.raises(UnitError, match="is unknown"):
        base_unit(unit)


def test_a_base_unit_is_its_own_base():
    for name in names.NAMES:
        assert base_unit(name.unit) == (1, name.unit), name


@pytest.mark.parametrize(
    ("texts", "mark"),
    [
        (["61.84", "1,234"], "."),
        (["12,319,469"], "."),
        (["12,217,197.85"], "."),
        (["61,84", "1.234"], ","),
        (["12.319.469,5"], ","),
        (["0.123"], "."),
        (["117.344", "8,98"], ","),
        (["3995313115.400"], "."),
        (["117.344"], None),
        (["1,234", "5,678", "n/a", "CachePreferNone"], None),
        (["7"], None),
    ],
)
def test_a_report_proves_its_decimal_mark(texts, mark):
    assert decimal_mark(texts) == mark


def test_contradicting_numbers_are_an_error():
    with pytest.raises(ValueError, match=r"61\.84.*3,5"):
        decimal_mark(["61.84", "3,5"])


def test_an_ambiguous_thousand_is_refused_and_an_unambiguous_one_read():
    for text in ("1,234", "117.344", "-12.345"):
        with pytest.raises(ValueError, match="ambiguous"):
            parse_number(text)
    for text, value in (
        ("1234.567", "1234.567"),
        ("0.123", "0.123"),
        ("12.5", "12.5"),
        ("1,234,567", "1234567"),
    ):
        assert parse_number(text) == Decimal(value)

    assert parse_number("1,234", ".") == 1234
    assert parse_number("1,234", ",") == Decimal("1.234")
    assert parse_number("196,456,177,859.63", ".") * 100 == 19645617785963


@pytest.mark.parametrize(
    "text", ["12,34", "1,2345", ",5", "1,,234", "1.2.3", "PolicySpread", "", "1e", "--1"]
)
def test_broken_numbers_are_errors(text):
    with pytest.raises(ValueError):
        parse_number(text, ".")


# --- the table


def test_absent_needs_a_reason():
    with pytest.raises(metrics.MetricsError, match="absent without a reason"):
        table(row(value=math.nan))

    assert table(row(value=math.nan, reason="not measured"))["value"].isna().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": "guessed"}, "guessed.*measured, recorded, reported, simulated"),
        ({"unit": "ms"}, "'ms' is no base unit"),
        ({"unit": "furlong"}, "furlong"),
        ({"tool": ""}, "tool is empty"),
        ({"metric": ""}, "metric is empty"),
        ({"colour": "red"}, "unknown columns"),
    ],
)
def test_bad_rows_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        table({**row(), "source": "measured", **change})


def test_the_same_value_twice_is_an_error_and_a_section_tells_apart():
    with pytest.raises(metrics.MetricsError, match="stands twice"):
        table(row(launch=0), row(launch=0))

    assert len(table(row(launch=0, section="A"), row(launch=0, section="B"))) == 2


texts = st.text(st.characters(codec="utf-8", exclude_characters="\r\x00"), max_size=12)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "source": st.sampled_from(metrics.SOURCES),
                "kernel": texts,
                "problem": texts,
                "file": texts,
                "reason": texts.map(lambda t: "because " + t),
                "text": texts,
                "launch": st.none() | st.integers(0, 2**40),
                "line": st.none() | st.integers(1, 10**6),
                "value": st.floats(allow_nan=True, allow_infinity=True),
                "unit": st.sampled_from(sorted({n.unit for n in names.NAMES})),
                "sampled": st.booleans(),
            }
        ),
        max_size=5,
    )
)
def test_csv_gives_back_the_same_table(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "m.csv"
    frame = metrics.build([{**r, "metric": f"m{i}", "tool": "ncu"} for i, r in enumerate(rows)])

    metrics.save_csv(frame, path)

    pd.testing.assert_frame_equal(metrics.load_csv(path), frame, check_exact=True)


def test_a_csv_of_another_form_is_named(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(metrics.MetricsError, match=r"x\.csv: columns are"):
        metrics.load_csv(path)


def test_records_for_json_have_no_nan():
    frame = table(row(value=math.nan, reason="no counters", launch=3), row("m2", 2.5, "%"))

    absent, present = json.loads(json.dumps(metrics.to_records(frame), allow_nan=False))

    assert absent["value"] is None and absent["reason"] == "no counters" and absent["launch"] == 3
    assert present["value"] == 2.5 and "launch" not in present


def test_select_knows_every_name_of_a_metric():
    frame = table(
        row("fbpa__dram_read_bytes.sum", 5.0, "byte"), row(names.DRAM_READ_BYTES, 7.0, "byte", launch=1)
    )

    assert len(metrics.select(frame, metric="fbpa__dram_read_bytes.sum")) == 2
    assert len(metrics.select(frame, launch=None)) == 1


def test_one_refuses_to_choose():
    frame = table(row(launch=0, value=1.0), row(launch=1, value=2.0))
    with pytest.raises(metrics.MetricsError, match="not one value"):
        metrics.one(frame, names.TIME)

    assert metrics.value(frame, names.TIME, launch=1) == 2.0
    assert math.isnan(metrics.value(frame, names.DRAM_PCT))


# --- launches, stages, speed-ups: C7 and the two-kernel stage


def test_eight_launches_are_one_kernel_after_the_warm_up():
    times = [90.0, 10.0, 12.0, 11.0, 14.0, 13.0, 16.0, 15.0]
    frame = table(*(row(value=t, launch=i) for i, t in enumerate(times)))

    grouped = metrics.group_launches(frame)

    assert grouped["value"].tolist() == [13.0]
    assert "7 launches" in grouped["reason"][0] and "first 1 left out" in grouped["reason"][0]
    assert metrics.group_launches(frame, warmup=0)["value"].tolist() == [13.5]


def test_one_launch_is_kept_as_it_is():
    frame = table(row(launch=0), row(kernel="other", launch=1, value=5.0))
    pd.testing.assert_frame_equal(metrics.group_launches(frame), frame)


def test_a_stage_of_two_kernels_adds_times_and_weights_percentages():
    totals = metrics.stage_totals(metrics.select(reported_metrics(), stage="04_split_kv"))

    time = metrics.one(totals, names.TIME)
    dram = metrics.one(totals, names.DRAM_PCT)

    assert time["value"] == 3_942_560.0  # 3.92 ms + 22.56 us
    assert dram["value"] == pytest.approx((73.41 * 3920 + 85.68 * 22.56) / 3942.56, rel=1e-12)
    assert "weighted by time" in dram["reason"]
    assert math.isnan(metrics.value(totals, names.REGISTERS))
    assert math.isnan(metrics.value(totals, names.DRAM_ACTIVE_CYCLES))
    dram_cycles = metrics.one(totals, names.DRAM_ACTIVE_CYCLES)
    assert "not measured for paged_attention_split_kv" in dram_cycles["reason"]


def test_launches_are_grouped_before_a_stage_is_summed_up():
    frame = table(row(launch=0), row(launch=1))
    with pytest.raises(metrics.MetricsError, match="k has 2 launches: group_launches first"):
        metrics.stage_totals(frame)

    assert metrics.value(metrics.stage_totals(metrics.group_launches(frame)), names.TIME) == 1.0


def test_the_merge_is_half_a_percent():
    stage = metrics.select(reported_metrics(), stage="04_split_kv")
    merge, partial = (metrics.value(stage, names.TIME, kernel=k) for k in (MERGE, PARTIAL))

    assert round(100 * merge / (merge + partial), 2) == 0.57


@pytest.mark.parametrize("column", ["source", "tool", "gpu", "problem"])
def test_a_speed_up_never_mixes(column):
    other = {"source": "recorded", "tool": "events", "gpu": "h", "problem": "q"}[column]
    with pytest.raises(metrics.MetricsError, match=f"needs one {column}"):
        metrics.speedup(table(row()), table(row(), **{column: other}))


def test_the_documents_speed_ups():
    frame = reported_metrics()
    stage = {s: metrics.select(frame, stage=s) for s in frame["stage"].unique()}

    assert round(metrics.speedup(stage["00_baseline"], stage["01_cooperative"])) == 16
    assert metrics.speedup(stage["03_gqa_reuse"], stage["04_split_kv"]) < 1


# --- reported figures, typed by hand from the document

# kernel: DRAM Ghz, SM Ghz, cycles, memory %, DRAM %, ms, L1 %, L2 %, SM active cycles, compute %
SOL = {
    "paged_attention_baseline": (
        13.79,
        2.60,
        312174573,
        89.78,
        2.40,
        119.98,
        91.72,
        2.23,
        305463204.67,
        89.78,
    ),
    "paged_attention_cooperative": (
        13.79,
        2.60,
        19510057,
        60.59,
        37.92,
        7.5,
        61.40,
        28.18,
        19237620.33,
        60.59,
    ),
    "paged_attention_vectorized": (
        13.79,
        2.60,
        12869678,
        57.42,
        57.42,
        4.95,
        34.1,
        42.14,
        12578048.19,
        17.02,
    ),
    "paged_attention_gqa_reuse": (13.79, 2.60, 8712909, 84.86, 84.86, 3.35, 30.32, 31.54, 8193819.39, 28.46),
    PARTIAL: (13.79, 2.59, 10178623, 73.41, 73.41, 3.92, 42.05, 52.91, 10178884.22, 21.58),
    MERGE: (13.79, 2.57, 57995, 85.68, 85.68, 0.02256, 15.04, 32.28, 54381.42, 11.52),
}
SOL_METRICS = [
    ("dram__cycles_elapsed.avg.per_second", 1e9),
    ("smsp__cycles_elapsed.avg.per_second", 1e9),
    ("gpc__cycles_elapsed.max", 1),
    (names.MEMORY_PCT, 1),
    (names.DRAM_PCT, 1),
    (names.TIME, 1e6),
    (names.L1_PCT, 1),
    (names.L2_PCT, 1),
    ("sm__cycles_active.avg", 1),
    (names.COMPUTE_PCT, 1),
]


@pytest.mark.parametrize("kernel", SOL)
def test_reported_speed_of_light(kernel):
    frame = metrics.select(reported_metrics(), kernel=kernel)
    for expected, (metric, factor) in zip(SOL[kernel], SOL_METRICS, strict=True):
        assert metrics.value(frame, metric) == pytest.approx(expected * factor, rel=1e-14), metric


# stage: average active and total elapsed cycles of DRAM, L1, L2; total SM; SMSP active and elapsed
CYCLES = {
    "00_baseline": (
        (39683480, 6617162752, 305463204.67, 11234537952, 235037434.56, 4453487280),
        (11234537952, 305463153.95, 44938151808),
    ),
    "01_cooperative": (
        (39235040, 413871104, 19237620.33, 701828280, 16855800.56, 277861376),
        (701828280, 19237596.24, 2807313120),
    ),
    "03_gqa_reuse": (
        (39229512, 184905728, 8193819.39, 313420716, 7569240.88, 124075968),
        (313420716, 8193791.33, 1253682864),
    ),
}
CYCLE_METRICS = (
    *(
        f"{unit}__cycles_{what}"
        for unit in ("dram", "l1tex", "lts")
        for what in ("active.avg", "elapsed.sum")
    ),
    *("sm__cycles_elapsed.sum", "smsp__cycles_active.avg", "smsp__cycles_elapsed.sum"),
)


@pytest.mark.parametrize("stage", CYCLES)
def test_reported_cycles_per_unit(stage):
    frame = metrics.select(reported_metrics(), stage=stage)
    for expected, metric in zip(sum(CYCLES[stage], ()), CYCLE_METRICS, strict=True):
        assert metrics.value(frame, metric) == expected, metric


@pytest.mark.parametrize(
    ("stage", "kernel", "metric", "expected"),
    [
        ("01_cooperative", "paged_attention_cooperative", names.LSU_PCT, 60.59),
        ("01_cooperative", "paged_attention_cooperative", names.ISSUE_PCT, 40.05),
        ("01_cooperative", "paged_attention_cooperative", names.ACHIEVED_OCCUPANCY, 89.36),
        ("01_cooperative", "paged_attention_cooperative", names.REGISTERS, 31),
        ("01_cooperative", "paged_attention_cooperative", names.WAVES, 4.74),
        ("02_vectorized", "paged_attention_vectorized", names.REGISTERS, 64),
        ("02_vectorized", "paged_attention_vectorized", names.THEORETICAL_OCCUPANCY, 50),
        ("02_vectorized", "paged_attention_vectorized", names.ACHIEVED_OCCUPANCY, 37.58),
        ("02_vectorized", "paged_attention_vectorized", names.WAVES, 2.37),
        ("02_vectorized", "paged_attention_vectorized", "launch__shared_mem_config_size", 32768),
        ("03_gqa_reuse", "paged_attention_gqa_reuse", names.REGISTERS, 39),
        ("03_gqa_reuse", "paged_attention_gqa_reuse", names.THEORETICAL_OCCUPANCY, 41.67),
        ("03_gqa_reuse", "paged_attention_gqa_reuse", names.ACHIEVED_OCCUPANCY, 36.79),
        ("03_gqa_reuse", "paged_attention_gqa_reuse", names.WAVES, 2.84),
        ("03_gqa_reuse", "paged_attention_gqa_reuse", "launch__shared_mem_config_size", 102400),
        ("03_gqa_reuse", "paged_attention_gqa_reuse", "launch__shared_mem_per_block_dynamic", 16384),
        ("03_gqa_reuse", "paged_attention_gqa_reuse", "launch__shared_mem_per_block_driver", 1024),
        ("04_split_kv", PARTIAL, names.WAVES, 18.96),
        ("04_split_kv", MERGE, names.WAVES, 2.37),
        ("04_split_kv", MERGE, names.DRAM_ACTIVE_CYCLES, 270_000),
    ],
)
def test_reported_launch_figures(stage, kernel, metric, expected):
    assert metrics.value(reported_metrics(), metric, stage=stage, kernel=kernel) == expected


def test_what_is_inferred_says_so_and_what_is_missing_says_why():
    frame = reported_metrics()
    inferred = frame[frame["reason"].str.startswith("inferred:")]

    expected = {"launch__block_size", "launch__shared_mem_per_block_dynamic", names.LSU_PCT}
    assert expected <= set(inferred["metric"])
    assert (frame.loc[frame["value"].isna() & (frame["text"] == ""), "reason"] == "not in the document").all()
    assert math.isnan(metrics.value(frame, names.REGISTERS, stage="00_baseline"))
