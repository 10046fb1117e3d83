"""What goes wrong on the simulator is reported at once, by name, place and reason; Python never goes down."""

from __future__ import annotations

import _thread
import random
import threading
import time

import numpy as np
import pytest
from simt_helpers import HEADER, kernel_text, run, store_result

from labs_common.simt import cupy_like as xp
from labs_common.simt.errors import (
    BudgetError,
    Fault,
    LaunchError,
    PtxError,
    SimulationError,
    TrapError,
    UnsupportedError,
)

FILE = '.file 1 "/lab/kernels/student.cu"\n'


def at(line: int, text: str) -> str:
    """Instructions attributed to a source line."""
    return f".loc 1 {line} 3\n{text}\n"


def fault_of(body: str, *arrays, block=32, grid=1, before="", shared=0) -> Fault:
    text = kernel_text(body, max(len(arrays), 1), before) + FILE
    with pytest.raises(Fault) as caught:
        run(text, *(arrays or (np.zeros(64, np.uint32),)), block=block, grid=grid, shared=shared)
    return caught.value


@pytest.mark.parametrize(
    ("offset", "kind"), [(4 * 8, "after"), (-4, "before"), (1 << 33, "after"), (4 * 7 + 2, "misaligned")]
)
@pytest.mark.parametrize("verb", ["ld", "st"])
def test_global_accesses_are_held_to_their_allocation(offset, kind, verb):
    access = f"ld.global.u32 %r5, [%d5+{offset}];" if verb == "ld" else f"st.global.u32 [%d5+{offset}], %r0;"
    body = at(7, "mov.u64 %d5, %d0;") + at(
        9, f"setp.ne.u32 %p0, %r0, 3;\n@%p0 bra END;\n{access}\nEND:\nret;"
    )

    finding = fault_of(body, np.zeros(8, np.uint32), block=(4, 2), grid=3).finding

    assert finding.tool == "memcheck"
    assert finding.kind == f"Invalid __global__ {'read' if verb == 'ld' else 'write'} of size 4 bytes"
    assert (finding.file, finding.line) == ("/lab/kernels/student.cu", 9)
    assert (finding.block, finding.thread) == ((0, 0, 0), (3, 0, 0))
    assert kind in finding.message


@pytest.mark.parametrize("engine", ["numpy", "llvm"])
@pytest.mark.parametrize("verb", ["write", "atomic"])
def test_memory_that_numpy_may_not_write_no_kernel_may(verb, engine):
    """An atomic that adds nothing writes all the same."""
    host = np.full(8, 3, np.uint32)
    host.flags.writeable = False
    access = "st.global.u32 [%d0], %r0;" if verb == "write" else "atom.global.add.u32 %r5, [%d0], 0;"
    kernel = xp.RawModule(kernel_text(at(9, access + "\nret;"), 1) + FILE, engine=engine).get_function("k")

    with pytest.raises(Fault) as caught:
        kernel(1, 32, (xp.wrap(host),))

    finding = caught.value.finding
    assert (finding.kind, finding.line) == (f"Invalid __global__ {verb} of size 4 bytes", 9)
    assert finding.message == "the memory is read-only"
    assert host.tolist() == [3] * 8


def test_vector_access_must_be_aligned_to_its_whole_size():
    finding = fault_of(
        at(4, "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%d0+8];\nret;"), np.zeros(32, np.float32)
    ).finding

    assert finding.kind == "Invalid __global__ read of size 16 bytes"
    assert "misaligned" in finding.message


def test_access_that_straddles_the_end_is_out_of_bounds():
    body = at(3, "ld.global.u64 %d5, [%d0+8];\nret;")

    assert "beyond" in fault_of(body, np.zeros(3, np.uint32)).finding.message


def test_freed_memory_is_out_of_bounds():
    array = xp.zeros(4, np.uint32)
    pointer = np.uint64(array.data.ptr)
    del array
    module = xp.RawModule(kernel_text("ld.global.u32 %r5, [%d0];\nret;"))

    with pytest.raises(Fault, match="out of bounds"):
        module.get_function("k")(1, 1, (pointer,))


@pytest.mark.parametrize("space", ["shared", "local"])
def test_shared_and_local_bounds(space):
    declared = ".shared .align 4 .b8 data[64];\n" if space == "shared" else ""
    local = ".local .align 4 .b8 data[64];\n" if space == "local" else ""
    body = local + at(
        5,
        f"mov.u64 %d5, data;\nmul.wide.u32 %d6, %r0, 4;\nadd.u64 %d5, %d5, %d6;\n"
        f"st.{space}.u32 [%d5], %r0;\nret;",
    )

    finding = fault_of(body, before=declared).finding

    assert finding.kind == f"Invalid __{space}__ write of size 4 bytes"
    assert finding.thread == (16, 0, 0)
    assert finding.address == 64


