"""Kernels with planted faults and honest variants, as edits of the stages' own kernels.

Each line is (what it must be called, stages, edits); an edit replaces every occurrence of a text. A text that
a kernel does not have is an error, so that the table follows the kernels.
"""

from labs_common.source import KERNELS, Source
from labs_common.stages import find_stage

Edit = tuple[str, str]
Plant = tuple[str, str, tuple[Edit, ...]]

SCORE_01, SCORE_234 = "score *= problem.scale;", "warp_sum(partial) * problem.scale;"
SUM = "running_sum = running_sum * correction + weight;"
ACC_01, ACC_234 = (
    "accumulator = accumulator * correction",
    "rescale_add(accumulator[c], correction, weight, value[c])",
)
WEIGHT = "__expf(score - new_max)"
VALID_123 = "const int valid = min(problem.page_size, context - start);"
VALID_4 = "const int valid = min(problem.page_size, context - logical_page * problem.page_size);"
LOOP_123 = "for (int start = 0; start < context; start += problem.page_size) {"
PAGE_0 = "physical_page(problem, in, sequence, token / problem.page_size)"
PAGE_123 = "physical_page(problem, in, sequence, start / problem.page_size)"
PAGE_4 = "physical_page(problem, in, sequence, logical_page)"
KV_HEAD = "const int kv_head = query_head / group_size(problem);"
CONTEXT = "const int context = in.context_lengths[sequence];"
CORRECTION = "const float correction = __expf(running_max - new_max);"
NEW_MAX = "const float new_max = fmaxf(running_max, score);"
MERGE_SUM = "running_sum = running_sum * correction + weight * partials.sum[part];"
MERGE_ACC = "rescale_add(accumulator[c], correction, weight, value);"
SKIP = "if (split_max == -INFINITY) continue;  // an empty split; the whole warp agrees"
CHUNK_OF_KEY = {
    numbers: f"const int chunk = c * WARP_SIZE + lane;\n{' ' * indent}const float4 key"
    for numbers, indent in (("24", 8), ("3", 10))
}
PARTIAL_OUT = "reinterpret_cast<float4*>(partials.output)[part * chunks + chunk] = accumulator[c];"
GUARDED_SUM = "(running_sum > 0.0f ? 1.0f / running_sum : 0.0f)"
DIVIDE_PART = PARTIAL_OUT.replace("accumulator[c]", f"rescale_add(accumulator[c], {GUARDED_SUM}, 0.0f, zero)")
DIVIDE_PART_UNGUARDED = PARTIAL_OUT.replace(
    "accumulator[c]", "rescale_add(accumulator[c], 1.0f / running_sum, 0.0f, zero)"
)


def one_of_four(text: str) -> Edit:
    return ("partial += dot(query[c], key);", text)


