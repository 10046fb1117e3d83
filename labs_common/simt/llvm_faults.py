"""Faults and notes that compiled code left in a worker's context, as the findings the NumPy engine gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import llvm_copies as copies
from . import llvm_layout as at
from .errors import Finding, TrapError, elsewhere, without_explained
from .memory import WINDOW, WINDOW_BYTES, describe
from .numpy_copies import CAPACITY, in_flight
from .parse import Location
from .races import HAZARDS, race_finding, same_store_finding

if TYPE_CHECKING:
    from .llvm_engine import Run, Worker


MAX_FINDINGS = 100


def location_of(worker: Worker, instruction: int) -> Location:
    """The source position of an instruction, with where it was inlined."""
    return worker.program.instructions[instruction].location or ()


def source_of(worker: Worker, instruction: int) -> tuple[str, int]:
    """(file, line) of an instruction."""
    return worker.program.instructions[instruction].source or ("", 0)


def finding_of(worker: Worker) -> Finding:
    """The finding of the fault in the worker's context. Raises TrapError for a trap."""
    program = worker.program
    kind, lane = worker.field("fault"), worker.field("fault_lane")
    thread = 32 * worker.field("fault_warp") + lane
    instruction, extra = worker.field("fault_instruction"), worker.field("fault_extra")
    address = worker.field("fault_address")
    if kind in (at.OUT_OF_BOUNDS, at.MISALIGNED, at.UNWRITTEN_SHARED, at.COPY_TARGET):
        return _memory(worker, instruction, extra)
    block, index = worker.where(thread)
    if kind == at.MASK_ABSENT:
        instruction = program.blocks[extra].start
    file, line = source_of(worker, instruction)
    if kind == at.TRAPPED:
        found = Finding("memcheck", "Trap", file, line, block, index, None, "the kernel executed trap")
        raise TrapError(found.inlined(location_of(worker, instruction)))
    if kind == at.BAD_INDEX:
        limit = len(program.blocks[program.executed_in[instruction]].targets)
        return Finding("memcheck", "Invalid branch", file, line, block, index, None,
                       f"index {address & 0xFFFFFFFF} of brx.idx is beyond its {limit} targets")  # fmt: skip
    warp = worker.field("fault_warp")
    mask = extra & 0xFFFFFFFF
    if kind == at.MASK_ABSENT:
        mask = int(worker.words(warp, at.WARP_COUNT, 32)[lane]) & 0xFFFFFFFF
    if kind == at.NOT_IN_MASK:
        message = f"mask {mask:#010x} does not name the executing lane {lane}"
    elif kind == at.MASK_ABSENT and address:
        missing = mask & ~(address & 0xFFFFFFFF)
        names = ", ".join(str(k) for k in range(32) if missing >> k & 1)
        message = f"lanes {names} of the mask never arrive"
    else:
        message = exited_message(worker, warp, mask)
    name = program.instructions[instruction].name
    found = Finding("synccheck", "Barrier error detected. Invalid arguments", file, line, block, index, None,
                    f"{name}: {message}")  # fmt: skip
    return found.inlined(location_of(worker, instruction))


def exited_message(worker: Worker, warp: int, mask: int) -> str:
    """What is said of a member mask that names lanes that have exited, or that the block does not have."""
    alive = int(worker.words(warp, at.WARP_ALIVE, 1)[0]) & 0xFFFFFFFF
    gone = mask & ~alive
    lane = (gone & -gone).bit_length() - 1
    state = "exited" if 32 * warp + lane < worker.threads else "absent"
    return f"mask {mask:#010x} names {state} lane {lane}"


