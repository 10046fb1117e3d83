"""Profiles in every form that Nsight Compute has, with the traits of real ones from 2020 to 2025."""

import lzma
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from labs_common import metric_names as names
from labs_common import metrics, ncu
from labs_common.ncu_rows import base_name, short_names, stage_of

FIXTURES = Path(__file__).parent / "fixtures" / "ncu"
PARTIAL, MERGE = "paged_attention_split_kv", "paged_attention_split_kv_merge"
SOL, MEMORY = "GPU Speed Of Light Throughput", "Memory Workload Analysis"


def read(name, **options):
    return ncu.read_profile(FIXTURES / name, **options)


# The details page: C2, C4


def test_one_display_name_means_two_metrics():
    frame = read("details.csv")

    assert metrics.value(frame, names.MEMORY_PCT, section=SOL) == 61.84
    assert metrics.value(frame, "dram__bytes.sum.per_second", section=MEMORY) == 196_456_177_859.63
    assert metrics.value(frame, names.TIME) == 21_058_944


def test_ragged_rows_rules_and_text_values():
    profile = ncu.read_parts(FIXTURES / "details.csv")

    assert len(profile.metrics) == 18
    assert metrics.one(profile.metrics, "launch__func_cache_config")["text"] == "CachePreferNone"
    assert metrics.value(profile.metrics, "launch__grid_size") == 1024
    assert list(profile.rules["rule"]) == ["SOLBottleneck", "MemoryCacheAccessPattern"]
    assert profile.rules["message"][0] == 'Memory is busier than compute, by far: "DRAM" is the limit.'
    assert profile.rules["message"][1] == "Only 8.0 of 32 bytes\nof a sector are used."
    assert profile.rules["speedup_pct"][1] == 45.14 and math.isnan(profile.rules["speedup_pct"][0])


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        ("gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed", "n/a in the report"),
        (names.ACHIEVED_OCCUPANCY, "nan in the report"),
        (names.THEORETICAL_OCCUPANCY, "empty in the report"),
    ],
)
def test_absent_values_are_absent_with_their_reason(metric, reason):
    row = metrics.one(read("details.csv"), metric)

    assert math.isnan(row["value"]) and row["reason"] == reason


def test_a_metric_that_is_not_there_is_no_row():
    assert metrics.one(read("details.csv"), names.L1_PCT) is None


def test_the_form_of_2020():
    frame = read("details_2020.csv")

    assert metrics.value(frame, "dram__cycles_elapsed.avg.per_second") == 772_656_250
    assert metrics.value(frame, names.COMPUTE_PCT, section=SOL) == 39.6
    assert metrics.value(frame, names.TIME) == 9696


def test_numbers_of_a_machine_with_decimal_commas():
    frame = read("decimal_comma.csv")

    assert metrics.value(frame, names.TIME) == 117_344
    assert metrics.value(frame, names.DRAM_PCT) == 28.07
    assert metrics.value(frame, "smsp__inst_executed.sum") == 1_234_567


# Logs: C3, C5, C6, C7


def test_rows_that_a_program_prints_are_no_profile():
    frame = read("log_with_forged_table.txt", gpu="h200", problem="s1")

    assert set(frame["kernel"]) == {PARTIAL, MERGE}
    assert set(frame["stage"]) == {"04_split_kv"}
    assert metrics.value(frame, names.TIME, launch=0) == 1_558_016
    assert metrics.value(frame, names.TIME, kernel=MERGE) == 12_480
    assert (frame["gpu"] == "h200").all() and (frame["problem"] == "s1").all()


def test_launches_of_a_log_are_grouped_by_the_stated_rule():
    grouped = metrics.group_launches(read("log_with_forged_table.txt"))

    row = metrics.one(grouped, names.TIME, kernel=PARTIAL)
    assert row["value"] == 1_547_104
    assert row["reason"] == "median of 1 launches, first 1 left out as warm-up"


def test_a_table_that_only_the_program_printed_is_refused(tmp_path):
    text = (FIXTURES / "log_with_forged_table.txt").read_text()
    log = tmp_path / "forged.log"
    log.write_text(text[: text.index("done==PROF==")] + "==PROF== Disconnected from process 417\n")

    with pytest.raises(ncu.NothingProfiled, match=r"where programs print.*--log-file"):
        ncu.read_profile(log)


