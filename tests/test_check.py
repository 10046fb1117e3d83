"""What ``check`` runs a kernel on: every case that a plan knows, and wrong kernels that it once let pass."""

import dataclasses

import numpy as np
import pytest

from labs_common.check import check, check_plan, check_problems, common_factor
from labs_common.grading.cases import grading_cases
from labs_common.lessons import change
from labs_common.plans import Device
from labs_common.source import Source
from labs_common.stages import ALL_STAGES, find_stage
from labs_common.variants import VARIANTS

planned = pytest.mark.parametrize("number", ["08", "09"])


# What kernels of 08 and 09 got wrong and check did not see, as no problem's plan had it.
KINDS = {
    "1 heads",
    "2 heads",
    "8 heads",
    "segments in a block, cut",
    "cut groups of several heads",
    "cut groups of one head",
    "short last set",
    "merge rows",
}


def kinds_of_plans(stage, problems):
    """Which of ``KINDS`` the plans of a check have for some problems."""
    found = set()
    for problem in problems:
        plan = check_plan(stage, problem, Device())
        segments, defines = plan.tables["segments"], plan.defines
        several = len(segments) > plan.launches[0].grid[0]
        groups, pieces, heads = segments[:, 3].max() + 1, segments[:, 5].max(), defines["BLOCK_HEADS"]
        found |= {f"{heads} heads"}
        found |= {"segments in a block, cut"} if several and pieces > 1 else set()
        found |= {"cut groups of several heads"} if heads > 1 and groups > 1 and pieces > 1 else set()
        found |= {"cut groups of one head"} if heads == 1 and groups > 1 and pieces > 1 else set()
        found |= {"short last set"} if problem.group_size > 8 and problem.group_size % 2 else set()
        found |= {"merge rows"} if defines.get("MERGE_ROWS", 8 if pieces >= 8 else 1) > 1 else set()
    return found


@planned
def test_every_kind_of_plan_is_checked(number):
    stage = find_stage(number)

    assert kinds_of_plans(stage, check_problems(stage)) >= KINDS


@planned
@pytest.mark.parametrize("seed", ["a seed", "another", "a third"])
def test_every_kind_of_plan_is_graded(number, seed):
    """Whatever the seed draws; blocks of one set of heads where it draws a batch with three of them."""
    stage = find_stage(number)
    problems = [case.problem for case in grading_cases(stage, seed)]

    assert kinds_of_plans(stage, problems) >= KINDS - {"1 heads", "cut groups of one head"}


@pytest.mark.parametrize("stage", [s for s in ALL_STAGES if s.id >= "05"], ids=lambda s: s.id)
def test_a_group_without_equal_halves_is_checked(stage):
    """From 05 on a group of more than 8 heads is two sets, of which the last may have fewer."""
    taken = [problem for problem in check_problems(stage) if stage.supports(problem) is None]

    assert any(problem.group_size > 8 and problem.group_size % 2 for problem in taken)


SET_WAIT = "wait_for_set();"
# Stage, the problem that finds it, edits; check once called all of them right.
ONCE_PASSED = (
    ("08", "large group, HND", (("first_head), last_head);", "first_head), HEADS - 1);"),)),
    ("08", "large group, HND", (("item <= last_head * COLUMNS + COLUMNS - 1;", "item < HEADS * COLUMNS;"),)),
    ("08", "eight heads", ((SET_WAIT, "if (TOKEN_WARPS > 1) __syncthreads();"),)),
    ("08", "eight heads", (("warp % BLOCK_HEADS;", "warp % 2;"), ("warp / BLOCK_HEADS;", "warp / 2;"))),
    ("08", "wide head, fp32", (("warp % BLOCK_HEADS;", "warp % 2;"), ("warp / BLOCK_HEADS;", "warp / 2;"))),
    (
        "08",
        "fp8 cache",
        (("segment->head_group * BLOCK_HEADS + block_set;", "segment->head_group + block_set;"),),
    ),
    (
        "09",
        "fp8 cache",
        (("planned.head_group * BLOCK_HEADS + blockIdx.x", "planned.head_group + blockIdx.x"),),
    ),
    ("09", "large group, HND", (("if (group_head >= GROUP_SIZE) return;", ""),)),
    (
        "09",
        "large group, HND",
        (
            ("if (group_head >= GROUP_SIZE) return;", ""),
            (
                "const int head = set / HEAD_SETS * GROUP_SIZE + group_head;",
                "const int head = planned.head_group * BLOCK_HEADS * HEADS + blockIdx.x;",
            ),
        ),
    ),
    ("09", "large group, HND", (("merge_row<MERGE_ROWS>", "merge_row<1>"),)),
    ("06", "large group, HND", (("min(first_head + h, GROUP_SIZE - 1)", "first_head + h"),)),
    ("07", "large group, HND", (("min(first_head + row, GROUP_SIZE - 1)", "first_head + row"),)),
    ("05", "odd group", (("min(first_head + h, GROUP_SIZE - 1)", "first_head + h"),)),
)