def _memory(worker: Worker, instruction: int, span: int) -> Finding:
    """Which lane of the warp's access is named, and in which words.

    Where several lanes are at fault: in global memory a misaligned one before one out of bounds, in shared
    and local memory the other way round; then the lowest.
    """
    program = worker.program
    access = program.access[instruction]
    start = at.SCRATCH_ADDRESSES
    addresses = worker.context[start : start + 256].view(np.uint64)
    mask = worker.field("fault_mask")
    lanes = [k for k in range(32) if mask >> k & 1]
    space, base = access.space, 0
    verb = {"st": "write", "atom": "atomic", "red": "atomic"}.get(access.operation, "read")
    if worker.field("fault") == at.COPY_TARGET:  # what cp.async writes; else it is about what it reads
        addresses = worker.context[copies.SCRATCH_OFFSETS :][:256].view(np.uint64)
        space, verb = "shared", "write"
    if space == "generic":
        # the spaces one after the other, as they are looked at
        lane = worker.field("fault_lane")
        space = "global"
        for name, window in WINDOW.items():
            if window <= int(addresses[lane]) < window + WINDOW_BYTES:
                space, base = name, window if name != "param" else 0
        lanes = [k for k in lanes if _in(int(addresses[k]), space)]
    file, line = source_of(worker, instruction)
    warp = worker.field("fault_warp")

    def finding(tool: str, kind: str, lane: int, address: int, message: str) -> Finding:
        found = Finding(tool, kind, file, line, *worker.where(32 * warp + lane), address, message)
        return found.inlined(location_of(worker, instruction))

    kind = f"Invalid __{space}__ {verb} of size {span} bytes"
    offsets = {k: int(addresses[k]) - base for k in lanes}
    misaligned = next((k for k in lanes if offsets[k] & (span - 1)), None)
    if space in ("shared", "local"):
        size = worker.shared_size if space == "shared" else program.local_bytes
        beyond = next((k for k in lanes if offsets[k] + span > size), None)
        if beyond is not None:
            owner = "block" if space == "shared" else "thread"
            message = f"Address {offsets[beyond]:#x} is out of bounds; a {owner} has {size} bytes"
            return finding("memcheck", kind, beyond, offsets[beyond], message)
    if misaligned is not None:
        address = offsets[misaligned]
        return finding("memcheck", kind, misaligned, address, f"Address {address:#x} is misaligned")
    if worker.field("fault") == at.UNWRITTEN_SHARED:
        for k in range(access.count):
            for lane in lanes:
                offset = offsets[lane] + k * access.width
                flags = worker.shared_flags[offset // 4 : (offset + access.width - 1) // 4 + 1]
                wanted = (1 << min(access.width, 4)) - 1 << offset % 4
                if any(int(f) & wanted != wanted for f in flags):
                    return finding(
                        "initcheck",
                        f"Uninitialized __shared__ memory read of size {span} bytes",
                        lane,
                        offset,
                        f"no thread of the block has written shared address {offset:#x}",
                    )
    memory = worker.run.space
    for lane in lanes:
        address = offsets[lane]
        allocation = memory.find(address)
        if space == "param":
            if WINDOW["param"] <= address <= WINDOW["param"] + len(worker.run.launch.params) - span:
                continue
        elif allocation is not None and address + span <= allocation.end:
            if verb == "read" or allocation.host.flags.writeable:
                continue
            return finding("memcheck", kind, lane, address, "the memory is read-only")
        message = describe(memory, address)
        if allocation is not None:
            message = (
                f"Address {address:#x} is out of bounds and reaches beyond the allocation "
                f"at {allocation.base:#x} of size {allocation.size} bytes"
            )
        return finding("memcheck", kind, lane, address, message)
    raise AssertionError("a memory fault without a faulty lane")


def _in(address: int, space: str) -> bool:
    if space in WINDOW:
        return WINDOW[space] <= address < WINDOW[space] + WINDOW_BYTES
    return not any(base <= address < base + WINDOW_BYTES for base in WINDOW.values())


def _in_flight(worker: Worker, instruction: int, warp: int, offset: int, lane: int, write: bool) -> Finding:
    """The finding of an access that should have waited for an asynchronous copy: the oldest to that word."""
    oldest = None
    for w in range(worker.warps):
        ring = worker.copies[w * copies.RING_BYTES :][: copies.RING_BYTES]
        head, tail = (int(n) for n in ring[:16].view(np.int64))
        for n in range(head, tail):
            start = copies.RING_ENTRIES + n % CAPACITY * copies.ENTRY_BYTES
            entry = ring[start : start + copies.ENTRY_BYTES]
            waiting, copy = (int(v) for v in entry[:8].view(np.uint32))
            span = int(entry[copies.ENTRY_SPAN :][:8].view(np.int64)[0])
            offsets = entry[copies.ENTRY_OFFSETS :][:256].view(np.int64)
            hits = (offsets <= offset) & (offset < offsets + span) & (waiting >> np.arange(32) & 1 == 1)
            if hits.any() and (oldest is None or n < oldest[0]):
                oldest = (n, 32 * w + int(np.argmax(hits)), copy)
                break
    assert oldest is not None
    block, thread = worker.where(32 * warp + lane)
    owner = worker.where(oldest[1])[1]
    file, line = source_of(worker, instruction)
    copied_at = elsewhere(location_of(worker, oldest[2]), file)
    found = in_flight(file, line, block, thread, offset, owner, copied_at, write)
    return found.inlined(location_of(worker, instruction))


_BETWEEN_WARPS = {
    at.READ_AFTER_WRITE: (0, at.RACE_WRITER, at.RACE_WRITER_INFO),
    at.WRITE_AFTER_WRITE: (1, at.RACE_WRITER, at.RACE_WRITER_INFO),
    at.WRITE_AFTER_READ: (2, at.RACE_READER, at.RACE_READER_INFO),
    at.WRITE_AFTER_SECOND_READ: (2, at.RACE_SECOND, at.RACE_SECOND_INFO),
}
_WITHIN_WARP = {at.OWN_READ_AFTER_WRITE: 0, at.OWN_WRITE_AFTER_WRITE: 1, at.OWN_WRITE_AFTER_READ: 2}


def hazard_of(
    worker: Worker, instruction: int, warp: int, hazard: int, offset: int, length: int, shift: int, lane: int
) -> Finding:
    """The finding of a race; called before the access enters the worker's race state."""
    file, line = source_of(worker, instruction)
    block, me = worker.where(32 * warp + lane)
    if hazard in (at.COPY_IN_FLIGHT, at.COPY_OVERWRITTEN):
        return _in_flight(worker, instruction, warp, offset, lane, hazard == at.COPY_OVERWRITTEN)
    if hazard == at.SAME_STORE:
        other = worker.where(32 * warp + length)[1]
        return same_store_finding(file, line, block, me, other, offset).inlined(
            location_of(worker, instruction)
        )
    arrays = worker.race[: 4 * at.RACE_ARRAYS * worker.race_words].view(np.uint32)
    arrays = arrays.reshape(at.RACE_ARRAYS, -1)
    unit = worker.race_shift
    number = np.arange(length >> unit)
    where = (offset >> unit) + number
    lanes = lane + ((number << unit) >> shift)
    if hazard in _BETWEEN_WARPS:
        which, tags, infos = _BETWEEN_WARPS[hazard]
        tag = arrays[tags][where]
        clash = (tag >> 5 == worker.field("epoch")) & (tag & 31 != warp)
        at_unit = int(np.argmax(clash))
        place = int(where[at_unit])
        info = int(arrays[infos][place]) & ~at.RACE_ATOMIC & 0xFFFFFFFF
        other, other_instruction = 32 * int(tag[at_unit] & 31) + (info & 31), info >> 5
        if hazard == at.WRITE_AFTER_SECOND_READ:
            other_instruction = int(arrays[at.RACE_READER_INFO][place]) >> 5
    else:
        which = _WITHIN_WARP[hazard]
        mine = worker.field("epoch") << 5 | warp
        sync = int(worker.words(warp, at.WARP_SYNC, 1)[0]) & 0xFFFFFFFF
        if which == 2:
            others = arrays[at.RACE_READ_LANES][where] & ~(1 << lanes).astype(np.uint32)
            clash = (arrays[at.RACE_READER][where] == mine) & (arrays[at.RACE_READ_SYNC][where] == sync)
            at_unit = int(np.argmax(clash & (others != 0)))
            bits = int(others[at_unit])
            other = 32 * warp + (bits & -bits).bit_length() - 1
            other_instruction = int(arrays[at.RACE_READ_AT][where[at_unit]])
        else:
            infos = arrays[at.RACE_WRITER_INFO][where] & np.uint32(~at.RACE_ATOMIC & 0xFFFFFFFF)
            clash = (arrays[at.RACE_WRITER][where] == mine) & (arrays[at.RACE_WRITE_SYNC][where] == sync)
            at_unit = int(np.argmax(clash & (infos & 31 != lanes)))
            info = int(infos[at_unit])
            other, other_instruction = 32 * warp + (info & 31), info >> 5
    me = worker.where(32 * warp + int(lanes[at_unit]))[1]
    address = int(where[at_unit]) << unit
    found = race_finding(
        HAZARDS[which],
        file,
        line,
        block,
        me,
        worker.where(other)[1],
        elsewhere(location_of(worker, other_instruction), file),
        address,
        hazard in _WITHIN_WARP,
    )
    return found.inlined(location_of(worker, instruction))


def notes_of(run: Run) -> list[Finding]:
    """What does not end a launch, of the lowest block for each source line.

    Reads of global memory that nothing was written to, and races in shared memory.
    """
    program, launch = run.launch.program, run.launch
    found: dict[tuple, Finding] = {}
    for number, i in enumerate(sorted(program.access)):
        rows = [w.notes.view(np.int64).reshape(-1, at.NOTE_BYTES // 8)[number] for w in run.workers]
        rows = [r for r in rows if r[0]]
        if not rows:
            continue
        _, block, warp, lane, address = (int(v) for v in min(rows, key=lambda r: r[1]))
        access = program.access[i]
        file, line = program.instructions[i].source or ("", 0)
        start = address - address % access.width  # of the element
        allocation = run.space.find(start)
        name = (allocation.name if allocation is not None else "") or "an array"
        finding = Finding(
            "initcheck",
            f"Uninitialized __global__ memory read of size {access.width * access.count} bytes",
            file,
            line,
            launch.block_index(block),
            launch.thread_index(32 * warp + lane),
            start,
            f"nothing was written at {start:#x} ({name})",
        ).inlined(program.instructions[i].location or ())
        found.setdefault((finding.tool, finding.kind, file, line), finding)
    hazards = sorted((h for w in run.workers for h in w.hazards), key=lambda h: h[0])
    for _, finding in hazards:
        found.setdefault((finding.tool, finding.kind, finding.file, finding.line), finding)
    return without_explained(list(found.values())[:MAX_FINDINGS])
