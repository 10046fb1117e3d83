"""The LLVM engine against the NumPy engine: every opcode row, every stage, cache, threads, interruption."""

from __future__ import annotations

import _thread
import ctypes
import os
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simt_helpers import kernel_text, store_result

from labs_common.compiler import CompilerMissing, compile_ptx
from labs_common.engines import pointer_struct, problem_struct
from labs_common.inputs import make_inputs
from labs_common.problem import PRESETS, Problem
from labs_common.simt import cupy_like as xp
from labs_common.simt import llvm_cache, llvm_emit, llvm_engine, llvm_ops, numpy_engine, ops
from labs_common.simt.errors import BudgetError, Fault
from labs_common.simt.launch import Launch
from labs_common.simt.llvm_runtime import Function
from labs_common.simt.llvm_text import Module
from labs_common.simt.memory import WINDOW, AddressSpace
from labs_common.simt.parse import parse
from labs_common.simt.program import build
from labs_common.simt.vector_math import DTYPES
from labs_common.stages import STAGES

LANES = 32


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "palab"


# ---- opcode rows


def _rows() -> list[ops.Operation]:
    """Every row with a definition of this engine's own, and of those it shares every fifth."""
    own, shared = [], []
    for row in ops.table():
        (own if row.emit is None else shared).append(row)
    few = [r for r in shared if r.name.split(".")[0] not in ("cvt", "set", "setp")]
    many = [r for r in shared if r.name.split(".")[0] in ("cvt", "set", "setp")]
    return own + few[::2] + many[::24]


ROWS = _rows()
CHUNK = 120


def _operand(type_: str, seed: int) -> np.ndarray:
    """32 operands of a type: corners and random bits; small numbers for shift counts and positions."""
    rng = np.random.default_rng(seed)
    if type_ == "pred":
        return rng.integers(0, 2, LANES).astype(bool)
    width = DTYPES[type_].itemsize
    top = 1 << (8 * width - 1)
    corners = [0, 1, 2, top - 1, top, top + 1, 2 * top - 1, 2 * top - 2]
    small = [*rng.integers(0, 70, 8), 31, 32, 33, 63, 64]
    bits = [int.from_bytes(rng.bytes(width), "little") for _ in range(LANES)]
    chosen = np.array([corners[k % 8] if k % 3 == 0 else small[k % 13] if k % 3 == 1 else b
                       for k, b in enumerate(bits)], np.uint64)  # fmt: skip
    if type_ in ("f32", "f64"):  # ordinary numbers too
        numbers = rng.standard_normal(LANES).astype(DTYPES[type_]) * DTYPES[type_].type(100)
        as_bits = chosen.astype(f"u{width}").view(DTYPES[type_]).copy()
        as_bits[::2] = numbers[::2]
        return rng.permutation(as_bits)
    return rng.permutation(chosen).astype(f"u{width}").view(DTYPES[type_])


def _native(rows: list[ops.Operation], lanes: int) -> list:
    """Machine code of each row over 32 elements, as one warp vector (lanes 32) or one after the other."""
    module = Module()
    for k, row in enumerate(rows):
        names = [f"r{n}" for n in range(len(row.results))] + [f"s{n}" for n in range(len(row.sources))]
        f = Function(module, f"row{k}", "void", [("ptr", n) for n in names], internal=False)
        f.begin()
        emit = llvm_ops.emitter(row, WINDOW)
        for lane in range(0, LANES, lanes):
            e = llvm_ops.TextEmitter(f)
            values = []
            for n, type_ in enumerate(row.sources):
                stored = "i8" if type_ == "pred" else llvm_ops.ir_type(type_)
                width = DTYPES[type_].itemsize
                value = f.load(stored, f.pointer(f"%s{n}", lane * width), lanes, align=width)
                values.append(f.cast("trunc", value, "i1") if type_ == "pred" else value)
            made = emit(e, *values)
            for n, (value, type_) in enumerate(zip(made if isinstance(made, tuple) else (made,), row.results,
                                                   strict=True)):  # fmt: skip
                if type_ == "pred":
                    value = f.cast("zext", value, "i8")
                if lanes > 1:
                    value = f.spread(value)
                width = DTYPES[type_].itemsize
                f.store(value, f.pointer(f"%r{n}", lane * width), align=width)
        f.ret()
        f.finish()
    data = llvm_cache.build(module.text(llvm_cache.host()[0], llvm_cache.ATTRIBUTES), llvm_cache.QUICK)
    engine = llvm_cache.map_objects([data])
    return [engine, [engine.get_function_address(f"row{k}") for k in range(len(rows))]]


