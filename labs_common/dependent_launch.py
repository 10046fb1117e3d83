"""Programmatic dependent launch on a GPU: a kernel that begins before the launch before it has ended.

CuPy launches kernels without attributes; this one goes through the driver's ``cuLaunchKernelEx``, which CuPy
has loaded already. See "Programmatic Dependent Launch" in the CUDA programming guide.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

import numpy as np

PROGRAMMATIC_STREAM_SERIALIZATION = 6  # of cuda.h's CUlaunchAttributeID


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute``: an id, and 64 bytes of value behind eight of their own."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


class DependentKernel:
    """A CuPy kernel whose launches may begin early; all else is the kernel's.

    Its code has to wait (``griddepcontrol.wait``) before it reads what the launch before it writes.
    """

    def __init__(self, kernel: Any, xp: Any) -> None:
        """Wrap a ``cupy.RawKernel``; ``xp`` is CuPy."""
        object.__setattr__(self, "_kernel", kernel)
        object.__setattr__(self, "_xp", xp)

    def __call__(self, grid: tuple, block: tuple, args: tuple, *, shared_mem: int = 0) -> None:
        """Launch on the current stream, as CuPy does.

        Args:
            grid: blocks along x, y and z.
            block: threads along x, y and z.
            args: device arrays, NumPy scalars and structs.
            shared_mem: bytes of dynamic shared memory.

        Raises:
            cupy.cuda.driver.CUDADriverError: the driver refuses.
        """
        values = [ctypes.create_string_buffer(data, len(data)) for data in map(_bytes, args)]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        early = _Attribute(PROGRAMMATIC_STREAM_SERIALIZATION, 0, (1,))
        stream = self._xp.cuda.get_current_stream().ptr
        config = _Config(grid, block, shared_mem, stream, ctypes.pointer(early), 1)
        function = ctypes.c_void_p(self._kernel.kernel.ptr)
        status = _driver().cuLaunchKernelEx(ctypes.byref(config), function, pointers, None)
        if status:
            raise self._xp.cuda.driver.CUDADriverError(status)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._kernel, name, value)


def _bytes(argument: Any) -> bytes:
    """An argument as the kernel's parameter memory holds it."""
    if hasattr(argument, "data") and hasattr(argument.data, "ptr"):
        return np.uint64(argument.data.ptr).tobytes()
    return argument.tobytes()


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("nvcuda" if os.name == "nt" else "libcuda.so.1")