def test_too_little_dynamic_shared_memory_is_found():
    before = ".extern .shared .align 4 .b8 data[];\n"
    body = at(
        8,
        "mul.wide.u32 %d6, %r0, 4;\nmov.u64 %d5, data;\nadd.u64 %d5, %d5, %d6;\n"
        "st.shared.u32 [%d5], %r0;\nret;",
    )

    assert fault_of(body, before=before, shared=64).finding.thread == (16, 0, 0)


def test_unwritten_shared_word_is_an_error_at_the_reading_line():
    # A3: a block of 96 threads leaves the fourth warp's sum unwritten, and one thread reads it
    before = ".shared .align 4 .b8 sums[16];\n"
    body = (
        "and.b32 %r5, %r0, 31;\nshr.u32 %r6, %r0, 5;\nsetp.ne.u32 %p0, %r5, 0;\n@%p0 bra MEET;\n"
        "mul.wide.u32 %d5, %r6, 4;\nmov.u64 %d6, sums;\nadd.u64 %d6, %d6, %d5;\n"
        + at(11, "st.shared.u32 [%d6], %r0;")
        + "MEET:\n"
        + at(12, "bar.sync 0;")
        + at(14, "ld.shared.u32 %r7, [sums+12];\nret;")
    )

    finding = fault_of(body, block=96, before=before).finding

    assert (finding.tool, finding.line, finding.address) == ("initcheck", 14, 12)


def test_unwritten_global_scratch_is_noted():
    array = xp.empty(8, np.float32)
    array[:4] = 1.0
    text = (
        kernel_text(
            at(6, "mul.wide.u32 %d5, %r0, 4;\nadd.u64 %d5, %d5, %d0;\nld.global.f32 %f1, [%d5];\nret;")
        )
        + FILE
    )
    module = xp.RawModule(text)

    module.get_function("k")(1, 4, (array,))

    assert module.last_launch.findings == []

    module.get_function("k")(1, 8, (array,))

    (finding,) = module.last_launch.findings
    assert (finding.tool, finding.line, finding.thread) == ("initcheck", 6, (4, 0, 0))


# ---- E1 races


RACE_BEFORE = ".shared .align 4 .b8 data[512];\n"


def race_body(barrier: str) -> str:
    """Every thread writes its word and reads its neighbour's of the next warp."""
    return (
        "mov.u64 %d5, data;\nmul.wide.u32 %d6, %r0, 4;\nadd.u64 %d7, %d5, %d6;\n"
        + at(20, "st.shared.u32 [%d7], %r0;")
        + at(21, barrier)
        + "add.u32 %r5, %r0, 32;\nand.b32 %r5, %r5, 127;\nmul.wide.u32 %d8, %r5, 4;\n"
        "add.u64 %d8, %d8, %d5;\n" + at(22, "ld.shared.u32 %r6, [%d8];") + store_result("%r6", "u32", 4)
    )


def test_read_after_write_without_a_barrier_is_a_race():
    text = kernel_text(race_body(""), before=RACE_BEFORE) + FILE

    _, result = run(text, np.zeros(128, np.uint32), block=128)

    (finding,) = result.findings
    assert finding.tool == "racecheck" and "Read-After-Write" in finding.kind
    assert finding.line == 22 and "line 20" in finding.message


def test_barrier_ends_the_race():
    (out,), result = run(
        kernel_text(race_body("bar.sync 0;"), before=RACE_BEFORE) + FILE, np.zeros(128, np.uint32), block=128
    )

    assert result.findings == []
    assert out.tolist() == [(t + 32) % 128 for t in range(128)]


def test_missing_second_barrier_is_a_write_after_read():
    # a loop that overwrites what other warps may still be reading
    body = (
        "mov.u32 %r9, 0;\nmov.u32 %r10, 0;\nmov.u64 %d5, data;\nLOOP:\nshr.u32 %r11, %r0, 5;\n"
        "setp.ne.u32 %p0, %r0, 0;\n@%p0 bra MEET;\n"
        + at(30, "st.shared.u32 [data], %r9;")
        + "MEET:\n"
        + at(31, "bar.sync 0;")
        + at(32, "ld.shared.u32 %r12, [data];")
        + "add.u32 %r10, %r10, %r12;\nadd.u32 %r9, %r9, 1;\nsetp.lt.u32 %p1, %r9, 4;\n@%p1 bra LOOP;\nret;"
    )

    _, result = run(kernel_text(body, before=RACE_BEFORE) + FILE, np.zeros(1, np.uint32), block=64)

    (finding,) = result.findings
    assert "Write-After-Read" in finding.kind and (finding.line, finding.address) == (30, 0)
    assert "line 32" in finding.message


