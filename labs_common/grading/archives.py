"""Files of a submission, read into memory: from a folder, a zip or a tar, never unpacked, never followed."""

from __future__ import annotations

import os
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO

KEPT_SUFFIXES = (".cu", ".ipynb", ".json")
ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
MAX_ENTRIES = 5000  # of an archive or folder, whatever they are
MAX_FILE_BYTES = 8 << 20
MAX_TOTAL_BYTES = 32 << 20  # of the files that are kept
MAX_SKIPPED_BYTES = 256 << 20  # that a compressed tar may make us pass over
_CHUNK = 1 << 16


@dataclass
class Files:
    """What was found.

    Attributes:
        contents: bytes by relative path with forward slashes, in the order in which they were met.
        notes: what was left out, and why, for a person.
        suspicious: notes of what no honest submission holds: links, paths outside, bombs.
    """

    contents: dict[str, bytes] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    suspicious: list[str] = field(default_factory=list)

    def add(self, name: str, data: bytes) -> None:
        """Keep a file; of two with one name the first is kept."""
        if name in self.contents:
            self.notes.append(f"{shown(name)}: twice in the archive; the first is taken")
        else:
            self.contents[name] = data

    @property
    def total(self) -> int:
        """Bytes that are kept."""
        return sum(map(len, self.contents.values()))


class _TooMuch(Exception):
    """A limit of this module was met; the message names it."""


def shown(name: str) -> str:
    """A file name fit for a report: control characters and lone surrogates escaped, not too long."""
    safe = printable(name).replace("\n", "\\x0a").replace("\t", "\\x09")
    return safe if len(safe) <= 120 else safe[:117] + "…"


def printable(text: str) -> str:
    """Text of anybody's, fit for a terminal, a page and a table: what is no character to read is escaped.

    Terminals obey escape sequences, and a right-to-left override turns the points that stand behind it.
    """
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def is_archive(name: str) -> bool:
    """Whether a file name is that of an archive which is read."""
    return name.lower().endswith(ARCHIVE_SUFFIXES)


def read_files(path: Path) -> Files:
    """The kernel files, notebooks and reports of a folder, an archive, or one file.

    Nothing that the submission holds raises: what cannot be read is in the notes.
    """
    found = Files()
    try:
        if path.is_symlink():
            found.suspicious.append(f"{shown(path.name)}: a link; links are not followed")
        elif path.is_dir():
            _read_folder(path, found)
        elif is_archive(path.name):
            (_read_zip if path.name.lower().endswith(".zip") else _read_tar)(path, found)
        elif not path.name.lower().endswith(KEPT_SUFFIXES):
            kinds = ", ".join((*KEPT_SUFFIXES, *ARCHIVE_SUFFIXES))
            found.notes.append(f"{shown(path.name)}: no kind of file that is read ({kinds}); left out")
        else:
            data = _read_regular(path)
            if data is None:
                found.suspicious.append(f"{shown(path.name)}: no regular file; left out")
            else:
                found.add(path.name, data)
    except _TooMuch as error:
        found.suspicious.append(str(error))
    except Exception as error:  # the readers of archives raise whatever their formats' libraries do
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        found.notes.append(f"{shown(path.name)}: cannot be read ({reason[:200] or type(error).__name__})")
    return found


def _read_regular(path: Path) -> bytes | None:
    """The bytes of a regular file, None for anything else; a FIFO does not block, a link is not followed."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        if path.is_symlink():
            return None
        raise
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        return _read_limited(file, path.name)


def _read_limited(file: BinaryIO, name: str) -> bytes:
    """All of a stream, in pieces: a declared size is never trusted."""
    pieces, total = [], 0
    while piece := file.read(_CHUNK):
        total += len(piece)
        if total > MAX_FILE_BYTES:
            raise _TooMuch(f"{shown(name)}: more than {MAX_FILE_BYTES >> 20} MiB; the rest is not read")
        pieces.append(piece)
    return b"".join(pieces)


def _wanted(name: str, found: Files) -> bool:
    """Whether an entry is to be read: a kept kind of file, at a path inside the submission."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if name.startswith(("/", "\\")) or ".." in parts or (parts and parts[0].endswith(":")):
        found.suspicious.append(f"{shown(name)}: a path outside the submission; left out")
        return False
    if any(part.startswith((".", "__MACOSX")) for part in parts):
        return False  # checkpoints, resource forks, editors' files
    if is_archive(name):
        found.notes.append(f"{shown(name)}: an archive inside a submission; left out")
        return False
    return name.lower().endswith(KEPT_SUFFIXES)


