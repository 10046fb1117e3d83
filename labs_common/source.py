"""Kernel source text: where it is found, and how the shared header gets into it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

KERNELS = Path(__file__).resolve().parent.parent / "kernels"
HEADERS = (KERNELS, KERNELS / "roof")  # where local headers lie
# Compilers and profilers record the file name they are given; a neutral one keeps private paths out.
NEUTRAL_FOLDER = "/lab/kernels"

BEGIN, END = "BEGIN SOLUTION", "END SOLUTION"  # around what students write

# An include of a local header, or the end of a branch that may hold one.
_DIRECTIVE = re.compile(
    r'^[ \t]*#[ \t]*(?:include[ \t]*"(?P<header>[^"\n]*)"|(?:else|elif|endif)\b).*$', re.MULTILINE
)


def shown_path(path: Path) -> str:
    """A file as people read it: from the lab's folder where it lies in it, else its name."""
    root, path = KERNELS.parent, path.absolute()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name


@dataclass(frozen=True)
class Source:
    """CUDA C++ device code as it is compiled.

    Attributes:
        name: file name that compilers see, such as ``03_gqa_reuse.cu``.
        text: the author's text.
        shown: the file as its author knows it, such as ``kernels/mine/03_gqa_reuse.cu``; by default the name.
    """

    name: str
    text: str
    shown: str | None = field(default=None, compare=False)

    @classmethod
    def read(cls, path: str | Path) -> Source:
        """Read a ``.cu`` file (UTF-8, with or without a byte order mark).

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is not UTF-8 text.
        """
        path = Path(path)
        try:
            return cls(path.name, path.read_text(encoding="utf-8-sig"), shown_path(path))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None

    @property
    def neutral_path(self) -> str:
        """The path that compilers and profilers see."""
        return f"{NEUTRAL_FOLDER}/{self.name}"

    def readable(self, message: str) -> str:
        """A message of a compiler or a check with the files' own paths in place of the neutral ones."""

        def path(match: re.Match[str]) -> str:
            name = match.group(1)
            if name == self.name:
                return self.shown or name
            return next((shown_path(f / name) for f in HEADERS if (f / name).is_file()), name)

        return re.sub(rf"{NEUTRAL_FOLDER}/([^/:\s]+)", path, message)

    def expanded(self) -> str:
        """The text with each local header in place of its ``#include`` line.

        Inlined, because CuPy's cache key leaves out what an included file holds: an edited header would run
        stale. ``#line`` directives keep every message on the author's own file and line, also behind a branch
        that is not compiled, whose own directives do not count.

        Raises:
            ValueError: a local header that the lab does not have.
        """
        return self._expanded(set())

    def headers(self) -> frozenset[str]:
        """Names of the local headers that its includes lead to.

        Raises:
            ValueError: a local header that the lab does not have.
        """
        seen: set[str] = set()
        self._expanded(seen)
        return frozenset(seen)

    def _expanded(self, seen: set[str]) -> str:
        def inline(name: str, text: str) -> str:
            inlined = False

            def directive(match: re.Match[str]) -> str:
                nonlocal inlined
                included = match["header"]
                line = text.count("\n", 0, match.start()) + 1
                if included is None:
                    continued = match.group().endswith("\\")
                    after = f'\n#line {line + 1} "{NEUTRAL_FOLDER}/{name}"'
                    return match.group() + (after if inlined and not continued else "")
                if included in seen:
                    return ""
                seen.add(included)
                path = next((f / included for f in HEADERS if (f / included).is_file()), KERNELS / included)
                if Path(included).name != included or not path.is_file():
                    known = ", ".join(sorted(p.name for folder in HEADERS for p in folder.glob("*.cuh")))
                    raise ValueError(f'{name}, line {line}: no header "{included}"; the lab has {known}')
                inlined = True
                return (
                    inline(included, path.read_text(encoding="utf-8")).rstrip("\n")
                    + f'\n#line {line + 1} "{NEUTRAL_FOLDER}/{name}"'
                )

            return f'#line 1 "{NEUTRAL_FOLDER}/{name}"\n' + _DIRECTIVE.sub(directive, text)

        return inline(self.name, self.text)


class CutError(ValueError):
    """A kernel whose solution regions cannot be cut; the message names file and line."""


def regions(source: Source) -> list[tuple[int, int]]:
    """First and last line of each solution region, its markers included, from 0.

    Raises:
        CutError: a marker without its partner.
    """
    found: list[tuple[int, int]] = []
    begin = None
    for number, line in enumerate(source.text.splitlines()):
        if BEGIN in line:
            if begin is not None:
                raise CutError(f"{source.name}, line {number + 1}: {BEGIN} within a region")
            begin = number
        elif END in line:
            if begin is None:
                raise CutError(f"{source.name}, line {number + 1}: {END} without {BEGIN}")
            found.append((begin, number))
            begin = None
    if begin is not None:
        raise CutError(f"{source.name}, line {begin + 1}: {BEGIN} without {END}")
    return found
