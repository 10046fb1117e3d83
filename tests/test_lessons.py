"""What the notebooks call; expected figures are worked out by hand."""

import dataclasses
import re
from html.parser import HTMLParser

import pytest

from labs_common import lessons, metrics, tiers
from labs_common import metric_names as names
from labs_common.compare import Verdict
from labs_common.course import exercise_of
from labs_common.exercise import cut
from labs_common.ncu_rows import ProfileError
from labs_common.problem import PRESETS
from labs_common.reported import reported_metrics
from labs_common.source import Source
from labs_common.stages import STAGES, find_stage


def events(stage: str, nanoseconds: float, ceiling: float | None, problem: str = "seed", gpu: str = "h200"):
    common = {"source": "recorded", "tool": "events", "gpu": gpu, "problem": problem}
    rows = [
        {**common, "stage": stage, "kernel": metrics.ALL_KERNELS, "metric": names.TIME}
        | {"value": nanoseconds, "unit": "nsecond"}
    ]
    if ceiling is not None:
        rows.append({**common, "metric": names.PEAK_BANDWIDTH, "value": ceiling, "unit": "byte/second"})
    return metrics.build(rows)


def test_a_read_share_is_bytes_over_time_over_the_ceiling():
    # Keys and values: 2 x 64 x 2400 x 8 x 128 x 4 bytes; query and output: 2 x 64 x 32 x 128 x 4;
    # 150 table entries a sequence and its length: 64 x 151 x 4. In 1 ms, against twice that in a second.
    least = 1_258_291_200 + 2_097_152 + 38_656
    assert PRESETS["seed"].minimum_bytes == least
    stage = find_stage("03")

    (sentence,) = lessons.read_shares(stage, events(stage.id, 1e6, 2000 * least))

    assert sentence == (
        "03_gqa_reuse on H200, problem seed: 1,000.0 µs, 1,260 GB/s, 50 % of what a plain read reaches"
    )


def test_a_read_share_needs_a_ceiling_of_the_same_run_and_a_problem_larger_than_the_cache():
    stage = find_stage("03")
    other = events("02_vectorized", 1e6, 4e12, gpu="rtx_4090")

    assert lessons.read_shares(stage, metrics.concat([events(stage.id, 1e6, None), other])) == []
    assert lessons.read_shares(stage, events(stage.id, 1e6, 4e12, problem="tiny")) == []
    assert lessons.read_shares(stage, metrics.empty()) == []


def test_the_time_table_divides_by_the_stage_before():
    table = lessons.time_table(lessons.up_to(find_stage("03"), reported_metrics()))

    assert list(table["time"]) == ["119.98 ms", "7.50 ms", "4.95 ms", "3.35 ms"]
    assert list(table["times faster"]) == ["", "16.00", "1.52", "1.48"]
    assert list(table["DRAM-active cycles"]) == [
        "39.7 million",
        "39.2 million",
        metrics.ABSENT,
        "39.2 million",
    ]


def test_a_stages_kernels_are_added_up_in_its_time():
    table = lessons.time_table(metrics.select(reported_metrics(), stage="04_split_kv"))

    assert list(table["time"]) == ["3.94 ms"]  # 3.92 and 0.02256


def test_counts_are_those_of_the_kernel(simulator):
    problem = PRESETS["tiny"].replace(context_lengths=(8,))
    table = lessons.counts_table(lessons.count(["01_cooperative"], problem, simulator))["01_cooperative"]

    # head_dim 64: two warps, four query heads, eight tokens. A barrier instruction per warp, twice a token.
    assert table["block barriers"] == f"{2 * 2 * 4 * 8}"
    assert table["shuffles"] == f"{5 * 2 * 4 * 8}"
    assert table["shared memory stores"] == f"{2 * 4 * 8}"
    assert "asynchronous copies" not in table


def test_asynchronous_copies_have_rows_where_there_are_any(simulator):
    """8 tokens of 256 bytes for 2 heads, keys and values; tiles of 32 tokens that the last one fills.

    They begin 80 bytes behind a line, where a copy takes 16 wavefronts by an H200's counts.
    """
    problem = PRESETS["tiny"].replace(context_lengths=(8,))
    table = lessons.counts_table(lessons.count(["02_vectorized", "05_partitioned_gqa"], problem, simulator))

    copies = 2 * 2 * 32 * 256 // 512
    assert list(table.loc["asynchronous copies"]) == ["0", f"{copies}"]
    assert list(table.loc["wavefronts they take"]) == ["0", f"{16 * copies:,}"]


def test_a_figure_that_was_not_counted_says_so():
    table = lessons.counts_table(reported_metrics())

    assert set(table.loc["shuffles"]) == {metrics.ABSENT}
    assert set(table.loc["sectors per request"]) == {metrics.ABSENT}


