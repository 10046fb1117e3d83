"""Words about profiles: the document's own conclusions from its figures, and each rule at its threshold."""

import math

import pytest

from labs_common import explain, metrics
from labs_common import metric_names as names
from labs_common.derive import STALL_SAMPLES
from labs_common.recorded import recorded_metrics
from labs_common.reported import reported_metrics


def kernel(stage="00_baseline", name="paged_attention_baseline", **values):
    units = {names.TIME: "nsecond", names.WAVES: "", names.DRAM_ACTIVE_CYCLES: "cycle"}
    short = {
        "compute": names.COMPUTE_PCT,
        "dram": names.DRAM_PCT,
        "memory": names.MEMORY_PCT,
        "l1": names.L1_PCT,
        "l2": names.L2_PCT,
        "lsu": names.LSU_PCT,
        "issue": names.ISSUE_PCT,
        "time": names.TIME,
        "waves": names.WAVES,
        "cycles": names.DRAM_ACTIVE_CYCLES,
        "achieved": names.ACHIEVED_OCCUPANCY,
        "theoretical": names.THEORETICAL_OCCUPANCY,
    }
    rows = []
    for key, value in values.items():
        metric = short[key]
        rows.append({"metric": metric, "value": float(value), "unit": units.get(metric, "%")})
    common = {"source": "recorded", "tool": "ncu", "gpu": "h200", "problem": "s1"}
    return metrics.build(rows, stage=stage, kernel=name, **common)


@pytest.fixture(scope="module")
def document():
    return {e.stage: e for e in explain.explain(reported_metrics())}


@pytest.mark.parametrize(
    ("stage", "rules"),
    [
        ("00_baseline", ["redundant_work"]),
        ("01_cooperative", ["lsu"]),
        ("02_vectorized", ["latency"]),
        ("03_gqa_reuse", ["dram"]),
        ("04_split_kv", ["dram_leaning", "dram"]),
    ],
)
def test_the_documents_limiters(document, stage, rules):
    assert [limiter.rule for limiter in document[stage].limiters] == rules


def test_the_evidence_is_the_documents(document):
    said = document["01_cooperative"].limiters[0]
    assert said.sentence.startswith("01 cooperative is LSU-bound")
    assert "LSU instructions 60.6 %" in said.sentence and "DRAM throughput 37.9 %" in said.sentence
    assert said.evidence[0] == explain.Evidence(names.LSU_PCT, 60.59, "%")
    second = document["02_vectorized"].limiters[0].sentence
    assert "latency-bound, leaning on DRAM (5" in second and "Achieved occupancy 37.6 %" in second


def kinds(explanation):
    return {change.kind: change for change in explanation.changes}


def test_the_same_bytes_in_less_time(document):
    first = kinds(document["01_cooperative"])["same_bytes"]
    assert first.since == "00_baseline"
    assert "39.2 million DRAM-active cycles" in first.sentence and "39.7 million" in first.sentence
    assert "16 times less time" in first.sentence and "from 2.4 to 37.9 %" in first.sentence

    third = kinds(document["03_gqa_reuse"])["same_bytes"]
    assert third.since == "01_cooperative"  # the document has no such figure of stage 02
    assert "2.24 times less time" in third.sentence


def test_faster_at_lower_occupancy(document):
    changes = kinds(document["02_vectorized"])

    assert "89.4 to 37.6 %" in changes["lower_occupancy_yet_faster"].sentence
    assert "31 to 64" in changes["registers"].sentence
    assert "1.52 times less time" in changes["faster"].sentence
    assert "LSU-bound before, latency-bound now" in changes["limiter"].sentence
    assert "lower_occupancy_yet_faster" not in kinds(document["03_gqa_reuse"])


def test_the_split_is_slower_here_and_its_merge_small(document):
    changes = kinds(document["04_split_kv"])

    assert "1.18 times as long as 03_gqa_reuse" in changes["slower"].sentence
    assert "0.572 % of the stage's 3.94 ms" in changes["merge"].sentence
    assert "same_bytes" not in changes


@pytest.mark.parametrize(
    ("figures", "rule"),
    [
        ({"compute": 60, "dram": 10}, "redundant_work"),
        ({"compute": 59.9, "dram": 10}, "latency"),
        ({"compute": 60, "dram": 10.1}, "leaning"),
        ({"compute": 20, "dram": 80}, "dram"),
        ({"compute": 20, "dram": 79.9}, "dram_leaning"),
        ({"compute": 20, "dram": 60}, "dram_leaning"),
        ({"compute": 20, "dram": 59.9}, "latency"),
        ({"compute": 61, "dram": 60}, "dram_leaning"),
        ({"compute": 61.1, "dram": 60}, "leaning"),
        ({"compute": 60, "dram": 30, "lsu": 60}, "lsu"),
        ({"compute": 61.1, "dram": 30, "lsu": 60}, "leaning"),
        ({"compute": 66, "dram": 1, "lsu": 65}, "redundant_loads"),
        ({"compute": 66, "dram": 1, "lsu": 64.9}, "redundant_work"),
        ({"compute": 60, "dram": 11, "issue": 60, "lsu": 30}, "issue"),
        ({"compute": 60, "dram": 11, "issue": 59.9, "lsu": 30}, "leaning"),
        ({"compute": 62, "dram": 11, "issue": 60.9, "lsu": 30}, "leaning"),
        ({"compute": 62, "dram": 11, "issue": 62, "lsu": 61}, "lsu"),
        ({"compute": 80, "dram": 30, "lsu": 40}, "compute"),
        ({"compute": 39, "dram": 38, "l2": 90, "memory": 59.9}, "latency"),
        ({"compute": 39, "dram": 38, "l2": 90, "memory": 60}, "l2"),
        ({"compute": 39, "dram": 38, "l2": 71, "memory": 60}, "leaning"),
        ({"compute": 50, "dram": 30, "l1": 80}, "l1"),
        ({"compute": 50, "dram": 30, "l2": 80}, "l2"),
        ({"compute": 50, "dram": 30, "l2": 79.9}, "leaning"),
    ],
)
def test_rules_at_their_thresholds(figures, rule):
    assert explain.limiter_of(kernel(**figures)).rule == rule


