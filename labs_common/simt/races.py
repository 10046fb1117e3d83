"""racecheck: two warps, one shared word, one barrier epoch, at least one write. By semantics, not by luck.

An epoch of a block lasts from one barrier to the next. For each 4-byte word the sets of warps that read it,
wrote it and changed it atomically in the epoch are kept, so the order in which the engine ran the warps does
not matter. Of each set the last lane and instruction are remembered for the report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import numpy_native
from .errors import Finding

if TYPE_CHECKING:
    from .numpy_engine import Batch, Lanes


class Races:
    """The shared words of one batch."""

    def __init__(self, batch: Batch):
        self.batch = batch
        words = -(-batch.memory.shared.size // 4)
        self.epoch = np.ones(batch.block_count, np.int32)
        # per word: epoch of the sets; reading, writing, atomic warps; last reading, writing lane; where
        self.state = np.zeros((words, 8), np.int32)
        self.bit = np.int32(1) << (batch.thread_of // 32).astype(np.int32)

    def barrier(self, blocks: np.ndarray) -> None:
        """All threads of these blocks (numbers, repeats allowed) have met."""
        if len(blocks) == len(self.batch.block_of):
            self.epoch += 1
        else:
            self.epoch[np.unique(blocks)] += 1

    def access(
        self, lanes: Lanes, i: int, index: np.ndarray, span: int, write: bool, atomic: bool = False
    ) -> None:
        """One access to bytes index..index+span of the batch's shared array."""
        if not self.batch.multi_warp:
            return
        index = np.ascontiguousarray(np.broadcast_to(index, lanes.n))
        bit, numbers = lanes.cached("race", lambda: (lanes.pick(self.bit), lanes.numbers.astype(np.int32)))
        epoch = self.epoch[lanes.block]
        kind = 2 if atomic else int(write)
        found = numpy_native.race()(
            lanes.n, id(index), id(bit), id(numbers), id(epoch), span, kind, i, id(self.state)
        )
        if found >= 0:
            at, k = divmod(found, 1024)
            self._report(lanes, i, at, int(index[at]) // 4 + k, int(bit[at]), kind)

    def _report(self, lanes: Lanes, i: int, at: int, word: int, bit: int, kind: int) -> None:
        _, _, writers, atomics, reader, writer, read_at, written_at = self.state[word].tolist()
        conflicting = writers if kind == 2 else writers | atomics
        if conflicting & ~bit & 0xFFFFFFFF:
            other, where = writer, written_at
            hazard = "Write-After-Write" if kind else "Read-After-Write"
        else:
            other, where, hazard = reader, read_at, "Write-After-Read"
        batch = self.batch
        block, thread = lanes.who(at)
        other_thread = batch.who(other)[1]
        file, line = batch.source_of(i)
        other_line = batch.source_of(where)[1]
        address = word * 4 % batch.memory.shared_stride
        message = (
            f"thread {thread} here and thread {other_thread} at line {other_line} use shared address "
            f"{address:#x} with no barrier between them"
        )
        kind_text = f"Potential {hazard} hazard in __shared__ memory"
        batch.note(Finding("racecheck", kind_text, file, line, block, thread, address, message))
