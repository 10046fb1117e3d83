"""The LLVM engine: a launch as machine code, its blocks over all cores.

Same results, counts and findings as the NumPy engine, which stays the reference; `run` has its signature.
A new kernel runs quickly built code; where that takes long, better code is made beside it, taken over as soon
as it is there. Both are kept on disk (llvm_cache). Worker threads run machine code without Python's lock; the
caller's thread waits, so that Ctrl-C stops a launch within milliseconds.

Facts of the design:

- Blocks are taken in ascending order as workers become free. Warps of a block run one after the other up to a
  barrier; where racecheck is on and warps share memory, they step together through the basic blocks, the
  lowest first, as lanes of the NumPy engine do. So they do where warps spin on memory (spins.py).
- Of several faults the one of the lowest block is reported.
- A program whose result may depend on the order of blocks (atomics that give a value or round, printf) runs
  on one worker.
- clock counts the instructions of its own warp.
- What this engine does not know is left to the NumPy engine.
"""

from __future__ import annotations

import ctypes
import io
import os
import threading
import time
from collections.abc import Callable

import numpy as np

from . import llvm_cache as cache
from . import llvm_layout as at
from .counters import Counters
from .errors import BudgetError, Fault, Finding, UnsupportedError
from .launch import Launch, Result
from .llvm_analysis import chains
from .llvm_blocks import Stalled
from .llvm_copies import RING_BYTES
from .llvm_emit import Kernel
from .llvm_faults import finding_of, hazard_of, notes_of
from .llvm_layout import CTX
from .llvm_runtime import ACCESS_COUNTERS
from .llvm_split import split_at_accesses
from .memory import WINDOW, AddressSpace
from .printf import c_string, format_text
from .program import Program, race_unit
from .spins import spinning_branches

PATIENCE = 0.1  # seconds of quickly built code after which better code is made
OUTPUT_LIMIT = 1 << 20  # characters of printf that are kept
POLL = 0.02  # seconds between two looks of the waiting thread
_REPORT = ctypes.CFUNCTYPE(
    None, ctypes.c_int64, ctypes.c_int32, ctypes.c_int64, ctypes.c_int32, ctypes.c_int64, ctypes.c_int64,
    ctypes.c_int32, ctypes.c_int32,
)  # fmt: skip
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.c_int32, ctypes.c_int64, ctypes.c_int32)


class Compiled:
    """A program's machine code: what there is now, and better code once launches have taken long enough."""

    def __init__(self, program: Program, stepped: bool):
        self.stepped = stepped
        self.program, self.first = split_at_accesses(program) if stepped else (program, None)
        self.key = cache.key(f"{stepped} {_signature(program)}")
        self.seconds = 0.0  # that launches took with quickly built code
        self.thread: threading.Thread | None = None
        kept = cache.fetch(self.key)
        if kept is not None:
            self.native = cache.load(kept.data, kept.level)
            self.warp_bytes = kept.warp_bytes
            return
        kernel = Kernel(self.program, stepped)
        self.warp_bytes = kernel.layout.warp_bytes
        data = cache.build(kernel.text(cache.host()[0], cache.ATTRIBUTES), cache.QUICK)
        self.native = cache.load(data, cache.QUICK)
        cache.keep(self.key, cache.Kept(cache.QUICK, self.warp_bytes, data))

    def improve(self) -> None:
        """Begin to make optimised code beside the running launch."""
        if self.thread is None and self.native.level == cache.QUICK:
            self.thread = threading.Thread(target=self._improve, name="simt-llvm")
            self.thread.start()

    def _improve(self) -> None:
        kernel = Kernel(self.program, self.stepped)
        data = cache.build(kernel.text(cache.host()[0], cache.ATTRIBUTES), cache.OPTIMISED)
        self.native = cache.load(data, cache.OPTIMISED)
        cache.keep(self.key, cache.Kept(cache.OPTIMISED, self.warp_bytes, data))

    def settle(self) -> None:
        """Have the optimised code, waiting for it if need be."""
        self.improve()
        if self.thread is not None:
            self.thread.join()


