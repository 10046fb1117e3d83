"""racecheck on both engines: hazards within a warp, of one store, of less than a word; schedules by seed."""

from __future__ import annotations

import numpy as np
import pytest
from simt_helpers import kernel_text, run, store_result

from labs_common.simt import cupy_like as xp

FILE = '.file 1 "/lab/kernels/student.cu"\n'
SHARED = ".shared .align 16 .b8 tile[1024];\n"
ADDRESSES = "mov.u32 %r4, tile;\nmad.lo.u32 %r5, %r0, 4, %r4;\nadd.u32 %r6, %r0, 1;\nand.b32 %r6, %r6, 31;\n"
ADDRESSES += (
    "mad.lo.u32 %r6, %r6, 4, %r4;\n"  # %r5: the lane's own word, %r6: its neighbour's (of the first warp)
)
SYNC = "bar.warp.sync 0xffffffff;\n"


def at(line: int, text: str) -> str:
    return f".loc 1 {line} 3\n{text}\n"


def findings_of(body: str, block: int = 32, **options):
    """What both engines report; of many threads that meet they may name different ones."""
    text = kernel_text(ADDRESSES + body + store_result("%r8", "u32", 4), 1, SHARED) + FILE
    found = []
    for engine in ("numpy", "llvm"):
        _, result = run(text, np.zeros(max(block, 32), np.uint32), block=block, engine=engine, **options)
        found.append(result.findings)
    assert told(found[0]) == told(found[1])
    assert [f.address for f in found[0]] == [f.address for f in found[1]]
    return found[0]


def told(findings) -> list[tuple]:
    return [(f.tool, f.severity, f.kind.split(" hazard ")[0].split()[-1], f.line) for f in findings]


@pytest.mark.parametrize("block", [32, 16])
def test_reading_what_another_lane_wrote_needs_a_warp_sync(block):
    write, read = at(10, "st.shared.u32 [%r5], %r0;"), at(11, "ld.shared.u32 %r8, [%r6];")
    fill = "setp.ge.u32 %p1, %r0, 1;\n@%p1 bra GO;\nst.shared.u32 [tile+64], %r0;\nGO:\nbar.sync 0;\n"
    mask = SYNC if block == 32 else "bar.warp.sync 0xffff;\n"

    racy, clean = findings_of(fill + write + read, block), findings_of(fill + write + mask + read, block)

    assert told(racy) == [("racecheck", "warning", "Read-After-Write", 11)]
    assert "no __syncwarp between them" in racy[0].message and "line 10" in racy[0].message
    assert racy[0].thread == (0, 0, 0) and "thread (1, 0, 0) at line 10" in racy[0].message
    assert clean == []


def test_overwriting_what_another_lane_reads_needs_a_warp_sync():
    start = at(9, "st.shared.u32 [%r5], %r0;") + SYNC
    read, write = at(10, "ld.shared.u32 %r8, [%r6];"), at(11, "st.shared.u32 [%r5], %r0;")

    assert told(findings_of(start + read + write)) == [("racecheck", "warning", "Write-After-Read", 11)]
    assert findings_of(start + read + SYNC + write) == []


def test_a_word_that_all_lanes_read_is_overwritten_by_one():
    start = at(9, "st.shared.u32 [%r5], %r0;") + SYNC
    read = at(10, "ld.shared.u32 %r8, [tile+124];")
    write = at(11, "setp.ne.u32 %p1, %r0, 31;\n@%p1 bra OVER;\nst.shared.u32 [tile+124], %r0;\nOVER:")

    assert told(findings_of(start + read + write)) == [("racecheck", "warning", "Write-After-Read", 11)]
    assert findings_of(start + read + SYNC + write) == []


def test_two_lanes_write_one_word_one_after_the_other():
    writes = at(10, "st.shared.u32 [%r5], %r0;") + at(11, "st.shared.u32 [%r6], %r0;") + "mov.u32 %r8, 0;\n"

    assert told(findings_of(writes)) == [("racecheck", "warning", "Write-After-Write", 11)]
    assert findings_of(writes.replace(".loc 1 11", SYNC + ".loc 1 11")) == []


def test_a_lane_may_use_its_own_word_as_it_likes():
    steps = 2 * "st.shared.u32 [%r5], %r0;\nld.shared.u32 %r8, [%r5];\n"

    assert findings_of(steps, block=96) == []


@pytest.mark.parametrize("value", ["%r0", "7"])
def test_one_store_to_one_word_must_store_one_value(value):
    """All lanes store to the first word: their numbers, or all the same."""
    body = (
        f"mov.u32 %r9, {value};\n"
        + at(10, "st.shared.u32 [%r4], %r9;")
        + SYNC
        + "ld.shared.u32 %r8, [%r4];\n"
    )

    findings = findings_of(body)

    assert told(findings) == ([("racecheck", "error", "Write-After-Write", 10)] if value == "%r0" else [])


def test_one_store_with_some_equal_addresses():
    """Lanes k and k + 16 share a word; only 16 apart do the values differ."""
    body = "and.b32 %r7, %r0, 15;\nmad.lo.u32 %r7, %r7, 4, %r4;\n" + at(10, "st.shared.u32 [%r7], %r0;")
    same = "and.b32 %r9, %r0, 15;\n" + body.replace("%r0;\n.loc", "%r0;\n.loc").replace(
        "[%r7], %r0", "[%r7], %r9"
    )

    (finding,) = findings_of(body + "mov.u32 %r8, 0;\n")

    assert finding.severity == "error" and finding.thread == (16, 0, 0)
    assert "threads (0, 0, 0) and (16, 0, 0)" in finding.message
    assert findings_of(same + "mov.u32 %r8, 0;\n") == []