PLANTS: tuple[Plant, ...] = (
    # scores
    ("unscaled", "01", ((SCORE_01, ""),)),
    ("unscaled", "234", ((SCORE_234, "warp_sum(partial);"),)),
    ("scaled_twice", "01", ((SCORE_01, "score *= problem.scale * problem.scale;"),)),
    ("scaled_twice", "234", ((SCORE_234, "warp_sum(partial) / problem.head_dim;"),)),
    ("warp_0_only", "1", (("score += warp_sums[w];", "if (w == 0) score += warp_sums[w];"),)),
    ("warp_0_only", "0", (("d < problem.head_dim; ++d", "d < min(32, problem.head_dim); ++d"),)),
    ("warps_not_summed", "1", (("score += warp_sums[w];", "if (w == warp) score += warp_sums[w];"),)),
    (
        "lanes_not_summed",
        "0",
        (("for (int d = 0; d < problem.head_dim; ++d)", "for (int d = dim; d <= dim; ++d)"),),
    ),
    ("lanes_not_summed", "234", (("warp_sum(partial)", "partial"),)),
    (
        "total_in_lane_0",
        "234",
        (
            (
                "const float score = warp_sum(partial)",
                "for (int offset = 16; offset > 0; offset /= 2) "
                "partial += __shfl_down_sync(FULL_WARP, partial, offset);\nconst float score = partial",
            ),
        ),
    ),
    (
        "half_warp_summed",
        "1",
        (
            (
                "const float partial = warp_sum(query * key);",
                "float partial = query * key;\nfor (int offset = 8; offset > 0; offset /= 2) "
                "partial += __shfl_xor_sync(FULL_WARP, partial, offset);",
            ),
        ),
    ),
    (
        "half_warp_summed",
        "234",
        (
            (
                "const float score = warp_sum(partial)",
                "for (int offset = 8; offset > 0; offset /= 2) "
                "partial += __shfl_xor_sync(FULL_WARP, partial, offset);\nconst float score = partial",
            ),
        ),
    ),
    (
        "every_other_lane_summed",
        "234",
        (
            (
                "const float score = warp_sum(partial)",
                "for (int offset = 16; offset > 1; offset /= 2) "
                "partial += __shfl_xor_sync(FULL_WARP, partial, offset);\nconst float score = partial",
            ),
        ),
    ),
    ("first_chunk_only", "234", (one_of_four("if (c == 0) partial += dot(query[c], key);"),)),
    ("one_of_four", "234", (one_of_four("partial += query[c].x * key.x;"),)),
    ("first_chunk_of_keys_repeated", "24", (("keys[chunk] : zero", "keys[lane] : zero"),)),
    (
        "first_chunk_of_keys_repeated",
        "3",
        (("? key_shared[token * chunks + chunk]", "? key_shared[token * chunks + lane]"),),
    ),
    ("first_chunk_of_values_repeated", "24", (("values[chunk] : zero", "values[lane] : zero"),)),
    ("first_chunk_of_values_repeated", "3", (("weight, value[c])", "weight, value[0])"),)),
    *(
        ("first_chunk_repeated", numbers, ((chunk, chunk.replace("c * WARP_SIZE + lane", "lane")),))
        for numbers, chunk in CHUNK_OF_KEY.items()
    ),
    *(
        (
            "neighbouring_chunks",
            numbers,
            ((chunk, chunk.replace("c * WARP_SIZE + lane", "lane * CHUNKS_PER_LANE + c")),),
        )
        for numbers, chunk in CHUNK_OF_KEY.items()
    ),
    ("first_chunk_of_values_only", "23", ((ACC_234, f"c > 0 ? accumulator[c] : {ACC_234}"),)),
    # softmax
    ("max_not_subtracted", "01234", ((NEW_MAX, "const float new_max = 0.0f;"),)),
    ("max_starts_at_zero", "01234", (("float running_max = -INFINITY;", "float running_max = 0.0f;"),)),
    ("weight_without_max", "01234", ((WEIGHT, "__expf(score)"),)),
    ("sum_not_rescaled", "01234", ((SUM, "running_sum += weight;"),)),
    ("accumulator_not_rescaled", "01", ((ACC_01, "accumulator = accumulator"),)),
    ("accumulator_not_rescaled", "234", ((ACC_234, ACC_234.replace("correction", "1.0f")),)),
    (
        "nothing_rescaled",
        "0123",
        (("const float correction = __expf(running_max - new_max);", "const float correction = 1.0f;"),),
    ),
    (
        "nothing_rescaled",
        "4",
        (
            (
                f"{CORRECTION}\n      const float weight = __expf(score",
                "const float correction = 1.0f;\nconst float weight = __expf(score",
            ),
        ),
    ),
    ("max_not_kept", "0123", (("running_max = new_max;", ""),)),
    ("sum_not_divided", "01", (("accumulator / running_sum", "accumulator"),)),
    ("sum_not_divided", "23", (("context > 0 ? 1.0f / running_sum", "context > 0 ? 1.0f"),)),
    ("sum_not_divided", "4", (("running_sum > 0.0f ? 1.0f / running_sum", "running_sum > 0.0f ? 1.0f"),)),
    (
        "exp2_without_log2e",
        "0123",
        (("__expf(running_max", "exp2f(running_max"), (WEIGHT, "exp2f(score - new_max)")),
    ),
    ("exp2_without_log2e", "4", (("__expf(", "exp2f("),)),
    (
        "empty_context",
        "01",
        (("context > 0 ? accumulator / running_sum : 0.0f", "accumulator / running_sum"),),
    ),
    ("empty_context", "23", (("context > 0 ? 1.0f / running_sum : 0.0f", "1.0f / running_sum"),)),
    ("empty_context", "4", (("running_sum > 0.0f ? 1.0f / running_sum : 0.0f", "1.0f / running_sum"),)),
    (
        "empty_context",
        "0",
        (
            (
                "const int dim = threadIdx.x;",
                "const int dim = threadIdx.x;\nif (in.context_lengths[blockIdx.y] == 0) return;",
            ),
        ),
    ),
    # pages
    (
        "last_partial_page_dropped",
        "0",
        (("token < context;", "token < context / problem.page_size * problem.page_size;"),),
    ),
    (
        "last_partial_page_dropped",
        "123",
        ((LOOP_123, LOOP_123.replace("start < context", "start + problem.page_size <= context")),),
    ),
    (
        "last_partial_page_dropped",
        "4",
        (("(context + problem.page_size - 1) / problem.page_size", "context / problem.page_size"),),
    ),
    (
        "past_context_end",
        "0",
        (
            (
                "token < context;",
                "token < (context + problem.page_size - 1) / problem.page_size * problem.page_size;",
            ),
        ),
    ),
    ("past_context_end", "123", ((VALID_123, "const int valid = problem.page_size;"),)),
    ("past_context_end", "4", ((VALID_4, "const int valid = problem.page_size;"),)),
    ("one_token_too_many", "0", (("token < context;", "token <= context;"),)),
    ("last_token_skipped", "0", (("token < context;", "token < context - 1;"),)),
    (
        "last_token_skipped",
        "123",
        ((VALID_123, VALID_123.replace("context - start", "context - 1 - start")),),
    ),
    ("last_token_skipped", "4", ((VALID_4, VALID_4.replace("context -", "context - 1 -")),)),
    ("first_token_skipped", "0", (("int token = 0; token < context", "int token = 1; token < context"),)),
    ("first_page_only", "0", (("token < context;", "token < min(context, problem.page_size);"),)),
    (
        "first_page_only",
        "123",
        ((LOOP_123, "for (int start = 0; start < min(context, 1); start += problem.page_size) {"),),
    ),
    (
        "first_tile_only",
        "3",
        (
            (
                "for (int first = 0; first < valid; first += tile_tokens)",
                "for (int first = 0; first < min(valid, 1); first += tile_tokens)",
            ),
        ),
    ),
    ("first_tile_repeated", "3", (("page, first + token, kv_head", "page, token, kv_head"),)),
    ("first_page_repeated", "0", ((PAGE_0, "physical_page(problem, in, sequence, 0)"),)),
    ("first_page_repeated", "123", ((PAGE_123, "physical_page(problem, in, sequence, 0)"),)),
    ("first_page_repeated", "4", ((PAGE_4, "physical_page(problem, in, sequence, 0)"),)),
    ("slot_0_repeated", "12", (("++slot, at += token_stride(problem)", "++slot"),)),
    (
        "slot_0_repeated",
        "3",
        (("cache_offset(problem, page, first + token, kv_head)", "cache_offset(problem, page, 0, kv_head)"),),
    ),
    (
        "pages_reversed",
        "123",
        (
            (
                PAGE_123,
                PAGE_123.replace("start /", "(context - 1) / problem.page_size - start /"),
            ),
        ),
    ),
    ("pages_reversed", "4", ((PAGE_4, "physical_page(problem, in, sequence, pages - 1 - logical_page)"),)),
    ("table_ignored", "0", ((PAGE_0, "token / problem.page_size"),)),
    ("table_ignored", "123", ((PAGE_123, "start / problem.page_size"),)),
    ("table_ignored", "4", ((PAGE_4, "logical_page"),)),
    ("table_of_sequence_0", "0", ((PAGE_0, PAGE_0.replace("sequence", "0")),)),
    ("table_of_sequence_0", "123", ((PAGE_123, PAGE_123.replace("sequence", "0")),)),
    ("table_of_sequence_0", "4", ((PAGE_4, PAGE_4.replace("sequence", "0")),)),
    ("length_of_sequence_0", "01234", ((CONTEXT, "const int context = in.context_lengths[0];"),)),
    (
        "heads_before_slots",
        "0",
        (
            (
                "cache_offset(problem, page, token % problem.page_size, kv_head)",
                "(((size_t)page * problem.kv_heads + kv_head) * problem.page_size "
                "+ token % problem.page_size) * problem.head_dim",
            ),
        ),
    ),
    (
        "keys_and_values_swapped",
        "01234",
        (
            ("in.key_cache", "in.other_cache"),
            ("in.value_cache", "in.key_cache"),
            ("in.other_cache", "in.value_cache"),
        ),
    ),
    ("values_from_keys", "01234", (("in.value_cache", "in.key_cache"),)),
    ("keys_from_values", "01234", (("in.key_cache", "in.value_cache"),)),
    # heads
    ("kv_head_by_modulo", "0124", ((KV_HEAD, "const int kv_head = query_head % problem.kv_heads;"),)),
    (
        "kv_head_by_modulo",
        "3",
        (
            (
                "const int query_head = kv_head * group_size(problem) + warp;",
                "const int query_head = warp * problem.kv_heads + kv_head;",
            ),
        ),
    ),
    (
        "kv_head_off_by_one",
        "0124",
        ((KV_HEAD, "const int kv_head = (query_head + 1) / group_size(problem);"),),
    ),
    ("divided_by_kv_heads", "0124", ((KV_HEAD, "const int kv_head = query_head / problem.kv_heads;"),)),
    ("kv_head_0", "0124", ((KV_HEAD, "const int kv_head = 0;"),)),
    ("kv_head_0", "3", (("first + token, kv_head)", "first + token, 0)"),)),
    ("kv_head_not_grouped", "0124", ((KV_HEAD, "const int kv_head = query_head;"),)),
    (
        "query_of_group_first",
        "3",
        (
            (
                "(in.query + row)",
                "(in.query + query_offset(problem, sequence, kv_head * group_size(problem)))",
            ),
        ),
    ),
    (
        "query_of_sequence_0",
        "2",
        (("(in.query + row)", "(in.query + query_offset(problem, 0, query_head))"),),
    ),
    # merge
    (
        "merge_adds_unweighted",
        "4",
        (("const float weight = __expf(split_max - new_max);", "const float weight = 1.0f;"),),
    ),
    (
        "merge_adds_sums_unweighted",
        "4",
        ((MERGE_SUM, "running_sum = running_sum * correction + partials.sum[part];"),),
    ),
    (
        "merge_adds_values_unweighted",
        "4",
        ((MERGE_ACC, "rescale_add(accumulator[c], correction, 1.0f, value);"),),
    ),
    (
        "merge_without_correction",
        "4",
        (
            (MERGE_SUM, "running_sum += partials.sum[part];"),
            (MERGE_ACC, "rescale_add(accumulator[c], 1.0f, 1.0f, value);"),
        ),
    ),
    ("merge_sums_without_correction", "4", ((MERGE_SUM, "running_sum += partials.sum[part];"),)),
    (
        "merge_values_without_correction",
        "4",
        ((MERGE_ACC, "rescale_add(accumulator[c], 1.0f, 1.0f, value);"),),
    ),
    (
        "merge_averages",
        "4",
        (
            (PARTIAL_OUT, DIVIDE_PART),
            (MERGE_SUM, "running_sum += 1.0f / 1.0f;"),
            (MERGE_ACC, "rescale_add(accumulator[c], 1.0f, 1.0f, value);"),
            ("running_sum > 0.0f ? 1.0f / running_sum : 0.0f;", "1.0f / splits;"),
        ),
    ),
    (
        "merge_by_maximum_only",
        "4",
        ((PARTIAL_OUT, DIVIDE_PART), (MERGE_SUM, "running_sum = running_sum * correction + weight;")),
    ),
    ("divided_in_the_split", "4", ((PARTIAL_OUT, DIVIDE_PART),)),
    (
        "empty_split_counted",
        "4",
        (
            (PARTIAL_OUT, DIVIDE_PART_UNGUARDED),
            (SKIP, ""),
            (MERGE_ACC, "rescale_add(accumulator[c], correction, weight * partials.sum[part], value);"),
        ),
    ),
    (
        "first_split_only",
        "4",
        (("for (int split = 0; split < splits; ++split)", "for (int split = 0; split < 1; ++split)"),),
    ),
    (
        "last_split_dropped",
        "4",
        (
            (
                "for (int split = 0; split < splits; ++split)",
                "for (int split = 0; split < splits - 1; ++split)",
            ),
        ),
    ),
    ("split_rounded_down", "4", (("(pages + splits - 1) / splits", "pages / splits"),)),
    (
        "splits_overlap",
        "4",
        (("min(first_page + pages_per_split, pages)", "min(first_page + pages_per_split + 1, pages)"),),
    ),
    (
        "split_one_page_short",
        "4",
        (("min(first_page + pages_per_split, pages)", "min(first_page + pages_per_split - 1, pages)"),),
    ),
    # what the checks find
    ("racecheck", "1", (("__syncthreads();  // every thread has read them; they may be overwritten", ""),)),
    ("racecheck", "1", (("__syncthreads();  // every warp's sum is in shared memory", ""),)),
    ("racecheck", "3", (("__syncthreads();  // the tile is complete", ""),)),
    (
        "racecheck",
        "3",
        (("__syncthreads();  // every warp is done with the tile; it may be overwritten", ""),),
    ),
    ("initcheck", "3", (("token < tokens; token += warps", "token < 1; token += warps"),)),
    (
        "initcheck",
        "1",
        (("if (lane == 0) warp_sums[warp] = partial;", "if (threadIdx.x == 0) warp_sums[warp] = partial;"),),
    ),
    ("memcheck", "0", (("if (dim >= problem.head_dim) return;", ""),)),
    ("memcheck", "1", (("const bool owns_dim = dim < problem.head_dim;", "const bool owns_dim = true;"),)),
    ("memcheck", "1", (("owns_dim ? in.key_cache[at] : 0.0f", "in.key_cache[at]"),)),
    ("memcheck", "24", (("chunk < chunks ? keys[chunk] : zero", "keys[chunk]"),)),
    ("memcheck", "24", (("chunk < chunks ?", "true ?"),)),
)

