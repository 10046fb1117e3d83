"""Fuzzing: half a minute of it, that it would notice, and what it has found so far."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simt_helpers import kernel_text, run, store_result

from labs_common import fuzz as fuzzing
from labs_common.compiler import CompileError, compile_ptx
from labs_common.fuzz import BUDGET, Case, Outcome, Report, compiled, fuzz, judge, make_case, small_kernels
from labs_common.mutate import mutate_cuda, mutate_ptx
from labs_common.simt import cupy_like, numpy_engine
from labs_common.simt import cupy_like as xp
from labs_common.simt.errors import PtxError, UnsupportedError
from labs_common.source import Source
from labs_common.stages import STAGES
from labs_common.worker import WorkerDied

SEED = int(os.environ.get("PALAB_FUZZ_SEED", "20260101"))


@pytest.mark.fuzz
@pytest.mark.timeout(600)
def test_half_a_minute_of_fuzzing_finds_nothing(capsys):
    report = fuzz(30, SEED, Path("out/fuzz"))
    with capsys.disabled():
        print(f"\nfuzzing: {report.summary()}")

    assert report.failures == [], "\n".join(
        f"{case.seed}: {outcome.words}" for case, outcome in report.failures
    )
    assert report.counts["ran"] and report.counts["refused"] and report.counts["stopped"]


# ---- that it would notice


def original(name: str, threads: int = 32) -> Case:
    return Case(0, "kernel", name, small_kernels()[name], None, threads)


@pytest.mark.parametrize("threads", [32, 96])
@pytest.mark.parametrize("name", list(small_kernels()))
def test_the_small_kernels_are_clean_before_they_are_mutated(name, threads):
    case = original(name, threads)

    assert judge(case, compiled(case)) == Outcome("ran")


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.id)
def test_the_stages_fit_the_budget(stage):
    case = Case(0, "kernel", stage.id, stage.source().text, stage, 64)

    assert judge(case, compiled(case)) == Outcome("ran")


def test_a_case_follows_from_its_seed_and_differs_from_what_it_came_from():
    kinds = Counter()
    for seed in range(60):
        case = make_case(seed)
        assert case == make_case(seed)
        kinds[case.kind] += 1
        if case.kind == "kernel":
            assert case.text not in [*small_kernels().values(), *(stage.source().text for stage in STAGES)]
    assert set(kinds) == {"bytes", "ptx", "kernel"}


def test_a_miscount_of_one_engine_is_seen(monkeypatch):
    case = original("reduce")
    real = numpy_engine.run

    def miscounting(*arguments):
        result = real(*arguments)
        result.counters.sectors[np.flatnonzero(result.counters.sectors)[0]] += 1
        return result

    monkeypatch.setattr(numpy_engine, "run", miscounting)
    outcome = judge(case, compiled(case))

    assert outcome.kind == "failed" and "do not agree on counts" in outcome.words
    assert "sectors" in outcome.words


def test_a_wrong_byte_of_one_engine_is_seen(monkeypatch):
    case = original("branches")
    real = cupy_like.run_launch

    def corrupting(launch, addresses, engine):
        result = real(launch, addresses, engine)
        if engine == "llvm":
            xp.SPACE.allocations[-1].host[40] ^= 1
        return result

    monkeypatch.setattr(cupy_like, "run_launch", corrupting)
    outcome = judge(case, compiled(case))

    assert outcome.kind == "failed" and "do not agree on memory" in outcome.words


@pytest.mark.parametrize("error", [KeyError("x"), MemoryError(), RecursionError(), PtxError("no line")])
def test_an_error_of_another_kind_or_without_a_line_is_seen(monkeypatch, error):
    def failing(*arguments):
        raise error

    case = original("branches")
    ptx = compiled(case)
    monkeypatch.setattr(cupy_like, "run_launch", failing)
    outcome = judge(case, ptx)

    assert outcome.kind == "failed" and type(error).__name__ in outcome.words


def test_what_depends_on_the_order_of_warps_is_told_apart():
    """Warps run one after the other in one engine and side by side in the other; both are right."""
    text = """extern "C" __global__ void k(const float* in, const int* numbers, float* out, int* slots) {
  volatile int* v = slots;
  for (int i = 0; i < 20; ++i) v[0] = v[0] + 1;
  out[threadIdx.x] = v[0];
}
"""
    case = Case(0, "kernel", "", text, None, 96)

    assert judge(case, compiled(case)).kind == "order"
    assert judge(replace(case, threads=32), compiled(case)).kind == "ran"


class Dying:
    """A worker whose child dies at one function."""

    def __init__(self, at, words):
        self.at, self.words = at, words

    def call(self, function, *arguments, timeout_s):
        if function is self.at:
            raise WorkerDied(self.words)
        return make_case(2) if function is make_case else "ptx"


def test_a_crash_and_a_hang_fail_and_a_compiler_that_never_ends_is_listed():
    report = Report(2)
    case, crash = fuzzing._in_child(Dying(judge, "exit status -11"), 2, "", report)
    assert crash.kind == "failed" and "while running: exit status -11" in crash.words and case.seed == 2
    _, hang = fuzzing._in_child(Dying(judge, "no answer within 60 s"), 2, "", report)
    assert hang.kind == "failed"
    assert report.compilers == []

    _, slow = fuzzing._in_child(Dying(compiled, "no answer within 60 s"), 2, "", report)
    assert slow.kind == "refused" and [c.seed for c in report.compilers] == [2]
    _, crash = fuzzing._in_child(Dying(compiled, "exit status -6"), 2, "", report)
    assert crash.kind == "failed"


def test_a_failing_case_is_saved_whole(tmp_path):
    case = Case(17, "ptx", "warps", "text \udc80\n", None, 64)
    path = fuzzing.save(case, Outcome("failed", "what it was"), tmp_path)

    assert path.read_text(encoding="utf-8", errors="surrogatepass") == case.text
    assert (tmp_path / "17.txt").read_text() == "seed 17: ptx of warps, 64 threads\nwhat it was\n"


def test_mutations_change_little():
    import random

    text = compile_ptx(Source("reduce.cu", small_kernels()["reduce"]))
    for seed in range(50):
        changed = mutate_ptx(random.Random(seed), text)
        assert changed != text
        kept = sum((Counter(text.splitlines()) & Counter(changed.splitlines())).values())
        assert kept >= len(text.splitlines()) - 8 or len(changed) < len(text)  # or cut short
        assert mutate_cuda(random.Random(seed), small_kernels()["warps"]) != small_kernels()["warps"]


# ---- what it has found


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("mul.wide.s32 %r5, %r0, 4;", "a s64 result does not fit %r5"),
        ("add.s32 %r5, %p1, 4;", "%p1 of type pred is no s32 operand"),
        ("add.u64 %d5, %r0, 4;", "%r0 of type b32 is no u64 operand"),
        ("vote.sync.all.pred %r5, %p1, -1;", "a pred result does not fit %r5"),
        ("selp.b32 %r5, %r0, %r1, %r2;", "%r2 of type b32 is no pred operand"),
        ("ld.global.f32 %h1, [%d0];", "a f32 result does not fit %h1"),
        ("ld.global.f32 %d5, [%d0];", "a f32 result does not fit %d5"),
        ("st.global.f32 [%d0], %d0;", "%d0 of type b64 is no f32 operand"),
        ("cvt.rn.f32.s32 %d5, %r0;", "a f32 result does not fit %d5"),
        ("ld.global.v2.f32 {%f1, %p1}, [%d0];", "a f32 result does not fit %p1"),
        ("st.global.u64 [%d0], %r1;", "%r1 of type b32 is no u64 operand"),
        ("st.global.u32 [%p1], %r1;", "%p1 of type pred is no address"),
        ("atom.global.add.u32 %p1, [%d0], 1;", "a u32 result does not fit %p1"),
        ("st.global.v2.f32 [%d0], {%f1, %f1, %f1};", "3 sources"),
        ("add.s32 4, %r0, 4;", "a result must be a register"),
        ("add.f32 %d5, %d0, %d1;", "a f32 result does not fit %d5"),
        ("shl.b32 %r5, %d0, 1;", "%d0 of type b64 is no b32 operand"),
        ("bar.red.popc.u32 %r5, 0, %r1;", "%r1 of type b32 is no pred operand"),
    ],
)
@pytest.mark.parametrize("engine", ["numpy", "llvm"])
def test_an_operand_that_does_not_fit_is_refused_before_anything_runs(engine, statement, said):
    text = kernel_text(f"{statement}\nret;")
    module = xp.RawModule(text, engine=engine, budget=BUDGET)
    with pytest.raises(UnsupportedError) as caught:
        module.get_function("k")

    assert said in str(caught.value)
    assert text.splitlines()[caught.value.line - 1] == statement


def test_a_null_character_and_an_end_too_early_have_their_line():
    with pytest.raises(PtxError, match=r"PTX line 3: .*NUL"):
        xp.parse(".version 9.0\n.target sm_90\n.address\0_size 64\n")
    with pytest.raises(CompileError) as caught:
        compile_ptx(Source("mine.cu", 'extern "C" __global__ void k() {\n\n  int a;\n'))
    assert caught.value.diagnostics == [("mine.cu", 4, 'expected a "}"')]


def test_a_predicate_that_varies_in_one_place_and_not_in_another():
    """One register, first set lane by lane, then by a vote: the branch after the vote does not diverge."""
    body = """
