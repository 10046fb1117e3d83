"""The NumPy engine: registers are arrays over the lanes of many blocks at once.

Every lane has a pc (the number of its basic block); the lowest pc of the runnable lanes runs next, which
is also the lowest pc of each warp that takes part. Lanes that run together form a group. A group that
splits at a branch runs its parts as child groups until they meet again; a child copies the registers it
reads from its parent and writes back those that are still needed. Lanes at a barrier are parked until
their block's other threads are there; lanes at a shuffle, until the lanes it names are.
"""

from __future__ import annotations

import functools
import io
import time
from dataclasses import dataclass

import numpy as np

from . import matrix
from .counters import Counters
from .errors import BudgetError, Dim3, Fault, Finding, TrapError, elsewhere, without_explained
from .launch import Launch, Result
from .memory import WINDOW, AddressSpace
from .numpy_codegen import Code, Compiler, constant
from .numpy_copies import Copies
from .numpy_memory import Memory
from .ops import operands, operation
from .parse import Immediate, Location, Register, Special, Symbol, bits_of
from .printf import c_string, format_text
from .program import Program
from .races import Races
from .spins import spinning_branches
from .vector_math import DTYPES

LANES = 16384  # of a batch, about: arrays of one register then stay in the cache
BATCH_BYTES = 1 << 27  # of shared and local memory of a batch, about
PARKED = 1 << 29
SPINS = 1 << 28  # added to the pc of a lane that lets the others go first: see spins.py
EXITED = 1 << 30
OUTPUT_LIMIT = 1 << 20  # characters of printf that are kept
MAX_FINDINGS = 100


class Lanes:
    """Which lanes of a batch a group has, in ascending order, and how they fall into warps."""

    def __init__(self, batch: Batch, index: np.ndarray | None):
        self.batch = batch
        self.index = index  # None: all
        if index is None:
            self.warp, self.lane, self.n = batch.warp_of, batch.lane_of, len(batch.warp_of)
        else:
            self.warp, self.lane, self.n = batch.warp_of[index], batch.lane_of[index], len(index)
        change = np.flatnonzero(self.warp[1:] != self.warp[:-1]) + 1
        self.starts = np.concatenate((np.zeros(1, np.int64), change))
        self.warps = len(self.starts)
        self._cache: dict[object, object] = {}

    def cached(self, key, make):
        """make() on first use."""
        value = self._cache.get(key)
        if value is None:
            value = self._cache[key] = make()
        return value

    def pick(self, array: np.ndarray) -> np.ndarray:
        """An array over the batch's lanes, of this group's."""
        return array if self.index is None else array[self.index]

    @property
    def numbers(self) -> np.ndarray:
        """Lane numbers within the batch."""
        return self.batch.all_lanes if self.index is None else self.index

    @property
    def block(self) -> np.ndarray:
        """The block of each lane, within the batch."""
        return self.cached("block", lambda: self.pick(self.batch.block_of))

    def subset(self, positions: np.ndarray) -> Lanes:
        """The lanes at some positions of this group."""
        return self if len(positions) == self.n else Lanes(self.batch, self.numbers[positions])

    def who(self, position: int) -> tuple[Dim3, Dim3]:
        """(block index, thread index) of the lane at a position."""
        return self.batch.who(int(self.numbers[position]))

    def shared_base(self, stride: int) -> np.ndarray:
        """Where each lane's block has its shared memory."""
        return self.cached("shared", lambda: self.block.astype(np.int64) * stride)

    def local_base(self, size: int) -> np.ndarray:
        """Where each lane has its local memory."""
        return self.cached("local", lambda: self.numbers * size)

    def bank_groups(self, parts: int) -> tuple[np.ndarray, np.ndarray]:
        """(starts, number per lane) of the lanes that access shared memory together, `parts` per warp."""

        def make():
            number = self.warp.astype(np.int64) * parts + self.lane.astype(np.int64) // (32 // parts)
            change = np.r_[True, number[1:] != number[:-1]]
            return np.flatnonzero(change), np.cumsum(change) - 1

        return self.cached(("banks", parts), make)

    @property
    def present(self) -> np.ndarray:
        """Per lane: a bit for each lane of its warp that is in the group."""

        def make():
            bits = np.uint32(1) << self.lane
            masks = np.bitwise_or.reduceat(bits, self.starts)
            return np.repeat(masks, np.diff(np.r_[self.starts, self.n]))

        return self.cached("present", make)

    @property
    def whole_warps(self) -> bool:
        """Whether every warp has all 32 lanes here."""
        return self.cached("whole", lambda: (self.n == 32 * self.warps,))[0]

    @property
    def whole_blocks(self) -> bool:
        """Whether every block has all its threads here."""

        def make():
            counts = np.bincount(self.block)
            return (bool(np.all((counts == 0) | (counts == self.batch.launch.threads))),)

        return self.cached("blocks", make)[0]

    @property
    def position(self) -> np.ndarray:
        """Lane number within the batch -> position in the group, -1 where it is not in it."""

        def make():
            where = np.full(len(self.batch.warp_of), -1, np.int64)
            where[self.numbers] = np.arange(self.n)
            return where

        return self.cached("position", make)


