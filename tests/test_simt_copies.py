"""cp.async on both engines: what lands where and when, what is counted, and what is reported.

Expected values follow the PTX ISA's text: data are visible to the thread that waited, wait_group N leaves the
newest N groups on their way, bytes beyond src-size are zero, wait_all is commit_group with wait_group 0.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simt_helpers import kernel_text, run, store_result

from labs_common.simt.errors import Fault, Finding, UnsupportedError

FILE = '.file 1 "/lab/kernels/student.cu"\n'
SHARED = ".shared .align 16 .b8 tile[2048];\n"
OLD = 0x01010101  # what the kernels below put into shared memory first
both = pytest.mark.parametrize("engine", ["numpy", "llvm"])


def at(line: int, text: str) -> str:
    """Instructions attributed to a source line."""
    return f".loc 1 {line} 3\n{text}\n"


def fill(words: int) -> str:
    """Every word of the tile becomes OLD, by thread 0; everyone waits."""
    stores = "\n".join(f"st.shared.u32 [tile+{4 * k}], {OLD};" for k in range(words))
    return f"setp.ne.u32 %p9, %r0, 0;\n@%p9 bra FILLED;\n{stores}\nFILLED:\nbar.sync 0;\n"


def dump(words: int) -> str:
    """Thread 0 copies the tile's first words to p1."""
    moves = "\n".join(
        f"ld.shared.u32 %r50, [tile+{4 * k}];\nst.global.u32 [%d1+{4 * k}], %r50;" for k in range(words)
    )
    return f"bar.sync 0;\n@%p9 bra DONE;\n{moves}\nDONE:\nret;"


def place(size: int) -> str:
    """%d5: this thread's source, %r5: its place in the tile, elements of `size` bytes."""
    return (
        f"mul.wide.u32 %d5, %r0, {size};\nadd.u64 %d5, %d0, %d5;\nmov.u32 %r4, tile;\n"
        f"mad.lo.u32 %r5, %r0, {size}, %r4;\n"
    )


def tile_after(body: str, source: np.ndarray, words: int, engine: str, threads: int = 4, file: str = FILE):
    """(words of the tile, findings, counters)."""
    text = kernel_text(fill(words) + body + dump(words), 2, SHARED) + file
    arrays, result = run(text, source, np.zeros(words, np.uint32), block=threads, engine=engine)
    return arrays[1], result.findings, result.counters


def told(findings) -> list[tuple]:
    """(tool, severity, what was done too early or which hazard, line) of each finding."""
    return [
        (f.tool, f.severity, f.kind.split(" of __shared__ ")[0].split(" hazard ")[0].split()[-1], f.line)
        for f in findings
    ]


def findings_of(body: str, threads: int = 64) -> list[Finding]:
    """What both engines report; of threads that race they may name different ones."""
    found = [tile_after(body, random_words(threads), 64, e, threads)[1] for e in ("numpy", "llvm")]
    assert told(found[0]) == told(found[1])
    waits = [[f for f in findings if f.tool == "synccheck"] for findings in found]
    assert waits[0] == waits[1]
    return found[0]


def random_words(count: int) -> np.ndarray:
    return np.random.default_rng(7).integers(2, 2**32, count, dtype=np.uint32)


