"""Diagrams of the stages towards the roof: a ring's slots, fragments, runs of tiles, waves of blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from labs_common.chart_style import COLOURS, GREY, Chart, new_chart, styled
from labs_common.drawing import bare, box, fill, plate, tokens
from labs_common.equal_runs import linked_blocks
from labs_common.plans import WARP_SIZE, Plan
from labs_common.problem import Problem

_BANK_GROUPS = 8  # of 16 bytes, in the 128 bytes that shared memory delivers at once
_PALE = {"facecolor": "#f2f2f2", "edgecolor": "white", "linewidth": 0.6}


@styled
def ring(slots: int, tiles: int = 4) -> Chart:
    """The slots of a warp's ring while it walks over its first tiles: what is used, and what is on its way.

    Args:
        slots: of the ring.
        tiles: of keys and values, each drawn as two steps.
    """
    steps = 2 * tiles
    chart = new_chart(
        1.1 + 0.42 * slots, f"A ring of {slots} slots: one is used, {slots - 1} are on their way"
    )
    axes = chart.subplots()
    for step in range(steps):
        for slot in range(slots):
            number = step + (slot - step) % slots  # of the tile that the slot holds or waits for
            used = number == step
            box(axes, step, slot, 0.94, 0.86, fill(0) if used else {**fill(1), "alpha": 0.45})
            name = f"{'keys' if number % 2 == 0 else 'values'} {number // 2}"
            axes.text(step + 0.47, slot + 0.43, name, ha="center", va="center", fontsize=8, bbox=plate())
        axes.text(step + 0.47, slots + 0.1, f"step {step}", ha="center", va="top", fontsize=7.5, color=GREY)
    for slot in range(slots):
        axes.text(-0.1, slot + 0.43, f"slot {slot}", ha="right", va="center", fontsize=8)
    bare(axes, (-0.9, steps), (slots + 0.5, -0.15))
    chart.description = (
        f"Steps from left to right, {slots} slots from top to bottom. In step 0 slot 0 holds keys of tile 0 "
        f"and is used (blue) while the other {slots - 1} slots are being filled (orange). In each step the "
        "slot that was used before is filled with the next tile that has none yet, keys and values by turns."
    )
    return chart


def bank_group(row: int, column: int, row_chunks: int, swizzled: bool) -> int:
    """Which 16 of the 128 bytes a chunk of a tile lies in, as ``tile_chunk`` in ``page_ring.cuh`` puts it."""
    spread = next(n for n in (8, 4, 2, 1) if row_chunks % n == 0)
    moved = column ^ (row // (8 // spread) % spread if swizzled else 0)
    return (row * row_chunks + moved) % _BANK_GROUPS


@styled
def swizzle(row_chunks: int, rows: int = 8) -> Chart:
    """Where the chunks of a tile's rows lie in the banks, in plain order and swizzled.

    Args:
        row_chunks: chunks of 16 bytes in a row.
        rows: that one instruction reads a column of.
    """
    shown = min(row_chunks, 16)
    chart = new_chart(3.3, "The bank group (16 of 128 bytes) of each chunk of a tile")
    told = []
    for axes, swizzled in zip(chart.subplots(1, 2), (False, True), strict=True):
        for row in range(rows):
            for column in range(shown):
                group = bank_group(row, column, row_chunks, swizzled)
                box(axes, column, row, 0.96, 0.92, fill(0) if column == 0 else _PALE)
                axes.text(column + 0.48, row + 0.46, str(group), ha="center", va="center", fontsize=7.5,
                          bbox=plate() if column == 0 else None)  # fmt: skip
        column_groups = [bank_group(row, 0, row_chunks, swizzled) for row in range(rows)]
        most = max(column_groups.count(group) for group in column_groups)
        name = "swizzled" if swizzled else "row after row"
        turns = "one turn" if most == 1 else f"{most} turns"
        axes.set_title(f"{name}: {rows} lanes read the blue column in {turns}")
        axes.set_xlabel(
            "chunk of the row" + (f" (the first {shown} of {row_chunks})" if shown < row_chunks else "")
        )
        axes.set_ylabel("row (token)")
        axes.set_xticks(np.arange(0, shown, 2) + 0.48, [str(n) for n in range(0, shown, 2)])
        axes.set_yticks(np.arange(rows) + 0.46, [str(n) for n in range(rows)])
        axes.set_xlim(0, shown)
        axes.set_ylim(rows, 0)
        axes.grid(visible=False)
        told.append(f"{name} the first column's {rows} chunks lie in bank groups {column_groups}, {turns}")
    chart.description = f"Rows of {row_chunks} chunks. " + "; ".join(told) + "."
    return chart


@styled
def fragments(lane: int = 5) -> Chart:
    """Which lane holds which element in both products of 16 x 16 by 16 x 8, with one lane's elements marked.

    Args:
        lane: whose elements are marked, with the number of the register that each is in.
    """
    chart = new_chart(
        7.6, f"mma m16n8k16: the lane that holds each element; of lane {lane}, also its register r"
    )
    row = np.arange(16)[:, None]
    column = np.arange(16)[None]
    head = np.arange(8)[None]
    left = row % 8 * 4 + column % 8 // 2, row // 8 + column // 8 * 2
    right = row % 8 // 2 + head * 4, row // 8 + 0 * head
    sums = row % 8 * 4 + head // 2, row // 8 * 2 + head % 2
    panels = (
        ("keys", "token", "dimension", left),
        ("queries, turned", "dimension", "head", right),
        ("scores", "token", "head", sums),
        ("values, turned", "dimension", "token", left),
        ("weights", "token", "head", right),
        ("outputs", "dimension", "head", sums),
    )
    drawn = chart.subplots(2, 3, width_ratios=(2, 1.05, 1.05)).ravel()
    for axes, (name, down, across, (lanes, registers)) in zip(drawn, panels, strict=True):
        for (y, x), holder in np.ndenumerate(lanes):
            mine = holder == lane
            box(axes, x, y, 0.96, 0.92, fill(0) if mine else _PALE)
            text = f"r{registers[y, x]}" if mine else str(holder)
            axes.text(x + 0.48, y + 0.46, text, ha="center", va="center", fontsize=6.5,
                      bbox=plate() if mine else None)  # fmt: skip
        axes.set_title(name, fontsize=8.5)
        axes.set_xlabel(across, fontsize=7.5)
        axes.set_ylabel(down, fontsize=7.5)
        axes.set_xticks(np.arange(lanes.shape[1]) + 0.48, [str(n) for n in range(lanes.shape[1])])
        axes.set_yticks(np.arange(lanes.shape[0]) + 0.46, [str(n) for n in range(lanes.shape[0])])
        axes.tick_params(labelsize=6.5, length=0)
        axes.set_xlim(0, lanes.shape[1])
        axes.set_ylim(lanes.shape[0], 0)
        axes.grid(visible=False)
    token, pair = lane // 4, lane % 4 * 2
    chart.description = (
        f"Lane {lane} holds, of the keys, tokens {token} and {token + 8} in dimensions {pair}, {pair + 1} "
        f"(registers 0 and 1) and {pair + 8}, {pair + 9} (registers 2 and 3); of the queries, head {token} "
        f"in dimensions {pair}, {pair + 1} (register 0) and {pair + 8}, {pair + 9} (register 1); and of the "
        f"scores those of token {token} for heads {pair} and {pair + 1} (registers 0 and 1) and of token "
        f"{token + 8} for the same (2 and 3). The second product has the same layouts: values with "
        "dimensions for rows and tokens for columns, weights with tokens for rows, outputs with dimensions "
        "for rows."
    )
    return chart


@styled
def turned_fp8(lane: int = 5) -> Chart:
    """What a lane gets in one register of fp8 values, turned as they are loaded, and what a product wants.

    Args:
        lane: whose register is drawn; one matrix has 8 tokens by 8 pairs of dimensions.
    """
    row, pair = lane // 4, lane % 4 * 2
    loaded = [(pair + byte // 2, 2 * row + byte % 2) for byte in range(4)]  # token, dimension
    wanted = sorted(loaded, key=lambda element: (element[1] % 2, element[0]))
    chart = new_chart(2.5, f"One register of lane {lane}: four fp8 values, the lowest byte on the left")
    axes = chart.subplots()
    for y, (name, elements) in enumerate((("as loaded", loaded), ("two products want", wanted))):
        axes.text(-0.1, 1.4 * y + 0.45, name, ha="right", va="center", fontsize=8.5)
        for x, (token, dimension) in enumerate(elements):
            box(axes, x, 1.4 * y, 0.96, 0.9, {**fill(dimension % 2), "alpha": 0.45})
            text = f"token {token}\ndimension {dimension}"
            axes.text(x + 0.48, 1.4 * y + 0.45, text, ha="center", va="center", fontsize=8, bbox=plate())
    bare(axes, (-1.2, 4.1), (2.5, -0.15))

    def told(elements: Sequence[tuple[int, int]]) -> str:
        return ", ".join(f"token {token} in dimension {dimension}" for token, dimension in elements)

    chart.description = (
        f"From the lowest byte on, lane {lane} gets {told(loaded)}. A product wants two tokens of one "
        f"dimension side by side, once widened: {told(wanted)}."
    )
    return chart


@styled
def runs(problem: Problem, plan: Plan) -> Chart:
    """The contexts of a batch, cut into the runs of tiles that blocks attend to; one head group is drawn.

    Args:
        problem: whose contexts are drawn to scale.
        plan: of stage 08 or 09.
    """
    segments, block_of = plan.tables["segments"], segment_blocks(plan)
    blocks = plan.launches[0].grid[0]
    chart = new_chart(1.2 + 0.38 * problem.batch, f"{blocks} blocks, each with an equal run of tiles")
    axes = chart.subplots()
    longest = max(1, *problem.context_lengths)
    pieces = 0
    for segment, block in zip(segments, block_of, strict=True):
        sequence, start, end, group = (int(value) for value in segment[:4])
        if group:
            continue
        pieces += 1
        left, width = 60 * start / longest, 60 * (end - start) / longest
        box(axes, left, sequence, width, 0.62, fill(int(block) % len(COLOURS)))
        wide = width > 2.2  # a number has no room in less, and stands below
        axes.text(
            left + width / 2,
            sequence + (0.31 if wide else 0.66),
            str(block),
            ha="center",
            va="center" if wide else "top",
            fontsize=7 if wide else 6.5,
            bbox=plate() if wide else None,
        )
    for row, length in enumerate(problem.context_lengths):
        axes.text(-0.6, row + 0.31, tokens(length), ha="right", va="center", fontsize=8)
    axes.set_title("the number is the block's; colours repeat")
    bare(axes, (-8, 61), (problem.batch, -0.2))
    loads = tokens_of_blocks(problem, plan)
    chart.description = (
        f"{problem.batch} contexts of {', '.join(map(str, problem.context_lengths))} tokens, cut into "
        f"{pieces} pieces for head group 0; {len(loads)} blocks have between {min(loads):,} and "
        f"{max(loads):,} tokens times heads each."
    )
    return chart


def segment_blocks(plan: Plan) -> np.ndarray:
    """The block of each segment of a plan of stage 08 or 09."""
    segments, blocks = plan.tables["segments"], plan.launches[0].grid[0]
    if "block_segments" in plan.tables:
        return np.repeat(np.arange(blocks), np.diff(plan.tables["block_segments"]))
    block_of = np.empty(len(segments), int)
    for block, mine in enumerate(linked_blocks(segments, blocks)):
        block_of[mine] = block
    return block_of


def tokens_of_blocks(problem: Problem, plan: Plan) -> list[int]:
    """Tokens that each block of the first launch attends to, each counted once for every key/value head.

    Args:
        problem: what is computed.
        plan: of stage 05 or a later one.
    """
    if "segments" in plan.tables:
        lengths = np.diff(plan.tables["segments"][:, 1:3]).ravel() * int(plan.defines["BLOCK_HEADS"])
        return np.bincount(segment_blocks(plan), lengths, plan.launches[0].grid[0]).astype(int).tolist()
    size = int(plan.defines["PARTITION_TOKENS"])
    return [
        min(size, max(0, length - part * size))
        for part in range(plan.numbers["partitions"])
        for length in problem.context_lengths
        for _ in range(problem.kv_heads)
    ]


def partial_bytes(problem: Problem, plan: Plan) -> int:
    """Bytes of partial results that blocks write and a merge reads again.

    Args:
        problem: what is computed.
        plan: of stage 05 or a later one.
    """
    if "segments" in plan.tables:
        cut = plan.tables["segments"][plan.tables["segments"][:, 5] > 1]
        heads = -(-problem.group_size // -(-problem.group_size // 8))
        rows = len(cut) * int(plan.defines["BLOCK_HEADS"]) * heads
    else:
        size = int(plan.defines["PARTITION_TOKENS"])
        rows = problem.query_heads * sum(-(-length // size) for length in problem.context_lengths)
    return 2 * 4 * rows * (problem.head_dim + 2)


def dealt(loads: Sequence[int], resident: int) -> np.ndarray:
    """What each place on the GPU gets where blocks start in order, each at the place that is free first.

    Args:
        loads: of the blocks.
        resident: blocks that are on the GPU at a time.
    """
    places = np.zeros(resident)
    for load in loads:
        places[places.argmin()] += load
    return places


@styled
def block_loads(loads: Mapping[str, Sequence[int]], resident: int) -> Chart:
    """How much each multiprocessor gets to do where blocks are dealt out in order, a panel for each plan.

    Args:
        loads: tokens of each block, by the name of the plan; as of ``tokens_of_blocks``.
        resident: blocks that are on the GPU at a time.
    """
    chart = new_chart(1.1 + 1.15 * len(loads), f"Tokens that go through each of {resident} places on the GPU")
    told = []
    for axes, (name, blocks) in zip(np.atleast_1d(chart.subplots(len(loads), 1)), loads.items(), strict=True):
        places = np.sort(dealt(blocks, resident))[::-1]
        axes.bar(np.arange(resident), places, width=1.0, color=COLOURS[0], edgecolor="white", linewidth=0.3)
        axes.axhline(places.mean(), color=COLOURS[1], linewidth=1.2)
        share = 100 * places.mean() / places.max()
        axes.set_title(f"{name}: {len(blocks):,} blocks; the mean (line) is {share:.0f} % of the longest")
        axes.set_xlim(-0.5, resident - 0.5)
        axes.set_ylabel("tokens")
        told.append(
            f"{name}, {len(blocks)} blocks: longest {places.max():,.0f}, mean {places.mean():,.0f} "
            f"({share:.0f} %)"
        )
    axes.set_xlabel("places on the GPU, the longest first")
    chart.description = "Tokens times key/value heads per place. " + "; ".join(told) + "."
    return chart


@styled
def waves(resident: int, most: int) -> Chart:
    """The share of the GPU that equal blocks keep busy, by how many there are.

    Args:
        resident: blocks that are on the GPU at a time.
        most: blocks up to which it is drawn.
    """
    chart = new_chart(2.8, f"Equal blocks on {resident} places: how much of the GPU works, on average")
    axes = chart.subplots()
    counts = np.arange(1, most + 1)
    busy = 100 * counts / (-(-counts // resident) * resident)
    axes.plot(counts, busy, color=COLOURS[0], linewidth=1.4)
    for whole in range(resident, most + 1, resident):
        axes.annotate(f"{whole}", (whole, 100), (0, 4), textcoords="offset points", ha="center", fontsize=8)
    axes.set_ylim(0, 112)
    axes.set_xlabel("blocks")
    axes.set_ylabel("% of the places")
    one_more = 100 * (resident + 1) / (2 * resident)
    chart.description = (
        f"A saw: 100 % at {resident} blocks and each multiple of it; one block more, {resident + 1}, needs a "
        f"second wave and falls to {one_more:.0f} %. The teeth get smaller with every wave."
    )
    return chart


def copied_bytes(plan: Plan) -> int:
    """Bytes that a block with rings can have on their way: every slot of its warps but the one in use."""
    slots = int(plan.defines["RING_SLOTS"])
    return ring_bytes(plan) * (slots - 1) // slots


def ring_bytes(plan: Plan) -> int:
    """Bytes of shared memory that the rings of a block take."""
    element = {"half": 2, "__nv_bfloat16": 2}.get(str(plan.defines.get("ELEMENT")), 4)
    if "CACHE_ELEMENT" in plan.defines:
        element = 1
    tile = int(plan.defines["TILE_TOKENS"]) * int(plan.defines["HEAD_DIM"]) * element
    return plan.launches[0].block[0] // WARP_SIZE * int(plan.defines["RING_SLOTS"]) * tile