# Stage 05: sizes are macros, a block owns a key/value head, partitions are runs of tokens.
LENGTH_5 = "in.context_lengths[blockIdx.y]"
PAGE_5 = "physical_page(problem, in, sequence, page)"
SCORE_5 = "transpose_sum<HEAD_SLOTS, HEADS>(products) * problem.scale"
HEAD_5 = "kv_head * GROUP_SIZE + min(first_head + h, GROUP_SIZE - 1)"
VALID_5 = "const bool valid = tile + warp_token + s * STEP_TOKENS + lane / HEAD_SLOTS < end;"
USED_5 = "const int used = (in.context_lengths[blockIdx.y] + PARTITION_TOKENS - 1) / PARTITION_TOKENS;"
SCALE_A, SCALE_B = (f"{part}.max == max ? 1.0f : __expf({part}.max - max)" for part in "ab")
PLANTS += (
    ("unscaled", "5", ((SCORE_5, "transpose_sum<HEAD_SLOTS, HEADS>(products)"),)),
    ("max_not_subtracted", "5", (("const float max = fmaxf(a.max, b.max);", "const float max = 0.0f;"),)),
    (
        "max_starts_at_zero",
        "5",
        (("Partial running = {-INFINITY, 0.0f};", "Partial running = {0.0f, 0.0f};"),),
    ),
    ("tiles_not_rescaled", "5", (("if (__any_sync(FULL_WARP, keep != 1.0f))", "if (false)"),)),
    ("combine_adds_sums", "5", (("scale_a * a.sum + scale_b * b.sum", "a.sum + b.sum"),)),
    ("combine_scales_nothing", "5", ((SCALE_A, "1.0f"), (SCALE_B, "1.0f"))),
    (
        "combine_scales_sums_only",
        "5",
        (
            ("scale_a * a.sum + scale_b * b.sum};", f"({SCALE_A}) * a.sum + ({SCALE_B}) * b.sum}};"),
            (f"scale_a = {SCALE_A};", "scale_a = 1.0f;"),
            (f"scale_b = {SCALE_B};", "scale_b = 1.0f;"),
        ),
    ),
    ("sum_not_divided", "5", (("whole.sum > 0.0f ? 1.0f / whole.sum", "whole.sum > 0.0f ? 1.0f"),)),
    ("empty_context", "5", (("whole.sum > 0.0f ? 1.0f / whole.sum : 0.0f", "1.0f / whole.sum"),)),
    ("last_partial_page_dropped", "5", ((LENGTH_5, f"({LENGTH_5} / PAGE_SIZE * PAGE_SIZE)"),)),
    ("past_context_end", "5", ((LENGTH_5, f"(({LENGTH_5} + PAGE_SIZE - 1) / PAGE_SIZE * PAGE_SIZE)"),)),
    ("last_token_skipped", "5", ((LENGTH_5, f"({LENGTH_5} - 1)"),)),
    (
        "first_token_skipped",
        "5",
        ((VALID_5, VALID_5.replace("< end", "< end && tile + warp_token + lane / HEAD_SLOTS > 0")),),
    ),
    (
        "pages_reversed",
        "5",
        ((PAGE_5, PAGE_5.replace("page)", "(in.context_lengths[sequence] - 1) / PAGE_SIZE - page)")),),
    ),
    ("table_ignored", "5", ((PAGE_5, "page"),)),
    ("length_of_sequence_0", "5", ((LENGTH_5, "in.context_lengths[0]"),)),
    (
        "keys_and_values_swapped",
        "5",
        (("copy_keys<", "copy_others<"), ("copy_values<", "copy_keys<"), ("copy_others<", "copy_values<")),
    ),
    (
        "kv_head_by_modulo",
        "5",
        (
            (HEAD_5, "min(first_head + h, GROUP_SIZE - 1) * problem.kv_heads + kv_head"),
            ("blockIdx.x * GROUP_SIZE + head", "head * problem.kv_heads + blockIdx.x"),
        ),
    ),
    ("kv_head_0", "5", ((f"{PAGE_5}, kv_head)", f"{PAGE_5}, 0)"),)),
    ("query_of_group_first", "5", ((HEAD_5, "kv_head * GROUP_SIZE"),)),
    (
        "query_of_sequence_0",
        "5",
        (("query_offset(problem, sequence, head)", "query_offset(problem, 0, head)"),),
    ),
    ("first_split_only", "5", ((USED_5, "const int used = min(1, in.context_lengths[blockIdx.y]);"),)),
    (
        "last_split_dropped",
        "5",
        ((USED_5, USED_5.replace("= (", "= min(partitions - 1, (").replace("TOKENS;", "TOKENS);")),),
    ),
    (
        "racecheck",
        "5",
        (("__syncthreads();  // the values are complete, and every warp is done with the keys", ""),),
    ),
    (
        "racecheck",
        "5",
        (
            (
                "    wait_for_copies();\n    __syncthreads();  // the keys are complete",
                "    wait_for_copies();\n    // the keys are complete",
            ),
        ),
    ),
)

