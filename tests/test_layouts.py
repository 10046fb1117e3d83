"""Layouts: every element where its formula says, both ways, and the same problem in each of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labs_common.inputs import make_inputs, validate_inputs
from labs_common.layouts import cache_shapes, chunk_elements, from_nhd, to_nhd
from labs_common.problem import DTYPES, LAYOUTS, PRESETS, Problem
from labs_common.reference import reference

problems = st.builds(
    lambda heads, chunks, page_size, dtype, lengths: Problem(
        heads, heads, 16 * chunks, page_size, tuple(lengths), dtype
    ),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 9),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 30), max_size=3),
)


def numbered(problem, pages):
    """NHD caches of the dtype's width in which no two elements are alike, as far as its bits can count."""
    shape = cache_shapes(problem, pages, "NHD")[0]
    key = np.arange(np.prod(shape)).reshape(shape).astype(f"u{problem.itemsize}")
    return key, ~key


@given(problems, st.integers(0, 5), st.sampled_from(LAYOUTS))
@settings(max_examples=80, deadline=None)
def test_there_and_back_again_changes_no_bit(problem, pages, layout):
    key, value = numbered(problem, pages)

    there = from_nhd(problem, key, value, layout)
    back = to_nhd(problem, *there, layout)

    assert all(array.flags.c_contiguous for array in (*there, *back))
    assert back[0].tobytes() == key.tobytes() and back[1].tobytes() == value.tobytes()
    assert back[0].shape == key.shape and back[1].shape == value.shape


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_address_of_every_element(dtype):
    """The offset of (page, slot, head, dimension) by the formulas of each layout, written out."""
    problem = Problem(3, 3, 48, 4, (), dtype)
    pages, x = 2, {"float32": 4, "float16": 8, "bfloat16": 8, "float8_e4m3fn": 16}[dtype]
    key, value = numbered(problem, pages)
    flat = {layout: [a.ravel() for a in from_nhd(problem, key, value, layout)] for layout in LAYOUTS}

    for page, slot, head, d in np.ndindex(pages, 4, 3, 48):
        packed_key = (((page * 3 + head) * (48 // x) + d // x) * 4 + slot) * x + d % x
        offsets = {
            "NHD": ((page * 4 + slot) * 3 + head) * 48 + d,
            "HND": ((page * 3 + head) * 4 + slot) * 48 + d,
            "packed": packed_key,
        }
        for layout, offset in offsets.items():
            assert flat[layout][0][offset] == key[page, slot, head, d]
            if layout == "packed":
                offset = ((page * 3 + head) * 48 + d) * 4 + slot
            assert flat[layout][1][offset] == value[page, slot, head, d]


def test_shapes_of_the_second_documents_problem():
    shapes = cache_shapes(PRESETS["long"], 6250, "packed")

    assert shapes == ((6250, 4, 32, 16, 8), (6250, 4, 256, 16))
    assert chunk_elements(PRESETS["long"]) == 8


@given(problems, st.integers(0, 2**16))
@settings(max_examples=25, deadline=None)
def test_the_layout_moves_the_inputs_and_nothing_else(problem, seed):
    by_layout = {layout: make_inputs(problem.replace(layout=layout), seed) for layout in LAYOUTS}

    plain = by_layout["NHD"]
    for layout, inputs in by_layout.items():
        moved = problem.replace(layout=layout)
        validate_inputs(moved, inputs)
        key, value = to_nhd(moved, inputs.key_cache, inputs.value_cache)
        assert key.tobytes() == plain.key_cache.tobytes()
        assert value.tobytes() == plain.value_cache.tobytes()
        assert inputs.query.tobytes() == plain.query.tobytes()
        assert inputs.block_tables.tobytes() == plain.block_tables.tobytes()
        assert reference(moved, inputs).output.tobytes() == reference(problem, plain).output.tobytes()


@pytest.mark.parametrize(("dtype", "head_dim", "x"), [("float16", 36, 8), ("float32", 6, 4)])
def test_a_packed_head_dim_that_is_no_multiple_of_x_is_refused(dtype, head_dim, x):
    with pytest.raises(ValueError, match=f"head_dim={head_dim}: the packed layout takes multiples of {x}"):
        Problem(2, 1, head_dim, 16, (3,), dtype, "packed")
    with pytest.raises(ValueError, match=f"head_dim={head_dim}"):
        cache_shapes(Problem(2, 1, head_dim, 16, (3,), dtype), layout="packed")


def test_arrays_of_another_layout_are_refused_by_shape():
    problem = Problem(4, 2, 64, 16, (40,))
    inputs = make_inputs(problem.replace(layout="packed"))

    with pytest.raises(ValueError, match=r"key_cache has shape .*needs \('any', 16, 2, 64\)"):
        validate_inputs(problem, inputs)
    with pytest.raises(ValueError, match=r"key has shape .*; NHD needs"):
        from_nhd(problem, inputs.key_cache, inputs.value_cache, "packed")
    with pytest.raises(ValueError, match="layout='DHN': allowed are NHD, HND, packed"):
        cache_shapes(problem, layout="DHN")
