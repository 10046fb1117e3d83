"""A student's own kernel: cut without its body, never overwritten, checked and helped step by step."""

import dataclasses
import re

import pytest

from labs_common import exercise, lessons
from labs_common.check import CHECK_PROBLEMS, NEGATIVE, Report, check_problems, set_apart
from labs_common.check import check as check_source
from labs_common.course import exercise_of
from labs_common.diagnose import Diagnosis
from labs_common.equal_runs import whole_sequences
from labs_common.exercise import (
    CutError,
    check,
    chosen_kernel,
    cut,
    hints,
    own_source,
    progress,
    regions,
    start,
)
from labs_common.faults import FAULTS, TOPICS
from labs_common.plans import Launch, Plan
from labs_common.problem import Problem
from labs_common.source import Source
from labs_common.stages import ALL_STAGES, find_stage

by_stage = pytest.mark.parametrize("stage", ALL_STAGES, ids=lambda s: s.id)


@by_stage
def test_a_cut_kernel_compiles_and_is_called_wrong(simulator, stage):
    source = cut(stage.source(), exercise_of(stage.id))

    report = check_source(source, stage, simulator, check_problems(stage)[:2])

    assert report.error is None
    assert not report.ok and all(result.error is None for result in report.results)
    assert "There is no answer yet" in report.diagnosis.sentence
    assert report.diagnosis.fault is None


@by_stage
def test_all_but_the_body_stays(stage):
    source, steps = stage.source(), exercise_of(stage.id).steps
    lines = source.text.splitlines()
    inside = {n for begin, end in regions(source) for n in range(begin + 1, end)}

    left = cut(source, exercise_of(stage.id)).text.splitlines()

    outside = [line for number, line in enumerate(lines) if number not in inside]
    added = iter(left)
    assert all(any(line == other for other in added) for line in outside)  # in order
    assert [line.split(":")[0].strip() for line in left if "// TODO" in line] == [
        f"// TODO {number}" for number in _in_file_order(steps)
    ]


def _in_file_order(steps):
    return [
        n
        for region in sorted({s.region for s in steps})
        for n, s in enumerate(steps, 1)
        if s.region == region
    ]


@by_stage
def test_cutting_twice_is_cutting_once(stage):
    once = cut(stage.source(), exercise_of(stage.id))

    assert cut(once, exercise_of(stage.id)) == once


@by_stage
def test_every_region_has_a_step_and_every_step_three_hints(stage):
    found = exercise_of(stage.id)

    assert {step.region for step in found.steps} == set(range(len(regions(stage.source()))))
    assert len(found.steps) >= 3 and found.stretch
    for number, step in enumerate(found.steps, 1):
        assert step.topics and set(step.topics) <= set(TOPICS)
        told = [hints(stage.id, number, level) for level in (1, 2, 3)]
        assert len(set(told)) == 3 and "?" in told[0]


_DECLARED = re.compile(r"^\s*(?:for \()?(?:const )?[\w<>]+[*&]? (\w+)(?:\[[^;]*)?(?: =|;|,)", re.MULTILINE)


@by_stage
def test_hints_use_no_variable_that_only_the_solution_has(stage):
    source, exercise = stage.source(), exercise_of(stage.id)
    given = set(re.findall(r"\w+", cut(source, exercise).text))
    lines = source.text.splitlines()
    bodies = "\n".join("\n".join(lines[begin + 1 : end]) for begin, end in regions(source))
    hidden = {name for name in _DECLARED.findall(bodies) if "_" in name} - given
    for number, step in enumerate(exercise.steps, 1):
        for hint in step.hints:
            introduced = set(re.findall(r"(\w+) =", hint))
            assert not hidden & set(re.findall(r"\w+", hint)) - introduced, f"step {number}: {hint}"


