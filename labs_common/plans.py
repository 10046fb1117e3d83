"""How a stage is launched on a problem: grids, blocks, shared memory, and scratch that launches share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from labs_common.problem import Problem

WARP_SIZE = 32
MAX_HEAD_DIM = 256
TOKENS_PER_SPLIT = 256


@dataclass(frozen=True)
class Device:
    """The limits that a launch must keep; the defaults are those of the recorded GPU, an H200.

    Attributes:
        name: of the GPU.
        compute_capability: major and minor.
        max_threads: threads in a block.
        max_grid: blocks along x, y and z.
        max_shared_bytes: shared memory a block may opt in to.
    """

    name: str = "NVIDIA H200"
    compute_capability: tuple[int, int] = (9, 0)
    max_threads: int = 1024
    max_grid: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    max_shared_bytes: int = 232_448

    @property
    def arch(self) -> str:
        """Architecture name for compilers, such as ``sm_90``."""
        return "sm_{}{}".format(*self.compute_capability)


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    Attributes:
        entry: name of the ``__global__`` function.
        grid, block: blocks in the grid and threads in a block, along x, y and z.
        shared_bytes: dynamic shared memory per block.
    """

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0


@dataclass(frozen=True)
class Plan:
    """All that is launched to solve a problem.

    Every launch gets the same arguments: ``(Problem, Inputs, output)``, then one struct of pointers to the
    scratch arrays if there are any, then the numbers.

    Attributes:
        launches: in order.
        defines: macros that the source is compiled with.
        scratch: float32 arrays by name, each with its shape.
        numbers: int32 arguments by name.
    """

    launches: tuple[Launch, ...]
    defines: Mapping[str, int] = field(default_factory=dict)
    scratch: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)


def plan_per_query_head(entry: str, problem: Problem, device: Device) -> Plan:
    """A block per query head and sequence, a thread per dimension (00, 01)."""
    _supports_head_dim(problem)
    threads = -(-problem.head_dim // WARP_SIZE) * WARP_SIZE
    return _within(device, Plan((Launch(entry, (problem.query_heads, problem.batch, 1), (threads, 1, 1)),)))


def plan_warp_per_query_head(entry: str, problem: Problem, device: Device) -> Plan:
    """A one-warp block per query head and sequence (02)."""
    launch = Launch(entry, (problem.query_heads, problem.batch, 1), (WARP_SIZE, 1, 1))
    return _within(device, Plan((launch,), _chunk_defines(problem)))


def plan_per_kv_head(entry: str, problem: Problem, device: Device) -> Plan:
    """A block per key/value head and sequence, a warp per query head of the group (03).

    The tile in shared memory is a page, or as much of one as a block may have.
    """
    token_bytes = 2 * problem.head_dim * problem.itemsize
    tile_tokens = min(problem.page_size, device.max_shared_bytes // token_bytes)
    launch = Launch(
        entry,
        (problem.kv_heads, problem.batch, 1),
        (WARP_SIZE * problem.group_size, 1, 1),
        tile_tokens * token_bytes,
    )
    return _within(device, Plan((launch,), _chunk_defines(problem), numbers={"tile_tokens": tile_tokens}))


def plan_split_context(entry: str, problem: Problem, device: Device, splits: int | None = None) -> Plan:
    """A one-warp block per query head, sequence and split of the context; then a merge (04).

    Args:
        splits: parts of each context; by default one for every ``TOKENS_PER_SPLIT`` tokens of the longest.
    """
    if splits is None:
        longest = max(problem.context_lengths, default=0)
        splits = min(max(1, -(-longest // TOKENS_PER_SPLIT)), device.max_grid[2])
    if isinstance(splits, bool) or not isinstance(splits, int) or splits < 1:
        raise ValueError(f"splits={splits!r} must be a whole number of at least 1")
    heads = (problem.query_heads, problem.batch)
    parts = (problem.batch, problem.query_heads, splits)
    launches = (
        Launch(entry, (*heads, splits), (WARP_SIZE, 1, 1)),
        Launch(f"{entry}_merge", (*heads, 1), (WARP_SIZE, 1, 1)),
    )
    scratch = {"max": parts, "sum": parts, "output": (*parts, problem.head_dim)}
    return _within(device, Plan(launches, _chunk_defines(problem), scratch, {"splits": splits}))


def _chunk_defines(problem: Problem) -> dict[str, int]:
    """A lane owns one chunk of 4 dimensions in every 128."""
    _supports_head_dim(problem)
    return {"CHUNKS_PER_LANE": -(-problem.head_dim // (4 * WARP_SIZE))}


def _supports_head_dim(problem: Problem) -> None:
    if problem.head_dim % 4 or problem.head_dim > MAX_HEAD_DIM:
        raise ValueError(f"head_dim={problem.head_dim}: this stage takes multiples of 4 up to {MAX_HEAD_DIM}")


def _within(device: Device, plan: Plan) -> Plan:
    """The plan itself, or a ValueError that says which limit of the device it exceeds."""
    for launch in plan.launches:
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        if threads > device.max_threads:
            raise ValueError(
                f"{launch.entry}: {threads} threads in a block; {device.name} allows {device.max_threads}"
            )
        for axis, blocks, allowed in zip("xyz", launch.grid, device.max_grid, strict=True):
            if blocks > allowed:
                raise ValueError(
                    f"{launch.entry}: {blocks} blocks along {axis}; {device.name} allows {allowed}"
                )
        if launch.shared_bytes > device.max_shared_bytes:
            raise ValueError(
                f"{launch.entry}: {launch.shared_bytes} bytes of shared memory in a block; "
                f"{device.name} allows {device.max_shared_bytes}"
            )
    return plan
