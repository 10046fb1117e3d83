"""The recorded profiles in data/recorded/: read rightly, complete, free of private paths, not out of date."""

import pytest

from labs_common import metric_names as names
from labs_common import metrics, ncu
from labs_common.record import RECORDED

# Read off the reports with ncu_report itself, or with `ncu --import --page raw`.
BY_HAND = {
    ("03_gqa_reuse/ragged", "paged_attention_gqa_reuse"): {
        names.GLOBAL_LOAD_SECTORS: (59_904, "sector"),
        names.GLOBAL_LOAD_REQUESTS: (4_224, "request"),
        names.REGISTERS: (64, "register/thread"),
        "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": (1_887_232, "inst"),
        names.TIME: (148_480, "nsecond"),
    },
    ("04_split_kv/ragged", "paged_attention_split_kv"): {
        names.TIME: (132_608, "nsecond"),
        names.REGISTERS: (40, "register/thread"),
        "smsp__inst_executed_op_shuffle.sum": (36_720, "inst"),
        "smsp__inst_executed_op_barrier.sum": (0, "inst"),
    },
    ("04_split_kv/ragged", "paged_attention_split_kv_merge"): {
        names.TIME: (3_424, "nsecond"),
        names.REGISTERS: (32, "register/thread"),
    },
    ("01_cooperative/long-float32", "paged_attention_cooperative"): {
        names.TIME: (63_844_640, "nsecond"),
        "smsp__inst_executed_op_barrier.sum": (38_400_000, "inst"),
    },
}


@pytest.mark.parametrize(("report", "kernel"), BY_HAND)
def test_a_real_report_gives_the_figures_that_it_holds(report, kernel):
    frame = ncu.read_profile(RECORDED / "h200" / f"{report}.ncu-rep.xz")

    mine = metrics.select(frame, kernel=kernel)
    assert set(mine["gpu"]) == {"h200"} and set(mine["stage"]) == {report.split("/")[0]}
    found = {m: metrics.one(mine, m) for m in BY_HAND[report, kernel]}
    assert {m: (row["value"], row["unit"]) for m, row in found.items()} == BY_HAND[report, kernel]
    name = metrics.one(mine, "launch__kernel_name")
    assert name["text"] == kernel
    lines = mine[(mine["metric"] == "inst_executed") & mine["line"].notna()]
    assert lines["value"].sum() == metrics.value(mine, names.INSTRUCTIONS)
    assert set(lines["file"]) <= {f"{report.split('/')[0]}.cu", "paged_attention.cuh"}
