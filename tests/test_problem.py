"""A problem is validated once, by name, and knows its own sizes."""

import dataclasses

import pytest

from labs_common.problem import PRESETS, Problem, find_problem


def test_presets_are_the_two_documents_and_two_small_ones():
    seed, long = PRESETS["seed"], PRESETS["long"]

    assert (seed.batch, seed.query_heads, seed.kv_heads, seed.head_dim, seed.page_size) == (
        64,
        32,
        8,
        128,
        16,
    )
    assert (long.batch, long.query_heads, long.kv_heads, long.head_dim) == (1, 24, 4, 256)
    assert (long.context_lengths, long.dtype, long.group_size) == ((100_000,), "float16", 6)
    assert {"tiny", "ragged"} <= set(PRESETS)


def test_the_ragged_preset_has_every_kind_of_context():
    lengths, page = PRESETS["ragged"].context_lengths, PRESETS["ragged"].page_size

    assert 0 in lengths and 1 in lengths and page in lengths
    assert any(length > page and length % page for length in lengths)
    assert len(lengths) >= 4 and max(lengths) == 512


def test_sizes_by_hand():
    problem = Problem(4, 2, 8, 16, (0, 1, 16, 17))

    assert problem.pages_per_sequence == (0, 1, 1, 2)
    assert problem.max_pages == 2
    assert problem.kv_bytes == 2 * 34 * 2 * 8 * 4
    # query and output of 4 x 4 x 8 floats, 4 used table entries, 4 context lengths
    assert problem.minimum_bytes == problem.kv_bytes + 2 * 4 * 4 * 8 * 4 + 4 * 4 + 4 * 4


def test_an_empty_batch_is_a_problem():
    assert Problem(4, 2, 8, 16, ()).batch == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("query_heads", 0),
        ("kv_heads", -1),
        ("head_dim", 0),
        ("page_size", 0),
        ("head_dim", 2.5),
        ("page_size", "16"),
        ("kv_heads", True),
        ("head_dim", 2**31),
        ("context_lengths", (5, -1)),
        ("dtype", "float8"),
        ("layout", "DHN"),
    ],
)
def test_a_bad_field_is_named_with_its_value(field, value):
    with pytest.raises(ValueError, match=field) as error:
        PRESETS["tiny"].replace(**{field: value})

    bad = value[-1] if isinstance(value, tuple) else value
    assert str(bad) in str(error.value)


@pytest.mark.parametrize(("query_heads", "kv_heads"), [(10, 4), (7, 2), (4, 8)])
def test_a_group_that_is_not_whole_is_refused(query_heads, kv_heads):
    with pytest.raises(ValueError, match=f"query_heads={query_heads}.*kv_heads={kv_heads}"):
        Problem(query_heads, kv_heads, 64, 16, (5,))


def test_a_problem_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PRESETS["tiny"].head_dim = 5


def test_an_unknown_preset_lists_the_known():
    with pytest.raises(ValueError, match=r"'nosuch'.*tiny.*ragged.*seed.*long"):
        find_problem("nosuch")


def test_an_fp8_cache_has_float16_queries_and_scales():
    problem = Problem(4, 2, 16, 16, (17,), "float8_e4m3fn", key_scale=0.5, value_scale=2)

    assert (problem.query_dtype, problem.itemsize) == ("float16", 1)
    assert problem.kv_bytes == 2 * 17 * 2 * 16
    # query and output of 4 x 16 halves, 2 table entries, 1 context length
    assert problem.minimum_bytes == problem.kv_bytes + 2 * 4 * 16 * 2 + 4 * 2 + 4
    assert Problem(4, 2, 16, 16, (17,), "bfloat16").query_dtype == "bfloat16"


@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), float("inf"), "1"])
def test_a_scale_is_a_positive_number(scale):
    with pytest.raises(ValueError, match=r"value_scale=.* must be a positive number"):
        Problem(4, 2, 16, 16, (17,), "float8_e4m3fn", value_scale=scale)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_only_an_fp8_cache_is_scaled(dtype):
    with pytest.raises(ValueError, match=rf"key_scale=0.5: only a cache of float8_e4m3fn is scaled; {dtype}"):
        Problem(4, 2, 16, 16, (17,), dtype, key_scale=0.5)
