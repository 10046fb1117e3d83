"""The document's figures against stage 05: agreements, and the corrections that DESIGN lists."""

import pytest

from labs_common.design_figures import design_figures, design_table, partial_bytes, shared_scores_limit
from labs_common.problem import PRESETS, Problem


@pytest.fixture(scope="module")
def figures():
    return {figure.name: figure for figure in design_figures()}


@pytest.mark.parametrize(
    ("name", "document", "lab"),
    [
        ("partitions", 200, 196),  # ceil(100000 / 512)
        ("blocks", 800, 784),  # 4 x 196
        ("blocks without sharing in the group", 4800, 4704),  # 24 x 196
        ("iterations of a block", 16, 16),
        ("keys of a tile", 16_384, 16_384),  # 32 x 256 x 2
        ("partials of the warps", 4_128, 24_768),  # 4 warps x 6 heads x 4 x (2 + 256)
        ("shared memory if nothing were used twice", None, 57_536),  # 56.2 KB: more than 48
        ("registers for the query", 48, 48),  # 6 x 256 / 32
        ("registers for weighted values", 1536, 48),
        ("a partial", 1032, 1032),
        ("partials of a query head", 206_400, 202_272),
        ("partials", 206_400, 4_854_528),  # 24 x 196 x 1032
        ("scattered accesses of a naive walk", 6250, 6250),
        ("table look-ups", 6250, 25_000),  # once for each of 4 kv heads
        ("reads of keys for a tile", 1024, 1024),
        ("keys and values of a tile", 32_768, 32_768),
        ("reads of keys for a tile by a warp", None, 8),
        ("pages of the partition", 0, 132),  # 33 of 4 bytes: a partition may begin within a page
    ],
)
def test_a_figure(figures, name, document, lab):
    assert figures[name].document == document
    assert figures[name].lab == lab


def test_shared_memory_and_registers_are_the_compilers(figures):
    shared = figures["shared memory"].lab
    tiles = 2 * 16_384

    assert tiles < shared <= tiles + 1024 and shared <= 48 * 1024
    assert 48 + 48 + 24 < figures["registers"].lab <= 65536 // (3 * 128) // 8 * 8  # three blocks fit
    assert figures["spilled registers"].lab == 0


def test_every_difference_has_its_reason(figures):
    for figure in figures.values():
        assert figure.why or figure.document == figure.lab or figure.name == "spilled registers", figure.name


def test_the_table_has_a_row_for_each_figure(figures):
    assert list(design_table()["name"]) == list(figures)


def test_pages_cut_by_a_partition_are_looked_up_twice():
    problem = Problem(2, 1, 64, 48, (1024,))  # 22 pages; token 512 lies within the eleventh

    assert {f.name: f.lab for f in design_figures(problem)}["table look-ups"] == 23


def test_scores_in_shared_memory_end_near_8192_tokens():
    """48 KB hold 12,288 floats; beside a 16 KB tile 8,192 are left."""
    assert shared_scores_limit() == 12_288
    assert shared_scores_limit(48 * 1024 - 16 * 1024) == 8_192
    assert shared_scores_limit(query_heads=6) == 2_048
    assert partial_bytes(PRESETS["long"].head_dim) == 1032
