"""The simulator's counts against profiles of an H200: equal, or listed with the reason."""

import dataclasses
import struct

import pytest

from labs_common import compiler
from labs_common.cubin import Cubin, CubinError, find_cubins
from labs_common.fidelity import (
    COMPARED_PROBLEMS,
    COMPARED_STAGES,
    DIFFERENCES,
    DRAM_SMALLEST,
    DRAM_TOLERANCE,
    EQUAL_BY_KERNEL,
    EQUAL_BY_LINE,
    RATIO_RANGE,
    SPREAD,
    compare_recording,
    dram_ratio,
    load_exceeded,
    load_listed,
    recorded_source,
    recording_of,
    unexplained,
)
from labs_common.fidelity_table import PAGE, chart, markdown, page
from labs_common.metric_names import DRAM_READ_BYTES, REGISTERS
from labs_common.ncu_rows import ProfileError
from labs_common.recorded import PROBLEMS
from labs_common.sass import read_recording
from labs_common.simt.counters import NCU_METRICS

CASES = [(stage, problem) for stage in COMPARED_STAGES for problem in COMPARED_PROBLEMS]
each_case = pytest.mark.parametrize(("stage", "problem"), CASES, ids=lambda v: getattr(v, "id", v))
# What the PTX of a SASS instruction is, by opcode.
PTX_OF = {
    "LDG": "ld.global",
    "STG": "st.global",
    "LDS": "ld.shared",
    "STS": "st.shared",
    "SHFL": "shfl.sync",
    "BAR": "bar.sync",
}


@pytest.fixture(scope="module")
def recordings():
    return {(stage.id, problem): recording_of(stage, problem) for stage, problem in CASES}


@pytest.fixture(scope="module")
def comparisons(simulator, recordings):
    return {
        (stage.id, problem): compare_recording(stage, problem, simulator, recordings[stage.id, problem])
        for stage, problem in CASES
    }


def test_what_is_not_listed_is_equal_in_total_and_on_every_line(comparisons):
    assert unexplained(comparisons.values(), load_listed(), load_exceeded()) == []


@each_case
def test_lines_and_kernels_add_up_to_the_same_totals(comparisons, stage, problem):
    """Equal lines prove little where instructions without a line are left out."""
    for kernel in comparisons[stage.id, problem].kernels:
        for count in EQUAL_BY_LINE:
            for total, lines in (
                (kernel.simulated, kernel.simulated_lines),
                (kernel.executed, kernel.executed_lines),
            ):
                assert sum(counts.get(count, 0) for counts in lines.values()) == total.get(count, 0), count


@each_case
def test_instructions_of_a_report_add_up_to_its_hardware_counters(recordings, stage, problem):
    """The counters come from other replays of the kernel: a few sectors or wavefronts apart, if any."""
    for kernel in recordings[stage.id, problem].kernels:
        compared = [count for count, metric in NCU_METRICS.items() if metric in kernel.figures]
        for count in set(compared) & {*EQUAL_BY_LINE, *EQUAL_BY_KERNEL, "warp_instructions"}:
            counted = kernel.figures[NCU_METRICS[count]]
            assert kernel.totals.get(count, 0) == pytest.approx(counted, rel=2e-4), count


@each_case
def test_ffma_lanes_are_within_two_percent(comparisons, stage, problem):
    assert comparisons[stage.id, problem].ratio("ffma_lanes") == pytest.approx(1, abs=0.02)


@each_case
def test_warp_instructions_are_near_those_executed(comparisons, stage, problem):
    assert RATIO_RANGE[0] <= comparisons[stage.id, problem].ratio("warp_instructions") <= RATIO_RANGE[1]


