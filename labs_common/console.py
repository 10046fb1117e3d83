"""The console that every command prints to."""

from __future__ import annotations

import os
import sys

from rich.console import Console

WIDE = 140  # columns of a log file, which has no width of its own


def open_console(stderr: bool = False) -> Console:
    """A console as wide as its terminal, or as COLUMNS says, or as a log needs."""
    stream = sys.stderr if stderr else sys.stdout
    known = stream.isatty() or "COLUMNS" in os.environ
    return Console(stderr=stderr, width=None if known else WIDE)