def test_two_tables_after_each_other_are_refused(tmp_path):
    log = tmp_path / "two.csv"
    log.write_text((FIXTURES / "details.csv").read_text() * 2)

    with pytest.raises(ncu.ProfileError, match=r"2 CSV headers, expected one.*--log-file"):
        ncu.read_profile(log)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("no_permission.log", ncu.CountersForbidden, "not measured.*NVreg_RestrictProfilingToAdminUsers=0"),
        ("no_kernel.log", ncu.NothingProfiled, "0 kernels matched; seen: cupy_.*, paged_attention_baseline"),
        (
            "child_process.log",
            ncu.NothingProfiled,
            "0 kernels matched; none was seen.*--target-processes all",
        ),
    ],
)
def test_a_failed_run_says_why_and_what_to_do(name, error, message):
    with pytest.raises(error, match=message):
        read(name)


def test_other_errors_are_quoted():
    problem = ncu.log_problem("==PROF== Connected\n==ERROR== Failed to open the report file.\n")

    assert "Failed to open the report file." in str(problem)
    assert ncu.log_problem("==PROF== Disconnected") is None


# The raw page and summaries


def test_the_raw_page_has_its_units_in_a_row_of_their_own():
    frame = read("raw.csv")

    assert set(frame["gpu"]) == {"h200"} and set(frame["stage"]) == {"03_gqa_reuse"}
    first = metrics.select(frame, launch=0)
    assert metrics.value(first, names.DRAM_READ_BYTES) == 537_990_000
    assert metrics.value(first, names.TIME) == 430_000
    assert metrics.value(first, "smsp__cycles_elapsed.avg.per_second") == 1.71e9
    assert metrics.value(first, "smsp__inst_executed.sum") == 173_316_096
    assert metrics.one(first, "launch__func_cache_config")["text"] == "cudaFuncCachePreferNone"


def test_another_name_of_a_metric_serves_where_the_canonical_one_is_absent():
    frame = read("raw.csv")

    assert metrics.value(frame, names.DRAM_PCT, launch=0) == 28.07
    other = metrics.select(frame, launch=0)
    other = other[other["metric"] == "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"]
    assert other["value"].tolist() == [28.05]
    assert frame.loc[(frame["launch"] == 1) & (frame["metric"] == names.DRAM_PCT), "value"].tolist() == [
        28.31
    ]


def test_an_occupancy_of_nothing_is_not_believed_of_a_kernel_that_ran(tmp_path):
    """As Nsight Compute 2025.3.1 said of 49,152 bytes of dynamic and 256 of static memory (S1-float8)."""
    columns = ("launch__occupancy_limit_shared_mem", names.THEORETICAL_OCCUPANCY, names.WAVES, names.TIME)
    rows = (("ID", "Kernel Name", *columns), ("", "", "block", "%", "", "ms"))
    launches = (("0", "k", "0", "0", "nan", "0.1"), ("1", "k", "2", "25", "0.97", "0.1"))
    path = tmp_path / "raw.csv"
    path.write_text("\n".join(",".join(f'"{cell}"' for cell in row) for row in (*rows, *launches)))

    frame = ncu.read_profile(path, gpu="h200")
    refused, told = (metrics.select(frame, launch=number) for number in (0, 1))

    for name in columns[:3]:
        assert np.isnan(metrics.value(refused, name))
        assert "no block" in metrics.one(refused, name)["reason"]
    assert metrics.value(refused, names.TIME) == metrics.value(told, names.TIME) == 100_000
    assert [metrics.value(told, name) for name in columns[:3]] == [2, 25, 0.97]


def test_a_raw_page_without_units_is_refused(tmp_path):
    lines = (FIXTURES / "raw.csv").read_text().splitlines()
    path = tmp_path / "raw.csv"
    path.write_text("\n".join(line for line in lines if not line.startswith('"",')))

    with pytest.raises(ncu.ProfileError, match="row of units"):
        ncu.read_profile(path)


@pytest.mark.parametrize("name", ["summary.csv", "summary.txt"])
def test_summaries_give_averages_per_launch_shape(name):
    frame = read(name)

    time = metrics.one(frame, names.TIME)
    assert time["value"] == 32_050 and time["reason"] == "average of 14 launches"
    assert metrics.value(frame, names.ACHIEVED_OCCUPANCY, launch=1) == 42
    assert set(frame["kernel"]) == {"scale_rows"} and set(frame["gpu"]) == {"cc_11_0"}


