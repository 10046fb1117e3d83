"""Known ways to get paged attention wrong, each as a float64 model of the output it gives.

A fault is the right computation with one rule changed (`Rules`). Probes are small problems whose inputs make
the faults differ: finite numbers where the lab otherwise puts NaN, scores far from zero, values that show
which token got which weight. What a fault gives may depend on how a kernel cuts its work (`Work`), which
follows from its plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from labs_common.inputs import Inputs, make_inputs
from labs_common.layouts import from_nhd, to_nhd
from labs_common.plans import WARP_SIZE, Device, Plan
from labs_common.problem import Problem
from labs_common.stages import Stage

CHUNK = 4  # dimensions in the 16-byte load of a lane, in float32
FLOAT_MAX = float(np.finfo(np.float32).max)
FLOAT_TINY = float(np.finfo(np.float32).tiny)  # below it -ftz=true gives 0

# How an element of a modelled output binds a kernel that has the fault.
EXACT, NOTHING_SUMMED, ANYTHING = 0, 1, 2


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

    @property
    def warps(self) -> int:
        """Warps that share one dot product."""
        return int(self.warp_of_dim.max()) + 1


def work_of(problem: Problem, plan: Plan) -> Work:
    """Read off a plan how its kernel cuts the work.

    A block of ``head_dim`` threads has one dimension a thread (00, 01); with ``CHUNKS_PER_LANE`` a lane has
    chunks of four dimensions, 32 chunks apart (02 to 04); ``splits`` are runs of whole pages (04),
    ``partitions`` runs of tokens (05).
    """
    dims = np.arange(problem.head_dim)
    splits, cut = 1, lambda length: [np.arange(length)]
    if "splits" in plan.numbers:
        splits = plan.numbers["splits"]

        def cut(length: int) -> list[np.ndarray]:
            pages = -(-length // problem.page_size)
            return _page_runs(problem, length, splits, -(-pages // splits))

    if "partitions" in plan.numbers:
        splits, tokens = plan.numbers["partitions"], int(plan.defines["PARTITION_TOKENS"])

        def cut(length: int) -> list[np.ndarray]:
            return [np.arange(min(i * tokens, length), min((i + 1) * tokens, length)) for i in range(splits)]

    if "CHUNKS_PER_LANE" in plan.defines:
        covered = int(plan.defines["CHUNKS_PER_LANE"]) * WARP_SIZE * CHUNK
        dims = np.arange(covered)
        lane, warp = dims // CHUNK % WARP_SIZE, np.zeros(covered, int)
    elif "partitions" in plan.numbers:
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
        online="partitions" not in plan.numbers,
    )


def _page_runs(problem: Problem, length: int, splits: int, pages_per_split: int, extra: int = 0) -> list:
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


def _table(case: Case, row: int, page: np.ndarray) -> np.ndarray:
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
        scale_power: how often scores are multiplied by the scale.
        exp: of score minus maximum.
        initial_max, fixed_max: what the maximum begins with; whether it stays so.
        keep_max, subtract_max, rescale_sum, rescale_values: steps of the online softmax.
        divide: by the sum, at the end.
        zero_for_empty: an empty context is answered with zeros.
        merged: which splits are merged, of how many.
        divide_parts: a split's values are divided by its own sum.
        restore_parts: and multiplied by it again in the merge.
        guard_parts: but not by a sum of 0.
        weight_part_sums, weight_part_values: a split's sum and values are weighted by exp(max − whole max).
        part_sums: a split's own sum enters the merge; else 1.
        average: the splits' outputs are averaged.
    """

    length: Callable[[Case, int], int] = lambda case, row: case.lengths[row]
    cut: Callable[[Case, int], list[np.ndarray]] = lambda case, length: case.work.cut(length)
    page: Callable[[Case, int, np.ndarray, int], np.ndarray] = lambda case, row, page, length: _table(
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
    scale_power: int = 1
    exp: Callable[[np.ndarray], np.ndarray] = np.exp
    initial_max: float = -np.inf
    fixed_max: bool = False
    keep_max: bool = True
    subtract_max: bool = True
    rescale_sum: bool = True
    rescale_values: bool = True
    divide: bool = True
    zero_for_empty: bool = True
    merged: Callable[[int], range] = range
    divide_parts: bool = False
    restore_parts: bool = False
    guard_parts: bool = True
    weight_part_sums: bool = True
    weight_part_values: bool = True
    part_sums: bool = True
    average: bool = False

    @property
    def in_order(self) -> bool:
        """Whether the result depends on the order in which tokens are added."""
        return not (self.keep_max and self.subtract_max and self.rescale_sum and self.rescale_values)


RIGHT = Rules()


@dataclass(frozen=True)
class Modelled:
    """An output under some rules.

    Attributes:
        output: ``[batch, query_heads, head_dim]`` float64.
        binding: the same shape; EXACT where the output must be this, NOTHING_SUMMED where it must not be a
            number or be 0, ANYTHING where memory is read that is not the problem's.
    """

    output: np.ndarray
    binding: np.ndarray


def model(case: Case, rules: Rules) -> Modelled:
    """The output of a kernel that follows ``rules``, in float64, with float32's range for the weights."""
    problem = case.problem
    shape = (problem.batch, problem.query_heads, problem.head_dim)
    output, binding = np.zeros(shape), np.full(shape, EXACT, np.int8)
    with np.errstate(all="ignore"):
        for row in range(problem.batch):
            _model_row(case, rules, row, output[row], binding[row])
    return Modelled(output, binding)


def _model_row(case: Case, rules: Rules, row: int, output: np.ndarray, binding: np.ndarray) -> None:
    length = rules.length(case, row)
    parts, outside = [], np.zeros(case.problem.query_heads, bool)
    for tokens in rules.cut(case, length):
        scores, values, beyond = _scores(case, rules, row, length, tokens)
        outside |= beyond
        part = _attend(rules, scores, values)
        if case.work.lane_0_hands_on:
            part = (part[0][:, :1], part[1][:, :1], part[2])
        parts.append(part)
        # A split whose every score is NaN keeps the maximum -INFINITY; whether it is then skipped is open.
        outside |= len(tokens) > 0 and np.isnan(scores).all(axis=(1, 2)) & (case.work.splits > 1)
    maxima, sums, values = (np.stack(part) for part in zip(*parts, strict=True))
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
    """``[heads, tokens, 1 or head_dim]`` scores, ``[heads, tokens, head_dim]`` values, heads gone astray."""
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
    query_at = rules.query_row(case, row)[:, None] * dims + np.arange(reach.shape[1])
    outside |= (query_at >= len(case.query)).any(axis=1) & (not rules.query_is_guarded)
    query = case.query[np.minimum(query_at, len(case.query) - 1)]
    if rules.query_is_guarded:
        query[:, dims:] = 0.0
    products = query[:, None, :] * key
    scores = products @ reach.T
    return scores * case.inputs.scale**rules.scale_power, values, outside


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
    weights = rules.exp(maxima - maxima.max(axis=0))
    weights = np.where(maxima == -np.inf, 0.0, weights)
    own = sums if rules.part_sums else np.where(sums > 0, 1.0, 0.0)
    whole_sum = ((weights if rules.weight_part_sums else 1.0) * own).sum(axis=0)
    merged = ((weights if rules.weight_part_values else 1.0) * values).sum(axis=0)
    return whole_sum, merged


# ---- the faults ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """One known fault.

    Attributes:
        name: short, unique.
        topic: part of the computation that it is in, one of ``TOPICS``.
        says: what the kernel does, as the end of "The output is what comes out when …".
        rules: the computation with the fault.
        applies: whether a kernel that works in this way can have it.
    """

    name: str
    topic: str
    says: str
    rules: Rules
    applies: Callable[[Work], bool] = field(default=lambda work: True)


TOPICS = {
    "pages": "which tokens are read, and from where",
    "heads": "which query and key/value head belong together",
    "scores": "the dot product of query and key",
    "softmax": "maximum, weights, sum and rescaling",
    "merge": "putting the splits together",
}


def _whole_pages(case: Case, length: int) -> int:
    return length // case.problem.page_size * case.problem.page_size


def _filled_pages(case: Case, length: int) -> int:
    return -(-length // case.problem.page_size) * case.problem.page_size


def _cut_to(change: Callable[[Case, int], int]) -> Rules:
    """Tokens of another length, cut as the right number of splits."""
    return Rules(cut=lambda case, length: case.work.cut(change(case, length)))


def _keep(choose: Callable[[Case, int, np.ndarray], np.ndarray]) -> Rules:
    """Only some of the tokens; ``choose`` gives a mask."""

    def cut(case: Case, length: int) -> list[np.ndarray]:
        return [part[choose(case, length, part)] for part in case.work.cut(length)]

    return Rules(cut=cut)


def _same(case: Case, of: np.ndarray) -> np.ndarray:
    """Who shares a score, where the score of an output dimension sums the products of its own ``of`` only."""
    dims = case.problem.head_dim
    return (of[:dims, None] == of[None, :dims]).astype(float)


def _butterfly(missing: int) -> Callable[[Case], np.ndarray]:
    """Products that a lane's score sums where the butterfly leaves one exchange out."""

    def reach(case: Case) -> np.ndarray:
        dims, work = case.problem.head_dim, case.work
        lane, warp = work.lane_of_dim[:dims], work.warp_of_dim[:dims]
        if work.lanes_own_output:
            return ((lane[:, None] & missing) == (lane[None] & missing)).astype(float)
        # Lane 0 hands its warp's sum on to shared memory.
        return ((lane & missing) == 0).astype(float)[None] * (warp >= 0)

    return reach


def _shuffle_down(case: Case) -> np.ndarray:
    """Products in each lane after a shfl_down tree; a lane past the end gets its own value back."""
    held = np.eye(WARP_SIZE)
    for offset in (16, 8, 4, 2, 1):
        source = np.arange(WARP_SIZE) + offset
        held = held + held[np.where(source < WARP_SIZE, source, np.arange(WARP_SIZE))]
    lane = case.work.lane_of_dim[: case.problem.head_dim]
    return held[lane][:, lane]


def _dims_where(choose: Callable[[np.ndarray], np.ndarray]) -> Callable[[Case], np.ndarray]:
    return lambda case: choose(np.arange(case.problem.head_dim)).astype(float)[None]


def _covered(case: Case) -> np.ndarray:
    return np.ones((1, case.work.covered_dims))


def _pages_per_split(case: Case, length: int, floor: bool) -> int:
    pages = -(-length // case.problem.page_size)
    return pages // case.work.splits if floor else -(-pages // case.work.splits)


def _split_pages(extra: int = 0, floor: bool = False) -> Rules:
    def cut(case: Case, length: int) -> list[np.ndarray]:
        return _page_runs(
            case.problem, length, case.work.splits, _pages_per_split(case, length, floor), extra
        )

    return Rules(cut=cut)


def _has_warps(work: Work) -> bool:
    return work.warps > 1 or work.covered_dims > WARP_SIZE * CHUNK


def _shares_scores(work: Work) -> bool:
    return bool(work.lane_of_dim.max() > 0)


def _lanes_hold_scores(work: Work) -> bool:
    return work.lanes_own_output


def _one_dim_a_thread(work: Work) -> bool:
    return work.warps > 1 or (not work.lanes_own_output and work.lane_of_dim.max() > 0)


def _is_split(work: Work) -> bool:
    return work.splits > 1


def _split_by_pages(work: Work) -> bool:
    return work.splits > 1 and work.online


def _in_order(work: Work) -> bool:
    return work.online


FAULTS: tuple[Fault, ...] = (
    # scores
    Fault("unscaled", "scores", "scores are not multiplied by scale, 1/sqrt(head_dim)", Rules(scale_power=0)),
    Fault(
        "scaled_twice",
        "scores",
        "scores are multiplied by scale twice, or by 1/head_dim in place of 1/sqrt(head_dim)",
        Rules(scale_power=2),
    ),
    Fault(
        "warp_0_only",
        "scores",
        "a score is only warp 0's part of the dot product, the first 32 dimensions",
        Rules(reach=_dims_where(lambda dim: dim < WARP_SIZE)),
        _one_dim_a_thread,
    ),
    Fault(
        "warps_not_summed",
        "scores",
        "every warp keeps the sum over its own 32 dimensions as the score; the warps' sums are not added",
        Rules(reach=lambda case: _same(case, case.work.warp_of_dim)),
        _one_dim_a_thread,
    ),
    Fault(
        "lanes_not_summed",
        "scores",
        "every thread takes its own products as the score; nothing is summed over the warp",
        Rules(reach=lambda case: _same(case, case.work.lane_of_dim + WARP_SIZE * case.work.warp_of_dim)),
        _shares_scores,
    ),
    Fault(
        "total_in_lane_0",
        "scores",
        "the warp's sum is whole in lane 0 only, as __shfl_down_sync leaves it, and every lane uses its own",
        Rules(reach=_shuffle_down),
        _lanes_hold_scores,
    ),
    Fault(
        "half_warp_summed",
        "scores",
        "the warp's sum leaves out the exchange over 16 lanes, so a lane sums its half of the warp",
        Rules(reach=_butterfly(16)),
        _shares_scores,
    ),
    Fault(
        "every_other_lane_summed",
        "scores",
        "the warp's sum leaves out the exchange over 1 lane, so a lane sums every other lane",
        Rules(reach=_butterfly(1)),
        _shares_scores,
    ),
    Fault(
        "first_chunk_only",
        "scores",
        "a score is only the first 128 dimensions; a lane's later chunks are left out",
        Rules(reach=_dims_where(lambda dim: dim < WARP_SIZE * CHUNK)),
        _lanes_hold_scores,
    ),
    Fault(
        "one_of_four",
        "scores",
        "of the four dimensions of each float4 only the first is multiplied",
        Rules(reach=_dims_where(lambda dim: dim % CHUNK == 0)),
        _lanes_hold_scores,
    ),
    Fault(
        "past_head_dim",
        "scores",
        "lanes past head_dim take part in the dot product, with numbers of the next head",
        Rules(reach=_covered),
        _shares_scores,
    ),
    Fault(
        "key_past_head_dim",
        "scores",
        "lanes past head_dim multiply a query of 0 with what lies behind the key, and 0 times NaN is NaN",
        Rules(reach=_covered, query_is_guarded=True),
        _shares_scores,
    ),
    # softmax
    Fault(
        "max_not_subtracted",
        "softmax",
        "the maximum is not subtracted before exp, which overflows beyond a score of 88",
        Rules(initial_max=0.0, fixed_max=True),
    ),
    Fault(
        "max_starts_at_zero",
        "softmax",
        "the running maximum starts at 0 (or FLT_MIN), not at -INFINITY, so that very negative scores vanish",
        Rules(initial_max=0.0),
    ),
    Fault(
        "weight_without_max",
        "softmax",
        "sums are rescaled to the running maximum, but the weight is exp(score) without it",
        Rules(subtract_max=False),
        _in_order,
    ),
    Fault(
        "sum_not_rescaled",
        "softmax",
        "a new maximum rescales the accumulator but not the sum",
        Rules(rescale_sum=False),
        _in_order,
    ),
    Fault(
        "accumulator_not_rescaled",
        "softmax",
        "a new maximum rescales the sum but not the accumulator",
        Rules(rescale_values=False),
        _in_order,
    ),
    Fault(
        "nothing_rescaled",
        "softmax",
        "a new maximum rescales neither the sum nor the accumulator",
        Rules(rescale_sum=False, rescale_values=False),
        _in_order,
    ),
    Fault(
        "max_not_kept",
        "softmax",
        "the running maximum is never updated, so that every token wipes out the ones before it",
        Rules(keep_max=False),
        _in_order,
    ),
    Fault(
        "sum_not_divided",
        "softmax",
        "the accumulator is not divided by the sum of the weights",
        Rules(divide=False),
    ),
    Fault(
        "exp2_without_log2e",
        "softmax",
        "exp2 takes the place of exp without the factor log2(e) on the scores",
        Rules(exp=np.exp2),
    ),
    Fault(
        "empty_context",
        "softmax",
        "a sequence without tokens is not answered with zeros: 0/0, or a row that is never written",
        Rules(zero_for_empty=False),
    ),
    # pages
    Fault(
        "last_partial_page_dropped",
        "pages",
        "the last page is left out where it is not full",
        _cut_to(_whole_pages),
    ),
    Fault(
        "past_context_end",
        "pages",
        "the last page is read to its end, past the context",
        _cut_to(_filled_pages),
    ),
    Fault(
        "one_token_too_many",
        "pages",
        "one token past the context is counted",
        _cut_to(lambda case, length: length + 1),
    ),
    Fault(
        "last_token_skipped",
        "pages",
        "the last token of the context is left out",
        _keep(lambda case, length, token: token != length - 1),
    ),
    Fault(
        "first_token_skipped",
        "pages",
        "the first token of the context is left out",
        _keep(lambda case, length, token: token != 0),
    ),
    Fault(
        "first_page_only",
        "pages",
        "only the first page is read",
        _keep(lambda case, length, token: token < case.problem.page_size),
    ),
    Fault(
        "last_page_only",
        "pages",
        "only the last page counts",
        _keep(
            lambda case, length, token: (
                token >= (length - 1) // case.problem.page_size * case.problem.page_size
            )
        ),
    ),
    Fault(
        "first_tile_only",
        "pages",
        "of a page that is larger than the tile in shared memory only the first tile counts",
        _keep(
            lambda case, length, token: (
                token % case.problem.page_size < (case.work.tile_tokens or case.problem.page_size)
            )
        ),
        lambda work: work.tile_tokens is not None,
    ),
    Fault(
        "first_page_repeated",
        "pages",
        "every page is read from where the first one lies",
        Rules(page=lambda case, row, page, length: _table(case, row, np.zeros_like(page))),
    ),
    Fault(
        "slot_0_repeated",
        "pages",
        "every token of a page is read from the page's first slot",
        Rules(slot=lambda case, token: np.zeros_like(token)),
    ),
    Fault(
        "pages_reversed",
        "pages",
        "the pages of a sequence are taken from the last to the first, so that the wrong one is cut short",
        Rules(
            page=lambda case, row, page, length: _table(
                case, row, np.maximum(-(-length // case.problem.page_size) - 1 - page, 0)
            )
        ),
    ),
    Fault(
        "table_ignored",
        "pages",
        "the block table is ignored: logical page 0 is read from physical page 0, and so on",
        Rules(page=lambda case, row, page, length: page),
    ),
    Fault(
        "table_taken_as_contiguous",
        "pages",
        "the block table is ignored: each sequence is read as max_pages pages in a row",
        Rules(page=lambda case, row, page, length: row * case.problem.max_pages + page),
    ),
    Fault(
        "table_of_sequence_0",
        "pages",
        "every sequence reads the pages of sequence 0",
        Rules(page=lambda case, row, page, length: _table(case, 0, page)),
    ),
    Fault(
        "length_of_sequence_0",
        "pages",
        "every sequence takes the context length of sequence 0",
        Rules(length=lambda case, row: case.lengths[0]),
    ),
    Fault(
        "heads_before_slots",
        "pages",
        "a page is addressed as [kv_heads, page_size, head_dim]; it lies as [page_size, kv_heads, head_dim]",
        Rules(
            cache_row=lambda case, page, slot, head: (
                (page * case.problem.kv_heads + head) * case.problem.page_size + slot
            )
        ),
    ),
    Fault(
        "keys_and_values_swapped",
        "pages",
        "keys are read from the value cache and values from the key cache",
        Rules(key_of="value", value_of="key"),
    ),
    Fault("values_from_keys", "pages", "values are read from the key cache", Rules(value_of="key")),
    Fault("keys_from_values", "pages", "keys are read from the value cache", Rules(key_of="value")),
    # heads
    Fault(
        "kv_head_by_modulo",
        "heads",
        "query head h uses key/value head h % kv_heads; it is h / (query_heads / kv_heads)",
        Rules(kv_head=lambda case: case.heads % case.problem.kv_heads),
    ),
    Fault(
        "kv_head_off_by_one",
        "heads",
        "the groups of query heads are off by one: head h uses key/value head (h + 1) / group size",
        Rules(kv_head=lambda case: (case.heads + 1) // case.problem.group_size),
    ),
    Fault(
        "next_kv_head",
        "heads",
        "every query head uses the key/value head after its own",
        Rules(kv_head=lambda case: case.heads // case.problem.group_size + 1),
    ),
    Fault(
        "divided_by_kv_heads",
        "heads",
        "query head h uses key/value head h / kv_heads; it is h / (query_heads / kv_heads)",
        Rules(kv_head=lambda case: case.heads // case.problem.kv_heads),
    ),
    Fault(
        "kv_head_0",
        "heads",
        "every query head uses key/value head 0",
        Rules(kv_head=lambda case: np.zeros_like(case.heads)),
    ),
    Fault(
        "kv_head_not_grouped",
        "heads",
        "query head h uses key/value head h, as if no group shared one",
        Rules(kv_head=lambda case: case.heads),
    ),
    Fault(
        "query_of_group_first",
        "heads",
        "every query head of a group uses the query of the group's first head",
        Rules(
            query_row=lambda case, row: (
                row * case.problem.query_heads
                + case.heads // case.problem.group_size * case.problem.group_size
            )
        ),
    ),
    Fault(
        "query_of_sequence_0",
        "heads",
        "every sequence uses the queries of sequence 0",
        Rules(query_row=lambda case, row: case.heads),
    ),
    # merge
    Fault(
        "merge_without_correction",
        "merge",
        "splits are added as they are, though each counts from its own maximum",
        Rules(weight_part_sums=False, weight_part_values=False),
        _is_split,
    ),
    Fault(
        "merge_sums_without_correction",
        "merge",
        "the merge rescales the splits' values to the common maximum, but not their sums",
        Rules(weight_part_sums=False),
        _is_split,
    ),
    Fault(
        "merge_values_without_correction",
        "merge",
        "the merge rescales the splits' sums to the common maximum, but not their values",
        Rules(weight_part_values=False),
        _is_split,
    ),
    Fault(
        "merge_averages",
        "merge",
        "the merge averages the splits' outputs, as if all had the same sum of weights",
        Rules(average=True),
        _is_split,
    ),
    Fault(
        "merge_by_maximum_only",
        "merge",
        "the merge weights each split's output by exp(max) without the split's sum",
        Rules(divide_parts=True, part_sums=False),
        _is_split,
    ),
    Fault(
        "divided_in_the_split",
        "merge",
        "a split's values are divided by its sum already, and the merge divides again",
        Rules(divide_parts=True),
        _is_split,
    ),
    Fault(
        "empty_split_counted",
        "merge",
        "a split without tokens enters the merge: its 0/0, or memory that it never wrote",
        Rules(divide_parts=True, restore_parts=True, guard_parts=False, zero_for_empty=False),
        _is_split,
    ),
    Fault(
        "first_split_only",
        "merge",
        "only the first split reaches the output",
        Rules(merged=lambda splits: range(1)),
        _is_split,
    ),
    Fault(
        "last_split_dropped",
        "merge",
        "the merge leaves out the last split",
        Rules(merged=lambda splits: range(splits - 1)),
        _is_split,
    ),
    Fault(
        "split_rounded_down",
        "merge",
        "pages per split are rounded down, so that the last pages belong to no split",
        _split_pages(floor=True),
        _split_by_pages,
    ),
    Fault(
        "splits_overlap",
        "merge",
        "each split runs one page into the next one, which counts that page twice",
        _split_pages(extra=1),
        _split_by_pages,
    ),
    Fault(
        "split_one_page_short",
        "merge",
        "each split ends one page early, which leaves out the last page of every full split",
        _split_pages(extra=-1),
        _split_by_pages,
    ),
)


# ---- the probes ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Probe:
    """A small problem that makes faults visible.

    Attributes:
        name: for messages.
        problem: what is computed.
        shape: changes the inputs that ``make_inputs`` gives.
        splits, partition_tokens: of stages that split the context.
        tile_tokens: of stages that stage pages in shared memory; None for whole pages.
    """

    name: str
    problem: Problem
    shape: Callable[[Problem, Inputs], Inputs]
    splits: int = 3
    partition_tokens: int = 32
    tile_tokens: int | None = None

    def inputs(self) -> Inputs:
        """Its arrays, the same every time."""
        return self.shape(self.problem, make_inputs(self.problem, seed=11))

    def plan(self, stage: Stage, device: Device | None = None) -> Plan:
        """A stage's launches for it.

        Raises:
            ValueError: the stage does not take the problem.
        """
        device = device or Device()
        tile = stage.plan(self.problem, device).numbers.get("tile_tokens")
        if tile is not None and self.tile_tokens is not None:
            token_bytes = 2 * self.problem.head_dim * self.problem.itemsize
            device = dataclasses.replace(device, max_shared_bytes=self.tile_tokens * token_bytes)
        numbers = stage.plan(self.problem, device).numbers
        options: dict[str, int] = {}
        if "splits" in numbers:
            options["splits"] = self.splits
        if "partitions" in numbers:
            options["partition_tokens"] = self.partition_tokens
        return stage.plan(self.problem, device, **options)


def _as_they_are(problem: Problem, inputs: Inputs) -> Inputs:
    return inputs


def _finite(problem: Problem, inputs: Inputs) -> Inputs:
    """Ordinary numbers in every slot, and a page of the pool in every table entry."""
    random = np.random.default_rng(12)
    caches = []
    for cache in (inputs.key_cache, inputs.value_cache):
        filled = random.standard_normal(cache.shape).astype(cache.dtype)
        caches.append(np.where(np.isnan(cache), filled, cache))
    tables = inputs.block_tables.copy()
    pages = len(inputs.key_cache)
    bad = (tables < 0) | (tables >= pages)
    tables[bad] = random.integers(0, pages, int(bad.sum()))
    return dataclasses.replace(inputs, key_cache=caches[0], value_cache=caches[1], block_tables=tables)


def _extreme(problem: Problem, inputs: Inputs) -> Inputs:
    """Scores around +160 in even sequences and −160 in odd ones, a few apart from each other."""
    inputs = _finite(problem, inputs)
    signs = np.where(np.arange(problem.head_dim) % 3 == 0, -1.0, 1.0)
    key, value = to_nhd(problem, inputs.key_cache, inputs.value_cache)
    key = (0.25 * key.astype(np.float64) + signs).astype(key.dtype)
    level = 160.0 / (problem.head_dim * inputs.scale)
    side = np.where(np.arange(problem.batch) % 2 == 0, level, -level)[:, None, None]
    query = (inputs.query + side * signs).astype(inputs.query.dtype)
    keys, values = from_nhd(problem, key, value)
    return dataclasses.replace(inputs, query=query, key_cache=keys, value_cache=values)


def _weights_shown(problem: Problem, inputs: Inputs) -> Inputs:
    """Token t's value is 1 in dimension t and 0 elsewhere, so that the output lists the weights."""
    inputs = _finite(problem, inputs)
    key, value = to_nhd(problem, inputs.key_cache, inputs.value_cache)
    value = np.zeros_like(value)
    size = problem.page_size
    for row, pages in enumerate(problem.pages_per_sequence):
        for page in range(pages):
            for slot in range(min(size, problem.head_dim - page * size)):
                value[inputs.block_tables[row, page], slot, :, page * size + slot] = 1.0
    keys, values = from_nhd(problem, key, value)
    return dataclasses.replace(inputs, key_cache=keys, value_cache=values)


WEIGHTS = Probe(
    "weights",
    Problem(8, 4, 80, 8, (5, 16, 0, 77, 30), name="probe of weights"),
    _weights_shown,
)
PROBES: tuple[Probe, ...] = (
    Probe("plain", Problem(8, 4, 80, 8, (13, 1, 8, 0, 53, 24), name="probe, plain"), _finite),
    Probe(
        "wide",
        Problem(6, 2, 160, 16, (37, 21), name="probe, wide heads"),
        _finite,
        splits=2,
        tile_tokens=6,
    ),
    Probe("extreme", Problem(4, 2, 80, 8, (19, 30), name="probe, extreme scores"), _extreme, splits=2),
    WEIGHTS,
    Probe(
        "poisoned",
        Problem(8, 4, 80, 8, (13, 1, 8, 0, 53, 24), name="probe, NaN in unused slots"),
        _as_they_are,
    ),
)


def wrong_reference(fault: Fault, problem: Problem, inputs: Inputs, plan: Plan) -> np.ndarray:
    """The float64 output of a kernel with a fault, ``[batch, query_heads, head_dim]``.

    NaN where such a kernel sums nothing or reads outside the problem's arrays.

    Args:
        fault: one of ``FAULTS``.
        problem, inputs: what is computed.
        plan: how the kernel is launched on it.
    """
    modelled = model(Case(problem, inputs, work_of(problem, plan)), fault.rules)
    return np.where(modelled.binding == EXACT, modelled.output, np.nan)


@lru_cache(maxsize=32)
def probe_models(stage: Stage, device: Device | None = None) -> Mapping[str, Mapping[str, Modelled]]:
    """For each probe that a stage takes, by name, the right output and that of every fault, by name.

    "right" is the name of the right one. Faults that a kernel of this stage cannot have are left out, and so
    are those that no probe tells from the right answer, or from a kernel that does nothing.
    """
    found: dict[str, dict[str, Modelled]] = {}
    for probe in PROBES:
        if stage.supports(probe.problem, device) is not None:
            continue
        case = Case(probe.problem, probe.inputs(), work_of(probe.problem, probe.plan(stage, device)))
        found[probe.name] = {"right": model(case, RIGHT)}
        for fault in FAULTS:
            if fault.applies(case.work):
                found[probe.name][fault.name] = model(case, fault.rules)
    names = [
        fault.name
        for fault in FAULTS
        if any(
            fault.name in models and told_apart(models["right"], models[fault.name])
            for models in found.values()
        )
        and any(fault.name in models and _says_something(models[fault.name]) for models in found.values())
    ]
    return {
        probe: {name: models.get(name, models["right"]) for name in ("right", *names)}
        for probe, models in found.items()
    }


def _says_something(modelled: Modelled) -> bool:
    """Whether it binds a kernel to any number but 0."""
    number = (modelled.binding == EXACT) & np.isfinite(modelled.output)
    return bool((modelled.output[number] != 0).any())


SLACK = 5e-4  # of a row's largest element: what a float32 kernel may differ from a model


def told_apart(one: Modelled, other: Modelled, margin: float = 10.0) -> bool:
    """Whether no output could be taken for both, with a margin of ``margin`` times ``SLACK``."""
    both = (one.binding == EXACT) & (other.binding == EXACT)
    finite = both & np.isfinite(one.output) & np.isfinite(other.output)
    size = np.maximum(_row_size(one), _row_size(other))
    difference = np.where(finite, np.abs(np.where(finite, one.output - other.output, 0.0)), 0.0)
    apart = difference > margin * SLACK * size
    # A number on one side, on the other none.
    apart |= both & (np.isfinite(one.output) != np.isfinite(other.output))
    for a, b in ((one, other), (other, one)):
        number = (a.binding == EXACT) & np.isfinite(a.output) & (np.abs(a.output) > margin * SLACK * size)
        apart |= number & (b.binding == NOTHING_SUMMED)
    return bool(apart.any())


def fits(output: np.ndarray, modelled: Modelled, slack: float = SLACK) -> bool:
    """Whether an output is what a model says.

    Args:
        output: ``[batch, query_heads, head_dim]``.
        modelled: a right or wrong output.
        slack: allowed difference, of the row's largest element.
    """
    output = np.asarray(output, np.float64)
    exact = modelled.binding == EXACT
    number = np.isfinite(modelled.output)
    if (np.isfinite(output) != number)[exact].any():
        return False
    summed = exact & number
    difference = np.abs(np.where(summed, output, 0.0) - np.where(summed, modelled.output, 0.0))
    if (difference > slack * _row_size(modelled)).any():
        return False
    nothing = modelled.binding == NOTHING_SUMMED
    return not (np.isfinite(output) & (output != 0) & nothing).any()


def _row_size(modelled: Modelled) -> np.ndarray:
    """Largest number of each row, ``[batch, query_heads, 1]``."""
    usable = (modelled.binding == EXACT) & np.isfinite(modelled.output)
    return np.where(usable, np.abs(modelled.output), 0.0).max(axis=2, keepdims=True, initial=0.0)
