"""Stage 05 in Triton: the same partitions, the same compound partial, the same combine in both merges.

A program takes the place of a block. What 05 says lane by lane (who copies, who adds) is Triton's to choose;
what stays is which tokens and heads a program owns, and the merge. The layout is NHD.
"""

import triton
import triton.language as tl


@triton.jit
def combine(max_a, sum_a, max_b, sum_b):
    """Merge (max, sum of exponentials) of two sets of tokens; either may be empty: (-inf, 0)."""
    whole = tl.maximum(max_a, max_b)
    scale_a = tl.where(max_a == whole, 1.0, tl.exp(max_a - whole))  # not -inf minus -inf
    scale_b = tl.where(max_b == whole, 1.0, tl.exp(max_b - whole))
    return whole, scale_a * sum_a + scale_b * sum_b


@triton.jit
def partitioned_gqa(
    query, key_cache, value_cache, block_tables, context_lengths, parts_max, parts_sum, parts_values, scale,
    kv_heads, max_pages, partitions,
    GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr,
    PAGE_SIZE: tl.constexpr, TILE: tl.constexpr, PARTITION: tl.constexpr,
):  # fmt: skip
    """Attend with a group of query heads to one partition; grid (kv_heads, batch, partitions).

    GROUP_ROWS and DIMS are GROUP and HEAD_DIM rounded up to powers of two, to 16 at least for tl.dot.
    """
    kv_head, sequence, partition = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context = tl.load(context_lengths + sequence)
    start = partition * PARTITION
    end = tl.minimum(start + PARTITION, context)
    if start < end:
        rows, dims, slots = tl.arange(0, GROUP_ROWS), tl.arange(0, DIMS), tl.arange(0, TILE)
        heads = (sequence * kv_heads + kv_head) * GROUP + rows
        inside = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
        q = tl.load(query + heads.to(tl.int64)[:, None] * HEAD_DIM + dims[None, :], mask=inside, other=0.0)
        running_max = tl.full([GROUP_ROWS], float("-inf"), tl.float32)
        running_sum = tl.zeros([GROUP_ROWS], tl.float32)
        weighted = tl.zeros([GROUP_ROWS, DIMS], tl.float32)
        for tile in range(start, end, TILE):
            tokens = tile + slots
            valid = tokens < end
            pages = tl.load(
                block_tables + sequence.to(tl.int64) * max_pages + tokens // PAGE_SIZE, mask=valid, other=0
            )
            token_rows = (pages.to(tl.int64) * PAGE_SIZE + tokens % PAGE_SIZE) * kv_heads + kv_head
            offsets = token_rows[:, None] * HEAD_DIM + dims[None, :]
            present = valid[:, None] & (dims < HEAD_DIM)[None, :]
            key = tl.load(key_cache + offsets, mask=present, other=0.0)
            score = tl.dot(q, tl.trans(key), input_precision="ieee") * scale
            score = tl.where(valid[None, :], score, float("-inf"))
            ones = tl.where(valid[None, :], 1.0, 0.0) + tl.zeros([GROUP_ROWS, TILE], tl.float32)
            tile_max, tile_sum = tl.reduce((score, ones), 1, combine)
            new_max, new_sum = combine(running_max, running_sum, tile_max, tile_sum)
            keep = tl.where(running_max == new_max, 1.0, tl.exp(running_max - new_max))
            weight = tl.exp(score - new_max[:, None])  # a tile has a token, so that new_max is finite
            value = tl.load(value_cache + offsets, mask=present, other=0.0)
            # Tensor cores take no mixed pair: a weight becomes two numbers of the cache's type.
            high = weight.to(value.dtype)
            weighted = weighted * keep[:, None] + tl.dot(high, value, input_precision="ieee")
            if value.dtype != tl.float32:
                weighted += tl.dot(
                    (weight - high.to(tl.float32)).to(value.dtype), value, input_precision="ieee"
                )
            running_max, running_sum = new_max, new_sum
        entry = heads.to(tl.int64) * partitions + partition
        tl.store(parts_max + entry, running_max, mask=rows < GROUP)
        tl.store(parts_sum + entry, running_sum, mask=rows < GROUP)
        tl.store(parts_values + entry[:, None] * HEAD_DIM + dims[None, :], weighted, mask=inside)


@triton.jit
def partitioned_gqa_merge(
    context_lengths, parts_max, parts_sum, parts_values, output, query_heads, partitions,
    HEAD_DIM: tl.constexpr, DIMS: tl.constexpr, PARTITION: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Merge the partials of one query head, TILE at a time; grid (query_heads, batch)."""
    sequence = tl.program_id(1)
    used = (tl.load(context_lengths + sequence) + PARTITION - 1) // PARTITION
    head = sequence.to(tl.int64) * query_heads + tl.program_id(0)
    dims, slots = tl.arange(0, DIMS), tl.arange(0, TILE)
    running_max = tl.full([1], float("-inf"), tl.float32)
    running_sum = tl.zeros([1], tl.float32)
    weighted = tl.zeros([DIMS], tl.float32)
    for first in range(0, used, TILE):
        part = first + slots
        entry = head * partitions + part
        part_max = tl.load(parts_max + entry, mask=part < used, other=float("-inf"))
        part_sum = tl.load(parts_sum + entry, mask=part < used, other=0.0)
        inside = (part < used)[:, None] & (dims < HEAD_DIM)[None, :]
        values = tl.load(parts_values + entry[:, None] * HEAD_DIM + dims[None, :], mask=inside, other=0.0)
        tile_max, tile_sum = tl.reduce((part_max, part_sum), 0, combine)
        new_max, new_sum = combine(running_max, running_sum, tile_max, tile_sum)
        keep = tl.where(running_max == new_max, 1.0, tl.exp(running_max - new_max))
        weighted = weighted * keep + tl.sum(tl.exp(part_max - new_max)[:, None] * values, 0)
        running_max, running_sum = new_max, new_sum
    result = weighted / tl.where(running_sum > 0, running_sum, 1.0)  # no token: zeros
    tl.store(output + head * HEAD_DIM + dims, result.to(output.dtype.element_ty), mask=dims < HEAD_DIM)
