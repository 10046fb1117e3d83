"""Time on a GPU: whole calls by graph replay, interleaved, beside plain reading in the same run."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labs_common.source import Source

if TYPE_CHECKING:
    from labs_common.engines import Engine
    from labs_common.problem import Problem

L2_BYTES = 256 << 20  # more than any L2 cache holds
CEILING_BYTES = 4 << 30  # one buffer, far past any L2
ROUNDS = 21
# (threads per block, blocks per multiprocessor, loads in flight per thread); the best differs by GPU and size
CEILING_SHAPES = ((1024, 2, 4), (1024, 2, 8), (1024, 2, 16), (512, 4, 8), (256, 8, 8))

PEAK_LINKS, PEAK_ROUNDS = 32, 4096  # LINKS of fp32_peak.cu, and rounds of its loop in one call
# (threads per block, blocks per multiprocessor, chains per thread)
PEAK_SHAPES = ((256, 8, 4), (256, 8, 8), (512, 4, 4), (1024, 2, 4), (128, 16, 8))


@dataclass(frozen=True)
class Timing:
    """Time of one call.

    Attributes:
        median_s, p90_s: seconds over the rounds; each round's value is the mean over the calls of a graph.
        sets: different input sets that a round goes through.
        rounds: measurements.
        calls: of a graph, which goes through the sets once or more often.
    """

    median_s: float
    p90_s: float
    sets: int
    rounds: int
    calls: int


def captured(stream: Any, calls: Sequence[Callable[[], None]]) -> Any:
    """A CUDA graph of calls, made on the current stream: replayed, none of them waits for the host."""
    for call in (*calls, *calls):
        call()  # outside the capture: modules are loaded, and allocators have what a second call takes
    stream.synchronize()
    stream.begin_capture()
    for call in calls:
        call()
    return stream.end_capture()


def time_gpu(
    xp: Any,
    calls: Mapping[str, Sequence[Callable[[], None]]],
    rounds: int = ROUNDS,
    between: Callable[[], None] | None = None,
    graph_s: float = 0.0,
) -> dict[str, Timing]:
    """Time several calls against each other.

    Each call's input sets are captured in one CUDA graph, once or more often; every round replays each graph
    once between two events, in an order of its own: drift of clocks meets all of them alike, and none always
    comes after the same other one, which is worth up to 10 % of a call of 20 us.

    Args:
        xp: CuPy.
        calls: per name, the same call on different input sets, which together should pass the L2 cache.
        rounds: how often each graph is measured, after two replays that are not.
        between: called before each graph is replayed, and not measured: what the L2 cache holds is worth up
            to several per cent, see ``refill_l2``.
        graph_s: seconds that a graph takes at least, more or less, by going through the sets again and again:
            the longer it is, the less its launch counts, and what others left in caches of addresses.
    """
    stream = xp.cuda.Stream(non_blocking=True)
    graphs, counts = {}, {}
    with stream:
        for name, sets in calls.items():
            graphs[name], counts[name] = captured(stream, sets), len(sets)
            graphs[name].launch(stream)
            start, end = xp.cuda.Event(), xp.cuda.Event()
            start.record(stream)
            graphs[name].launch(stream)
            end.record(stream)
            end.synchronize()
            once = xp.cuda.get_elapsed_time(start, end) / 1e3
            if once < graph_s:
                again = list(sets) * math.ceil(graph_s / max(once, 1e-6))
                graphs[name], counts[name] = captured(stream, again), len(again)
                graphs[name].launch(stream)
                graphs[name].launch(stream)
        events = {name: [] for name in graphs}
        random = np.random.default_rng(0)
        for _ in range(rounds):
            for name in random.permutation(list(graphs)):
                start, end = xp.cuda.Event(), xp.cuda.Event()
                if between is not None:
                    between()
                start.record(stream)
                graphs[name].launch(stream)
                end.record(stream)
                events[name].append((start, end))
        stream.synchronize()
    timings = {}
    for name, pairs in events.items():
        seconds = [xp.cuda.get_elapsed_time(*pair) / 1e3 / counts[name] for pair in pairs]
        timings[name] = Timing(
            float(np.median(seconds)),
            float(np.quantile(seconds, 0.9)),
            len(calls[name]),
            rounds,
            counts[name],
        )
    return timings


def ceiling_bytes(engine: Engine) -> int:
    """``CEILING_BYTES``, or as much of it (halved) as the GPU has free."""
    nbytes = CEILING_BYTES
    while nbytes > engine.xp.cuda.Device().mem_info[0] * 0.8:
        nbytes //= 2
    return nbytes


def ceiling_calls(engine: Engine, nbytes: int) -> dict[str, list[Callable[[], None]]]:
    """Calls that read ``nbytes`` (a multiple of 16) of memory, one per launch shape, for ``time_gpu``.

    Buffers that are small against the L2 cache are rotated.
    """
    xp = engine.xp
    properties = xp.cuda.runtime.getDeviceProperties(xp.cuda.Device().id)
    rotation = max(1, -(-4 * properties["l2CacheSize"] // nbytes))
    buffer = xp.empty(rotation * nbytes // 4, dtype=np.uint32)
    buffer[:] = xp.arange(buffer.size, dtype=np.uint32)  # zeros can read faster than data
    sink = xp.zeros(65536, dtype=np.uint32)
    return {
        f"read {'x'.join(map(str, shape))}": [
            reading(engine, shape, buffer[i * nbytes // 4 : (i + 1) * nbytes // 4], sink)
            for i in range(rotation)
        ]
        for shape in CEILING_SHAPES
    }


def refill_l2(engine: Engine) -> Callable[[], None]:
    """A call that reads more than any L2 cache holds, as kernels read that say nothing of L2.

    Whatever comes next finds L2 full of lines that somebody else read, as attention does after the weights
    of a model. A read of lines to be evicted first would not do: those evict each other, and what was
    written before them stays in L2, where it cost a plain read 2 % and stage 09 1.7 to 5.5 % on an H200
    (``study_l2``).
    """
    words = engine.xp.zeros(L2_BYTES // 4, dtype=np.uint32)
    sink = engine.xp.zeros(65536, dtype=np.uint32)
    return reading(engine, CEILING_SHAPES[0], words, sink, streamed=False)


def reading(
    engine: Engine, shape: tuple[int, int, int], words: Any, sink: Any, streamed: bool = True
) -> Callable[[], None]:
    """A call that reads words once.

    Args:
        engine: a GPU.
        shape: one of ``CEILING_SHAPES``.
        words: an array of 4-byte words, a multiple of four.
        sink: what the call could write to, and never does: 65,536 words.
        streamed: its lines are to be evicted first, as those of what is read once.
    """
    threads, blocks, loads = shape
    source = Source.read(Path(__file__).with_name("read_ceiling.cu"))
    defines = {"LOADS": loads, "STREAMED": int(streamed)}
    kernel = engine.module(source, defines).get_function("read_ceiling")
    properties = engine.xp.cuda.runtime.getDeviceProperties(engine.xp.cuda.Device().id)
    grid = (properties["multiProcessorCount"] * blocks, 1, 1)
    return functools.partial(kernel, grid, (threads, 1, 1), (words, sink, np.uint64(words.nbytes // 16)))


def read_ceiling(engine: Engine, nbytes: int, rounds: int = ROUNDS) -> float:
    """Bytes per second of the best plain read of ``nbytes`` of memory."""
    return ceiling_of(time_gpu(engine.xp, ceiling_calls(engine, nbytes), rounds), nbytes)


def ceiling_of(timings: Mapping[str, Timing], nbytes: int) -> float:
    """Bytes per second of the best launch shape of ``ceiling_calls`` among some timings."""
    return nbytes / min(t.median_s for name, t in timings.items() if name.startswith("read "))


def figures(timing: Timing, problem: Problem, ceiling: float) -> dict[str, float]:
    """What tables say of a timing: microseconds, and bandwidth beside the ceiling.

    Args:
        timing: of one call.
        problem: that the call solves; its minimum bytes are what counts.
        ceiling: bytes per second of plain reading in the same run.
    """
    bandwidth = problem.bandwidth(timing.median_s)
    return {
        "median_us": 1e6 * timing.median_s,
        "p90_us": 1e6 * timing.p90_s,
        "GB/s": bandwidth / 1e9,
        "% of read ceiling": 100 * bandwidth / ceiling,
        "ceiling_GB/s": ceiling / 1e9,
    }


def peak_calls(engine: Engine, rounds: int = PEAK_ROUNDS) -> dict[str, tuple[list[Callable[[], None]], int]]:
    """Calls that do nothing but fp32 fused multiply-adds, one per launch shape, for ``time_gpu``.

    Returns:
        Per shape the calls, and the operations of one call: two for every fused multiply-add.
    """
    xp = engine.xp
    multiprocessors = xp.cuda.runtime.getDeviceProperties(xp.cuda.Device().id)["multiProcessorCount"]
    sink = xp.zeros(65536, dtype=np.float32)
    source = Source.read(Path(__file__).with_name("fp32_peak.cu"))
    calls = {}
    for threads, blocks, chains in PEAK_SHAPES:
        kernel = engine.module(source, {"CHAINS": chains}).get_function("fp32_peak")
        grid = (multiprocessors * blocks, 1, 1)
        arguments = (sink, np.float32(0.999), np.int32(rounds))
        operations = 2 * grid[0] * threads * chains * PEAK_LINKS * rounds
        bound = functools.partial(kernel, grid, (threads, 1, 1), arguments)
        calls[f"fp32 {threads}x{blocks}x{chains}"] = ([bound], operations)
    return calls


def fp32_peak(engine: Engine, rounds: int = ROUNDS) -> float:
    """fp32 operations per second of the best launch shape, a fused multiply-add counted as two."""
    calls = peak_calls(engine)
    timings = time_gpu(engine.xp, {name: bound for name, (bound, _) in calls.items()}, rounds)
    return max(operations / timings[name].median_s for name, (_, operations) in calls.items())