@each_case
def test_distinct_bytes_are_what_dram_delivers(comparisons, stage, problem):
    """The merge of 04 reads less than 1 MiB: there the fixed 8 to 16 KB of every launch are more than 5 %."""
    for kernel in comparisons[stage.id, problem].kernels:
        if kernel.counters[DRAM_READ_BYTES] >= DRAM_SMALLEST:
            assert dram_ratio(kernel) == pytest.approx(1, abs=DRAM_TOLERANCE)
        else:
            beyond = kernel.counters[DRAM_READ_BYTES] - kernel.simulated["dram_read_bytes"]
            assert kernel.name.endswith("_merge")
            assert 0 <= beyond <= 16 * 1024


@each_case
def test_registers_are_those_of_the_recorded_launch(comparisons, stage, problem):
    for kernel in comparisons[stage.id, problem].kernels:
        assert kernel.registers == kernel.counters[REGISTERS]


@each_case
def test_the_code_that_ran_is_the_code_that_is_compiled_here(recordings, stage, problem):
    """Byte for byte, and so is the PTX that ptxas was given."""
    recording = recordings[stage.id, problem]
    source = recorded_source(stage, recording)
    defines = stage.plan(PROBLEMS[problem]).defines
    ptx = compiler.compile_ptx(source, defines)
    data, _ = compiler._compile(
        source.neutral_path, source.expanded(), compiler._sorted(defines), compiler.DEFAULT_ARCH, "cubin"
    )
    here = Cubin(data)

    assert [here.code(kernel.name) for kernel in recording.kernels] == [k.code for k in recording.kernels]
    lines = ptx.splitlines()
    given = {number: line for number, line in enumerate(recording.ptx) if line.strip()}
    assert {number: lines[number].strip() for number in given} == {n: t.strip() for n, t in given.items()}
    assert len(given) > 100


@each_case
def test_places_of_instructions_are_what_the_source_says_there(recordings, stage, problem):
    """ptxas's line tables, read by hand, against the text that stands on those lines."""
    recording = recordings[stage.id, problem]
    met = set()
    for kernel in recording.kernels:
        for instruction in kernel.instructions:
            if instruction.opcode not in PTX_OF:
                continue
            met.add(instruction.opcode)
            inner, outer = instruction.places[0], instruction.places[-1]
            text = recording.files[inner.file].splitlines()[inner.line - 1]
            wanted = {"SHFL": "__shfl", "BAR": "__syncthreads()"}.get(instruction.opcode, "[")
            assert wanted in text, instruction
            assert PTX_OF[instruction.opcode] in instruction.ptx
            assert outer.file == stage.path.name
            assert (outer == inner) == (inner.file == stage.path.name)
    assert met >= {"LDG", "STG"}


def test_an_inlined_instruction_has_the_line_of_its_call(recordings):
    """Where ncu_report's own source_info gives the call for four of the five shuffles."""
    recording = recordings["02_vectorized", "ragged"]
    shuffles = [i for i in recording.kernels[0].instructions if i.opcode == "SHFL"]

    assert {i.places[0].function for i in shuffles} == {"_Z8warp_sumf"}
    assert len({i.places[0] for i in shuffles}) == 1
    calls = {i.places[1].line for i in shuffles}
    assert ["warp_sum(" in recording.files["02_vectorized.cu"].splitlines()[n - 1] for n in calls] == [True]


@pytest.mark.parametrize("row", range(len(load_listed())))
def test_a_difference_that_is_not_listed_fails(comparisons, row):
    listed = load_listed()
    left_out = listed.pop(row).difference

    words = unexplained(comparisons.values(), listed, load_exceeded())

    assert any(f"not listed: {left_out}" == line for line in words)


def test_a_listed_difference_of_another_size_or_that_is_gone_fails(comparisons):
    first, *others = load_listed()
    larger = dataclasses.replace(first.difference, simulated=first.difference.simulated + 1)
    moved = dataclasses.replace(first, difference=larger)
    gone = dataclasses.replace(first, difference=dataclasses.replace(first.difference, metric="shuffles"))

    resized = unexplained(comparisons.values(), [moved, *others], load_exceeded())
    vanished = unexplained(comparisons.values(), [first, *others, gone], load_exceeded())

    assert resized == [f"not listed: {first.difference}", f"listed, but does not occur: {moved.difference}"]
    assert f"listed, but does not occur: {gone.difference}" in vanished