@pytest.mark.parametrize("figures", [{"compute": 50}, {"dram": 90}, {"time": 5}])
def test_without_figures_nothing_is_claimed(figures):
    limiter = explain.limiter_of(kernel(**figures))

    assert limiter.rule == "unknown" and limiter.evidence == ()
    assert "not measured" in limiter.sentence


def test_an_absent_figure_is_named_with_its_reason():
    frame = kernel(compute=50, dram=math.inf).copy()
    frame.loc[frame["metric"] == names.DRAM_PCT, ["value", "reason"]] = [
        math.nan,
        "no permission for counters",
    ]

    assert "DRAM throughput: no permission for counters" in explain.limiter_of(frame).sentence


def test_what_a_latency_bound_kernel_waits_for():
    base = kernel(compute=20, dram=28, waves=0.32, achieved=24, theoretical=75)
    samples = metrics.build(
        [
            {"metric": STALL_SAMPLES + name, "value": n, "unit": "warp", "sampled": True}
            for name, n in (("long_scoreboard", 70), ("barrier", 30))
        ],
        **{c: base[c][0] for c in ("source", "tool", "gpu", "problem", "stage", "kernel")},
    )

    limiter = explain.limiter_of(metrics.concat([base, samples]))

    assert "does not fill the GPU once" in limiter.sentence
    assert "wait most often for global memory; then for its block's barrier" in limiter.sentence
    assert "Warp samples in long scoreboard 70 %" in limiter.sentence
    assert "at most half" not in limiter.sentence
    assert 70.0 in [e.value for e in limiter.evidence]


@pytest.mark.parametrize(
    ("before", "after", "kind"), [(110, 100, "faster"), (109, 100, "same_time"), (100, 110, "slower")]
)
def test_a_change_is_real_from_a_tenth_on(before, after, kind):
    frame = metrics.concat(
        [kernel(time=before), kernel("01_cooperative", "paged_attention_cooperative", time=after)]
    )

    assert kind in kinds(explain.explain(frame)[1])


def test_fewer_bytes_are_not_the_same_bytes():
    frame = metrics.concat(
        [
            kernel(time=200, cycles=100),
            kernel("01_cooperative", "paged_attention_cooperative", time=100, cycles=94),
        ]
    )
    assert "same_bytes" not in kinds(explain.explain(frame)[1])


def test_gpus_are_not_compared_with_each_other():
    later = kernel("01_cooperative", "paged_attention_cooperative", compute=50, dram=30, time=1)
    explained = explain.explain(metrics.concat([reported_metrics(), later]))

    other = [e for e in explained if e.group.gpu == "h200"]
    assert len(other) == 1 and other[0].changes == ()


def test_the_text_has_a_paragraph_for_each_stage():
    text = explain.explain_text(reported_metrics())

    assert text.count("\n\n") == 4
    assert (
        "03_gqa_reuse (36-SM GPU, problem seed, reported by the document): 03 gqa reuse is DRAM-bound" in text
    )


@pytest.fixture(scope="module")
def h200():
    return {e.stage: e for e in explain.explain(recorded_metrics(tool="ncu", gpu="h200", problem="seed"))}


@pytest.mark.parametrize(
    ("stage", "rules"),
    [
        ("00_baseline", ["redundant_loads"]),
        ("01_cooperative", ["issue"]),
        ("02_vectorized", ["latency"]),
        ("03_gqa_reuse", ["latency"]),
        ("04_split_kv", ["latency", "latency"]),
    ],
)
def test_the_limiters_on_an_h200(h200, stage, rules):
    assert [limiter.rule for limiter in h200[stage].limiters] == rules


def test_the_document_gpus_dram_bound_kernel_is_latency_bound_on_an_h200(h200):
    said = h200["03_gqa_reuse"].limiters[0].sentence

    assert "DRAM throughput 32.9 %" in said and "does not fill the GPU once" in said
    assert "wait most often for global memory; then for shared memory or a shuffle" in said
    assert "leaning" not in said
    # L2 alone is at 71 %, but memory as a whole at 43 %.
    split = h200["04_split_kv"].limiters[0].sentence
    assert "leaning on the L2 cache (71.1 %)" in split and "does not fill" not in split


def test_all_stages_read_the_same_bytes_on_an_h200(h200):
    for stage in ("01_cooperative", "02_vectorized", "03_gqa_reuse", "04_split_kv"):
        assert "same_bytes" in kinds(h200[stage]), stage
    assert "1.14 times less time than 03_gqa_reuse" in kinds(h200["04_split_kv"])["faster"].sentence
    assert "81.6 to 24.1 %" in kinds(h200["02_vectorized"])["lower_occupancy_yet_faster"].sentence


def test_small_problems_leave_an_h200_idle():
    for explanation in explain.explain(recorded_metrics(tool="ncu", gpu="h200", problem="ragged")):
        for limiter in explanation.limiters:
            assert limiter.rule == "latency" and "does not fill the GPU once" in limiter.sentence
