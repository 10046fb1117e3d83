"""racecheck: two threads, one piece of shared memory, no synchronisation between, at least one write.

By semantics, not by luck: the order in which the engine ran the warps does not matter. A piece is a 4-byte
word, or what the kernel's narrowest access has.

- Between warps: an epoch of a block lasts from one barrier to the next. For each piece the sets of warps that
  read it, wrote it and changed it atomically in the epoch are kept. An error.
- Within a warp: the same from one barrier or bar.warp.sync to the next, with the set of lanes that read and
  the last one that wrote. A warning: it works while lanes run in step. A sync of some lanes counts for all.
- Two lanes of one store with one address and different values: an error, one of the values is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import numpy_native as native
from .errors import Dim3, Finding, elsewhere
from .program import race_unit

if TYPE_CHECKING:
    from .numpy_engine import Batch, Lanes

HAZARDS = ("Read-After-Write", "Write-After-Write", "Write-After-Read")


class Races:
    """The shared memory of one batch."""

    def __init__(self, batch: Batch):
        self.batch = batch
        self.shift = race_unit(batch.program).bit_length() - 1
        units = -(-batch.memory.shared.size >> self.shift)
        self.epoch = np.ones(batch.block_count, np.int32)
        # per piece: epoch of the sets; reading, writing, atomic warps; last reading, writing lane; where
        self.state = np.zeros((units if batch.multi_warp else 0, 8), np.int32)
        self.bit = np.int32(1) << (batch.thread_of // 32).astype(np.int32)
        # within warps, per piece: stamp and lanes of reads, where; stamp and lane of the last write, where;
        # the warp whose reads these are, the first of the epoch
        self.own = np.zeros((units, 8), np.int32)
        warps = int(batch.warp_of[-1]) + 1
        self.stamp = np.arange(1, warps + 1, dtype=np.int32)  # one for each warp and stretch between syncs
        self.floor = np.ones(batch.block_count, np.int32)  # the least stamp of each block's epoch
        self.next_stamp = warps + 1
        self.row = np.zeros(8, np.int32)  # of either state, as a hazard was found there

    def barrier(self, blocks: np.ndarray) -> None:
        """All threads of these blocks (numbers, repeats allowed) have met."""
        everything = len(blocks) == len(self.batch.block_of)
        if everything:
            self.epoch += 1
            self.floor[:] = self.next_stamp
            self._renew(np.arange(len(self.stamp)))
        else:
            here = np.unique(blocks)
            self.epoch[here] += 1
            self.floor[here] = self.next_stamp
            self._renew(np.unique(self.batch.warp_of[np.isin(self.batch.block_of, here)]))

    def warp_sync(self, lanes: Lanes) -> None:
        """bar.warp.sync of these lanes."""
        self._renew(lanes.warp[lanes.starts])

    def _renew(self, warps: np.ndarray) -> None:
        if self.next_stamp + len(warps) >= 2**31:
            self.own[:] = 0
            self.floor[:] = 1
            self.next_stamp = 1
        self.stamp[warps] = np.arange(self.next_stamp, self.next_stamp + len(warps), dtype=np.int32)
        self.next_stamp += len(warps)

    def access(
        self, lanes: Lanes, i: int, index: np.ndarray, span: int, write: bool, atomic: bool = False
    ) -> None:
        """One access to bytes index..index+span of the batch's shared array."""
        index = np.ascontiguousarray(np.broadcast_to(index, lanes.n))
        kind = 2 if atomic else int(write)
        if self.batch.multi_warp:
            bit, numbers = lanes.cached(
                "race", lambda: (lanes.pick(self.bit), lanes.numbers.astype(np.int32))
            )
            epoch = self.epoch[lanes.block]
            found = native.race()(
                lanes.n, id(index), id(bit), id(numbers), id(epoch), span, self.shift, kind, i,
                id(self.state), id(self.row),
            )  # fmt: skip
            if found >= 0:
                at, k = divmod(found, 1024)
                self._report(lanes, i, at, (int(index[at]) >> self.shift) + k, int(bit[at]), kind)
        lane = lanes.cached("lane32", lambda: lanes.lane.astype(np.int32))
        stamp, floor = self.stamp[lanes.warp], self.floor[lanes.block]
        found = native.own_race()(
            lanes.n, id(index), id(lane), id(stamp), id(lanes.warp), id(floor), span, self.shift, kind, i,
            id(self.own), id(self.row),
        )  # fmt: skip
        if found >= 0:
            code, hazard = divmod(found, 4)
            at, k = divmod(code, 1024)
            self._report_own(lanes, i, at, (int(index[at]) >> self.shift) + k, hazard)

    def same_store(self, lanes: Lanes, i: int, index: np.ndarray, values: list[np.ndarray]) -> None:
        """Two lanes of one store with one address must store the same."""
        values = [np.broadcast_to(v, lanes.n) for v in values]
        index = np.ascontiguousarray(np.broadcast_to(index, lanes.n))
        start = 0
        while True:
            found = native.twice()(lanes.n, id(index), id(lanes.warp), start)
            if found < 0:
                return
            at, back = divmod(found, 32)
            if any(v[at : at + 1].tobytes() != v[at - back : at - back + 1].tobytes() for v in values):
                break
            start = at + 1
        batch = self.batch
        block, thread = lanes.who(at)
        other = lanes.who(at - back)[1]
        address = int(index[at]) % batch.memory.shared_stride
        batch.note(same_store_finding(*batch.source_of(i), block, thread, other, address), i)

    def _report(self, lanes: Lanes, i: int, at: int, unit: int, bit: int, kind: int) -> None:
        _, _, writers, atomics, reader, writer, read_at, written_at = self.row.tolist()
        conflicting = writers if kind == 2 else writers | atomics
        if conflicting & ~bit & 0xFFFFFFFF:
            other, where = writer, written_at
            hazard = HAZARDS[1] if kind else HAZARDS[0]
        else:
            other, where, hazard = reader, read_at, HAZARDS[2]
        batch = self.batch
        block, thread = lanes.who(at)
        other_thread = batch.who(other)[1]
        address = (unit << self.shift) % batch.memory.shared_stride
        file, line = batch.source_of(i)
        there = elsewhere(batch.location_of(where), file)
        batch.note(race_finding(hazard, file, line, block, thread, other_thread, there, address), i)

    def _report_own(self, lanes: Lanes, i: int, at: int, unit: int, hazard: int) -> None:
        _, readers, read_at, _, writer, written_at, _, _ = self.row.tolist()
        batch = self.batch
        lane = int(lanes.lane[at])
        if hazard == 2:
            others = readers & ~(1 << lane) & 0xFFFFFFFF
            other, where = (others & -others).bit_length() - 1, read_at
        else:
            other, where = writer & 31, written_at
        block, thread = lanes.who(at)
        first = int(batch.thread_of[lanes.numbers[at]]) // 32 * 32
        other_thread = batch.launch.thread_index(first + other)
        address = (unit << self.shift) % batch.memory.shared_stride
        file, line = batch.source_of(i)
        there, name = elsewhere(batch.location_of(where), file), HAZARDS[hazard]
        batch.note(race_finding(name, file, line, block, thread, other_thread, there, address, True), i)


def race_finding(
    hazard: str,
    file: str,
    line: int,
    block: Dim3,
    thread: Dim3,
    other: Dim3,
    other_place: str,
    address: int,
    within_warp: bool = False,
) -> Finding:
    """The finding of two threads, one hazard; within a warp it is a warning."""
    place = "within a warp in __shared__ memory" if within_warp else "in __shared__ memory"
    missing = "__syncwarp" if within_warp else "barrier"
    message = (
        f"thread {thread} here and thread {other} at {other_place} use shared address {address:#x} "
        f"with no {missing} between them"
    )
    kind = f"Potential {hazard} hazard {place}"
    severity = "warning" if within_warp else "error"
    return Finding("racecheck", kind, file, line, block, thread, address, message, severity)


def same_store_finding(file: str, line: int, block: Dim3, thread: Dim3, other: Dim3, address: int) -> Finding:
    """The finding of two lanes that store different values to one address at once."""
    message = f"threads {other} and {thread} store different values to shared address {address:#x} at once"
    kind = "Potential Write-After-Write hazard of one store in __shared__ memory"
    return Finding("racecheck", kind, file, line, block, thread, address, message)