def test_two_warps_writing_one_word_is_a_race_and_atomics_are_not():
    body = at(40, "st.shared.u32 [data], %r1;\nret;")
    atomic = "setp.ne.u32 %p0, %r0, 0;\n@%p0 bra GO;\nmov.u32 %r5, 0;\nst.shared.u32 [data], %r5;\nGO:\n"
    atomic += "bar.sync 0;\n"
    atomic += "atom.shared.add.u32 %r6, [data], 1;\nbar.sync 0;\nld.shared.u32 %r7, [data];\n"
    atomic += store_result("%r7", "u32", 4)

    _, plain = run(kernel_text(body, before=RACE_BEFORE) + FILE, np.zeros(1, np.uint32), block=64)
    (out,), clean = run(kernel_text(atomic, before=RACE_BEFORE), np.zeros(64, np.uint32), block=64)

    assert ["Write-After-Write" in f.kind for f in plain.findings] == [True]
    assert clean.findings == [] and set(out.tolist()) == {64}


# ---- E2, E3 shuffles


def test_full_mask_that_names_exited_lanes():
    # D = 80: threads 80-95 return first
    body = "setp.ge.u32 %p0, %r0, 80;\n@%p0 ret;\n" + at(15, "shfl.sync.down.b32 %r6, %r0, 16, 31, -1;\nret;")

    finding = fault_of(body, block=96).finding

    assert (finding.tool, finding.line) == ("synccheck", 15)
    assert "names exited lane 16" in finding.message and finding.thread == (64, 0, 0)


def test_full_mask_that_names_lanes_the_block_does_not_have():
    assert (
        "names absent lane 11"
        in fault_of(at(15, "redux.sync.max.s32 %r6, %r0, -1;\nret;"), block=11).finding.message
    )


def test_lane_outside_its_own_mask():
    assert "does not name" in fault_of(at(3, "shfl.sync.idx.b32 %r6, %r0, 0, 31, 15;\nret;")).finding.message


def test_lanes_that_never_arrive_at_a_shuffle():
    before = ".shared .align 4 .b8 data[4];\n"
    body = (
        "setp.lt.u32 %p0, %r0, 16;\n@%p0 bra MEET;\n"
        + at(9, "bar.sync 0;\nMEET:\n")
        + at(12, "shfl.sync.bfly.b32 %r6, %r0, 16, 31, -1;\nret;")
    )

    finding = fault_of(body, before=before).finding

    assert finding.tool == "synccheck"


def test_warp_barrier_ignores_exited_lanes():
    body = "setp.ge.u32 %p0, %r0, 20;\n@%p0 ret;\nbar.warp.sync -1;\n" + store_result("%r0", "u32", 4)

    (out,), _ = run(kernel_text(body), np.zeros(32, np.uint32))

    assert out.tolist() == [*range(20), *[0] * 12]


# ---- E4 barriers


def test_barrier_of_the_even_threads_only():
    body = (
        "and.b32 %r5, %r0, 1;\nsetp.ne.u32 %p0, %r5, 0;\n@%p0 bra END;\n"
        + at(17, "bar.sync 0;")
        + "END:\nret;"
    )
    started = time.perf_counter()

    finding = fault_of(body, block=64).finding

    assert time.perf_counter() - started < 1
    assert (finding.tool, finding.line) == ("synccheck", 17)
    assert "threads 1, 3, 5" in finding.message and "exited" in finding.message


def test_barrier_skipped_by_continue():
    # odd threads skip the barrier in each round and wait for the others at the one after the loop
    body = (
        "mov.u32 %r9, 0;\nLOOP:\nand.b32 %r5, %r0, 1;\nsetp.ne.u32 %p0, %r5, 0;\n@%p0 bra NEXT;\n"
        + at(23, "bar.sync 0;")
        + "NEXT:\nadd.u32 %r9, %r9, 1;\nsetp.lt.u32 %p1, %r9, 3;\n@%p1 bra LOOP;\n"
        + at(27, "bar.sync 0;\nret;")
    )

    finding = fault_of(body, block=64).finding

    assert finding.tool == "synccheck" and finding.line == 23 and "27" in finding.message


def test_barrier_in_one_warp_only():
    body = (
        "setp.ge.u32 %p0, %r0, 32;\n@%p0 bra END;\n"
        + at(18, "bar.sync 0;")
        + "END:\n"
        + at(20, "bar.sync 0;\nret;")
    )

    finding = fault_of(body, block=128).finding

    assert finding.line == 18 and "threads 32-127 wait at another barrier, line 20" in finding.message