def test_steps_in_the_kernel_itself_are_kept():
    source = Source(
        "x.cu", "int f() {\n  // BEGIN SOLUTION\n  // STEP 1: think\n  return 1;\n  // END SOLUTION\n}\n"
    )

    assert cut(source).text == (
        "int f() {\n  // BEGIN SOLUTION\n  // STEP 1: think\n  return {};\n  // END SOLUTION\n}\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int a;\n", "has no BEGIN SOLUTION"),
        ("// BEGIN SOLUTION\n", "line 1: BEGIN SOLUTION without END"),
        ("\n// END SOLUTION\n", "line 2: END SOLUTION without BEGIN"),
        ("// BEGIN SOLUTION\n// BEGIN SOLUTION\n// END SOLUTION\n", "line 2: BEGIN SOLUTION within"),
    ],
)
def test_a_kernel_that_cannot_be_cut_says_where(text, message):
    with pytest.raises(CutError, match=message):
        cut(Source("x.cu", text))


def test_a_step_of_a_region_that_is_not_there():
    with pytest.raises(CutError, match="1 regions"):
        cut(find_stage(0).source(), exercise_of("05_partitioned_gqa"))


def test_start_never_overwrites_unless_told(tmp_path, capsys):
    path = start("03_gqa_reuse", tmp_path)
    assert path == tmp_path / "03_gqa_reuse.cu" and "TODO 3" in path.read_text()
    path.write_text("my work")

    assert start(3, tmp_path) == path
    assert path.read_text() == "my work" and "is yours" in capsys.readouterr().out

    for number in (1, 2):
        start(3, tmp_path, overwrite=True)
        assert "TODO 1" in path.read_text()
        assert (tmp_path / f"03_gqa_reuse.before-{number}.cu").exists()
        path.write_text(f"my work {number}")
    assert (tmp_path / "03_gqa_reuse.before-1.cu").read_text() == "my work"
    assert (tmp_path / "03_gqa_reuse.before-2.cu").read_text() == "my work 1"


def test_beginning_anew_with_an_untouched_kernel_keeps_nothing_twice(tmp_path):
    start(0, tmp_path)
    start(0, tmp_path, overwrite=True)

    assert [path.name for path in tmp_path.iterdir()] == ["00_baseline.cu"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 0), "step=0: 03_gqa_reuse has steps 1 to 3"),
        ((3, 4), "step=4"),
        ((3, "1"), "step='1'"),
        ((3, 1, 4), "level=4: there are levels 1 to 3"),
        ((3, 1, True), "level=True"),
        ((10, 1), "no stage called"),
    ],
)
def test_a_hint_that_is_not_there(arguments, message):
    with pytest.raises(ValueError, match=message):
        hints(*arguments)


def test_checking_ones_own_kernel(tmp_path, simulator, capsys):
    with pytest.raises(FileNotFoundError, match=r'start\("00_baseline"\) writes it'):
        check(0, simulator, tmp_path)
    path = start(0, tmp_path)
    path.write_text(find_stage(0).source().text.replace("score *= problem.scale;", ""))

    report = check(0, simulator, tmp_path)

    printed = " ".join(capsys.readouterr().out.split())
    assert not report.ok and report.diagnosis.fault == "unscaled"
    assert "diagnosis: The output is what comes out when scores are not multiplied" in printed
    assert "step 1 done" in printed and "step 2 not yet" in printed and "step 3 done" in printed
    path.write_text(find_stage(0).source().text)
    assert check(0, simulator, tmp_path).ok
    assert "step 2 done" in capsys.readouterr().out


def test_a_finding_is_told_once_and_names_ones_own_file(simulator, capsys, monkeypatch):
    folder = exercise.KERNELS / "mine"
    text = lessons.change(find_stage(3).source(), "__syncthreads();", which=0).text
    own = Source("03_gqa_reuse.cu", text, "kernels/mine/03_gqa_reuse.cu")
    monkeypatch.setattr(exercise, "own_source", lambda *_: own)

    report = check(3, simulator, folder)

    printed = " ".join(capsys.readouterr().out.split())
    assert "/lab/" not in printed and "/lab/" not in report.diagnosis.sentence
    for result in report.results:
        for finding in result.findings:
            assert finding.file == "kernels/mine/03_gqa_reuse.cu"
            assert printed.count(str(finding)) <= sum(finding in one.findings for one in report.results)
    place = re.escape(report.results[0].findings[0].place)
    assert re.search(rf"diagnosis: racecheck at {place}, as told above\. Two warps use", printed)