def test_a_count_that_is_off_on_one_line_fails_though_the_total_is_right(comparisons):
    whole = comparisons["03_gqa_reuse", "ragged"]
    (kernel,) = whole.kernels
    lines = {place: dict(counts) for place, counts in kernel.simulated_lines.items()}
    first, second = [place for place, counts in lines.items() if counts.get("global_load_requests")][:2]
    lines[first]["global_load_requests"] += 1
    lines[second]["global_load_requests"] -= 1
    shifted = dataclasses.replace(whole, kernels=(dataclasses.replace(kernel, simulated_lines=lines),))

    found = {(d.file, d.line) for d in shifted.differences() if d.metric == "global_load_requests"}

    assert found == {first, second}


def test_a_limit_is_kept_or_listed_as_exceeded_but_never_both(comparisons):
    every = list(comparisons.values())
    exceeded = load_exceeded()
    kept = dataclasses.replace(exceeded[0], stage="02_vectorized", limit=SPREAD) if exceeded else None

    for row in exceeded:
        others = [other for other in exceeded if other is not row]
        assert unexplained(every, load_listed(), others) == [f"{row.stage}: {row.limit} is over its limit"]
    if kept:
        assert unexplained(every, load_listed(), [*exceeded, kept]) == [
            f"02_vectorized: {SPREAD} keeps its limit, and is listed as if it did not"
        ]


def test_a_row_of_the_table_without_a_reason_or_twice_is_refused(tmp_path):
    header, first, *_ = DIFFERENCES.read_text(encoding="utf-8").splitlines()
    cells = first.split(",")

    def refused(*rows: str) -> str:
        path = tmp_path / "table.csv"
        path.write_text("\n".join((header, *rows)), encoding="utf-8")
        with pytest.raises(ValueError) as error:
            load_listed(path)
        return str(error.value)

    assert "twice" in refused(first, first)
    assert "no reason" in refused(",".join([*cells[:9], " "]))
    assert "kind='lost'" in refused(",".join([*cells[:8], "lost", "because"]))


def test_the_table_and_the_chart_show_every_stage_and_problem(comparisons):
    every = list(comparisons.values())

    text = markdown(every, load_listed(), load_exceeded())
    drawn = chart(every)

    assert all(f"| {c.stage} | {c.problem} |" in text for c in every)
    assert all(row.reason in text for row in (*load_listed(), *load_exceeded()))
    # 03 on ragged by hand: 8 query heads load 5 queries and lengths each; keys and values of 918 tokens
    # in 2 kv heads are 2 warp loads a token; and a table entry a page (59 pages) and warp.
    assert f"= {8 * 5 * 2 + 918 * 2 * 2 + 59 * 8 + 8 * 5:,} " in text
    assert "Global load requests 1" in drawn.alt_text()


def test_the_page_is_up_to_date(comparisons):
    """Write it again with ``python -m labs_common.fidelity_table``."""
    assert PAGE.read_text(encoding="utf-8") == page(list(comparisons.values()))


def test_a_report_without_code_or_counts_is_refused(tmp_path):
    path = tmp_path / "other.ncu-rep"
    path.write_bytes(b"not a report")

    with pytest.raises(ProfileError, match="holds no profiled kernel"):
        read_recording(path)


def test_bytes_that_are_no_cubin_are_refused(recordings):
    with pytest.raises(CubinError, match="not a 64-bit ELF"):
        _ = Cubin(b"MZ" + bytes(100)).sections
    header = bytearray(b"\x7fELF\x02\x01" + bytes(58))
    struct.pack_into("<Q", header, 0x28, 10_000)
    struct.pack_into("<H", header, 0x3C, 3)
    with pytest.raises(CubinError, match="cut off"):
        _ = Cubin(bytes(header)).sections
    assert find_cubins(b"no code here") == []
