"""Asynchronous copies of the NumPy engine: what cp.async has read and not yet written to shared memory.

The data are read when the copy starts and written when the thread that started it waits for its group, the
latest moment that CUDA allows: a missing wait shows what was there before. A thread's copies land in the
order in which they started. Shared words that a copy is on its way to are marked; reading or writing one is
reported, by whichever thread and with whatever barrier, as nothing but the wait orders the copy's write. For
racecheck it is a write twice: where it starts, after which it may happen any time, and where it was awaited.

A block that ends with copies on their way is no finding: the PTX ISA does not forbid it, compute-sanitizer
does not report it, and nobody is left to see what they write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .errors import Dim3, Finding, elsewhere
from .ops import past_l1

if TYPE_CHECKING:
    from .numpy_engine import Batch, Lanes

# copies that a warp may have on their way; with one more the oldest lands, as it may at any time on a GPU
CAPACITY = 256


@dataclass
class Copy:
    """One executed cp.async: an element for each of its lanes.

    waiting: the data are not in shared memory yet. lanes are numbers within the batch, index is the byte in
    the batch's shared array, group how many groups the thread had committed before, order how many copies its
    warp had started before.
    """

    instruction: int
    lanes: np.ndarray
    index: np.ndarray
    data: np.ndarray  # uint32, a row for each lane
    group: np.ndarray
    order: np.ndarray
    waiting: np.ndarray


class Copies:
    """The copies of one batch that have not landed."""

    def __init__(self, batch: Batch):
        self.batch = batch
        self.committed = np.zeros(batch.lanes.n, np.int64)
        self.started = np.zeros(int(batch.warp_of[-1]) + 1, np.int64)
        self.queue: list[Copy] = []
        self.marked = np.zeros(-(-batch.memory.shared.size // 4), bool) if self._reports else None

    @property
    def _reports(self) -> bool:
        return "synccheck" in self.batch.launch.checks

    # ---- cp.async

    def start(self, lanes: Lanes, i: int, target: np.ndarray, source: np.ndarray, limit=None) -> None:
        """Check and count the copy of each lane and read its data; limit: bytes read, the rest is zeros."""
        memory = self.batch.memory
        access = memory.access[i]
        span = access.width * access.count
        target, source = (np.ascontiguousarray(np.broadcast_to(a, lanes.n)) for a in (target, source))
        memory.counters.global_requests[i] += lanes.warps
        data = np.zeros((lanes.n, access.count), np.uint32)
        if limit is None:
            self._read(lanes, i, source, data)
        else:
            self._read_limited(lanes, i, source, data, np.broadcast_to(limit, lanes.n))
        index = memory.index(lanes, i, access, "shared", target, span, "write")
        if past_l1(self.batch.launch.program.instructions[i]):
            reads = np.ones(lanes.n, bool) if limit is None else np.broadcast_to(limit, lanes.n) > 0
            self._count(lanes, i, source, target, reads)
        else:
            memory.count_wavefronts(lanes, i, target, span)
        numbers = lanes.numbers
        order = self.started[lanes.warp]
        if len(self.queue) >= CAPACITY:
            oldest = self.started - CAPACITY
            self._land(lambda copy: copy.order <= oldest[self.batch.warp_of[copy.lanes]], lanes)
        self.touched(lanes, i, index, span, write=True)
        if self.batch.races is not None:
            self.batch.races.access(lanes, i, index, span, True)
            self.batch.races.same_store(lanes, i, index, list(data.T))
        self.started[lanes.warp[lanes.starts]] += 1
        waiting = np.ones(lanes.n, bool)
        self.queue.append(Copy(i, numbers, index, data, self.committed[numbers], order, waiting))
        if self.marked is not None:
            for k in range(access.count):
                self.marked[(index >> 2) + k] = True

    def _read(self, lanes: Lanes, i: int, source: np.ndarray, data: np.ndarray) -> None:
        memory = self.batch.memory
        access = memory.access[i]
        span = access.width * access.count
        for allocation, offset, positions in memory.locate(lanes, i, access, "global", source, span, "read"):
            sub = lanes if positions is None else lanes.subset(positions)
            self._touch(sub, i, allocation, offset)
            data[slice(None) if positions is None else positions] = self._gather(sub, i, allocation, offset)

    def _gather(self, lanes: Lanes, i: int, allocation, offset: np.ndarray) -> np.ndarray:
        memory = self.batch.memory
        count = memory.access[i].count
        memory.check_written(lanes, i, allocation, offset, np.dtype(np.uint32), count)
        parts = memory.gather(allocation.host, offset, 0, np.dtype(np.uint32), count)
        return np.stack(parts, 1)

    def _read_limited(self, lanes: Lanes, i: int, source, data: np.ndarray, limit: np.ndarray) -> None:
        """A lane whose limit is 0 does not look at its source; one between reads its first bytes."""
        memory = self.batch.memory
        access = memory.access[i]
        span = access.width * access.count
        whole, part = np.flatnonzero(limit >= span), np.flatnonzero((limit > 0) & (limit < span))
        if len(whole) and not len(part):
            sub = lanes.subset(whole)
            read = np.zeros((len(whole), access.count), np.uint32)
            self._read(sub, i, source[whole], read)
            data[whole] = read
            return
        some = np.flatnonzero(limit > 0)
        for position in some:  # lane after lane: this is the end of an array, as a rule
            one = lanes.subset(np.array([position]))
            address = source[position : position + 1]
            if limit[position] >= span:
                ((allocation, offset, _),) = memory.locate(one, i, access, "global", address, span, "read")
                data[position] = self._gather(one, i, allocation, offset)
                continue
            if int(address[0]) & (span - 1):
                text = f"Address {int(address[0]):#x} is misaligned"
                kind = f"Invalid __global__ read of size {span} bytes"
                memory.fault(one, i, "memcheck", kind, address, 0, text)
            row = data[position].view(np.uint8)
            for k in range(int(limit[position])):
                ((allocation, offset, _),) = memory.locate(
                    one, i, access, "global", address + np.uint64(k), 1, "read"
                )
                row[k] = allocation.host[int(offset[0])]
        if len(some):
            sub = lanes.subset(some)
            for allocation, offset, positions in memory.locate(
                sub, i, access, "global", source[some], 1, "read"
            ):
                here = sub if positions is None else sub.subset(positions)
                self._touch(here, i, allocation, offset)

    def _touch(self, lanes: Lanes, i: int, allocation, offset: np.ndarray) -> None:
        """The sectors that are read; of a copy past L1 `_count` says how many that makes."""
        if past_l1(self.batch.launch.program.instructions[i]):
            allocation.sectors(False)[offset >> 5] = 1
        else:
            self.batch.memory.count_sectors(lanes, i, allocation, offset, False, requests=False)

    def _count(self, lanes: Lanes, i: int, source: np.ndarray, target: np.ndarray, reads: np.ndarray) -> None:
        """What copies past L1 cost, by warp; see `Counters`. reads: the lanes that read any bytes.

        Where a warp's lanes write zeros only, a line of shared memory takes one pass: a guess, not measured.
        """
        counters = self.batch.memory.counters
        counters.shared_requests[i] += lanes.warps
        warp, sector, box = (
            lanes.warp.astype(np.int64),
            source.view(np.int64) >> 5,
            target.view(np.int64) >> 5,
        )
        line, row = sector >> 2, box >> 2
        zeros = ~reads
        if zeros.any():
            written = np.unique(np.stack((warp[reads], row[reads])), axis=1)
            either = np.unique(np.stack((warp, row)), axis=1)
            counters.wavefronts[i] += either.shape[1] - written.shape[1]
            warp, sector, box, line, row = (a[reads] for a in (warp, sector, box, line, row))
            if not len(warp):
                return
        order = np.lexsort((box, sector, row, line, warp))
        warp, sector, box, line, row = (a[order] for a in (warp, sector, box, line, row))

        def begins(*keys: np.ndarray) -> np.ndarray:
            """Where any of the keys is another than before."""
            return np.r_[True, np.any([k[1:] != k[:-1] for k in keys], axis=0)]

        lines = begins(warp, line, row)
        sectors = lines | begins(sector)
        pairs = sectors | begins(box)
        each = np.add.reduceat(pairs.astype(np.int64), np.flatnonzero(sectors))
        counters.sectors[i] += len(each)
        counters.copy_sectors[i] += int(each.sum())
        counters.wavefronts[i] += int(np.maximum.reduceat(each, np.flatnonzero(lines[sectors])).sum())

    # ---- groups

    def commit(self, lanes: Lanes) -> None:
        """cp.async.commit_group"""
        self.committed[lanes.numbers] += 1

    def wait(self, lanes: Lanes, keep: int | None) -> None:
        """cp.async.wait_group with all but the newest `keep` groups; None: wait_all."""
        here = np.zeros(len(self.committed), bool)
        here[lanes.numbers] = True
        if keep is None:
            self.commit(lanes)
            self._land(lambda copy: here[copy.lanes], lanes)
            return
        done = self.committed - keep
        self._land(lambda copy: here[copy.lanes] & (copy.group < done[copy.lanes]), lanes)

    def _land(self, chosen, lanes: Lanes) -> None:
        """Write what has been waiting and is chosen, copy after copy."""
        left = []
        for copy in self.queue:
            now = copy.waiting & chosen(copy)
            if now.any():
                self._write(copy, slice(None) if now.all() else np.flatnonzero(now), lanes)
                copy.waiting &= ~now
            if copy.waiting.any():
                left.append(copy)
        self.queue = left

    def _write(self, copy: Copy, which, lanes: Lanes) -> None:
        batch, memory = self.batch, self.batch.memory
        word = np.dtype(np.uint32)
        index, data, numbers = copy.index[which], copy.data[which], copy.lanes[which]
        span = 4 * data.shape[1]
        first = index >> 2
        shared = memory.view("shared", word)
        for k in range(data.shape[1]):
            shared[first + k] = data[:, k]
            if self.marked is not None:
                self.marked[first + k] = False
        if memory.initcheck:
            memory.mark(memory.view("written", word), index, 4, data.shape[1])
        if batch.races is not None:
            batch.races.access(type(lanes)(batch, numbers), copy.instruction, index, span, True)

    # ---- other accesses to shared memory

    def touched(self, lanes: Lanes, i: int, index: np.ndarray, span: int, write: bool) -> None:
        """Report a read or write of words that a copy is on its way to, once for each source line.

        What is read after a write is the write's: it alone is reported.
        """
        if not self.queue or self.marked is None:
            return
        words = max(span // 4, 1)
        first = index >> 2
        parts = np.stack([self.marked[first + k] for k in range(words)], 1)
        lane_has = parts.any(1)
        if not lane_has.any():
            return
        at = int(np.argmax(lane_has))
        word = int(first[at]) + int(np.argmax(parts[at]))
        batch, memory = self.batch, self.batch.memory
        copy, position = self._copy_to(word)
        owner = batch.who(int(copy.lanes[position]))[1]
        address = word * 4 % memory.shared_stride
        file, line = batch.source_of(i)
        copied_at = elsewhere(batch.location_of(copy.instruction), file)
        batch.note(in_flight(file, line, *lanes.who(at), address, owner, copied_at, write), i)
        for k in range(words):
            hit = first[parts[:, k]] + k
            if memory.initcheck:  # the copy counts as the word's write; that it was too early is told here
                memory.view("written", np.dtype(np.uint32))[hit] = 0xFFFFFFFF
            if write:
                self.marked[hit] = False

    def _copy_to(self, word: int) -> tuple[Copy, int]:
        """The oldest copy that is on its way to a word, and the position of its lane."""
        for copy in self.queue:
            first = copy.index >> 2
            hits = copy.waiting & (first <= word) & (word < first + copy.data.shape[1])
            if hits.any():
                return copy, int(np.argmax(hits))
        raise AssertionError(f"the word {word} is marked, yet nothing is on its way to it")


def in_flight(
    file: str, line: int, block: Dim3, thread: Dim3, address: int, owner: Dim3, copied_at: str, write: bool
) -> Finding:
    """The finding of a read or write that should have waited."""
    lost = ", so that either of the two writes may be the last" if write else ""
    return Finding(
        "synccheck",
        f"Missing wait. {'Write' if write else 'Read'} of __shared__ memory with cp.async in flight",
        file,
        line,
        block,
        thread,
        address,
        f"thread {owner} copies to shared address {address:#x} at {copied_at} and has not waited for "
        f"it{lost}; cp.async.wait_group or wait_all is needed, then a barrier for other threads to see it",
    )
