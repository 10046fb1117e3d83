"""Planted faults are named; honest kernels are not; what is not known is described, not guessed."""

import os
import re
from collections import Counter

import numpy as np
import pytest
from faulty.plants import HONEST, PLANTS, SCORE_01, planted

from labs_common.check import CHECK_PROBLEMS, check
from labs_common.diagnose import describe_wrong, diagnose, diagnose_kernel, run_probes
from labs_common.engines import SimulatorEngine
from labs_common.exercise import cut
from labs_common.faults import FAULTS, probe_models
from labs_common.probes import PROBES
from labs_common.problem import PRESETS, Problem
from labs_common.source import Source
from labs_common.stages import ALL_STAGES, find_stage

# Where a head has a second chunk, the first one's keys are those of the next lane.
FIRST_CHUNK_MOVED = (
    "const float4 key = chunk < chunks ? keys[chunk] : zero;",
    "const float4 key = chunk < chunks ? keys[chunks > 32 && c == 0 ? (lane + 1) % 32 : chunk] : zero;",
)
BY_NAME = {fault.name: fault for fault in FAULTS}


def cases(table):
    found = []
    for name, numbers, edits in table:
        for number in numbers:
            same = sum(case.id.startswith(f"0{number}-{name}") for case in found)
            found.append(pytest.param(number, name, edits, id=f"0{number}-{name}{same or ''}"))
    return found


def chosen(found, in_a_stage=12):
    """At least so many of every stage, and every fault somewhere.

    A diagnosis takes seconds. With PALAB_ALL_PLANTS in the environment all are run, as after every change of
    probes or fault models.
    """
    if "PALAB_ALL_PLANTS" in os.environ:
        return found
    stages, names, kept = Counter(), set(), []
    often = Counter(case.values[1] for case in found)
    for case in sorted(found, key=lambda case: often[case.values[1]]):
        number, name, _ = case.values
        if stages[number] < in_a_stage or name not in names:
            stages[number] += 1
            names.add(name)
            kept.append(case)
    return kept


@pytest.mark.parametrize(("number", "name", "edits"), chosen(cases(PLANTS)))
def test_a_planted_fault_is_named(simulator, number, name, edits):
    source, stage = planted(number, edits), find_stage(int(number))

    diagnosis = diagnose_kernel(source, stage, simulator)

    assert diagnosis.fault == name, diagnosis.sentence
    if name in BY_NAME:
        fault = BY_NAME[name]
        assert fault.says in diagnosis.sentence
        # With a merge kernel, what happens at the end is the merge's.
        assert diagnosis.topic == fault.topic or (number in "456789" and diagnosis.topic == "merge")
        assert diagnosis.batch is not None and diagnosis.head is not None
        assert f"batch {diagnosis.batch}, head {diagnosis.head}" in diagnosis.sentence
        if fault.topic == "pages" and "keys" not in name and name != "heads_before_slots":
            assert diagnosis.page is not None and f"page {diagnosis.page}" in diagnosis.sentence
    if diagnosis.line is None:
        assert number in "6789"  # a header has it, or nothing looks like it among the author's own lines
        return
    line = source.text.splitlines()[diagnosis.line - 1]
    assert re.search(r"[;{,]$", line.split("//")[0].strip()), line


@pytest.mark.parametrize("core", ["numpy", "llvm"])
def test_a_finding_in_a_header_names_the_line_that_called_it(core):
    """The keys are given back before they are used: what reads is a header's line, what copies another's."""
    stage = find_stage("06")
    released = "    ring.template release<false>();\n"
    text = stage.source().text.replace(released, "")
    text = text.replace(
        "    float score[STEPS], keep, take;\n", f"{released}    float score[STEPS], keep, take;\n"
    )
    assert text.count(released) == 1
    early = Source(stage.path.name, text, "kernels/mine/06_async_ring.cu")

    report = check(early, stage, SimulatorEngine(core=core), [PRESETS["ragged"]])

    (finding,) = report.results[0].findings
    lines = text.splitlines()
    copies = lines.index(released.rstrip()) + 1
    reads = next(n for n, line in enumerate(lines, 1) if "load_row<true>(keys" in line)
    assert finding.file == "kernels/cache_tile.cuh" and finding.callers[-1] == (early.shown, reads)
    assert f"at kernels/roof/page_ring.cuh:153, called at {early.shown}:{copies}" in finding.message
    assert report.diagnosis.line == reads
    assert "released before its tile was used. Look at 06_async_ring.cu" in report.diagnosis.sentence