# Stages towards the roof. Their ring reads all by itself: it can be told something wrong, its tiles can be
# taken too early, and what comes out of them can be counted wrongly.
RING_67 = "  PageRing<OnePartition, TOKEN_WARPS> ring(problem, in, {{sequence, start, end, kv_head}"
RING_89 = "  PageRing<BlockSegments, TOKEN_WARPS> ring(problem, in,"
VALID_6, VALID_7 = "lane / HEAD_SLOTS < end;", "i / 2 * 8 < end;"
LOOP_67 = "tile < end; tile"
CONTEXT_67 = "in.context_lengths[sequence]"
USED_67 = "const int used = (in.context_lengths[blockIdx.y] + PARTITION_TOKENS - 1) / PARTITION_TOKENS;"
HEAD_6, HEAD_7 = (
    "kv_head * GROUP_SIZE + min(first_head + h, GROUP_SIZE - 1)",
    "sequence, kv_head * GROUP_SIZE + head)",
)
KV_HEAD_89 = "(segment->head_group * BLOCK_HEADS + block_set) / HEAD_SETS}"
VALID_89 = "segment->end - tile, problem.scale"
PART_89, VALUE_89 = (
    "work.partials.part[entry] = part;",
    "work.partials.values[entry * COLUMNS + column] = merged;",
)
DIVIDED_89 = VALUE_89.replace("merged", "rescale_add(merged, 1.0f / part.sum, 0.0f, merged)")
PIECES_8, PIECES_9 = "pieces.y, output", "planned.pieces,\n"
WHOLE_PAGES = f"({CONTEXT_67} / PAGE_SIZE * PAGE_SIZE)"
FILLED_PAGES = "((end + PAGE_SIZE - 1) / PAGE_SIZE * PAGE_SIZE)"


