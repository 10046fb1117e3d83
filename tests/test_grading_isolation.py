"""Children that run submitted kernels: limits hold, one never harms the next, and nothing is forged."""

import os
import signal
import socket
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

from labs_common.grading import channel
from labs_common.grading.cases import grading_cases
from labs_common.grading.channel import ChannelClosed, ChannelError, ChannelTimeout
from labs_common.grading.isolation import ChildEnded, Limits, Sandbox
from labs_common.grading.marking import case_request, opening
from labs_common.plans import Device
from labs_common.problem import storage_dtype
from labs_common.stages import find_stage

STAGE = find_stage("02")


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(Limits(total_cpu_s=77)) as one:
        yield one


def open_with(sandbox, text, **limits):
    session = sandbox.open(Limits(**limits) if limits else None)
    assert session.request(opening(STAGE, "02_vectorized.cu", text, Device())) == {"ok": True}
    return session


# ---- the channel -----------------------------------------------------------------------------------------


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_arrays_survive_the_channel(pair):
    ours, theirs = pair
    message = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": [{"c": np.zeros((0, 4), np.int32)}, np.float64(1.5), None, "x"],
    }

    channel.send(ours, message)
    got = channel.receive(theirs)

    assert got["a"].dtype == np.float32 and got["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert got["b"][0]["c"].shape == (0, 4)
    assert got["b"][1:] == [1.5, None, "x"]
    got["a"][0, 0] = 7  # writable, and nobody else's


HEAD = struct.Struct("!8sIQ")


@pytest.mark.parametrize("dtype", channel.KINDS)
def test_every_dtype_survives_the_channel(pair, dtype):
    ours, theirs = pair
    array = np.arange(6).reshape(2, 3).astype(storage_dtype(dtype))

    channel.send(ours, {"a": array})
    got = channel.receive(theirs)["a"]

    assert got.dtype == array.dtype and got.shape == array.shape and got.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n" + b" " * 20,
        HEAD.pack(channel.MAGIC, channel.MAX_JSON + 1, 0),
        HEAD.pack(channel.MAGIC, 2, channel.MAX_ARRAYS + 1),
        HEAD.pack(channel.MAGIC, 2, 0) + b"[]",
        HEAD.pack(channel.MAGIC, 2, 0) + b"{,",
        HEAD.pack(channel.MAGIC, 40, 0) + b'{"a": {"__array__": ["object", [1], 0]}}',
        HEAD.pack(channel.MAGIC, 41, 0) + b'{"a": {"__array__": ["float32", [9], 0]}}',
        HEAD.pack(channel.MAGIC, 42, 0) + b'{"a": {"__array__": ["float32", [-1], 0]}}',
        HEAD.pack(channel.MAGIC, 30, 4) + b'{"a": {"__array__": "float32"}}'[:30] + b"1234",
        HEAD.pack(channel.MAGIC, 20000, 0) + b"[" * 20000,
    ],
    ids=lambda data: "",
)
def test_what_is_no_message_is_refused(pair, data):
    ours, theirs = pair
    ours.sendall(data)

    with pytest.raises(ChannelError):
        channel.receive(theirs, timeout_s=5)


def test_half_a_message_ends_at_the_time_limit(pair):
    ours, theirs = pair
    ours.sendall(HEAD.pack(channel.MAGIC, 100, 0) + b"{")

    with pytest.raises(ChannelTimeout):
        channel.receive(theirs, timeout_s=0.05)


def test_a_closed_channel_is_said(pair):
    ours, theirs = pair
    ours.close()

    with pytest.raises(ChannelClosed):
        channel.receive(theirs, timeout_s=5)


# ---- children --------------------------------------------------------------------------------------------


def test_a_child_is_fresh_and_the_next_one_does_not_know_it(sandbox):
    first = open_with(sandbox, STAGE.source().text)
    first.close()
    second = open_with(sandbox, "nonsense")

    answer = second.request(plain_case())
    second.close()

    assert answer["error"]["kind"] == "compile"
    assert second.ended["reason"] in ("exit", "stopped")


