"""The recorded profiles in data/recorded/: read rightly, complete, free of private paths, not out of date."""

import json
import lzma
import math
import re

import pytest

from labs_common import metric_names as names
from labs_common import metrics, ncu
from labs_common.compiler import compiler_version
from labs_common.problem import PRESETS
from labs_common.provenance import kernel_hash, ptx_hash
from labs_common.recorded import (
    KNOWN,
    PROBLEMS,
    RECORDED,
    changed_kernels,
    recorded_lines,
    recorded_metrics,
    recorded_reports,
    recorded_sources,
    recorded_tables,
)
from labs_common.source import Source
from labs_common.stages import ROOF, STAGES, find_stage

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
    ("02_vectorized/long-float32", "paged_attention_vectorized"): {
        names.TIME: (76_984_672, "nsecond"),
        names.REGISTERS: (48, "register/thread"),
        "smsp__inst_executed_op_barrier.sum": (0, "inst"),
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


REPORTS = sorted(RECORDED.glob("*/*/*.ncu-rep.xz"))
# A path as a command line or a compiler leaves it; parts of one or two characters are chance in binary data.
PATHS = re.compile(rb"(?<![\w./:])(?:/(?:\./)*[A-Za-z0-9_.+~-]{3,}){2,}|[A-Za-z]:\\[\w -]{3,}\\[\w .-]{2,}")
PUBLIC = re.compile(
    rb"/lab/kernels(/(\d\d_\w+\.cu|\w+\.cuh))?"  # the neutral path of sources
    rb"|/tmp/lab_profile(/[\w.-]+)?|/lab/_+(/[\w.-]+)*"  # a path that was made neutral
    rb"|/tmp/tmp\w{8}(/[\w./-]+)?"  # a temporary folder's random name
    rb"|/usr/bin/(\./)*python3(\.\d+)?.{0,3}"  # the byte after a path may look like a part of it
    rb"|/opt/nvidia/nsight-compute/[\w./-]+|/usr/local/cuda[\w./-]*"
)


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: "/".join(path.parts[-3:-1]) + "/" + path.name)
def test_no_report_holds_a_private_path(report):
    data = lzma.decompress(report.read_bytes())

    found = {m for m in PATHS.findall(data) if not PUBLIC.fullmatch(m)}
    assert len(PATHS.findall(data)) > 3
    assert not found
    private = (b"/home/", b"/root/", b"/Users/", rb"[\w.-]+@[\w-]+\.(com|net|org|io)\b")
    assert not [what for what in private if re.search(what, data)]


def test_the_search_for_private_paths_finds_them():
    for path in (
        b"/home/someone/lab/k.cu",
        b"/opt/torch/.venv/bin/python3",
        b"/srv/lab/kernel.cu",
        b"C:\\Users\\me",
    ):
        found = {
            m for m in PATHS.findall(b"\x12\x1f --export " + path + b"\x1a\x02") if not PUBLIC.fullmatch(m)
        }
        assert found == {path}


def test_the_set_has_every_stage_and_problem_and_reports_of_what_a_test_simulates():
    provenance = json.loads((RECORDED / "h200" / "provenance.json").read_text())

    there = {(stage, problem) for gpu, stage, problem in recorded_tables() if gpu == "h200"}
    reported = {(stage, problem) for gpu, stage, problem in recorded_reports() if gpu == "h200"}
    assert reported <= there
    assert {
        (stage.id, name) for stage in STAGES[:5] for name in PROBLEMS if (stage.id, name) in there
    } <= reported
    assert ("05_partitioned_gqa", "seed") in reported and ("05_partitioned_gqa", "long") in reported
    listed = {(stage, name) for stage, names_ in provenance["kernels_ptx_sha256"].items() for name in names_}
    assert there == listed
    assert {stage for stage, _ in there} >= {stage.id for stage in STAGES[:5]}
    for stage in {stage for stage, _ in there}:
        taken = {name for name, problem in KNOWN.items() if find_stage(stage).supports(problem) is None}
        recorded = {name for of, name in there if of == stage}
        assert recorded <= taken
        taken &= set(PROBLEMS)
        if find_stage(stage) in ROOF:
            assert find_stage(stage).typed(PRESETS["seed"]).name in recorded
            continue
        assert recorded >= {"ragged", "seed", "long-float32"}
        assert recorded == taken or stage == "05_partitioned_gqa"
    for stage, problem in there:
        table = metrics.load_csv(RECORDED / "h200" / stage / f"{problem}.csv")
        assert set(table["problem"]) == {problem} and set(table["stage"]) == {stage}
        assert metrics.select(table, metric=names.TIME)["value"].notna().all()


