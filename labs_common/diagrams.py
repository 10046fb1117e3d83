"""Diagrams drawn from a real problem: pages and caches to scale, who owns what, reductions, staging, splits.

Like charts, each is a `Chart` with its description in words; colour always comes with a hatch or a label.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from labs_common.chart_style import COLOURS, GREY, Chart, new_chart, styled
from labs_common.drawing import arrow, bare, box, fill, plate, tokens, wrapped
from labs_common.inputs import Inputs
from labs_common.layouts import chunk_elements
from labs_common.partitioned_warp import row_lanes
from labs_common.plans import WARP_SIZE, Device, Plan
from labs_common.problem import FP8, Problem
from labs_common.stages import Stage

SECTOR_BYTES = 32  # what the memory system moves at least
VECTOR_BYTES = 16  # one lane's widest load
_EMPTY = "#f2f2f2"
_MOST_BLOCKS = (32, 8)  # blocks drawn along x and y; more are told in words


@styled
def page_table(problem: Problem, inputs: Inputs) -> Chart:
    """The block table of each sequence, and the pool of physical pages that it points into.

    Every page is drawn with its slots; a filled slot holds a token. A page that two sequences share has both
    colours.

    Raises:
        ValueError: more sequences than the palette tells apart.
    """
    if problem.batch > len(COLOURS):
        raise ValueError(f"batch={problem.batch}: at most {len(COLOURS)} sequences can be told apart")
    pages = inputs.key_cache.shape[0]
    owners: dict[int, list[int]] = {}
    filled: dict[int, int] = {}
    for row, length in enumerate(problem.context_lengths):
        for column in range(problem.pages_per_sequence[row]):
            page = int(inputs.block_tables[row, column])
            owners.setdefault(page, []).append(row)
            filled[page] = min(problem.page_size, length - column * problem.page_size)

    chart = new_chart(
        1.6 + 0.42 * problem.batch + 1.1, "One block table row per sequence, one pool of pages for all"
    )
    tables, pool = chart.subplots(2, 1, height_ratios=(problem.batch, 2.2))
    wide = max(problem.max_pages, 1)
    for row, length in enumerate(problem.context_lengths):
        for column in range(wide):
            used = column < problem.pages_per_sequence[row]
            page = int(inputs.block_tables[row, column]) if used else None
            box(
                tables,
                column,
                row,
                0.94,
                0.8,
                fill(row) if used else {"facecolor": _EMPTY, "edgecolor": "#cccccc"},
            )
            text = f"page {page}" if used else "unused"
            tables.text(
                column + 0.47, row + 0.4, text, ha="center", va="center", fontsize=8,
                color="black" if used else GREY, bbox=plate() if used else None,
            )  # fmt: skip
        tables.text(
            -0.1, row + 0.4, f"sequence {row}: {tokens(length)}", ha="right", va="center", fontsize=8.5
        )
    tables.set_title(
        f"block_tables: logical page (column) to physical page; {problem.page_size} tokens a page"
    )
    bare(tables, (-1.5, wide), (problem.batch, -0.1))

    slot = 0.9 / problem.page_size
    for page in range(pages):
        who = owners.get(page, [])
        for s in range(problem.page_size):
            if s < filled.get(page, 0):
                style = fill(who[s * len(who) // problem.page_size])
                style["linewidth"] = 0.4
            else:
                style = {"facecolor": _EMPTY, "edgecolor": "#cccccc", "linewidth": 0.4}
            box(pool, page + s * slot, 0, slot, 0.9, style)
        owner = "and ".join(f"seq. {row} " for row in who).strip() or "free"
        pool.text(page + 0.45, -0.12, str(page), ha="center", va="bottom", fontsize=8)
        pool.text(
            page + 0.45, 1.0, owner.replace(" and", "\nand"), ha="center", va="top", fontsize=6.5, color=GREY
        )
    pool.set_title("the pool: physical pages with their token slots, grey where no token is")
    bare(pool, (-0.1, pages), (1.5, -0.4))
    lines = [
        f"sequence {row} ({tokens(length)}) uses physical pages "
        + (
            ", ".join(str(inputs.block_tables[row, c]) for c in range(problem.pages_per_sequence[row]))
            or "none"
        )
        for row, length in enumerate(problem.context_lengths)
    ]
    shared = [
        f"page {page} is shared by sequences {who[0]} and {who[1]}"
        for page, who in owners.items()
        if len(who) > 1
    ]
    chart.description = f"Block tables over a pool of {pages} pages: " + "; ".join(lines + shared) + "."
    return chart


@styled
def cache_layout(problem: Problem) -> Chart:
    """One physical page of the key cache (NHD) to scale, and one head's row cut into sectors and lanes.

    Raises:
        ValueError: another layout than NHD.
    """
    if problem.layout != "NHD":
        raise ValueError(f"layout={problem.layout!r}: this diagram draws NHD")
    head_bytes = problem.head_dim * problem.itemsize
    chart = new_chart(4.3, "One page of the key cache, to scale (the value cache is the same)")
    page, row = chart.subplots(2, 1, height_ratios=(2.4, 1))
    chosen_slot, chosen_head = problem.page_size // 2, min(1, problem.kv_heads - 1)
    for slot in range(problem.page_size):
        for head in range(problem.kv_heads):
            chosen = slot == chosen_slot and head == chosen_head
            style = (
                fill(0)
                if chosen
                else {"facecolor": "#dbe9f4" if head % 2 else "#eef4f9", "edgecolor": "white"}
            )
            box(page, head * head_bytes, slot, head_bytes, 1, style)
    page.set_xlim(0, problem.kv_heads * head_bytes)
    page.set_ylim(problem.page_size, 0)
    page.set_xticks(
        [(head + 0.5) * head_bytes for head in range(problem.kv_heads)],
        [f"kv head {head}\n{head_bytes} bytes" for head in range(problem.kv_heads)],
        fontsize=7 if problem.kv_heads > 4 else 8,
    )
    page.set_yticks(
        [slot + 0.5 for slot in range(problem.page_size)], [str(slot) for slot in range(problem.page_size)]
    )
    page.tick_params(length=0, labelsize=7)
    page.grid(visible=False)
    page.set_ylabel("token slot of the page")
    page_bytes = head_bytes * problem.kv_heads * problem.page_size
    page.set_title(
        f"[page_size {problem.page_size}, kv_heads {problem.kv_heads}, head_dim {problem.head_dim}] "
        f"{problem.dtype}: {page_bytes:,} bytes, row after row"
    )

    sectors, lanes = head_bytes // SECTOR_BYTES, head_bytes // VECTOR_BYTES
    for sector in range(sectors):
        box(
            row,
            sector * SECTOR_BYTES,
            0,
            SECTOR_BYTES,
            0.8,
            fill(0) if sector % 2 else {"facecolor": "#7fb7dc", "edgecolor": "white"},
        )
    for lane in range(lanes):
        box(
            row,
            lane * VECTOR_BYTES,
            1.0,
            VECTOR_BYTES,
            0.8,
            {"facecolor": "#fff2d9" if lane % 2 else "#fbdca5", "edgecolor": "white"},
        )
        if lanes <= 32:
            row.text(
                (lane + 0.5) * VECTOR_BYTES, 1.4, str(lane % WARP_SIZE), ha="center", va="center", fontsize=7
            )
    row.set_title(
        f"the blue row, one key: {sectors} sectors of {SECTOR_BYTES} bytes (above), "
        f"or {lanes} lanes of {VECTOR_BYTES} bytes (below, by number)"
    )
    bare(row, (0, head_bytes), (1.9, -0.1))
    chart.description = (
        f"A page of {page_bytes} bytes: {problem.page_size} token slots as rows, in each the "
        f"{problem.kv_heads} kv heads side by side, {head_bytes} bytes a head. One head's row is {sectors} "
        f"memory sectors of {SECTOR_BYTES} bytes, which {lanes} lanes read with {VECTOR_BYTES} bytes each."
    )
    return chart


@styled
def ownership(stage: Stage, problem: Problem, device: Device | None = None) -> Chart:
    """Who owns what in a stage's first launch: its grid, one block of it, one thread of that block.

    Words come from the header of the stage's kernel file, numbers from its plan for this problem.
    """
    plan = stage.plan(problem, device)
    launch, header = plan.launches[0], header_fields(stage)
    warps = -(-launch.block[0] // WARP_SIZE)
    chart = new_chart(4.6, f"{stage.id}: who owns what")
    grid, block, thread = chart.subplots(3, 1, height_ratios=(2.2, 1.0, 0.8))

    across, down, deep = launch.grid
    shown_x, shown_y = min(across, _MOST_BLOCKS[0]), min(down, _MOST_BLOCKS[1])
    for y in range(shown_y):
        for x in range(shown_x):
            box(
                grid,
                x,
                y,
                0.9,
                0.86,
                fill(0) if (x, y) == (0, 0) else {"facecolor": "#dbe9f4", "edgecolor": "white"},
            )
    drawn = f"{shown_x} x {shown_y}" if down > 1 else f"{shown_x}"
    more = "" if (shown_x, shown_y) == (across, down) else f", {drawn} of them drawn"
    layers = f"; {deep} such layers along z" if deep > 1 else ""
    blocks = across * down * deep
    counted = f"{blocks:,} block" if blocks == 1 else f"{blocks:,} blocks"
    (names, *merge_grid), (threads, *merge_block) = (header[of].split("; ") for of in ("grid", "block"))
    sides = [str(n) for n in launch.grid[: names.count(",") + 1]]  # along a single one nothing is multiplied
    sized = f"{' x '.join(sides)} = {counted}" if len(sides) > 1 else counted
    grid.set_title(wrapped(f"grid {names}: {sized}{more}{layers}"))
    bare(grid, (-0.1, max(shown_x, 12)), (shown_y, -0.1))

    for lane in range(WARP_SIZE):
        for warp in range(warps):
            style = fill(1) if (lane, warp) == (0, 0) else {"facecolor": "#fdf0d5", "edgecolor": "white"}
            box(block, lane, warp, 0.92, 0.86, style)
    for warp in range(warps):
        block.text(-0.3, warp + 0.43, f"warp {warp}", ha="right", va="center", fontsize=7.5)
    shared = f", {launch.shared_bytes:,} bytes of shared memory" if launch.shared_bytes else ""
    block.set_title(wrapped(f"the blue block, {launch.block[0]} threads{shared}: {threads}"))
    bare(block, (-2.6, WARP_SIZE), (max(warps, 2), -0.1))

    own = owned_dimensions(plan, problem, 0)
    for dim in range(problem.head_dim):
        style = fill(2) if dim in own else {"facecolor": "#d9efe8", "edgecolor": "white"}
        box(thread, dim, 0, 1, 0.9, {**style, "linewidth": 0.3})
    share = "1 dimension" if len(own) == 1 else f"{len(own)} dimensions"
    thread.set_title(wrapped(f"the orange thread: {share} of {problem.head_dim}; {header['thread']}"))
    bare(thread, (0, problem.head_dim), (1.1, -0.1))
    merge = ""
    if merge_grid:
        of_grid, of_block = (
            part[0].removeprefix("the merge ") for part in (merge_grid, merge_block or [threads])
        )
        merge = f" The merge has a grid {of_grid}, and blocks of {of_block}."
    chart.description = (
        f"{stage.id} on {problem}: a grid {names} of {sized}; a block of {launch.block[0]} threads: "
        f"{threads}; thread 0 owns dimensions {_span(own)}, {header['thread']}.{merge}"
    )
    return chart


def owned_dimensions(plan: Plan, problem: Problem, lane: int) -> list[int]:
    """Output dimensions that a thread owns: one; a chunk of 4 in every 128 where the plan has chunks of 4;
    from stage 05 on its chunks of 16 bytes of a row that ROW_LANES lanes share, or rows of its fragments.
    """
    if "MMA_TYPE" in plan.defines and problem.dtype == FP8:
        halves = range(0, problem.head_dim, 16)
        return [half + 2 * (lane // 4) + i for half in halves for i in (0, 1)]
    if "MMA_TYPE" in plan.defines:
        return list(range(lane // 4, problem.head_dim, 8))
    if "TILE_TOKENS" in plan.defines:
        size = chunk_elements(problem)
        lanes = row_lanes(plan, problem)
        chunks = range(lane % lanes, problem.head_dim // size, lanes)
        return [chunk * size + i for chunk in chunks for i in range(size)]
    chunks_per_lane = plan.defines.get("CHUNKS_PER_LANE")
    if chunks_per_lane is None:
        return [lane] if lane < problem.head_dim else []
    first = [4 * (chunk * WARP_SIZE + lane) for chunk in range(chunks_per_lane)]
    return [dim + i for dim in first for i in range(4) if dim < problem.head_dim]


def header_fields(stage: Stage) -> dict[str, str]:
    """The fields of a kernel file's header comment: idea, grid, block, thread, since, needs, look at."""
    comment = re.match(r"/\*(.*?)\*/", stage.source().text, re.S)
    if comment is None:
        raise ValueError(f"{stage.path.name} does not begin with its header comment")
    return {
        key.split()[0]: text.strip()
        for key, text in re.findall(r"^ *([a-z]+(?: \w+)?|since --): +(.+)$", comment[1], re.M)
    }


