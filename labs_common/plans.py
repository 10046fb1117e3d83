"""How a stage is launched on a problem: grids, blocks, shared memory, and scratch that launches share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from labs_common.equal_runs import Runs, equal_runs, whole_sequences
from labs_common.layouts import chunk_elements
from labs_common.problem import FP8, Problem
from labs_common.roof_choice import H200, Choice, Costs, choices
from labs_common.roof_code import sets_and_heads
from labs_common.roof_work import RING_SLOTS

WARP_SIZE = 32
MAX_HEAD_DIM = 256
TOKENS_PER_SPLIT = 256
PARTITION_TOKENS = 512
MAX_GROUP_SIZE = 16  # of stage 05: two sets of 8 query heads, each in the registers of one warp
SHARED_WITHOUT_OPT_IN = 48 * 1024
RING_WARPS = 8  # of a block, each with a ring
RING_BYTES = 128 * 1024  # of a multiprocessor's shared memory for the rings of stage 06 on


@dataclass(frozen=True)
class Device:
    """The limits that a launch must keep; the defaults are those of the recorded GPU, an H200.

    Attributes:
        name: of the GPU.
        compute_capability: major and minor.
        max_threads: threads in a block.
        max_grid: blocks along x, y and z.
        max_shared_bytes: shared memory a block may opt in to.
        multiprocessors: of the GPU.
    """

    name: str = "NVIDIA H200"
    compute_capability: tuple[int, int] = (9, 0)
    max_threads: int = 1024
    max_grid: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    max_shared_bytes: int = 232_448
    multiprocessors: int = 132

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
        early: may begin before the launch before it has ended, for which its code waits where it needs it
            (programmatic dependent launch).
    """

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    early: bool = False


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
        tables: int32 arrays by name that the host works out for these context lengths; their pointers follow.
    """

    launches: tuple[Launch, ...]
    defines: Mapping[str, int | str] = field(default_factory=dict)
    scratch: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    numbers: Mapping[str, int | float] = field(default_factory=dict)
    counters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    tables: Mapping[str, np.ndarray] = field(default_factory=dict)


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


def plan_async_ring(
    entry: str,
    problem: Problem,
    device: Device,
    partition_tokens: int = PARTITION_TOKENS,
    ring_slots: int | None = None,
) -> Plan:
    """A block of 8 warps, each with a ring of tiles, per head, sequence and partition; then a merge (06).

    Args:
        partition_tokens: of the context that a block attends to, a multiple of 32.
        ring_slots: tiles that a warp has in flight or in use; by default what ``RING_BYTES`` hold.
    """
    warps, merge_rows = RING_WARPS, 8  # as the kernel file has them
    _supports_ring(problem, device)
    bad = isinstance(partition_tokens, bool) or not isinstance(partition_tokens, int) or partition_tokens < 1
    if bad or partition_tokens % 32:
        raise ValueError(f"partition_tokens={partition_tokens!r} must be a positive multiple of 32")
    defines, tile_bytes = _ring_defines(problem, warps, ring_slots)
    values_bytes = 4 * warps * sets_and_heads(problem)[1] * problem.head_dim
    partitions = max(1, -(-max(problem.context_lengths, default=0) // partition_tokens))
    launches = (
        Launch(
            entry,
            (problem.kv_heads, problem.batch, partitions),
            (warps * WARP_SIZE, 1, 1),
            max(warps * defines["RING_SLOTS"] * tile_bytes, values_bytes),
        ),
        Launch(
            f"{entry}_merge",
            (problem.query_heads, problem.batch, 1),
            (problem.head_dim // 4, merge_rows, 1),
        ),
    )
    parts = (problem.batch, problem.query_heads, partitions)
    scratch = {"part": (*parts, 2), "values": (*parts, problem.head_dim)}
    defines["PARTITION_TOKENS"] = partition_tokens
    return _within(device, Plan(launches, defines, scratch, {"partitions": partitions}))


def plan_tensor_core(
    entry: str,
    problem: Problem,
    device: Device,
    partition_tokens: int = PARTITION_TOKENS,
    ring_slots: int | None = None,
) -> Plan:
    """As stage 06, whose launches these are; the merge also scales fp8 values (07)."""
    plan = plan_async_ring(entry, problem, device, partition_tokens, ring_slots)
    numbers = {**plan.numbers, "value_scale": float(problem.value_scale)}
    defines = {**plan.defines, "MMA_TYPE": "bf16" if problem.dtype == "bfloat16" else "f16"}
    return dataclasses.replace(plan, numbers=numbers, defines=defines)


def plan_balanced(
    entry: str,
    problem: Problem,
    device: Device,
    blocks: int | None = None,
    block_heads: int | None = None,
    ring_slots: int | None = None,
) -> Plan:
    """Blocks of 8 warps with equal runs of tiles, cut on the host; then a merge of what was cut (08).

    Args:
        blocks: that share the work, by default one a multiprocessor.
        block_heads: sets of up to 8 query heads that share a block's pages: 1, 2, 4 or 8, and a divisor of
            their number; by default the most.
        ring_slots: tiles that a warp has in flight or in use; by default what ``RING_BYTES`` hold.
    """
    _supports_ring(problem, device)
    groups, block_heads = _head_groups(problem, block_heads)
    runs = _equal_runs(problem, groups, block_heads, _at_least_1("blocks", blocks, device.multiprocessors))
    merge_rows = 8  # as the kernel file has them
    merge = Launch(
        f"{entry}_merge", (problem.query_heads, problem.batch, 1), (problem.head_dim // 4, merge_rows, 1)
    )
    tables = {"segments": runs.segments, "block_segments": runs.block_segments, "pieces": runs.pieces}
    plan = _planned(entry, problem, runs, block_heads, ring_slots, tables)
    return _within(device, dataclasses.replace(plan, launches=(*plan.launches, merge)))


def plan_memory_roof(
    entry: str,
    problem: Problem,
    device: Device,
    blocks: int | None = None,
    block_heads: int | None = None,
    ring_slots: int | None = None,
    evict_first: bool = True,
    whole: bool | None = None,
    segment_tiles: int | None = None,
    merge_rows: int | None = None,
) -> Plan:
    """As stage 08, with a merge of nothing but what was cut, or of nothing (09).

    What is not given is chosen by cost, see ``roof_choice``.

    Args:
        blocks: that share the work of equal runs, by default one to three a multiprocessor. With a number,
            runs are equal unless ``whole`` says otherwise.
        block_heads: as for stage 08.
        ring_slots: as for stage 08.
        evict_first: let L2 drop keys and values first, which nobody reads twice; by default it does.
        whole: a block for every sequence and head group in place of equal runs.
        segment_tiles: tiles that a segment is worth beside its own, where equal runs are cut.
        merge_rows: threads that share a column in the merge, by default one for every four pieces.
    """
    _supports_ring(problem, device)
    if block_heads is not None:
        _head_groups(problem, block_heads)
    asked: dict[str, object] = {"whole": whole, "block_heads": block_heads, "ring_slots": ring_slots}
    if blocks is not None:
        asked["whole"] = bool(whole)
        asked["runs"] = _at_least_1("blocks", blocks, 1) / device.multiprocessors
    elif ring_slots is not None and ring_slots > max(RING_SLOTS):
        asked["runs"] = 1  # of so long rings nobody counted whether two fit
    asked = {name: value for name, value in asked.items() if value is not None}
    ways = ways_by_cost(problem, device)
    # The cheapest of the ways that are nearest to what is asked for, one thing after the other in this order.
    best = min(ways, key=lambda way: [getattr(way, name) != value for name, value in asked.items()])
    given = {name: value for name, value in asked.items() if name != "runs"}
    best = dataclasses.replace(best, **given)
    groups, block_heads = _head_groups(problem, best.block_heads)
    if best.whole:
        runs = whole_sequences(problem.context_lengths, groups)
    else:
        blocks = _at_least_1("blocks", blocks, max(1, best.runs) * device.multiprocessors)
        worth = best.segment_tiles if segment_tiles is None else segment_tiles
        runs = _equal_runs(problem, groups, block_heads, blocks, worth)
    fours = max(1, int(runs.pieces[:, 1].max(initial=1)) // 4)
    power_of_two = 1 << (fours - 1).bit_length()
    merge_rows = _at_least_1("merge_rows", merge_rows, min(8, power_of_two))
    merges = runs.merges(groups)
    table = merges if len(merges) else np.zeros((1, 4), np.int32)  # an array needs something in it
    tables = {"segments": runs.linked(), "merges": table}
    plan = _planned(entry, problem, runs, block_heads, best.ring_slots, tables)
    defines = {**plan.defines, "EVICT_FIRST": int(evict_first), "MERGE_ROWS": merge_rows}
    launches = plan.launches if problem.batch else ()  # else the segment without a token has no output
    if len(merges):
        rows = block_heads * sets_and_heads(problem)[1]
        early = device.compute_capability >= (9, 0)
        block = (problem.head_dim // 4, merge_rows, 1)
        launches += (Launch(f"{entry}_merge", (rows, len(merges), 1), block, early=early),)
    return _within(device, dataclasses.replace(plan, launches=launches, defines=defines))


def ways_by_cost(problem: Problem, device: Device, costs: Costs = H200) -> list[Choice]:
    """All that stage 09 may do with a problem, the cheapest first, see ``roof_choice``."""
    return choices(*way_arguments(problem, device), costs)


def way_arguments(problem: Problem, device: Device) -> tuple[Problem, int, int, int, int]:
    """Of ``roof_work.ways`` and ``roof_choice.choices``, for stage 09 on a device."""
    sizes = device.multiprocessors, device.max_shared_bytes, RING_WARPS, ring_tile_tokens(problem)
    return problem, *sizes


def way_options(choice: Choice, device: Device) -> dict[str, object]:
    """What makes ``plan_memory_roof`` take a way, also for other context lengths."""
    way = {"whole": choice.whole, "block_heads": choice.block_heads, "ring_slots": choice.ring_slots}
    return way if choice.whole else {**way, "blocks": choice.runs * device.multiprocessors}


def _at_least_1(name: str, value: int | None, default: int) -> int:
    """The value or its default; ValueError where it is no number of something."""
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r} must be a whole number of at least 1")
    return value


def most_block_heads(problem: Problem) -> int:
    """Sets of up to 8 query heads that can share a block of stages 08 and 09: the most of 1, 2, 4 or 8."""
    sets = problem.kv_heads * sets_and_heads(problem)[0]
    return next(heads for heads in (8, 4, 2, 1) if sets % heads == 0)


def _head_groups(problem: Problem, block_heads: int | None) -> tuple[int, int]:
    """Groups of sets of heads that a block attends for, and the sets in one."""
    sets = problem.kv_heads * sets_and_heads(problem)[0]
    if block_heads is None:
        block_heads = most_block_heads(problem)
    if type(block_heads) is not int or block_heads not in (1, 2, 4, 8) or sets % block_heads:
        raise ValueError(
            f"block_heads={block_heads!r} must be 1, 2, 4 or 8 and divide the {sets} sets of heads"
        )
    return sets // block_heads, block_heads


def _equal_runs(problem: Problem, groups: int, block_heads: int, blocks: int, segment_tiles: int = 0) -> Runs:
    rows, tile_tokens = block_heads * sets_and_heads(problem)[1], ring_tile_tokens(problem)
    return equal_runs(problem.context_lengths, groups, blocks, tile_tokens, rows, segment_tiles)


def _planned(
    entry: str,
    problem: Problem,
    runs: Runs,
    block_heads: int,
    ring_slots: int | None,
    tables: dict[str, np.ndarray],
) -> Plan:
    """The attention of stages 08 and 09; what merges it is theirs."""
    defines, tile_bytes = _ring_defines(problem, RING_WARPS, ring_slots)
    defines["BLOCK_HEADS"] = block_heads
    if problem.dtype != "float32":
        defines["MMA_TYPE"] = "bf16" if problem.dtype == "bfloat16" else "f16"
    value_bytes = 4 * sets_and_heads(problem)[1] * problem.head_dim
    shared_bytes = RING_WARPS * (int(defines["RING_SLOTS"]) * tile_bytes + value_bytes)
    grid = (len(runs.block_segments) - 1, 1, 1)
    return Plan(
        (Launch(entry, grid, (RING_WARPS * WARP_SIZE, 1, 1), shared_bytes),),
        defines,
        {"part": (max(1, runs.partials), 2), "values": (max(1, runs.partials), problem.head_dim)},
        {"value_scale": float(problem.value_scale)},
        tables=tables,
    )


def _supports_ring(problem: Problem, device: Device) -> None:
    """What stages with a ring of tiles take; ValueError for anything else."""
    if device.compute_capability < (8, 0):
        raise ValueError(f"{device.name}: this stage copies asynchronously, from compute capability 8.0 on")
    if problem.dtype == FP8 and device.compute_capability < (8, 9):
        raise ValueError(f"{device.name}: fp8 is converted from compute capability 8.9 on")
    if problem.head_dim % 32 or problem.head_dim > MAX_HEAD_DIM:
        raise ValueError(
            f"head_dim={problem.head_dim}: this stage takes multiples of 32 up to {MAX_HEAD_DIM}"
        )
    if problem.group_size > MAX_GROUP_SIZE:
        raise ValueError(
            f"query_heads={problem.query_heads} over kv_heads={problem.kv_heads}: this stage takes groups "
            f"of up to {MAX_GROUP_SIZE} query heads"
        )
    if problem.page_size != 8 and problem.page_size % 16:
        raise ValueError(f"page_size={problem.page_size}: this stage takes 8 and multiples of 16")


def ring_tile_tokens(problem: Problem) -> int:
    """Rows of a ring's tile: those of a matrix for tensor cores, or what lanes hold in fp32."""
    return 8 if problem.dtype == "float32" else 16


