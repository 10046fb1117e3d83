"""What a submitted kernel may not contain, found before any compiler sees it: files it must not read.

The preprocessor's phases are followed: line splicing first, then comments and literals, then directives.
Where the text could be read in two ways (raw strings, trigraphs, a NUL, turned writing directions) it is
refused instead of guessed at.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

MAX_SOURCE_BYTES = 256 * 1024
LAB_HEADERS = ("paged_attention.cuh", "cache_tile.cuh")
CUDA_HEADERS = (
    "cuda_fp16.h",
    "cuda_bf16.h",
    "cuda_pipeline.h",
    "cuda_pipeline_primitives.h",
    "cooperative_groups.h",
    "cooperative_groups/reduce.h",
    "cooperative_groups/memcpy_async.h",
    "cub/cub.cuh",
    "cub/warp/warp_reduce.cuh",
    "cub/block/block_reduce.cuh",
)
DIRECTIVES = frozenset(
    (
        "define",
        "undef",
        "if",
        "ifdef",
        "ifndef",
        "elif",
        "else",
        "endif",
        "error",
        "warning",
        "pragma",
    )
)
# Names that reach files or the compiler's own machinery from anywhere in the text.
_FORBIDDEN_NAMES = {
    "__has_include": "asks whether a file exists",
    "__has_include_next": "asks whether a file exists",
    "__has_embed": "asks whether a file exists",
    "__INCLUDE_LEVEL__": "has no place in a kernel",
    "__BASE_FILE__": "has no place in a kernel",
    "import": "imports a file",
    "__TIME__": "makes the marks depend on when it is graded",
    "__DATE__": "makes the marks depend on when it is graded",
    "__TIMESTAMP__": "makes the marks depend on when it is graded",
}
_PASTES = ("##", "%:%:")
_TURNS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # CVE-2021-42574, "Trojan Source"
_UNREADABLE = re.compile(f"[{_TURNS}\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff]")

_TOKEN = re.compile(
    r"""
      (?P<comment>/\*.*?(?:\*/|\Z))
    | (?P<line_comment>//[^\n]*)
    | (?P<raw>\b(?:u8|u|U|L)?R"[^\s()\\]{0,16}\()
    | (?P<string>"(?:\\.|[^"\\\n])*")
    | (?P<number>\.?\d(?:'?\w|[eEpP][+-]|\.)*)
    | (?P<name>[^\W\d]\w*)
    | (?P<character>'(?:\\.|[^'\\\n])*')
    | (?P<quote>["'])
    | (?P<newline>\n)
    | (?P<space>[^\S\n]+)
    | (?P<digraph>%:)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_INCLUDE = re.compile(r'\s*(?:"([^"\n]*)"|<([^>\n]*)>)\s*')


@dataclass(frozen=True)
class Refusal:
    """A line of a kernel that is not compiled, and why.

    Attributes:
        line: of the author's file, from 1.
        message: for a person.
    """

    line: int
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}"


def normalised(text: str) -> str:
    """The text as it is judged and compiled: one kind of line end, no blanks behind a last backslash.

    Compilers differ in how they read the others, and what is judged must be what is compiled.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return re.sub(r"\\[ \t\f\v]+\n", r"\\\n", text)


def refusals(text: str, headers: Collection[str] = LAB_HEADERS) -> list[Refusal]:
    """Every reason not to compile a kernel's text; empty for a text that may be compiled.

    Only literal includes of the lab's headers and of some CUDA headers are let through, so that no file of
    the machine can be read into an error message, a constant or a timing.

    Args:
        text: CUDA C++.
        headers: names of the lab's headers that it may include.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_SOURCE_BYTES:
        return [Refusal(1, f"the file is larger than {MAX_SOURCE_BYTES // 1024} KiB")]
    text = normalised(text)
    for trigraph in ("??=", "??/"):
        if trigraph in text:
            return [
                Refusal(
                    text.count("\n", 0, text.index(trigraph)) + 1, f"the trigraph {trigraph} is not allowed"
                )
            ]
    if (unreadable := _unreadable(text)) is not None:
        return [unreadable]
    spliced, lines = _splice(text)
    found: list[Refusal] = []
    words: set[str] = set()
    at_line_start = True
    directive: list[str] | None = None  # the tokens of the one that the line is, without comments
    began = 1
    for match in _TOKEN.finditer(spliced + "\n"):
        kind, token, line = match.lastgroup, match[0], lines(match.start())
        if kind == "newline":
            if directive is not None:
                found += _judge("".join(directive), began, headers)
            at_line_start, directive = True, None
            continue
        if kind in ("space", "comment", "line_comment"):
            if directive is not None:
                directive.append(" ")
            continue  # a directive may follow; a comment is one space, its newlines included
        if kind == "raw":
            found.append(Refusal(line, "raw strings are not allowed; write an ordinary string"))
            return found  # what follows cannot be read with certainty
        if kind == "quote":
            rest_of_line = spliced[match.end() :].partition("\n")[0]
            if directive is None or "/*" in rest_of_line:
                found.append(Refusal(line, "a quote that its line does not close"))
                return found
        if kind in ("name", "number"):
            words.add(token)
        if kind == "name" and token in _FORBIDDEN_NAMES:
            found.append(Refusal(line, f"{token} {_FORBIDDEN_NAMES[token]}; not allowed"))
        if directive is not None:
            directive.append(token)
        elif at_line_start and (token == "#" or kind == "digraph"):
            directive, began = [], line
        at_line_start = False
    if any(paste in spliced for paste in _PASTES):
        line = lines(min(spliced.index(paste) for paste in _PASTES if paste in spliced))
        made = [name for name in _FORBIDDEN_NAMES if name not in words and _can_be_pasted(name, words)]
        found += [
            Refusal(line, f"{name}, which ## can make here, {_FORBIDDEN_NAMES[name]}; not allowed")
            for name in made
        ]
    return found


def _can_be_pasted(name: str, words: set[str]) -> bool:
    """Whether words of the text, each as often as one likes, make up a name."""
    reached = {0}
    for end in range(1, len(name) + 1):
        if any(start in reached and name[start:end] in words for start in range(end)):
            reached.add(end)
    return len(name) in reached


def _unreadable(text: str) -> Refusal | None:
    """The first character that shows a person another text than the compiler reads."""
    found = _UNREADABLE.search(text)
    if found is None:
        return None
    why = "turns the writing direction" if found[0] in _TURNS else "is a control character"
    message = (
        f"U+{ord(found[0]):04X} {why}, so that a person reads another text than the compiler; not allowed"
    )
    return Refusal(text.count("\n", 0, found.start()) + 1, message)


def _splice(text: str) -> tuple[str, Callable[[int], int]]:
    """The text with backslash-newlines taken out, and the line of the original for an offset in it."""
    pieces, starts, numbers, length, line = [], [0], [1], 0, 1
    for part in re.split(r"(\\\n)", text):
        if part == "\\\n":
            line += 1
            starts.append(length)
            numbers.append(line)
            continue
        pieces.append(part)
        for offset, character in enumerate(part):
            if character == "\n":
                line += 1
                starts.append(length + offset + 1)
                numbers.append(line)
        length += len(part)
    return "".join(pieces), lambda offset: numbers[bisect.bisect_right(starts, offset) - 1]


def _judge(body: str, line: int, headers: Collection[str]) -> list[Refusal]:
    """What is wrong with one directive, given what follows its ``#`` without comments."""
    match = re.match(r"\s*(\w*)(.*)", body, re.DOTALL)
    name, rest = match[1], match[2]
    if name == "include":
        literal = _INCLUDE.fullmatch(rest)
        if literal is None:
            return [Refusal(line, 'an #include must be a literal "header" or <header>')]
        quoted, angled = literal[1], literal[2]
        header = quoted if quoted is not None else angled
        if header in (headers if quoted is not None else CUDA_HEADERS):
            return []
        allowed = ", ".join([*(f'"{h}"' for h in headers), *(f"<{h}>" for h in CUDA_HEADERS)])
        return [Refusal(line, f"#include of {header[:80]!r} is not allowed; allowed are {allowed}")]
    if name in DIRECTIVES:
        return []
    if not name and not rest.strip():
        return []  # the null directive
    return [Refusal(line, f"#{name or rest.strip()[:20]} is not allowed")]