def test_until_is_the_stage_and_those_before_it():
    assert lessons.until(find_stage("02")) == ["00_baseline", "01_cooperative", "02_vectorized"]
    assert lessons.until(STAGES[-1]) == [stage.id for stage in STAGES]


@pytest.fixture
def edition(tmp_path, monkeypatch):
    """Stage 02 as the student edition has it, and a folder for one's own kernels."""
    lab = find_stage("02").source()
    monkeypatch.setattr(
        type(find_stage("02")), "source", lambda stage: cut(lab, exercise_of("02_vectorized"))
    )
    return tmp_path, lab


def test_the_labs_kernel_is_run_where_it_is_whole(tmp_path, capsys):
    stage = find_stage("02")
    (tmp_path / "02_vectorized.cu").write_text("// mine", encoding="utf-8")

    assert lessons.kernel(stage, tmp_path) == stage.source() and capsys.readouterr().out == ""


def test_in_the_edition_your_kernel_is_run_once_it_is_there(edition, capsys):
    folder, lab = edition
    stage = find_stage("02")
    assert "TODO 1" in lessons.kernel(stage, folder).text
    assert "Nothing is written in 02_vectorized.cu yet" in capsys.readouterr().out

    (folder / "02_vectorized.cu").write_text(lab.text, encoding="utf-8")

    assert lessons.kernel(stage, folder).text == lab.text and capsys.readouterr().out == ""


def test_checking_a_kernel_that_is_not_there_or_empty_says_how_to_begin(edition, simulator, capsys):
    folder, lab = edition
    stage = find_stage("02")
    assert lessons.check_mine(stage, simulator, folder) is None
    assert 'start("02_vectorized") writes it' in capsys.readouterr().out

    (folder / "02_vectorized.cu").write_text(stage.source().text, encoding="utf-8")
    assert lessons.check_mine(stage, simulator, folder) is None
    assert "fill in its TODOs" in capsys.readouterr().out

    (folder / "02_vectorized.cu").write_text(lab.text, encoding="utf-8")
    assert lessons.check_mine(stage, simulator, folder).ok
    told = capsys.readouterr().out
    assert "step 1 done:" in told and "(right)" in told and "stretch: A scalar tail path" in told


def test_a_wrong_kernel_of_the_lab_is_an_error_and_yours_is_not(edition, monkeypatch, capsys):
    _, lab = edition
    wrong = Verdict(False, 1.0, 0.1, (0, 0, 0), "one row is wrong")
    lessons.judge(wrong, lab, find_stage("02"))
    assert "one row is wrong\nyour kernel is not right yet" in capsys.readouterr().out
    monkeypatch.undo()

    with pytest.raises(AssertionError, match="the lab's own 02_vectorized"):
        lessons.judge(wrong, lab, find_stage("02"))


@pytest.mark.parametrize(
    ("which", "text"),
    [(None, "_b_b."), (0, "_bab."), (1, "ab_b."), (-1, "ab_b."), (2, "abab."), (-3, "abab.")],
)
def test_changing_one_occurrence_or_all(which, text, capsys):
    assert lessons.change(Source("x.cu", "abab."), "a", "_", which).text == text
    assert ("“a” is not in x.cu" in capsys.readouterr().out) == (text == "abab.")


def test_your_counts_stand_beside_the_labs(edition, monkeypatch, capsys):
    folder, lab = edition
    stage, tiny = find_stage("02"), PRESETS["tiny"]
    monkeypatch.undo()
    assert list(lessons.count_mine(stage, tiny, folder)) == ["the lab's"]

    (folder / "02_vectorized.cu").write_text(lab.text, encoding="utf-8")
    table = lessons.count_mine(stage, tiny, folder)
    assert list(table) == ["the lab's", "yours"] and (table["yours"] == table["the lab's"]).all()

    (folder / "02_vectorized.cu").write_text("this is no CUDA", encoding="utf-8")
    assert list(lessons.count_mine(stage, tiny, folder)) == ["the lab's"]
    assert "does not run through" in capsys.readouterr().out


def test_a_problem_without_counts_in_an_edition_is_said_to_have_none(edition, capsys):
    folder, lab = edition
    stage, odd = find_stage("02"), PRESETS["tiny"].replace(context_lengths=(3,), name="odd")
    (folder / "02_vectorized.cu").write_text(lab.text, encoding="utf-8")

    assert list(lessons.count_mine(stage, odd, folder)) == ["yours"]
    assert "no counts of the lab's kernel for odd: batch 1" in capsys.readouterr().out