@styled
def reduction_tree(lanes: int = 8) -> Chart:
    """How a warp adds up: `__shfl_down_sync` gives the sum to lane 0, `__shfl_xor_sync` to every lane.

    Args:
        lanes: a power of two; a warp has 32, fewer are easier to read.

    Raises:
        ValueError: no power of two.
    """
    if lanes < 2 or lanes & (lanes - 1):
        raise ValueError(f"lanes={lanes} must be a power of two of at least 2")
    chart = new_chart(
        4.4, f"Adding up {lanes} lanes in {lanes.bit_length() - 1} steps (a warp: 32 lanes, 5 steps)"
    )
    panels = chart.subplots(1, 2)
    last = {name: _reduction(axes, lanes, name) for axes, name in zip(panels, ("down", "xor"), strict=True)}
    total = lanes * (lanes + 1) // 2
    chart.description = (
        f"Lanes hold 1 to {lanes}. With shfl_down lane 0 ends with the sum {total}, the others with "
        f"{', '.join(str(v) for v in last['down'][1:])}; with shfl_xor every lane ends with {total}."
    )
    return chart


def _reduction(axes: Axes, lanes: int, name: str) -> list[int]:
    values = list(range(1, lanes + 1))
    total, step, offset = sum(values), 0, lanes // 2
    while True:
        for lane, amount in enumerate(values):
            done = amount == total
            box(
                axes,
                lane + 0.08,
                step,
                0.84,
                0.42,
                fill(2) if done else {"facecolor": _EMPTY, "edgecolor": GREY},
            )
            axes.text(lane + 0.5, step + 0.21, str(amount), ha="center", va="center", fontsize=9,
                      fontweight="bold" if done else "normal", bbox=plate() if done else None)  # fmt: skip
        if not offset:
            break
        # Past the end shfl_down gives a lane its own value back.
        partner = [
            lane ^ offset if name == "xor" else (lane + offset if lane + offset < lanes else lane)
            for lane in range(lanes)
        ]
        for lane, other in enumerate(partner):
            useful = name == "xor" or lane < offset
            axes.plot([other + 0.5, lane + 0.5], [step + 0.42, step + 1], lw=1.1 if useful else 0.6,
                      color=COLOURS[0] if useful else "#bbbbbb", ls="-" if useful else ":")  # fmt: skip
        axes.text(lanes + 0.1, step + 0.71, f"offset {offset}", va="center", fontsize=7.5, color=GREY)
        values = [value + values[other] for value, other in zip(values, partner, strict=True)]
        step, offset = step + 1, offset // 2
    axes.set_title(
        "__shfl_down_sync: a tree, only lane 0 is right"
        if name == "down"
        else "__shfl_xor_sync: a butterfly, every lane is right"
    )
    bare(axes, (-0.1, lanes + 1.5), (step + 0.6, -0.35))
    for lane in range(lanes):
        axes.text(lane + 0.5, -0.08, f"lane {lane}", ha="center", va="bottom", fontsize=6.5, color=GREY)
    return values