def compiled(program: Program, stepped: bool = False) -> Compiled:
    """The program's code, made once. Raises UnsupportedError before anything runs."""
    known = program.__dict__.setdefault("_llvm_code", {})
    if stepped not in known:
        known[stepped] = Compiled(program, stepped)
    return known[stepped]


def prepare(launch: Launch) -> Compiled:
    """The machine code that a launch would run. Raises UnsupportedError."""
    return compiled(launch.program, _steps(launch))


def _steps(launch: Launch) -> bool:
    """Whether warps are interleaved and races looked for: where threads could race in shared memory.

    And where warps spin: how often depends on the order of the warps, which is the NumPy engine's then.
    """
    accesses = launch.program.access.values()
    checked, shared = "racecheck" in launch.checks, launch.shared_bytes > 0
    if launch.threads > 32 and (checked or not shared) and spinning_branches(launch.program):
        return True
    return (
        checked
        and launch.threads > 1
        and shared
        and any(a.space in ("shared", "generic") or a.operation == "cp" for a in accesses)
    )


def _signature(program: Program) -> str:
    """Everything of a program that its code depends on, as text."""
    parts = [
        (i.name, i.operands, i.guard, place, charged)
        for i, place, charged in zip(program.instructions, program.executed_in, program.charged, strict=True)
    ]
    rest = (
        program.entry,
        [(r.name, r.type) for r in program.registers],
        program.param_offsets,
        program.symbols,
        program.dynamic_offset,
        program.local_bytes,
        sorted(program.variables),
    )
    return repr((parts, rest))


def _aligned(size: int) -> np.ndarray:
    """Zeroed bytes that start at a multiple of 64."""
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]