@pytest.mark.parametrize(("type_", "bytes_"), [("u8", 1), ("u16", 2)])
def test_neighbours_in_one_word_are_no_race(type_, bytes_):
    """Each of four warps writes its own byte (half) of a word, as a flag for each warp would be."""
    body = (
        f"shr.u32 %r9, %r0, 5;\nmad.lo.u32 %r9, %r9, {bytes_}, %r4;\nand.b32 %r10, %r0, 31;\n"
        "setp.ne.u32 %p1, %r10, 0;\nmov.u32 %r8, 0;\n@%p1 bra OVER;\ncvt.u16.u32 %h1, %r0;\n"
        + at(10, f"st.shared.{type_} [%r9], %h1;")
        + "OVER:\nbar.sync 0;\n"
        + f"ld.shared.{type_} %h2, [tile+{bytes_}];\n"
    )
    shifted = body.replace(f"%r9, {bytes_}, %r4", "%r9, 0, %r4")  # all of them the same one

    assert findings_of(body, block=128) == []
    assert ("racecheck", "error", "Write-After-Write", 10) in told(findings_of(shifted.replace(
        f"ld.shared.{type_} %h2, [tile+{bytes_}];\n", ""), block=128))  # fmt: skip


def test_atomics_of_one_warp_are_no_hazard_but_a_read_after_them_is():
    start = "setp.ne.u32 %p1, %r0, 0;\n@%p1 bra GO;\nst.shared.u32 [tile], 0;\nGO:\n" + SYNC
    body = start + at(10, "atom.shared.add.u32 %r8, [tile], 1;") + at(11, "red.shared.add.u32 [tile], 2;")
    read = at(12, "ld.shared.u32 %r8, [tile];")

    assert findings_of(body) == []
    assert told(findings_of(body + read)) == [("racecheck", "warning", "Read-After-Write", 12)]
    assert findings_of(body + SYNC + read) == []


# ---- schedules


def racing(schedule: int | None, engine: str) -> int:
    """Every warp of every block writes its number to the same place: whose stays?"""
    body = "mov.u32 %r5, %ntid.x;\nmad.lo.u32 %r8, %r1, %r5, %r0;\nst.global.u32 [%d0], %r8;\nret;"
    module = xp.RawModule(kernel_text(body), engine=engine, schedule=schedule)
    out = xp.zeros(1, np.uint32)
    module.get_function("k")(5, 128, (out,))
    return int(out.get()[0])


def test_a_schedule_decides_who_is_last_and_each_seed_another_way():
    for engine in ("numpy", "llvm"):
        assert racing(None, engine) == 5 * 128 - 1
    winners = [[racing(seed, engine) for seed in range(6)] for engine in ("numpy", "llvm")]
    assert len({w // 128 for w in winners[0]}) > 1  # blocks
    assert [w % 32 for w in winners[0]] == [31] * 6  # lanes stay in their order
    assert all(0 <= w < 640 for w in winners[0])


@pytest.mark.parametrize("engine", ["numpy", "llvm"])
def test_a_clean_kernel_computes_the_same_in_any_order(engine):
    """A block's sum through shared memory, with a last warp that is not full."""
    body = (
        ADDRESSES
        + "mov.u32 %r9, %ntid.x;\nmad.lo.u32 %r10, %r1, %r9, %r0;\nst.shared.u32 [%r5], %r10;\nbar.sync 0;\n"
        + "setp.ne.u32 %p1, %r0, 0;\n@%p1 ret;\nmov.u32 %r11, 0;\nmov.u32 %r12, 0;\nLOOP:\n"
        + "mad.lo.u32 %r13, %r12, 4, %r4;\nld.shared.u32 %r14, [%r13];\nadd.u32 %r11, %r11, %r14;\n"
        + "add.u32 %r12, %r12, 1;\nsetp.lt.u32 %p2, %r12, %r9;\n@%p2 bra LOOP;\n"
        + "mul.wide.u32 %d5, %r1, 4;\nadd.u64 %d5, %d0, %d5;\nst.global.u32 [%d5], %r11;\nret;"
    )
    expected = [sum(range(100 * b, 100 * b + 100)) for b in range(7)]
    plain = None
    for schedule in (None, 0, 1, 2):
        module = xp.RawModule(kernel_text(body, 1, SHARED), engine=engine, schedule=schedule)
        out = xp.zeros(7, np.uint32)
        module.get_function("k")(7, 100, (out,))
        result = module.last_launch
        plain = plain or result.counters
        assert out.get().tolist() == expected
        assert result.findings == []
        assert plain.differences(result.counters) == []


def test_a_race_is_found_whatever_the_schedule():
    body = ADDRESSES + at(10, "st.shared.u32 [%r5], %r0;") + at(11, "ld.shared.u32 %r8, [tile+252];\nret;")
    for engine in ("numpy", "llvm"):
        for schedule in (None, 0, 1, 2, 3):
            module = xp.RawModule(kernel_text(body, 1, SHARED) + FILE, engine=engine, schedule=schedule)
            module.get_function("k")(1, 64, (xp.zeros(1, np.uint32),))
            found = {(f.tool, f.severity, f.line) for f in module.last_launch.findings}
            assert found in ({("racecheck", "error", 11)}, {("racecheck", "error", 10)})