and.b32 %r2, %r0, 3;
setp.eq.s32 %p1, %r2, 0;
mov.u32 %r5, 1;
@%p1 bra FIRST;
mov.u32 %r5, 2;
FIRST:
setp.gt.s32 %p2, %r0, 4;
vote.sync.all.pred %p1, %p2, -1;
@%p1 bra SECOND;
add.u32 %r5, %r5, 10;
SECOND:
"""
    text = kernel_text(body + store_result("%r5", "u32", 4))
    expected = np.where(np.arange(32) % 4 == 0, 11, 12)
    for engine in ("numpy", "llvm"):
        (out,), result = run(text, np.zeros(32, np.uint32), engine=engine)

        np.testing.assert_array_equal(out, expected)
        assert result.counters.totals()["divergent_branches"] == 1


def test_what_others_allocate_and_free_meanwhile_is_no_difference(monkeypatch):
    """Only a case's own memory is compared, whatever else lives in the process."""
    others = [xp.zeros(8), xp.zeros(8)]
    case = original("reduce")
    observe = fuzzing._observe

    def observe_and_free(*arguments):
        seen = observe(*arguments)
        if others:
            others.pop()
        return seen

    monkeypatch.setattr(fuzzing, "_observe", observe_and_free)

    assert judge(case, compiled(case)) == Outcome("ran")
    assert not others
