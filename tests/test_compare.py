"""What is right passes with fp32 rounding; what is wrong never does, however small."""

import dataclasses

import numpy as np
import pytest

from labs_common.compare import compare, tolerance
from labs_common.inputs import make_inputs
from labs_common.problem import PRESETS, Problem, storage_dtype
from labs_common.reference import reference

PROBLEM = PRESETS["ragged"]


@pytest.fixture(scope="module")
def expected():
    return reference(PROBLEM, make_inputs(PROBLEM))


def test_the_reference_in_single_precision_is_right(expected):
    verdict = compare(expected.output.astype(np.float32), expected)

    assert verdict.ok
    assert verdict.max_error < 2**-23


def naive_float32(problem, inputs):
    """Attention in fp32 with the terms added one by one: the worst summation order that kernels use."""
    output = np.zeros(inputs.query.shape, np.float32)
    for b, length in enumerate(problem.context_lengths):
        for h in range(problem.query_heads):
            weight_sum, total = np.float32(0), np.zeros(problem.head_dim, np.float32)
            for token in range(length):
                page = inputs.block_tables[b, token // problem.page_size]
                at = (page, token % problem.page_size, h // problem.group_size)
                score = np.float32(0)
                for q, k in zip(inputs.query[b, h], inputs.key_cache[at], strict=True):
                    score = np.float32(score + q * k)
                weight = np.exp(np.float32(score * np.float32(inputs.scale)))
                weight_sum += weight
                total += weight * inputs.value_cache[at]
            if length:
                output[b, h] = total / weight_sum
    return output


def test_plain_fp32_summation_is_within_tolerance_and_not_far_from_it():
    """The limit is neither below what honest fp32 needs nor a hundred times above it."""
    problem = Problem(2, 1, 64, 16, (400, 3))
    inputs = make_inputs(problem)
    verdict = compare(naive_float32(problem, inputs), reference(problem, inputs))

    assert verdict.ok
    assert verdict.tolerance / 100 < verdict.max_error


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_value_that_is_not_finite_fails_and_is_named(expected, value):
    output = expected.output.astype(np.float32)
    output[2, 3, 77] = value

    verdict = compare(output, expected)

    assert not verdict.ok
    assert verdict.worst == (2, 3, 77)
    assert "not finite" in verdict.diagnosis and "batch 2, head 3, dimension 77" in verdict.diagnosis


def test_all_nan_zeros_wrong_shapes_and_swapped_heads_fail(expected):
    right = expected.output.astype(np.float32)
    group_swapped = right.reshape(5, 2, 4, 128)[:, ::-1].reshape(right.shape)

    for wrong in (
        np.full_like(right, np.nan),
        np.zeros_like(right),
        right[:, :, :64],
        right[:1],  # would broadcast
        right.mean(axis=0, keepdims=True),
        right.transpose(0, 2, 1),
        right[:, ::-1],
        group_swapped,
        right[::-1],
        right[:, :, ::-1],
    ):
        assert not compare(wrong, expected).ok


def test_zeros_fail_against_values_of_any_size():
    """A tolerance that is not relative passes zeros against an answer of 1e-4."""
    problem = PRESETS["tiny"]
    inputs = make_inputs(problem)
    for factor in (1e-4, 1e-20):
        inputs.value_cache[...] *= np.float32(factor)
        expected = reference(problem, inputs)

        assert not compare(np.zeros_like(inputs.query), expected).ok
        assert compare(expected.output.astype(np.float32), expected).ok


def test_an_empty_context_must_be_exactly_zero(expected):
    output = expected.output.astype(np.float32)
    output[0, 5, 1] = 1e-30

    verdict = compare(output, expected)

    assert not verdict.ok
    assert verdict.worst == (0, 5, 1)


@pytest.mark.parametrize("length", [512, 4096])
def test_leaving_out_the_last_token_fails(length):
    problem = Problem(1, 1, 64, 16, (length,))
    inputs = make_inputs(problem)
    shorter = problem.replace(context_lengths=(length - 1,))
    inputs_shorter = make_inputs(problem)
    inputs_shorter.context_lengths[0] = length - 1

    expected = reference(problem, inputs)
    dropped = reference(shorter, inputs_shorter).output.astype(np.float32)

    assert not compare(dropped, expected).ok


def test_the_worst_element_is_named(expected):
    output = expected.output.astype(np.float32)
    output[4, 7, 127] += 0.5

    verdict = compare(output, expected)

    assert verdict.worst == (4, 7, 127)
    assert "1 of 40 rows" in verdict.diagnosis


def test_tolerance_by_hand(expected):
    """T = 512: (16 + 4*sqrt(512) + 8*score_size) / 2^24."""
    by_hand = (16 + 4 * 512**0.5 + 8 * expected.score_size[4, 0]) / 2**24

    assert tolerance(expected)[4, 0, 0] == pytest.approx(by_hand)


def test_a_half_precision_output_may_be_rounded_but_no_more():
    problem = Problem(2, 1, 64, 16, (300,), dtype="float16")
    expected = reference(problem, make_inputs(problem))
    rounded = expected.output.astype(np.float16)
    off = rounded.copy()
    off[0, 1, 5] = np.nextafter(np.nextafter(off[0, 1, 5], np.float16(9)), np.float16(9))

    assert compare(rounded, expected).ok
    assert not compare(off, expected).ok


def test_an_empty_batch_is_right():
    problem = Problem(4, 2, 8, 16, ())
    expected = reference(problem, make_inputs(problem))

    assert compare(np.zeros((0, 4, 8), np.float32), expected).ok


@pytest.mark.parametrize(("weights", "bits"), [("float16", 11), ("bfloat16", 8)])
def test_rounded_weights_are_allowed_where_a_stage_rounds_them(weights, bits):
    """A weight of 1/3 in 16 bits errs by up to 2^-bits of itself: too much for fp32, allowed for it."""
    problem = Problem(1, 1, 64, 16, (3,), "bfloat16")
    inputs = make_inputs(problem, 5)
    inputs = dataclasses.replace(inputs, query=np.zeros_like(inputs.query))
    expected = reference(problem, inputs)
    exact = dataclasses.replace(expected, problem=problem.replace(dtype="float32"))
    off = expected.output + 0.9 * 2.0**-bits * expected.magnitude[:, :, None]

    assert compare(off, exact, weights).ok
    assert not compare(off, exact).ok
    assert not compare(off + 0.5 * (off - expected.output), exact, weights).ok


def test_a_bfloat16_output_may_be_off_by_half_a_unit():
    problem = Problem(2, 1, 64, 16, (300,), "bfloat16")
    expected = reference(problem, make_inputs(problem))
    rounded = expected.output.astype(storage_dtype("bfloat16"))
    off = rounded.copy()
    off[0, 1, 5] = (off[:, 1, 5].view(np.uint16) + np.uint16(2)).view(off.dtype)[0]

    assert compare(rounded, expected).ok
    assert not compare(off, expected).ok
