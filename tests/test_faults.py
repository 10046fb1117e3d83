"""The models of known faults: right where nothing is changed, by hand where something is, and told apart."""

import dataclasses
import itertools

import numpy as np
import pytest

from labs_common.fault_model import EXACT, RIGHT, Case, fits, model, told_apart, work_of
from labs_common.faults import FAULTS, TOPICS, probe_models, wrong_reference
from labs_common.inputs import make_inputs
from labs_common.probes import PROBES
from labs_common.problem import Problem
from labs_common.reference import reference
from labs_common.stages import ALL_STAGES, find_stage

BY_NAME = {fault.name: fault for fault in FAULTS}
by_stage = pytest.mark.parametrize("stage", ALL_STAGES, ids=lambda s: s.id)


def test_names_are_unique_and_topics_known():
    assert len(BY_NAME) == len(FAULTS)
    assert {fault.topic for fault in FAULTS} == set(TOPICS)


@by_stage
def test_every_pair_of_faults_is_told_apart_by_some_probe(stage):
    models = probe_models(stage)
    names = list(next(iter(models.values())))
    assert names[0] == "right" and len(names) > 30

    alike = [
        pair
        for pair in itertools.combinations(names, 2)
        if not any(told_apart(models[probe][pair[0]], models[probe][pair[1]]) for probe in models)
    ]

    assert alike == []


@by_stage
def test_an_output_of_one_fault_fits_no_other(stage):
    """The same from the other side: what is fed to the diagnosis is named once."""
    models = probe_models(stage)
    names = list(next(iter(models.values())))
    for name in names:
        if any((models[probe][name].binding != EXACT).any() for probe in models):
            continue  # a real kernel decides there; those are planted
        explained_by = [
            other
            for other in names
            if all(fits(models[probe][name].output, models[probe][other]) for probe in models)
        ]
        assert explained_by == [name]


@by_stage
@pytest.mark.parametrize("probe", PROBES, ids=lambda p: p.name)
def test_without_a_fault_the_model_is_the_reference(stage, probe):
    probe = probe.fitted(stage)
    inputs = probe.inputs()
    case = Case(probe.problem, inputs, work_of(probe.problem, probe.plan(stage)))

    modelled = model(case, RIGHT)

    assert (modelled.binding == EXACT).all()
    np.testing.assert_allclose(
        modelled.output, reference(probe.problem, inputs).output, rtol=1e-9, atol=1e-12
    )


def output_of(name, problem, inputs, stage=0, **options):
    return wrong_reference(BY_NAME[name], problem, inputs, find_stage(stage).plan(problem, **options))


def counting(problem):
    """Equal scores, and token t's value is t; 100 in the slots behind the context."""
    inputs = make_inputs(problem)
    inputs.query[...] = 0
    inputs.key_cache[...] = 1
    inputs.value_cache[...] = 100
    for row, length in enumerate(problem.context_lengths):
        for token in range(length):
            page = inputs.block_tables[row, token // problem.page_size]
            inputs.value_cache[page, token % problem.page_size] = token
    return inputs


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("last_token_skipped", (0 + 1 + 2 + 3) / 4),
        ("first_token_skipped", (1 + 2 + 3 + 4) / 4),
        ("last_partial_page_dropped", (0 + 1 + 2 + 3) / 4),
        ("past_context_end", (0 + 1 + 2 + 3 + 4 + 100) / 6),
        ("one_token_too_many", (0 + 1 + 2 + 3 + 4 + 100) / 6),
        ("first_page_only", (0 + 1) / 2),
        ("last_page_only", 4),
        ("first_page_repeated", (0 + 1 + 0 + 1 + 0) / 5),
        ("slot_0_repeated", (0 + 0 + 2 + 2 + 4) / 5),
        ("pages_reversed", (4 + 100 + 2 + 3 + 0) / 5),
        ("sum_not_divided", 0 + 1 + 2 + 3 + 4),
        ("max_not_kept", 4),
        ("values_from_keys", 1),
    ],
)
def test_five_tokens_of_equal_weight_on_pages_of_two(name, expected):
    problem = Problem(1, 1, 4, 2, (5,))

    output = output_of(name, problem, counting(problem))

    np.testing.assert_allclose(output, np.full((1, 1, 4), float(expected)), rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("first_split_only", (0 + 1 + 2 + 3) / 4),  # two pages of two tokens
        ("last_split_dropped", (0 + 1 + 2 + 3) / 4),
        ("merge_averages", (1.5 + 4) / 2),
        ("merge_by_maximum_only", (1.5 + 4) / 2),
        ("divided_in_the_split", (1.5 + 4) / 5),
        ("split_rounded_down", (0 + 1 + 2 + 3) / 4),  # three pages in two splits of one
        ("splits_overlap", (0 + 1 + 2 + 3 + 4 + 4) / 6),
        ("split_one_page_short", (0 + 1 + 4) / 3),  # the second split's one page is within its bound
    ],
)
def test_two_splits_of_five_tokens(name, expected):
    problem = Problem(1, 1, 4, 2, (5,))

    output = output_of(name, problem, counting(problem), stage=4, splits=2)

    np.testing.assert_allclose(output, np.full((1, 1, 4), float(expected)), rtol=1e-12)