def test_the_summary_of_2020_repeats_its_kernels_for_each_section():
    frame = read("summary_2020.txt")

    assert set(frame["launch"]) == {0} and set(frame["kernel"]) == {"trace"}
    assert metrics.value(frame, "smsp__cycles_elapsed.avg.per_second") == 766_753_667
    assert metrics.value(frame, names.TIME) == 997_685_000
    assert metrics.value(frame, names.REGISTERS) == 73
    assert metrics.value(frame, "launch__shared_mem_config_size") == 16_384


# The text report: C1


def test_the_text_report_kernel_by_kernel():
    profile = ncu.read_parts(FIXTURES / "report.txt")
    first, second = (metrics.select(profile.metrics, launch=n) for n in (0, 1))

    assert set(first["kernel"]) == {"fill_kernel"} and set(second["kernel"]) == {"square"}
    assert metrics.value(first, "dram__cycles_elapsed.avg.per_second") == 1.21e9
    assert metrics.value(first, names.TIME) == 14_460
    assert metrics.value(first, "launch__shared_mem_config_size") == 32_770
    assert metrics.value(second, "smsp__cycles_elapsed.avg.per_second") == 585e6
    assert metrics.value(second, "dram__bytes.sum.per_second") == 197.74e9
    row = metrics.one(second, names.DRAM_PCT)
    assert math.isnan(row["value"]) and row["unit"] == "%" and "n/a" in row["reason"]
    assert list(profile.rules["kind"]) == ["OPT", "OPT", "INF"]
    assert profile.rules["message"][1] == "Only 1 full wave."
    assert (profile.rules["speedup_kind"][1], profile.rules["speedup_pct"][1]) == ("local", 21.63)


def test_the_text_report_of_2020_has_no_header_in_its_tables():
    frame = read("report_2020.txt")

    assert frame["kernel"].unique().tolist() == ["warmingup", "mathKernel1"]
    assert metrics.value(frame, names.DRAM_READ_BYTES, launch=0) == 9_450_000
    assert metrics.value(frame, names.DRAM_READ_BYTES, launch=1) == 94_500


def test_units_vary_by_kernel_in_tables_pasted_without_names():
    frame = read("pasted.txt")
    times = [metrics.value(frame, names.TIME, launch=n) for n in (0, 1)]

    assert sum(times) == 3_942_560
    assert round(100 * times[1] / sum(times), 2) == 0.57
    assert metrics.value(frame, names.MEMORY_PCT, launch=1) == 85.68


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("         ms         3.92", "    parsec         3.92", "Duration.*unit 'parsec' is unknown"),
        ("73.41", "7,3.41", "has ',' where no thousands"),
        (
            "    Memory Throughput                 %        73.41",
            "    Memory Throughput of it %          73.41",
            "fit",
        ),
    ],
)
def test_nothing_is_guessed(tmp_path, old, new, message):
    text = (FIXTURES / "pasted.txt").read_text()
    assert old in text
    path = tmp_path / "p.txt"
    path.write_text(text.replace(old, new))

    with pytest.raises(ncu.ProfileError, match=message):
        ncu.read_profile(path)


def test_an_ambiguous_number_needs_to_be_told(tmp_path):
    path = tmp_path / "one.csv"
    head = (FIXTURES / "decimal_comma.csv").read_text().splitlines()[:2]
    path.write_text("\n".join(head))

    with pytest.raises(ncu.ProfileError, match=r"'117\.344' is ambiguous"):
        ncu.read_profile(path)
    assert metrics.value(ncu.read_profile(path, decimal=","), names.TIME) == 117_344
    assert metrics.value(ncu.read_profile(path, decimal="."), names.TIME) == 117.344
    with pytest.raises(ValueError, match="decimal=';'"):
        ncu.read_profile(path, decimal=";")


# Files that are something else: C8


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"SQLite format 3\0more", "SQLite"),
        (b"\x7fELF\x02", "a program"),
        (b"\x00\x01\x02", "a binary file.*--import"),
        (b"caf\xe9 au lait", "no UTF-8 text"),
        (b"", "empty"),
        (b"hello\n", "no table of metrics.*Readable are"),
        (b"\xfd7zXZ\x00garbage", "damaged"),
        (lzma.compress(b"NVR\0" + bytes(100))[:-20], "cut off|damaged"),
    ],
)
def test_other_files_are_named_for_what_they_are(tmp_path, content, message):
    path = tmp_path / "file.bin"
    path.write_bytes(content)

    with pytest.raises(ncu.ProfileError, match=message):
        ncu.read_profile(path)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_report_file_that_cannot_be_loaded_says_how_to_export_it(tmp_path, compressed):
    content = b"NVR\0" + b"\x00\x02\x00\x00" + bytes(64)
    path = tmp_path / "broken.ncu-rep.xz"
    path.write_bytes(lzma.compress(content) if compressed else content)

    with pytest.raises(
        ncu.ProfileError, match=r"ncu --import FILE --csv --page raw|holds no profiled kernel"
    ):
        ncu.read_profile(path)


