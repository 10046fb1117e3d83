"""Device printf: a C format and its arguments, packed as CUDA packs them, as text."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

_SPEC = re.compile(r"%([-+ #0]*)(\d*)(?:\.(\d+))?(?:hh|h|ll|l|z|t|j)?([diouxXeEfFgGaAcspn%])")
_LONG = re.compile(r"(ll|l|z|t|j)[diouxX]$")

MOST_CHARACTERS = 4096  # of a string that has no end
PIECE = 256  # bytes of a string that are read at a time


def format_text(read: Callable[[int, int], bytes], text_address: int, arguments: int) -> str:
    """The text that printf prints; ``read`` as ``c_string`` takes it."""
    template = c_string(read, text_address)
    at = arguments

    def take(size: int, code: str):
        nonlocal at
        at = -(-at // size) * size
        data = read(at, size).ljust(size, b"\0")
        at += size
        return struct.unpack(f"<{code}", data)[0]

    def replace(match: re.Match) -> str:
        flags, width, precision, kind = match.groups()
        if kind == "%":
            return "%"
        spec = f"%{flags}{width}{'' if precision is None else '.' + precision}"
        wide = bool(_LONG.search(match.group()))
        if kind in "di":
            return f"{spec}d" % (take(8, "q") if wide else take(4, "i"))
        if kind in "ouxX":
            return f"{spec}{'d' if kind == 'u' else kind}" % (take(8, "Q") if wide else take(4, "I"))
        if kind in "eEfFgG":
            return f"{spec}{kind}" % take(8, "d")
        if kind in "aA":
            return take(8, "d").hex()
        if kind == "c":
            return chr(take(4, "i") & 0xFF)
        if kind == "s":
            return f"{spec}s" % c_string(read, take(8, "Q"))
        return f"{take(8, 'Q'):#x}"

    return _SPEC.sub(replace, template)


def c_string(read: Callable[[int, int], bytes], address: int) -> str:
    """A C string, as far as memory goes.

    Args:
        read: of an address and a count gives so many bytes, fewer where what is mapped ends.
        address: generic.
    """
    out = bytearray()
    while len(out) < MOST_CHARACTERS:
        text, end, _ = (piece := read(address + len(out), PIECE)).partition(b"\0")
        out += text
        if end or not piece:
            break
    return out[:MOST_CHARACTERS].decode("utf-8", "replace")