def two_scores(problem, first, second):
    """A context of two tokens with these scores and the values 1 and 3."""
    inputs = make_inputs(problem)
    page = inputs.block_tables[0, 0]
    inputs.query[...] = 1
    inputs.key_cache[...] = 0
    inputs.key_cache[page, 0, 0, 0], inputs.key_cache[page, 1, 0, 0] = first, second
    inputs.value_cache[page, 0], inputs.value_cache[page, 1] = 1, 3
    return dataclasses.replace(inputs, scale=1.0)


def test_scores_of_zero_and_log_two():
    """Weights 1 and 2; under the first maximum 1, under the second 1/2 and 1."""
    problem = Problem(1, 1, 4, 2, (2,))
    inputs = two_scores(problem, 0.0, np.log(2.0))

    for name, expected in {
        "exp2_without_log2e": (1 + 3 * 2 ** np.log(2.0)) / (1 + 2 ** np.log(2.0)),
        "sum_not_rescaled": (0.5 * 1 + 3) / (1 + 1),
        "accumulator_not_rescaled": (1 + 3) / (0.5 + 1),
        "nothing_rescaled": (1 + 3) / (1 + 1),
        "weight_without_max": (0.5 * 1 + 2 * 3) / (0.5 + 2),
    }.items():
        output = output_of(name, problem, inputs)
        np.testing.assert_allclose(output, np.full((1, 1, 4), expected), rtol=1e-7, err_msg=name)


def test_scores_far_from_zero_leave_nothing_in_float32():
    problem = Problem(1, 1, 4, 2, (2,))
    high, low = two_scores(problem, 150.0, 151.0), two_scores(problem, -150.0, -151.0)

    assert np.isnan(output_of("max_not_subtracted", problem, high)).all()
    assert np.isnan(output_of("max_not_subtracted", problem, low)).all()
    assert np.isfinite(output_of("max_starts_at_zero", problem, high)).all()
    assert np.isnan(output_of("max_starts_at_zero", problem, low)).all()


@pytest.mark.parametrize(
    ("name", "used"),
    [
        ("kv_head_by_modulo", [0, 1, 2, 0, 1, 2]),
        ("divided_by_kv_heads", [0, 0, 0, 1, 1, 1]),
        ("kv_head_0", [0, 0, 0, 0, 0, 0]),
    ],
)
def test_six_query_heads_over_three(name, used):
    problem = Problem(6, 3, 4, 2, (1,))
    inputs = make_inputs(problem)
    inputs.value_cache[inputs.block_tables[0, 0], 0] = np.arange(3)[:, None]

    output = output_of(name, problem, inputs)

    assert output[0, :, 0].tolist() == used
    assert reference(problem, inputs).output[0, :, 0].tolist() == [0, 0, 1, 1, 2, 2]