def test_a_line_that_was_given_is_not_to_blame(simulator):
    stage = find_stage(0)
    text = stage.source().text
    addressed = next(line for line in text.splitlines() if "cache_offset(" in line)
    wrong = text.replace(addressed, addressed.replace("kv_head)", "query_head % problem.kv_heads)"))
    assert wrong != text

    diagnosis = diagnose_kernel(Source("mine.cu", wrong), stage, simulator)

    assert diagnosis.fault == "kv_head_by_modulo"
    assert "const int kv_head = query_head / group_size(problem);" in wrong
    assert "query_head % problem.kv_heads" in wrong.splitlines()[diagnosis.line - 1]


def test_an_empty_split_in_the_merge_is_the_merges_fault(simulator):
    stage = find_stage(4)
    wrong = stage.source().text.replace("if (split_max == -INFINITY) continue;", "")
    assert wrong != stage.source().text

    assert diagnose_kernel(Source("mine.cu", wrong), stage, simulator).topic == "merge"


@pytest.mark.parametrize("number", "0123456789")
def test_at_least_fifteen_faults_are_planted_in_each_stage(number):
    assert len({name for name, numbers, _ in PLANTS if number in numbers}) >= 15
    assert len([name for name, numbers, _ in HONEST if number in numbers]) >= 3


@pytest.mark.parametrize(("number", "name", "edits"), cases(HONEST))
def test_an_honest_variant_has_no_fault(simulator, number, name, edits):
    source, stage = planted(number, edits), find_stage(int(number))
    assert source.text != stage.source().text

    assert diagnose_kernel(source, stage, simulator) is None


@pytest.mark.parametrize("stage", ALL_STAGES, ids=lambda s: s.id)
def test_the_labs_own_kernels_have_none(simulator, stage):
    assert diagnose_kernel(stage.source(), stage, simulator) is None


def test_two_faults_at_once_are_described_without_a_guess(simulator):
    edits = ((SCORE_01, ""), ("token < context;", "token < context - 1;"))

    diagnosis = diagnose_kernel(planted("0", edits), find_stage(0), simulator)

    assert diagnosis.fault is None and diagnosis.topic is None
    assert not any(fault.says in diagnosis.sentence for fault in FAULTS)
    assert "tokens 4 of batch 0, head 0 (5 tokens) have no weight" in diagnosis.sentence
    assert "wrong ratios" in diagnosis.sentence


def test_what_is_seen_of_a_factor_that_no_fault_has(simulator):
    """A weight too large by a factor for one token: neither missing nor a known fault."""
    edits = (("const float weight = ", "const float weight = (token == 2 ? 3.0f : 1.0f) * "),)

    diagnosis = diagnose_kernel(planted("0", edits), find_stage(0), simulator)

    assert diagnosis.fault is None
    assert "every head" in diagnosis.sentence and "wrong ratios" in diagnosis.sentence


def test_a_tile_copied_to_the_wrong_place_is_told_by_slots(simulator):
    edits = (
        (
            "page, first + token, kv_head",
            "page, min(first * tile_tokens + token, problem.page_size - 1), kv_head",
        ),
    )

    diagnosis = diagnose_kernel(planted("3", edits), find_stage(3), simulator)

    assert diagnosis.fault is None
    assert "have no weight, page 0 first (slots 5 to 6 of every page)" in diagnosis.sentence
    assert "tokens 7, 15 weigh too much beside the others (slots 7 of every page)" in diagnosis.sentence


def test_a_scale_that_every_lane_takes_of_itself_is_told_by_tokens(simulator):
    edits = (("__shfl_sync(FULL_WARP, keep, h)", "keep"),)

    diagnosis = diagnose_kernel(planted("5", edits), find_stage(5), simulator)

    assert diagnosis.fault is None
    assert "weigh too little beside the others" in diagnosis.sentence
    assert "right in “probe, plain”" in diagnosis.sentence


def test_what_only_the_wrong_problem_has_is_told(simulator):
    diagnosis = diagnose_kernel(planted("2", (FIRST_CHUNK_MOVED,)), find_stage(2), simulator)

    assert diagnosis.fault is None
    assert "Only there head_dim is 160 (else 80)" in diagnosis.sentence
    assert "a lane has 2 chunks, c = 0 to 1" in diagnosis.sentence


def test_what_only_a_warp_of_several_tiles_shows_is_told(simulator):
    edits = (("weighted[d][h + 2] *= keep;", ""),)  # of half of the dimensions

    diagnosis = diagnose_kernel(planted("7", edits), find_stage(7), simulator)

    assert diagnosis.fault is None
    assert "dimension 8 to 15, 24 to 31 of 32" in diagnosis.sentence
    assert "Only there a warp has several tiles of a partition or segment" in diagnosis.sentence


