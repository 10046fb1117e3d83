"""Whole PTX programs on the simulator: control flow, warps, barriers, memory, calls, counters."""

from __future__ import annotations

import functools
import operator

import numpy as np
import pytest
from simt_helpers import HEADER, PREAMBLE, kernel_text, run, store_result

from labs_common.simt import cupy_like as xp
from labs_common.simt.launch import Launch
from labs_common.simt.numpy_engine import trace_warp
from labs_common.simt.parse import parse
from labs_common.simt.printf import MOST_CHARACTERS, c_string
from labs_common.simt.program import build

GUARD = 0xAB  # bytes beside every result, which no store may touch


def guarded(count: int, dtype) -> np.ndarray:
    """count elements between two guard elements of bytes GUARD."""
    return np.frombuffer(bytes([GUARD]) * (count + 2) * np.dtype(dtype).itemsize, dtype).copy()


def check_guards(array: np.ndarray, first: int, last: int) -> None:
    """Elements outside first..last are untouched."""
    outside = np.r_[array[:first], array[last:]]

    assert set(outside.view(np.uint8).tolist()) <= {GUARD}


@pytest.mark.parametrize(
    ("type_", "dtype", "value"),
    [
        ("u8", np.uint8, 0x12),
        ("u16", np.uint16, 0x1234),
        ("u32", np.uint32, 0x12345678),
        ("u64", np.uint64, 0x123456789ABCDEF0),
    ],
)
def test_store_touches_its_own_bytes_only(type_, dtype, value):
    width = np.dtype(dtype).itemsize
    body = f"mov.u64 %d5, {value};\nst.global.{type_} [%d0+{width}], %d5;\nret;"

    (out,), _ = run(kernel_text(body), guarded(1, dtype), block=1)

    assert out[1] == value
    check_guards(out, 1, 2)


@pytest.mark.parametrize("count", [2, 4])
def test_vector_store_and_load(count):
    names = ", ".join(f"%r{10 + k}" for k in range(count))
    body = (
        f"mul.wide.u32 %d5, %r0, {4 * count};\nadd.u64 %d6, %d0, %d5;\nadd.u64 %d7, %d1, %d5;\n"
        f"ld.global.v{count}.u32 {{{names}}}, [%d6];\nst.global.v{count}.u32 [%d7], {{{names}}};\nret;"
    )
    source = np.arange(7 * count, dtype=np.uint32)
    target = np.full(9 * count, 0xABABABAB, np.uint32)

    (_, out), _ = run(kernel_text(body, 2), source, target, block=7)

    assert out[: 7 * count].tolist() == source.tolist()
    check_guards(out, 0, 7 * count)


def test_signed_and_unsigned_narrow_loads_extend_to_the_register():
    body = (
        "ld.global.s8 %r10, [%d0];\nld.global.u8 %r11, [%d0];\nld.global.s16 %r12, [%d0+2];\n"
        "st.global.v2.u32 [%d0+8], {%r10, %r11};\nst.global.u32 [%d0+16], %r12;\nret;"
    )
    memory = np.array([0x8001_00F0, 0, 0, 0, 0, 0], np.uint32)

    (out,), _ = run(kernel_text(body), memory, block=1)

    assert out[2:5].tolist() == [0xFFFFFFF0, 0xF0, 0xFFFF8001]
    assert out[5] == 0


def test_divergence_reconverges_and_is_counted():
    body = (
        "and.b32 %r5, %r0, 1;\nsetp.eq.u32 %p0, %r5, 0;\n@%p0 bra EVEN;\n"
        "mul.lo.u32 %r6, %r0, 10;\nbra JOIN;\nEVEN:\nadd.u32 %r6, %r0, 1000;\n"
        "JOIN:\n" + store_result("%r6", "u32", 4)
    )

    (out,), result = run(kernel_text(body), np.zeros(40, np.uint32), block=40)

    assert out.tolist() == [t + 1000 if t % 2 == 0 else 10 * t for t in range(40)]
    totals = result.counters.totals()
    assert totals["divergent_branches"] == 2  # both warps
    assert totals["global_store_requests"] == 2  # each warp stores together again
    # 3 + 2 + 1 instructions before; 20 odd threads do 2, 20 even 1; then 4
    assert totals["thread_instructions"] == 40 * 6 + 20 * 2 + 20 + 40 * 4


