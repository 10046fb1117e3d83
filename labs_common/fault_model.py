"""What a kernel outputs if it follows the right rules, or others: float64 models of paged attention.

A known fault is the right computation with one rule changed (`Rules`). What it gives may depend on how a
kernel cuts its work (`Work`), which follows from its plan.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from labs_common.inputs import Inputs
from labs_common.layouts import to_nhd
from labs_common.plans import WARP_SIZE, Plan
from labs_common.problem import Problem

CHUNK = 4  # dimensions in the 16-byte load of a lane, in float32
FLOAT_MAX = float(np.finfo(np.float32).max)
FLOAT_TINY = float(np.finfo(np.float32).tiny)  # below it -ftz=true gives 0

# How an element of a modelled output binds a kernel that has the fault.
EXACT, NOTHING_SUMMED, ANYTHING = 0, 1, 2
SLACK = 5e-4  # of a row's largest element: what a float32 kernel may differ from a model
SLACK_16_BITS = 2e-3  # and one that rounds weights and output to 16 bits
FLOOR = 1e-6  # what is smaller may be 0: half has few digits left there, and exp in float32 none far below


@dataclass(frozen=True)
class Work:
    """How a kernel cuts the work of one query head.

    Attributes:
        cut: the tokens of each split, for a context length.
        splits: parts that are merged.
        tile_tokens: tokens staged in shared memory at once, None without staging.
        lane_of_dim, warp_of_dim: ``[covered_dims]``, who multiplies a dimension of query and key.
        covered_dims: dimensions that the block's lanes reach, at least head_dim.
        lanes_own_output: whether a lane weights its values by the score that it holds itself.
        lane_0_hands_on: whether only lane 0's maximum and sum reach the merge.
        online: whether tokens enter the softmax one by one, in order.
        merges_cuts_only: whether a context of a single part is never merged.
        warp_tiles: where a warp's softmax takes tiles, the tokens that the warps share in one round, and the
            warps: each takes as many neighbouring tokens as the others.
        tile_rows: tokens of a tile that keys and values are read from, None without such tiles.
        rings: whether each warp fills its own tiles, by turns and with zeros past the end; else a tile is the
            block's, and its rows past the end repeat the last token.
        tensor_cores: whether they multiply.
    """

    cut: Callable[[int], list[np.ndarray]]
    splits: int
    tile_tokens: int | None
    lane_of_dim: np.ndarray
    warp_of_dim: np.ndarray
    covered_dims: int
    lanes_own_output: bool
    lane_0_hands_on: bool
    online: bool
    merges_cuts_only: bool = False
    warp_tiles: tuple[int, int] | None = None
    tile_rows: int | None = None
    rings: bool = False
    tensor_cores: bool = False

    @property
    def warps(self) -> int:
        """Warps that share one dot product."""
        return int(self.warp_of_dim.max()) + 1


def work_of(problem: Problem, plan: Plan) -> Work:
    """Read off a plan how its kernel cuts the work.

    A block of ``head_dim`` threads has one dimension a thread (00, 01); with ``CHUNKS_PER_LANE`` a lane has
    chunks of four dimensions, 32 chunks apart (02 to 04); ``splits`` are runs of whole pages (04),
    ``partitions`` runs of tokens (05 to 07), ``segments`` what the host gives to each block (08, 09).

    Raises:
        ValueError: segments are cut at tokens that another sequence or head group is not cut at.
    """
    dims = np.arange(problem.head_dim)
    in_tiles = "partitions" in plan.numbers or "segments" in plan.tables
    splits, cut = 1, lambda length: [np.arange(length)]
    if "splits" in plan.numbers:
        splits = plan.numbers["splits"]

        def cut(length: int) -> list[np.ndarray]:
            pages = -(-length // problem.page_size)
            return page_runs(problem, length, splits, -(-pages // splits))

    if "partitions" in plan.numbers:
        splits, tokens = plan.numbers["partitions"], int(plan.defines["PARTITION_TOKENS"])
        cut = _cut_at(np.arange(splits) * tokens)

    if "segments" in plan.tables:
        starts = _segment_starts(problem, plan)
        splits, cut = len(starts), _cut_at(starts)

    warp_tiles, tile_rows, rings = None, plan.defines.get("TILE_TOKENS"), "RING_SLOTS" in plan.defines
    if tile_rows is not None:
        # A set of query heads has warps of its own.
        sets = int(plan.defines.get("BLOCK_HEADS", -(-problem.group_size // 8)))
        warps = plan.launches[0].block[0] // WARP_SIZE // sets
        warp_tiles = (tile_rows * warps if rings else tile_rows, warps)

    if "CHUNKS_PER_LANE" in plan.defines:
        covered = int(plan.defines["CHUNKS_PER_LANE"]) * WARP_SIZE * CHUNK
        dims = np.arange(covered)
        lane, warp = dims // CHUNK % WARP_SIZE, np.zeros(covered, int)
    elif in_tiles:
        covered = problem.head_dim
        lane, warp = np.zeros(covered, int), np.zeros(covered, int)
    else:
        covered = plan.launches[0].block[0]
        dims = np.arange(covered)
        lane, warp = dims % WARP_SIZE, dims // WARP_SIZE
    return Work(
        cut=cut,
        splits=splits,
        tile_tokens=plan.numbers.get("tile_tokens"),
        lane_of_dim=lane,
        warp_of_dim=warp,
        covered_dims=covered,
        lanes_own_output="CHUNKS_PER_LANE" in plan.defines,
        lane_0_hands_on="splits" in plan.numbers,
        online=not in_tiles,
        merges_cuts_only="segments" in plan.tables,
        warp_tiles=warp_tiles,
        tile_rows=tile_rows,
        rings=rings,
        tensor_cores="MMA_TYPE" in plan.defines,
    )


def _cut_at(starts: np.ndarray) -> Callable[[int], list[np.ndarray]]:
    """Tokens of each part for a length, where parts begin at the same tokens in every context."""

    def cut(length: int) -> list[np.ndarray]:
        bounds = np.minimum([*starts, length], length)
        return [np.arange(first, end) for first, end in itertools.pairwise(bounds)]

    return cut


def _segment_starts(problem: Problem, plan: Plan) -> np.ndarray:
    """First tokens of the planned segments, the same for every sequence and head group that is so long."""
    segments = plan.tables["segments"]
    starts = np.unique([0, *segments[:, 1]])
    groups = max(segments[:, 3], default=0) + 1
    if len(segments) != groups * sum((starts < length).sum() for length in problem.context_lengths):
        raise ValueError(f"{problem.name}: its segments are not cut at the same tokens")
    return starts


def page_runs(problem: Problem, length: int, splits: int, pages_per_split: int, extra: int = 0) -> list:
    """Tokens of each split where splits are runs of pages, each ``extra`` pages longer than its turn."""
    size = problem.page_size
    runs = []
    for split in range(splits):
        first = split * pages_per_split
        runs.append(
            np.arange(min(first * size, length), min(max(0, first + pages_per_split + extra) * size, length))
        )
    return runs


class Case:
    """A problem, its inputs and a kernel's way of working, laid out for the models."""

    def __init__(self, problem: Problem, inputs: Inputs, work: Work) -> None:
        """Args: as ``Probe`` and ``work_of`` give them."""
        self.problem, self.inputs, self.work = problem, inputs, work
        self.heads = np.arange(problem.query_heads)
        self.lengths = [int(length) for length in inputs.context_lengths]
        self.tables = inputs.block_tables.reshape(-1)
        self.pages = len(inputs.key_cache)

    @cached_property
    def caches(self) -> dict[str, np.ndarray]:
        """Elements of both caches in the order of NHD, float64, flat."""
        key, value = to_nhd(self.problem, self.inputs.key_cache, self.inputs.value_cache)
        return {
            "key": key.astype(np.float64).reshape(-1),
            "value": value.astype(np.float64).reshape(-1),
        }

    @cached_property
    def query(self) -> np.ndarray:
        """Elements of the query, float64, flat."""
        return self.inputs.query.astype(np.float64).reshape(-1)


