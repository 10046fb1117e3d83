"""Ceilings that kernels are held against, counted without a GPU."""

import contextlib
import re
from types import SimpleNamespace

import numpy as np
import pytest

from labs_common import timing
from labs_common.compiler import compile_ptx
from labs_common.engines import SimulatorEngine
from labs_common.simt import cupy_like


@pytest.fixture
def engine(monkeypatch):
    """The simulator as a GPU of three multiprocessors."""
    runtime = SimpleNamespace(getDeviceProperties=lambda _: {"multiProcessorCount": 3, "l2CacheSize": 1024})
    cuda = SimpleNamespace(runtime=runtime, Device=lambda: SimpleNamespace(id=0))
    monkeypatch.setattr(cupy_like, "cuda", cuda, raising=False)
    return SimulatorEngine()


def test_the_fp32_peak_counts_the_operations_that_are_executed(engine, monkeypatch):
    monkeypatch.setattr(timing, "PEAK_SHAPES", ((64, 2, 4), (32, 1, 8)))

    for name, ((call,), operations) in timing.peak_calls(engine, rounds=3).items():
        call()
        counted = call.func.module.last_launch.counters.totals()
        assert 2 * counted["ffma_lanes"] == operations, name
        assert counted["global_load_requests"] == counted["global_store_requests"] == 0
        assert counted["fadd_lanes"] < 0.02 * counted["ffma_lanes"]  # the folding at the end
    source = (timing.Path(timing.__file__).with_name("fp32_peak.cu")).read_text()
    assert re.search(r"#define LINKS (\d+)", source)[1] == str(timing.PEAK_LINKS)


def test_the_peak_is_that_of_the_best_shape(engine, monkeypatch):
    monkeypatch.setattr(timing, "PEAK_SHAPES", ((64, 2, 4), (32, 1, 8)))
    seconds = {"fp32 64x2x4": 2.0, "fp32 32x1x8": 1.0}
    timings = {name: timing.Timing(s, s, 1, 1, 1) for name, s in seconds.items()}
    monkeypatch.setattr(timing, "time_gpu", lambda *_: timings)

    best = max(2 * 3 * 2 * 64 * 4 * 32 * 4096 / 2.0, 2 * 3 * 1 * 32 * 8 * 32 * 4096 / 1.0)
    assert timing.fp32_peak(engine) == best


def test_the_read_ceiling_reads_every_byte_once(engine, monkeypatch):
    monkeypatch.setattr(timing, "CEILING_SHAPES", ((32, 1, 4),))
    nbytes = 96 * 16 * 9  # no multiple of the loads in flight

    for calls in timing.ceiling_calls(engine, nbytes).values():
        calls[0]()
        counted = calls[0].func.module.last_launch.counters.totals()
        assert 32 * counted["global_load_sectors"] == nbytes
    assert np.isclose(timing.ceiling_of({"read a": timing.Timing(2, 2, 1, 1, 1)}, 10), 5)


def test_l2_is_refilled_by_reads_that_push_others_out(engine, monkeypatch):
    """Lines to be evicted first, which .cs reads leave, make room for each other alone."""
    monkeypatch.setattr(timing, "L2_BYTES", 96 * 16 * 9)
    monkeypatch.setattr(timing, "CEILING_SHAPES", ((32, 1, 4),))
    built = []
    module = engine.module
    monkeypatch.setattr(engine, "module", lambda *what: built.append(what) or module(*what))

    call = timing.refill_l2(engine)
    timing.ceiling_calls(engine, 96 * 16 * 9)

    call()
    assert 32 * call.func.module.last_launch.counters.totals()["global_load_sectors"] == 96 * 16 * 9
    as_usual, streamed = (compile_ptx(source, defines) for source, defines in built)
    assert "ld.global.cg" in as_usual and "ld.global.cs" not in as_usual
    assert "ld.global.cs" in streamed and "ld.global.cg" not in streamed


class Gpu:
    """CuPy's streams, events and graphs on a clock in ms: a graph takes 3 us, and what its calls take."""

    def __init__(self):
        self.now, self.captured, self.lengths = 0.0, None, []
        self.cuda = SimpleNamespace(
            Stream=lambda non_blocking: Stream(self),
            Event=lambda: Event(self),
            get_elapsed_time=lambda start, end: end.at - start.at,
        )

    def call(self, microseconds):
        def run():
            if self.captured is None:
                self.now += microseconds / 1e3
            else:
                self.captured.append(microseconds)

        return run

    def launch(self, calls):
        self.lengths.append(len(calls))
        self.now += (3 + sum(calls)) / 1e3


class Event:
    def __init__(self, gpu):
        self.gpu = gpu

    def record(self, _):
        self.at = self.gpu.now

    def synchronize(self):
        pass


class Stream(contextlib.nullcontext):
    def __init__(self, gpu):
        super().__init__()
        self.gpu = gpu

    def synchronize(self):
        pass

    def begin_capture(self):
        self.gpu.captured = []

    def end_capture(self):
        calls, self.gpu.captured = self.gpu.captured, None
        return SimpleNamespace(launch=lambda _: self.gpu.launch(calls))


def test_a_call_of_a_graph_takes_its_part_of_the_graph():
    gpu = Gpu()

    found = timing.time_gpu(gpu, {"a": [gpu.call(99), gpu.call(101)], "b": [gpu.call(4000)]}, rounds=3)

    assert found["a"].median_s == pytest.approx(101.5e-6) and found["a"].calls == found["a"].sets == 2
    assert found["b"].median_s == pytest.approx(4003e-6) and found["b"].calls == found["b"].sets == 1


def test_a_short_graph_goes_through_its_sets_again_and_a_long_one_does_not():
    """203 us of 1 ms: five times, so that the graph's own 3 us are spread over ten calls."""
    gpu = Gpu()
    read = gpu.call(60)

    found = timing.time_gpu(
        gpu, {"a": [gpu.call(99), gpu.call(101)], "b": [gpu.call(4000)]}, 3, between=read, graph_s=1e-3
    )

    assert found["a"].median_s == found["a"].p90_s == pytest.approx(100.3e-6)
    assert found["a"].calls == 10 and found["a"].sets == 2 and found["a"].rounds == 3
    assert found["b"].median_s == pytest.approx(4003e-6) and found["b"].calls == 1
    assert sorted(gpu.lengths[-6:]) == [1, 1, 1, 10, 10, 10]
    assert gpu.lengths.count(10) == 3 + 2  # two that are not measured


def test_rounds_have_an_order_of_their_own():
    gpu = Gpu()

    timing.time_gpu(gpu, {n: [gpu.call(1)] * (n + 1) for n in range(5)}, rounds=8)

    rounds = [tuple(gpu.lengths[-40:][first : first + 5]) for first in range(0, 40, 5)]
    assert all(sorted(one) == [1, 2, 3, 4, 5] for one in rounds) and len(set(rounds)) > 4


def test_figures_of_a_timing_by_hand():
    problem = SimpleNamespace(bandwidth=lambda seconds: 6e6 / seconds)

    found = timing.figures(timing.Timing(2e-6, 3e-6, 2, 5, 4), problem, ceiling=4e12)

    assert list(found) == ["median_us", "p90_us", "GB/s", "% of read ceiling", "ceiling_GB/s"]
    assert list(found.values()) == pytest.approx([2, 3, 3000, 75, 4000])
