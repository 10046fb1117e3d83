"""Loads, stores and atomics of the NumPy engine: many warps at once, every address checked and counted."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from . import numpy_native as native
from .errors import Fault, Finding
from .memory import WINDOW, WINDOW_BYTES, Allocation, describe
from .vector_math import DTYPES

if TYPE_CHECKING:
    from .numpy_engine import Batch, Lanes

_U64 = np.dtype(np.uint64)
_LOWEST_WINDOW = min(WINDOW.values())


class Memory:
    """The memories as one batch of blocks sees them.

    Shared and local memory lie in one array each, block after block (lane after lane); an address becomes an
    index into it after its own bounds check.
    """

    def __init__(self, batch: Batch):
        launch, program = batch.launch, batch.launch.program
        self.batch = batch
        self.space = batch.space
        self.access = program.access
        self.counters = batch.counters
        self.initcheck = "initcheck" in launch.checks
        self.shared_size = launch.shared_bytes
        self.shared_stride = -(-max(self.shared_size, 1) // 16) * 16
        self.local_size = program.local_bytes
        self.shared = np.zeros(batch.block_count * self.shared_stride, np.uint8)
        self.shared_written = np.zeros(self.shared.size if self.initcheck else 0, np.uint8)
        self.local = np.zeros(batch.lanes.n * self.local_size, np.uint8)
        self.params = Allocation(
            WINDOW["param"], np.frombuffer(launch.params, np.uint8).copy(), "kernel parameters"
        )
        self._bounds = np.zeros(3, np.uint64)
        self._views: dict[tuple[str, np.dtype], np.ndarray] = {}

    # ---- entry points of the generated code

    def load(self, lanes: Lanes, i: int, address: np.ndarray):
        """The loaded elements, one array per vector component."""
        access = self.access[i]
        parts = self.split(lanes, i, address, access.space)
        if len(parts) == 1:
            space, sub, at, _ = parts[0]
            result = self.read(sub, i, access, space, at)
        else:
            result = [np.empty(lanes.n, DTYPES[access.type]) for _ in range(access.count)]
            for space, sub, at, positions in parts:
                for whole, piece in zip(result, self.read(sub, i, access, space, at), strict=True):
                    whole[positions] = piece
        return result[0] if access.count == 1 else result

    def store(self, lanes: Lanes, i: int, address: np.ndarray, values: tuple[np.ndarray, ...]) -> None:
        """Write one array per vector component; of lanes with one address the last wins."""
        access = self.access[i]
        parts = self.split(lanes, i, address, access.space)
        for space, sub, at, positions in parts:
            if len(parts) > 1:
                values_here = tuple(v if v.size == 1 else v[positions] for v in values)
            else:
                values_here = values
            self.write(sub, i, access, space, at, values_here)

    def split(self, lanes: Lanes, i: int, address: np.ndarray, space: str):
        """(space, lanes, address in it, positions) for each space that generic addresses lie in."""
        if space != "generic":
            return [(space, lanes, address, None)]
        if self.bounds(address)[1] < _LOWEST_WINDOW:
            return [("global", lanes, address, None)]
        address = np.broadcast_to(address, lanes.n)
        parts, rest = [], np.ones(lanes.n, bool)
        for name, base in WINDOW.items():
            inside = (address >= np.uint64(base)) & (address < np.uint64(base + WINDOW_BYTES))
            if inside.any():
                positions = np.flatnonzero(inside)
                offset = address[positions]
                if name != "param":
                    offset = offset - np.uint64(base)
                parts.append((name, lanes.subset(positions), offset, positions))
                rest &= ~inside
        if rest.any():
            positions = np.flatnonzero(rest)
            parts.append(("global", lanes.subset(positions), address[positions], positions))
        return parts

    # ---- one space

    def read(self, lanes: Lanes, i: int, access, space: str, address: np.ndarray) -> list[np.ndarray]:
        """Check, count and load."""
        dtype = DTYPES[access.type]
        span = access.width * access.count
        if space in ("global", "const", "param"):
            groups = self.locate(lanes, i, access, space, address, span, "read")
            if len(groups) == 1:
                allocation, offset, _ = groups[0]
                if space == "global":
                    self.count_sectors(lanes, i, allocation, offset, False)
                self.check_written(lanes, i, allocation, offset, dtype, access.count)
                return self.gather(allocation.host, offset, 0, dtype, access.count)
            result = [np.empty(lanes.n, dtype) for _ in range(access.count)]
            for allocation, offset, positions in groups:
                sub = lanes.subset(positions)
                if space == "global":
                    self.count_sectors(sub, i, allocation, offset, False, requests=False)
                self.check_written(sub, i, allocation, offset, dtype, access.count)
                pieces = self.gather(allocation.host, offset, 0, dtype, access.count)
                for whole, piece in zip(result, pieces, strict=True):
                    whole[positions] = piece
            if space == "global":
                self.counters.global_requests[i] += lanes.warps
            return result
        index = self.index(lanes, i, access, space, address, span, "read")
        if space == "shared":
            self.count_wavefronts(lanes, i, address, span)
            if self.batch.copies is not None:
                self.batch.copies.touched(lanes, i, index, span, write=False)
            if self.initcheck:
                marks = self.gather(self.shared_written, index, 0, dtype, access.count)
                self.need_written(lanes, i, access, address, marks)
            if self.batch.races is not None:
                self.batch.races.access(lanes, i, index, span, False)
        elif access.counted:
            self.counters.local_requests[i] += lanes.warps
        memory = self.shared if space == "shared" else self.local
        return self.gather(memory, index, 0, dtype, access.count)

    def write(self, lanes: Lanes, i: int, access, space: str, address: np.ndarray, values) -> None:
        """Check, count and store."""
        dtype = DTYPES[access.type]
        span = access.width * access.count
        if space in ("global", "const", "param"):
            groups = self.locate(lanes, i, access, space, address, span, "write")
            for allocation, offset, positions in groups:
                sub = lanes if positions is None else lanes.subset(positions)
                part = values if positions is None else [v if v.size == 1 else v[positions] for v in values]
                self.count_sectors(sub, i, allocation, offset, True, requests=positions is None)
                self._need_writable(lanes, i, allocation, offset, "write")
                self.scatter(allocation.typed(dtype), offset, access.width, part)
                if allocation.written is not None:
                    self.mark(allocation.typed(dtype, True), offset, access.width, access.count)
            if len(groups) > 1:
                self.counters.global_requests[i] += lanes.warps
            return
        index = self.index(lanes, i, access, space, address, span, "write")
        if space == "shared":
            self.count_wavefronts(lanes, i, address, span)
            if self.batch.copies is not None:
                self.batch.copies.touched(lanes, i, index, span, write=True)
            if self.initcheck:
                self.mark(self.view("written", dtype), index, access.width, access.count)
            if self.batch.races is not None:
                self.batch.races.access(lanes, i, index, span, True)
                self.batch.races.same_store(lanes, i, index, values)
        elif access.counted:
            self.counters.local_requests[i] += lanes.warps
        if index.size == 1 and lanes.n > 1 and space == "local":
            raise AssertionError("local memory is per lane")
        self.scatter(self.view(space, dtype), index, access.width, values)

    def view(self, space: str, dtype: np.dtype) -> np.ndarray:
        """The block-wide arrays as elements of a dtype."""
        view = self._views.get((space, dtype))
        if view is None:
            array = {"shared": self.shared, "written": self.shared_written, "local": self.local}[space]
            view = self._views[space, dtype] = array.view(dtype)
        return view

    @staticmethod
    def gather(memory: np.ndarray, address: np.ndarray, base: int, dtype: np.dtype, count: int):
        """Elements at address - base of uint8 memory, an array per vector component."""
        out = np.empty((count, address.size), dtype)
        native.gather(dtype.itemsize, count)(address.size, id(address), base, id(memory), id(out))
        return [out.reshape(-1)] if count == 1 else list(out)

    @staticmethod
    def scatter(view: np.ndarray, offset: np.ndarray, width: int, values) -> None:
        """Store at byte offsets; with one offset for many values the last lane's stays."""
        first = offset // width
        for k, value in enumerate(values):
            if first.size == 1 and value.size > 1:
                value = value[-1:]
            view[first + k if k else first] = value

    @staticmethod
    def mark(view: np.ndarray, offset: np.ndarray, width: int, count: int) -> None:
        """Set written marks."""
        bits = view.view(np.dtype(f"u{width}"))
        everything = bits.dtype.type((1 << 8 * width) - 1)
        first = offset // width
        for k in range(count):
            bits[first + k] = everything

    # ---- bounds

    def bounds(self, address: np.ndarray) -> list[int]:
        """Least and greatest address, and the bits that any of them has."""
        native.bounds()(address.size, id(address), id(self._bounds))
        return self._bounds.tolist()

    def locate(self, lanes, i, access, space, address, span, verb):
        """[(allocation, byte offsets, positions or None for all)]; a fault where an address is in none."""
        low, high, bits = self.bounds(address)
        allocation = self.params if space == "param" else self.space.find(low)
        if bits & (span - 1):
            bad = int(np.flatnonzero(address & np.uint64(span - 1))[0])
            kind = f"Invalid __{space}__ {verb} of size {span} bytes"
            message = f"Address {int(address[bad]):#x} is misaligned"
            self.fault(lanes, i, "memcheck", kind, address, bad, message)
        if allocation is not None and allocation.base <= low and high + span <= allocation.end:
            return [(allocation, (address - np.uint64(allocation.base)).view(np.int64), None)]
        address = np.broadcast_to(address, lanes.n)
        groups, rest = [], np.ones(lanes.n, bool)
        while rest.any():
            first = int(np.argmax(rest))
            allocation = self.space.find(int(address[first])) if space != "param" else self.params
            inside = None
            if allocation is not None:
                inside = (address >= np.uint64(allocation.base)) & (address < np.uint64(allocation.end))
                inside &= address + np.uint64(span) <= np.uint64(allocation.end)
            if inside is None or not inside[first]:
                where = describe(self.space, int(address[first]))
                if allocation is not None:
                    where = (
                        f"Address {int(address[first]):#x} is out of bounds and reaches beyond the "
                        f"allocation at {allocation.base:#x} of size {allocation.size} bytes"
                    )
                kind = f"Invalid __{space}__ {verb} of size {span} bytes"
                self.fault(lanes, i, "memcheck", kind, address, first, where)
            positions = np.flatnonzero(inside)
            offset = (address[positions] - np.uint64(allocation.base)).view(np.int64)
            groups.append((allocation, offset, positions))
            rest &= ~inside
        return groups

    def index(self, lanes, i, access, space, address, span, verb) -> np.ndarray:
        """Byte indices into the batch's shared or local array."""
        size = self.shared_size if space == "shared" else self.local_size
        _, high, bits = self.bounds(address)
        if high + span > size:
            bad = int(np.flatnonzero(address > np.uint64(max(size - span, 0)))[0]) if size >= span else 0
            kind = f"Invalid __{space}__ {verb} of size {span} bytes"
            owner = "block" if space == "shared" else "thread"
            message = f"Address {int(address[bad]):#x} is out of bounds; a {owner} has {size} bytes"
            self.fault(lanes, i, "memcheck", kind, address, bad, message)
        if bits & (span - 1):
            bad = int(np.flatnonzero(address & np.uint64(span - 1))[0])
            kind = f"Invalid __{space}__ {verb} of size {span} bytes"
            message = f"Address {int(address[bad]):#x} is misaligned"
            self.fault(lanes, i, "memcheck", kind, address, bad, message)
        base = (
            lanes.shared_base(self.shared_stride) if space == "shared" else lanes.local_base(self.local_size)
        )
        return base + address.view(np.int64)

    def check_written(self, lanes, i, allocation, offset, dtype, count) -> None:
        """initcheck of a global allocation: noted, not fatal."""
        if allocation.written is None or not self.initcheck:
            return
        marks = self.gather(allocation.written, offset, 0, dtype, count)
        for k, mark in enumerate(marks):
            bits = mark.view(np.dtype(f"u{dtype.itemsize}"))
            missing = bits != bits.dtype.type((1 << 8 * dtype.itemsize) - 1)
            if missing.any():
                bad = int(np.argmax(missing))
                where = allocation.base + int(offset[min(bad, offset.size - 1)]) + k * dtype.itemsize
                kind = f"Uninitialized __global__ memory read of size {dtype.itemsize * count} bytes"
                message = f"nothing was written at {where:#x} ({allocation.name or 'an array'})"
                self.batch.note(self.finding(lanes, i, "initcheck", kind, where, bad, message), i)
                return

    def need_written(self, lanes, i, access, address, marks) -> None:
        """initcheck of shared memory: reading a word that no thread wrote ends the launch."""
        for k, mark in enumerate(marks):
            bits = mark.view(np.dtype(f"u{access.width}"))
            missing = bits != bits.dtype.type((1 << 8 * access.width) - 1)
            if missing.any():
                bad = int(np.argmax(missing))
                at = int(address[min(bad, address.size - 1)]) + k * access.width
                kind = f"Uninitialized __shared__ memory read of size {access.width * access.count} bytes"
                message = f"no thread of the block has written shared address {at:#x}"
                raise Fault(self.finding(lanes, i, "initcheck", kind, at, bad, message))

    def finding(self, lanes, i, tool, kind, address, position, message) -> Finding:
        """A finding of the lane at a position of the group."""
        block, thread = lanes.who(position)
        file, line = self.batch.source_of(i)
        found = Finding(tool, kind, file, line, block, thread, address, message)
        return found.inlined(self.batch.location_of(i))

    def fault(self, lanes, i, tool, kind, addresses, position, message) -> None:
        """End the launch."""
        at = int(addresses[min(position, addresses.size - 1)])
        raise Fault(self.finding(lanes, i, tool, kind, at, position, message))

    # ---- counts

    def count_sectors(self, lanes, i, allocation, offset, written, requests=True) -> None:
        """Distinct 32-byte sectors per warp, and which sectors of the allocation were touched."""
        counters = self.counters
        if requests:
            counters.global_requests[i] += lanes.warps
        marks = allocation.sectors(written)
        # allocations are 256-byte aligned, so offsets and addresses share their sectors
        if offset.size == 1:
            counters.sectors[i] += lanes.warps
            marks[offset >> 5] = 1
            return
        count = native.sectors()(lanes.n, id(offset), id(lanes.warp), 0, id(marks))
        if count >= 0:
            counters.sectors[i] += count
            return
        sector = offset >> 5
        fresh = np.empty(lanes.n, bool)
        sector = sector[np.lexsort((sector, lanes.warp))]
        fresh[1:] = sector[1:] != sector[:-1]
        fresh[lanes.starts] = True
        counters.sectors[i] += int(np.count_nonzero(fresh))

    def count_wavefronts(self, lanes, i, address, span) -> None:
        """Passes over the 32 four-byte banks: most distinct words in one bank, by warp (8 bytes: by half
        warp, 16 bytes: by quarter warp)."""
        counters = self.counters
        counters.shared_requests[i] += lanes.warps
        groups_per_warp = max(span // 4, 1)
        if address.size == 1 and groups_per_warp == 1:
            counters.wavefronts[i] += lanes.warps
            return
        starts, group = lanes.bank_groups(groups_per_warp)
        if address.size == 1:
            counters.wavefronts[i] += len(starts)
            return
        word = (address >> np.uint64(2)).view(np.int64)
        low = np.minimum.reduceat(word, starts)
        high = np.maximum.reduceat(word, starts) + max(span // 4, 1)
        easy = high - low <= 32  # no two words share a bank
        total = int(np.count_nonzero(easy))
        if total < len(starts):
            hard = ~easy[group]
            words, of = word[hard], group[hard]
            per_lane = max(span // 4, 1)
            words = (words[:, None] + np.arange(per_lane)).ravel()
            of = np.repeat(of, per_lane)
            pairs = np.unique(np.stack((of, words), 1), axis=0)
            bank = np.bincount(pairs[:, 0] * 32 + pairs[:, 1] % 32, minlength=32 * len(starts))
            total += int(bank.reshape(-1, 32).max(1).sum())
        counters.wavefronts[i] += total

    def _need_writable(self, lanes, i, allocation, offset, verb) -> None:
        if not allocation.host.flags.writeable:
            access = self.access[i]
            kind = f"Invalid __global__ {verb} of size {access.width * access.count} bytes"
            addresses = np.atleast_1d(allocation.base + offset)
            self.fault(lanes, i, "memcheck", kind, addresses, 0, "the memory is read-only")

    # ---- atomics

    def atomic(self, lanes, i, how, address, values):
        """Read, modify, write, lane after lane in ascending order where addresses meet."""
        access = self.access[i]
        dtype = DTYPES[access.type]
        address = np.ascontiguousarray(np.broadcast_to(address, lanes.n))
        values = tuple(np.ascontiguousarray(np.broadcast_to(v, lanes.n)) for v in values)
        old = np.empty(lanes.n, dtype)
        for space, sub, at, positions in self.split(lanes, i, address, access.space):
            if space in ("global", "const", "param"):
                groups = self.locate(sub, i, access, space, at, access.width, "atomic")
                self.counters.global_requests[i] += sub.warps
                for allocation, offset, inner in groups:
                    inside = sub if inner is None else sub.subset(inner)
                    self._need_writable(inside, i, allocation, offset, "atomic")
                    self.count_sectors(inside, i, allocation, offset, True, requests=False)
                    allocation.sectors(False)[offset >> 5] = 1
                    self.check_written(inside, i, allocation, offset, dtype, 1)
                    self._combine(allocation.typed(dtype), offset, how, access, values, old, positions, inner)
                    if allocation.written is not None:
                        self.mark(allocation.typed(dtype, True), offset, access.width, 1)
            else:
                index = self.index(sub, i, access, space, at, access.width, "atomic")
                if space == "shared":
                    self.count_wavefronts(sub, i, at, access.width)
                    if self.batch.copies is not None:
                        self.batch.copies.touched(sub, i, index, access.width, write=True)
                    if self.initcheck:
                        self.need_written(
                            sub, i, access, at, [self.view("written", dtype)[index // access.width]]
                        )
                    if self.batch.races is not None:
                        self.batch.races.access(sub, i, index, access.width, True, atomic=True)
                else:
                    self.counters.local_requests[i] += sub.warps
                self._combine(self.view(space, dtype), index, how, access, values, old, positions, None)
        return old

    @staticmethod
    def _combine(view, offset, how, access, values, old, positions, inner) -> None:
        which = np.arange(old.size) if positions is None else positions
        which = which if inner is None else which[inner]
        at = offset // access.width
        order = np.argsort(at, kind="stable")
        ordered = at[order]
        first = np.r_[True, ordered[1:] != ordered[:-1]]
        run_start = np.maximum.accumulate(np.where(first, np.arange(at.size), 0))
        rank = np.arange(at.size) - run_start
        for k in range(int(rank.max()) + 1):
            now = order[rank == k]
            cells, lanes_now = at[now], which[now]
            before = view[cells]
            old[lanes_now] = before
            view[cells] = _apply(how, access.type, before, *(v[lanes_now] for v in values))


def _apply(how: str, type_: str, old: np.ndarray, b: np.ndarray, c: np.ndarray | None = None) -> np.ndarray:
    """The new memory value of one atomic operation."""
    if how == "add":
        if type_ in ("f16", "bf16", "f16x2", "bf16x2"):
            return _half_add(type_)(old, b)
        if type_ == "f32":
            return _float_add()(old, b)
        return old + b
    if how in ("min", "max"):
        return (np.minimum if how == "min" else np.maximum)(old, b)
    if how in ("and", "or", "xor"):
        return {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[how](old, b)
    if how == "exch":
        return b
    if how == "cas":
        return np.where(old == b, c, old)
    if how == "inc":
        return np.where(old >= b, old.dtype.type(0), old + old.dtype.type(1))
    return np.where((old == 0) | (old > b), b, old - old.dtype.type(1))


@functools.cache
def _half_add(type_: str):
    """atom.add of 16-bit floats; compiled once."""
    from . import vector_math as vm

    base = type_.removesuffix("x2")
    emit = vm.arithmetic("add", base)
    return vm.compiled(vm.packed(emit) if type_ != base else emit, (type_,), (type_, type_))


def _float_add():
    """atom.add.f32 on global memory flushes subnormals, as the PTX ISA says."""
    from . import vector_math as vm

    global _FLOAT_ADD
    if _FLOAT_ADD is None:
        _FLOAT_ADD = vm.compiled(vm.arithmetic("add", "f32", ftz=True), ("f32",), ("f32", "f32"))
    return _FLOAT_ADD


_FLOAT_ADD = None
