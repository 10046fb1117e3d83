"""A child process for work that may crash, hang or poison a CUDA context. Its parent survives all three."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


class WorkerDied(RuntimeError):
    """The child process ended, or had to be ended, before it answered."""


class Worker:
    """Runs one function call at a time in a child process, started when first needed.

    The child is spawned, not forked: a CUDA context does not survive a fork. It is kept between calls, so
    that imports and a context are paid for once, and replaced after ``discard``, a crash or a time-out.
    """

    def __init__(self) -> None:
        self._process: multiprocessing.Process | None = None
        self._pipe: Connection | None = None

    def call(self, function: Callable[..., Any], *arguments: Any, timeout_s: float | None = None) -> Any:
        """What ``function(*arguments)`` returns in the child, or the exception it raises.

        Args:
            function, arguments: picklable; the function is importable by name.
            timeout_s: wall time after which the child is killed; None waits for ever.

        Raises:
            WorkerDied: the child crashed, or was killed at the time-out.
            KeyboardInterrupt: the child is killed first.
        """
        if self._process is None or not self._process.is_alive():
            self._start()
        try:
            self._pipe.send((function, arguments))
            if not self._pipe.poll(timeout_s):
                self.discard()
                raise WorkerDied(f"no answer within {timeout_s:g} s; the process was stopped")
            ok, answer = self._pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._process.join(5)
            code = self._process.exitcode
            self.discard()
            raise WorkerDied(f"the process ended with exit status {code} before it answered") from None
        except KeyboardInterrupt:
            self.discard()
            raise
        if not ok:
            raise answer
        return answer

    def discard(self) -> None:
        """End the child; the next call starts a fresh one."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
            self._pipe.close()
        self._process = self._pipe = None

    def _start(self) -> None:
        self.discard()
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def __del__(self) -> None:
        if self._process is not None:
            self.discard()


def _serve(pipe: Connection) -> None:
    while True:
        try:
            function, arguments = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            answer = (True, function(*arguments))
        except Exception as error:
            error.add_note("in the child process:\n" + traceback.format_exc())
            answer = (False, error)
        try:
            pipe.send(answer)
        except Exception as error:  # an answer that cannot be pickled must not end the child in silence
            pipe.send((False, RuntimeError(f"{type(error).__name__} while answering: {error}")))