def test_a_fault_that_ends_a_launch_is_told_once(simulator, capsys, tmp_path):
    path = start(0, tmp_path)
    path.write_text(find_stage(0).source().text.replace("if (dim >= problem.head_dim) return;", ""))

    report = check(0, simulator, tmp_path)

    printed = " ".join(capsys.readouterr().out.split())
    stopped = next(result for result in report.results if result.verdict is None)
    assert stopped.error == "a check stopped it" and len(stopped.findings) == 1
    assert printed.count(str(stopped.findings[0])) == 1
    assert "a check stopped it: memcheck: " in printed and "diagnosis: memcheck at 00_baseline.cu:" in printed


def four_warps(entry, problem, device):
    plan = find_stage(2).plan(problem, device)
    grid = (-(-problem.query_heads // 4), problem.batch, 1)
    return dataclasses.replace(plan, launches=(Launch(entry, grid, (128, 1, 1)),))


def any_head_dim(entry, problem, device):
    launch = Launch(entry, (problem.query_heads, problem.batch, 1), (32, 1, 1))
    return Plan((launch,), {"CHUNKS_PER_LANE": -(-problem.head_dim // 128)})


def test_a_stretch_exercise_brings_its_own_launch(tmp_path, simulator, capsys):
    path = start(2, tmp_path)
    edits = (
        (
            "query_head = blockIdx.x;",
            "query_head = blockIdx.x * 4 + threadIdx.x / WARP_SIZE;\n"
            "if (query_head >= problem.query_heads) return;",
        ),
        ("lane = threadIdx.x;", "lane = threadIdx.x % WARP_SIZE;"),
    )
    source = find_stage(2).source()
    for old, new in edits:
        source = lessons.change(source, old, new)
    path.write_text(source.text)

    assert check(2, simulator, tmp_path, planner=four_warps).ok
    printed = " ".join(capsys.readouterr().out.split())
    assert "stretch: A scalar tail path" in printed and "check(…, planner=…, problems=[…])" in printed
    assert not check(2, simulator, tmp_path).ok
    assert "stretch" not in capsys.readouterr().out


def test_problems_that_the_stage_refuses_take_a_plan_of_ones_own(tmp_path, simulator, capsys):
    path = start(2, tmp_path)
    path.write_text(find_stage(2).source().text)
    odd = [Problem(4, 2, 6, 8, (13,), name="head_dim 6")]

    with pytest.raises(ValueError, match="nothing was run: head_dim=6: this stage takes multiples of 4"):
        check(2, simulator, tmp_path, problems=odd)
    report = check(2, simulator, tmp_path, planner=any_head_dim, problems=odd)

    assert "misaligned" in report.results[0].findings[0].message
    assert "multiple of its size: 16 bytes" in " ".join(capsys.readouterr().out.split())


def states(simulator, **changes):
    report = check_source(find_stage(4).source(), find_stage(4), simulator, CHECK_PROBLEMS[:1])
    return [state.done for state in progress(dataclasses.replace(report, **changes))]


def test_a_plan_that_cannot_be_called_is_refused(tmp_path, simulator):
    (tmp_path / "02_vectorized.cu").write_text(find_stage(2).source().text)

    with pytest.raises(ValueError, match=r"<lambda>\(problem, device\): .* with \(entry, problem, device\)"):
        check(2, simulator, tmp_path, planner=lambda problem, device: None)


def whole_sequences_plan(entry, problem, device):
    """The first stretch exercise of 08 as it is told."""
    usual = find_stage(8).planner(entry, problem, device)
    runs = whole_sequences(problem.context_lengths, len(usual.tables["pieces"]) // problem.batch)
    tables = {
        "segments": runs.segments,
        "block_segments": runs.block_segments,
        "pieces": runs.pieces,
    }
    first = dataclasses.replace(usual.launches[0], grid=(len(runs.block_segments) - 1, 1, 1))
    return dataclasses.replace(usual, launches=(first, usual.launches[1]), tables=tables)


def every_second_segment(entry, problem, device):
    """A plan that leaves tokens out."""
    usual = find_stage(8).planner(entry, problem, device)
    segments = usual.tables["segments"].copy()
    segments[1::2, 2] = segments[1::2, 1]
    return dataclasses.replace(usual, tables={**usual.tables, "segments": segments})


def test_a_plan_of_whole_sequences_for_08(tmp_path, simulator, capsys):
    (tmp_path / "08_balanced_plan.cu").write_text(find_stage(8).source().text)

    report = check(8, simulator, tmp_path, planner=whole_sequences_plan)

    assert report.ok and len(report.results) == len(check_problems(find_stage(8)))


def test_a_wrong_plan_is_not_the_kernels_fault(tmp_path, simulator, capsys):
    stage = find_stage(8)
    path = tmp_path / "08_balanced_plan.cu"
    path.write_text(stage.source().text)
    problems = check_problems(stage)[:1]

    report = check(8, simulator, tmp_path, planner=every_second_segment, problems=problems)
    told = " ".join(capsys.readouterr().out.split())

    assert not report.ok and (report.diagnosis is None or report.diagnosis.topic is None)
    assert (
        "every_second_segment's plan; with the lab's own, on its usual problems, your kernel is right" in told
    )
    assert "what is wrong is the plan" in told and "step 1" not in told

    path.write_text(stage.source().text.replace("segment->end - tile", "TILE_TOKENS"))
    check(8, simulator, tmp_path, planner=every_second_segment, problems=problems)
    assert "it cannot be told whether plan or kernel is wrong" in " ".join(capsys.readouterr().out.split())


def test_what_only_the_wrong_problems_have_is_told(simulator):
    """Values of an 8-bit cache with even and odd dimensions mixed up: all 16-bit problems are right."""
    stage = find_stage("07")
    mixed = lessons.change(stage.source(), "0x3120", "0x3210")

    report = check_source(mixed, stage, simulator, diagnose=False)

    assert [one.problem.name for one in report.results if not one.ok] == ["fp8 cache"]
    told = set_apart(report.results).sentence
    assert "“fp8 cache” is not: only there the cache's numbers are float8_e4m3fn" in told
    right = len(report.results) - 1
    whys = {state.why for state in progress(report)}
    assert whys == {f"cannot be told yet; {right} of {right + 1} problems are right"}


def test_a_known_fault_leaves_the_other_steps_done(simulator):
    """Steps of 04: pages, heads and splits; scores and softmax; merge."""

    def named(topic):
        return Diagnosis("some", topic, "a sentence")

    assert states(simulator) == [True, True, True]
    assert states(simulator, error="x", diagnosis=named("heads")) == [False, True, True]
    assert states(simulator, error="x", diagnosis=named("splits")) == [False, True, True]
    assert states(simulator, error="x", diagnosis=named("softmax")) == [True, False, True]
    assert states(simulator, error="x", diagnosis=named("merge")) == [True, True, False]
    assert states(simulator, error="x", diagnosis=named(None)) == [None, None, None]
    assert states(simulator, error="does not compile") == [None, None, None]


@pytest.mark.parametrize(
    ("stage", "fault", "topic", "done", "why"),
    [
        (8, "kv_head_0", "heads", [None, None, True], "belong together, here or in step 2"),
        (8, "tail_not_masked", "pages", [True, False, True], None),
        (8, "first_page_only", "pages", [False, True, True], None),
        (9, "divided_in_the_split", "merge", [False, True, True], None),
        (
            9,
            "combine_adds_sums",
            "merge",
            [None, True, None],
            "putting the splits together, here or in step 3",
        ),
        (5, "combine_adds_sums", "merge", [None, True, True, None], "here or in step 4"),
    ],
)
def test_a_topic_of_several_steps_is_left_open(stage, fault, topic, done, why):
    report = Report(
        find_stage(stage).id, "x.cu", "none", error="x", diagnosis=Diagnosis(fault, topic, "some")
    )

    states = progress(report)

    assert [state.done for state in states] == done
    assert why is None or states[0].why.endswith(why)


def test_every_fault_of_a_step_is_known():
    named = {name for stage in ALL_STAGES for step in exercise_of(stage.id).steps for name in step.faults}

    assert named <= {fault.name for fault in FAULTS}


def test_a_race_between_given_lines_leaves_the_steps_right(simulator):
    """Stage 09 gives its barriers; without the last one every output is still right."""
    stage = find_stage(9)
    without = lessons.change(stage.source(), "wait_for_set();", which=-1)
    (problem,) = [one for one in check_problems(stage) if one.name == "fp8 cache"]

    report = check_source(without, stage, simulator, [problem], diagnose=False)

    assert not report.ok and report.results[0].verdict.ok
    assert {(state.done, state.why.split("; ")[1]) for state in progress(report)} == {
        (True, "the race is between lines that were given")
    }


@pytest.mark.parametrize(
    ("stage", "which", "done"),
    [(1, 0, [True, False, True]), (1, 1, [True, False, True]), (3, 1, [False, True, False])],
)
def test_a_race_is_of_the_steps_that_place_barriers(simulator, stage, which, done):
    source = find_stage(stage).source()
    without = lessons.change(source, "__syncthreads();", which=which)
    assert without.text.count("__syncthreads();") == source.text.count("__syncthreads();") - 1

    report = check_source(without, find_stage(stage), simulator, CHECK_PROBLEMS[:1])

    assert all(result.verdict.ok for result in report.results) and not report.ok
    assert [state.done for state in progress(report)] == done


def test_a_missing_score_counts_as_no_score_where_all_are_very_negative(simulator):
    stage = find_stage("06")
    unmasked = lessons.change(stage.source(), "if (!valid) score[s] = -INFINITY;")

    report = check_source(unmasked, stage, simulator, diagnose=False)

    assert [one.problem.name for one in report.results if not one.ok] == ["very negative scores"]
    assert check_source(stage.source(), stage, simulator, [NEGATIVE]).ok


def test_a_warning_is_told_with_the_result(simulator, capsys):
    """A warp that does not wait for its own lanes is right on today's GPUs, by habit."""
    stage = find_stage("06")
    header = (exercise.KERNELS / "roof" / "page_ring.cuh").read_text()
    place = "__syncwarp();  // also what other lanes copied"
    assert header.count(place) == 1
    include = '#include "page_ring.cuh"'
    source = lessons.change(stage.source(), include, header.replace(place, ""))

    report = check_source(source, stage, simulator, check_problems(stage)[:1])
    lessons.tell(report)

    printed = " ".join(capsys.readouterr().out.split())
    assert report.ok and report.warned
    assert printed.startswith("right, with a warning tiny: ")
    assert "is right as 06_async_ring (simulator), with a warning: it works on today's GPUs" in printed
    assert [state.why for state in progress(report)] == ["right, with the warning above", "right", "right"]
    plain = check_source(stage.source(), stage, simulator, check_problems(stage)[:1])
    assert plain.ok and not plain.warned


def test_a_tile_smaller_than_its_page_is_checked(simulator):
    """A kernel that stages the page's first tokens again and again is right wherever a page is one tile."""
    source = find_stage(3).source()
    wrong = lessons.change(source, "page, first + token, kv_head", "page, token, kv_head")
    assert wrong.text != source.text

    results = check_source(wrong, find_stage(3), simulator, diagnose=False).results

    assert [result.problem.name for result in results if not result.ok] == ["large page"]


def test_which_kernel_a_command_means(tmp_path):
    own = start(2, tmp_path)
    other = tmp_path / "attempt.cu"
    other.write_text("int a;")

    assert chosen_kernel("2", folder=tmp_path) == (own_source(2, tmp_path), find_stage(2))
    assert chosen_kernel(str(own))[1] == find_stage(2)
    assert chosen_kernel(str(other), "3") == (Source("attempt.cu", "int a;"), find_stage(3))
    with pytest.raises(ValueError, match="name the stage with --stage"):
        chosen_kernel(str(other))
    with pytest.raises(FileNotFoundError):
        chosen_kernel(str(tmp_path / "nothing.cu"), "3")
    with pytest.raises(ValueError, match="no stage called"):
        chosen_kernel("nothing")


def test_own_kernels_are_not_committed():
    ignored = (exercise.KERNELS.parent / ".gitignore").read_text().splitlines()

    assert exercise.OWN_KERNELS.relative_to(exercise.KERNELS.parent).as_posix() + "/" in ignored
