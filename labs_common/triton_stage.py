"""Stage 05 in Triton: compiled for a GPU, or interpreted on the CPU, on the same arrays."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from labs_common.plans import PARTITION_TOKENS
from labs_common.problem import Problem
from labs_common.source import KERNELS

PATH = KERNELS / "triton" / "partitioned_gqa.py"
TILE_TOKENS = 32
MERGE_TILE = 16


class TritonMissing(RuntimeError):
    """Triton is not installed here; the message says how to get it."""


class TritonArray:
    """A NumPy or CuPy array as what Triton takes for a tensor; its interpreter needs no torch then."""

    def __init__(self, array: Any):
        self.array = array
        self.dtype = array.dtype

    def data_ptr(self) -> int:
        """Address of the first element."""
        return self.array.ctypes.data if isinstance(self.array, np.ndarray) else self.array.data.ptr

    # What the interpreter asks of a tensor before it takes the address: a view of it on the CPU.
    def untyped_storage(self) -> TritonArray:
        """Itself: the array is on the CPU already."""
        return self

    cpu = untyped_storage

    def new_empty(self, *_: Any, **__: Any) -> TritonArray:
        """A view to be ``set_``."""
        return TritonArray(self.array)

    def set_(self, storage: TritonArray, *_: Any) -> None:
        """Look at another array."""
        self.array = storage.array

    def storage_offset(self) -> int:
        """Views begin at their own address."""
        return 0

    def size(self) -> tuple[int, ...]:
        """Its shape."""
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        """Strides in elements."""
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def copy_(self, other: TritonArray) -> None:
        """Nothing: kernels wrote in place."""


@functools.lru_cache(maxsize=1)
def kernels(interpret: bool) -> ModuleType:
    """The kernel file as a module, whose functions are interpreted or compiled.

    Triton decides between the two when it is imported, so that a process has one of them.

    Raises:
        TritonMissing: Triton is not installed, or was imported for the other of the two.
    """
    if "triton" not in sys.modules:
        if importlib.util.find_spec("triton") is None:
            raise TritonMissing("Triton is not installed: pip install 'paged-attention-lab[triton]'")
        os.environ["TRITON_INTERPRET"] = "1" if interpret else "0"
    import triton.language
    from triton.runtime.jit import JITFunction

    if isinstance(triton.language.zeros, JITFunction) == interpret:
        mode = "its compiler" if interpret else "its interpreter"
        raise TritonMissing(f"Triton runs as {mode} in this process; start another one")
    spec = importlib.util.spec_from_file_location("lab_triton_partitioned_gqa", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prepare_triton(
    xp: ModuleType,
    problem: Problem,
    arrays: Mapping[str, Any],
    scale: float,
    partition_tokens: int = PARTITION_TOKENS,
    tile_tokens: int = TILE_TOKENS,
    **options: int,
) -> tuple[Callable[[], None], Any]:
    """Stage 05 in Triton, bound to its arrays.

    Args:
        xp: ``numpy`` (interpreted) or ``cupy`` (compiled).
        problem: of the layout NHD.
        arrays: those of ``Inputs``, by name.
        scale: factor on every score.
        partition_tokens, tile_tokens: as in stage 05; a tile is a power of two of at least 16 tokens.
        options: Triton's, such as ``num_warps`` and ``num_stages``, for the first kernel.

    Returns:
        The call, which launches both kernels, and the output it writes, NaN before.

    Raises:
        ValueError: another layout than NHD, or tiles that do not divide a partition.
        TritonMissing: Triton is not installed.
    """
    if problem.layout != "NHD":
        raise ValueError(f"layout={problem.layout}: the Triton kernel takes NHD")
    if tile_tokens < 16 or tile_tokens & (tile_tokens - 1) or partition_tokens % tile_tokens:
        raise ValueError(
            f"tile_tokens={tile_tokens} must be a power of two of at least 16 that divides "
            f"partition_tokens={partition_tokens}"
        )
    module = kernels(interpret=xp is np)
    partitions = max(1, -(-max(problem.context_lengths, default=0) // partition_tokens))
    parts = (problem.batch, problem.query_heads, partitions)
    output = xp.full(arrays["query"].shape, np.nan, dtype=arrays["query"].dtype)
    part_max, part_sum = (xp.full(parts, np.nan, dtype=np.float32) for _ in range(2))
    part_values = xp.full((*parts, problem.head_dim), np.nan, dtype=np.float32)
    tensors = {name: TritonArray(array) for name, array in arrays.items()}
    scratch = [TritonArray(array) for array in (part_max, part_sum, part_values)]
    dims = _power_of_two(problem.head_dim, least=16)

    def call() -> None:
        module.partitioned_gqa[(problem.kv_heads, problem.batch, partitions)](
            *tensors.values(),
            *scratch,
            scale,
            problem.kv_heads,
            arrays["block_tables"].shape[1],
            partitions,
            GROUP=problem.group_size,
            GROUP_ROWS=_power_of_two(problem.group_size, least=16),
            HEAD_DIM=problem.head_dim,
            DIMS=dims,
            PAGE_SIZE=problem.page_size,
            TILE=tile_tokens,
            PARTITION=partition_tokens,
            **options,
        )
        module.partitioned_gqa_merge[(problem.query_heads, problem.batch)](
            tensors["context_lengths"],
            *scratch,
            TritonArray(output),
            problem.query_heads,
            partitions,
            HEAD_DIM=problem.head_dim,
            DIMS=dims,
            PARTITION=partition_tokens,
            TILE=MERGE_TILE,
        )

    return call, output


def _power_of_two(number: int, least: int) -> int:
    return max(least, 1 << (number - 1).bit_length())
