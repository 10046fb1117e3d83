"""The calls of CuPy that the lab and its notebooks use, carried out by the simulator.

Where there is a GPU, `import cupy as xp`; where there is none,
`from labs_common.simt import cupy_like as xp`. The rest of a cell is the same. Arrays live in one address
space per process; launches are synchronous.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import launch as launching
from .arguments import check_arguments
from .errors import BudgetError, Fault, LaunchError
from .launch import ALL_CHECKS, Launch, Result
from .memory import AddressSpace, Allocation
from .parse import Module, parse
from .program import Program, build

SPACE = AddressSpace()
RATES = {"numpy": 0.4e9, "llvm": 4e9}  # lane-instructions per second and core to expect, for estimates
SAMPLE_BLOCKS = 4
COPIED_BYTES = 64 << 20  # allocations up to this size are put back after a sample

float16, float32, float64 = np.float16, np.float32, np.float64
int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
nan, inf = np.nan, np.inf


class _Memory:
    """`ndarray.data`: ptr is the virtual address of the first element."""

    def __init__(self, ptr: int):
        self.ptr = ptr


class ndarray:
    """A device array. `host` is its memory as a NumPy array; kernels and the host see the same bytes."""

    def __init__(self, host: np.ndarray, allocation: Allocation, owner: Any = None):
        self.host, self.allocation = host, allocation
        self._owner = owner  # keeps the allocation mapped while a view of it lives

    @property
    def data(self) -> _Memory:
        """The device pointer, `data.ptr`."""
        if not self.host.size:
            return _Memory(self.allocation.base)
        return _Memory(self.allocation.base + self.host.ctypes.data - self.allocation.pointer)

    shape = property(lambda self: self.host.shape)
    dtype = property(lambda self: self.host.dtype)
    nbytes = property(lambda self: self.host.nbytes)
    size = property(lambda self: self.host.size)
    ndim = property(lambda self: self.host.ndim)
    flags = property(lambda self: self.host.flags)
    strides = property(lambda self: self.host.strides)
    itemsize = property(lambda self: self.host.itemsize)
    T = property(lambda self: self._view(self.host.T))

    def get(self) -> np.ndarray:
        """A copy in NumPy."""
        return self.host.copy()

    def set(self, array: np.ndarray) -> None:
        """Copy a NumPy array of the same shape and dtype in."""
        array = np.asarray(array)
        if array.shape != self.shape or array.dtype != self.dtype:
            raise ValueError(
                f"set: {array.dtype} {array.shape} does not fit the array's {self.dtype} {self.shape}"
            )
        self.host[...] = array
        self._written()

    def fill(self, value: Any) -> None:
        """Set every element."""
        self.host.fill(value)
        self._written()

    def reshape(self, *shape: Any) -> ndarray:
        """The same memory in another shape."""
        return self._view(self.host.reshape(*shape))

    def ravel(self) -> ndarray:
        """The same memory in one dimension."""
        return self._view(self.host.reshape(-1))

    def view(self, dtype: Any) -> ndarray:
        """The same memory as another dtype."""
        return self._view(self.host.view(dtype))

    def copy(self) -> ndarray:
        """A new array with the same elements."""
        return asarray(self.host)

    def astype(self, dtype: Any) -> ndarray:
        """A new array of another dtype."""
        return asarray(self.host.astype(dtype))

    def __getitem__(self, key: Any) -> ndarray:
        part = self.host[key]
        if isinstance(part, np.ndarray) and np.shares_memory(part, self.host):
            return self._view(part)
        return asarray(part)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.host[key] = value.host if isinstance(value, ndarray) else value
        self._written(key)

    def __len__(self) -> int:
        return len(self.host)

    def __repr__(self) -> str:
        return repr(self.host)

    def _view(self, host: np.ndarray) -> ndarray:
        return ndarray(host, self.allocation, self._owner or self)

    def _written(self, key: Any = ...) -> None:
        marks = self.allocation.written
        if marks is not None and self.size:
            start = self.data.ptr - self.allocation.base
            shape, strides = (*self.shape, self.itemsize), (*self.strides, 1)
            np.ndarray(shape, np.uint8, marks, start, strides)[key] = 0xFF


def _new(host: np.ndarray, name: str = "", track_written: bool = False) -> ndarray:
    allocation = SPACE.wrap(host, name, track_written)
    array = ndarray(host, allocation)
    weakref.finalize(array, SPACE.free, allocation)
    return array


def wrap(array: np.ndarray, name: str = "", track_written: bool = False) -> ndarray:
    """A device array over a NumPy array's own memory, without a copy. It must be C-contiguous.

    track_written: whether a kernel that reads what no kernel wrote is a finding of initcheck.
    """
    if not array.flags.c_contiguous:
        raise ValueError(f"wrap: an array with strides {array.strides} is not C-contiguous")
    return _new(array, name, track_written)


def asarray(array: Any, dtype: Any = None) -> ndarray:
    """A copy on the device; a device array of the right dtype is returned as it is."""
    if isinstance(array, ndarray):
        return array if dtype is None or array.dtype == dtype else array.astype(dtype)
    return _new(np.array(array, dtype=dtype, order="C", copy=True))


array = asarray


def empty(shape: Any, dtype: Any = float) -> ndarray:
    """An array nobody has written; reading it in a kernel is a finding of initcheck."""
    return _new(np.zeros(shape, dtype), track_written=True)


def zeros(shape: Any, dtype: Any = float) -> ndarray:
    """An array of zeros."""
    return _new(np.zeros(shape, dtype))


def ones(shape: Any, dtype: Any = float) -> ndarray:
    """An array of ones."""
    return _new(np.ones(shape, dtype))


def full(shape: Any, value: Any, dtype: Any = None) -> ndarray:
    """An array with one value everywhere."""
    return _new(np.full(shape, value, dtype))


def arange(*args: Any, dtype: Any = None) -> ndarray:
    """NumPy's arange on the device."""
    return _new(np.arange(*args, dtype=dtype))