def _all_dims(case: Case) -> np.ndarray:
    return np.ones((1, case.problem.head_dim))


def look_up(case: Case, row: int, page: np.ndarray) -> np.ndarray:
    """Physical pages of a sequence's logical pages, −1 behind the end of the whole table."""
    at = row * case.problem.max_pages + page
    return np.where(at < len(case.tables), case.tables[np.minimum(at, len(case.tables) - 1)], -1)


@dataclass(frozen=True)
class Rules:
    """The computation, step by step; the defaults are right. A fault changes one or two of them.

    Attributes:
        length: context length of a sequence.
        cut: tokens of each split, for a length.
        page: physical pages of logical pages, −1 for none.
        slot: slots of tokens within their page.
        kv_head: key/value heads of query heads.
        cache_row: number of the row of ``head_dim`` elements, from page, slot and key/value head.
        key_of, value_of: cache that keys and values come from.
        query_row: numbers of the query rows of a sequence's heads.
        reach: ``[1 or head_dim, dims]`` zeros and ones, the products that each output dimension's score sums.
        query_is_guarded: the query is 0 past head_dim.
        key_dims, value_dims: dimension that is taken for each of head_dim; -1 for none, which counts 0.
        scale_power: how often scores are multiplied by the scale.
        exp: of score minus maximum.
        initial_max, fixed_max: what the maximum begins with; whether it stays so.
        keep_max, subtract_max, rescale_sum, rescale_values: steps of the online softmax.
        rescale_tiles, rescale_tile_sums: a warp rescales the values and the sum that it has when a tile
            brings a larger maximum.
        weigh_by_running_max: a tile's weights count from the running maximum, not from the tile's own.
        turn_weights: weights are turned before tensor cores multiply them with values.
        key_rows, value_rows: what is read of the rows of tiles, from ``[heads, tokens, head_dim]`` of whole
            tiles, 0 past the end; None for the rows themselves.
        tail_rows: rows of the last tile past the end that are counted.
        tail_in_max: whether they enter the maximum.
        scale_warp_values, scale_sums: what brings to the common maximum the values of a block's warps, and
            the sums of any two parts.
        divide: by the sum, at the end.
        zero_for_empty: an empty context is answered with zeros.
        merged: which splits are merged, of how many.
        divide_parts: a split's values are divided by its own sum.
        restore_parts: and multiplied by it again in the merge.
        guard_parts: but not by a sum of 0.
        weight_part_sums, weight_part_values: a split's sum and values are weighted by exp(max − whole max).
        part_sums: a split's own sum enters the merge; else 1.
        weight_new_sums, weight_new_values: a merge that takes split after split, and rescales what it has,
            weights the sum and the values that it adds.
        average: the splits' outputs are averaged.
    """

    length: Callable[[Case, int], int] = lambda case, row: case.lengths[row]
    cut: Callable[[Case, int], list[np.ndarray]] = lambda case, length: case.work.cut(length)
    page: Callable[[Case, int, np.ndarray, int], np.ndarray] = lambda case, row, page, length: look_up(
        case, row, page
    )
    slot: Callable[[Case, np.ndarray], np.ndarray] = lambda case, token: token % case.problem.page_size
    kv_head: Callable[[Case], np.ndarray] = lambda case: case.heads // case.problem.group_size
    cache_row: Callable[..., np.ndarray] = lambda case, page, slot, head: (
        (page * case.problem.page_size + slot) * case.problem.kv_heads + head
    )
    key_of: str = "key"
    value_of: str = "value"
    query_row: Callable[[Case, int], np.ndarray] = lambda case, row: (
        row * case.problem.query_heads + case.heads
    )
    reach: Callable[[Case], np.ndarray] = _all_dims
    query_is_guarded: bool = False
    key_dims: Callable[[Case], np.ndarray] | None = None
    value_dims: Callable[[Case], np.ndarray] | None = None
    scale_power: int = 1
    exp: Callable[[np.ndarray], np.ndarray] = np.exp
    initial_max: float = -np.inf
    fixed_max: bool = False
    keep_max: bool = True
    subtract_max: bool = True
    rescale_sum: bool = True
    rescale_values: bool = True
    rescale_tiles: bool = True
    rescale_tile_sums: bool = True
    weigh_by_running_max: bool = True
    turn_weights: bool = True
    key_rows: Callable[[Case, np.ndarray], np.ndarray] | None = None
    value_rows: Callable[[Case, np.ndarray], np.ndarray] | None = None
    tail_rows: int = 0
    tail_in_max: bool = False
    scale_warp_values: bool = True
    scale_sums: bool = True
    divide: bool = True
    zero_for_empty: bool = True
    merged: Callable[[int], range] = range
    divide_parts: bool = False
    restore_parts: bool = False
    guard_parts: bool = True
    weight_part_sums: bool = True
    weight_part_values: bool = True
    part_sums: bool = True
    weight_new_sums: bool = True
    weight_new_values: bool = True
    average: bool = False

    @property
    def in_order(self) -> bool:
        """Whether the result depends on the order in which tokens are added."""
        return not (self.keep_max and self.subtract_max and self.rescale_sum and self.rescale_values)

    @property
    def by_tiles(self) -> bool:
        """Whether the result depends on which warp takes which tokens of a tile."""
        return not (
            self.rescale_tiles
            and self.rescale_tile_sums
            and self.weigh_by_running_max
            and self.turn_weights
            and self.scale_warp_values
            and self.scale_sums
        )

    @property
    def in_whole_tiles(self) -> bool:
        """Whether the result depends on where in a tile a row lies, or on its rows past the end."""
        return self.key_rows is not None or self.value_rows is not None or self.tail_rows > 0