def test_the_recorded_data_is_small():
    assert sum(path.stat().st_size for path in RECORDED.rglob("*") if path.is_file()) <= 6e6


def test_a_table_holds_what_its_report_holds():
    report = RECORDED / "h200" / "04_split_kv" / "seed.ncu-rep.xz"
    table = metrics.load_csv(report.with_name("seed.csv"))
    whole = ncu.read_profile(report, gpu="h200", stage="04_split_kv", problem="seed")

    merged = table.merge(whole, on=list(metrics.KEY), suffixes=("", "_report"))
    assert len(merged) == len(table) > 150
    assert (merged["value"].eq(merged["value_report"]) | merged["value"].isna()).all()
    assert merged["text"].eq(merged["text_report"]).all()


@pytest.mark.parametrize("folder", sorted(path.parent for path in RECORDED.glob("*/provenance.json")))
def test_recorded_kernels_are_those_of_today(folder):
    provenance = json.loads((folder / "provenance.json").read_text())
    if provenance["nvrtc"] != compiler_version():
        pytest.skip(f"recorded with NVRTC {provenance['nvrtc']}, here is {compiler_version()}")

    changed = changed_kernels(folder)
    assert not changed, f"re-record {folder.name} with palab record: {', '.join(changed)}"


@pytest.mark.parametrize("folder", sorted(path.parent for path in RECORDED.glob("*/events/provenance.json")))
def test_timed_kernels_are_those_of_today(folder):
    known = PRESETS | KNOWN
    for problem, entry in json.loads((folder / "provenance.json").read_text()).items():
        if entry["nvrtc"] != compiler_version():
            pytest.skip(f"recorded with NVRTC {entry['nvrtc']}, here is {compiler_version()}")
        options = entry.get("options", {})
        now = {
            stage: kernel_hash(
                find_stage(stage), known[problem], entry["compute_capability"], options.get(stage)
            )
            for stage in entry["kernels_ptx_sha256"]
        }
        assert now == entry["kernels_ptx_sha256"], f"re-record with palab run --save: {problem}"
        timed = recorded_metrics(tool="events", problem=problem, metric=names.TIME)
        assert set(timed["stage"]) == set(now)


def test_launches_are_those_that_stages_plan_today():
    recorded = recorded_metrics(tool="ncu")
    for (stage, problem), rows in recorded.groupby(["stage", "problem"]):
        launches = find_stage(stage).plan(KNOWN[problem]).launches
        assert list(dict.fromkeys(rows["kernel"])) == [launch.entry for launch in launches]
        for launch in launches:
            mine = metrics.select(rows, kernel=launch.entry)
            grid, block, shared = (
                metrics.value(mine, f"launch__{what}")
                for what in ("grid_size", "block_size", "shared_mem_per_block_dynamic")
            )
            planned = (math.prod(launch.grid), math.prod(launch.block), launch.shared_bytes)
            assert (grid, block, shared) == planned, f"re-record {stage} on {problem}: its launch has changed"


