"""Arrays, modules and counters as a notebook sees them through CuPy's calls."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from simt_helpers import kernel_text, run, store_result

from labs_common.simt import cupy_like as xp
from labs_common.simt.counters import NCU_METRICS, PER_LINE
from labs_common.simt.errors import LaunchError
from labs_common.simt.memory import GAP, AddressSpace, describe
from labs_common.simt.parse import Frame

FILES = '.file 1 "/lab/a.cu"\n.file 2 "/lab/b.cuh"\n.section .debug_str\n{\nN:\n.b8 102,111,111,0\n}\n'
ADD_ONE = (
    "mul.wide.u32 %d5, %r0, 4;\nadd.u64 %d5, %d5, %d0;\nld.global.u32 %r5, [%d5];\nadd.u32 %r5, %r5, 1;\n"
    "st.global.u32 [%d5], %r5;\nret;"
)


def test_asarray_copies_and_wrap_shares():
    host = np.arange(4, dtype=np.uint32)
    copied, shared = xp.asarray(host), xp.wrap(host)
    kernel = xp.RawModule(kernel_text(ADD_ONE)).get_function("k")

    kernel(1, 4, (copied,))

    assert host.tolist() == [0, 1, 2, 3] and copied.get().tolist() == [1, 2, 3, 4]

    kernel(1, 4, (shared,))

    assert host.tolist() == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="contiguous"):
        xp.wrap(np.zeros((4, 4))[:, 1])


def test_attributes_agree_with_numpy():
    host = np.arange(24, dtype=np.float16).reshape(2, 3, 4)
    array = xp.asarray(host)

    for name in ("shape", "dtype", "nbytes", "size", "ndim", "strides", "itemsize"):
        assert getattr(array, name) == getattr(host, name)
    assert array.flags.c_contiguous
    assert len(array) == 2
    assert np.array_equal(xp.asnumpy(array), host) and xp.asnumpy(array) is not array.host


def test_views_point_into_their_array_and_keep_it_alive():
    array = xp.asarray(np.arange(12, dtype=np.uint32).reshape(3, 4))
    row = array[1]
    base = array.data.ptr

    assert row.data.ptr == base + 16
    assert array.reshape(12)[5:].data.ptr == base + 20
    assert array.ravel().view(np.uint8)[3:].data.ptr == base + 3

    del array
    gc.collect()
    xp.RawModule(kernel_text(ADD_ONE)).get_function("k")(1, 4, (row,))

    assert row.get().tolist() == [5, 6, 7, 8]


def test_filling_and_setting():
    array = xp.zeros((2, 2), np.int32)
    array.fill(7)
    array[0, 1] = 9

    assert array.get().tolist() == [[7, 9], [7, 7]]

    array.set(np.array([[1, 2], [3, 4]], np.int32))

    assert array.get().tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match="set"):
        array.set(np.zeros((2, 2), np.float32))
    assert xp.full(3, 2.5, np.float32).get().tolist() == [2.5] * 3
    assert xp.ones(2, np.int8).get().tolist() == [1, 1]
    assert xp.arange(3, dtype=np.int16).get().tolist() == [0, 1, 2]
    assert xp.zeros_like(array).get().tolist() == [[0, 0], [0, 0]]


def test_addresses_are_deterministic_aligned_and_apart():
    def addresses() -> list[int]:
        space = AddressSpace()
        return [space.allocate(size).base for size in (1, 1000, 3_000_000, 0, 5)]

    first, second = addresses(), addresses()

    assert first == second
    assert all(a % 256 == 0 for a in first)
    sizes = (1, 1000, 3_000_000, 0)
    assert all(b - a >= size + GAP for a, b, size in zip(first, first[1:], sizes, strict=False))


def test_finding_and_freeing_allocations():
    space = AddressSpace()
    one, two = space.allocate(100, "one"), space.allocate(50, "two")

    assert space.find(one.base) is one and space.find(one.end - 1) is one
    assert space.find(one.end) is None and space.find(one.base - 1) is None
    assert "1 bytes after" in describe(space, one.end) and "(one)" in describe(space, one.end)
    assert "8 bytes before" in describe(space, two.base - 8) and "(two)" in describe(space, two.base - 8)

    space.free(one)

    assert space.find(one.base) is None and space.find(two.base) is two
    assert space.allocate(10).base > two.end  # an address is never given out twice


def test_module_takes_cuda_text_with_a_compiler_and_names_its_kernels():
    calls = []

    def compiler(code: str, options: tuple[str, ...]) -> str:
        calls.append((code, options))
        return kernel_text(ADD_ONE)

    module = xp.RawModule("// a kernel\n__global__ void k();", options=("-DX=1",), compile=compiler)

    assert calls == [("// a kernel\n__global__ void k();", ("-DX=1",))]
    with pytest.raises(LaunchError, match="found k"):
        module.get_function("nothing")
    with pytest.raises(ValueError, match="compile="):
        xp.RawModule("__global__ void k();")


def test_resources_come_from_the_caller_and_are_none_when_unknown():
    class Figures:
        num_regs = 40
        local_size_bytes = 16
        const_size_bytes = 400
        shared_size_bytes = 128

    text = kernel_text("ret;")
    known = xp.RawModule(text, resources=lambda name: Figures if name == "k" else None).get_function("k")
    unknown = xp.RawModule(text).get_function("k")

    assert (known.num_regs, known.shared_size_bytes, known.attributes["local_size_bytes"]) == (40, 128, 16)
    assert unknown.num_regs is None and unknown.shared_size_bytes == 0
    assert unknown.max_threads_per_block == 1024
    assert unknown.max_dynamic_shared_size_bytes == 48 * 1024


def test_counts_per_line_sum_up_and_keep_the_inlined_chain():
    body = (
        ".loc 1 10 3\nadd.u32 %r5, %r0, 1;\n.loc 2 20 5, function_name N, inlined_at 1 10 3\n"
        "add.u32 %r6, %r5, 1;\n"
        ".loc 1 11 1\nadd.u32 %r7, %r6, 1;\n.loc 1 10 9\nadd.u32 %r7, %r7, 1;\n.loc 1 12 1\n"
    )
    _, result = run(
        kernel_text(body + store_result("%r7", "u32", 4)) + FILES, np.zeros(64, np.uint32), block=64
    )

    lines = dict(result.counters.by_line())

    outer, inlined = Frame("/lab/a.cu", 10, 0), Frame("/lab/b.cuh", 20, 0, "foo")
    assert lines[(outer,)]["thread_instructions"] == 2 * 64  # two instructions, in two columns
    assert lines[(inlined, Frame("/lab/a.cu", 10, 0))]["warp_instructions"] == 2
    assert lines[(Frame("/lab/a.cu", 12, 0),)]["global_store_sectors"] == 8
    totals = result.counters.totals()
    for name in PER_LINE:
        assert sum(counts[name] for counts in lines.values()) == totals[name]
    assert set(totals) == set(NCU_METRICS)


def test_mix_and_floating_point_lanes():
    body = (
        "cvt.rn.f32.u32 %f1, %r0;\nfma.rn.f32 %f2, %f1, %f1, %f1;\nmul.ftz.f32 %f3, %f2, %f1;\n"
        "add.f32 %f4, %f3, %f1;\n"
        "sub.f32 %f4, %f4, %f1;\nsetp.lt.u32 %p0, %r0, 5;\n@%p0 fma.rn.f32 %f4, %f1, %f1, %f4;\n"
    )
    _, result = run(kernel_text(body + store_result("%f4", "f32", 4)), np.zeros(40, np.float32), block=40)

    totals, mix = result.counters.totals(), result.counters.mix()
    assert totals["ffma_lanes"] == 40 + 5
    assert (totals["fmul_lanes"], totals["fadd_lanes"]) == (40, 80)
    assert mix["ffma"] == 80  # issued for every active lane, switched off in 35
    assert sum(mix.values()) == totals["thread_instructions"] == result.counters.lane_instructions
    assert result.counters.ideal_sectors() == 5


def test_running_some_blocks_is_marked_as_a_sample():
    module = xp.RawModule(kernel_text(store_result("%r1", "u32", 4)))
    out = xp.full(32, 99, np.uint32)

    module.get_function("k")(10, 32, (out,), blocks=[7])

    counters = module.last_launch.counters
    assert out.get().tolist() == [7] * 32
    assert counters.sampled and (counters.blocks_run, counters.blocks_total) == (1, 10)
    assert counters.scaled() == 10


def test_same_launch_gives_the_same_counts_however_it_is_batched():
    body = (
        "shl.b32 %r5, %r0, 3;\nxor.b32 %r5, %r5, %r1;\nand.b32 %r5, %r5, 255;\nmul.wide.u32 %d5, %r5, 4;\n"
        "add.u64 %d5, %d5, %d0;\nld.global.u32 %r6, [%d5];\nsetp.gt.u32 %p0, %r6, 100;\n@%p0 bra L;\n"
        "add.u32 %r6, %r6, 1;\nL:\nst.global.u32 [%d5+1024], %r6;\nret;"
    )
    module = xp.RawModule(kernel_text(body))
    kernel = module.get_function("k")
    array = xp.asarray(np.r_[np.arange(256), np.zeros(256)].astype(np.uint32))

    kernel(40, 70, (array,))
    whole = module.last_launch.counters
    parts = []
    for block in range(40):
        kernel(40, 70, (array,), blocks=[block])
        parts.append(module.last_launch.counters)

    for name in ("block_warps", "block_lanes", "global_requests", "sectors", "divergent"):
        assert sum(getattr(p, name) for p in parts).tolist() == getattr(whole, name).tolist()
    assert whole.differences(whole) == []
    assert parts[0].differences(whole) != []