RIGHT = Rules()
_RIGHT_MERGE = {
    name: getattr(RIGHT, name)
    for name in (
        "merged",
        "divide_parts",
        "restore_parts",
        "guard_parts",
        "weight_part_sums",
        "weight_part_values",
        "part_sums",
        "weight_new_sums",
        "weight_new_values",
        "average",
    )
}


@dataclass(frozen=True)
class Modelled:
    """An output under some rules.

    Attributes:
        output: ``[batch, query_heads, head_dim]`` float64.
        binding: the same shape; EXACT where the output must be this, NOTHING_SUMMED where it must not be a
            number or be 0, ANYTHING where memory is read that is not the problem's.
        slack: what a kernel may differ from it, of a row's largest element.
    """

    output: np.ndarray
    binding: np.ndarray
    slack: float = SLACK


def model(case: Case, rules: Rules, slack: float = SLACK) -> Modelled:
    """The output of a kernel that follows ``rules``, in float64, with float32's range for the weights."""
    problem = case.problem
    shape = (problem.batch, problem.query_heads, problem.head_dim)
    output, binding = np.zeros(shape), np.full(shape, EXACT, np.int8)
    with np.errstate(all="ignore"):
        for row in range(problem.batch):
            _model_row(case, rules, row, output[row], binding[row])
    return Modelled(output, binding, slack)