def other_inputs(keys: str, values: str) -> dict[str, Edit]:
    """The ring copies from other arrays, for stages 06 and 07, and for 08 and 09."""
    change = f"  Inputs other = in;\n  other.key_cache = in.{keys};\n  other.value_cache = in.{values};\n"
    return {
        "67": (RING_67, change + RING_67.replace("problem, in,", "problem, other,")),
        "89": (RING_89, change + RING_89.replace("problem, in,", "problem, other,")),
    }


def until(valid: str, end: str) -> tuple[Edit, ...]:
    """Ring, loop and mask end somewhere else."""
    return (
        (RING_67, RING_67.replace("start, end,", f"start, {end},")),
        (LOOP_67, LOOP_67.replace("< end", f"< {end}")),
        (valid, valid.replace("< end", f"< {end}")),
    )


def ring_with(of: str, new: str) -> tuple[Edit, ...]:
    """The ring is told another sequence or key/value head."""
    segment = "{{sequence, start, end, kv_head}"
    return ((RING_67, RING_67.replace(segment, segment.replace(of, new))),)


PLANTS += (
    ("unscaled", "6", (("(products) * problem.scale;", "(products);"),)),
    (
        "unscaled",
        "7",
        (("(products[0][i] + products[1][i]) * problem.scale", "(products[0][i] + products[1][i])"),),
    ),
    ("unscaled", "89", ((VALID_89, "segment->end - tile, 1.0f"),)),
    ("scaled_twice", "67", (("* problem.scale", "* problem.scale * problem.scale"),)),
    ("scaled_twice", "89", ((VALID_89, f"{VALID_89} * problem.scale"),)),
    *(
        (name, stages, (edit,))
        for name, arrays in (
            ("keys_and_values_swapped", ("value_cache", "key_cache")),
            ("keys_from_values", ("value_cache", "value_cache")),
            ("values_from_keys", ("key_cache", "key_cache")),
        )
        for stages, edit in other_inputs(*arrays).items()
    ),
    *(
        (name, stage, until(valid, end))
        for stage, valid in (("6", VALID_6), ("7", VALID_7))
        for name, end in (
            ("past_context_end", FILLED_PAGES),
            ("last_partial_page_dropped", f"min(end, {WHOLE_PAGES})"),
        )
    ),
    ("last_token_skipped", "6", ((VALID_6, f"lane / HEAD_SLOTS < min(end, {CONTEXT_67} - 1);"),)),
    (
        "first_token_skipped",
        "6",
        ((VALID_6, f"{VALID_6[:-1]} && tile + s * STEP_TOKENS + lane / HEAD_SLOTS > 0;"),),
    ),
    ("last_token_skipped", "7", ((VALID_7, f"i / 2 * 8 < min(end, {CONTEXT_67} - 1);"),)),
    ("first_token_skipped", "7", ((VALID_7, f"{VALID_7[:-1]} && tile + row + i / 2 * 8 > 0;"),)),
    ("table_of_sequence_0", "67", ring_with("{{sequence", "{{0")),
    ("table_of_sequence_0", "89", (("next = {segment->sequence", "next = {0"),)),
    ("kv_head_0", "67", ring_with("kv_head}", "0}")),
    ("kv_head_0", "89", ((KV_HEAD_89, "0}"),)),
    ("next_kv_head", "67", ring_with("kv_head}", "kv_head + 1}")),
    ("next_kv_head", "89", ((KV_HEAD_89, KV_HEAD_89.replace("}", " + 1}")),)),
    ("query_of_group_first", "6", ((HEAD_6, "kv_head * GROUP_SIZE"),)),
    ("query_of_group_first", "7", ((HEAD_7, "sequence, kv_head * GROUP_SIZE)"),)),
    ("query_of_group_first", "89", (("sequence, first_head), last_head);", "sequence, first_head), 0);"),)),
    (
        "query_of_sequence_0",
        "6",
        (("query_offset(problem, sequence, head)", "query_offset(problem, 0, head)"),),
    ),
    (
        "query_of_sequence_0",
        "7",
        (("query_offset(problem, sequence, kv_head", "query_offset(problem, 0, kv_head"),),
    ),
    (
        "query_of_sequence_0",
        "89",
        (
            (
                "query_offset(problem, sequence, first_head), last",
                "query_offset(problem, 0, first_head), last",
            ),
        ),
    ),
    (
        "max_starts_at_zero",
        "6",
        (("Partial running = {-INFINITY, 0.0f};", "Partial running = {0.0f, 0.0f};"),),
    ),
    ("max_starts_at_zero", "7", (("max[2] = {-INFINITY, -INFINITY};", "max[2] = {0.0f, 0.0f};"),)),
    ("first_split_only", "67", ((USED_67, "const int used = min(1, in.context_lengths[blockIdx.y]);"),)),
    (
        "last_split_dropped",
        "67",
        ((USED_67, USED_67.replace("= (", "= min(partitions - 1, (").replace("TOKENS;", "TOKENS);")),),
    ),
    ("first_split_only", "8", ((PIECES_8, "min(1, pieces.y), output"),)),
    ("first_split_only", "9", ((PIECES_9, "min(1, planned.pieces),\n"),)),
    ("divided_in_the_split", "89", ((VALUE_89, DIVIDED_89),)),
    ("merge_without_correction", "89", ((PART_89, "work.partials.part[entry] = {0.0f, part.sum};"),)),
    (
        "merge_by_maximum_only",
        "89",
        ((PART_89, "work.partials.part[entry] = {part.max, 1.0f};"), (VALUE_89, DIVIDED_89)),
    ),
    ("synccheck", "67", (("values = ring.wait();", "values = ring.slots + ring.oldest * TILE_CHUNKS;"),)),
    (
        "synccheck",
        "89",
        (("tiles.weigh(ring.wait());", "tiles.weigh(ring.slots + ring.oldest * TILE_CHUNKS);"),),
    ),
    ("racecheck", "89", (("TOKEN_WARPS);\n    wait_for_set();", "TOKEN_WARPS);"),)),
)

