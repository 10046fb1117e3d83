"""The reference against attention written out token by token, and against cases worked by hand."""

import math

import numpy as np
import pytest

from labs_common.inputs import Inputs, make_inputs
from labs_common.problem import PRESETS, Problem
from labs_common.reference import reference


def by_loops(problem, inputs):
    """Attention with Python floats, one token at a time."""
    output = np.zeros(inputs.query.shape)
    log_sum_exp = np.full(inputs.query.shape[:2], -math.inf)
    for b in range(problem.batch):
        for h in range(problem.query_heads):
            scores, values = [], []
            for token in range(int(inputs.context_lengths[b])):
                page = inputs.block_tables[b, token // problem.page_size]
                at = (page, token % problem.page_size, h // (problem.query_heads // problem.kv_heads))
                products = [
                    float(x) * float(y) for x, y in zip(inputs.query[b, h], inputs.key_cache[at], strict=True)
                ]
                scores.append(inputs.scale * math.fsum(products))
                values.append(inputs.value_cache[at])
            if scores:
                weights = [math.exp(s - max(scores)) for s in scores]
                total = math.fsum(weights)
                log_sum_exp[b, h] = max(scores) + math.log(total)
                for d in range(problem.head_dim):
                    output[b, h, d] = (
                        math.fsum(w * float(v[d]) for w, v in zip(weights, values, strict=True)) / total
                    )
    return output, log_sum_exp


@pytest.mark.parametrize(
    "problem",
    [PRESETS["tiny"], Problem(6, 2, 12, 5, (0, 1, 5, 23)), Problem(3, 1, 7, 4, (9,), dtype="float16")],
    ids=str,
)
def test_against_attention_token_by_token(problem):
    inputs = make_inputs(problem, seed=3)
    output, log_sum_exp = by_loops(problem, inputs)

    result = reference(problem, inputs)

    np.testing.assert_allclose(result.output, output, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(result.log_sum_exp, log_sum_exp, rtol=1e-13)


def test_an_empty_context_is_exactly_zero_with_log_sum_exp_minus_infinity():
    result = reference(PRESETS["ragged"], make_inputs(PRESETS["ragged"]))

    assert (result.output[0] == 0).all()
    assert (result.log_sum_exp[0] == -np.inf).all()
    assert np.isfinite(result.log_sum_exp[1:]).all()


def test_extreme_scores_by_hand():
    """Equal scores of -245,760 weigh five tokens of value 0 to 4 alike: 2."""
    problem = Problem(1, 1, 128, 16, (5,))
    inputs = Inputs(
        query=np.full((1, 1, 128), 40, np.float32),
        key_cache=np.full((1, 16, 1, 128), -48, np.float32),
        value_cache=np.broadcast_to(
            np.arange(16, dtype=np.float32)[None, :, None, None], (1, 16, 1, 128)
        ).copy(),
        block_tables=np.zeros((1, 1), np.int32),
        context_lengths=np.array([5], np.int32),
        scale=1.0,
    )

    result = reference(problem, inputs)

    assert (result.output == 2.0).all()
    assert result.log_sum_exp[0, 0] == pytest.approx(-245760 + math.log(5))
    assert result.score_size[0, 0] == 245760


def test_one_token_returns_its_value():
    problem = Problem(4, 2, 8, 4, (1,))
    inputs = make_inputs(problem)

    value = inputs.value_cache[inputs.block_tables[0, 0], 0]

    np.testing.assert_array_equal(reference(problem, inputs).output[0], np.repeat(value, 2, axis=0))


def test_fp8_keys_and_values_count_times_their_scales():
    """Two tokens share the weight by their scaled scores; the output is their scaled values' mean."""
    problem = Problem(1, 1, 16, 4, (2,), "float8_e4m3fn", key_scale=2.0, value_scale=0.25)
    inputs = make_inputs(problem, 3)
    page = inputs.block_tables[0, 0]
    key, value = (cache[page, :2, 0].astype(np.float64) for cache in (inputs.key_cache, inputs.value_cache))
    scores = [2.0 * float(inputs.query[0, 0].astype(np.float64) @ k) / 4.0 for k in key]
    weights = [math.exp(s) / sum(math.exp(t) for t in scores) for s in scores]

    expected = reference(problem, inputs)

    np.testing.assert_allclose(
        expected.output[0, 0], 0.25 * (weights[0] * value[0] + weights[1] * value[1]), rtol=1e-12
    )
    assert expected.log_sum_exp[0, 0] == pytest.approx(math.log(sum(math.exp(s) for s in scores)))