def test_a_tail_that_is_not_masked_is_on_the_last_page(simulator):
    """The first sequence has 13 tokens on pages of 8; its last tile ends with zeros, which no page holds."""
    stage = find_stage(8)
    wrong = stage.source().text.replace("segment->end - tile, problem.scale", "TILE_TOKENS, problem.scale")
    assert wrong != stage.source().text

    diagnosis = diagnose_kernel(Source("mine.cu", wrong), stage, simulator)

    assert (diagnosis.fault, diagnosis.batch, diagnosis.head, diagnosis.page) == ("tail_not_masked", 0, 0, 1)
    assert "tiles.attend(" in wrong.splitlines()[diagnosis.line - 1]


def test_nan_that_is_computed_is_no_empty_kernel(simulator):
    """exp(max - max) of two parts without a token."""
    stage = find_stage(5)
    bare = tuple((f"{part}.max == max ? 1.0f : ", "") for part in "ab")

    computed = diagnose_kernel(planted("5", bare), stage, simulator)
    nothing = diagnose_kernel(cut(stage.source()), stage, simulator)
    zeros = diagnose_kernel(cut(find_stage(4).source()), find_stage(4), simulator)

    assert "There is no answer yet: NaN is computed." in computed.sentence and computed.fault is None
    assert "There is no answer yet: the output is never written." in nothing.sentence
    assert "or no token is summed" in zeros.sentence


def test_findings_come_first(simulator):
    edits = (
        ("__syncthreads();  // the tile is complete", ""),
        (
            "const int valid = min(problem.page_size, context - start);",
            "const int valid = problem.page_size;",
        ),
    )

    diagnosis = diagnose_kernel(planted("3", edits), find_stage(3), simulator)

    assert diagnosis.sentence.startswith("racecheck: ")
    assert "__syncthreads() is missing" in diagnosis.sentence


def test_check_names_the_fault_and_leaves_a_right_kernel_alone(simulator):
    stage = find_stage(0)

    report = check(planted("0", ((SCORE_01, ""),)), stage, simulator)
    right = check(stage.source(), stage, simulator)

    assert not report.ok and report.diagnosis.fault == "unscaled"
    assert right.ok and right.diagnosis is None
    assert check(planted("0", ((SCORE_01, ""),)), stage, simulator, diagnose=False).diagnosis is None


def test_a_kernel_that_writes_nothing_is_described(simulator):
    text = (
        '#include "paged_attention.cuh"\n'
        'extern "C" __global__ void paged_attention_baseline(Problem problem, Inputs in, float* output) {}\n'
    )

    report = check(Source("mine.cu", text), find_stage(0), simulator, CHECK_PROBLEMS[:1])

    assert report.diagnosis.fault is None
    assert "all NaN" in report.diagnosis.sentence


def test_outputs_alone_are_enough(simulator):
    """A grader has outputs of a child process and no engine."""
    stage = find_stage(2)
    models = probe_models(stage)
    outputs, findings = run_probes(stage.source(), stage, simulator)

    assert findings == () and diagnose(outputs, stage) is None
    wrong = {name: models[name]["table_of_sequence_0"].output for name in outputs}
    named = diagnose(wrong, stage)
    assert named.fault == "table_of_sequence_0" and named.line is None
    assert diagnose({"plain": wrong["plain"]}, stage).fault == "table_of_sequence_0"


def test_the_place_of_a_dropped_page():
    """The first sequence has 13 tokens on pages of 8: page 1 is not full."""
    stage, probe = find_stage(0), PROBES[0]
    wrong = {probe.name: probe_models(stage)[probe.name]["last_partial_page_dropped"].output}

    diagnosis = diagnose(wrong, stage)

    assert probe.problem.context_lengths[0] == 13 and probe.problem.page_size == 8
    assert (diagnosis.batch, diagnosis.head, diagnosis.page) == (0, 0, 1)
    assert f"physical page {probe.inputs().block_tables[0, 1]}" in diagnosis.sentence


def test_wrong_places_in_words():
    problem = Problem(4, 2, 8, 4, (1, 2, 3), name="words")
    expected = np.ones((3, 4, 8))
    output = expected.copy()
    output[1:, 2, 3] = 0

    words = describe_wrong(output, expected, problem)

    assert words == "wrong in “words” are batch 1 to 2 of 3, head 2 of 4, dimension 3 of 8 (all 0)"