def _ring_defines(problem: Problem, warps: int, ring_slots: int | None) -> tuple[dict[str, int | str], int]:
    """The macros of ``page_ring.cuh``, and the bytes of a tile."""
    tile_tokens = ring_tile_tokens(problem)
    tile_bytes = tile_tokens * problem.head_dim * problem.itemsize
    if ring_slots is None:
        ring_slots = min(4, max(2, RING_BYTES // (warps * tile_bytes)))
    if isinstance(ring_slots, bool) or not isinstance(ring_slots, int) or ring_slots < 2:
        raise ValueError(f"ring_slots={ring_slots!r} must be a whole number of at least 2")
    defines: dict[str, int | str] = {
        "HEAD_DIM": problem.head_dim,
        "GROUP_SIZE": problem.group_size,
        "KV_HEADS": problem.kv_heads,
        "PAGE_SIZE": problem.page_size,
        "LAYOUT": problem.layout.upper(),
        "TILE_TOKENS": tile_tokens,
        "RING_SLOTS": ring_slots,
    }
    if problem.query_dtype != "float32":
        defines["ELEMENT"] = {"float16": "half", "bfloat16": "__nv_bfloat16"}[problem.query_dtype]
    if problem.dtype == FP8:
        defines["CACHE_ELEMENT"] = "unsigned char"
    return defines, tile_bytes


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