# What a warp makes of its tiles. 06 and 07 work it out; 08 and 09 are given it in a header, which an author
# may still write anew.
VALID_8 = "segment->end - tile,"
MASK_6 = f"const bool valid = tile + s * STEP_TOKENS + {VALID_6}"
MASK_7 = f"const bool valid = tile + row + {VALID_7}"
ADD_TILE = "running = combine(running, merge_lanes(part), keep, take);"
ADD_TILE_SUM = "part = merge_lanes(part);\nconst float had = running.sum;\n" + ADD_TILE.replace(
    "merge_lanes(part)", "part"
)
ONLY_ADD_SUM = f"{ADD_TILE_SUM}\nrunning.sum = had + take * part.sum;"
IF_LARGER = "if (__any_sync(FULL_WARP, keep != 1.0f))"
SCALE_7 = "weighted[d][h] *= keep;\n        weighted[d][h + 2] *= keep;"
SCORE_7 = "weight[i] = valid ? (products[0][i] + products[1][i]) * problem.scale : -INFINITY;"
KEYS_7, VALUES_7 = (
    "chunk_address(keys, lane % 16, c + lane / 16)",
    "chunk_address(values, lane / 16 * 8 + lane % 8, c + lane / 8 % 2)",
)
IN_ORDER_6 = {name: (f"load_row<true>({name},", f"load_row<false>({name},") for name in ("keys", "values")}
IN_ORDER_7 = {
    name: (
        address,
        f"static_cast<unsigned>(__cvta_generic_to_shared({name})) + 16 * ({row} * ROW_CHUNKS + {column})",
    )
    for name, address, row, column in (
        ("keys", KEYS_7, "(lane % 16)", "c + lane / 16"),
        ("values", VALUES_7, "(lane / 16 * 8 + lane % 8)", "c + lane / 8 % 2"),
    )
}