@styled
def staging(problem: Problem) -> Chart:
    """The loads of one page by one group of query heads: each for itself, or once through shared memory."""
    group = problem.group_size
    page_bytes = 2 * problem.page_size * problem.head_dim * problem.itemsize
    chart = new_chart(3.4, f"One page, one group of {group} query heads: who reads it from global memory")
    alone, shared = chart.subplots(1, 2)
    for axes, staged in ((alone, False), (shared, True)):
        middle = (group - 1) / 2
        box(axes, 0, middle - 0.45, 1.5, 0.9, fill(0))
        axes.text(0.75, middle, "page of\nK and V", ha="center", va="center", fontsize=8, bbox=plate())
        if staged:
            box(axes, 2.3, middle - 0.45, 1.5, 0.9, fill(2))
            axes.text(3.05, middle, "shared\nmemory", ha="center", va="center", fontsize=8, bbox=plate())
            arrow(axes, (1.5, middle), (2.3, middle), 2.2)
        for warp in range(group):
            box(axes, 4.7, warp - 0.32, 1.9, 0.64, fill(1))
            axes.text(5.65, warp, f"query head {warp}", ha="center", va="center", fontsize=8, bbox=plate())
            arrow(axes, (3.8 if staged else 1.5, middle), (4.7, warp), 1.2)
        loads = page_bytes * (1 if staged else group)
        what = "staged once" if staged else f"each of {group} loads it"
        axes.set_title(f"{what}: {loads:,} bytes requested")
        bare(axes, (-0.1, 6.7), (group - 0.4, -0.6))
    chart.description = (
        f"A page of keys and values of one kv head is {page_bytes} bytes. Loaded by each of {group} query "
        f"heads that is {group * page_bytes} bytes of requests; staged in shared memory it is {page_bytes}."
    )
    return chart