def test_your_own_plan_is_what_is_counted(edition, monkeypatch):
    folder, lab = edition
    stage, tiny = find_stage("02"), PRESETS["tiny"]
    monkeypatch.undo()
    (folder / "02_vectorized.cu").write_text(lab.text, encoding="utf-8")

    def with_shared_memory(entry, problem, device):
        usual = stage.planner(entry, problem, device)
        launch = dataclasses.replace(usual.launches[0], shared_bytes=100 * 1024)
        return dataclasses.replace(usual, launches=(launch,))

    table = lessons.occupancy_mine(stage, tiny, folder, with_shared_memory)

    assert list(table) == ["the lab's: vectorized", "yours: vectorized"]
    assert list(table.loc["shared bytes a block"]) == ["0", "102,400"]
    assert list(table.loc["blocks on an SM"]) == ["32", "2"]
    assert list(table.loc["theoretical occupancy, %"]) == ["50", "3"]
    same = lessons.occupancy_mine(stage, tiny, folder)
    assert (same["yours: vectorized"] == same["the lab's: vectorized"]).all()
    counts = lessons.count_mine(stage, tiny, folder, with_shared_memory)
    assert (counts["yours"] == counts["the lab's"]).all()


def test_explaining_is_per_gpu_and_says_when_nothing_is_recorded(capsys):
    stage = find_stage("03")

    lessons.explain_stage(stage, reported_metrics())
    told = capsys.readouterr().out
    assert "DRAM-bound" in told.replace("-\n", "-") and "02_vectorized (" not in told
    assert max(map(len, told.splitlines())) <= lessons.LINE

    lessons.explain_stage(stage, metrics.empty())
    assert "no profile" in capsys.readouterr().out


@pytest.mark.parametrize("stage", STAGES[:5], ids=lambda stage: stage.id)
def test_recorded_profiles_of_the_first_stages_are_there(stage):
    frame = lessons.recorded_profiles(lessons.until(stage))

    assert set(frame["stage"]) == set(lessons.until(stage))
    assert set(frame["source"]) == {"recorded"} and set(frame["problem"]) == {"seed"}


def test_code_is_shown_in_a_fixed_width_font_and_whole(monkeypatch):
    class Text(HTMLParser):
        found = ""

        def handle_data(self, data):
            self.found += data

    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    lessons.show_kernel(find_stage("05"))
    parser = Text()
    parser.feed(shown[0]["text/html"])

    assert parser.found.strip() == find_stage("05").source().text.strip()
    assert re.match(r'<pre style="[^"]*font-family:[^";]*monospace', shown[0]["text/html"])
    assert "05_partitioned_gqa.cu" in shown[0]["text/plain"]


def test_runs_stand_side_by_side_in_the_order_given():
    def run(requests):
        rows = [{"metric": names.GLOBAL_LOAD_REQUESTS, "value": requests, "unit": "request"}]
        rows += [{"metric": names.GLOBAL_LOAD_SECTORS, "value": 16 * requests, "unit": "sector"}]
        return metrics.build(
            rows, source="simulated", tool="simulator", gpu="h200", stage="05_partitioned_gqa", kernel="k"
        )

    table = lessons.side_by_side({"packed": run(3.0), "NHD": run(2.0)})

    assert list(table.columns) == ["packed", "NHD"]
    assert list(table.loc["global load requests"]) == ["3", "2"]
    assert list(table.loc["sectors per request"]) == ["16.00", "16.00"]
    with pytest.raises(ValueError, match="runs"):
        lessons.side_by_side({})


def test_where_nothing_can_be_measured_the_reason_is_told(monkeypatch, capsys):
    counters = tiers.Ability(tiers.COUNTERS, False, "no driver", "")
    monkeypatch.setattr(tiers, "tiers", lambda: (counters,))

    assert lessons.measured_profiles(["00_baseline"]).empty
    assert capsys.readouterr().out == "not measured on this machine: no driver\n"


def test_only_what_was_measured_is_shown_as_measured(monkeypatch, capsys):
    recorded = lessons.recorded_profiles(["06_async_ring", "07_tensor_core"], problem="seed-float16")
    asked = []

    def profile(stage, problem):
        asked.append((stage.id, problem.name, problem.dtype))
        if stage.id == "05_partitioned_gqa":
            raise ProfileError("no kernel was profiled")
        rows = metrics.select(recorded, stage=stage.id)
        return rows.assign(source="measured") if stage.id == "06_async_ring" else rows

    monkeypatch.setattr(tiers, "tiers", lambda: (tiers.Ability(tiers.COUNTERS, True, "", ""),))
    monkeypatch.setattr(tiers, "profile", profile)
    found = lessons.measured_profiles(
        ["05_partitioned_gqa", "06_async_ring", "07_tensor_core"], "seed-float16"
    )

    assert set(found["stage"]) == {"06_async_ring"} and set(found["source"]) == {"measured"}
    assert {problem for _, problem, _ in asked} == {"seed-float16"}
    told = capsys.readouterr().out
    assert "05_partitioned_gqa is not measured: no kernel was profiled" in told
    assert "07_tensor_core is not measured: its kernel has no body yet" in told
