"""A block whose warps wait and which the compiled driver could not let go by itself.

That is: barriers with a thread count, with a reduction, reached by warps whose lanes are apart or have partly
exited; and barriers that not all threads will ever reach, which is reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import llvm_layout as at
from .errors import Fault, Finding, elsewhere
from .llvm_faults import exited_message
from .llvm_layout import CTX

if TYPE_CHECKING:
    from .llvm_engine import Worker

_FLAGS = at.PARK | at.WAIT


class Stalled:
    """The threads of a stalled block: where each waits (a basic block; -1: it has exited), and for what."""

    def __init__(self, worker: Worker):
        self.worker = worker
        self.program = worker.program
        threads = worker.threads
        self.place = np.full(threads, -1)
        self.at_warp = np.zeros(threads, bool)  # at a shuffle and the like
        self.number, self.count = np.zeros(threads, np.int64), np.zeros(threads, np.int64)
        self.votes = np.zeros(threads, bool)
        for w in range(worker.warps):
            lanes = slice(32 * w, min(32 * w + 32, threads))
            here = lanes.stop - lanes.start
            form = int(worker.words(w, at.WARP_BLOCK, 1)[0])
            alive = self._bits(worker.words(w, at.WARP_ALIVE, 1)[0])[:here]
            if form >= 0:
                place, waits = np.full(here, form), np.zeros(here, bool)
            else:
                pcs = worker.words(w, at.WARP_PCS, 32)[:here].copy()
                waits = (pcs & at.PARK) == 0
                place = (pcs & ~_FLAGS) >> 1
            self.place[lanes] = np.where(alive, place, -1)
            self.at_warp[lanes] = waits & alive
            self.number[lanes] = worker.words(w, at.WARP_BARRIER, 32)[:here]
            self.count[lanes] = worker.words(w, at.WARP_COUNT, 32)[:here]
            self.votes[lanes] = self._bits(worker.words(w, at.WARP_VOTES, 1)[0])[:here]

    @staticmethod
    def _bits(word: np.int32) -> np.ndarray:
        return (int(word) & 0xFFFFFFFF) >> np.arange(32) & 1 == 1

    def release(self) -> None:
        """Let go the lanes whose barrier is complete. Raises Fault where no barrier is."""
        threads = self.worker.threads
        parked = np.flatnonzero((self.place >= 0) & ~self.at_warp)
        freed = np.zeros(threads, bool)
        for number in np.unique(self.number[parked]):
            lanes = parked[self.number[parked] == number]
            expected = int(self.count[lanes].max())
            expected = threads if expected <= 0 else expected
            if len(lanes) < expected and (len(lanes) < threads or expected > -(-threads // 32) * 32):
                continue
            self.same_barrier(lanes, bool((self.count[lanes] > 0).any()))
            freed[lanes] = True
            self.reduce(lanes)
        if not freed.any():
            self.report()
        self.worker.fields[CTX["epoch"] // 8] += 1
        for w in range(self.worker.warps):
            lanes = slice(32 * w, min(32 * w + 32, threads))
            if freed[lanes].any():
                self._free(w, np.flatnonzero(freed[lanes]))

    def _free(self, w: int, lanes: np.ndarray) -> None:
        worker = self.worker
        worker.words(w, at.WARP_STATUS, 1)[0] = at.STATUS_READY
        if worker.words(w, at.WARP_BLOCK, 1)[0] >= 0:
            worker.words(w, at.WARP_ENTERED, 1)[0] = 1
            worker.words(w, at.WARP_NEXT, 1)[0] = worker.words(w, at.WARP_BLOCK, 1)[0]
            return
        pcs = worker.words(w, at.WARP_PCS, 32)
        pcs[lanes] = (pcs[lanes] & ~at.PARK) | 1
        worker.words(w, at.WARP_NEXT, 1)[0] = int(pcs[lanes].min()) >> 1

    def reduce(self, lanes: np.ndarray) -> None:
        """The result of bar.red, for every warp that takes part."""
        if not (self.count[lanes] == at.REDUCTION).any():
            return
        instruction = self.program.instructions[self.program.blocks[int(self.place[lanes[0]])].start]
        votes = self.votes[lanes]
        if "popc" in instruction.modifiers:
            value = int(votes.sum())
        else:
            value = int(votes.any() if "or" in instruction.modifiers else votes.all())
        for w in np.unique(lanes // 32):
            self.worker.words(int(w), at.WARP_RESULT, 1)[0] = value

    def same_barrier(self, lanes: np.ndarray, named: bool) -> None:
        """All lanes of a warp (without a thread count: of the block) must wait at one instruction."""
        places = self.place[lanes]
        if (places == places[0]).all():
            return
        if named:
            warps = lanes // 32
            if not ((warps[1:] == warps[:-1]) & (places[1:] != places[:-1])).any():
                return
        first, last = int(places.min()), int(places.max())
        there = lanes[places == last]
        place = self.other_barrier(first, last)
        self.divergent(first, lanes[places == first], f"{spans(there)} wait at another barrier, {place}")

    def other_barrier(self, here: int, there: int) -> str:
        """Where the basic block ``there`` begins, as a finding at ``here`` tells it."""
        first, other = (self.program.instructions[self.program.blocks[p].start] for p in (here, there))
        return elsewhere(other.location or (), (first.source or ("", 0))[0])

    def report(self) -> None:
        """No progress is possible: name the first barrier and who is missing there."""
        waiting = np.flatnonzero(self.place >= 0)
        first = int(self.place[waiting].min())
        here = np.flatnonzero(self.place == first)
        if self.at_warp[here].all():
            self.never_arrive(first, here)
        gone = np.flatnonzero(self.place < 0)
        away = np.flatnonzero((self.place >= 0) & (self.place != first))
        parts = []
        if len(gone):
            parts.append(f"{spans(gone)} have exited")
        if len(away):
            others = dict.fromkeys(self.other_barrier(first, int(p)) for p in np.unique(self.place[away]))
            parts.append(f"{spans(away)} wait elsewhere, {'; '.join(others)}")
        self.divergent(first, here, "; ".join(parts) or "fewer threads arrive than it waits for")

    def never_arrive(self, place: int, here: np.ndarray) -> None:
        """Lanes at a shuffle name lanes that wait elsewhere for ever."""
        warp = here[0] // 32
        here = here[here // 32 == warp]
        i = self.program.blocks[place].start
        masks = [int(m) & 0xFFFFFFFF for m in self.count[here]]
        alive = int(self.worker.words(int(warp), at.WARP_ALIVE, 1)[0]) & 0xFFFFFFFF
        exited = [k for k, mask in enumerate(masks) if mask & ~alive]
        if exited and self.program.instructions[i].opcode != "bar":
            thread, message = here[exited[0]], exited_message(self.worker, int(warp), masks[exited[0]])
        else:
            missing = masks[0] & ~sum(1 << int(k % 32) for k in here)
            names = ", ".join(str(k) for k in range(32) if missing >> k & 1)
            thread, message = here[0], f"lanes {names} of the mask never arrive"
        file, line = self.program.instructions[i].source or ("", 0)
        found = Finding("synccheck", "Barrier error detected. Invalid arguments", file, line,
                        *self.worker.where(int(thread)), None, f"{self.name(i)}: {message}")  # fmt: skip
        raise Fault(found.inlined(self.program.instructions[i].location or ()))

    def name(self, instruction: int) -> str:
        """An instruction's name in the PTX."""
        return self.program.instructions[instruction].name

    def divergent(self, place: int, lanes: np.ndarray, message: str) -> None:
        """Raise the Fault of a barrier that some threads do not reach."""
        i = self.program.blocks[place].start
        file, line = self.program.instructions[i].source or ("", 0)
        found = Finding("synccheck", "Barrier error detected. Divergent thread(s) in block", file, line,
                        *self.worker.where(int(lanes[0])), None,
                        f"{self.name(i)}: {spans(lanes)} wait here; {message}")  # fmt: skip
        raise Fault(found.inlined(self.program.instructions[i].location or ()))


def spans(threads: np.ndarray) -> str:
    """Thread numbers of one block in words: ranges, at most a few."""
    numbers = np.sort(threads)
    breaks = np.flatnonzero(np.diff(numbers) != 1)
    firsts, lasts = numbers[np.r_[0, breaks + 1]], numbers[np.r_[breaks, len(numbers) - 1]]
    parts = [f"{a}" if a == z else f"{a}-{z}" for a, z in zip(firsts[:6], lasts[:6], strict=True)]
    more = f", ... ({len(numbers)} in all)" if len(firsts) > 6 else ""
    return f"threads {', '.join(parts)}{more}"