@both
@pytest.mark.parametrize(
    ("cache", "size"),
    [("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16), ("ca.shared::cta.global.L2::128B", 16)],
)
def test_copies_of_every_size_land_and_their_neighbours_stay(cache, size, engine):
    source = random_words(4 * size // 4)
    kind = cache if "global" in cache else f"{cache}.shared.global"
    body = place(size) + f"cp.async.{kind} [%r5], [%d5], {size};\ncp.async.wait_all;\n"

    tile, findings, _ = tile_after(body, source, len(source) + 4, engine)

    np.testing.assert_array_equal(tile, [*source, *[OLD] * 4])
    assert findings == []


@both
def test_data_are_not_there_before_the_wait(engine):
    body = place(4) + "cp.async.ca.shared.global [%r5], [%d5], 4;\ncp.async.commit_group;\n"
    early = at(31, "ld.shared.u32 %r8, [%r5];") + at(
        32, "cp.async.wait_group 0;\nst.shared.u32 [%r5+64], %r8;"
    )

    tile, findings, _ = tile_after(at(30, body) + early, random_words(4), 20, engine)

    np.testing.assert_array_equal(tile[:4], random_words(4))
    np.testing.assert_array_equal(tile[16:], [OLD] * 4)
    (finding,) = findings
    assert (finding.tool, finding.line, finding.thread) == ("synccheck", 31, (0, 0, 0))
    assert "cp.async in flight" in finding.kind
    assert "line 30" in finding.message


@both
@pytest.mark.parametrize("keep", [0, 1, 2])
def test_wait_group_leaves_the_newest_groups_on_their_way(keep, engine):
    copies = "".join(
        f"cp.async.ca.shared.global [%r5+{16 * n}], [%d5+{16 * n}], 4;\ncp.async.commit_group;\n"
        for n in range(3)
    )
    source = random_words(12)
    look = "".join(f"ld.shared.u32 %r{8 + n}, [%r5+{16 * n}];\n" for n in range(3))
    keepers = "".join(f"st.shared.u32 [%r5+{64 + 16 * n}], %r{8 + n};\n" for n in range(3))
    body = place(4) + copies + f"cp.async.wait_group {keep};\n" + look + "cp.async.wait_all;\n" + keepers

    tile, findings, _ = tile_after(body, source, 28, engine)

    landed = 3 - keep
    np.testing.assert_array_equal(tile[:12], source)
    np.testing.assert_array_equal(tile[16:28], [*source[: 4 * landed], *[OLD] * (12 - 4 * landed)])
    assert len(findings) == (1 if keep else 0)


@both
def test_bytes_beyond_the_source_size_are_zero_and_not_read(engine):
    """A register limits the bytes: 16, 5 and 0 of 16; the lane with 0 has an address nobody may read."""
    source = random_words(8)
    limits = (
        "mov.u32 %r7, 16;\nsetp.eq.u32 %p1, %r0, 1;\nselp.u32 %r7, 5, %r7, %p1;\n"
        "setp.eq.u32 %p2, %r0, 2;\nselp.u32 %r7, 0, %r7, %p2;\nselp.u64 %d5, 64, %d5, %p2;\n"
    )
    body = place(16) + limits + "cp.async.cg.shared.global [%r5], [%d5], 16, %r7;\ncp.async.wait_all;\n"

    tile, findings, counters = tile_after(body, source, 16, engine, threads=3)

    bytes_ = source.view(np.uint8)
    expected = np.concatenate([bytes_[:16], bytes_[16:21], np.zeros(11 + 16, np.uint8)])
    np.testing.assert_array_equal(tile.view(np.uint8)[:48], expected)
    np.testing.assert_array_equal(tile[12:], [OLD] * 4)
    assert findings == []
    assert counters.totals()["global_load_sectors"] == 1  # 21 bytes of one 32-byte sector


@both
@pytest.mark.parametrize("literal", [True, False])
def test_zero_fill_by_literal_and_by_predicate(literal, engine):
    limit = "0" if literal else "%p1"
    body = place(4) + f"setp.ge.u32 %p1, %r0, 0;\ncp.async.ca.shared.global [%r5], [%d5], 4, {limit};\n"

    tile, _, _ = tile_after(body + "cp.async.wait_all;\n", random_words(4), 5, engine)

    np.testing.assert_array_equal(tile, [0, 0, 0, 0, OLD])


@both
def test_groups_are_each_thread_s_own(engine):
    """Odd threads commit once more, so that wait_group 1 is enough for their copy, not for even threads'."""
    body = (
        place(4)
        + "cp.async.ca.shared.global [%r5], [%d5], 4;\ncp.async.commit_group;\n"
        + "and.b32 %r6, %r0, 1;\nsetp.eq.u32 %p1, %r6, 0;\n@%p1 bra EVEN;\ncp.async.commit_group;\nEVEN:\n"
        + "cp.async.wait_group 1;\nld.shared.u32 %r8, [%r5];\n"
        + "cp.async.wait_all;\nst.shared.u32 [%r5+32], %r8;\n"
    )
    source = random_words(8)

    tile, findings, _ = tile_after(body, source, 16, engine, threads=8)

    np.testing.assert_array_equal(tile[8:], [OLD if k % 2 == 0 else source[k] for k in range(8)])
    assert len(findings) == 1


@both
def test_what_is_never_committed_lands_at_wait_all_only(engine):
    copy = "cp.async.ca.shared.global [%r5], [%d5], 4;\n"
    look = "ld.shared.u32 %r8, [%r5];\nst.shared.u32 [%r5+32], %r8;\ncp.async.wait_all;\n"

    tile, _, _ = tile_after(place(4) + copy + "cp.async.wait_group 0;\n" + look, random_words(4), 12, engine)

    np.testing.assert_array_equal(tile[8:], [OLD] * 4)
    np.testing.assert_array_equal(tile[:4], random_words(4))


@both
def test_more_copies_than_a_warp_can_have_on_their_way_let_the_oldest_land(engine):
    """300 copies to one word and no wait: 44 have landed, as they may; the word holds the 44th."""
    source = np.arange(1000, 1300, dtype=np.uint32)
    body = (
        "mov.u32 %r4, tile;\nmov.u32 %r6, 0;\nmov.u64 %d6, %d0;\nLOOP:\n"
        "cp.async.ca.shared.global [%r4], [%d6], 4;\nadd.u64 %d6, %d6, 4;\nadd.u32 %r6, %r6, 1;\n"
        "setp.lt.u32 %p1, %r6, 300;\n@%p1 bra LOOP;\n"
    )

    tile, findings, _ = tile_after(body, source, 2, engine, threads=1)

    np.testing.assert_array_equal(tile, [1043, OLD])
    assert told(findings) == [("synccheck", "error", "Write", 0), ("synccheck", "error", "Read", 0)]


@both
def test_a_copy_is_counted_as_a_global_load_and_on_its_own(engine):
    """32 threads x 16 bytes in a row: one request of 16 sectors, four passes.

    Nsight Compute counts it as LDGSTS and not among the stores, of which 05 has 392 beside 1,984 copies.
    """
    body = place(16) + "cp.async.cg.shared.global [%r5], [%d5], 16;\ncp.async.wait_all;\n"

    _, _, counters = tile_after(body, random_words(128), 1, engine, threads=32)

    totals = counters.totals()
    assert totals["global_load_requests"] == 1
    assert totals["global_load_sectors"] == 16
    assert totals["shared_stores"] == totals["shared_store_wavefronts"] == 1  # fill's
    assert [totals[f"async_{what}"] for what in ("copies", "copy_sectors", "copy_wavefronts")] == [1, 16, 4]
    assert totals["dram_read_bytes"] == 512


def cost_of(sources, targets, engine: str, sizes=None, copy: str = "cg") -> tuple[int, int, int]:
    """(copy_sectors, sectors, wavefronts) where each lane copies 16 bytes from and to the given offsets.

    sizes: bytes that each lane reads, by default 16.
    """
    lanes = len(sources)
    sizes = np.full(lanes, 16) if sizes is None else sizes
    table = np.concatenate([sources, targets, sizes]).astype(np.uint32)
    body = (
        "mul.wide.u32 %d5, %r0, 4;\nadd.u64 %d5, %d1, %d5;\n"
        + "".join(f"ld.global.u32 %r{10 + k}, [%d5+{4 * lanes * k}];\n" for k in range(3))
        + "cvt.u64.u32 %d6, %r10;\nadd.u64 %d6, %d0, %d6;\nmov.u32 %r4, tile;\nadd.u32 %r5, %r4, %r11;\n"
        f"cp.async.{copy}.shared.global [%r5], [%d6], 16, %r12;\ncp.async.wait_all;\nret;"
    )
    text = kernel_text(body, 2, ".shared .align 128 .b8 tile[8192];\n") + FILE
    _, result = run(text, np.zeros(2048, np.uint32), table, block=lanes, engine=engine)
    counters = result.counters
    at = next(i for i, a in counters.program.access.items() if a.operation == "cp")
    return tuple(int(a[at]) for a in (counters.copy_sectors, counters.sectors, counters.wavefronts))


@both
@pytest.mark.parametrize(
    ("further", "cost"),
    [
        (0, (16, 16, 4)),  # 05 on ragged, __align__(128): 31,744 and 7,936 of 1,984 requests
        (16, (32, 20, 12)),  # without: 63,488 and 23,808; of all loads 7,936 sectors more, 4 a request
        (64, (16, 16, 8)),  # 09 in fp32, one head a group: 16,777,216 and 8,388,608 of 1,048,576 requests
        (80, (32, 20, 16)),  # 05 on 100,000 tokens, head_dim 256: 25,600,000 and 12,800,000 of 800,000
    ],
)
def test_a_copy_costs_what_an_h200_counts(engine, further, cost):
    """512 bytes in a row, the target some bytes further in its line than the source; by Nsight Compute."""
    row = 16 * np.arange(32)

    assert cost_of(row, row + further, engine) == cost


def test_of_a_row_that_is_copied_twice_each_copy_counts():
    """As past the end of a context in 05, on ragged too: 16 lanes read what 16 others read."""
    row = 16 * np.arange(32)

    for engine in ("numpy", "llvm"):
        assert cost_of(row % 256, row, engine) == (16, 16, 4)
        assert cost_of(row % 256, row + 16, engine) == (32, 20, 12)


def test_a_swizzle_within_lines_costs_nothing():
    """As 09 in fp16 stores its tiles: 16 and 4 of an H200's 524,288 requests."""
    lane = np.arange(32)

    for engine in ("numpy", "llvm"):
        assert cost_of(16 * lane, 16 * (lane ^ lane // 8), engine) == (16, 16, 4)


@both
def test_lanes_that_write_zeros_fetch_nothing(engine):
    row, lane = 16 * np.arange(32), np.arange(32)

    assert cost_of(row, row, engine, np.where(lane < 20, 16, 0)) == (10, 10, 4)
    assert cost_of(row, row, engine, np.where(lane < 20, 1, 0)) == (10, 10, 4)
    assert cost_of(row, row, engine, np.zeros(32)) == (0, 0, 4)


@both
def test_a_copy_through_l1_counts_as_a_load_and_a_store(engine):
    row = 16 * np.arange(32)

    assert cost_of(row, row + 16, engine, copy="ca") == (0, 16, 4)


def cost_by_definition(sources, targets, sizes) -> tuple[int, int, int]:
    """As `Counters` puts it."""
    pairs = {(s // 32, t // 32) for s, t, n in zip(sources, targets, sizes, strict=True) if n}
    passes: dict[tuple[int, int], Counter] = {}
    for sector, box in pairs:
        passes.setdefault((sector // 4, box // 4), Counter())[sector] += 1
    zeros = {t // 128 for t, n in zip(targets, sizes, strict=True) if not n}
    alone = zeros - {row for _, row in passes}
    lines = {(sector, box // 4) for sector, box in pairs}
    return len(pairs), len(lines), sum(max(c.values()) for c in passes.values()) + len(alone)


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 40), st.sampled_from([16, 16, 16, 5, 0])),
        min_size=1,
        max_size=32,
    ),
    st.sampled_from(["as drawn", "sources ascend", "both ascend"]),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_any_copies_cost_what_the_definition_says(copies, order):
    sources, targets, sizes = (np.array(column) for column in zip(*copies, strict=True))
    if order != "as drawn":
        sources.sort()
    if order == "both ascend":
        targets.sort()
    sources, targets = 16 * sources, 16 * targets

    wanted = cost_by_definition(sources.tolist(), targets.tolist(), sizes.tolist())

    assert cost_of(sources, targets, "numpy", sizes) == wanted
    assert cost_of(sources, targets, "llvm", sizes) == wanted


@both
@pytest.mark.parametrize(
    ("copy", "kind", "text"),
    [
        ("[%r5], [%d5+16]", "Invalid __global__ read of size 16 bytes", "out of bounds"),
        ("[%r5], [%d5+8]", "Invalid __global__ read of size 16 bytes", "misaligned"),
        ("[%r5+8], [%d5]", "Invalid __shared__ write of size 16 bytes", "misaligned"),
        ("[%r5+2032], [%d5]", "Invalid __shared__ write of size 16 bytes", "out of bounds"),
    ],
)
def test_both_addresses_of_a_copy_are_checked(copy, kind, text, engine):
    body = place(16) + at(9, f"cp.async.cg.shared.global {copy}, 16;")

    with pytest.raises(Fault) as caught:
        tile_after(body, random_words(16), 4, engine)

    finding = caught.value.finding
    assert (finding.tool, finding.kind, finding.line) == ("memcheck", kind, 9)
    assert text in finding.message
    assert finding.thread == (({"[%r5], [%d5+16]": 3, "[%r5+2032], [%d5]": 1}).get(copy, 0), 0, 0)


@both
@pytest.mark.parametrize("barrier", [True, False])
def test_another_warp_needs_a_barrier_after_the_wait(barrier, engine):
    """Threads 0 to 31 copy and wait, threads 32 to 63 read."""
    body = (
        place(4)
        + "setp.ge.u32 %p1, %r0, 32;\n@%p1 bra READ;\n"
        + at(20, "cp.async.ca.shared.global [%r5], [%d5], 4;")
        + at(21, "cp.async.wait_all;\nREAD:")
        + ("bar.sync 0;\n" if barrier else "")
        + at(23, "@!%p1 bra OVER;\nld.shared.u32 %r8, [%r5+-128];\nst.shared.u32 [%r5+256], %r8;\nOVER:")
    )
    source = random_words(64)

    tile, findings, _ = tile_after(body, source, 112, engine, threads=64)

    if barrier:
        np.testing.assert_array_equal(tile[96:112], source[:16])
        assert findings == []
    else:
        assert {(f.tool, f.line) for f in findings} == {("racecheck", 23)}


@both
@pytest.mark.parametrize(
    "instruction",
    [
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%d5], 16, [%r6];",
        "cp.async.ca.shared.global [%r5], [%d5], 2;",
        "cp.async.cg.shared.global [%r5], [%d5], 8;",
        "cp.async.mbarrier.arrive.shared.b64 [%r5];",
    ],
)
def test_other_copies_are_refused_by_name_and_line_before_anything_runs(instruction, engine):
    text = kernel_text(place(16) + at(12, instruction) + "st.global.u32 [%d0], %r0;\nret;", 1, SHARED) + FILE

    with pytest.raises(UnsupportedError) as caught:
        run(text, np.zeros(4, np.uint32), engine=engine)

    assert instruction.split()[0] in str(caught.value)
    assert caught.value.source == ("/lab/kernels/student.cu", 12)


def test_shared_memory_that_only_copies_write_counts_as_written():
    copy = "cp.async.ca.shared.global [%r5], [%d5], 4;\ncp.async.wait_all;\n"
    body = place(4) + copy + "ld.shared.u32 %r9, [%r5];\n" + store_result("%r9", "u32", 4)
    text = kernel_text(body, 1, SHARED)
    for engine in ("numpy", "llvm"):
        (array,), result = run(text, random_words(32), engine=engine)
        np.testing.assert_array_equal(array, random_words(32))
        assert result.findings == []


# ---- what else goes where a copy is on its way to; every thread copies its own word, thread 0 its first

COPY = at(20, "cp.async.ca.shared.global [%r5], [%d5], 4;") + at(21, "cp.async.commit_group;")
LATER = {  # of another thread in the warp, or in the other warp
    "own": "",
    "warp": "bar.warp.sync 0xffffffff;\nxor.b32 %r5, %r5, 4;\n",
    "block": "bar.sync 0;\nxor.b32 %r5, %r5, 128;\n",
}


@pytest.mark.parametrize("who", LATER)
@pytest.mark.parametrize(
    "write",
    [
        "st.shared.u32 [%r5], %r0;",
        "st.shared.u8 [%r5], %h0;",
        "cvt.u64.u32 %d7, %r5;\ncvta.shared.u64 %d7, %d7;\nst.u32 [%d7], %r0;",
        "and.b32 %r6, %r0, 31;\nsetp.eq.u32 %p2, %r6, 3;\n@!%p2 st.shared.u32 [%r5], %r0;",
        "and.b32 %r5, %r5, 0xffffffe0;\nst.shared.v4.u32 [%r5], {%r1, %r1, %r1, %r1};",
        "mov.u32 %r6, 7;\nst.shared.u32 [tile+8], %r6;",
        "atom.shared.add.u32 %r8, [%r5], 1;",
        "red.shared.add.u32 [%r5], 1;",
        "cp.async.ca.shared.global [%r5], [%d5], 4;",
    ],
)
def test_a_write_to_where_a_copy_is_on_its_way_should_have_waited(write, who):
    findings = findings_of(place(4) + COPY + LATER[who] + at(30, write) + "cp.async.wait_all;\n")

    finding = next(f for f in findings if f.tool == "synccheck")
    assert told([finding]) == [("synccheck", "error", "Write", 30)]
    assert "line 20 and has not waited for it, so that either of the two writes" in finding.message
    assert {f.line for f in findings if f.tool == "racecheck"} <= {20, 30}


@pytest.mark.parametrize("who", LATER)
def test_a_read_of_where_a_copy_is_on_its_way_should_have_waited(who):
    findings = findings_of(place(4) + COPY + LATER[who] + at(30, "ld.shared.u32 %r8, [%r5];"))

    assert told(findings) == [("synccheck", "error", "Read", 30)]


def test_what_is_read_after_a_write_too_early_is_told_once():
    """As where a ring's memory gets another use after a barrier, and copies are still on their way there."""
    body = place(4) + COPY + "bar.sync 0;\n" + at(30, "st.shared.u32 [%r5], %r0;")
    body += at(31, "bar.sync 0;\nxor.b32 %r5, %r5, 128;\nld.shared.u32 %r8, [%r5];")

    assert told(findings_of(body)) == [("synccheck", "error", "Write", 30)]


@pytest.mark.parametrize("who", LATER)
def test_after_the_wait_and_what_orders_it_for_others_all_is_allowed(who):
    use = at(30, "ld.shared.u32 %r8, [%r5];\nst.shared.u32 [%r5], %r8;\nred.shared.add.u32 [%r5], 1;")
    copy = COPY + "cp.async.wait_group 0;\n"

    assert findings_of(place(4) + copy + LATER[who] + use + LATER[who] + copy) == []
    early = findings_of(place(4) + COPY + LATER[who] + "cp.async.wait_group 0;\n" + use)
    assert bool(early) == (who != "own")  # the wait is the reading thread's, of its own copy


def test_words_beside_a_copy_and_copies_nobody_waits_for_are_no_hazard():
    beside = at(30, "st.shared.u32 [%r5+256], %r0;\nld.shared.u32 %r8, [%r5+256];")

    assert findings_of(place(4) + "st.shared.u32 [%r5], %r0;\n" + COPY + beside + "ret;\n") == []


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("who", ["warp", "block"])
@pytest.mark.parametrize(
    ("use", "hazard"),
    [("ld.shared.u32 %r8, [%r5];", "Write-After-Read"), ("st.shared.u32 [%r5], 1;", "Write-After-Write")],
)
def test_a_copy_must_not_start_while_others_may_use_the_place(use, hazard, who, ordered):
    """The wait comes after a barrier: it is the start that is too early."""
    order, other = LATER[who].splitlines()
    body = place(4) + "bar.sync 0;\n" + at(10, use) + (order if ordered else "") + f"\n{other}\n" + COPY
    body += "bar.sync 0;\ncp.async.wait_all;\n"

    severity = "warning" if who == "warp" else "error"
    assert told(findings_of(body)) == ([] if ordered else [("racecheck", severity, hazard, 20)])


@pytest.mark.parametrize("same", [True, False])
def test_lanes_that_copy_to_one_word_copy_the_same(same):
    """All lanes to the first word."""
    source = "ld.param.u64 %d5, [p0];\n" if same else ""
    body = place(4) + "mov.u32 %r5, tile;\n" + source + COPY + "cp.async.wait_all;\n"

    expected = [] if same else [("racecheck", "error", "Write-After-Write", 20)]
    assert told(findings_of(body, threads=32)) == expected


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("copy"), st.integers(0, 7), st.integers(0, 15)),
        st.tuples(st.just("commit"), st.just(0), st.just(0)),
        st.tuples(st.just("wait"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("all"), st.just(0), st.just(0)),
        st.tuples(st.just("look"), st.integers(0, 7), st.just(0)),
        st.tuples(st.just("store"), st.integers(0, 7), st.integers(2, 99)),
    ),
    min_size=1,
    max_size=20,
)


def model(steps, source):
    """(words read by "look", words of the tile at the end, lines of what came too early), one thread."""
    tile, waiting, groups, seen, marked, early = [OLD] * 8, [], 0, [], set(), set()
    for line, (kind, a, b) in enumerate(steps, 1):
        if a in marked and kind in ("copy", "store", "look"):
            early.add(line)
        if kind == "copy":
            waiting.append((groups, a, source[b]))
            marked.add(a)
        elif kind == "commit":
            groups += 1
        elif kind == "store":
            tile[a] = b
            marked.discard(a)
        elif kind == "look":
            seen.append(tile[a])
        else:
            groups += kind == "all"
            limit = groups if kind == "all" else groups - a
            for group, word, value in waiting:
                if group < limit:
                    tile[word] = value
                    marked.discard(word)
            waiting = [w for w in waiting if w[0] >= limit]
    early |= {len(steps) + 1} if marked else set()  # the tile is read at the end
    return seen, tile, early


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_any_order_of_copies_groups_and_waits_gives_the_data_that_the_rules_say(steps):
    source = random_words(16)
    lines = []
    looks = 0
    for number, (kind, a, b) in enumerate(steps, 1):
        lines.append(f".loc 1 {number} 3")
        if kind == "copy":
            lines.append(f"cp.async.ca.shared.global [tile+{4 * a}], [%d0+{4 * b}], 4;")
        elif kind == "look":
            lines.append(f"ld.shared.u32 %r8, [tile+{4 * a}];\nst.global.u32 [%d2+{4 * looks}], %r8;")
            looks += 1
        elif kind == "store":
            lines.append(f"st.shared.u32 [tile+{4 * a}], {b};")
        else:
            operand = f" {a}" if kind == "wait" else ""
            name = {"commit": "commit_group", "wait": "wait_group", "all": "wait_all"}[kind]
            lines.append(f"cp.async.{name}{operand};")
    lines.append(f".loc 1 {len(steps) + 1} 3\n")
    text = kernel_text(fill(8) + "\n".join(lines) + dump(8), 3, SHARED) + FILE
    seen, tile, early = model(steps, source.tolist())
    for engine in ("numpy", "llvm"):
        (_, dumped, looked), result = run(
            text, source, np.zeros(8, np.uint32), np.zeros(20, np.uint32), block=1, engine=engine
        )
        assert dumped.tolist() == tile
        assert looked.tolist()[:looks] == seen
        assert {f.line for f in result.findings} == early
        assert {f.tool for f in result.findings} <= {"synccheck"}