def test_text_as_powershell_redirects_it_and_compressed_text(tmp_path):
    text = (FIXTURES / "pasted.txt").read_text()
    wide, packed = tmp_path / "wide.txt", tmp_path / "packed.txt.xz"
    wide.write_bytes(b"\xff\xfe" + text.encode("utf-16-le"))
    packed.write_bytes(lzma.compress(text.encode()))

    for path in (wide, packed):
        assert metrics.value(ncu.read_profile(path), names.TIME, launch=0) == 3_920_000


def test_the_labs_own_table_is_read_too(tmp_path):
    frame = read("raw.csv")
    metrics.save_csv(frame, tmp_path / "own.csv")

    assert len(ncu.read_profile(tmp_path / "own.csv", only=[names.TIME])) == 2
    assert len(ncu.read_profile(tmp_path / "own.csv")) == len(frame)


def test_only_keeps_names_and_prefixes():
    assert set(read("raw.csv", only=["launch__*", names.TIME])["metric"]) == {
        "launch__func_cache_config",
        names.TIME,
    }
    assert names.DRAM_PCT in set(read("raw.csv", only=ncu.compact())["metric"])


# Report files, with a stand-in for the package that loads them


PLACES = {16: ("/lab/k.cu", 7), 32: ("/lab/k.cu", 7), 48: ("/lab/k.cu", 9)}


class Value:
    def __init__(self, value, unit="", ids=None, instances=()):
        self._value, self._unit, self._ids, self._instances = value, unit, ids, instances

    def value(self, i=None):
        return self._value if i is None else self._instances[i]

    def unit(self):
        return self._unit

    def num_instances(self):
        return len(self._instances)

    def has_correlation_ids(self):
        return self._ids is not None

    def correlation_ids(self):
        return Value(None, instances=self._ids)


class Action:
    NameBase_DEMANGLED = 0

    def __init__(self, values):
        self._values = values

    def name(self, base=None):
        return "void paged_attention_gqa_reuse(Problem, Inputs, float *)"

    def metric_names(self):
        return list(self._values)

    def __getitem__(self, name):
        return self._values[name]

    def source_info(self, pc):
        place = PLACES.get(pc)
        return place and SimpleNamespace(file_name=lambda: place[0], line=lambda: place[1])

    def sections(self):
        section = SimpleNamespace(
            name=lambda: "Speed", header_metrics=lambda: [names.TIME], body_metrics=lambda: [names.DRAM_PCT]
        )
        return [section]

    def rule_results_as_dicts(self):
        return [
            {"rule_identifier": "R", "section_identifier": "S", "rule_message": {"message": "m", "type": 3}}
        ]


@pytest.fixture
def report_file(tmp_path, monkeypatch):
    values = {
        names.TIME: Value(3232.0, "ns"),
        "device__attribute_display_name": Value("NVIDIA H200"),
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": Value(28.0, "%"),
        names.DRAM_PCT: Value(math.nan, "%"),
        "launch__func_cache_config": Value("cudaFuncCachePreferNone"),
        "l1tex__t_sectors.sum": Value(12.0, "sectors"),
        "strange__metric": Value(1.0, "furlong"),
        "nvlink__ports": Value(None),
        "launch__kernel_name": Value("", instances=["paged_attention_gqa_reuse"]),
        "launch__note": Value(""),
        "launch__notes": Value("", instances=["a", "b"]),
        "derived__tempMetric": Value(math.inf, "%"),
        "derived__pct_occupancy_per_register_count": Value(7304.0, "%/register"),
        "group:memory__chart": Value("dram__bytes_read.sum,dram__bytes_write.sum"),
        "breakdown:sm__throughput": Value("", "%"),
        names.GLOBAL_LOAD_REQUESTS: Value(40.0),
        "sass__inst_executed_per_opcode": Value(9, "inst", ids=["SHFL", "FFMA"], instances=[4, 5]),
        "inst_executed": Value(70, "inst", ids=[16, 32, 48, 64], instances=[10, 20, 40, 5]),
        "smsp__pcsamp_sample_count": Value(9, "", ids=[16, 48], instances=[4, None]),
    }
    loaded = SimpleNamespace(load_report=lambda path: [[Action(values), Action(values)]])
    monkeypatch.setitem(sys.modules, "ncu_report", loaded)
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(b"NVR\0rest")
    return path