def own_tile(*edits: Edit) -> tuple[Edit, ...]:
    """The header of a warp's attention by tensor cores, changed and in place of its inclusion."""
    text = (KERNELS / "roof" / "tile_mma.cuh").read_text(encoding="utf-8")
    for old, new in edits:
        if old not in text:
            raise ValueError(f"tile_mma.cuh has no {old!r}; mend tests/faulty/plants.py")
        text = text.replace(old, new)
    return (('#include "tile_mma.cuh"', text),)


PLANTS += (
    ("tiles_not_rescaled", "6", ((IF_LARGER, "if (false)"),)),
    ("tiles_not_rescaled", "7", ((SCALE_7, ""),)),
    (
        "tiles_not_rescaled",
        "89",
        own_tile(("weighted[d][h] *= keep;\n          weighted[d][h + 2] *= keep;", "")),
    ),
    ("tile_sums_not_rescaled", "56", ((ADD_TILE, ONLY_ADD_SUM),)),
    ("tile_sums_not_rescaled", "7", (("sum[h] * keep + weight[h]", "sum[h] + weight[h]"),)),
    ("tile_sums_not_rescaled", "89", own_tile(("sum[h] *= keep;", ""))),
    ("tiles_rescale_nothing", "56", ((ADD_TILE, ONLY_ADD_SUM), (IF_LARGER, "if (false)"))),
    (
        "tiles_rescale_nothing",
        "7",
        (("const float keep = __expf(max[h] - larger);", "const float keep = 1.0f;"),),
    ),
    (
        "tiles_rescale_nothing",
        "89",
        own_tile(("const float keep = __expf(max[h] - larger[h]);", "const float keep = 1;")),
    ),
    (
        "weights_by_tile_maximum",
        "56",
        ((ADD_TILE, ADD_TILE_SUM), ("__expf(score[s] - running.max)", "__expf(score[s] - part.max)")),
    ),
    ("tail_not_masked", "5", ((VALID_5, "const bool valid = true;"),)),
    ("tail_not_masked", "6", ((MASK_6, "const bool valid = true;"),)),
    ("tail_not_masked", "7", ((MASK_7, "const bool valid = true;"),)),
    ("tail_not_masked", "89", ((VALID_8, "TILE_TOKENS,"),)),
    ("tail_mask_off_by_one", "5", ((VALID_5, VALID_5.replace("< end", "<= end")),)),
    ("tail_mask_off_by_one", "6", ((MASK_6, MASK_6.replace("< end", "<= end")),)),
    ("tail_mask_off_by_one", "7", ((MASK_7, MASK_7.replace("< end", "<= end")),)),
    ("tail_mask_off_by_one", "89", ((VALID_8, "segment->end - tile + 1,"),)),
    ("last_token_of_parts_skipped", "5", ((VALID_5, VALID_5.replace("< end", "< end - 1")),)),
    ("last_token_of_parts_skipped", "6", ((MASK_6, MASK_6.replace("< end", "< end - 1")),)),
    ("last_token_of_parts_skipped", "7", ((MASK_7, MASK_7.replace("< end", "< end - 1")),)),
    ("last_token_of_parts_skipped", "89", ((VALID_8, "segment->end - 1 - tile,"),)),
    ("tail_in_maximum", "6", (("if (!valid) score[s] = -INFINITY;", ""),)),
    (
        "tail_in_maximum",
        "7",
        (
            (SCORE_7, SCORE_7.replace("valid ? ", "").replace(" : -INFINITY", "")),
            (
                "weight[h] = __expf(weight[h] - larger);",
                "weight[h] = tile + row < end ? __expf(weight[h] - larger) : 0;",
            ),
            (
                "weight[h + 2] = __expf(weight[h + 2] - larger);",
                "weight[h + 2] = tile + row + 8 < end ? __expf(weight[h + 2] - larger) : 0;",
            ),
        ),
    ),
    ("keys_in_order", "6", (IN_ORDER_6["keys"],)),
    ("values_in_order", "6", (IN_ORDER_6["values"],)),
    ("tiles_in_order", "6", (*IN_ORDER_6.values(),)),
    ("keys_in_order", "7", (IN_ORDER_7["keys"],)),
    ("values_in_order", "7", (IN_ORDER_7["values"],)),
    ("tiles_in_order", "7", (*IN_ORDER_7.values(),)),
    ("keys_turned", "7", (("load_matrices<false>(key,", "load_matrices<true>(key,"),)),
    ("values_not_turned", "7", (("load_matrices<true>(value,", "load_matrices<false>(value,"),)),
    ("weights_not_turned", "7", (("turn(pack(", "(pack("),)),
    ("weights_not_turned", "89", own_tile(("turn(pack(", "(pack("))),
)