def edited(stage, edits) -> Source:
    source = stage.source()
    for old, new in edits:
        assert old in source.text, old
        source = change(source, old, new)
    return source


@pytest.mark.parametrize(
    ("number", "name", "edits"),
    ONCE_PASSED,
    ids=[f"{number}-{edits[0][1] or 'without a line'}" for number, _, edits in ONCE_PASSED],
)
def test_a_wrong_kernel_that_once_passed_does_not(simulator, number, name, edits):
    stage = find_stage(number)
    (problem,) = [one for one in check_problems(stage) if one.name.removesuffix("-float16") == name]

    report = check(edited(stage, edits), stage, simulator, [problem], diagnose=False)

    # That the lanes of a warp wait for each other unasked is a habit of today's GPUs, and a warning.
    assert report.error is None and (not report.ok or report.warned)


def test_a_counter_that_is_not_zero_again_is_told(simulator):
    """The next call would go on from there: the last block would never be the last again."""
    variant = next(one for one in VARIANTS if "last_block" in one.id)
    expanded = Source(variant.path.name, variant.source().text)
    kept = change(expanded, "max(used, 1) - 1) ==", "1 << 30) ==")
    problem = check_problems(find_stage("05"))[0]

    assert check(expanded, variant, simulator, [problem]).ok
    report = check(kept, variant, simulator, [problem])

    (result,) = report.results
    assert not report.ok and result.verdict.ok
    assert result.error.startswith("the output is right, but after the call arrived is not zero again")


def test_a_planner_is_asked_for_what_it_takes():
    """One with the documented (entry, problem, device), one with an option more, one that takes all."""
    stage = find_stage("09")

    def plain(entry, problem, device):
        return stage.planner(entry, problem, device)

    def with_blocks(entry, problem, device, blocks=None):
        return stage.planner(entry, problem, device, blocks=blocks, whole=False)

    def with_all(entry, problem, device, **options):
        return stage.planner(entry, problem, device, **options)

    grids = []
    for planner in (plain, with_blocks, with_all):
        own = dataclasses.replace(stage, planner=planner)
        plan = check_plan(own, check_problems(stage)[1], Device())
        grids.append(plan.launches[0].grid[0])

    assert grids[1:] == [3, 3] and grids[0] > 3


def diagnosis_of(simulator, number, edits, names):
    """What check says of an edited kernel, on some problems of its check."""
    stage = find_stage(number)
    problems = [one for one in check_problems(stage) if one.name.removesuffix("-float16") in names]
    return check(edited(stage, edits), stage, simulator, problems)


def without(number, begin, end):
    """The edit that leaves out a stage's lines from one text up to another."""
    text = find_stage(number).source().text
    first = text.index(begin)
    return ((text[first : text.index(end, first)], ""),)


