"""What a cubin says of its machine code: each kernel's bytes, each instruction's source line and PTX line.

A cubin is an ELF file. ptxas writes two DWARF version 2 line tables into it: ``.debug_line`` maps machine
code to source lines, with NVIDIA's extended opcode 0x90 for inlined calls; ``.nv_debug_line_sass`` maps it
to lines of the PTX, whose text stands in ``.nv_debug_ptx_txt``.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

ELF_MAGIC = b"\x7fELF"
_NOBITS = 8  # a section without bytes in the file


class CubinError(ValueError):
    """Bytes that are no cubin, or one whose line tables cannot be read."""


@dataclass(frozen=True)
class Place:
    """A source line; ``function`` is the (mangled) inlined function it is in, "" for the kernel itself."""

    file: str
    line: int
    function: str = ""


@dataclass(frozen=True)
class _Row:
    address: int
    file: int
    line: int
    context: int  # number, from 1 within the sequence, of the row that this one was inlined into; 0: none
    function: int  # offset into .debug_str


@dataclass(frozen=True)
class Cubin:
    """A cubin with the line tables of its kernels.

    Attributes:
        data: the ELF file.
    """

    data: bytes

    @cached_property
    def sections(self) -> dict[str, bytes]:
        """Section name -> its bytes.

        Raises:
            CubinError: not a 64-bit little-endian ELF file, or cut off.
        """
        if self.data[:6] != ELF_MAGIC + b"\x02\x01":
            raise CubinError(f"not a 64-bit ELF file: it begins with {self.data[:6].hex()}")
        try:
            headers = [
                struct.unpack_from("<IIQQQQ", self.data, self._headers_at + 64 * i)
                for i in range(self._header_count)
            ]
            (name_section,) = struct.unpack_from("<H", self.data, 0x3E)
            names = headers[name_section][4]
        except (struct.error, IndexError):
            raise CubinError(f"a cubin of {len(self.data)} bytes is cut off") from None
        return {
            _text(self.data, names + name): self.data[offset : offset + size] if kind != _NOBITS else b""
            for name, kind, _, _, offset, size in headers
        }

    @property
    def _headers_at(self) -> int:
        return struct.unpack_from("<Q", self.data, 0x28)[0]

    @property
    def _header_count(self) -> int:
        return struct.unpack_from("<H", self.data, 0x3C)[0]

    def code(self, kernel: str) -> bytes:
        """The machine code of a kernel, 16 bytes an instruction.

        Raises:
            CubinError: there is no such kernel.
        """
        return self._section(f".text.{kernel}")

    @cached_property
    def ptx(self) -> list[str]:
        """The PTX that ptxas compiled, by line (index 0 is line 1); lines of directives are empty."""
        return [line.decode() for line in self._section(".nv_debug_ptx_txt").split(b"\0")]

    def place(self, kernel: str, offset: int) -> tuple[Place, ...]:
        """Source position of the instruction at a byte offset: innermost first, then where it was inlined."""
        table, files = self._source_lines
        rows = self._sequence(".debug_line", table, kernel)
        row = _at(rows, offset)
        chain: list[Place] = []
        while row is not None and len(chain) <= len(rows):
            name = _text(self._section(".debug_str"), row.function) if row.context else ""
            chain.append(Place(files.get(row.file, ""), row.line, name))
            row = rows[row.context - 1] if row.context else None
        return tuple(chain)

    def ptx_line(self, kernel: str, offset: int) -> int:
        """Line of the PTX that the instruction at a byte offset was made from, 0 where ptxas names none."""
        table, _ = self._ptx_lines
        row = _at(self._sequence(".nv_debug_line_sass", table, kernel), offset)
        return row.line if row is not None else 0

    def _section(self, name: str) -> bytes:
        if name not in self.sections:
            kernels = [n.removeprefix(".text.") for n in self.sections if n.startswith(".text.")]
            raise CubinError(f"no section {name}: compiled without -lineinfo, or not of {', '.join(kernels)}")
        return self.sections[name]

    @cached_property
    def _source_lines(self) -> tuple[dict[int, list[_Row]], dict[int, str]]:
        return _line_table(self._section(".debug_line"))

    @cached_property
    def _ptx_lines(self) -> tuple[dict[int, list[_Row]], dict[int, str]]:
        return _line_table(self._section(".nv_debug_line_sass"))

    def _sequence(self, section: str, table: dict[int, list[_Row]], kernel: str) -> list[_Row]:
        """The rows of one kernel: a sequence's start address is a relocation against the kernel's symbol."""
        for at, symbol in self._relocations(section):
            if symbol == kernel and at in table:
                return table[at]
        raise CubinError(f"{section} has no lines of {kernel}")

    def _relocations(self, section: str) -> Iterator[tuple[int, str]]:
        """(offset in the section, name of the symbol that is put there)."""
        symbols, names = self._section(".symtab"), self._section(".strtab")
        for offset, info, _ in struct.iter_unpack("<QQq", self._section(f".rela{section}")):
            (name,) = struct.unpack_from("<I", symbols, 24 * (info >> 32))
            yield offset, _text(names, name)


def find_cubins(data: bytes) -> list[Cubin]:
    """Every cubin that stands whole within other bytes, such as in a profiler's report."""
    found, at = [], data.find(ELF_MAGIC)
    while at >= 0:
        head = Cubin(data[at : at + 64])
        if len(head.data) == 64:
            size = head._headers_at + 64 * head._header_count
            found.append(Cubin(data[at : at + size]))
        at = data.find(ELF_MAGIC, at + 4)
    return found