def _model_row(case: Case, rules: Rules, row: int, output: np.ndarray, binding: np.ndarray) -> None:
    length = rules.length(case, row)
    parts, outside = [], np.zeros(case.problem.query_heads, bool)
    for tokens in rules.cut(case, length):
        scores, values, beyond = _scores(case, rules, row, length, tokens)
        outside |= beyond
        if rules.by_tiles and case.work.warp_tiles:
            part = _attend_by_tiles(case, rules, scores, values)
        elif rules.tail_in_max and case.work.rings and len(tokens) % case.work.tile_rows:
            part = _attend(dataclasses.replace(rules, initial_max=0.0), scores, values)
        else:
            part = _attend(rules, scores, values)
        if case.work.lane_0_hands_on:
            part = (part[0][:, :1], part[1][:, :1], part[2])
        parts.append(part)
        # A split whose every score is NaN keeps the maximum -INFINITY; whether it is then skipped is open.
        outside |= len(tokens) > 0 and np.isnan(scores).all(axis=(1, 2)) & (case.work.splits > 1)
    maxima, sums, values = (np.stack(part) for part in zip(*parts, strict=True))
    if case.work.merges_cuts_only and int((sums > 0).any(axis=(1, 2)).sum()) == 1:
        rules = dataclasses.replace(rules, **_RIGHT_MERGE)
    chosen = list(rules.merged(len(parts)))
    if chosen:
        total, weighted = _merge(rules, maxima[chosen], sums[chosen], values[chosen])
    else:
        total, weighted = np.zeros_like(sums[0]), np.zeros_like(values[0])
    total = np.broadcast_to(total, weighted.shape)
    result = weighted / total if rules.divide else weighted
    nothing = (total == 0) | ~np.isfinite(total) | ~np.isfinite(weighted)
    if case.lengths[row] == 0:
        if rules.zero_for_empty and length == 0 and not np.isnan(weighted).any():
            result, nothing = np.zeros_like(weighted), np.zeros_like(nothing)
        else:
            result = np.where(np.isnan(weighted) | (total == 0), np.nan, result)
    output[...] = result
    binding[nothing] = NOTHING_SUMMED
    if case.lengths[row] == 0:
        # Whether 0/0 or no answer at all: it must show as NaN, or the fault is none.
        binding[nothing & np.isnan(output)] = EXACT
    binding[outside] = ANYTHING