TWO = ("very negative scores", "fp8 cache")
FORGOTTEN = "is 0.667 times the right one: value_scale, 1.5 there, is not applied"
# Stage, edits, what the message says and what it must not say.
MESSAGES = (
    # A factor of a number format is told by its name.
    ("08", (("                     value_scale);", "                     1.0f);"),), (FORGOTTEN,), ()),
    (
        "09",
        (("head), value_scale);", "head), 1.0f);"),),
        (FORGOTTEN, "in sequences that were cut, which the merge writes"),
        (),
    ),
    (
        "08",
        (("                     value_scale);", "                     value_scale * value_scale);"),),
        ("is 1.5 times the right one: value_scale, 1.5 there, is applied twice",),
        (),
    ),
    # What the plan does is compared, too.
    (
        "09",
        (("planned.head_group * BLOCK_HEADS + blockIdx.x", "planned.head_group + blockIdx.x"),),
        ("a block attends for 2 of 6 sets of heads (BLOCK_HEADS 2)",),
        (),
    ),
    # A merge that reads what nobody has written: the writes are wrong.
    (
        "08",
        (("if (segment->pieces == 1) {", "if (true) {"),),
        ("Partial results are read that nobody has written", "work.partials.values[entry"),
        ("Look at 08_balanced_plan.cu, line 131", "merge_row<MERGE_ROWS>("),
    ),
    # A barrier is called what the file calls it; rings that overlap need none.
    ("08", ((f"TOKEN_WARPS);\n    {SET_WAIT}", "TOKEN_WARPS);"),), ("A wait_for_set() is missing",), ()),
    ("08", (("shared + warp * RING", "shared + token_warp * RING"),), ("Either the rings overlap",), ()),
    # Only the array is beside the one that is meant.
    ("08", (("segment->pieces == 1", "segment->pieces == 0"),), ("the nearest of which is values",), ()),
    # Lines of the author's own.
    (
        "08",
        (("segment->end - tile, problem.scale);", "segment->end - tile, 1.0f);"),),
        ("tiles.attend(ring.wait()",),
        ("BEGIN SOLUTION",),
    ),
    ("08", (("{segment, end, block_set}", "{segment, end, 0}"),), ("PageRing<BlockSegments",), ()),
    # Half of a kernel says which half.
    (
        "09",
        without("09", "  const int set = planned", "  // END SOLUTION"),
        ("whole sequences are right, cut sequences are never written, empty sequences are never written",),
        (),
    ),
    (
        "08",
        without("08", "    tiles.store(", "  }\n  // END SOLUTION"),
        ("There is no answer yet", "whole sequences are never written", "% of the bytes"),
        (),
    ),
    # An answer in part is one.
    (
        "08",
        (("blockIdx.x + 1];", "blockIdx.x + 1] - 1;"),),
        (),
        ("There is no answer yet",),
    ),
    # What a segment of several warps alone shows.
    (
        "08",
        (("0, TOKEN_WARPS, 1, merged)", "0, TOKEN_WARPS - 1, 1, merged)"),),
        ("Only there several warps share the tokens of a segment",),
        (),
    ),
)


@pytest.mark.parametrize(("number", "edits", "said", "unsaid"), MESSAGES)
def test_a_message_leads_to_the_mistake(simulator, number, edits, said, unsaid):
    report = diagnosis_of(simulator, number, edits, TWO)
    sentence = report.diagnosis.sentence

    assert all(text in sentence for text in said), sentence
    assert "BEGIN SOLUTION" not in sentence
    # The finding itself tells where it was; what the lab adds must lead elsewhere.
    assert not any(text in sentence.rpartition(" Look at ")[2] for text in unsaid), sentence
    assert "There is no answer yet" in said or not sentence.startswith("There is no answer yet")
    where = report.diagnosis.line
    assert where is None or "BEGIN" not in find_stage(number).source().text.splitlines()[where - 1]


def test_a_common_factor_needs_rows_that_are_alike():
    expected = np.arange(1.0, 25.0).reshape(2, 3, 4)
    half = expected.copy()
    half[1] *= 0.5
    mixed = half.copy()
    mixed[0, 0, 0] += 3.0

    assert common_factor(half, expected) == (0.5, (1,))
    assert common_factor(expected, expected) == (None, ())
    assert common_factor(mixed, expected) == (None, ())
    assert common_factor(np.where(half == half[1, 1, 1], np.nan, half), expected) == (None, ())