@styled
def split_and_merge(problem: Problem, splits: int) -> Chart:
    """Each sequence's context cut into runs of whole pages, the partial results, and the merge.

    Args:
        problem: its contexts are drawn to scale.
        splits: parts of each context, as stage 04 cuts them.
    """
    chart = new_chart(
        1.5 + 0.5 * problem.batch, f"{splits} splits: a block each, then one merge per query head"
    )
    axes = chart.subplots()
    longest = max(1, *problem.context_lengths)
    words = []
    for row, length in enumerate(problem.context_lengths):
        pages = problem.pages_per_sequence[row]
        per_split = -(-pages // splits)
        runs = []
        for split in range(splits):
            first = min(split * per_split, pages) * problem.page_size
            last = min(min((split + 1) * per_split, pages) * problem.page_size, length)
            runs.append(max(0, last - first))
            if last > first:
                box(
                    axes,
                    60 * first / longest,
                    row,
                    60 * (last - first) / longest,
                    0.7,
                    fill(split % len(COLOURS)),
                )
            x = 64 + 2.2 * split
            style = fill(split % len(COLOURS)) if last > first else {"facecolor": _EMPTY, "edgecolor": GREY}
            box(axes, x, row + 0.1, 1.7, 0.5, style)
        end = 64 + 2.2 * splits
        arrow(axes, (60.4, row + 0.35), (63.6, row + 0.35), 1.0)
        arrow(axes, (end, row + 0.35), (end + 3, row + 0.35), 1.0)
        box(axes, end + 3.4, row + 0.05, 5.5, 0.6, {"facecolor": "white", "edgecolor": "black"})
        axes.text(end + 6.1, row + 0.35, "merge", ha="center", va="center", fontsize=8)
        axes.text(-0.8, row + 0.35, tokens(length), ha="right", va="center", fontsize=8.5)
        words.append(f"{tokens(length)} as {', '.join(map(str, runs))}")
    axes.text(30, -0.25, "context, to scale, in runs of whole pages", ha="center", fontsize=8, color=GREY)
    axes.text(64 + 1.1 * splits, -0.25, "maximum, sum, vector of each", ha="center", fontsize=8, color=GREY)
    bare(axes, (-9, 64 + 2.2 * splits + 9.5), (problem.batch, -0.6))
    chart.description = (
        f"Contexts split into {splits} parts: "
        + "; ".join(words)
        + ". Each part gives a maximum, a sum and a vector of "
        f"{problem.head_dim}; the merge reads all {splits} of a query head. A grey box is an empty part."
    )
    return chart


def _span(dims: Sequence[int]) -> str:
    """Numbers as ranges, such as "0-3, 128-131"."""
    if not dims:
        return "none"
    breaks = np.flatnonzero(np.diff(dims) != 1) + 1
    runs = np.split(np.asarray(dims), breaks)
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
