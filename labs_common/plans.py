"""How a stage is launched on a problem: grids, blocks, shared memory, and scratch that launches share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from labs_common.layouts import chunk_elements
from labs_common.problem import Problem

WARP_SIZE = 32
MAX_HEAD_DIM = 256
TOKENS_PER_SPLIT = 256
PARTITION_TOKENS = 512
MAX_GROUP_SIZE = 16  # of stage 05: two sets of 8 query heads, each in the registers of one warp
SHARED_WITHOUT_OPT_IN = 48 * 1024


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
        numbers: arguments by name; whole numbers are int32 and others float32.
        counters: int32 arrays by name, each with its shape; zeros, and zeros again after every call. Their
            pointers follow those of the scratch arrays.
    """

    launches: tuple[Launch, ...]
    defines: Mapping[str, int | str] = field(default_factory=dict)
    scratch: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    numbers: Mapping[str, int | float] = field(default_factory=dict)
    counters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


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


def plan_partitioned_gqa(
    entry: str, problem: Problem, device: Device, partition_tokens: int = PARTITION_TOKENS
) -> Plan:
    """A block of 4 warps per key/value head, sequence and partition of the context; then a merge (05).

    A block takes at most 48 KB of shared memory: a tile of keys, one of values, and the partition's pages.

    Args:
        partition_tokens: of the context that a block attends to, a multiple of 32.
    """
    warps, merge_rows = 4, 8  # as the kernel file has them
    chunk = chunk_elements(problem)
    if problem.head_dim % chunk or problem.head_dim > MAX_HEAD_DIM:
        raise ValueError(
            f"head_dim={problem.head_dim}: this stage takes multiples of {chunk} up to {MAX_HEAD_DIM} "
            f"in {problem.dtype}"
        )
    if problem.group_size > MAX_GROUP_SIZE:
        raise ValueError(
            f"query_heads={problem.query_heads} over kv_heads={problem.kv_heads}: this stage takes groups "
            f"of up to {MAX_GROUP_SIZE} query heads"
        )
    if problem.layout == "packed" and problem.page_size % chunk:
        raise ValueError(
            f"page_size={problem.page_size}: this stage takes multiples of {chunk} "
            f"in the packed layout and {problem.dtype}"
        )
    bad = isinstance(partition_tokens, bool) or not isinstance(partition_tokens, int) or partition_tokens < 1
    if bad or partition_tokens % 32:
        raise ValueError(f"partition_tokens={partition_tokens!r} must be a positive multiple of 32")
    pages = (partition_tokens + problem.page_size - 2) // problem.page_size + 1
    static_bytes = 4 * pages + 8 * warps * min(problem.group_size, 8)
    token_bytes = 2 * problem.head_dim * problem.itemsize
    tile_tokens = 32 if 32 * token_bytes + static_bytes <= SHARED_WITHOUT_OPT_IN else 16
    if tile_tokens * token_bytes + static_bytes > SHARED_WITHOUT_OPT_IN:
        raise ValueError(
            f"partition_tokens={partition_tokens}: the table of its {pages} pages does not fit into "
            f"{SHARED_WITHOUT_OPT_IN} bytes of shared memory beside the tiles"
        )
    partitions = max(1, -(-max(problem.context_lengths, default=0) // partition_tokens))
    launches = (
        Launch(
            entry,
            (problem.kv_heads, problem.batch, partitions),
            (warps * WARP_SIZE, 1, 1),
            tile_tokens * token_bytes,
        ),
        Launch(
            f"{entry}_merge",
            (problem.query_heads, problem.batch, 1),
            (problem.head_dim // 4, merge_rows, 1),
        ),
    )
    defines = {
        "HEAD_DIM": problem.head_dim,
        "GROUP_SIZE": problem.group_size,
        "PAGE_SIZE": problem.page_size,
        "LAYOUT": problem.layout.upper(),
        "TILE_TOKENS": tile_tokens,
        "PARTITION_TOKENS": partition_tokens,
    }
    if problem.dtype == "float16":
        defines["ELEMENT"] = "half"
    parts = (problem.batch, problem.query_heads, partitions)
    scratch = {"part": (*parts, 2), "values": (*parts, problem.head_dim)}
    return _within(device, Plan(launches, defines, scratch, {"partitions": partitions}))


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