def test_barrier_under_a_condition_that_is_the_same_for_all_is_fine():
    body = "setp.ne.u32 %p0, %r1, 0;\n@%p0 bra OTHER;\nbar.sync 0;\nbra END;\n"
    body += "OTHER:\nbar.sync 0;\nEND:\nret;"

    _, result = run(kernel_text(body), np.zeros(1, np.uint32), block=64, grid=2)

    assert result.findings == []


# ---- E5 endless loops, traps


def test_endless_loop_ends_on_the_budget_with_its_line():
    body = at(33, "LOOP:\nadd.u32 %r5, %r5, 1;\nbra LOOP;")

    with pytest.raises(BudgetError, match=r"student\.cu:33"):
        run(kernel_text(body) + FILE, np.zeros(1, np.uint32), budget=100_000)


def test_ctrl_c_ends_a_launch():
    threading.Timer(0.3, _thread.interrupt_main).start()

    with pytest.raises(KeyboardInterrupt):
        run(kernel_text("LOOP:\nadd.u32 %r5, %r5, 1;\nbra LOOP;"), np.zeros(1, np.uint32), budget=10**12)


def test_trap_names_its_thread():
    body = "setp.eq.u32 %p0, %r0, 7;\n" + at(5, "@%p0 trap;\nret;")
    with pytest.raises(TrapError) as caught:
        run(kernel_text(body) + FILE, np.zeros(1, np.uint32))

    assert caught.value.finding.thread == (7, 0, 0) and caught.value.finding.line == 5


def test_failed_assert_is_quoted():
    before = (
        ".extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, "
        ".param .b64 d, .param .b64 e);\n"
        f".global .align 1 .b8 what[6] = {{{', '.join(str(b) for b in b'n > 0')}, 0}};\n"
        f".global .align 1 .b8 where[5] = {{{', '.join(str(b) for b in b'a.cu')}, 0}};\n"
    )
    body = (
        "setp.ne.u32 %p0, %r0, 3;\n@%p0 bra END;\nmov.u64 %d5, what;\nmov.u64 %d6, where;\n{\n"
        ".param .b64 a;\n"
        ".param .b64 b;\n.param .b32 c;\n.param .b64 d;\n.param .b64 e;\nst.param.b64 [a], %d5;\n"
        "st.param.b64 [b], %d6;\nst.param.b32 [c], 12;\nst.param.b64 [d], %d5;\nst.param.b64 [e], 1;\n"
        "call.uni __assertfail, (a, b, c, d, e);\n}\nEND:\nret;"
    )
    with pytest.raises(TrapError, match=r"a\.cu:12: assertion `n > 0` failed"):
        run(kernel_text(body, before=before), np.zeros(1, np.uint32))


# ---- launches


@pytest.mark.parametrize(
    ("grid", "block", "message"),
    [
        (0, 32, r"grid\.x = 0"),
        ((1, 65536), 32, r"grid\.y = 65536"),
        (1, 1025, r"block\.x = 1025"),
        (1, (32, 32, 2), "2048 threads"),
        (1, (1, 1, 65), r"block\.z = 65"),
        (1, 2.5, "block must be"),
        ((1, 1, 1, 1), 32, "grid must be"),
    ],
)
def test_launch_shapes_beyond_cuda_are_refused(grid, block, message):
    with pytest.raises(LaunchError, match=message):
        run(kernel_text("ret;"), np.zeros(1, np.uint32), block=block, grid=grid)


def test_shared_memory_needs_opting_in_and_ends_at_the_device():
    module = xp.RawModule(kernel_text("ret;"))
    kernel, array = module.get_function("k"), xp.zeros(1, np.uint32)

    kernel(1, 1, (array,), shared_mem=48 * 1024)
    with pytest.raises(LaunchError, match="max_dynamic_shared_size_bytes"):
        kernel(1, 1, (array,), shared_mem=48 * 1024 + 1)
    kernel.max_dynamic_shared_size_bytes = 100 * 1024
    kernel(1, 1, (array,), shared_mem=100 * 1024)
    with pytest.raises(LaunchError, match="at most"):
        kernel(1, 1, (array,), shared_mem=300 * 1024)
    with pytest.raises(LaunchError, match="allowed are"):
        kernel.max_dynamic_shared_size_bytes = 300 * 1024


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (1.5,),
        (3,),
        (np.float32(1),),
        (np.zeros(3, np.float32),),
        (np.uint32(3),),
        (np.uint64(3), np.uint64(4)),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_anything_runs(arguments):
    module = xp.RawModule(kernel_text("trap;"))

    with pytest.raises(LaunchError, match="k"):
        module.get_function("k")(1, 1, arguments)


