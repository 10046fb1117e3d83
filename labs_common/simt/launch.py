"""What a launch is before any engine runs it: grid, block, parameter bytes, shared memory; and its result."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .errors import Dim3, Finding, LaunchError
from .memory import AddressSpace
from .parse import Module, Variable
from .program import Program

if TYPE_CHECKING:
    from .counters import Counters

MAX_THREADS = 1024
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)
DEFAULT_SHARED = 48 * 1024  # without opting in
MAX_SHARED = 227 * 1024  # of one block, static and dynamic, after opting in (compute capability 9.0)
ALL_CHECKS = frozenset(("memcheck", "initcheck", "racecheck", "synccheck"))


@dataclass(frozen=True)
class Launch:
    """One kernel launch. params are the bytes of the parameter area, laid out as `Program.param_offsets`."""

    program: Program
    grid: Dim3
    block: Dim3
    params: bytes
    shared_dynamic: int = 0
    checks: frozenset[str] = ALL_CHECKS
    budget: int = 100_000_000  # instructions that one thread may execute
    blocks: tuple[int, ...] | None = None  # linear numbers of the blocks to run; None: all
    schedule: int | None = None  # seed of the order in which blocks and warps get their turn; None: ascending

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def block_count(self) -> int:
        """Blocks of the whole grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: static, then dynamic from `program.dynamic_offset`."""
        if not self.shared_dynamic:
            return self.program.shared_static
        return self.program.dynamic_offset + self.shared_dynamic

    def block_order(self) -> np.ndarray:
        """Linear numbers of the blocks to run, in their order."""
        chosen = np.arange(self.block_count) if self.blocks is None else np.array(self.blocks, np.int64)
        return chosen if self.schedule is None else np.random.default_rng(self.schedule).permutation(chosen)

    def warp_order(self) -> np.ndarray:
        """The warps of a block in their order."""
        warps = np.arange(-(-self.threads // 32))
        return (
            warps if self.schedule is None else np.random.default_rng([self.schedule, 1]).permutation(warps)
        )

    def block_index(self, linear: int) -> Dim3:
        """(x, y, z) of a block's linear number."""
        x, y, _ = self.grid
        return linear % x, linear // x % y, linear // (x * y)

    def thread_index(self, linear: int) -> Dim3:
        """(x, y, z) of a thread's linear number in its block."""
        x, y, _ = self.block
        return linear % x, linear // x % y, linear // (x * y)


@dataclass
class Result:
    """What a launch left behind. findings come in the order in which they were met."""

    counters: Counters
    findings: list[Finding] = field(default_factory=list)
    output: str = ""  # of printf
    seconds: float = 0.0  # of the simulation on this machine; says nothing about a GPU


def dim3(value, what: str) -> Dim3:
    """An int or a sequence of up to three ints as (x, y, z). Raises LaunchError."""
    items = (value,) if isinstance(value, int | np.integer) else value
    try:
        items = tuple(items)
    except TypeError:
        raise LaunchError(f"{what} must be up to three integers, not {value!r}") from None
    if not 1 <= len(items) <= 3 or not all(
        isinstance(i, int | np.integer) and not isinstance(i, bool) for i in items
    ):
        raise LaunchError(f"{what} must be up to three integers, not {value!r}")
    x, y, z = (*(int(i) for i in items), 1, 1, 1)[:3]
    return x, y, z


def check_shape(program: Program, grid: Dim3, block: Dim3) -> None:
    """CUDA's limits on grid and block, and the kernel's own __launch_bounds__. Raises LaunchError."""
    for name, value, limit in (("grid", grid, MAX_GRID), ("block", block, MAX_BLOCK)):
        for axis, count, most in zip("xyz", value, limit, strict=True):
            if not 1 <= count <= most:
                raise LaunchError(f"{program.entry}: {name}.{axis} = {count}; allowed are 1 to {most}")
    threads = block[0] * block[1] * block[2]
    if threads > MAX_THREADS:
        raise LaunchError(f"{program.entry}: {threads} threads per block; at most {MAX_THREADS}")
    most = max_threads(program)
    if threads > most:
        raise LaunchError(f"{program.entry}: {threads} threads per block; its __launch_bounds__ allow {most}")
    required = program.directives.get("reqntid")
    if required and tuple(block) != (*required, 1, 1)[:3]:
        raise LaunchError(f"{program.entry}: block {block}; the kernel requires {required}")


def max_threads(program: Program) -> int:
    """The most threads a block of this kernel may have."""
    bounds = program.directives.get("maxntid")
    return min(MAX_THREADS, int(np.prod(bounds))) if bounds else MAX_THREADS


def check_shared(program: Program, dynamic: int, opted_in: int) -> None:
    """Dynamic shared memory within what was opted in, and all of it within the device. Raises LaunchError."""
    if not isinstance(dynamic, int | np.integer) or dynamic < 0:
        raise LaunchError(f"{program.entry}: shared_mem = {dynamic!r}; a number of bytes >= 0 is needed")
    static = program.shared_static
    if static > DEFAULT_SHARED:
        raise LaunchError(
            f"{program.entry}: {static} bytes of static shared memory; at most {DEFAULT_SHARED}"
        )
    allowed = max(opted_in, DEFAULT_SHARED - static)
    if dynamic > allowed:
        if dynamic + static <= MAX_SHARED:
            raise LaunchError(
                f"{program.entry}: {dynamic} bytes of dynamic shared memory; above {DEFAULT_SHARED - static} "
                f"set kernel.max_dynamic_shared_size_bytes first"
            )
        raise LaunchError(
            f"{program.entry}: {dynamic} + {static} bytes of shared memory; a block has at most {MAX_SHARED}"
        )


def pack_parameters(program: Program, arguments: list[bytes], kinds: list[str]) -> bytes:
    """The parameter area. arguments are the bytes of each; kinds name their types for messages."""
    if len(arguments) != len(program.params):
        raise LaunchError(
            f"{program.entry} takes {len(program.params)} arguments, {len(arguments)} were given"
        )
    area = bytearray(program.param_bytes)
    for number, (param, data, kind) in enumerate(zip(program.params, arguments, kinds, strict=True)):
        if len(data) != param.size:
            raise LaunchError(
                f"{program.entry}: argument {number} is {kind} of {len(data)} bytes; "
                f"the kernel's parameter has {param.size}"
            )
        offset = program.param_offsets[param.name]
        area[offset : offset + param.size] = data
    return bytes(area)


def load_variables(module: Module, space: AddressSpace, names: dict[str, Variable]) -> dict[str, int]:
    """Allocate and initialise .global and .const variables; name -> virtual address."""
    addresses: dict[str, int] = {}
    hosts: dict[str, np.ndarray] = {}
    for name, variable in {**module.variables, **names}.items():
        if variable.space in ("global", "const") and not (variable.extern and variable.data is None):
            allocation = space.allocate(variable.size, name)
            if variable.data is not None:
                allocation.host[:] = np.frombuffer(variable.data, np.uint8)
            addresses[name], hosts[name] = allocation.base, allocation.host
    for name, variable in {**module.variables, **names}.items():
        for offset, target, addend in variable.relocations:
            if target not in addresses:
                raise LaunchError(f"the initial value of {name} names {target}, which has no address")
            value = struct.pack("<Q", (addresses[target] + addend) & (2**64 - 1))
            hosts[name][offset : offset + 8] = np.frombuffer(value, np.uint8)
    return addresses