def test_a_report_file_gives_values_lines_and_rules(report_file):
    profile = ncu.read_parts(report_file, problem="s1")
    frame = metrics.select(profile.metrics, launch=1)

    assert set(frame["gpu"]) == {"h200"} and set(frame["kernel"]) == {"paged_attention_gqa_reuse"}
    assert set(frame["stage"]) == {"03_gqa_reuse"}
    time = metrics.one(frame, names.TIME)
    assert (time["value"], time["unit"], time["section"]) == (3232, "nsecond", "Speed")
    assert metrics.value(frame, names.DRAM_PCT) == 28
    assert metrics.one(frame, "l1tex__t_sectors.sum")["unit"] == "sector"
    assert metrics.one(frame, "strange__metric")["reason"].startswith("unit 'furlong' is unknown")
    assert metrics.one(frame, "nvlink__ports")["reason"] == "no value in the report"
    assert metrics.one(frame, "launch__kernel_name")["text"] == "paged_attention_gqa_reuse"
    for silent in ("launch__note", "launch__notes"):
        assert metrics.one(frame, silent)["reason"] == "empty in the report"
    assert metrics.one(frame, "derived__tempMetric")["reason"] == "inf in the report"
    assert metrics.one(frame, "derived__pct_occupancy_per_register_count")["unit"] == "%/register"
    assert not frame["metric"].str.startswith(("group:", "breakdown:")).any()
    assert metrics.one(frame, names.GLOBAL_LOAD_REQUESTS)["unit"] == "request"
    assert metrics.value(frame, "smsp__inst_executed_op_shuffle.sum") == 4
    assert metrics.value(frame, "smsp__inst_executed_op_barrier.sum") == 0
    assert metrics.value(frame, "inst_executed") == 70
    by_line = metrics.select(frame, metric="inst_executed", line=[7, 9])
    assert list(zip(by_line["line"], by_line["value"], strict=True)) == [(7, 30), (9, 40)]
    samples = metrics.select(frame, metric="smsp__pcsamp_sample_count", line=7)
    assert samples["value"].tolist() == [4] and samples["sampled"].all()
    assert list(profile.rules["kind"]) == ["OPT", "OPT"]


def test_a_report_file_without_lines_or_with_a_selection(report_file):
    frame = ncu.read_profile(report_file, only=[names.TIME], lines=False, source="measured", stage="x")

    assert frame["metric"].tolist() == [names.TIME] * 2
    assert set(frame["source"]) == {"measured"} and set(frame["stage"]) == {"x"}


# Names of kernels


@pytest.mark.parametrize(
    ("full", "short"),
    [
        ("paged_attention_gqa_reuse", "paged_attention_gqa_reuse"),
        ("paged_attention_gqa_reuse(Problem, Inputs, float *)", "paged_attention_gqa_reuse"),
        ("<unnamed>::down_kernel(const __half *, int, int)", "down_kernel"),
        (
            "void at::native::vectorized<(int)4, at::native::Add<float>, at::Array<char *, (int)2>>(int, T2)",
            "vectorized",
        ),
        ("copy_blocked[v1,cw51cXTLSU](Array<long long, 1, C, mutable, aligned>, long long)", "copy_blocked"),
        ("(anonymous namespace)::k(int)", "k"),
    ],
)
def test_a_kernel_is_known_by_its_function_name(full, short):
    assert base_name(full) == short


def test_instances_of_one_template_keep_their_full_names():
    both = ["void k<float>(int)", "void k<double>(int)", "other(int)"]

    assert short_names(both) == {both[0]: both[0], both[1]: both[1], "other(int)": "other"}


def test_kernels_know_their_stage():
    assert stage_of(PARTIAL) == stage_of(MERGE) == "04_split_kv"
    assert stage_of("paged_attention_baseline") == "00_baseline"
    assert stage_of("paged_attention_baselinex") == stage_of("fill_kernel") == ""


def test_reading_text_needs_neither_the_package_nor_a_gpu():
    code = (
        "import sys; sys.modules['ncu_report'] = None; sys.modules['cupy'] = None\n"
        "from labs_common.ncu import read_profile\n"
        f"print(len(read_profile({str(FIXTURES / 'details.csv')!r})))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert run.stdout.strip() == "18"