def test_the_lanes_of_a_shuffle_down_tree():
    """Lane 0 has the whole; lane 31 adds its own value five times, so that it counts 32 times."""
    problem = Problem(1, 1, 128, 2, (2,))
    inputs = make_inputs(problem)
    page = inputs.block_tables[0, 0]
    inputs.query[...] = 1
    inputs.key_cache[page] = 0
    inputs.key_cache[page, 1, 0, 124] = np.log(2.0) / 32  # of lane 31
    inputs.value_cache[page, 0], inputs.value_cache[page, 1] = 1, 3
    inputs = dataclasses.replace(inputs, scale=1.0)

    output = output_of("total_in_lane_0", problem, inputs, stage=2)[0, 0]

    weight = 2 ** (1 / 32)
    np.testing.assert_allclose(output[:4], (1 + 3 * weight) / (1 + weight), rtol=1e-6)
    np.testing.assert_allclose(output[124:], (1 + 3 * 2) / (1 + 2), rtol=1e-6)


def test_a_number_where_nothing_may_be_summed_does_not_fit():
    problem = Problem(1, 1, 4, 2, (1,))
    inputs = make_inputs(problem)
    case = Case(problem, inputs, work_of(problem, find_stage(0).plan(problem)))
    dropped = model(case, BY_NAME["last_partial_page_dropped"].rules)

    assert fits(np.full((1, 1, 4), np.nan), dropped)
    assert fits(np.zeros((1, 1, 4)), dropped)
    assert not fits(reference(problem, inputs).output, dropped)


