"""racecheck: two warps, one shared word, one barrier epoch, at least one write. By semantics, not by luck.

An epoch of a block lasts from one barrier to the next. For each 4-byte word the last writer and up to two
reading warps of the epoch are kept, so the order in which this engine ran the warps does not matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .errors import Finding

if TYPE_CHECKING:
    from .numpy_engine import Batch, Lanes


class Races:
    """The shared words of one batch."""

    def __init__(self, batch: Batch):
        self.batch = batch
        words = batch.memory.shared.size // 4
        self.epoch = np.zeros(batch.block_count, np.int32)
        self.write_epoch = np.full(words, -1, np.int32)
        self.writer = np.zeros(words, np.int32)  # lane number in the batch
        self.write_instruction = np.zeros(words, np.int32)
        self.write_atomic = np.zeros(words, bool)
        self.read_epoch = np.full(words, -1, np.int32)
        self.reader = np.zeros(words, np.int32)
        self.read_instruction = np.zeros(words, np.int32)
        self.second_epoch = np.full(words, -1, np.int32)  # a reader of another warp than `reader`
        self.second_reader = np.zeros(words, np.int32)

    def barrier(self, blocks: np.ndarray) -> None:
        """All threads of these blocks (numbers, repeats allowed) have met."""
        self.epoch[np.unique(blocks)] += 1

    def access(
        self, lanes: Lanes, i: int, index: np.ndarray, span: int, write: bool, atomic: bool = False
    ) -> None:
        """One access to bytes index..index+span of the batch's shared array."""
        if not self.batch.multi_warp:
            return
        index = np.broadcast_to(index, lanes.n)
        first = index >> 2
        for k in range(max(span // 4, 1)):
            self._word(lanes, i, first + k, write, atomic)

    def _word(self, lanes: Lanes, i: int, word: np.ndarray, write: bool, atomic: bool) -> None:
        epoch = self.epoch[lanes.block]
        numbers = lanes.numbers.astype(np.int32)
        warp_of = self.batch.warp_of
        clash = (self.write_epoch[word] == epoch) & (warp_of[self.writer[word]] != lanes.warp)
        if atomic:
            clash &= ~self.write_atomic[word]
        if clash.any():
            kind = "Write-After-Write" if write else "Read-After-Write"
            self._report(lanes, i, clash, word, self.writer, self.write_instruction, kind)
        if not write:
            again = self.read_epoch[word] == epoch
            other = again & (warp_of[self.reader[word]] != lanes.warp)
            self.second_epoch[word[other]] = epoch[other]
            self.second_reader[word[other]] = numbers[other]
            fresh = ~again
            self.read_epoch[word[fresh]] = epoch[fresh]
            self.reader[word[fresh]] = numbers[fresh]
            self.read_instruction[word[fresh]] = i
            # lanes of several warps that read the word in this very instruction
            late = fresh & (warp_of[self.reader[word]] != lanes.warp)
            self.second_epoch[word[late]] = epoch[late]
            self.second_reader[word[late]] = numbers[late]
            return
        for marks, readers in ((self.read_epoch, self.reader), (self.second_epoch, self.second_reader)):
            clash = (marks[word] == epoch) & (warp_of[readers[word]] != lanes.warp)
            if clash.any():
                self._report(lanes, i, clash, word, readers, self.read_instruction, "Write-After-Read")
        self.write_epoch[word], self.writer[word] = epoch, numbers
        self.write_instruction[word], self.write_atomic[word] = i, atomic
        clash = warp_of[self.writer[word]] != lanes.warp  # two warps in this very instruction
        if clash.any() and not atomic:
            self._report(lanes, i, clash, word, self.writer, self.write_instruction, "Write-After-Write")

    def _report(self, lanes, i, clash, word, others, instructions, kind: str) -> None:
        at = int(np.argmax(clash))
        where = int(word[at])
        block, thread = lanes.who(at)
        other = self.batch.who(int(others[where]))[1]
        file, line = self.batch.source_of(i)
        other_line = self.batch.source_of(int(instructions[where]))[1]
        address = where * 4 % self.batch.memory.shared_stride
        self.batch.note(
            Finding(
                "racecheck",
                f"Potential {kind} hazard in __shared__ memory",
                file,
                line,
                block,
                thread,
                address,
                f"thread {thread} here and thread {other} at line {other_line} use shared address {address:#x} "
                f"with no barrier between them",
            )
        )