class Group:
    """Lanes that run together. index are their positions in the parent; keys their pcs while split."""

    def __init__(self, parent: Group | None, index: np.ndarray | None, lanes: Lanes, pc: int, bound: int):
        self.parent, self.index, self.lanes = parent, index, lanes
        self.pc, self.bound = pc, bound  # bound: the lowest pc outside; reaching it ends the group's turn
        self.keys: np.ndarray | None = None
        self.R: list[np.ndarray | None] = []
        self.origin: dict[int, np.ndarray] = {}
        self.left: set[int] = set()  # pcs at which its lanes were left

    def fetch(self, register: int) -> np.ndarray:
        """The register's array of this group, copied from the parent on first use."""
        value = self.R[register]
        if value is None:
            above = self.parent.fetch(register)
            value = above if above.size == 1 else above[self.index]
            self.R[register] = self.origin[register] = value
        return value


@dataclass(frozen=True)
class Step:
    """One instruction of a traced warp: the lanes that were active, and its results in all 32 lanes."""

    instruction: int
    active: int
    values: tuple[np.ndarray, ...]


class Batch:
    """Some blocks of a launch, run together from start to end."""

    def __init__(self, engine: NumpyEngine, blocks: np.ndarray):
        self.engine, self.launch, self.space = engine, engine.launch, engine.space
        self.program, self.counters, self.code = engine.launch.program, engine.counters, engine.code
        threads = self.launch.threads
        self.block_count = len(blocks)
        self.blocks = blocks
        n = self.block_count * threads
        warps = -(-threads // 32)
        order = np.concatenate(
            [np.arange(32 * w, min(32 * w + 32, threads)) for w in self.launch.warp_order()]
        )
        sizes = [min(32, threads - 32 * int(w)) for w in self.launch.warp_order()]
        self.thread_of = np.tile(order.astype(np.int64), self.block_count)
        self.block_of = np.repeat(np.arange(self.block_count, dtype=np.int32), threads)
        place = np.repeat(np.arange(warps, dtype=np.int32), sizes)  # of the warp in the order
        self.warp_of = self.block_of * np.int32(warps) + np.tile(place, self.block_count)
        self.lane_of = (self.thread_of % 32).astype(np.uint32)
        self.all_lanes = np.arange(n)
        self.lanes = Lanes(self, None)
        self.multi_warp = warps > 1
        self.memory = Memory(self)
        copying = any(a.operation == "cp" for a in self.program.access.values())
        self.copies = Copies(self) if copying else None
        self.races = Races(self) if "racecheck" in self.launch.checks else None
        self.load, self.store, self.atomic = self.memory.load, self.memory.store, self.memory.atomic
        self.exited = np.zeros(n, bool)
        self.parked_at = np.full(n, -1, np.int32)
        self.passed = np.zeros(n, bool)
        self.arrived: dict[tuple[int, int], int] = {}  # bar.arrive: (block, barrier) -> threads
        self.barrier = np.zeros(n, np.uint32)  # of parked lanes: number, and threads it waits for
        self.expected = np.zeros(n, np.uint32)
        self.member = np.zeros(n, np.uint32)  # of lanes parked at a warp operation: its member mask
        self.specials: dict[str, np.ndarray] = {}
        self.executed = 0
        self.trace_steps: list[tuple[int, Lanes, tuple]] | None = None

    # ---- who and where

    def who(self, number: int) -> tuple[Dim3, Dim3]:
        """(block index, thread index) of a lane of the batch."""
        block = int(self.blocks[self.block_of[number]])
        return self.launch.block_index(block), self.launch.thread_index(int(self.thread_of[number]))

    def source_of(self, i: int) -> tuple[str, int]:
        """(file, line) of an instruction."""
        return self.program.instructions[i].source or ("", 0)

    def location_of(self, i: int) -> Location:
        """The source position of an instruction, with where it was inlined."""
        return self.program.instructions[i].location or ()

    def note(self, finding: Finding, i: int) -> None:
        """Keep an instruction's finding that does not end the launch: one a tool, kind and source line."""
        key = (finding.tool, finding.kind, finding.file, finding.line)
        if key not in self.engine.noted and len(self.engine.findings) < MAX_FINDINGS:
            self.engine.noted.add(key)
            self.engine.findings.append(finding.inlined(self.location_of(i)))

    def special(self, name: str, lanes: Lanes) -> np.ndarray:
        """A special register of a group of lanes. Clocks and timers count the instructions run so far."""
        if name.startswith(("clock", "globaltimer", "pm")):
            wide = name in ("clock64", "globaltimer") or name.endswith("_64")
            value = self.executed >> 32 if name.endswith("_hi") else self.executed
            return constant(value & (2**64 - 1 if wide else 2**32 - 1), "u64" if wide else "u32")
        array = self.specials.get(name)
        if array is None:
            array = self.specials[name] = self._special(name)
        return array if array.size == 1 else lanes.cached(name, lambda: lanes.pick(array))

    def _special(self, name: str) -> np.ndarray:
        launch, stem, axis = self.launch, name.split(".")[0], name[-1]
        place = "xyz".find(axis) if "." in name else -1
        if stem in ("ntid", "nctaid", "cluster_ctaid", "cluster_nctaid") and place < 0:
            return constant(1 if stem[0] == "n" else 0, "u32")
        if stem == "tid":
            return self._coordinate(self.thread_of, launch.block, place)
        if stem == "ctaid":
            return self._coordinate(self.blocks[self.block_of], launch.grid, place)
        uniform = uniform_special(name, launch)
        if uniform is not None:
            return constant(uniform, "u32")
        if name == "laneid":
            return self.lane_of
        if name == "warpid":
            return (self.thread_of // 32).astype(np.uint32)
        one = np.uint32(1)
        masks = {
            "lanemask_eq": one << self.lane_of,
            "lanemask_lt": (one << self.lane_of) - one,
            "lanemask_le": ((one << self.lane_of) - one) | (one << self.lane_of),
        }
        masks["lanemask_ge"], masks["lanemask_gt"] = ~masks["lanemask_lt"], ~masks["lanemask_le"]
        return masks[name]

    @staticmethod
    def _coordinate(linear: np.ndarray, shape: Dim3, place: int) -> np.ndarray:
        if place < 0:
            return constant(0, "u32")
        if shape[place] == 1:
            return constant(0, "u32")
        below = int(np.prod(shape[:place], dtype=np.int64))
        return (linear // below % shape[place]).astype(np.uint32)

    # ---- scheduling

    def run(self) -> None:
        """Run the blocks to their end."""
        registers = self.program.registers
        top = Group(None, None, self.lanes, 0, PARKED)
        zero = {d: np.zeros(1, d) for d in set(DTYPES.values())}
        top.R = [zero[DTYPES[r.type]] if r.type in DTYPES else zero[DTYPES["b64"]] for r in registers]
        for register, value in self.engine.constants.items():
            top.R[register] = value
        self.group = top
        code, counters, budget = self.code, self.counters, self.launch.budget
        spins = self.engine.spins
        while True:
            group = self.group
            here = code[group.pc]
            block = here.block
            if block.waits and not self.enter(group, here):
                if not self.descend():
                    return
                continue
            if group.parent is not None:
                R = group.R
                for register in here.needs:
                    if R[register] is None:
                        group.fetch(register)
            counters.block_warps[block.index] += group.lanes.warps
            counters.block_lanes[block.index] += group.lanes.n
            self.executed += here.length
            if self.executed > budget:
                self.over_budget(here)
            value = here.function(group.R, self, group.lanes)
            kind = block.kind
            if kind == "fall":
                target = block.targets[0]
            elif kind == "branch":
                count = int(np.count_nonzero(value))
                if value.size == 1:
                    count *= group.lanes.n
                if count in (0, group.lanes.n):
                    target = block.targets[0 if (count > 0) != block.negated else 1]
                else:
                    self.diverge(group, block, value)
                    if not self.descend():
                        return
                    continue
            elif kind == "indexed":
                target = self.indexed(group, block, value)
                if target is None:
                    if not self.descend():
                        return
                    continue
            else:
                self.exited[group.lanes.numbers] = True
                target = EXITED
            spinning = (block.index, target) in spins
            if target < group.bound and not spinning:
                group.pc = target
                continue
            group.keys = np.full(group.lanes.n, target + SPINS if spinning else target, np.int32)
            group.left.add(target)
            if not self.descend():
                return

    def diverge(self, group: Group, block, value: np.ndarray) -> None:
        """Give each lane of a group its own target of a branch."""
        yes, no = block.targets[::-1] if block.negated else block.targets
        keys = [t + SPINS if (block.index, t) in self.engine.spins else t for t in (yes, no)]
        group.keys = np.where(value, *map(np.int32, keys))
        group.left.update((yes, no))
        if not block.guard and yes != no:
            lanes = group.lanes
            taken = np.add.reduceat(value, lanes.starts, dtype=np.int64)
            size = np.diff(np.r_[lanes.starts, lanes.n])
            i = block.stop - 1
            self.counters.divergent[i] += int(np.count_nonzero((taken > 0) & (taken < size)))

    def indexed(self, group: Group, block, value: np.ndarray) -> int | None:
        """brx.idx: the common target, or None after splitting the group."""
        limit = len(block.targets)
        if int(value.max()) >= limit:
            bad = int(np.argmax(value >= limit))
            who = group.lanes.who(bad)
            i = block.stop - 1
            text = f"index {int(value[bad])} of brx.idx is beyond its {limit} targets"
            found = Finding("memcheck", "Invalid branch", *self.source_of(i), *who, None, text)
            raise Fault(found.inlined(self.location_of(i)))
        targets = np.array(block.targets, np.int32)[value]
        if targets.size == 1 or (targets == targets[0]).all():
            return int(targets[0])
        group.keys = np.ascontiguousarray(targets)
        group.left.update(int(t) for t in np.unique(targets))
        lanes = group.lanes
        low = np.minimum.reduceat(targets, lanes.starts)
        high = np.maximum.reduceat(targets, lanes.starts)
        self.counters.divergent[block.stop - 1] += int(np.count_nonzero(low != high))
        return None

    def descend(self) -> bool:
        """Choose the group that runs next; False when every lane has exited."""
        group = self.group
        while True:
            keys = group.keys
            low = int(keys.min())
            if low >= group.bound or low >= SPINS:
                if group.parent is None:
                    if low == EXITED:
                        return False
                    if low >= PARKED:
                        self.release(group)
                    else:  # every lane waits: those that spin look again
                        keys[keys < PARKED] -= SPINS
                    continue
                else:
                    self.write_back(group)
                    group = group.parent
                    continue
            same = keys == low
            if same.all():
                if self.split_passed(group, same, low):
                    return True
                group.pc, group.keys = low, None
                self.group = group
                return True
            if self.split_passed(group, same, low):
                return True
            self.child(group, np.flatnonzero(same), low)
            return True

    def split_passed(self, group: Group, same: np.ndarray, pc: int) -> bool:
        """Lanes that a barrier has just released go on before lanes that have newly come to it."""
        if not self.code[pc].block.waits:
            return False
        passed = self.passed[group.lanes.numbers] & same
        if not passed.any() or passed.sum() == same.sum():
            return False
        self.child(group, np.flatnonzero(passed), pc)
        return True

    def child(self, group: Group, index: np.ndarray, pc: int) -> None:
        """Run some lanes of a group until they reach the lowest pc of the others."""
        others = np.ones(len(group.keys), bool)
        others[index] = False
        bound = group.bound
        if others.any():
            bound = min(bound, int(group.keys[others].min()))
        part = Group(group, index, group.lanes.subset(index), pc, min(bound, SPINS))
        part.R = [None] * len(self.program.registers)
        self.group = part

    def write_back(self, group: Group) -> None:
        """Put a child's pcs and its registers that are still read into the parent."""
        parent = group.parent
        parent.keys[group.index] = group.keys
        live_in = self.program.resolved_live[0]
        live = 0
        for pc in group.left:
            if pc < PARKED:
                live |= live_in[pc]
        parent.left |= group.left
        for register, value in enumerate(group.R):
            if value is None or not live >> register & 1 or group.origin.get(register) is value:
                continue
            above = parent.fetch(register)
            if above.size == 1:
                if value.size == 1 and above.tobytes() == value.tobytes():
                    continue
                above = np.full(parent.lanes.n, above[0], above.dtype)
            else:
                above = above.copy()  # another register may share the array
            above[group.index] = value
            parent.R[register] = above

    def over_budget(self, here: Code) -> None:
        """End the launch."""
        instruction = self.program.instructions[min(here.block.start, len(self.program.instructions) - 1)]
        file, line = instruction.source or ("", 0)
        raise BudgetError(
            f"{self.program.entry}: a thread executed more than {self.launch.budget} instructions and is at "
            f"{file or 'PTX line'}:{line or instruction.line}; is this loop endless?"
        )

    # ---- waiting

    def enter(self, group: Group, here: Code) -> bool:
        """Whether the group may run a block that starts with a waiting instruction; parks lanes if not."""
        lanes, block = group.lanes, here.block
        numbers = lanes.numbers
        if self.passed[numbers].all():
            self.passed[numbers] = False
            return True
        for register in here.wait_needs:
            group.fetch(register)
        values = here.wait(group.R, self, lanes)
        if block.waits == "warp":
            return self.enter_warp(group, block, values[0])
        instruction = self.program.instructions[block.start]
        number = np.broadcast_to(values[0], lanes.n)
        count = np.broadcast_to(values[1] if len(values) > 1 else np.uint32(0), lanes.n)
        if "arrive" in instruction.modifiers:
            for lane_block, barrier in zip(lanes.block.tolist(), number.tolist(), strict=True):
                self.arrived[lane_block, barrier] = self.arrived.get((lane_block, barrier), 0) + 1
            return True
        if len(values) == 1 and values[0].size == 1 and lanes.whole_blocks and not self.arrived:
            if self.races is not None:
                self.races.barrier(lanes.block)
            return True
        self.barrier[numbers], self.expected[numbers] = number, count
        self.park(group, block.index)
        return False

    def park(self, group: Group, pc: int) -> None:
        """Stop a whole group at a waiting instruction."""
        self.parked_at[group.lanes.numbers] = pc
        group.keys = np.full(group.lanes.n, PARKED, np.int32)
        group.left.update((PARKED, pc))

    def enter_warp(self, group: Group, block, mask: np.ndarray) -> bool:
        """Warp-wide operations wait for the lanes that their member mask names."""
        lanes = group.lanes
        i = block.start
        if lanes.whole_warps and mask.size == 1 and int(mask[0]) == 0xFFFFFFFF:
            return True
        mask = np.broadcast_to(mask, lanes.n)
        own = np.uint32(1) << lanes.lane
        if ((mask & own) == 0).any():
            bad = int(np.argmax((mask & own) == 0))
            self.sync_fault(
                lanes,
                i,
                bad,
                f"mask {int(mask[bad]):#010x} does not name the executing lane {int(lanes.lane[bad])}",
            )
        missing = mask & ~lanes.present
        if not missing.any():
            return True
        alive = self.alive_masks()[lanes.warp]
        gone = missing & ~alive
        if self.program.instructions[i].opcode != "bar" and gone.any():
            self.names_exited(lanes, i, mask, gone)
        if not (missing & alive).any():
            return True
        # wait for lanes that are elsewhere; those already parked here may complete the set
        self.member[lanes.numbers] = mask
        self.park(group, block.index)
        return False

    def names_exited(self, lanes: Lanes, i: int, mask: np.ndarray, gone: np.ndarray) -> None:
        """A member mask names lanes that have exited, or that the block does not have."""
        bad = int(np.argmax(gone != 0))
        lane = int(gone[bad] & -gone[bad].astype(np.int32)).bit_length() - 1
        first = int(self.thread_of[lanes.numbers[bad]]) // 32 * 32
        state = "exited" if first + lane < self.launch.threads else "absent"
        self.sync_fault(lanes, i, bad, f"mask {int(mask[bad]):#010x} names {state} lane {lane}")

    def alive_masks(self) -> np.ndarray:
        """Per warp of the batch: a bit for each lane that has not exited."""
        bits = np.where(self.exited, np.uint32(0), np.uint32(1) << self.lane_of)
        return np.bitwise_or.reduceat(bits, self.lanes.starts)

    def sync_fault(self, lanes: Lanes, i: int, position: int, message: str) -> None:
        """End the launch over a warp-wide operation."""
        name = self.program.instructions[i].name
        found = Finding("synccheck", "Barrier error detected. Invalid arguments", *self.source_of(i),
                        *lanes.who(position), None, f"{name}: {message}")  # fmt: skip
        raise Fault(found.inlined(self.location_of(i)))

    def release(self, top: Group) -> None:
        """Nothing can run: let lanes go whose barrier or warp operation is complete, or report the rest."""
        waiting = np.flatnonzero(top.keys == PARKED)
        freed = np.zeros(len(top.keys), bool)
        kinds = np.array([c.block.waits == "block" for c in self.code])[self.parked_at[waiting]]
        at_warp, at_block = waiting[~kinds], waiting[kinds]
        self.release_warps(at_warp, freed)
        self.release_blocks(at_block, freed)
        if not freed.any():
            self.report_stuck(waiting)
        self.passed[freed] = True
        top.keys[freed] = self.parked_at[freed]
        top.left.update(int(p) for p in np.unique(self.parked_at[freed]))
        self.parked_at[freed] = -1

    def release_warps(self, waiting: np.ndarray, freed: np.ndarray) -> None:
        """Mark the lanes at warp operations whose member lanes have all come."""
        alive = self.alive_masks()
        barrier = np.array([bool(c.block.waits) and self.program.instructions[c.block.start].opcode == "bar"
                            for c in self.code])  # fmt: skip
        for warp in np.unique(self.warp_of[waiting]):
            here = waiting[self.warp_of[waiting] == warp]
            # bar.warp.sync may be reached at several places; other operations meet at one
            places = np.where(barrier[self.parked_at[here]], -2, self.parked_at[here])
            for place in np.unique(places):
                lanes = here[places == place]
                present = int(np.bitwise_or.reduce(np.uint32(1) << self.lane_of[lanes]))
                gone = self.member[lanes] & ~alive[warp]
                if place >= 0 and gone.any():  # they exited while these lanes waited for them
                    i = self.code[place].block.start
                    self.names_exited(self.lanes.subset(lanes), i, self.member[lanes], gone)
                wanted = self.member[lanes] & alive[warp]
                ready = (wanted & np.uint32(~present & 0xFFFFFFFF)) == 0
                freed[lanes[ready]] = True

    def release_blocks(self, waiting: np.ndarray, freed: np.ndarray) -> None:
        """Mark the lanes at barriers that have as many threads as they wait for."""
        threads = self.launch.threads
        for block in np.unique(self.block_of[waiting]):
            here = waiting[self.block_of[waiting] == block]
            for number in np.unique(self.barrier[here]):
                lanes = here[self.barrier[here] == number]
                expected = int(self.expected[lanes].max()) or threads
                early = self.arrived.get((int(block), int(number)), 0)
                if expected <= -(-threads // 32) * 32:  # CUDA counts whole warps, the last may be partial
                    expected = min(expected, threads)
                if len(lanes) + early < expected:
                    continue
                self.same_barrier(lanes, bool(self.expected[lanes].any()))
                freed[lanes] = True
                self.arrived.pop((int(block), int(number)), None)
                if self.races is not None:
                    self.races.barrier(np.array([block]))

    def same_barrier(self, lanes: np.ndarray, named: bool) -> None:
        """All lanes of a warp (without a thread count: of the block) must wait at one instruction."""
        places = self.parked_at[lanes]
        if (places == places[0]).all():
            return
        if named:
            order = self.warp_of[lanes]
            change = (order[1:] == order[:-1]) & (places[1:] != places[:-1])
            if not change.any():
                return
        first, last = int(places.min()), int(places.max())
        here, there = lanes[places == first], lanes[places == last]
        place = self.other_barrier(first, last)
        self.divergent(first, here, f"{_threads(self, there)} wait at another barrier, {place}")

    def other_barrier(self, here: int, there: int) -> str:
        """Where the block of code ``there`` begins, as a finding at ``here`` tells it."""
        file, _ = self.source_of(self.code[here].block.start)
        return elsewhere(self.location_of(self.code[there].block.start), file)

    def report_stuck(self, waiting: np.ndarray) -> None:
        """No progress is possible: name the first barrier and who is missing there."""
        block = int(self.block_of[waiting[0]])
        everyone = np.flatnonzero(self.block_of == block)
        here = waiting[self.block_of[waiting] == block]
        first = int(self.parked_at[here].min())
        at = here[self.parked_at[here] == first]
        instruction = self.code[first].block.start
        if self.code[first].block.waits == "warp":
            missing = int(self.member[at[0]]) & ~int(np.bitwise_or.reduce(np.uint32(1) << self.lane_of[at]))
            lanes = self.lanes.subset(at)
            names = ", ".join(str(k) for k in range(32) if missing >> k & 1)
            self.sync_fault(lanes, instruction, 0, f"lanes {names} of the mask never arrive")
        absent = np.setdiff1d(everyone, at)
        gone, away = absent[self.exited[absent]], absent[~self.exited[absent]]
        parts = []
        if len(gone):
            parts.append(f"{_threads(self, gone)} have exited")
        if len(away):
            places = np.unique(self.parked_at[away])
            others = dict.fromkeys(self.other_barrier(first, p) for p in places if p >= 0)
            parts.append(f"{_threads(self, away)} wait elsewhere, {'; '.join(others)}")
        self.divergent(first, at, "; ".join(parts) or "fewer threads arrive than it waits for")

    def divergent(self, pc: int, lanes: np.ndarray, message: str) -> None:
        """End the launch over a barrier that some threads do not reach."""
        i = self.code[pc].block.start
        kind = "Barrier error detected. Divergent thread(s) in block"
        name = self.program.instructions[i].name
        text = f"{name}: {_threads(self, lanes)} wait here; {message}"
        who = self.who(int(lanes[0]))
        found = Finding("synccheck", kind, *self.source_of(i), *who, None, text)
        raise Fault(found.inlined(self.location_of(i)))

    # ---- warp-wide operations; the engine has made sure that all lanes of the mask are in the group

    def shfl(self, lanes: Lanes, i: int, mode, results: int, a, b, c, mask):
        """The four shuffles. A source lane outside the mask leaves the lane its own value."""
        how = mode[1]
        simple = results == 1 and b.size == 1 and c.size == 1 and mask.size == 1 and lanes.whole_warps
        if simple and a.size == 1:
            return a
        if simple and how == "bfly" and int(c[0]) == 31 and int(b[0]) in (1, 2, 4, 8, 16):
            step = int(b[0])
            return np.ascontiguousarray(a.reshape(-1, 2, step)[:, ::-1, :]).reshape(-1)
        source, inside = self.shuffle_sources(lanes, how, b, c, mask)
        value = a if a.size == 1 else a[source]
        if results == 1:
            return value
        return value, (inside if inside.size == lanes.n else np.broadcast_to(inside, lanes.n).copy())

    def shuffle_sources(self, lanes: Lanes, how: str, b, c, mask):
        """(position that each lane reads, predicate), as the PTX ISA computes them for shfl.sync."""

        def make():
            lane = lanes.lane.astype(np.int64)
            bval, cval = (b & np.uint32(31)).astype(np.int64), (c & np.uint32(31)).astype(np.int64)
            segment = ((c >> np.uint32(8)) & np.uint32(31)).astype(np.int64)
            low = lane & segment
            high = low | (cval & ~segment & 31)
            if how == "up":
                j, inside = lane - bval, None
                inside = j >= high
            elif how == "down":
                j = lane + bval
                inside = j <= high
            elif how == "bfly":
                j = lane ^ bval
                inside = j <= high
            else:
                j = low | (bval & ~segment & 31)
                inside = j <= high
            j = np.where(inside, j, lane)
            named = (np.broadcast_to(mask, lanes.n) >> j.astype(np.uint32)) & np.uint32(1)
            j = np.where(named == 1, j, lane)
            return lanes.position[lanes.numbers - lane + j], inside

        if b.size == c.size == mask.size == 1:
            return lanes.cached(("shfl", how, int(b[0]), int(c[0]), int(mask[0])), make)
        return make()

    def _by_mask(self, lanes: Lanes, mask: np.ndarray) -> np.ndarray:
        """A number for each lane that is the same for the lanes of one warp with one mask."""
        key = lanes.warp.astype(np.int64) << 32 | np.broadcast_to(mask, lanes.n).astype(np.int64)
        return np.unique(key, return_inverse=True)[1]

    def _reduce(self, lanes: Lanes, mask: np.ndarray, values: np.ndarray, function) -> np.ndarray:
        """function.reduce over the lanes of each mask, given to each of them."""
        values = np.ascontiguousarray(np.broadcast_to(values, lanes.n))
        if mask.size == 1:
            return np.repeat(
                function.reduceat(values, lanes.starts, dtype=values.dtype),
                np.diff(np.r_[lanes.starts, lanes.n]),
            )
        group = self._by_mask(lanes, mask)
        order = np.argsort(group, kind="stable")
        starts = np.flatnonzero(np.r_[True, np.diff(group[order]) != 0])
        return function.reduceat(values[order], starts, dtype=values.dtype)[group]

    def _ballot(self, lanes: Lanes, mask: np.ndarray, truth: np.ndarray) -> np.ndarray:
        bits = np.where(np.broadcast_to(truth, lanes.n), np.uint32(1) << lanes.lane, np.uint32(0))
        return self._reduce(lanes, mask, bits, np.bitwise_or)

    def vote(self, lanes: Lanes, i: int, mode, results: int, truth, mask):
        """vote.sync.ballot, any, all and uni."""
        ballot = self._ballot(lanes, mask, truth)
        if mode[1] == "ballot":
            return ballot
        if mode[1] == "any":
            return ballot != 0
        if mode[1] == "all":
            return ballot == mask
        return (ballot == mask) | (ballot == 0)

    def activemask(self, lanes: Lanes, i: int, mode, results: int) -> np.ndarray:
        """The lanes of the warp that run together here."""
        return lanes.present.copy()

    def elect(self, lanes: Lanes, i: int, mode, results: int, mask):
        """elect.sync: the lowest lane of the mask is the leader."""
        mask = np.broadcast_to(mask, lanes.n)
        leader = np.bitwise_count((mask & -mask.astype(np.int32)).astype(np.uint32) - np.uint32(1)).astype(
            np.uint32
        )
        return leader, lanes.lane == leader

    def match(self, lanes: Lanes, i: int, mode, results: int, value, mask):
        """match.any.sync and match.all.sync."""
        value = np.ascontiguousarray(np.broadcast_to(value, lanes.n))
        group = self._by_mask(lanes, mask)
        if mode[0] == "any":
            same = np.unique(
                np.stack((group.astype(np.uint64), value.astype(np.uint64)), 1), axis=0, return_inverse=True
            )[1]
            bits = np.zeros(int(same.max()) + 1, np.uint32)
            np.bitwise_or.at(bits, same.ravel(), np.uint32(1) << lanes.lane)
            return bits[same.ravel()]
        low = self._reduce(lanes, mask, value, np.minimum)
        high = self._reduce(lanes, mask, value, np.maximum)
        everyone = np.where(low == high, np.broadcast_to(mask, lanes.n), np.uint32(0)).astype(np.uint32)
        return (everyone, low == high) if results == 2 else everyone

    def redux(self, lanes: Lanes, i: int, mode, results: int, value, mask):
        """redux.sync."""
        functions = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
                     "or": np.bitwise_or, "xor": np.bitwise_xor}  # fmt: skip
        return self._reduce(lanes, mask, value, functions[mode[1]])

    mma, movmatrix, ldmatrix, stmatrix = matrix.multiply, matrix.move, matrix.load, matrix.store

    def bar_red(self, lanes: Lanes, how: str, truth: np.ndarray) -> np.ndarray:
        """barrier.red: over all threads of the block, which are in the group together."""
        truth = np.broadcast_to(truth, lanes.n)
        count = np.bincount(lanes.block[truth], minlength=self.block_count)[lanes.block]
        if how == "popc":
            return count.astype(np.uint32)
        if how == "or":
            return count > 0
        return count == np.bincount(lanes.block, minlength=self.block_count)[lanes.block]

    # ---- calls and traps

    def builtin(self, lanes: Lanes, i: int, name: str, offsets: tuple[int, ...]) -> None:
        """printf and assert: arguments lie in local memory."""
        frame = self.memory.local.reshape(-1, max(self.program.local_bytes, 1))
        for position, number in enumerate(lanes.numbers):
            words = [int(frame[number, o : o + 8].view(np.uint64)[0]) for o in offsets[:2]]
            read = functools.partial(self.bytes_at, number)
            if name == "vprintf":
                self.engine.print(format_text(read, *words))
                frame[number, offsets[2] : offsets[2] + 4] = 0
                continue
            text, file = (c_string(read, word) for word in words)
            line = int(frame[number, offsets[2] : offsets[2] + 4].view(np.uint32)[0])
            block, thread = lanes.who(position)
            message = f"{file}:{line}: assertion `{text}` failed"
            raise TrapError(
                Finding("memcheck", "Device-side assert", file, line, block, thread, None, message)
            )

    def bytes_at(self, number: int, address: int, count: int) -> bytes:
        """Memory at a generic address, as a lane sees it, to its end; b"" where nothing is mapped."""
        offset = address - WINDOW["local"]
        if 0 <= offset < self.program.local_bytes:
            start = number * self.program.local_bytes
            own = self.memory.local[start : start + self.program.local_bytes]
            return own[offset : offset + count].tobytes()
        offset = address - WINDOW["shared"]
        if 0 <= offset < self.memory.shared_size:
            start = int(self.block_of[number]) * self.memory.shared_stride
            own = self.memory.shared[start : start + self.memory.shared_size]
            return own[offset : offset + count].tobytes()
        allocation = self.space.find(address)
        if allocation is None:
            return b""
        return allocation.host[address - allocation.base :][:count].tobytes()

    def trap(self, lanes: Lanes, i: int) -> None:
        """trap ends the launch."""
        file, line = self.source_of(i)
        found = Finding("memcheck", "Trap", file, line, *lanes.who(0), None, "the kernel executed trap")
        raise TrapError(found.inlined(self.location_of(i)))

    def trace(self, lanes: Lanes, i: int, values: tuple) -> None:
        """Keep the results of an instruction for `trace_warp`."""
        if self.trace_steps is not None:
            self.trace_steps.append((i, lanes, tuple(np.array(v) for v in values)))


def _threads(batch: Batch, lanes: np.ndarray) -> str:
    """Thread numbers of one block in words: ranges, at most a few."""
    numbers = np.sort(batch.thread_of[lanes])
    breaks = np.flatnonzero(np.diff(numbers) != 1)
    firsts, lasts = numbers[np.r_[0, breaks + 1]], numbers[np.r_[breaks, len(numbers) - 1]]
    parts = [f"{a}" if a == z else f"{a}-{z}" for a, z in zip(firsts[:6], lasts[:6], strict=True)]
    more = f", ... ({len(numbers)} in all)" if len(firsts) > 6 else ""
    return f"threads {', '.join(parts)}{more}"


def uniform_special(name: str, launch: Launch) -> int | None:
    """A special register that is the same for every thread of a launch, or None."""
    stem, _, axis = name.partition(".")
    shapes = {"ntid": launch.block, "nctaid": launch.grid}
    if stem in shapes:
        return shapes[stem]["xyz".find(axis)] if axis in "xyz" else 1
    warps = -(-launch.threads // 32)
    known = {
        "nwarpid": warps,
        "nsmid": 1,
        "smid": 0,
        "gridid": 0,
        "total_smem_size": launch.shared_bytes,
        "dynamic_smem_size": launch.shared_dynamic,
        "cluster_ctarank": 0,
        "cluster_nctarank": 1,
    }
    if stem in ("cluster_ctaid", "cluster_nctaid"):
        return int(stem == "cluster_nctaid")
    return known.get(name)


def launch_constants(launch: Launch, addresses: dict[str, int]) -> dict[int, np.ndarray]:
    """Register number -> one-element array, for the registers of `Program.launch_constants`."""
    program = launch.program
    known: dict[int, np.ndarray] = {}

    def value(operand, type_: str) -> np.ndarray:
        if isinstance(operand, Immediate):
            return constant(bits_of(operand, type_), type_)
        if isinstance(operand, Symbol):
            return constant(program.address_of(operand, addresses), type_)
        if isinstance(operand, Special):
            return constant(uniform_special(operand.name, launch), "u32").astype(DTYPES[type_])
        if isinstance(operand, Register):
            return resize(known[operand.index], DTYPES[type_])
        return ~value(operand.register, type_)

    for i in program.launch_constants:
        instruction = program.instructions[i]
        row = operation(instruction)
        targets, sources = operands(instruction)
        if instruction.opcode == "ld":
            access = program.access[i]
            offset, width = access.static, access.width
            made = []
            for k in range(access.count):
                data = launch.params[offset + k * width : offset + (k + 1) * width]
                if len(data) < width:
                    raise Fault(Finding("memcheck", f"Invalid __param__ read of size {width} bytes",
                                        *(instruction.source or ("", 0)), None, None, offset,
                                        "beyond the kernel's parameters"))  # fmt: skip
                made.append(np.frombuffer(data, DTYPES[access.type]).copy())
        else:
            made = row.numpy(*(value(s, t) for s, t in zip(sources, row.sources, strict=True)))
            made = list(made) if isinstance(made, tuple) else [made]
        for target, result in zip(targets, made, strict=True):
            if isinstance(target, Register):
                known[target.index] = resize(np.asarray(result), DTYPES[target.type])
    return known


def resize(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Bits as another dtype: viewed, cut, or extended by the sign of the array's dtype."""
    if dtype.itemsize < array.dtype.itemsize:
        array = array.view(f"u{array.dtype.itemsize}").astype(f"u{dtype.itemsize}")
    elif dtype.itemsize > array.dtype.itemsize:
        array = array.astype(f"{'i' if array.dtype.kind == 'i' else 'u'}{dtype.itemsize}")
    return np.ascontiguousarray(array).view(dtype)


class NumpyEngine:
    """Runs one launch."""

    def __init__(self, launch: Launch, space: AddressSpace, addresses: dict[str, int]):
        self.launch, self.space, self.addresses = launch, space, addresses
        self.code = compiled_blocks(launch.program, addresses)
        self.counters = Counters(launch.program, launch.block_count)
        self.constants = launch_constants(launch, addresses)
        self.spins = spinning_branches(launch.program)
        self.findings: list[Finding] = []
        self.noted: set[tuple] = set()
        self.output = io.StringIO()
        self.dropped = 0

    def print(self, text: str) -> None:
        """Keep what printf printed, up to OUTPUT_LIMIT characters."""
        room = OUTPUT_LIMIT - self.output.tell()
        self.output.write(text[: max(room, 0)])
        self.dropped += max(len(text) - max(room, 0), 0)

    def run(self) -> Result:
        """Run every block, some at a time. Raises Fault, BudgetError; KeyboardInterrupt passes through."""
        started = time.perf_counter()
        launch = self.launch
        chosen = launch.block_order()
        per_block = launch.shared_bytes + launch.program.local_bytes * launch.threads
        size = max(1, min(LANES // launch.threads, BATCH_BYTES // max(per_block, 1)))
        for allocation in self.space.allocations:
            allocation.forget_touched()
        with np.errstate(all="ignore"):
            for start in range(0, len(chosen), size):
                Batch(self, chosen[start : start + size]).run()
                self.counters.blocks_run = min(start + size, len(chosen))
        self.counters.sectors_read = sum(a.touched(False) for a in self.space.allocations)
        self.counters.sectors_written = sum(a.touched(True) for a in self.space.allocations)
        if self.dropped:
            self.output.write(f"\n... {self.dropped} more characters of printf output\n")
        findings = without_explained(self.findings)
        return Result(self.counters, findings, self.output.getvalue(), time.perf_counter() - started)


def compiled_blocks(program: Program, addresses: dict[str, int], trace: bool = False) -> list[Code]:
    """The program's blocks as functions, made once. Raises UnsupportedError before anything runs."""
    cache = program.__dict__.setdefault("_numpy_code", {})
    key = (trace, tuple(sorted(addresses.items())))
    if key not in cache:
        cache[key] = Compiler(program, addresses, trace).compile()
    return cache[key]


def run(launch: Launch, space: AddressSpace, addresses: dict[str, int]) -> Result:
    """Run a launch on the NumPy engine.

    addresses: the virtual addresses of the module's variables. Raises UnsupportedError (before anything
    runs), Fault, BudgetError.
    """
    return NumpyEngine(launch, space, addresses).run()


def trace_warp(
    launch: Launch,
    space: AddressSpace,
    addresses: dict[str, int],
    block: int = 0,
    warp: int = 0,
    limit: int = 10_000,
) -> list[Step]:
    """Run one block (linear number); every instruction with results that one of its warps executed.

    A Step's values have 32 elements, zero in inactive lanes; at most `limit` steps are kept. Memory changes
    as in a launch.
    """
    engine = NumpyEngine(launch, space, addresses)
    engine.code = compiled_blocks(launch.program, addresses, trace=True)
    batch = Batch(engine, np.array([block]))
    batch.trace_steps = []
    with np.errstate(all="ignore"):
        batch.run()
    steps = []
    for i, lanes, values in batch.trace_steps[: 32 * limit]:
        here = np.flatnonzero(lanes.warp == warp)
        if not len(here) or len(steps) >= limit:
            continue
        lane = lanes.lane[here]
        full = []
        for value in values:
            array = np.zeros(32, value.dtype)
            array[lane] = value if value.size == 1 else value[here]
            full.append(array)
        active = int(np.bitwise_or.reduce(np.uint32(1) << lane))
        steps.append(Step(i, active, tuple(full)))
    return steps
