"""The virtual address space: allocations with unmapped gaps between them, and windows of generic addresses.

Addresses are the same from run to run. An allocation never grows into the gap behind it, so an access past
its end is caught even where a real GPU's memory pool would answer. Host memory of an allocation is an
existing NumPy array or a fresh zeroed one; nothing is copied.

Shared and local addresses are offsets from 0 in their own spaces; as generic addresses they lie in a window.
Global, constant and parameter addresses are generic addresses already.
"""

from __future__ import annotations

import bisect

import numpy as np

HEAP_BASE = 0x7_0000_0000  # the first allocation
GAP = 1 << 20  # unmapped bytes between allocations, at least
ALIGNMENT = 256
SECTOR = 32

WINDOW = {"shared": 0x7FF0_0000_0000, "local": 0x7FF1_0000_0000, "param": 0x7FF2_0000_0000}
WINDOW_BYTES = 1 << 24


def in_space(addresses: np.ndarray, space: str) -> np.ndarray:
    """Whether generic addresses (uint64) lie in a state space; const counts as global memory here."""
    if space in WINDOW:
        return (addresses >= np.uint64(WINDOW[space])) & (addresses < np.uint64(WINDOW[space] + WINDOW_BYTES))
    return addresses < np.uint64(WINDOW["shared"])


class Allocation:
    """A mapped range [base, base + size).

    host: uint8 view of the memory behind it. written: a byte per byte, 0xFF once stored to, or None where
    reading unwritten bytes is fine. read_sectors and written_sectors: a byte per 32-byte sector, 1 once
    touched.
    """

    def __init__(self, base: int, host: np.ndarray, name: str = "", track_written: bool = False):
        self.base, self.size, self.host, self.name = base, host.size, host, name
        self.end = base + host.size
        self.written = np.zeros(host.size, np.uint8) if track_written else None
        self._sectors: dict[bool, np.ndarray] = {}
        self._views: dict[tuple[np.dtype, bool], np.ndarray] = {}

    def typed(self, dtype: np.dtype, written: bool = False) -> np.ndarray:
        """The memory (or its written marks) as elements of a dtype; a rest shorter than one is left out."""
        key = (dtype, written)
        view = self._views.get(key)
        if view is None:
            source = self.written if written else self.host
            view = source[: source.size // dtype.itemsize * dtype.itemsize].view(dtype)
            self._views[key] = view
        return view

    def sectors(self, written: bool) -> np.ndarray:
        """The marks of sectors that were read, or written."""
        marks = self._sectors.get(written)
        if marks is None:
            marks = self._sectors[written] = np.zeros(-(-self.size // SECTOR), np.uint8)
        return marks

    def touched(self, written: bool) -> int:
        """How many distinct sectors were read, or written."""
        return int(np.count_nonzero(self._sectors[written])) if written in self._sectors else 0

    def forget_touched(self) -> None:
        """Start counting sectors anew."""
        self._sectors.clear()

    @property
    def pointer(self) -> int:
        """The host address of byte 0."""
        return self.host.ctypes.data


class AddressSpace:
    """Allocations in ascending order of address; a freed range is never given out again."""

    def __init__(self) -> None:
        self._next = HEAP_BASE
        self._bases: list[int] = []
        self._allocations: list[Allocation] = []

    def allocate(self, size: int, name: str = "", track_written: bool = False) -> Allocation:
        """A zeroed allocation of size bytes (0 is allowed and has an address nobody may access)."""
        return self.wrap(np.zeros(size, np.uint8), name, track_written)

    def wrap(self, array: np.ndarray, name: str = "", track_written: bool = False) -> Allocation:
        """An allocation over the memory of a C-contiguous array, without a copy."""
        if not array.flags.c_contiguous:
            raise ValueError(f"{name or 'array'}: only a C-contiguous array can be mapped without a copy")
        host = array.reshape(-1).view(np.uint8) if array.size else np.zeros(0, np.uint8)
        allocation = Allocation(self._next, host, name, track_written)
        self._next += -(-(host.size + GAP) // ALIGNMENT) * ALIGNMENT
        if self._next > WINDOW["shared"]:
            raise MemoryError("the simulator's address space is full")
        self._bases.append(allocation.base)
        self._allocations.append(allocation)
        return allocation

    def free(self, allocation: Allocation) -> None:
        """Unmap an allocation; later accesses to it are out of bounds."""
        at = bisect.bisect_left(self._bases, allocation.base)
        if at < len(self._bases) and self._allocations[at] is allocation:
            del self._bases[at], self._allocations[at]

    def find(self, address: int) -> Allocation | None:
        """The allocation that contains an address."""
        at = bisect.bisect_right(self._bases, address) - 1
        if at >= 0 and address < self._allocations[at].end:
            return self._allocations[at]
        return None

    def nearest(self, address: int) -> Allocation | None:
        """The allocation whose end or start is closest to an address outside of all."""
        at = bisect.bisect_right(self._bases, address)
        around = self._allocations[max(at - 1, 0) : at + 1]
        return min(around, key=lambda a: max(a.base - address, address - a.end), default=None)

    @property
    def allocations(self) -> list[Allocation]:
        """In ascending order of address."""
        return list(self._allocations)


def describe(space: AddressSpace, address: int) -> str:
    """compute-sanitizer's words for an address that lies in no allocation."""
    near = space.nearest(address)
    if near is None:
        return f"Address {address:#x} is out of bounds; nothing is allocated"
    name = f" ({near.name})" if near.name else ""
    if address >= near.end:
        where = f"{address - near.end + 1} bytes after"
    else:
        where = f"{near.base - address} bytes before"
    return (
        f"Address {address:#x} is out of bounds and is {where} the nearest allocation "
        f"at {near.base:#x} of size {near.size} bytes{name}"
    )
