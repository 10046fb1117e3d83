"""Children that run submitted kernels: limited, watched, replaced after every submission. Linux only."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labs_common.grading import channel
from labs_common.grading.zygote import STOP

ROOT = Path(__file__).resolve().parent.parent.parent
START_S = 120.0  # for imports, on a machine that is busy
_KEPT_ENVIRONMENT = (
    "PATH",
    "HOME",
    "XDG_CACHE_HOME",
    "LD_LIBRARY_PATH",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "LANG",
)


@dataclass(frozen=True)
class Limits:
    """What one submission may take.

    Attributes:
        cpu_s: processor time of one request, compiling included.
        step_s: wall time of one request.
        total_cpu_s, wall_s: of all its work together.
        memory_bytes: address space beyond that of an idle child; 0 for no limit, as CUDA needs.
        processes: tasks beyond those that the user has (root is exempt).
        file_bytes: size of any file it writes. With 0 it writes none, and the simulator's code cache on disk
            is only read.
        open_files: file descriptors.
    """

    cpu_s: float = 12.0
    step_s: float = 40.0
    total_cpu_s: float = 200.0
    wall_s: float = 600.0
    memory_bytes: int = 3 << 30
    processes: int = 64
    file_bytes: int = 0
    open_files: int = 64


class ChildEnded(Exception):
    """A child ended before it answered.

    Attributes:
        kind: "time", "memory", "crash" or "protocol".
    """

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


class Sandbox:
    """Starts children, one at a time, from a process in which all is imported already."""

    def __init__(self, limits: Limits | None = None, gpu: bool = False) -> None:
        """Prepare; nothing is started before the first ``open``.

        Args:
            limits: of every child.
            gpu: whether children are to use CuPy.
        """
        self.limits = limits or Limits()
        self.gpu = gpu
        self._zygote: subprocess.Popen | None = None
        self._control: socket.socket | None = None
        self._folder: tempfile.TemporaryDirectory | None = None

    def open(self, limits: Limits | None = None) -> Session:
        """A fresh child.

        Raises:
            RuntimeError: the process that children are forked from does not start.
        """
        for attempt in (1, 2):
            self._start()
            ours, theirs = socket.socketpair()
            try:
                limits = limits or self.limits
                socket.send_fds(
                    self._control, [json.dumps(dataclasses.asdict(limits)).encode()], [theirs.fileno()]
                )
                return Session(self, ours, limits)
            except OSError:  # the zygote was killed; once is no reason to give up
                ours.close()
                self.close()
                if attempt == 2:
                    raise RuntimeError("the process that children are forked from ended") from None
            finally:
                theirs.close()
        raise AssertionError

    def _start(self) -> None:
        if self._zygote is not None and self._zygote.poll() is None:
            return
        self.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps messages apart
        environment = {k: os.environ[k] for k in _KEPT_ENVIRONMENT if k in os.environ}
        environment |= {
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "CUPY_CACHE_IN_MEMORY": "1",
            "CUDA_CACHE_DISABLE": "1",
        }
        # -I: no PYTHON* variable, no user site, and no module of the folder that it is started in.
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from labs_common.grading.zygote import main; "
        code += f"main({theirs.fileno()}, {self.gpu})"
        self._folder = tempfile.TemporaryDirectory(prefix="palab-grade-")
        with open(os.path.join(self._folder.name, "log"), "wb") as log:
            self._zygote = subprocess.Popen(
                [sys.executable, "-I", "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env=environment,
                cwd=self._folder.name,
                start_new_session=True,
            )
        theirs.close()
        self._control = ours
        if not self._read_control(START_S).get("ready"):
            log_text = Path(self._folder.name, "log").read_text(errors="replace")
            self.close()
            raise RuntimeError(
                f"the process that children are forked from does not start: {log_text[-2000:]}"
            )

    def _read_control(self, timeout_s: float) -> dict[str, Any]:
        """One message of the zygote; empty where it is gone or silent."""
        self._control.settimeout(timeout_s)
        try:
            return json.loads(self._control.recv(4096) or b"{}")
        except OSError:
            return {}
        finally:
            self._control.settimeout(None)

    def close(self) -> None:
        """End the zygote and whatever child it has."""
        if self._control is not None:
            self._control.close()
        if self._zygote is not None:
            self._zygote.kill()
            self._zygote.wait()
        if self._folder is not None:
            self._folder.cleanup()
        self._zygote = self._control = self._folder = None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_zygote", None) is not None:
            self.close()


class Session:
    """One child; requests are answered in order until it ends."""

    def __init__(self, sandbox: Sandbox, sock: socket.socket, limits: Limits) -> None:
        self._sandbox, self._sock, self._limits = sandbox, sock, limits
        self.ended: dict[str, Any] | None = None

    def request(self, message: Mapping[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        """The child's answer.

        Raises:
            ChildEnded: it crashed, met a limit, did not answer in time, or sent what is no answer.
        """
        if self.ended is not None:
            raise ChildEnded("crash", "the process has ended")
        timeout_s = timeout_s or self._limits.step_s
        try:
            channel.send(self._sock, dict(message), timeout_s)
            return channel.receive(self._sock, timeout_s)
        except channel.ChannelTimeout:
            self.close()
            raise ChildEnded("time", f"no result within {timeout_s:g} s; it was stopped") from None
        except channel.ChannelClosed:
            self.close()
            raise self._why() from None
        except channel.ChannelError as error:
            self.close()
            raise ChildEnded("protocol", f"the process sent what is no answer ({error})") from None

    def close(self) -> None:
        """End the child, and learn how it ended."""
        if self.ended is not None:
            return
        self._sock.close()  # a child that waits for a request ends by itself
        sandbox = self._sandbox
        with contextlib.suppress(OSError):
            sandbox._control.send(STOP)
        self.ended = sandbox._read_control(10) or {"reason": "lost"}
        if self.ended["reason"] == "lost":
            sandbox.close()

    def _why(self) -> ChildEnded:
        ended, limits = self.ended, self._limits
        if ended.get("reason") == "wall":
            return ChildEnded("time", f"more than {limits.wall_s:g} s; it was stopped")
        if ended.get("signal") == signal.SIGXCPU or ended.get("cpu_s", 0) >= limits.total_cpu_s:
            return ChildEnded("time", f"more than {limits.cpu_s:g} s of processor time; it was stopped")
        memory = ended.get("code") == 71 or ended.get("signal") == signal.SIGABRT
        if memory and limits.memory_bytes:
            return ChildEnded(
                "memory", f"more than {limits.memory_bytes >> 20} MiB of memory; it was stopped"
            )
        return ChildEnded("crash", f"the process ended with {_status(ended)} before it answered")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _status(ended: Mapping[str, Any]) -> str:
    if number := ended.get("signal"):
        return f"signal {signal.Signals(number).name}"
    return f"exit status {ended.get('code')}"
