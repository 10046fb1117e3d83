"""What is changed in clang's LLVM IR before it is optimised, so that 16-byte accesses stay such.

For ``c ? p[i] : zero`` with float4, clang chooses between two addresses and copies from the one it took. Its
optimiser for GPUs then loads each element by itself, or keeps ``zero`` in local memory; NVRTC loads 16 bytes
where c holds. With the copy made in each arm, so does clang. A float4 copied from memory to memory goes by 8
bytes at a time in clang; as a load and a store of a vector it goes by 16, as in NVRTC.
"""

from __future__ import annotations

import re

MAX_BYTES = 16  # of the widest load

_FUNCTION = re.compile(r"^define .*?^}$", re.M | re.S)
_CHOICE = re.compile(
    r"^  (?P<name>%[\w.]+) = phi ptr \[ (?P<a>[%@][\w.]+), %(?P<from_a>[\w.]+) \], "
    r"\[ (?P<b>[%@][\w.]+), %(?P<from_b>[\w.]+) \](?P<debug>, !dbg !\d+)?$",
    re.M,
)
_COPY = re.compile(
    r"call void @llvm\.memcpy\.p0\.p0\.i64\(ptr (?:align \d+ )?%[\w.]+, "
    r"ptr (?P<align>align \d+ )?(?P<source>%[\w.]+), i64 (?P<bytes>\d+), i1 false\)"
)


def widen_copies(ir: str) -> str:
    """LLVM IR in which no copy of up to 16 bytes reads from an address chosen between two, or goes by halves.

    Args:
        ir: of clang, not optimised, with names kept.
    """
    return _FUNCTION.sub(lambda match: _whole(_in_each_arm(match[0])), ir)


def _in_each_arm(text: str) -> str:
    for number, choice in enumerate(list(_CHOICE.finditer(text))):
        name = choice["name"]
        uses = [line for line in text.splitlines() if re.search(rf"{re.escape(name)}(?![\w.])", line)]
        copy = _COPY.search(uses[1]) if len(uses) == 2 else None
        if copy is None or copy["source"] != name or int(copy["bytes"]) > MAX_BYTES:
            continue
        held = f"%lab.chosen.{number}"
        for source, block in ((choice["a"], choice["from_a"]), (choice["b"], choice["from_b"])):
            call = (
                f"  call void @llvm.memcpy.p0.p0.i64(ptr align 16 {held}, ptr {copy['align'] or ''}{source}, "
                f"i64 {copy['bytes']}, i1 false){choice['debug'] or ''}\n"
            )
            text = _at_end_of(text, block, call)
        text = text.replace(choice[0] + "\n", "", 1)
        text = text.replace(uses[1], uses[1].replace(f"{name},", f"{held},"), 1)
        text = re.sub(
            r"^entry:\n",
            f"entry:\n  {held} = alloca [{copy['bytes']} x i8], align 16\n",
            text,
            count=1,
            flags=re.M,
        )
    return text


def _at_end_of(text: str, block: str, line: str) -> str:
    """The function with a line before the terminator of a block."""
    start = re.search(rf"^{re.escape(block)}:", text, re.M).end()
    terminator = re.compile(r"^  (?:br|switch|ret|unreachable)\b", re.M).search(text, start).start()
    return text[:terminator] + line + text[terminator:]


_MEMORY_COPY = re.compile(
    r"^  call void @llvm\.memcpy\.p0\.p0\.i64\(ptr align 16 (?P<target>%[\w.]+), "
    r"ptr align 16 (?P<source>%[\w.]+), i64 16, i1 false\)(?P<debug>, !dbg !\d+)?.*$",
    re.M,
)


def _whole(text: str) -> str:
    """The function with vectors in place of copies between places that are no local variables.

    Copies of local variables stay: they come to be registers, element by element.
    """
    count = 0

    def vector(match: re.Match[str]) -> str:
        nonlocal count
        if _is_local(text, match["target"]) or _is_local(text, match["source"]):
            return match[0]
        count += 1
        value, debug = f"%lab.whole.{count}", match["debug"] or ""
        return (
            f"  {value} = load <4 x i32>, ptr {match['source']}, align 16{debug}\n"
            f"  store <4 x i32> {value}, ptr {match['target']}, align 16{debug}"
        )

    return _MEMORY_COPY.sub(vector, text)


def _is_local(text: str, pointer: str) -> bool:
    """Whether an address is that of a local variable, or of a part of one."""
    while True:
        definition = re.search(rf"^  {re.escape(pointer)} = (.*)$", text, re.M)
        if definition is None:
            return False
        if definition[1].startswith("alloca"):
            return True
        base = re.match(r"getelementptr .*?, ptr (%[\w.]+),", definition[1])
        if base is None:
            return False
        pointer = base[1]