BOMBS = {
    "macros": "\n".join(
        [f"#define A{i}(x) {' + '.join([f'A{i - 1}(x)'] * 10) if i else 'x'}" for i in range(12)]
        + ["float f() { return A11(1.0f); }"]
    ),
    "templates": "template <int A, int B> struct T {\n"
    "  static constexpr int v = T<A - 1, 2 * B>::v + T<A - 1, 2 * B + 1>::v;\n"
    "};\n"
    "template <int B> struct T<0, B> { static constexpr int v = B; };\n"
    "int f() { return T<40, 1>::v; }",
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_a_compile_bomb_ends_at_its_processor_time(sandbox, text):
    session = open_with(sandbox, text, cpu_s=2, wall_s=60, step_s=60)

    with pytest.raises(ChildEnded, match=r"processor time|memory") as ended:
        session.request(plain_case())

    assert ended.value.kind in ("time", "memory")


def plain_case():
    """A request to run the plainest hidden problem."""
    return case_request(grading_cases(STAGE, "seed")[0])


def test_wall_time_ends_a_child_that_waits(sandbox):
    session = sandbox.open(Limits(wall_s=0.3))
    time.sleep(1.0)

    with pytest.raises(ChildEnded, match=r"more than 0\.3 s") as ended:
        session.request(opening(STAGE, "a.cu", "", Device()))

    assert ended.value.kind == "time"


def test_a_killed_child_is_a_crash_and_the_sandbox_lives_on(sandbox):
    session = open_with(sandbox, STAGE.source().text)
    (child,) = children_of(sandbox._zygote.pid)
    os.kill(child, signal.SIGSEGV)

    with pytest.raises(ChildEnded, match="SIGSEGV") as ended:
        session.request(plain_case())

    assert ended.value.kind == "crash"
    with pytest.raises(ChildEnded, match="has ended"):
        session.request(plain_case())
    open_with(sandbox, STAGE.source().text).close()


def test_a_killed_zygote_is_replaced(sandbox):
    open_with(sandbox, STAGE.source().text).close()
    os.kill(sandbox._zygote.pid, signal.SIGKILL)
    sandbox._zygote.wait()

    open_with(sandbox, STAGE.source().text).close()


def test_children_end_with_the_process_that_grades(tmp_path):
    """kill -9 of a grader leaves neither a zygote nor a child behind."""
    code = (
        "import sys, time\n"
        "from labs_common.grading.isolation import Sandbox\n"
        "sandbox = Sandbox()\n"
        "session = sandbox.open()\n"
        "print(sandbox._zygote.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    grader = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    zygote = int(grader.stdout.readline())
    deadline = time.monotonic() + 20
    while not children_of(zygote) and time.monotonic() < deadline:
        time.sleep(0.05)
    (child,) = children_of(zygote)
    grader.kill()
    grader.wait()
    grader.stdout.close()
    while (alive(zygote) or alive(child)) and time.monotonic() < deadline:
        time.sleep(0.05)

    assert not alive(zygote)
    assert not alive(child)


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_a_child_may_do(sandbox):
    """Read off /proc: no file may grow, no core, few descriptors, no new privileges, nothing of ours open."""
    session = open_with(sandbox, STAGE.source().text)
    (child,) = children_of(sandbox._zygote.pid)
    with open(f"/proc/{child}/limits") as file:
        limits = {line[:26].strip(): line[26:].split() for line in file}
    with open(f"/proc/{child}/status") as file:
        status = dict(line.split(":", 1) for line in file)
    open_files = {os.readlink(f"/proc/{child}/fd/{n}") for n in os.listdir(f"/proc/{child}/fd")}
    with open(f"/proc/{child}/environ") as file:
        environment = file.read()
    session.close()

    assert limits["Max file size"][0] == "0"
    assert limits["Max core file size"][0] == "0"
    assert limits["Max cpu time"][0] == "77"
    assert int(limits["Max open files"][0]) == 64
    assert int(limits["Max address space"][0]) < 64 << 30
    assert status["NoNewPrivs"].strip() == "1"
    assert {name.partition(":")[0] for name in open_files} <= {"/dev/null", "socket"}
    assert "PYTHONPATH" not in environment


def test_the_zygote_takes_no_module_from_where_the_grader_stands(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise SystemExit(3)")
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    with Sandbox() as fresh:
        open_with(fresh, STAGE.source().text).close()
