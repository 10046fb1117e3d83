"""The process that children are forked from: everything imported, nothing of any submission in it.

It is started once by each grading process and forks a child for every submission, so that a child starts in
milliseconds, with limits, and with no memory of another one. It watches the child's wall time, ends its whole
process group, and says how it ended. It never reads what a child sends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
MAX_REQUEST = 4096
STOP = b"stop"


def main(control_fd: int, gpu: bool) -> None:
    """Serve fork requests until the grader's end of the control socket closes.

    A request is a JSON object of limits (see ``isolation.Limits``) and the child's end of its channel; the
    answer is a JSON object that says how the child ended.
    """
    _preload(gpu)
    from labs_common.grading.execution import serve

    control = socket.socket(fileno=control_fd)
    control.send(b'{"ready": true}')
    while True:
        data, fds, _, _ = socket.recv_fds(control, MAX_REQUEST, 1)
        if not data:
            return
        if data == STOP:  # for a child that had ended already
            continue
        limits = json.loads(data)
        pid = os.fork()
        if pid == 0:
            control.close()
            _become_child(limits, fds[0], serve)  # does not return
        os.close(fds[0])
        ended = _watch(pid, limits["wall_s"], control)
        try:
            control.send(json.dumps(ended).encode())
        except OSError:
            return


def _preload(gpu: bool) -> None:
    """Import, and build the simulator's runtime, but start no thread and no CUDA context."""
    from labs_common import compiler, engines  # noqa: F401
    from labs_common.simt import llvm_cache, numpy_engine  # noqa: F401

    compiler.compiler_version()
    llvm_cache.runtime_object()
    llvm_cache.engine_version()
    if gpu:
        import cupy  # noqa: F401


def _watch(pid: int, wall_s: float, control: socket.socket) -> dict[str, Any]:
    """Wait for the child, to its time limit at most; then end all that it left behind."""
    handle = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    poller.register(control, select.POLLIN)
    deadline = time.monotonic() + wall_s
    reason = "exit"
    while True:
        left = deadline - time.monotonic()
        events = dict(poller.poll(max(0, int(left * 1000)))) if left > 0 else {}
        if handle in events:
            break
        if control.fileno() in events:  # STOP, or the grader is gone
            if control.recv(16) == STOP:
                reason = "stopped"
            break
        if left <= 0:
            reason = "wall"
            break
    os.close(handle)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return {
        "reason": reason,
        "signal": -code if code < 0 else 0,
        "code": code if code >= 0 else 0,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "max_rss": usage.ru_maxrss * 1024,
    }


def _become_child(limits: dict[str, float], fd: int, serve: Callable[[socket.socket, float], None]) -> None:
    """Give up what a child may not have, then serve requests on the channel."""
    code = 70
    try:
        os.setsid()
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        channel = os.dup2(fd, 3)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        os.closerange(4, 1024)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # Ctrl-C is the grader's to handle
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        set_limits(limits)
        serve(socket.socket(fileno=channel), limits["cpu_s"])
        code = 0
    except MemoryError:
        code = 71
    except BaseException:
        code = 70
    finally:
        os._exit(code)


def set_limits(limits: dict[str, float]) -> None:
    """Limit this process: see ``isolation.Limits`` for what and why."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # where memory runs out after all, it is the child that goes
    except OSError:
        pass

    def limit(which: int, value: float, margin: int = 0) -> None:
        _, hard = resource.getrlimit(which)
        value = int(value)
        most = value + margin if hard == resource.RLIM_INFINITY else min(value + margin, hard)
        resource.setrlimit(which, (min(value, most), most))

    limit(resource.RLIMIT_CPU, limits["total_cpu_s"], margin=2)
    if limits.get("memory_bytes"):
        limit(resource.RLIMIT_AS, _address_space() + limits["memory_bytes"])
    limit(resource.RLIMIT_NPROC, _processes_of_user() + limits["processes"])
    limit(resource.RLIMIT_FSIZE, limits["file_bytes"])
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_NOFILE, limits["open_files"])


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _processes_of_user() -> int:
    """Tasks of this user, which RLIMIT_NPROC counts."""
    count, user = 0, os.getuid()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid == user:
                    count += len(os.listdir(f"/proc/{entry.name}/task"))
            except OSError:
                continue
    return count