PTX = """//
// Generated by NVIDIA NVVM Compiler
.version 9.0
.target sm_90
.global .align 4 .u32 UNUSED = 32;
.global .align 4 .u32 table[4] = {1, 2, 3, 4};
.visible .entry k()
{
	.reg .b32 	%r<3>;
	.loc	1 5 3
$L__tmp1:
	ld.global.u32 	%r1, [table];
	ret;
}
	.file	1 "/lab/kernels/k.cu"
	.section	.debug_str
	{
info_string0:
.b8 67,0
	}
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (".loc\t1 5 3", ".loc\t1 9 1"),
        ("NVVM Compiler", "NVVM Compiler 2"),
        (".global .align 4 .u32 UNUSED = 32;\n", ""),
        ("UNUSED = 32", "OTHER = 64"),
        (".b8 67,0", ".b8 66,1,0"),
        ("$L__tmp1:\n", ""),
        ("/lab/kernels/k.cu", "/lab/kernels/other.cu"),
    ],
)
def test_what_changes_no_instruction_is_no_change(old, new):
    assert old in PTX
    assert ptx_hash(PTX.replace(old, new)) == ptx_hash(PTX)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ld.global.u32", "ld.global.ca.u32"),
        ("{1, 2, 3, 4}", "{1, 2, 3, 5}"),
        ("sm_90", "sm_100"),
        ("[table]", "[table+4]"),
        ("\tret;\n", ""),
    ],
)
def test_what_a_gpu_executes_otherwise_is_a_change(old, new):
    assert old in PTX
    assert ptx_hash(PTX.replace(old, new)) != ptx_hash(PTX)


def test_a_comment_in_a_kernel_is_no_change_and_another_constant_is(tmp_path, monkeypatch):
    stage, problem = find_stage("02"), PROBLEMS["ragged"]
    text = stage.source().text
    recorded = kernel_hash(stage, problem, "9.0")
    edited = []
    for change in ("// a remark\n" + text, text.replace("-INFINITY", "-1e30f", 1)):
        assert change != text
        monkeypatch.setattr(type(stage), "source", lambda self, t=change: Source(f"{self.id}.cu", t))
        edited.append(kernel_hash(stage, problem, "9.0"))

    assert edited[0] == recorded != edited[1]


def test_lines_of_a_recorded_profile():
    lines = recorded_lines("03_gqa_reuse", "ragged")

    assert set(lines["source"]) == {"recorded"} and (lines["value"] > 0).all()
    total = metrics.select(lines, metric="inst_executed")["value"].sum()
    assert total == metrics.value(
        recorded_metrics(stage="03_gqa_reuse", problem="ragged"), names.INSTRUCTIONS
    )
    with pytest.raises(FileNotFoundError, match=r"03_gqa_reuse on problem 'tiny' is .*: 00_baseline grouped"):
        recorded_lines("03", "tiny")


def test_a_report_carries_the_source_that_its_lines_are_of():
    sources = recorded_sources("03", "ragged")
    lines = recorded_lines("03", "ragged")

    assert set(sources) == {"03_gqa_reuse.cu", "paged_attention.cuh"} >= set(lines["file"])
    code = sources["03_gqa_reuse.cu"].splitlines()
    loads = metrics.select(lines, file="03_gqa_reuse.cu", metric="memory_l2_theoretical_sectors_global")
    most = loads.sort_values("value").tail(2)["line"]
    assert all("_shared[" in code[line - 1] and "_cache" in code[line - 1] for line in most)
    with pytest.raises(ncu.ProfileError, match=r"only \.ncu-rep carries sources"):
        ncu.read_sources(RECORDED / "h200" / "03_gqa_reuse" / "ragged.csv")


def test_what_was_measured_there_is_recorded_here(tmp_path):
    frame = recorded_metrics()
    assert set(frame["source"]) == {"recorded"} and set(frame["tool"]) == {"ncu", "events"}
    assert recorded_metrics(tmp_path).empty


def test_a_set_of_another_toolkit_is_not_judged(tmp_path):
    (tmp_path / "provenance.json").write_text(json.dumps({"nvrtc": "11.8"}))
    with pytest.raises(ValueError, match=r"NVRTC 11\.8"):
        changed_kernels(tmp_path)
    (tmp_path / "provenance.json").write_text(json.dumps({"nvrtc": compiler_version()}))
    with pytest.raises(ValueError, match="no kernels_ptx_sha256"):
        changed_kernels(tmp_path)