def zeros_like(other: ndarray) -> ndarray:
    """Zeros of another array's shape and dtype."""
    return zeros(other.shape, other.dtype)


def empty_like(other: ndarray) -> ndarray:
    """An unwritten array of another's shape and dtype."""
    return empty(other.shape, other.dtype)


def asnumpy(array: Any) -> np.ndarray:
    """A copy in NumPy."""
    return array.get() if isinstance(array, ndarray) else np.array(array)


def is_ptx(text: str) -> bool:
    """Whether a source text is PTX rather than CUDA C++: its first statement is .version."""
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith("//"):
            return line.startswith(".version")
    return False


@functools.lru_cache(maxsize=16)
def parsed(ptx: str) -> Module:
    """The module of a PTX text, which nothing changes: a kernel that runs again is not read again."""
    return parse(ptx)


def run_launch(launch: Launch, addresses: dict[str, int], engine: str) -> Result:
    """Run a launch on one of the engines, "numpy" or "llvm"."""
    if engine == "numpy":
        from . import numpy_engine

        return numpy_engine.run(launch, SPACE, addresses)
    if engine == "llvm":
        from . import llvm_engine

        return llvm_engine.run(launch, SPACE, addresses)
    raise ValueError(f"engine {engine!r}; there are 'numpy' and 'llvm'")


@dataclass(frozen=True)
class Estimate:
    """What a launch will cost, extrapolated from blocks_run of its blocks.

    seconds: on one core, at the rate that the module's engine usually has.
    """

    blocks: int
    blocks_run: int
    lane_instructions: float
    seconds: float


class RawModule:
    """CuPy's RawModule over PTX text, or over CUDA text with `compile`, a function from it to PTX.

    Args:
        code: PTX, or CUDA C++ together with compile.
        options: handed to compile, if given.
        compile: function(code, options) -> PTX.
        resources: function(kernel name) -> an object with CuPy's attribute names (num_regs,
            shared_size_bytes, local_size_bytes, const_size_bytes), or None.
        engine: "numpy" or "llvm".
        checks: names out of ALL_CHECKS.
        budget: instructions that one thread may execute.
        schedule: seed of the order in which blocks and warps get their turn, by default ascending. What a
            kernel with a race computes may depend on it; what a clean one computes does not.

    Attributes:
        last_launch: the `Result` of the latest launch: counters, findings, printf output.
    """

    def __init__(
        self,
        code: str,
        options: Sequence[str] = (),
        *,
        compile: Callable[[str, Sequence[str]], str] | None = None,
        resources: Callable[[str], Any] | None = None,
        engine: str = "numpy",
        checks: frozenset[str] | Sequence[str] = ALL_CHECKS,
        budget: int = 100_000_000,
        schedule: int | None = None,
        backend: str = "nvrtc",
        **_ignored: Any,
    ):
        if not is_ptx(code):
            if compile is None:
                raise ValueError("RawModule: the text is no PTX, and there is no compile= to make it so")
            code = compile(code, tuple(options))
        self.ptx = code
        self.parsed: Module = parsed(code)
        self.engine, self.budget, self.backend = engine, budget, backend
        self.schedule = schedule
        unknown = set(checks) - ALL_CHECKS
        if unknown:
            raise ValueError(f"checks {sorted(unknown)}; there are {sorted(ALL_CHECKS)}")
        self.checks = frozenset(checks)
        self.last_launch: Result | None = None
        self.resources = resources
        self._functions: dict[str, RawKernel] = {}
        self._addresses: dict[str, int] = {}

    def get_function(self, name: str) -> RawKernel:
        """The kernel of this name. Raises LaunchError naming the kernels there are; UnsupportedError."""
        if name not in self._functions:
            program = build(self.parsed, name)
            missing = {k: v for k, v in program.variables.items() if k not in self._addresses}
            if missing or not self._addresses:
                variables = {**self.parsed.variables, **program.variables}
                fresh = {k: v for k, v in variables.items() if k not in self._addresses}
                self._addresses |= launching.load_variables(replace(self.parsed, variables={}), SPACE, fresh)
            self._functions[name] = RawKernel(self, program)
        return self._functions[name]

    @property
    def addresses(self) -> dict[str, int]:
        """The virtual addresses of the module's variables that its functions so far use."""
        return dict(self._addresses)

    def get_global(self, name: str) -> int:
        """The virtual address of a .global or .const variable. Raises KeyError."""
        return self._addresses[name]