@pytest.mark.parametrize(
    ("name", "ring", "block"),
    [
        # A tile of 8 rows, zeros behind the five tokens; one of 32, copies of the last.
        ("tail_not_masked", 10 / 8, (10 + 27 * 4) / 32),
        ("tail_mask_off_by_one", 10 / 6, (10 + 4) / 6),
        ("last_token_of_parts_skipped", 6 / 4, 6 / 4),
    ],
)
def test_rows_of_the_last_tile_past_five_tokens(name, ring, block):
    problem = Problem(1, 1, 32, 8, (5,))

    for stage, expected in ((6, ring), (5, block)):
        output = output_of(name, problem, counting(problem), stage=stage)
        np.testing.assert_allclose(output, np.full((1, 1, 32), expected), rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "first", "second", "expected"),
    [
        ("tiles_not_rescaled", 1, 2, (1 + 3) / (0.5 + 1)),
        ("tile_sums_not_rescaled", 1, 2, (0.5 * 1 + 3) / (1 + 1)),
        ("tiles_rescale_nothing", 1, 2, (1 + 3) / (1 + 1)),
        ("weights_by_tile_maximum", 1, 2, (0.5 * 1 + 3) / (0.5 + 1)),
        ("weights_by_tile_maximum", 2, 1, (1 + 3) / (1 + 0.5)),
        ("tiles_not_rescaled", 2, 1, (1 + 0.5 * 3) / (1 + 0.5)),
    ],
)
@pytest.mark.parametrize("other_warps_tile", [False, True])
def test_two_tiles_of_one_warp_with_weights_of_one_and_two(name, first, second, expected, other_warps_tile):
    """Values 1 and 3. The second tile of warp 0 begins after one tile of each of the 8 warps."""
    at = 8 if other_warps_tile else 64
    problem = Problem(1, 1, 32, 8, (65,))
    inputs = make_inputs(problem)
    inputs.query[...], inputs.key_cache[...], inputs.value_cache[...] = 1, 0, 0
    inputs.key_cache[..., 0] = -60.0
    for token, weight, value in ((0, first, 1), (at, second, 3)):
        page, slot = inputs.block_tables[0, token // 8], token % 8
        inputs.key_cache[page, slot, 0, 0], inputs.value_cache[page, slot] = np.log(weight), value
    inputs = dataclasses.replace(inputs, scale=1.0)
    right = (first * 1 + second * 3) / (first + second)

    output = output_of(name, problem, inputs, stage=6)

    np.testing.assert_allclose(
        output, np.full((1, 1, 32), right if other_warps_tile else expected), rtol=1e-6
    )


def test_chunks_of_the_second_row_of_a_ring_lie_two_by_two_crosswise():
    problem = Problem(1, 1, 32, 8, (2,))
    inputs = two_scores(problem, 0.0, 100.0)
    inputs.value_cache[inputs.block_tables[0, 0], 1, 0] = np.arange(32)

    output = output_of("values_in_order", problem, inputs, stage=6)[0, 0]

    expected = np.arange(32).reshape(8, 4)[[1, 0, 3, 2, 5, 4, 7, 6]]
    np.testing.assert_allclose(output, expected.reshape(-1), rtol=1e-6)


def test_weights_of_two_heads_and_two_tokens_not_turned():
    """Weights 1/2 and 1 of the first head, 1 and 1 of the second: a head gets a token's of both."""
    problem = Problem(2, 1, 32, 8, (2,), dtype="float16")
    inputs = two_scores(problem, 0.0, np.log(2.0))
    inputs.query[0, 1] = 0

    output = output_of("weights_not_turned", problem, inputs, stage=7)[0]

    np.testing.assert_allclose(output[0], np.full(32, (0.5 * 1 + 1 * 3) / (0.5 + 1)), rtol=1e-3)
    np.testing.assert_allclose(output[1], np.full(32, (1 * 1 + 1 * 3) / (1 + 1)), rtol=1e-3)


@pytest.mark.parametrize("name", ["values_not_turned", "keys_turned"])
def test_a_matrix_loaded_the_wrong_way_round(name):
    """A value of dimension d of token t comes from token d % 8, dimension t of the same eight."""
    problem = Problem(1, 1, 32, 8, (8,), dtype="float16")
    inputs = make_inputs(problem)
    page = inputs.block_tables[0, 0]
    inputs.query[...], inputs.key_cache[...], inputs.value_cache[...] = 0, 0, 0
    inputs.query[0, 0, 3] = inputs.query[0, 0, 0] = 1
    inputs.key_cache[page, 0, 0, 3] = 50
    inputs.value_cache[page, :, 0] = np.arange(8)[:, None]
    inputs = dataclasses.replace(inputs, scale=1.0)

    output = output_of(name, problem, inputs, stage=7)[0, 0]

    # The score of 50 is token 0's; with keys turned token 3 has it.
    expected = np.arange(32) % 8 if name == "values_not_turned" else np.full(32, 3)
    np.testing.assert_allclose(output, expected, rtol=1e-6)


def test_rows_past_the_end_enter_a_very_low_maximum():
    problem = Problem(1, 1, 32, 8, (2,))

    assert np.isnan(output_of("tail_in_maximum", problem, two_scores(problem, -150.0, -151.0), stage=6)).all()
    high = output_of("tail_in_maximum", problem, two_scores(problem, 150.0, 151.0), stage=6)
    np.testing.assert_allclose(high, (1 + 3 * np.e) / (1 + np.e), rtol=1e-6)
    whole = Problem(1, 1, 32, 8, (8,))  # no row past the end
    inputs = two_scores(whole, 0.0, 0.0)
    inputs.key_cache[..., 0], inputs.value_cache[...] = -150.0, 2
    np.testing.assert_allclose(output_of("tail_in_maximum", whole, inputs, stage=6), 2, rtol=1e-6)


def test_segments_must_be_cut_at_the_same_tokens():
    stage, problem = find_stage(8), Problem(1, 1, 32, 16, (16 * 3, 16 * 5), dtype="float16")

    with pytest.raises(ValueError, match="not cut at the same tokens"):
        work_of(problem, stage.plan(problem, blocks=2))
    work = work_of(problem, stage.plan(problem, blocks=8))
    assert [part.tolist() for part in work.cut(40)] == [
        list(range(16)),
        list(range(16, 32)),
        list(range(32, 40)),
        [],
        [],
    ]