def _at(rows: list[_Row], offset: int) -> _Row | None:
    place = bisect_right(rows, offset, key=lambda row: row.address)
    return rows[place - 1] if place else None


def _line_table(table: bytes) -> tuple[dict[int, list[_Row]], dict[int, str]]:
    """The rows of each sequence by the offset of its relocated start address, and the file names."""
    length, version, prologue = struct.unpack_from("<IHI", table, 0)
    if version != 2:
        raise CubinError(f"line table of DWARF version {version}; version 2 is read")
    step, _, line_base, line_range, first_special = struct.unpack_from("<BBbBB", table, 10)
    operands = table[15 : 14 + first_special]
    files = _file_names(table, 14 + first_special)
    at, end = 10 + prologue, 4 + length
    rows: list[_Row] = []
    sequences: dict[int, list[_Row]] = {}
    address, file, line, context, function = 0, 1, 1, 0, 0
    relocated = 0
    while at < end:
        opcode = table[at]
        at += 1
        if opcode >= first_special:
            address += (opcode - first_special) // line_range * step
            line += line_base + (opcode - first_special) % line_range
            rows.append(_Row(address, file, line, context, function))
        elif opcode == 0:  # extended: a length, then the opcode
            size, at = _unsigned(table, at)
            extended = table[at]
            if extended == 1:  # end of a sequence
                sequences[relocated] = rows
                rows, address, file, line, context, function = [], 0, 1, 1, 0, 0
            elif extended == 2:
                relocated = at + 1
                (address,) = struct.unpack_from("<Q", table, at + 1)
            elif extended == 0x90:  # NVIDIA's: what follows was inlined into row `context`
                context, after = _unsigned(table, at + 1)
                function, _ = _unsigned(table, after)
            at += size
        elif opcode == 1:
            rows.append(_Row(address, file, line, context, function))
        elif opcode == 2:
            amount, at = _unsigned(table, at)
            address += amount * step
        elif opcode == 3:
            amount, at = _signed(table, at)
            line += amount
        elif opcode == 4:
            file, at = _unsigned(table, at)
        elif opcode == 8:
            address += (255 - first_special) // line_range * step
        elif opcode == 9:
            address += struct.unpack_from("<H", table, at)[0]
            at += 2
        else:
            for _ in range(operands[opcode - 1]):
                _, at = _unsigned(table, at)
    return sequences, files


def _file_names(table: bytes, at: int) -> dict[int, str]:
    """File number -> name without its folder."""
    while table[at]:  # folders
        at = table.index(b"\0", at) + 1
    at += 1
    names: dict[int, str] = {}
    while table[at]:
        names[len(names) + 1] = _text(table, at).rsplit("/", 1)[-1]
        at = table.index(b"\0", at) + 1
        for _ in range(3):  # folder, time, size
            _, at = _unsigned(table, at)
    return names


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    """A LEB128 number and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _signed(data: bytes, at: int) -> tuple[int, int]:
    start = at
    value, at = _unsigned(data, at)
    bits = 7 * (at - start)
    return (value - (1 << bits) if value >> (bits - 1) else value), at