def _scores(case: Case, rules: Rules, row: int, length: int, tokens: np.ndarray):
    """``[heads, rows, 1 or head_dim]`` scores, ``[heads, rows, head_dim]`` values, heads gone astray.

    Rows are the tokens, and those of a tile past the end that are counted.
    """
    problem, dims = case.problem, case.problem.head_dim
    reach = rules.reach(case)
    page = rules.page(case, row, tokens // problem.page_size, length)
    slot = rules.slot(case, tokens)
    valid = (page >= 0) & (page < case.pages)
    cache_row = rules.cache_row(case, page[None], slot[None], rules.kv_head(case)[:, None])
    at = cache_row[:, :, None] * dims + np.arange(reach.shape[1])
    size = len(case.caches["key"])
    outside = (~valid).any() | (at >= size).any(axis=(1, 2)) | (at < 0).any(axis=(1, 2))
    key = case.caches[rules.key_of][np.clip(at, 0, size - 1)]
    values = case.caches[rules.value_of][np.clip(at[:, :, :dims], 0, size - 1)]
    if rules.key_dims is not None:
        key = _chosen_dims(key, rules.key_dims(case))
    if rules.value_dims is not None:
        values = _chosen_dims(values, rules.value_dims(case))
    if rules.in_whole_tiles and case.work.tile_rows and len(tokens):
        key, values = _rows_of_tiles(case, rules, key, values)
    query_at = rules.query_row(case, row)[:, None] * dims + np.arange(reach.shape[1])
    outside |= (query_at >= len(case.query)).any(axis=1) & (not rules.query_is_guarded)
    query = case.query[np.minimum(query_at, len(case.query) - 1)]
    if rules.query_is_guarded:
        query[:, dims:] = 0.0
    products = query[:, None, :] * key
    scores = products @ reach.T
    return scores * case.inputs.scale**rules.scale_power, values, outside


def _chosen_dims(elements: np.ndarray, dims: np.ndarray) -> np.ndarray:
    return np.where(dims >= 0, elements[..., dims], 0.0)


def _rows_of_tiles(case: Case, rules: Rules, key: np.ndarray, values: np.ndarray):
    """Keys and values ``[heads, rows, head_dim]`` as they are read from a part's tiles, those that count."""
    tokens = key.shape[1]
    past = -tokens % case.work.tile_rows

    def read(rows: np.ndarray, how: Callable[[Case, np.ndarray], np.ndarray] | None) -> np.ndarray:
        end = np.repeat(rows[:, -1:] * (0.0 if case.work.rings else 1.0), past, axis=1)
        rows = np.concatenate([rows, end], axis=1)
        return (how(case, rows) if how else rows)[:, : tokens + min(past, rules.tail_rows)]

    return read(key, rules.key_rows), read(values, rules.value_rows)


def _in_float_range(weights: np.ndarray) -> np.ndarray:
    weights = np.where(weights > FLOAT_MAX, np.inf, weights)
    return np.where(weights < FLOAT_TINY, 0.0, weights)


def _attend(rules: Rules, scores: np.ndarray, values: np.ndarray):
    """Maximum and sum ``[heads, 1 or head_dim]`` and weighted values ``[heads, head_dim]`` of one split."""
    heads, tokens, units = scores.shape
    if rules.in_order:
        return _attend_in_order(rules, scores, values)
    peak = np.full((heads, units), rules.initial_max)
    if tokens and not rules.fixed_max:
        peak = np.fmax(peak, np.fmax.reduce(scores, axis=1))  # as fmaxf: NaN is passed over
    if tokens == 0:
        return peak, np.zeros((heads, units)), np.zeros((heads, values.shape[2]))
    weights = _in_float_range(rules.exp(scores - peak[:, None]))
    return peak, weights.sum(axis=1), (weights * values).sum(axis=1)


def _attend_in_order(rules: Rules, scores: np.ndarray, values: np.ndarray):
    heads, tokens, units = scores.shape
    peak = np.full((heads, units), rules.initial_max)
    total, weighted = np.zeros((heads, units)), np.zeros((heads, values.shape[2]))
    for token in range(tokens):
        score = scores[:, token]
        new_peak = np.fmax(peak, score)
        correction = rules.exp(peak - new_peak)
        weight = _in_float_range(rules.exp(score - new_peak if rules.subtract_max else score))
        total = total * (correction if rules.rescale_sum else 1.0) + weight
        weighted = weighted * (correction if rules.rescale_values else 1.0) + weight * values[:, token]
        if rules.keep_max:
            peak = new_peak
    return peak, total, weighted


def _attend_by_tiles(case: Case, rules: Rules, scores: np.ndarray, values: np.ndarray):
    """As ``_attend``, of warps that each take their tokens of one round after the other."""
    round_tokens, warps = case.work.warp_tiles
    heads, tokens, units = scores.shape
    peaks, totals = np.full((warps, heads, units), -np.inf), np.zeros((warps, heads, units))
    weighted = np.zeros((warps, heads, values.shape[2]))
    share = round_tokens // warps
    for warp in range(warps):
        for first in range(warp * share, tokens, round_tokens):
            mine = slice(first, first + share)
            own_peak = np.fmax.reduce(scores[:, mine], axis=1)
            peak = np.fmax(peaks[warp], own_peak)
            keep = np.where(peaks[warp] == -np.inf, 0.0, rules.exp(peaks[warp] - peak))
            weights = _in_float_range(rules.exp(scores[:, mine] - peak[:, None]))
            new = weights.sum(axis=1) if rules.scale_sums else weights.shape[1]
            rescaled = rules.scale_sums and rules.rescale_tile_sums
            totals[warp] = totals[warp] * (keep if rescaled else 1.0) + new
            if not rules.weigh_by_running_max:
                weights = _in_float_range(rules.exp(scores[:, mine] - own_peak[:, None]))
            if not rules.turn_weights:
                weights = _not_turned(case.problem, weights)
            added = (weights * values[:, mine]).sum(axis=1)
            weighted[warp] = weighted[warp] * (keep if rules.rescale_tiles else 1.0) + added
            peaks[warp] = peak
    top = peaks.max(axis=0)
    scale = np.where(peaks == -np.inf, 0.0, rules.exp(peaks - top))
    total = ((scale if rules.scale_sums else 1.0) * totals).sum(axis=0)
    return top, total, ((scale if rules.scale_warp_values else 1.0) * weighted).sum(axis=0)


def _not_turned(problem: Problem, weights: np.ndarray) -> np.ndarray:
    """Weights ``[heads, tokens, 1]`` where tensor cores take [8 tokens, 8 heads] for its transpose.

    Columns past a set's last head repeat it. Weights are rounded to half, as the probes' are: one that is
    tiny for its own head may be all that another gets.
    """
    weights = weights.astype(np.float16).astype(np.float64)
    heads, tokens, _ = weights.shape
    group = problem.group_size
    set_heads = -(-group // -(-group // 8))
    of_group = np.arange(heads) % group
    column = of_group % set_heads
    first = np.arange(heads) - column
    last = first + np.minimum(set_heads, group - (of_group - column)) - 1
    blocks = np.pad(weights[:, :, 0], ((0, 0), (0, -tokens % 8))).reshape(heads, -1, 8)
    head_of_token = np.minimum(first[:, None] + np.arange(8), last[:, None])
    taken = blocks[head_of_token, :, column[:, None]]  # [heads, 8, blocks]
    return taken.transpose(0, 2, 1).reshape(heads, -1)[:, :tokens, None]


def _merge(rules: Rules, maxima: np.ndarray, sums: np.ndarray, values: np.ndarray):
    """Sum and weighted values of the whole from those of the splits, split first."""
    if len(maxima) == 1 and not rules.divide_parts and not rules.average:
        return sums[0], values[0]
    if rules.divide_parts or rules.average:
        divided = values / sums
        values = np.where(sums == 0, 0.0, divided) if rules.guard_parts else divided
        values = values * sums if rules.restore_parts else values
    if rules.average:
        return np.full(sums.shape[1:], float(len(sums))), values.sum(axis=0)
    if not (rules.weight_new_sums and rules.weight_new_values):
        return _merge_in_order(rules, maxima, sums, values)
    weights = rules.exp(maxima - maxima.max(axis=0))
    weights = np.where(maxima == -np.inf, 0.0, weights)
    own = sums if rules.part_sums else np.where(sums > 0, 1.0, 0.0)
    whole_sum = ((weights if rules.weight_part_sums else 1.0) * own).sum(axis=0)
    merged = ((weights if rules.weight_part_values else 1.0) * values).sum(axis=0)
    return whole_sum, merged


def _merge_in_order(rules: Rules, maxima: np.ndarray, sums: np.ndarray, values: np.ndarray):
    peak, total, merged = np.full_like(maxima[0], -np.inf), np.zeros_like(sums[0]), np.zeros_like(values[0])
    for maximum, added_sum, added in zip(maxima, sums, values, strict=True):
        new_peak = np.fmax(peak, maximum)
        correction = np.where(peak == -np.inf, 0.0, rules.exp(peak - new_peak))
        weight = np.where(maximum == -np.inf, 0.0, rules.exp(maximum - new_peak))
        total = total * correction + (weight if rules.weight_new_sums else 1.0) * added_sum
        merged = merged * correction + (weight if rules.weight_new_values else 1.0) * added
        peak = new_peak
    return total, merged


def told_apart(one: Modelled, other: Modelled, margin: float = 10.0) -> bool:
    """Whether no output could be taken for both, with a margin of ``margin`` times the slack."""
    both = (one.binding == EXACT) & (other.binding == EXACT)
    finite = both & np.isfinite(one.output) & np.isfinite(other.output)
    size = np.maximum(_row_size(one), _row_size(other))
    difference = np.where(finite, np.abs(np.where(finite, one.output - other.output, 0.0)), 0.0)
    apart = difference > margin * (SLACK * size + FLOOR)
    # A number on one side, on the other none.
    apart |= both & (np.isfinite(one.output) != np.isfinite(other.output))
    for a, b in ((one, other), (other, one)):
        number = (
            (a.binding == EXACT)
            & np.isfinite(a.output)
            & (np.abs(a.output) > margin * (SLACK * size + FLOOR))
        )
        apart |= number & (b.binding == NOTHING_SUMMED)
    return bool(apart.any())


def fits(output: np.ndarray, modelled: Modelled) -> bool:
    """Whether an output is what a model says.

    Args:
        output: ``[batch, query_heads, head_dim]``.
        modelled: a right or wrong output.
    """
    output = np.asarray(output, np.float64)
    exact = modelled.binding == EXACT
    number = np.isfinite(modelled.output)
    if (np.isfinite(output) != number)[exact].any():
        return False
    summed = exact & number
    difference = np.abs(np.where(summed, output, 0.0) - np.where(summed, modelled.output, 0.0))
    if (difference > modelled.slack * _row_size(modelled) + FLOOR).any():
        return False
    nothing = modelled.binding == NOTHING_SUMMED
    return not (np.isfinite(output) & (output != 0) & nothing).any()


def _row_size(modelled: Modelled) -> np.ndarray:
    """Largest number of each row, ``[batch, query_heads, 1]``."""
    usable = (modelled.binding == EXACT) & np.isfinite(modelled.output)
    return np.where(usable, np.abs(modelled.output), 0.0).max(axis=2, keepdims=True, initial=0.0)