class Worker:
    """One thread's own memory: context, counters, warps, sector maps; see llvm_layout."""

    def __init__(self, run: Run):
        self.run = run
        launch, program = run.launch, run.compiled.program
        self.program = program
        self.threads = launch.threads
        self.warps = -(-self.threads // 32)
        self.warp_bytes = run.compiled.warp_bytes
        self.place = np.argsort(launch.warp_order())
        self.context = _aligned(at.CTX_BYTES)
        self.fields = self.context.view(np.int64)
        self.counters = _aligned(8 * (5 * len(program.blocks) + ACCESS_COUNTERS * len(program.access)))
        self.cache = _aligned(at.CACHE_BYTES * max(1, len(program.access)))
        self.notes = _aligned(at.NOTE_BYTES * max(1, len(program.access)))
        self.state = _aligned(self.warp_bytes * self.warps)
        self.shared_size = launch.shared_bytes
        self.shared = _aligned(self.shared_size + 64)
        self.shared_flags = _aligned(self.shared_size // 4 + 64)
        self.local = _aligned(self.warps * 32 * program.local_bytes + 64)
        self.constants = _aligned(8 * max(1, len(program.registers)))
        # the state of every piece of shared memory, and which (instruction, hazard) were reported
        self.race_shift = race_unit(program).bit_length() - 1
        self.race_words = (self.shared_size >> self.race_shift) + 160 if run.stepped else 0
        self.race = _aligned(at.RACE_ARRAYS * 4 * self.race_words)
        self.race_seen = np.zeros(at.HAZARDS * len(program.instructions) + at.HAZARDS, np.uint8)
        self.copies = _aligned(RING_BYTES * self.warps if run.copying else 0)
        self.hazards: list[tuple[int, Finding]] = []
        self.maps: list[tuple[np.ndarray, np.ndarray]] = []
        rows = np.zeros((max(1, len(run.allocations)), at.TABLE_BYTES // 8), np.int64)
        for row, allocation in zip(rows, run.allocations, strict=False):
            size = allocation.size // 256 + 16
            read, written = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
            self.maps.append((read, written))
            track = (
                allocation.written.ctypes.data if allocation.written is not None and allocation.size else 0
            )
            fixed = not allocation.host.flags.writeable
            row[:7] = (allocation.base, allocation.size, allocation.pointer, read.ctypes.data,
                       written.ctypes.data, track, fixed)  # fmt: skip
        self.table = rows
        self.set_fields()
        self.set_threads()

    def set_fields(self) -> None:
        """Fill the context."""
        run, launch, program = self.run, self.run.launch, self.program
        values = {
            "params": run.params.ctypes.data,
            "counters": self.counters.ctypes.data,
            "cache": self.cache.ctypes.data,
            "table": self.table.ctypes.data,
            "table_count": len(run.allocations),
            "warps": self.state.ctypes.data,
            "warp_stride": self.warp_bytes,
            "shared": self.shared.ctypes.data,
            "shared_size": self.shared_size,
            "shared_flags": self.shared_flags.ctypes.data,
            "local": self.local.ctypes.data,
            "local_bytes": program.local_bytes,
            "local_total": self.warps * 32 * program.local_bytes,
            "stop": run.stop.ctypes.data,
            "budget": launch.budget,
            "constants": self.constants.ctypes.data,
            "symbols": run.symbols.ctypes.data,
            "threads": self.threads,
            "warps_per_block": self.warps,
            "next_block": run.shared_words[0:].ctypes.data,
            "block_count": len(run.chosen) if run.chosen is not None else launch.block_count,
            "block_list": run.chosen.ctypes.data if run.chosen is not None else 0,
            "fault_block": run.shared_words[8:].ctypes.data,
            "done": run.shared_words[16:].ctypes.data,
            "shared_window": WINDOW["shared"],
            "local_window": WINDOW["local"],
            "param_window": WINDOW["param"],
            "param_bytes": len(launch.params),
            "call": ctypes.cast(run.callback, ctypes.c_void_p).value,
            "host": id(self),
            "track_shared": run.tracked,
            "track_global": "initcheck" in launch.checks,
            "notes": self.notes.ctypes.data,
            "race": self.race.ctypes.data if run.stepped else 0,
            "race_words": self.race_words,
            "race_shift": self.race_shift,
            "race_seen": self.race_seen.ctypes.data,
            "copies": self.copies.ctypes.data if len(self.copies) else 0,
            "report": ctypes.cast(run.report, ctypes.c_void_p).value,
            "access_counters": self.counters.ctypes.data + 8 * 5 * len(program.blocks),
            "slots_bytes": self.warp_bytes - at.WARP_SLOTS - 64,
        }
        for axis, threads, blocks in zip("xyz", launch.block, launch.grid, strict=True):
            values[f"ntid_{axis}"], values[f"nctaid_{axis}"] = threads, blocks
        for name, value in values.items():
            self.fields[CTX[name] // 8] = value

    def set_threads(self) -> None:
        """Lanes that exist and their thread indices, which no block changes."""
        x, y, _ = self.run.launch.block
        linear = np.arange(self.warps * 32)
        indices = np.stack((linear % x, linear // x % y, linear // (x * y))).astype(np.int32)
        for w in range(self.warps):
            lanes = slice(32 * w, 32 * w + 32)
            self.words(w, at.WARP_TID, 96)[:] = indices[:, lanes].ravel()
            here = min(32, self.threads - 32 * w)
            self.words(w, at.WARP_FIRST, 1)[0] = np.uint32((1 << here) - 1).view(np.int32)
            self.words(w, at.WARP_INDEX, 2).view(np.int64)[0] = w

    def words(self, warp: int, offset: int, count: int) -> np.ndarray:
        """int32 words of a warp's state; the states lie in the order in which warps get their turn."""
        start = int(self.place[warp]) * self.warp_bytes + offset
        return self.state[start : start + 4 * count].view(np.int32)

    def field(self, name: str) -> int:
        """A field of the context."""
        return int(self.fields[CTX[name] // 8])

    def work(self) -> None:
        """Run blocks until none is left, a fault, or stop. Errors are left in `run`."""
        run = self.run
        try:
            resume = 0
            while True:
                native = run.compiled.native
                self.fields[CTX["uniform"] // 8] = native.uniform
                self.fields[CTX["masked"] // 8] = native.masked
                self.fields[CTX["swap"] // 8] = 0
                drive = native.run_stepped if run.stepped else native.run
                code = drive(self.context.ctypes.data, resume)
                resume = 0
                if code == at.SWAP:
                    continue
                if code == at.STALL:
                    Stalled(self).release()
                    resume = 1
                    continue
                if code == at.FAULT:
                    if self.error is not None:
                        raise self.error
                    raise Fault(finding_of(self))
                if code == at.BUDGET:
                    raise self.over_budget()
                return
        except BaseException as error:
            run.failed(self.field("order"), error)

    error: BaseException | None = None  # raised by a call from the kernel

    def over_budget(self) -> BudgetError:
        """The budget's error, at the place that the warp is at."""
        program, budget = self.program, self.run.launch.budget
        place, warp = self.field("fault_extra"), self.field("fault_warp")
        if place < 0:
            place = int(self.words(warp, at.WARP_PCS, 32).min() & (at.SPIN - 1)) >> 1
        instruction = program.instructions[min(program.blocks[place].start, len(program.instructions) - 1)]
        file, line = instruction.source or ("", 0)
        return BudgetError(
            f"{program.entry}: a thread executed more than {budget} instructions and is at "
            f"{file or 'PTX line'}:{line or instruction.line}; is this loop endless?"
        )

    # ---- calls from the kernel

    def builtin(self, instruction: int, warp: int, mask: int) -> int:
        """printf and assert; arguments lie in local memory."""
        try:
            program = self.program
            name, group = program.instructions[instruction].operands
            offsets = [program.symbols[s.name][1] for s in group.elements]
            for lane in range(32):
                if mask >> lane & 1:
                    self.builtin_lane(instruction, name.name, offsets, 32 * warp + lane)
        except BaseException as error:
            self.error = error
            return 1
        return 0

    def builtin_lane(self, instruction: int, name: str, offsets: list[int], thread: int) -> None:
        """One thread of `builtin`."""
        from .errors import TrapError

        size = self.program.local_bytes
        frame = self.local[thread * size : (thread + 1) * size]
        words = [int(frame[o : o + 8].view(np.uint64)[0]) for o in offsets[:2]]

        def read(address: int, count: int) -> bytes:
            return self.bytes_at(address, count, thread)

        if name == "vprintf":
            self.run.print(format_text(read, *words))
            frame[offsets[2] : offsets[2] + 4] = 0
            return
        text, file = (c_string(read, word) for word in words)
        line = int(frame[offsets[2] : offsets[2] + 4].view(np.uint32)[0])
        message = f"{file}:{line}: assertion `{text}` failed"
        block, index = self.where(thread)
        raise TrapError(Finding("memcheck", "Device-side assert", file, line, block, index, None, message))

    def where(self, thread: int):
        """(block, thread) as (x, y, z)."""
        launch = self.run.launch
        return launch.block_index(self.field("block")), launch.thread_index(thread)

    def bytes_at(self, address: int, count: int, thread: int) -> bytes:
        """Memory at a generic address, as a thread sees it, to its end; b"" where nothing is mapped."""
        size, offset = self.program.local_bytes, address - WINDOW["local"]
        if 0 <= offset < size:
            return self.local[thread * size : (thread + 1) * size][offset : offset + count].tobytes()
        offset = address - WINDOW["shared"]
        if 0 <= offset < self.shared_size:
            return self.shared[: self.shared_size][offset : offset + count].tobytes()
        allocation = self.run.space.find(address)
        if allocation is None:
            return b""
        return allocation.host[address - allocation.base :][:count].tobytes()


class Run:
    """One launch in progress."""

    def __init__(self, launch: Launch, space: AddressSpace, addresses: dict[str, int], workers: int):
        self.launch, self.space = launch, space
        _check_parameters(launch)
        self.stepped = _steps(launch)
        self.copying = any(a.operation == "cp" for a in launch.program.access.values())
        self.tracked = at.TRACK_WRITES if "initcheck" in launch.checks else 0
        if self.copying and "synccheck" in launch.checks:
            self.tracked |= at.TRACK_COPIES
        self.compiled = compiled(launch.program, self.stepped)
        self.allocations = [a for a in space.allocations if a.size]
        self.params = np.frombuffer(launch.params.ljust(8, b"\0"), np.uint8).copy()
        names = sorted(launch.program.variables)
        self.symbols = np.array([addresses[n] for n in names] or [0], np.int64)
        plain = launch.blocks is None and launch.schedule is None
        self.chosen = None if plain else launch.block_order().astype(np.int64)
        self.total = launch.block_count if self.chosen is None else len(self.chosen)
        self.stop = np.zeros(1, np.int32)
        self.shared_words = np.zeros(
            24, np.int64
        )  # next block, lowest faulty block, blocks done; a line each
        self.shared_words[8] = np.iinfo(np.int64).max
        self.lock = threading.Lock()
        self.errors: list[tuple[int, BaseException]] = []
        self.output = io.StringIO()
        self.dropped = 0
        self.by_id: dict[int, Worker] = {}
        self.callback = _CALLBACK(self._call)
        self.report = _REPORT(self._report)
        self.workers = [Worker(self) for _ in range(max(1, min(workers, self.total)))]
        self.by_id = {id(w): w for w in self.workers}

    def _call(self, worker: int, instruction: int, warp: int, mask: int) -> int:
        return self.by_id[worker].builtin(instruction, warp, mask & 0xFFFFFFFF)

    def _report(self, worker: int, *what: int) -> None:
        owner = self.by_id[worker]
        try:
            owner.hazards.append((owner.field("order"), hazard_of(owner, *what)))
        except BaseException as error:
            self.failed(owner.field("order"), error)

    def print(self, text: str) -> None:
        """Keep what printf printed, up to OUTPUT_LIMIT characters."""
        room = max(OUTPUT_LIMIT - self.output.tell(), 0)
        self.output.write(text[:room])
        self.dropped += max(len(text) - room, 0)

    def failed(self, order: int, error: BaseException) -> None:
        """Note the error of the block that is `order`-th in the launch; later blocks are not begun."""
        with self.lock:
            self.errors.append((order, error))
            self.shared_words[8] = min(int(self.shared_words[8]), order)

    def execute(self, progress: Callable[[int, int], None] | None) -> None:
        """Run all blocks. Raises the error of the lowest block."""
        for worker in self.workers:
            state = worker.state.ctypes.data
            self.compiled.native.setup(worker.context.ctypes.data, state)
        level = self.compiled.native.level
        began = time.perf_counter()
        threads = [threading.Thread(target=w.work, name="simt-llvm-worker") for w in self.workers]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(POLL)
                    if self.compiled.seconds + time.perf_counter() - began > PATIENCE:
                        self.compiled.improve()
                    if self.compiled.native.level != level:
                        level = self.compiled.native.level
                        for worker in self.workers:
                            worker.fields[CTX["swap"] // 8] = 1
                    if progress is not None:
                        progress(int(self.shared_words[16]), self.total)
        except BaseException:
            self.stop[0] = 1
            for thread in threads:
                thread.join()
            raise
        if level == cache.QUICK:
            self.compiled.seconds += time.perf_counter() - began
        if self.errors:
            raise min(self.errors, key=lambda e: e[0])[1]

    def result(self, seconds: float) -> Result:
        """Counters and findings of all workers together."""
        launch, program = self.launch, self.launch.program
        counters = Counters(program, launch.block_count)
        counters.blocks_run = self.total
        total = sum(w.counters.view(np.int64) for w in self.workers)
        code = self.compiled.program
        count = len(code.blocks)
        previous = {} if self.stepped else chains(code).previous
        first = self.compiled.first if self.stepped else list(range(count))
        parts = total[: 4 * count].reshape(4, count)
        for into, uniform, masked in (
            (counters.block_warps, parts[0], parts[2]),
            (counters.block_lanes, parts[1], parts[3]),
        ):
            running = uniform.copy()
            for n in range(count):
                if n in previous:
                    running[n] += running[previous[n]]
            into[:] = (running + masked)[first]
        for block in code.blocks:
            if block.kind in ("branch", "indexed") and not block.guard and len(set(block.targets)) > 1:
                counters.divergent[block.stop - 1] += total[4 * count + block.index]
        accesses = total[5 * count :].reshape(-1, ACCESS_COUNTERS)
        for row, i in zip(accesses, sorted(program.access), strict=True):
            access, place = program.access[i], program.executed_in[i]
            counters.sectors[i], counters.wavefronts[i] = row[0], row[1]
            counters.global_requests[i], counters.shared_requests[i] = row[2], row[3]
            executions = counters.block_warps[place] if place >= 0 else 0
            if access.space == "global":
                counters.global_requests[i] = executions
            elif access.space == "shared":
                counters.shared_requests[i] = executions
            elif access.space == "const":
                counters.sectors[i] = 0
                counters.global_requests[i] = 0
            if access.counted:
                counters.local_requests[i] = row[4]
            counters.copy_sectors[i] = row[5]
        maps = [w.maps for w in self.workers]
        for k, _ in enumerate(self.allocations):
            for which, name in ((0, "sectors_read"), (1, "sectors_written")):
                marks = maps[0][k][which]
                for other in maps[1:]:
                    marks = marks | other[k][which]
                setattr(counters, name, getattr(counters, name) + int(np.bitwise_count(marks).sum()))
        if self.dropped:
            self.output.write(f"\n... {self.dropped} more characters of printf output\n")
        return Result(counters, notes_of(self), self.output.getvalue(), seconds)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_parameters(launch: Launch) -> None:
    """Constant parameter loads stay within the parameters. Raises Fault."""
    program = launch.program
    for i in program.launch_constants:
        access = program.access.get(i)
        if access is not None and access.static + access.width * access.count > len(launch.params):
            raise Fault(Finding("memcheck", f"Invalid __param__ read of size {access.width} bytes",
                                *(program.instructions[i].source or ("", 0)), None, None, access.static,
                                "beyond the kernel's parameters"))  # fmt: skip


def _needs_order(program: Program) -> bool:
    """Whether the order of blocks may show in the result."""
    for instruction in program.instructions:
        if instruction.opcode == "call" and instruction.operands[-1].elements:
            return True
        if instruction.opcode == "atom" or (
            instruction.opcode == "red" and instruction.types and instruction.types[-1][0] in "fb"
            and "add" in instruction.modifiers
        ):  # fmt: skip
            return True
    return False


def run(
    launch: Launch,
    space: AddressSpace,
    addresses: dict[str, int],
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Run a launch on the LLVM engine.

    Args:
        addresses: the virtual addresses of the module's variables.
        workers: threads; by default one for each core.
        progress: called now and then with (blocks done, blocks in all).

    Raises:
        UnsupportedError (before anything runs), Fault, BudgetError; KeyboardInterrupt passes through.
    """
    started = time.perf_counter()
    if _needs_order(launch.program):
        workers = 1
    try:
        current = Run(launch, space, addresses, workers or cores())
    except UnsupportedError:
        from . import numpy_engine

        return numpy_engine.run(launch, space, addresses)
    current.execute(progress)
    return current.result(time.perf_counter() - started)