REVERSE_TOKENS_12 = (
    (
        "size_t at = cache_offset(problem, page, 0, kv_head)",
        "size_t at = cache_offset(problem, page, valid - 1, kv_head)",
    ),
    ("at += token_stride(problem)", "at -= token_stride(problem)"),
)
HONEST: tuple[Plant, ...] = (
    (
        "exp2 with log2(e) folded into the scale",
        "01234",
        (("problem.scale;", "(problem.scale * 1.4426950408889634f);"), ("__expf(", "exp2f(")),
    ),
    (
        "a finite number for minus infinity",
        "0123",
        (("float running_max = -INFINITY;", "float running_max = -1e30f;"),),
    ),
    (
        "rescaled only where the maximum grows",
        "01234",
        (
            (
                "const float correction = __expf(running_max - new_max);",
                "const float correction = new_max > running_max ? __expf(running_max - new_max) : 1.0f;",
            ),
        ),
    ),
    ("the tokens of a page backwards", "124", REVERSE_TOKENS_12),
    (
        "the pages backwards",
        "0",
        (
            ("token < context;", "token < context;"),
            ("token / problem.page_size", "(context - 1 - token) / problem.page_size"),
            ("token % problem.page_size", "(context - 1 - token) % problem.page_size"),
        ),
    ),
    ("expf in place of __expf", "01234567", (("__expf(", "expf("),)),
    (
        "rescaled whether or not the maximum grew",
        "6",
        (("if (__any_sync(FULL_WARP, keep != 1.0f)) {", "{"),),
    ),
    ("one chain of products", "7", (("products[c / 2 % 2], key[0]", "products[0], key[0]"),)),
    (
        "loops not unrolled",
        "6",
        (("#pragma unroll\n          for (int d = 0; d < LANE_DIMS", "for (int d = 0; d < LANE_DIMS"),),
    ),
    (
        "summed in another order",
        "7",
        (
            (
                "sum[h] * keep + weight[h] + weight[h + 2]",
                "weight[h + 2] + weight[h] + sum[h] * keep",
            ),
        ),
    ),
    (
        "the whole block waits",
        "89",
        (("wait_for_set();  // before the next", "__syncthreads();  // before the next"),),
    ),
    (
        "rows counted the other way round",
        "89",
        (
            (
                "segment->first_partial + (size_t)(block_set * HEADS + h) * segment->pieces + segment->piece",
                "(size_t)segment->pieces * (h + HEADS * block_set) + segment->first_partial + segment->piece",
            ),
        ),
    ),
    ("the first column by its item", "89", (("if (column == 0) work", "if (item % COLUMNS == 0) work"),)),
    (
        "rescaled whether or not the maximum grew",
        "5",
        (("if (__any_sync(FULL_WARP, keep != 1.0f)) {", "{"),),
    ),
    ("four tokens of partials at a time, not unrolled", "5", (("#pragma unroll 4", "#pragma unroll 1"),)),
    (
        "splits merged backwards",
        "4",
        (
            (
                "for (int split = 0; split < splits; ++split)",
                "for (int split = splits - 1; split >= 0; --split)",
            ),
        ),
    ),
)


def planted(stage_number: str, edits: tuple[Edit, ...]) -> Source:
    """A stage's kernel with edits.

    Raises:
        ValueError: the kernel does not have a text that is to be replaced.
    """
    stage = find_stage(f"0{stage_number}")
    text = stage.source().text
    for old, new in edits:
        if old not in text:
            raise ValueError(f"{stage.id} has no {old!r}; mend tests/faulty/plants.py")
        text = text.replace(old, new)
    return Source(stage.path.name, text)
