"""Ceilings that kernels are held against, counted without a GPU."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from labs_common import timing
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
    timings = {name: timing.Timing(s, s, 1, 1) for name, s in seconds.items()}
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
    assert np.isclose(timing.ceiling_of({"read a": timing.Timing(2, 2, 1, 1)}, 10), 5)