@pytest.mark.parametrize("lanes", [LANES, 1])
@pytest.mark.parametrize("chunk", range(-(-len(ROWS) // CHUNK)))
def test_rows_compute_what_numpy_computes(chunk, lanes):
    rows = ROWS[chunk * CHUNK : (chunk + 1) * CHUNK]
    if lanes == 1:
        rows = rows[:: max(1, len(rows) // 12)]  # 32 copies of each make much code
    keep, addresses = _native(rows, lanes)
    wrong = []
    for row, address in zip(rows, addresses, strict=True):
        sources = [_operand(t, 7 * k + 1) for k, t in enumerate(row.sources)]
        results = [np.zeros(LANES, DTYPES[t]) for t in row.results]
        arrays = [*results, *sources]
        function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(arrays))(address)
        function(*[a.ctypes.data for a in arrays])
        with np.errstate(all="ignore"):
            expected = row.numpy(*sources)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for got, want, type_ in zip(results, expected, row.results, strict=True):
            if not _same(got, np.broadcast_to(np.asarray(want), LANES), type_):
                wrong.append(row.name)
    assert wrong == []
    del keep


def _same(got: np.ndarray, want: np.ndarray, type_: str) -> bool:
    """Equal bits; the payload of a NaN is nothing to rely on."""
    want = np.ascontiguousarray(want)
    if type_ in ("f32", "f64"):
        both = np.isnan(got) & np.isnan(want)
        return bool(np.all(both | (got.view(f"u{got.itemsize}") == want.view(f"u{want.itemsize}"))))
    return got.tobytes() == want.astype(got.dtype, copy=False).tobytes()


# ---- stages


def _run_stage(stage, problem: Problem, engine: str, checks=xp.ALL_CHECKS):
    """(output and scratch arrays, counters of each launch, findings)."""
    xp.SPACE = AddressSpace()
    inputs = make_inputs(problem, 3)
    plan = stage.plan(problem)
    try:
        ptx = compile_ptx(stage.source(), plan.defines)
    except CompilerMissing as missing:
        pytest.skip(str(missing))
    module = xp.RawModule(ptx, engine=engine, checks=checks)
    arrays = {n: xp.asarray(a) for n, a in inputs.arrays().items()}
    output = xp.full(inputs.query.shape, np.nan, dtype=inputs.query.dtype)
    scratch = {n: xp.full(s, np.nan, dtype=np.float32) for n, s in plan.scratch.items()}
    arguments = [problem_struct(problem, inputs), pointer_struct(arrays), output]
    if scratch:
        arguments.append(pointer_struct(scratch))
    arguments += [np.int32(n) for n in plan.numbers.values()]
    counters, findings = [], []
    for launch in plan.launches:
        kernel = module.get_function(launch.entry)
        if launch.shared_bytes > 48 * 1024:
            kernel.max_dynamic_shared_size_bytes = launch.shared_bytes
        kernel(launch.grid, launch.block, tuple(arguments), shared_mem=launch.shared_bytes)
        counters.append(module.last_launch.counters)
        findings += module.last_launch.findings
    return [output.get(), *(s.get() for s in scratch.values())], counters, findings


@pytest.fixture
def own_space(monkeypatch):
    """Address spaces that a test puts in place end with it."""
    monkeypatch.setattr(xp, "SPACE", xp.SPACE)


def _agree(stage, problem: Problem, checks=xp.ALL_CHECKS) -> None:
    want, reference, expected = _run_stage(stage, problem, "numpy", checks)
    have, counters, findings = _run_stage(stage, problem, "llvm", checks)
    for a, b in zip(want, have, strict=True):
        assert a.tobytes() == b.tobytes()
    for a, b in zip(reference, counters, strict=True):
        assert a.differences(b) == []
        assert a.totals() == b.totals()
        assert a.by_line() == b.by_line()
    assert findings == expected == []


FIRST_STAGES = [s for s in STAGES if s.id[:2] in ("00", "01", "02", "03", "04")]


@pytest.mark.parametrize("stage", FIRST_STAGES, ids=lambda s: s.id)
@pytest.mark.parametrize("checks", [xp.ALL_CHECKS, frozenset()], ids=["checked", "unchecked"])
def test_stages_agree_bit_for_bit_and_count_for_count(stage, checks, own_space):
    _agree(stage, PRESETS["tiny"], checks)
    _agree(stage, PRESETS["ragged"].replace(context_lengths=(0, 1, 16, 37)), checks)


@pytest.mark.parametrize("stage", FIRST_STAGES, ids=lambda s: s.id)
@given(
    kv_heads=st.integers(1, 2),
    group=st.sampled_from([1, 3]),
    head_dim=st.sampled_from([4, 36, 80, 96, 160]),
    page=st.sampled_from([1, 5, 16]),
    contexts=st.lists(st.integers(0, 40), min_size=1, max_size=3),
)
@settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
def test_stages_agree_on_any_shape(stage, own_space, kv_heads, group, head_dim, page, contexts):
    problem = Problem(kv_heads * group, kv_heads, head_dim, page, tuple(contexts))

    _agree(stage, problem)


# ---- launches of small programs


def launch_of(body: str, *arrays: np.ndarray, block=(32, 1, 1), grid=(1, 1, 1), before="", **options):
    """(launch, address space, module addresses, allocations) of a hand-written kernel."""
    module = parse(kernel_text(body, len(arrays), before))
    program = build(module, "k")
    space = AddressSpace()
    held = [space.wrap(a) for a in arrays]
    params = b"".join(a.base.to_bytes(8, "little") for a in held)
    return Launch(program, grid, block, params, **options), space, {}


COUNT = "mad.lo.u32 %r9, %r1, 32, %r0;\nmul.wide.u32 %d5, %r9, 4;\nadd.u64 %d5, %d0, %d5;\n"
LOOP = (
    COUNT + "mov.u32 %r5, 0;\nmov.u32 %r6, 1;\nLOOP:\nmad.lo.u32 %r6, %r6, 1664525, 1013904223;\n"
    "add.u32 %r5, %r5, 1;\nsetp.lt.u32 %p0, %r5, {rounds};\n@%p0 bra LOOP;\nst.global.u32 [%d5], %r6;\nret;"
)


def test_blocks_on_several_threads_give_the_same_as_on_one(own_cache):
    one, many = np.zeros(64 * 32, np.uint32), np.zeros(64 * 32, np.uint32)
    body = LOOP.format(rounds=1000)

    single = llvm_engine.run(*launch_of(body, one, grid=(64, 1, 1)), workers=1)
    spread = llvm_engine.run(*launch_of(body, many, grid=(64, 1, 1)), workers=5)

    assert one.tobytes() == many.tobytes() and one.all()
    assert single.counters.differences(spread.counters) == []
    assert single.counters.lane_instructions == 64 * 32 * (6 + 2 + 4 * 1000 + 2)


def test_a_sample_of_blocks_runs_those_blocks_only():
    out = np.zeros(8 * 32, np.uint32)
    launch, space, addresses = launch_of(COUNT + "st.global.u32 [%d5], 7;\nret;", out, grid=(8, 1, 1))

    result = llvm_engine.run(replace(launch, blocks=(1, 6)), space, addresses)

    assert out.reshape(8, 32).any(1).nonzero()[0].tolist() == [1, 6]
    assert (result.counters.blocks_run, result.counters.blocks_total) == (2, 8)
    assert result.counters.sampled


@pytest.mark.parametrize("workers", [1, 4])
def test_the_lowest_block_at_fault_is_reported_however_many_workers(workers):
    out = np.zeros(4, np.uint32)
    body = (
        "setp.lt.u32 %p0, %r1, 5;\n@%p0 bra END;\nmul.wide.u32 %d5, %r1, 4096;\nadd.u64 %d5, %d0, %d5;\n"
        "st.global.u32 [%d5], 1;\nEND:\nret;"
    )
    for _ in range(5):
        with pytest.raises(Fault) as caught:
            llvm_engine.run(*launch_of(body, out, grid=(40, 1, 1)), workers=workers)

        assert caught.value.finding.block == (5, 0, 0)


def test_progress_ends_at_the_number_of_blocks():
    seen = []
    out = np.zeros(32 * 200, np.uint32)

    launch = launch_of(LOOP.format(rounds=100_000), out, grid=(200, 1, 1))
    llvm_engine.run(*launch, progress=lambda done, total: seen.append((done, total)))

    assert seen and all(0 <= done <= total == 200 for done, total in seen)
    assert [d for d, _ in seen] == sorted(d for d, _ in seen)


def test_ctrl_c_stops_every_worker():
    launch = launch_of("LOOP:\nadd.u32 %r5, %r5, 1;\nbra LOOP;", np.zeros(1, np.uint32), grid=(8, 1, 1),
                       budget=10**15)  # fmt: skip
    threading.Timer(0.4, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        llvm_engine.run(*launch, workers=2)
    left = [t for t in threading.enumerate() if t.name == "simt-llvm-worker" and t.is_alive()]

    assert left == []


@pytest.mark.parametrize("divergent", [False, True])
def test_budget_ends_endless_loops_in_both_kinds_of_code(divergent):
    leave = "setp.eq.u32 %p0, %r0, 3;\n@%p0 bra END;\n" if divergent else ""
    body = leave + "LOOP:\nadd.u32 %r5, %r5, 1;\nbra LOOP;\nEND:\nret;"
    with pytest.raises(BudgetError, match="more than 5000 instructions"):
        llvm_engine.run(*launch_of(body, np.zeros(1, np.uint32), budget=5000))


def test_better_code_takes_over_within_a_launch(own_cache, monkeypatch):
    monkeypatch.setattr(llvm_engine, "PATIENCE", 0.0)
    out = np.zeros(32 * 400, np.uint32)
    launch, space, addresses = launch_of(LOOP.format(rounds=30_000), out, grid=(400, 1, 1))

    llvm_engine.run(launch, space, addresses)
    made = llvm_engine.compiled(launch.program)
    made.settle()

    assert made.native.level == llvm_cache.OPTIMISED
    assert len(set(out.tolist())) == 1


# ---- the disk cache


def _fresh(body: str = COUNT + "st.global.u32 [%d5], %r9;\nret;"):
    out = np.zeros(64, np.uint32)
    launch, space, addresses = launch_of(body, out, grid=(2, 1, 1))
    llvm_engine.run(launch, space, addresses)
    assert out.tolist() == list(range(64))
    return llvm_engine.compiled(launch.program)


def test_code_is_kept_and_found_again(own_cache, monkeypatch):
    _fresh()
    files = {p.name for p in own_cache.iterdir()}
    assert files and not any(name.endswith(".part") for name in files)
    monkeypatch.setattr(llvm_emit.Kernel, "__init__", lambda *_: pytest.fail("built again"))

    _fresh()


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "text"])
def test_a_damaged_cache_is_built_anew(own_cache, damage):
    kept = own_cache / f"{_fresh().key}.o"
    data = bytearray(kept.read_bytes())
    if damage == "empty":
        data = bytearray()
    elif damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "flipped":
        data[len(data) // 2] ^= 0x40
    else:
        data = bytearray(b"not an object file")
    kept.write_bytes(data)

    _fresh()

    assert llvm_cache.fetch(kept.stem) is not None


def test_a_cache_that_cannot_be_written_does_no_harm(own_cache):
    own_cache.parent.mkdir(exist_ok=True)
    own_cache.write_text("a file where the folder should be")

    _fresh()


def test_the_cache_keeps_the_newest_files(own_cache, monkeypatch):
    monkeypatch.setattr(llvm_cache, "MOST_FILES", 3)
    for age in range(5):
        llvm_cache.keep(f"kernel{age}", llvm_cache.Kept(llvm_cache.QUICK, 1024, b"code"))
        os.utime(own_cache / f"kernel{age}.o", (age, age))
    llvm_cache.keep("kernel5", llvm_cache.Kept(llvm_cache.QUICK, 1024, b"code"))

    assert {p.name for p in own_cache.iterdir()} == {"kernel3.o", "kernel4.o", "kernel5.o"}
    assert llvm_cache.fetch("kernel5") == llvm_cache.Kept(llvm_cache.QUICK, 1024, b"code")


def test_other_code_has_another_key():
    bodies = ["mov.u32 %r5, 1;\nret;", "mov.u32 %r5, 2;\nret;"]
    keys = {llvm_engine.compiled(launch_of(b, np.zeros(1, np.uint32))[0].program).key for b in bodies}

    assert len(keys) == 2


# ---- what uniform code guesses, and what happens where the guess is wrong


@pytest.mark.parametrize("block", [32, 48, 96])
def test_scalars_that_differ_between_lanes_after_a_divergence(block):
    # %r5 is written with constants only, in two arms that lanes take apart: no scalar afterwards
    body = (
        "and.b32 %r4, %r0, 1;\nsetp.eq.u32 %p0, %r4, 0;\n@%p0 bra EVEN;\nmov.u32 %r5, 11;\n"
        "bar.warp.sync -1;\nbra JOIN;\nEVEN:\nmov.u32 %r5, 22;\nbar.warp.sync -1;\nJOIN:\n"
        "mul.lo.u32 %r5, %r5, 3;\n" + store_result("%r5", "u32", 4)
    )
    out = np.zeros(block, np.uint32)

    llvm_engine.run(*launch_of(body, out, block=(block, 1, 1)))

    assert out.tolist() == [66 if t % 2 == 0 else 33 for t in range(block)]


def test_loops_that_lanes_leave_one_by_one(own_space):
    # lane k goes round k times; a counter that looks the same for all is not
    body = (
        "mov.u32 %r5, 0;\nmov.u32 %r6, 0;\nLOOP:\nsetp.ge.u32 %p0, %r5, %r0;\n@%p0 bra DONE;\n"
        "add.u32 %r6, %r6, %r5;\nadd.u32 %r5, %r5, 1;\nbra LOOP;\nDONE:\n"
        "mad.lo.u32 %r6, %r5, 1000, %r6;\n" + store_result("%r6", "u32", 4)
    )
    out = np.zeros(45, np.uint32)
    launch, space, addresses = launch_of(body, out, block=(45, 1, 1))

    result = llvm_engine.run(launch, space, addresses)
    reference = numpy_engine.run(launch, space, addresses)

    assert out.tolist() == [1000 * t + t * (t - 1) // 2 for t in range(45)]
    assert reference.counters.differences(result.counters) == []


def test_dynamic_shared_memory_begins_after_the_static_and_starts_anew_in_each_block():
    before = ".shared .align 4 .b8 fixed[64];\n.extern .shared .align 16 .b8 open[];\n"
    body = (
        "mov.u32 %r5, open;\nmov.u32 %r6, fixed;\nsub.u32 %r7, %r5, %r6;\n"
        "st.shared.u32 [open], %r1;\nld.shared.u32 %r8, [open];\n"
        "shl.b32 %r7, %r7, 8;\nadd.u32 %r8, %r8, %r7;\n"
        "mul.wide.u32 %d5, %r1, 4;\nadd.u64 %d5, %d0, %d5;\nst.global.u32 [%d5], %r8;\nret;"
    )
    out = np.zeros(3, np.uint32)

    launch = launch_of(body, out, grid=(3, 1, 1), before=before, shared_dynamic=16)
    llvm_engine.run(*launch)

    assert out.tolist() == [(64 << 8) + k for k in range(3)]


def test_first_result_does_not_wait_for_optimised_code(own_cache, monkeypatch):
    levels = []
    real = llvm_cache.build

    def build_and_note(text: str, level: int) -> bytes:
        levels.append(level)
        return real(text, level)

    llvm_cache.runtime_object()
    monkeypatch.setattr(llvm_cache, "build", build_and_note)
    _fresh()

    assert levels == [llvm_cache.QUICK]


def test_values_are_given_back_while_python_runs_on():
    """Machine code runs without Python's lock: this thread counts while a launch goes on."""
    out = np.zeros(32 * 64, np.uint32)
    launch = launch_of(LOOP.format(rounds=200_000), out, grid=(64, 1, 1))
    thread = threading.Thread(target=llvm_engine.run, args=launch)
    thread.start()
    turns = 0
    while thread.is_alive():
        turns += 1
        time.sleep(0.001)
    thread.join()

    assert turns > 3 and out.all()
