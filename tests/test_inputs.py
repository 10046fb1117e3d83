"""Inputs are poisoned wherever a right kernel does not read, and checked before any launch."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labs_common.inputs import SPARE_PAGES, make_inputs, validate_inputs
from labs_common.problem import DTYPES, PRESETS, Problem
from labs_common.reference import reference

problems = st.builds(
    lambda kv_heads, group, head_dim, page_size, lengths: Problem(
        kv_heads * group, kv_heads, head_dim, page_size, tuple(lengths)
    ),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(1, 20),
    st.lists(st.integers(0, 70), min_size=0, max_size=5),
)


@given(problems, st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_exactly_the_slots_that_some_sequence_uses_are_finite(problem, seed):
    inputs = make_inputs(problem, seed)

    used = set()
    for row, length in enumerate(problem.context_lengths):
        for token in range(length):
            page = inputs.block_tables[row, token // problem.page_size]
            used.add((int(page), token % problem.page_size))
    for cache in (inputs.key_cache, inputs.value_cache):
        for page in range(cache.shape[0]):
            for slot in range(cache.shape[1]):
                finite = np.isfinite(cache[page, slot])
                assert finite.all() if (page, slot) in used else not finite.any()


@given(problems, st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_unused_table_entries_name_no_page_and_used_ones_do(problem, seed):
    inputs = make_inputs(problem, seed)

    pages = inputs.key_cache.shape[0]
    for row, count in enumerate(problem.pages_per_sequence):
        entries = inputs.block_tables[row].astype(np.int64)
        assert ((entries[:count] >= 0) & (entries[:count] < pages)).all()
        assert ((entries[count:] < 0) | (entries[count:] >= pages)).all()


def test_a_page_is_shared_by_two_sequences_and_no_other_is():
    inputs = make_inputs(PRESETS["ragged"])

    used = [
        page
        for row, n in enumerate(PRESETS["ragged"].pages_per_sequence)
        for page in inputs.block_tables[row, :n]
    ]
    pages, counts = np.unique(used, return_counts=True)
    assert sorted(counts)[-2:] == [1, 2]
    assert len(pages) + SPARE_PAGES == inputs.key_cache.shape[0]


def test_page_tables_are_shuffled():
    table = make_inputs(PRESETS["ragged"]).block_tables[4, :32]

    assert not np.array_equal(table, np.arange(32))
    assert not (np.diff(table) == 1).all()


def test_the_same_seed_gives_the_same_inputs_and_another_gives_others():
    first, again, other = (make_inputs(PRESETS["tiny"], seed) for seed in (7, 7, 8))

    for name, array in first.arrays().items():
        assert array.tobytes() == again.arrays()[name].tobytes()
    assert first.query.tobytes() != other.query.tobytes()


def with_array(inputs, **changes):
    return dataclasses.replace(inputs, **changes)


def test_wrong_arrays_are_refused_by_name():
    problem = PRESETS["tiny"]
    inputs = make_inputs(problem)
    wide = np.zeros((*inputs.query.shape[:2], 2 * problem.head_dim), np.float32)

    cases = {
        "query has strides": {"query": wide[:, :, ::2]},
        "query has shape": {"query": inputs.query[:, :1]},
        "key_cache has dtype float64": {"key_cache": inputs.key_cache.astype(np.float64)},
        "block_tables has dtype int64": {"block_tables": inputs.block_tables.astype(np.int64)},
        "value_cache has strides": {"value_cache": np.asfortranarray(inputs.value_cache)},
        "context_lengths has shape": {"context_lengths": inputs.context_lengths[:1]},
        "differ in shape": {"key_cache": inputs.key_cache[:-1]},
        "scale=nan": {"scale": float("nan")},
    }
    for message, change in cases.items():
        with pytest.raises(ValueError, match=message):
            validate_inputs(problem, with_array(inputs, **change))


@pytest.mark.parametrize("entry", [-1, 99999, 2**31 - 1])
def test_a_used_table_entry_that_names_no_page_gives_row_and_column(entry):
    problem = PRESETS["tiny"]
    inputs = make_inputs(problem)
    tables = inputs.block_tables.copy()
    tables[1, 1] = entry

    with pytest.raises(ValueError, match=rf"block_tables\[1, 1\]={entry}"):
        validate_inputs(problem, with_array(inputs, block_tables=tables))


def test_a_context_longer_than_its_table_is_refused():
    problem = PRESETS["tiny"]
    inputs = make_inputs(problem)
    lengths = inputs.context_lengths.copy()
    lengths[1] = inputs.block_tables.shape[1] * problem.page_size + 1

    with pytest.raises(ValueError, match=r"context_lengths\[1\]=49"):
        validate_inputs(problem, with_array(inputs, context_lengths=lengths))
    with pytest.raises(ValueError, match=r"context_lengths\[1\]=49"):
        reference(problem, with_array(inputs, context_lengths=lengths))


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_of_every_dtype_have_poison_where_nobody_may_read(dtype):
    problem = Problem(4, 2, 32, 4, (6, 0), dtype)
    inputs = make_inputs(problem, 1)

    validate_inputs(problem, inputs)
    key = inputs.key_cache.astype(np.float64)
    first, second = inputs.block_tables[0, :2]
    assert np.isfinite(key[first]).all() and np.isfinite(key[second, :2]).all()
    assert np.isnan(key[second, 2:]).all()
    assert inputs.key_cache.dtype.itemsize == problem.itemsize
    assert inputs.query.dtype == (np.float16 if "float8" in dtype else inputs.key_cache.dtype)