def _limits(found: Files) -> None:
    if found.total > MAX_TOTAL_BYTES:
        raise _TooMuch(f"more than {MAX_TOTAL_BYTES >> 20} MiB of files; the rest is not read")


def _walk(root: Path, found: Files) -> Iterator[os.DirEntry]:
    folders, count = [root], 0
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            found.notes.append(f"{shown(folder.name)}: the folder cannot be read ({error.strerror})")
            continue
        for entry in listed:
            count += 1
            if count > MAX_ENTRIES:
                raise _TooMuch(f"more than {MAX_ENTRIES} entries; the rest is not read")
            yield entry
            if entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))


def _read_folder(root: Path, found: Files) -> None:
    for entry in _walk(root, found):
        name = Path(entry.path).relative_to(root).as_posix()
        if entry.is_symlink():
            found.suspicious.append(f"{shown(name)}: a link; links are not followed")
        elif not entry.is_dir(follow_symlinks=False) and _wanted(name, found):
            try:
                data = _read_regular(Path(entry.path))
            except OSError as error:
                found.notes.append(f"{shown(name)}: cannot be read ({error.strerror})")
                continue
            if data is None:
                found.suspicious.append(f"{shown(name)}: no regular file; left out")
                continue
            found.add(name, data)
            _limits(found)


def _read_zip(path: Path, found: Files) -> None:
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if len(entries) > MAX_ENTRIES:
            raise _TooMuch(f"more than {MAX_ENTRIES} entries; the archive is not read")
        for entry in entries:
            if stat.S_ISLNK(entry.external_attr >> 16):
                found.suspicious.append(f"{shown(entry.filename)}: a link; links are not followed")
            elif not entry.is_dir() and _wanted(entry.filename, found):
                with archive.open(entry) as file:
                    found.add(entry.filename.replace("\\", "/"), _read_limited(file, entry.filename))
                _limits(found)


class _Counted:
    """A stream that stops a compressed tar from making us read without end."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw, self._total = raw, 0

    def read(self, size: int = -1) -> bytes:
        data = self._raw.read(size)
        self._total += len(data)
        if self._total > MAX_SKIPPED_BYTES:
            raise _TooMuch(
                f"the archive unpacks to more than {MAX_SKIPPED_BYTES >> 20} MiB; the rest is not read"
            )
        return data


def _open_plain(path: Path) -> BinaryIO:
    import bz2
    import gzip
    import lzma

    with open(path, "rb") as file:
        magic = file.read(6)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.open(path)
    if magic.startswith(b"BZh"):
        return bz2.open(path)
    if magic.startswith(b"\xfd7zXZ"):
        return lzma.open(path)
    return open(path, "rb")


def _read_tar(path: Path, found: Files) -> None:
    with _open_plain(path) as raw, tarfile.open(fileobj=_Counted(raw), mode="r|") as archive:
        for count, entry in enumerate(archive):
            if count >= MAX_ENTRIES:
                raise _TooMuch(f"more than {MAX_ENTRIES} entries; the rest is not read")
            if entry.issym() or entry.islnk():
                found.suspicious.append(f"{shown(entry.name)}: a link; links are not followed")
            elif entry.isdir():
                continue
            elif not entry.isreg():
                found.suspicious.append(f"{shown(entry.name)}: no regular file; left out")
            elif _wanted(entry.name, found):
                file = archive.extractfile(entry)
                found.add(entry.name, _read_limited(file, entry.name))
                _limits(found)


def decode(data: bytes, name: str, notes: list[str]) -> str | None:
    """A file's text, whatever editor wrote it; None for what is no text.

    UTF-8 with or without a byte order mark, UTF-16 with one, else Windows-1252 with a note.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        try:
            return data.decode("utf-16")
        except UnicodeDecodeError:
            notes.append(f"{shown(name)}: begins like UTF-16 and is not; left out")
            return None
    if b"\0" in data:
        notes.append(f"{shown(name)}: binary, no text; left out")
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        notes.append(f"{shown(name)}: not UTF-8 (byte {error.start}); read as Windows-1252")
        return data.decode("cp1252", errors="replace")