def test_cold_block_at_the_end_of_the_text_still_reconverges():
    body = (
        "setp.lt.u32 %p0, %r0, 5;\nmov.u32 %r6, 1;\n@%p0 bra COLD;\nBACK:\n"
        + store_result("%r6", "u32", 4)
        + "\nCOLD:\nmov.u32 %r6, 2;\nbra BACK;"
    )

    (out,), result = run(kernel_text(body), np.zeros(32, np.uint32))

    assert out.tolist() == [2] * 5 + [1] * 27
    assert result.counters.totals()["global_store_requests"] == 1


def test_loop_with_a_trip_count_per_lane():
    body = (
        "mov.u32 %r5, 0;\nmov.u32 %r6, 0;\nLOOP:\nsetp.ge.u32 %p0, %r5, %r0;\n@%p0 bra DONE;\n"
        "add.u32 %r6, %r6, %r5;\nadd.u32 %r5, %r5, 1;\nbra LOOP;\nDONE:\n" + store_result("%r6", "u32", 4)
    )

    (out,), result = run(kernel_text(body), np.zeros(70, np.uint32), block=70)

    assert out.tolist() == [t * (t - 1) // 2 for t in range(70)]
    assert result.counters.totals()["global_store_requests"] == 3


def test_nested_divergence_inside_a_loop_matches_python():
    body = (
        "mov.u32 %r5, 0;\nmov.u32 %r6, 0;\nLOOP:\nadd.u32 %r7, %r0, %r5;\nand.b32 %r8, %r7, 3;\n"
        "setp.eq.u32 %p0, %r8, 0;\n@%p0 bra A;\nsetp.eq.u32 %p1, %r8, 1;\n@%p1 bra B;\n"
        "add.u32 %r6, %r6, 1;\nbra NEXT;\nA:\nand.b32 %r9, %r7, 4;\nsetp.ne.u32 %p2, %r9, 0;\n"
        "@%p2 bra A2;\n"
        "add.u32 %r6, %r6, 100;\nbra NEXT;\nA2:\nxor.b32 %r6, %r6, 7;\nbra NEXT;\nB:\n"
        "mul.lo.u32 %r6, %r6, 3;\n"
        "NEXT:\nadd.u32 %r5, %r5, 1;\nshr.u32 %r10, %r0, 3;\nadd.u32 %r10, %r10, 6;\n"
        "setp.lt.u32 %p3, %r5, %r10;\n@%p3 bra LOOP;\n" + store_result("%r6", "u32", 4)
    )

    def expected(thread: int) -> int:
        value = 0
        for step in range(thread // 8 + 6):
            number = thread + step
            if number % 4 == 0:
                value = value ^ 7 if number & 4 else value + 100
            elif number % 4 == 1:
                value *= 3
            else:
                value += 1
        return value & 0xFFFFFFFF

    (out,), _ = run(kernel_text(body), np.zeros(96, np.uint32), block=96)

    assert out.tolist() == [expected(t) for t in range(96)]


def test_indexed_branch():
    body = (
        "mov.u32 %r6, 9;\nand.b32 %r5, %r0, 3;\nTABLE: .branchtargets L0, L1, L2, END;\n"
        "brx.idx %r5, TABLE;\n"
        "L0:\nmov.u32 %r6, 100;\nbra END;\nL1:\nmov.u32 %r6, 101;\nbra END;\nL2:\nmov.u32 %r6, 102;\nEND:\n"
        + store_result("%r6", "u32", 4)
    )

    (out,), _ = run(kernel_text(body), np.zeros(32, np.uint32))

    assert out.tolist() == [[100, 101, 102, 9][t % 4] for t in range(32)]


def test_predicated_instruction_keeps_the_other_lanes_and_counts_once():
    body = (
        "mov.u32 %r6, 5;\nsetp.lt.u32 %p0, %r0, 4;\n@%p0 mov.u32 %r6, 7;\n@!%p0 add.u32 %r6, %r6, 1;\n"
        + store_result("%r6", "u32", 4)
    )

    (out,), result = run(kernel_text(body), np.zeros(32, np.uint32))

    assert out.tolist() == [7] * 4 + [6] * 28
    totals = result.counters.totals()
    # 3 to start, 4 of the body, 4 to store: the predicated ones count for every active lane, once per warp
    assert totals["thread_instructions"] == 32 * 11
    assert totals["warp_instructions"] == 11
    assert totals["divergent_branches"] == 0


def shuffled(mode: str, b: int, c: int, values: np.ndarray, threads: int = 32, mask: int = 0xFFFFFFFF):
    """What shfl.sync gives each lane, and its predicate."""
    body = (
        "mul.wide.u32 %d5, %r0, 4;\nadd.u64 %d6, %d1, %d5;\nld.global.u32 %r5, [%d6];\n"
        f"shfl.sync.{mode}.b32 %r6|%p1, %r5, {b}, {c}, {mask};\nselp.u32 %r7, 1, 0, %p1;\n"
        "mul.wide.u32 %d7, %r0, 8;\nadd.u64 %d8, %d0, %d7;\nst.global.v2.u32 [%d8], {%r6, %r7};\nret;"
    )
    (out, _), _ = run(kernel_text(body, 2), np.zeros(2 * threads, np.uint32), values, block=threads)
    return out[::2].tolist(), out[1::2].tolist()


@pytest.mark.parametrize("width", [32, 16, 8])
@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("delta", [0, 1, 5, 16])
def test_shuffles_stay_in_their_segment(mode, width, delta):
    values = np.arange(100, 132, dtype=np.uint32)
    c = (32 - width) << 8 | (0 if mode == "up" else 31)

    got, inside = shuffled(mode, delta, c, values)

    # CUDA's own words for __shfl_*_sync with a width: segments of `width` lanes, own value beyond them
    for lane in range(32):
        segment, place = lane // width * width, lane % width
        if mode == "up":
            source = place - delta if place >= delta else None
        elif mode == "down":
            source = place + delta if place + delta < width else None
        elif mode == "bfly":
            other = lane ^ delta
            # only an exchange within the segment or towards lower lanes succeeds
            source = other - segment if other < segment + width else None
        else:
            source = delta % width
        assert inside[lane] == (source is not None)
        assert got[lane] == (values[lane] if source is None else values[segment + source])


def test_shuffle_never_reaches_the_next_warp():
    body = "shfl.sync.down.b32 %r6, %r0, 16, 31, -1;\n" + store_result("%r6", "u32", 4)

    (out,), result = run(kernel_text(body), np.zeros(256, np.uint32), block=256)

    assert out.tolist() == [t + 16 if t % 32 < 16 else t for t in range(256)]
    assert result.counters.totals()["shuffles"] == 8


def test_shuffle_in_a_partial_warp_with_its_own_mask():
    values = np.arange(50, 55, dtype=np.uint32)

    got, _ = shuffled("idx", 0, 31, values, threads=5, mask=0x1F)

    assert got == [50] * 5


def test_lanes_wait_at_a_shuffle_for_lanes_that_come_later():
    # lanes 16-31 reach the shuffle through a longer way; all must exchange together
    body = (
        "mov.u32 %r5, %r0;\nsetp.lt.u32 %p0, %r0, 16;\n@%p0 bra MEET;\nmov.u32 %r7, 0;\nLOOP:\n"
        "add.u32 %r5, %r5, 100;\nadd.u32 %r7, %r7, 1;\nsetp.lt.u32 %p1, %r7, 3;\n@%p1 bra LOOP;\nMEET:\n"
        "shfl.sync.bfly.b32 %r6, %r5, 16, 31, -1;\n" + store_result("%r6", "u32", 4)
    )

    (out,), _ = run(kernel_text(body), np.zeros(32, np.uint32))

    assert out.tolist() == [t + 16 + 300 for t in range(16)] + list(range(16))


def test_votes_matches_and_reductions():
    body = (
        "setp.lt.u32 %p0, %r0, 20;\nvote.sync.ballot.b32 %r5, %p0, -1;\nvote.sync.any.pred %p1, %p0, -1;\n"
        "vote.sync.all.pred %p2, %p0, -1;\nselp.u32 %r6, 1, 0, %p1;\nselp.u32 %r7, 1, 0, %p2;\n"
        "and.b32 %r8, %r0, 7;\nmatch.any.sync.b32 %r9, %r8, -1;\nredux.sync.add.u32 %r10, %r0, -1;\n"
        "redux.sync.max.s32 %r11, %r0, -1;\nmatch.all.sync.b32 %r12|%p3, %r8, -1;\n"
        "mul.wide.u32 %d5, %r0, 32;\nadd.u64 %d5, %d5, %d0;\n"
        "st.global.v4.u32 [%d5], {%r5, %r6, %r7, %r9};\n"
        "st.global.v4.u32 [%d5+16], {%r10, %r11, %r12, %r8};\nret;"
    )

    (out,), _ = run(kernel_text(body), np.zeros(8 * 32, np.uint32))

    rows = out.reshape(32, 8)
    for lane, row in enumerate(rows.tolist()):
        same = sum(1 << k for k in range(32) if k % 8 == lane % 8)
        assert row == [(1 << 20) - 1, 1, 0, same, 496, 31, 0, lane % 8]


@pytest.mark.parametrize("mask", ["-1", "%r20"])
@pytest.mark.parametrize(
    ("operation", "function"),
    [
        ("add.s32", lambda v: sum(v)),
        ("add.u32", lambda v: sum(v)),
        ("min.s32", min),
        ("max.s32", max),
        ("min.u32", lambda v: min(x & 0xFFFFFFFF for x in v)),
        ("max.u32", lambda v: max(x & 0xFFFFFFFF for x in v)),
        ("and.b32", lambda v: functools.reduce(operator.and_, v)),
        ("or.b32", lambda v: functools.reduce(operator.or_, v)),
        ("xor.b32", lambda v: functools.reduce(operator.xor, v)),
    ],
)
def test_warp_reductions_of_every_kind(operation, function, mask):
    # with masks: lanes 0-15 and 16-31 reduce apart
    body = (
        "sub.s32 %r5, %r0, 13;\nmul.lo.s32 %r5, %r5, 100000007;\nmov.u32 %r20, 0xFFFF;\n"
        "setp.lt.u32 %p0, %r0, 16;\n@!%p0 mov.u32 %r20, 0xFFFF0000;\n"
        f"redux.sync.{operation} %r6, %r5, {mask};\nadd.s32 %r6, %r6, 1;\n" + store_result("%r6", "u32", 4)
    )

    (out,), _ = run(kernel_text(body), np.zeros(32, np.uint32))

    values = [((t - 13) * 100000007 + 2**31) % 2**32 - 2**31 for t in range(32)]
    for lane in range(32):
        part = values if mask == "-1" else values[:16] if lane < 16 else values[16:]
        assert int(out[lane]) == (function(part) + 1) & 0xFFFFFFFF


def test_block_reduction_through_shared_memory():
    before = ".shared .align 4 .b8 sums[32];\n"
    body = (
        "mov.u32 %r5, %r0;\n"
        + "".join(
            f"shfl.sync.bfly.b32 %r6, %r5, {s}, 31, -1;\nadd.u32 %r5, %r5, %r6;\n" for s in (16, 8, 4, 2, 1)
        )
        + "and.b32 %r7, %r0, 31;\nshr.u32 %r8, %r0, 5;\nsetp.ne.u32 %p0, %r7, 0;\n@%p0 bra WAIT;\n"
        "mul.wide.u32 %d5, %r8, 4;\nmov.u64 %d6, sums;\nadd.u64 %d6, %d6, %d5;\nst.shared.u32 [%d6], %r5;\n"
        "WAIT:\nbar.sync 0;\nmov.u32 %r9, 0;\n"
        + "".join(f"ld.shared.u32 %r10, [sums+{4 * k}];\nadd.u32 %r9, %r9, %r10;\n" for k in range(8))
        + "mad.lo.u32 %r11, %r1, 256, %r0;\nmul.wide.u32 %d7, %r11, 4;\nadd.u64 %d7, %d7, %d0;\n"
        "st.global.u32 [%d7], %r9;\nret;"
    )

    (out,), result = run(kernel_text(body, before=before), np.zeros(3 * 256, np.uint32), block=256, grid=3)

    assert set(out.tolist()) == {255 * 128}
    totals = result.counters.totals()
    assert totals["barriers"] == 3 * 8
    assert totals["shared_stores"] == 3 * 8
    assert totals["shared_loads"] == 3 * 8 * 8
    assert totals["shared_load_wavefronts"] == 3 * 8 * 8
    assert result.findings == []


@pytest.mark.parametrize(
    ("stride", "width", "wavefronts"),
    [(4, 4, 1), (8, 4, 2), (128, 4, 32), (0, 4, 1), (132, 4, 1), (8, 8, 2), (16, 16, 4), (256, 16, 32)],
)
def test_shared_wavefronts_follow_the_bank_rule(stride, width, wavefronts):
    # 32 lanes at `stride` bytes; widths 8 and 16 go by half and quarter warps
    before = ".shared .align 16 .b8 data[8192];\n"
    names = {4: "%r5", 8: "{%r5, %r6}", 16: "{%r5, %r6, %r7, %r8}"}[width]
    vector = {4: "", 8: ".v2", 16: ".v4"}[width]
    body = (
        "mov.u32 %r5, 1;\nmov.u32 %r6, 2;\nmov.u32 %r7, 3;\nmov.u32 %r8, 4;\n"
        f"mul.wide.u32 %d5, %r0, {stride};\nmov.u64 %d6, data;\nadd.u64 %d6, %d6, %d5;\n"
        f"st.shared{vector}.u32 [%d6], {names};\nret;"
    )

    _, result = run(kernel_text(body, before=before), np.zeros(1, np.uint32))

    assert result.counters.totals()["shared_store_wavefronts"] == wavefronts


@pytest.mark.parametrize(
    ("stride", "start", "sectors"),
    [(4, 0, 4), (4, 16, 5), (0, 0, 1), (32, 0, 32), (64, 0, 32), (-4, 124, 4), (8, 0, 8)],
)
def test_sectors_are_distinct_32_byte_pieces(stride, start, sectors):
    body = (
        f"mul.wide.s32 %d5, %r0, {stride};\nadd.u64 %d6, %d0, %d5;\nld.global.u32 %r5, [%d6+{start}];\n"
        "st.global.u32 [%d0], %r5;\nret;"
    )

    _, result = run(kernel_text(body), np.zeros(4096, np.uint32))

    totals = result.counters.totals()
    assert totals["global_load_sectors"] == sectors
    assert totals["global_load_requests"] == 1
    assert totals["dram_read_bytes"] == 32 * sectors
    assert totals["global_store_sectors"] == 1


def test_dynamic_shared_memory_follows_static_and_is_per_block():
    before = ".shared .align 4 .b8 fixed[20];\n.extern .shared .align 16 .b8 dynamic[];\n"
    body = (
        "mov.u64 %d10, fixed;\nmov.u64 %d5, dynamic;\nmul.wide.u32 %d6, %r0, 4;\n"
        "add.u64 %d7, %d5, %d6;\nadd.u32 %r5, %r0, %r1;\n"
        "st.shared.u32 [%d7], %r5;\nbar.sync 0;\nxor.b32 %r6, %r0, 63;\nmul.wide.u32 %d8, %r6, 4;\n"
        "add.u64 %d8, %d8, %d5;\nld.shared.u32 %r7, [%d8];\nmad.lo.u32 %r8, %r1, 64, %r0;\n"
        "mul.wide.u32 %d9, %r8, 4;\nadd.u64 %d9, %d9, %d0;\nst.global.u32 [%d9], %r7;\n"
        "st.global.u64 [%d1], %d5;\nret;"
    )

    (out, where), _ = run(
        kernel_text(body, 2, before),
        np.zeros(128, np.uint32),
        np.zeros(1, np.uint64),
        block=64,
        grid=2,
        shared=256,
    )

    assert out.tolist() == [(t ^ 63) + b for b in range(2) for t in range(64)]
    assert where[0] == 32  # 20 bytes, aligned to 16


def test_generic_addresses_reach_shared_local_and_global():
    before = ".shared .align 4 .b8 cell[4];\n"
    text = (
        HEADER
        + before
        + (
            ".visible .entry k(.param .u64 p0)\n{" + PREAMBLE + ".local .align 4 .b8 mine[8];\n"
            "ld.param.u64 %d0, [p0];\nmov.u32 %r0, %tid.x;\nmov.u64 %d1, cell;\ncvta.shared.u64 %d2, %d1;\n"
            "mov.u64 %d3, mine;\ncvta.local.u64 %d4, %d3;\nst.u32 [%d4+4], %r0;\nmov.u32 %r5, 77;\n"
            "st.u32 [%d2], %r5;\n"
            "ld.local.u32 %r6, [mine+4];\nld.shared.u32 %r7, [cell];\nadd.u32 %r8, %r6, %r7;\n"
            "isspacep.shared %p1, %d2;\nisspacep.local %p2, %d4;\nisspacep.global %p3, %d0;\n"
            "isspacep.shared %p4, %d0;\n"
            "and.pred %p1, %p1, %p2;\nand.pred %p1, %p1, %p3;\n@!%p1 trap;\n@%p4 trap;\n"
            "mul.wide.u32 %d5, %r0, 4;\nadd.u64 %d5, %d5, %d0;\nst.u32 [%d5], %r8;\nret;\n}\n"
        )
    )

    (out,), _ = run(text, np.zeros(40, np.uint32), block=40)

    assert out.tolist() == [77 + t for t in range(40)]


def test_atomics_are_complete_and_give_old_values():
    body = (
        "atom.global.add.u32 %r5, [%d0], 1;\nred.global.max.u32 [%d0+4], %r0;\n"
        "atom.global.cas.b32 %r6, [%d0+8], 0, 5;\n"
        "atom.global.inc.u32 %r7, [%d0+12], 9;\nmul.wide.u32 %d5, %r0, 4;\nadd.u64 %d5, %d5, %d1;\n"
        "st.global.u32 [%d5], %r5;\nret;"
    )

    (cells, old), _ = run(kernel_text(body, 2), np.zeros(5, np.uint32), np.zeros(100, np.uint32), block=100)

    assert cells.tolist() == [100, 99, 5, 100 % 10, 0]
    assert sorted(old.tolist()) == list(range(100))


def test_float_atomics_add_in_every_width():
    body = (
        "mov.f32 %f1, 0f3F000000;\nred.global.add.f32 [%d0], %f1;\nmov.f64 %g1, 0d3FD0000000000000;\n"
        "red.global.add.f64 [%d0+8], %g1;\nmov.b32 %r5, 0x3C003C00;\n"
        "red.global.add.noftz.f16x2 [%d0+4], %r5;\nret;"
    )

    (out,), _ = run(kernel_text(body), np.zeros(3, np.float64), block=64)

    assert out.view(np.float32)[0] == 32.0
    assert out[1] == 16.0
    assert out.view(np.float16)[2:4].tolist() == [64.0, 64.0]


def test_device_functions_are_called_with_parameters_and_results():
    before = (
        ".func (.param .b32 result) square_plus(.param .b32 a, .param .align 8 .b8 pair[16])\n{\n"
        ".reg .b32 %r<5>;\n.reg .pred %p<2>;\nld.param.u32 %r1, [a];\nld.param.u32 %r2, [pair+12];\n"
        "setp.lt.u32 %p1, %r1, 3;\n@%p1 bra SMALL;\nmad.lo.u32 %r3, %r1, %r1, %r2;\n"
        "st.param.b32 [result], %r3;\nret;\n"
        "SMALL:\nst.param.b32 [result], %r2;\nret;\n}\n"
    )

    def call(target: str) -> str:
        return (
            "{\n.param .b32 x;\n.param .align 8 .b8 y[16];\n.param .b32 z;\nst.param.b32 [x], %r0;\n"
            "st.param.b32 [y+12], %r5;\ncall.uni (z), square_plus, (x, y);\n"
            f"ld.param.b32 {target}, [z];\n}}\n"
        )

    body = "mov.u32 %r5, 4;\n" + call("%r6") + "add.u32 %r5, %r5, 6;\n" + call("%r7")
    body += "add.u32 %r8, %r6, %r7;\n" + store_result("%r8", "u32", 4)

    (out,), _ = run(kernel_text(body, before=before), np.zeros(32, np.uint32))

    assert out.tolist() == [14 if t < 3 else 2 * t * t + 14 for t in range(32)]


def test_module_variables_are_initialised_and_linked():
    before = (
        ".const .align 4 .u32 table[3] = {10, 20, 30};\n.global .align 4 .f32 factor = 0f40000000;\n"
        ".global .align 8 .u64 link = generic(table);\n"
    )
    body = (
        "mov.u64 %d5, table;\nmul.wide.u32 %d6, %r0, 4;\nadd.u64 %d5, %d5, %d6;\nld.const.u32 %r5, [%d5];\n"
        "cvt.rn.f32.u32 %f1, %r5;\nld.global.f32 %f2, [factor];\nmul.f32 %f3, %f1, %f2;\n"
        "ld.global.u64 %d7, [link];\nld.u32 %r6, [%d7+8];\ncvt.rn.f32.u32 %f4, %r6;\n"
        "add.f32 %f5, %f3, %f4;\n" + store_result("%f5", "f32", 4)
    )

    (out,), _ = run(kernel_text(body, before=before), np.zeros(3, np.float32), block=3)

    assert out.tolist() == [50.0, 70.0, 90.0]


def test_printf_prints_every_lane_with_c_formatting(capsys):
    before = (
        ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n"
        ".global .align 1 .b8 text[14] = {37, 100, 32, 37, 46, 50, 102, 32, 37, 120, 37, 37, 10, 0};\n"
    )
    body = (
        ".local .align 8 .b8 pack[24];\nmov.u64 %d5, pack;\ncvta.local.u64 %d6, %d5;\n"
        "st.local.u32 [pack], %r0;\n"
        "st.local.u64 [pack+8], 0x3FF8000000000000;\nst.local.u32 [pack+16], 255;\nmov.u64 %d7, text;\n"
        "{\n.param .b64 x;\n.param .b64 y;\n.param .b32 z;\nst.param.b64 [x], %d7;\n"
        "st.param.b64 [y], %d6;\n"
        "call.uni (z), vprintf, (x, y);\n}\nret;"
    )

    run(kernel_text(body, before=before), np.zeros(1, np.uint32), block=2)

    assert capsys.readouterr().out == "0 1.50 ff%\n1 1.50 ff%\n"


def test_special_registers_of_a_three_dimensional_launch():
    body = (
        "mov.u32 %r2, %tid.y;\nmov.u32 %r3, %tid.z;\nmov.u32 %r4, %ctaid.y;\nmov.u32 %r5, %ntid.x;\n"
        "mov.u32 %r6, %nctaid.y;\nmov.u32 %r7, %laneid;\nmov.u32 %r8, %warpid;\n"
        "mad.lo.u32 %r9, %r3, 3, %r2;\nmad.lo.u32 %r9, %r9, 5, %r0;\nmad.lo.u32 %r10, %r4, 2, %r1;\n"
        "mad.lo.u32 %r10, %r10, 60, %r9;\nmul.wide.u32 %d5, %r10, 16;\nadd.u64 %d5, %d5, %d0;\n"
        "shl.b32 %r11, %r6, 8;\nor.b32 %r11, %r11, %r5;\n"
        "st.global.v4.u32 [%d5], {%r9, %r11, %r7, %r8};\nret;"
    )

    (out,), _ = run(kernel_text(body), np.zeros(4 * 60 * 6, np.uint32), block=(5, 3, 4), grid=(2, 3))

    for number, row in enumerate(out.reshape(-1, 4).tolist()):
        thread = number % 60
        assert row == [thread, 3 << 8 | 5, thread % 32, thread // 32]


def test_named_barriers_join_some_of_the_warps():
    before = ".shared .align 4 .b8 cell[4];\n"
    body = (
        "setp.ge.u32 %p0, %r0, 64;\n@%p0 bra END;\nsetp.ne.u32 %p1, %r0, 0;\n@%p1 bra MEET;\n"
        "mov.u32 %r5, 42;\n"
        "st.shared.u32 [cell], %r5;\nMEET:\nbar.sync 1, 64;\nld.shared.u32 %r6, [cell];\n"
        + store_result("%r6", "u32", 4)
        + "\nEND:\nret;"
    )

    (out,), result = run(kernel_text(body, before=before), np.zeros(96, np.uint32), block=96)

    assert out.tolist() == [42] * 64 + [0] * 32
    assert result.findings == []


def test_barrier_reductions_see_the_whole_block():
    body = (
        "setp.lt.u32 %p0, %r0, 50;\nbarrier.red.popc.aligned.u32 %r5, 0, %p0;\n"
        "barrier.red.or.pred %p1, 0, %p0;\n"
        "barrier.red.and.pred %p2, 0, %p0;\nselp.u32 %r6, 10000, 0, %p1;\nselp.u32 %r7, 20000, 0, %p2;\n"
        "add.u32 %r5, %r5, %r6;\nadd.u32 %r5, %r5, %r7;\n" + store_result("%r5", "u32", 4)
    )

    (out,), _ = run(kernel_text(body), np.zeros(70, np.uint32), block=70)

    assert set(out.tolist()) == {10050}


def test_element_offsets_past_two_to_the_31():
    # a sparse mapping of 9 GB: only the touched pages exist
    import mmap

    elements = 2**31 + 64
    memory = mmap.mmap(-1, elements * 4)
    host = np.frombuffer(memory, np.float32)
    host.flags.writeable = True
    host[2**31 + 5] = 6.5
    device = xp.wrap(host)
    body = (
        "mov.u64 %d5, 2147483653;\nshl.b64 %d6, %d5, 2;\nadd.u64 %d7, %d0, %d6;\n"
        "ld.global.f32 %f1, [%d7];\n"
        "add.f32 %f1, %f1, %f1;\nst.global.f32 [%d7+4], %f1;\nret;"
    )
    module = xp.RawModule(kernel_text(body))

    module.get_function("k")(1, 1, (device,))

    assert host[2**31 + 6] == 13.0
    assert host[5] == 0.0 and host[2**31 + 7] == 0.0
    del host, device


def test_trace_gives_every_result_of_one_warp():
    body = "add.u32 %r5, %r0, 3;\nsetp.lt.u32 %p0, %r0, 2;\n@%p0 bra L;\nmul.lo.u32 %r5, %r5, 2;\nL:\n"
    module = xp.RawModule(kernel_text(body + store_result("%r5", "u32", 4)))
    kernel = module.get_function("k")
    out = xp.zeros(64, np.uint32)
    launch: Launch = kernel.prepare(1, 64, (out,))

    steps = trace_warp(launch, xp.SPACE, module._addresses, block=0, warp=1)

    named = {kernel.program.instructions[s.instruction].name: s for s in steps}
    assert named["add.u32"].values[0].tolist() == [t + 35 for t in range(32)]
    assert named["mul.lo.u32"].active == 0xFFFFFFFF
    assert named["st.global.u32"].values[0].tolist() == [2 * (t + 35) for t in range(32)]


def test_sampled_estimate_leaves_memory_as_it_was():
    body = (
        "mov.u32 %r5, 0;\nLOOP:\nadd.u32 %r5, %r5, 1;\nsetp.lt.u32 %p0, %r5, 10;\n@%p0 bra LOOP;\n"
        "atom.global.add.u32 %r6, [%d0], 1;\n" + store_result("%r5", "u32", 4)
    )
    module = xp.RawModule(kernel_text(body))
    out = xp.zeros(32, np.uint32)

    estimate = module.get_function("k").estimate(100, 32, (out,))

    assert out.get().tolist() == [0] * 32
    assert estimate.lane_instructions == 100 * 32 * (4 + 30 + 1 + 4)
    assert estimate.blocks_run < 100


def test_blocks_are_numbered_so_that_joins_come_after_their_branches():
    text = kernel_text(
        "setp.lt.u32 %p0, %r0, 5;\n@%p0 bra COLD;\nBACK:\nsetp.lt.u32 %p1, %r0, 9;\n@%p1 bra BACK2;\nret;\n"
        "COLD:\nbra BACK;\nBACK2:\nret;"
    )

    program = build(parse(text), "k")

    for block in program.blocks:
        assert all(target > block.index for target in block.targets)  # no loop: every edge goes forward


@pytest.mark.parametrize("length", [0, 1, 255, 256, 257, 600])
@pytest.mark.parametrize("behind", [0, 1, 300])
def test_a_string_is_read_to_its_end_wherever_its_memory_ends(length, behind):
    memory = b"x" * length + b"\0" + b"y" * behind

    assert c_string(lambda address, count: memory[address:][:count], 0) == "x" * length


def test_a_string_without_an_end_ends_with_its_memory_or_is_cut():
    assert c_string(lambda address, count: (b"z" * 300)[address:][:count], 0) == "z" * 300
    assert c_string(lambda address, count: b"z" * count, 0) == "z" * MOST_CHARACTERS
    assert c_string(lambda address, count: b"", 0) == ""
