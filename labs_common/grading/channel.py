"""Messages between the grader and a child that runs a submitted kernel: JSON and raw arrays, never pickles.

A frame is a magic word, the lengths of both parts, a JSON object, and the bytes of the arrays that it names.
Whatever arrives is checked, so that a child can at most send a message that is refused.
"""

from __future__ import annotations

import json
import math
import select
import socket
import struct
import time
from typing import Any

import numpy as np

from labs_common.problem import DTYPES, storage_dtype

MAGIC = b"palabmsg"
MAX_JSON = 4 << 20
MAX_ARRAYS = 512 << 20
KINDS = (*DTYPES, "float64", "int32", "int64", "uint8")  # of arrays
_HEAD = struct.Struct("!8sIQ")
_ARRAY = "__array__"


class ChannelError(Exception):
    """What arrived is no message of ours."""


class ChannelClosed(ChannelError):
    """The other side is gone."""


class ChannelTimeout(ChannelError):
    """Nothing whole arrived in time."""


def send(sock: socket.socket, message: dict[str, Any], timeout_s: float | None = None) -> None:
    """Send one message; arrays may stand anywhere in it.

    Raises:
        ChannelClosed, ChannelTimeout: the other side is gone, or does not read.
    """
    arrays: list[np.ndarray] = []
    text = json.dumps(_without_arrays(message, arrays)).encode()
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    size = sum(array.nbytes for array in arrays)
    try:
        _send_all(sock, _HEAD.pack(MAGIC, len(text), size) + text, deadline)
        for array in arrays:
            _send_all(sock, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, deadline)
    except (BrokenPipeError, ConnectionResetError, OSError) as error:
        if isinstance(error, TimeoutError):
            raise ChannelTimeout("the other side does not read") from None
        raise ChannelClosed(str(error)) from None


def receive(sock: socket.socket, timeout_s: float | None = None) -> dict[str, Any]:
    """Wait for one message; its arrays are fresh and writable.

    Raises:
        ChannelClosed, ChannelTimeout, ChannelError: see there.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    magic, text_size, size = _HEAD.unpack(_receive_all(sock, _HEAD.size, deadline))
    if magic != MAGIC or text_size > MAX_JSON or size > MAX_ARRAYS:
        raise ChannelError("not a message")
    text = _receive_all(sock, text_size, deadline)
    data = _receive_all(sock, size, deadline)
    try:
        message = json.loads(bytes(text))
        if not isinstance(message, dict):
            raise ValueError("no object")
        return _with_arrays(message, memoryview(data))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ChannelError(f"not a message: {error}") from None


def _without_arrays(value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, np.ndarray):
        start = sum(array.nbytes for array in arrays)
        arrays.append(value)
        return {_ARRAY: [str(value.dtype), list(value.shape), start]}
    if isinstance(value, dict):
        return {key: _without_arrays(item, arrays) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_arrays(item, arrays) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return value


def _with_arrays(value: Any, data: memoryview) -> Any:
    if isinstance(value, dict):
        if _ARRAY in value:
            dtype, shape, start = value[_ARRAY]
            if dtype not in KINDS or not all(type(n) is int and n >= 0 for n in [*shape, start]):
                raise ValueError("an array of another kind")
            dtype = storage_dtype(dtype)
            end = start + math.prod(shape) * dtype.itemsize
            if end > len(data):
                raise ValueError("an array past the end")
            return np.frombuffer(data[start:end], dtype).reshape(shape).copy()
        return {key: _with_arrays(item, data) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_arrays(item, data) for item in value]
    return value


def _wait(sock: socket.socket, deadline: float | None, writing: bool) -> None:
    left = None if deadline is None else deadline - time.monotonic()
    if left is not None and left <= 0:
        raise ChannelTimeout("no whole message in time")
    poller = select.poll()
    poller.register(sock, select.POLLOUT if writing else select.POLLIN)
    if not poller.poll(None if left is None else max(1, int(left * 1000))):
        raise ChannelTimeout("no whole message in time")


def _send_all(sock: socket.socket, data: bytes | memoryview, deadline: float | None) -> None:
    view = memoryview(data)
    while view:
        _wait(sock, deadline, writing=True)
        view = view[sock.send(view[: 1 << 20]) :]


def _receive_all(sock: socket.socket, size: int, deadline: float | None) -> bytearray:
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        _wait(sock, deadline, writing=False)
        try:
            count = sock.recv_into(view[got:], min(size - got, 1 << 20))
        except ConnectionResetError:
            count = 0
        if not count:
            raise ChannelClosed("the other side is gone")
        got += count
    return data
