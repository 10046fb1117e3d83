"""What a kernel is given, held against its parameters before it runs: CuPy passes on whatever it gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .errors import LaunchError
from .parse import Function, Variable

_INTEGERS = {f"{kind}{bits}" for kind in "usb" for bits in (8, 16, 32, 64)}
_FLOATS = {"f16", "f32", "f64"}


def check_arguments(function: Function, arguments: Sequence[Any]) -> list[bytes]:
    """The bytes of each argument, as the kernel's parameters take them.

    Args:
        function: the kernel, from the parser.
        arguments: device arrays (with ``data.ptr``), NumPy scalars, and structs as ``np.void`` or 0-d arrays.

    Raises:
        LaunchError: a wrong count, a Python number, a size or kind that does not fit, a host array, or an
            array that is not C-contiguous; the message names kernel, argument and parameter.
    """
    params = function.params
    if not isinstance(arguments, (tuple, list)):
        raise LaunchError(f"{function.name}: arguments must be a tuple, got {type(arguments).__name__}")
    if len(arguments) != len(params):
        raise LaunchError(f"{function.name} takes {len(params)} arguments, got {len(arguments)}")
    return [
        _one(f"{function.name}, argument {number}", argument, param)
        for number, (argument, param) in enumerate(zip(arguments, params, strict=True))
    ]


def _one(where: str, argument: Any, param: Variable) -> bytes:
    if isinstance(argument, (bool, int, float, complex)) and not isinstance(argument, np.generic):
        kind = "np.float32" if isinstance(argument, float) else "np.int32"
        raise LaunchError(
            f"{where}: a Python {type(argument).__name__} has no C size; give {kind}({argument}) or the like"
        )
    if hasattr(argument, "data") and hasattr(argument.data, "ptr"):
        return _pointer(where, argument, param)
    if isinstance(argument, np.ndarray) and argument.ndim == 0:
        argument = argument[()]
    if isinstance(argument, np.ndarray):
        raise LaunchError(f"{where}: a NumPy array lives on the host; give asarray(...) of it")
    if not isinstance(argument, np.generic):
        raise LaunchError(
            f"{where}: {type(argument).__name__} is neither a device array nor a NumPy scalar or struct"
        )
    data = argument.tobytes()
    struct = isinstance(argument, np.void)
    if len(data) != param.size or struct != param.is_array:
        what = "struct" if struct else str(argument.dtype)
        raise LaunchError(f"{where}: a {what} of {len(data)} bytes; the parameter is {_described(param)}")
    allowed = _FLOATS | {"b16"} if argument.dtype.kind == "f" else _INTEGERS
    if not struct and param.type not in allowed:
        raise LaunchError(f"{where}: {argument.dtype}; the parameter is {_described(param)}")
    return data


def _pointer(where: str, array: Any, param: Variable) -> bytes:
    if param.is_array or param.type not in ("u64", "s64", "b64"):
        raise LaunchError(f"{where}: an array; the parameter is {_described(param)}, no pointer")
    if not array.flags.c_contiguous:
        raise LaunchError(f"{where}: an array with strides {array.strides}; give a contiguous copy")
    return int(array.data.ptr).to_bytes(8, "little")


def _described(param: Variable) -> str:
    return f"a struct of {param.size} bytes" if param.is_array else f"{param.type}, {param.size} bytes"