def test_structs_are_passed_by_value_and_their_size_is_checked():
    text = HEADER + (
        ".visible .entry k(.param .align 8 .b8 s[16], .param .u64 p)\n{\n.reg .b32 %r<3>;\n"
        ".reg .b64 %d<4>;\n"
        "ld.param.u64 %d1, [p];\nld.param.u32 %r1, [s];\nld.param.u64 %d2, [s+8];\n"
        "st.global.u32 [%d1], %r1;\n"
        "st.global.u64 [%d1+8], %d2;\nret;\n}\n"
    )
    pair = np.dtype([("a", np.int32), ("b", np.uint64)], align=True)
    out = xp.zeros(2, np.uint64)
    kernel = xp.RawModule(text).get_function("k")

    kernel(1, 1, (np.array((7, 2**40), pair)[()], out))

    assert out.get().tolist() == [7, 2**40]
    with pytest.raises(LaunchError, match="12 bytes"):
        kernel(1, 1, (np.array((7, 2**40), np.dtype([("a", np.int32), ("b", np.uint64)]))[()], out))


def test_launch_bounds_of_the_kernel_are_kept():
    text = kernel_text("ret;").replace("\n{", "\n.maxntid 64, 1, 1\n{", 1)

    with pytest.raises(LaunchError, match="64"):
        run(text, np.zeros(1, np.uint32), block=96)


# ---- what is not simulated


@pytest.mark.parametrize(
    "instruction",
    [
        "wgmma.fence.sync.aligned;",
        "cp.async.bulk.commit_group;",
        "mbarrier.init.shared.b64 [%d0], 1;",
        "add.cc.f32 %f5, %f5, %f6;",
        "tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%d0, {%r5}];",
        "frobnicate.u32 %r5, %r6;",
        "add.u31 %r5, %r6, %r6;",
    ],
)
def test_unknown_instructions_are_refused_by_name_and_line_before_anything_runs(instruction):
    text = kernel_text("setp.ge.u32 %p0, %r0, 0;\n@%p0 trap;\n" + at(6, f"{instruction}\nret;")) + FILE

    with pytest.raises((UnsupportedError, PtxError)) as caught:
        run(text, np.zeros(1, np.uint32))

    assert caught.value.line > 0
    assert "student.cu:6" in str(caught.value) or not isinstance(caught.value, UnsupportedError)


# ---- junk


@pytest.mark.parametrize(
    "text",
    ["", "hello", "\x7fELF\x02\x01\x01\0\0\0", ".version 9.0", HEADER + ".entry",
     HEADER + ".visible .entry k(", "{}}{",
     HEADER + ".visible .entry k() { add.u32 %r1, %r2, ; }", HEADER + ".visible .entry k() { bra NOWHERE; }",
     HEADER + ".visible .entry k() { .reg .b32 %r<99999999999>; }", HEADER + '.file 1 "unterminated'],
)  # fmt: skip
def test_junk_is_an_error_and_never_a_crash(text):
    with pytest.raises((SimulationError, KeyError, ValueError)):
        module = xp.RawModule(text)
        module.get_function("k")


def test_mutated_programs_either_run_or_fail_with_our_own_errors():
    body = (
        "mul.wide.u32 %d5, %r0, 4;\nadd.u64 %d5, %d5, %d0;\nld.global.f32 %f1, [%d5];\nmov.u32 %r5, 0;\n"
        "LOOP:\n"
        "fma.rn.ftz.f32 %f1, %f1, %f1, %f1;\nadd.u32 %r5, %r5, 1;\nsetp.lt.u32 %p0, %r5, 3;\n"
        "@%p0 bra LOOP;\n"
        "shfl.sync.bfly.b32 %r6, %r5, 1, 31, -1;\nbar.sync 0;\nst.global.f32 [%d5], %f1;\nret;"
    )
    text = kernel_text(body)
    rng = random.Random(7)
    ran = 0
    for _ in range(250):
        letters = list(text)
        for _ in range(rng.randint(1, 4)):
            where = rng.randrange(len(letters))
            letters[where] = rng.choice([rng.choice(text), rng.choice("%{}[]();,.:@!|-+0159xfu \n"), ""])
        try:
            run("".join(letters), np.zeros(32, np.float32), budget=20_000)
            ran += 1
        except (SimulationError, KeyError, ValueError):
            pass

    assert 0 < ran < 250  # some mutants are harmless, most are not