class RawKernel:
    """One kernel: call it as kernel(grid, block, args, shared_mem=0)."""

    def __init__(self, module: RawModule, program: Program):
        self.module, self.program, self.name = module, program, program.entry
        from . import ops

        for i, instruction in enumerate(program.instructions):
            if program.executed_in[i] >= 0:
                ops.operation(instruction)  # refuses what is not simulated, before anything runs
        self._opted_in = 0

    def _resource(self, name: str) -> Any:
        figures = self.module.resources(self.name) if self.module.resources else None
        return getattr(figures, name, None)

    num_regs = property(lambda self: self._resource("num_regs"))
    local_size_bytes = property(lambda self: self._resource("local_size_bytes"))
    const_size_bytes = property(lambda self: self._resource("const_size_bytes"))

    @property
    def shared_size_bytes(self) -> int:
        """Static shared memory of a block."""
        figure = self._resource("shared_size_bytes")
        return self.program.shared_static if figure is None else figure

    @property
    def max_threads_per_block(self) -> int:
        """What __launch_bounds__ and the device allow."""
        return launching.max_threads(self.program)

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """Dynamic shared memory that a launch may ask for; set it to go beyond 48 KiB."""
        return max(self._opted_in, launching.DEFAULT_SHARED - self.program.shared_static)

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        most = launching.MAX_SHARED - self.program.shared_static
        if not 0 <= size <= most:
            raise LaunchError(f"{self.name}: max_dynamic_shared_size_bytes = {size}; allowed are 0 to {most}")
        self._opted_in = int(size)

    @property
    def attributes(self) -> dict[str, Any]:
        """CuPy's dictionary of function attributes."""
        names = ("num_regs", "shared_size_bytes", "local_size_bytes", "const_size_bytes",
                 "max_threads_per_block", "max_dynamic_shared_size_bytes")  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def prepare(self, grid: Any, block: Any, args: Sequence[Any], shared_mem: int = 0) -> Launch:
        """Check a launch without running it. Raises LaunchError."""
        grid, block = launching.dim3(grid, "grid"), launching.dim3(block, "block")
        launching.check_shape(self.program, grid, block)
        launching.check_shared(self.program, shared_mem, self._opted_in)
        function = self.module.parsed.functions[self.name]
        data = check_arguments(function, args)
        params = launching.pack_parameters(self.program, data, [type(a).__name__ for a in args])
        module = self.module
        return Launch(
            self.program,
            grid,
            block,
            params,
            int(shared_mem),
            module.checks,
            module.budget,
            None,
            module.schedule,
        )

    def __call__(
        self, grid: Any, block: Any, args: Sequence[Any], shared_mem: int = 0, *, blocks: Any = None
    ) -> None:
        """Launch and wait. blocks: linear numbers of the blocks to run, all by default.

        Raises LaunchError before anything runs; Fault, BudgetError while it runs. printf output is printed.
        """
        launch = self.prepare(grid, block, args, shared_mem)
        if blocks is not None:
            launch = replace(launch, blocks=tuple(blocks))
        self.module.last_launch = None
        result = run_launch(launch, self.module._addresses, self.module.engine)
        self.module.last_launch = result
        if result.output:
            print(result.output, end="")

    def estimate(self, grid: Any, block: Any, args: Sequence[Any], shared_mem: int = 0) -> Estimate | None:
        """What the launch would cost, from a few blocks spread over the grid; memory is left as it was.

        None where those blocks stop at a fault or at the budget, which the launch itself then tells. They run
        as machine code, whatever engine the module has.
        """
        launch = self.prepare(grid, block, args, shared_mem)
        count = min(launch.block_count, SAMPLE_BLOCKS)
        chosen = tuple(int(b) for b in np.linspace(0, launch.block_count - 1, count).round())
        sample = replace(launch, blocks=chosen, checks=frozenset())
        with _unchanged(SPACE.allocations):
            try:
                counters = run_launch(sample, self.module._addresses, "llvm").counters
            except (Fault, BudgetError):
                return None
        lanes = counters.lane_instructions * launch.block_count / count
        return Estimate(launch.block_count, count, lanes, lanes / RATES[self.module.engine])


@contextmanager
def _unchanged(allocations: Sequence[Allocation]) -> Iterator[None]:
    """Memory as it was when the context was entered: small allocations copied, large ones not writable."""
    copies, locked = [], []
    for allocation in allocations:
        if allocation.size <= COPIED_BYTES:
            marks = None if allocation.written is None else allocation.written.copy()
            copies.append((allocation, allocation.host.copy(), marks))
        elif allocation.host.flags.writeable:
            locked.append(allocation)
            allocation.host.flags.writeable = False
    try:
        yield
    finally:
        for allocation, data, marks in copies:
            if allocation.host.flags.writeable:
                allocation.host[...] = data
            if marks is not None:
                allocation.written[...] = marks
        for allocation in locked:
            allocation.host.flags.writeable = True
