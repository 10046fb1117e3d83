"""Known ways to get paged attention wrong, each as a float64 model of the output it gives.

Every two of them differ on some probe (`labs_common.probes`), for every stage that can have both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from labs_common.fault_model import (
    CHUNK,
    EXACT,
    RIGHT,
    SLACK,
    SLACK_16_BITS,
    Case,
    Modelled,
    Rules,
    Work,
    look_up,
    model,
    page_runs,
    told_apart,
    work_of,
)
from labs_common.inputs import Inputs
from labs_common.plans import WARP_SIZE, Device, Plan
from labs_common.probes import probes_of
from labs_common.problem import Problem
from labs_common.stages import Stage


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


ALL_ROWS = 1 << 30  # of any tile

TOPICS = {
    "pages": "which tokens are read, and from where",
    "heads": "which query and key/value head belong together",
    "scores": "the dot product of query and key",
    "softmax": "maximum, weights, sum and rescaling",
    "splits": "which pages each split gets",
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
        return page_runs(case.problem, length, case.work.splits, _pages_per_split(case, length, floor), extra)

    return Rules(cut=cut)


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


def _warps_take_tiles(work: Work) -> bool:
    return work.warp_tiles is not None


def _combines_throughout(work: Work) -> bool:
    return work.warp_tiles is not None and not work.rings


def _has_tiles(work: Work) -> bool:
    return work.tile_rows is not None


def _has_rings(work: Work) -> bool:
    return work.rings


def _has_tensor_cores(work: Work) -> bool:
    return work.tensor_cores


def _chunks_in_order(case: Case, rows: np.ndarray) -> np.ndarray:
    """Rows of a ring's tiles, read as if their chunks of 16 bytes lay in order; see ``tile_chunk``."""
    heads, tokens, dims = rows.shape
    elements = 16 // case.problem.itemsize
    chunks = dims // elements
    spread = math.gcd(chunks, 8)
    row = np.arange(tokens) % case.work.tile_rows
    columns = np.arange(chunks) ^ (row // (8 // spread) % spread)[:, None]
    read = rows.reshape(heads, tokens, chunks, elements)[:, np.arange(tokens)[:, None], columns]
    return read.reshape(rows.shape)


def _turned(case: Case, rows: np.ndarray) -> np.ndarray:
    """Every matrix of 8 tokens by 8 dimensions turned."""
    heads, tokens, dims = rows.shape
    return rows.reshape(heads, tokens // 8, 8, dims // 8, 8).swapaxes(2, 4).reshape(rows.shape)


def _first_chunk_again(case: Case) -> np.ndarray:
    return np.arange(case.problem.head_dim) % (WARP_SIZE * CHUNK)


def _first_chunk_only(case: Case) -> np.ndarray:
    dims = np.arange(case.problem.head_dim)
    return np.where(dims < WARP_SIZE * CHUNK, dims, -1)


def _neighbouring_chunks(case: Case) -> np.ndarray:
    """Chunk c of a lane is number lane * chunks per lane + c, where it should be c * 32 + lane."""
    dims = np.arange(case.problem.head_dim)
    chunk, lane = dims // CHUNK // WARP_SIZE, dims // CHUNK % WARP_SIZE
    taken = (lane * (case.work.covered_dims // (WARP_SIZE * CHUNK)) + chunk) * CHUNK + dims % CHUNK
    return np.where(taken < case.problem.head_dim, taken, -1)


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
    Fault(
        "first_chunk_of_keys_repeated",
        "scores",
        "a lane multiplies all its chunks of the query with its first chunk of the key",
        Rules(key_dims=_first_chunk_again),
        _lanes_hold_scores,
    ),
    Fault(
        "first_chunk_repeated",
        "scores",
        "a lane takes its first chunk of key and value, dimensions 0 to 127, for its later ones too",
        Rules(key_dims=_first_chunk_again, value_dims=_first_chunk_again),
        _lanes_hold_scores,
    ),
    Fault(
        "neighbouring_chunks",
        "scores",
        "a lane takes neighbouring chunks of key and value, lane * chunks per lane + c, but its query's are "
        "32 apart, c * 32 + lane",
        Rules(key_dims=_neighbouring_chunks, value_dims=_neighbouring_chunks),
        _lanes_hold_scores,
    ),
    Fault(
        "keys_turned",
        "scores",
        "the matrices of keys are loaded turned; the product takes them as they lie, tokens by dimensions",
        Rules(key_rows=_turned),
        _has_tensor_cores,
    ),
    Fault(
        "keys_in_order",
        "scores",
        "keys are read as if a row's chunks of 16 bytes lay in order; the ring puts them where tile_chunk "
        "says",
        Rules(key_rows=_chunks_in_order),
        _has_rings,
    ),
    Fault(
        "tiles_in_order",
        "scores",
        "keys and values are read as if a row's chunks of 16 bytes lay in order; the ring puts them where "
        "tile_chunk says",
        Rules(key_rows=_chunks_in_order, value_rows=_chunks_in_order),
        _has_rings,
    ),
    # softmax
    Fault(
        "values_in_order",
        "softmax",
        "values are read as if a row's chunks of 16 bytes lay in order; the ring puts them where tile_chunk "
        "says",
        Rules(value_rows=_chunks_in_order),
        _has_rings,
    ),
    Fault(
        "first_chunk_of_values_repeated",
        "softmax",
        "a lane adds its first chunk of the value, dimensions 0 to 127, to its later chunks too",
        Rules(value_dims=_first_chunk_again),
        _lanes_hold_scores,
    ),
    Fault(
        "first_chunk_of_values_only",
        "softmax",
        "only a lane's first chunk of the value is summed: dimensions from 128 on stay 0",
        Rules(value_dims=_first_chunk_only),
        _lanes_hold_scores,
    ),
    Fault(
        "tiles_not_rescaled",
        "softmax",
        "a tile that brings a larger maximum does not rescale the values of the tiles before it",
        Rules(rescale_tiles=False),
        _warps_take_tiles,
    ),
    Fault(
        "tile_sums_not_rescaled",
        "softmax",
        "a tile that brings a larger maximum does not rescale the sum of the tiles before it",
        Rules(rescale_tile_sums=False),
        _warps_take_tiles,
    ),
    Fault(
        "tiles_rescale_nothing",
        "softmax",
        "a tile that brings a larger maximum rescales neither the values nor the sum of the tiles before it",
        Rules(rescale_tiles=False, rescale_tile_sums=False),
        _warps_take_tiles,
    ),
    Fault(
        "weights_by_tile_maximum",
        "softmax",
        "the values of a tile are weighted from the tile's own maximum, and the sum from the running one",
        Rules(weigh_by_running_max=False),
        _warps_take_tiles,
    ),
    Fault(
        "tail_in_maximum",
        "softmax",
        "rows of the last tile past the context's end enter the maximum with their score of 0, though not "
        "the sum, so that very negative scores vanish",
        Rules(tail_in_max=True),
        _has_rings,
    ),
    Fault(
        "weights_not_turned",
        "softmax",
        "the weights enter the product with the values as the scores came out, tokens by heads; they have to "
        "be turned, heads by tokens",
        Rules(turn_weights=False),
        _has_tensor_cores,
    ),
    Fault(
        "values_not_turned",
        "softmax",
        "the matrices of values are loaded as they lie, tokens by dimensions; the product takes them turned",
        Rules(value_rows=_turned),
        _has_tensor_cores,
    ),
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
        "tail_not_masked",
        "pages",
        "the rows of the last tile past the context's end are counted too: copies of the last token where "
        "the block fills a tile, zeros where a ring does",
        Rules(tail_rows=ALL_ROWS),
        _has_tiles,
    ),
    Fault(
        "tail_mask_off_by_one",
        "pages",
        "the first row of the last tile past the context's end is counted",
        Rules(tail_rows=1),
        _has_tiles,
    ),
    Fault(
        "last_token_of_parts_skipped",
        "pages",
        "the last token of every partition or segment is left out",
        Rules(cut=lambda case, length: [part[:-1] for part in case.work.cut(length)]),
        _has_tiles,
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
        "first_tile_repeated",
        "pages",
        "every tile of a page is read from the page's first tokens, where a page takes several tiles",
        Rules(
            slot=lambda case, token: (
                token % case.problem.page_size % (case.work.tile_tokens or case.problem.page_size)
            )
        ),
        lambda work: work.tile_tokens is not None,
    ),
    Fault(
        "first_page_repeated",
        "pages",
        "every page is read from where the first one lies",
        Rules(page=lambda case, row, page, length: look_up(case, row, np.zeros_like(page))),
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
            page=lambda case, row, page, length: look_up(
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
        Rules(page=lambda case, row, page, length: look_up(case, 0, page)),
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
        "merge_adds_unweighted",
        "merge",
        "the merge rescales what it has to a new maximum, but adds each split's sum and values as they are",
        Rules(weight_new_sums=False, weight_new_values=False),
        _split_by_pages,
    ),
    Fault(
        "merge_adds_sums_unweighted",
        "merge",
        "the merge rescales what it has to a new maximum, but adds each split's sum as it is",
        Rules(weight_new_sums=False),
        _split_by_pages,
    ),
    Fault(
        "merge_adds_values_unweighted",
        "merge",
        "the merge rescales what it has to a new maximum, but adds each split's values as they are",
        Rules(weight_new_values=False),
        _split_by_pages,
    ),
    Fault(
        "combine_adds_sums",
        "merge",
        "two parts' sums are added as they are, though each counts from its own maximum; values are rescaled",
        Rules(scale_sums=False, weight_part_sums=False),
        _combines_throughout,
    ),
    Fault(
        "combine_scales_nothing",
        "merge",
        "two parts' sums and values are added as they are, though each counts from its own maximum",
        Rules(
            rescale_tiles=False,
            scale_warp_values=False,
            scale_sums=False,
            weight_part_sums=False,
            weight_part_values=False,
        ),
        _combines_throughout,
    ),
    Fault(
        "combine_scales_sums_only",
        "merge",
        "two parts' sums are rescaled to the common maximum, but the scales for their values stay 1",
        Rules(rescale_tiles=False, scale_warp_values=False, weight_part_values=False),
        _combines_throughout,
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
    # splits
    Fault(
        "split_rounded_down",
        "splits",
        "pages per split are rounded down, so that the last pages belong to no split",
        _split_pages(floor=True),
        _split_by_pages,
    ),
    Fault(
        "splits_overlap",
        "splits",
        "each split runs one page into the next one, which counts that page twice",
        _split_pages(extra=1),
        _split_by_pages,
    ),
    Fault(
        "split_one_page_short",
        "splits",
        "each split ends one page early, which leaves out the last page of every full split",
        _split_pages(extra=-1),
        _split_by_pages,
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
    cases: dict[str, Case] = {}
    for probe in probes_of(stage, device).values():
        case = Case(probe.problem, probe.inputs(), work_of(probe.problem, probe.plan(stage, device)))
        cases[probe.name] = case
    slack = SLACK_16_BITS if stage.tensor_cores else SLACK
    possible = [fault for fault in FAULTS if any(fault.applies(case.work) for case in cases.values())]
    found = {
        name: {
            "right": model(case, RIGHT, slack),
            **{fault.name: model(case, fault.rules, slack) for fault in possible},
        }
        for name, case in cases.items()
    }
    names = [
        fault.name
        for fault in possible
        if any(told_apart(models["right"], models[fault.name]) for models in found.values())
        and any(_says_something(models[fault.name]) for models in found.values())
    ]
    return {probe: {name: models[name] for name in ("right", *names)} for probe, models in found.items()}


def _says_something(modelled: Modelled) -> bool:
    """Whether it binds a kernel to any number but 0."""
    number = (modelled.binding == EXACT) & np.isfinite(modelled.output)
    return bool((modelled.output[number] != 0).any())
