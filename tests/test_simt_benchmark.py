"""The simulator's benchmark: what it counts and how it takes medians. No time is held against anything."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from simt_helpers import kernel_text

from labs_common.problem import PRESETS
from labs_common.simt import benchmark
from labs_common.simt.launch import Launch
from labs_common.simt.memory import AddressSpace
from labs_common.simt.parse import parse
from labs_common.simt.program import build
from labs_common.simulator_benchmark import first_results, stage_cases
from labs_common.stages import STAGES


def case(blocks: int = 8) -> benchmark.Case:
    """A kernel of 7 instructions on 64 threads a block."""
    body = "mul.wide.u32 %d5, %r0, 4;\nadd.u64 %d5, %d0, %d5;\nst.global.u32 [%d5], %r1;\nret;"
    space = AddressSpace()
    out = space.wrap(np.zeros(64, np.uint32))
    program = build(parse(kernel_text(body)), "k")
    launch = Launch(program, (blocks, 1, 1), (64, 1, 1), out.base.to_bytes(8, "little"))
    return benchmark.Case("a stage", "a problem", launch, space, {})


@pytest.mark.parametrize("engine", ["llvm", "numpy"])
def test_a_row_for_each_case_with_its_lane_instructions(engine):
    whole, part = case(), case().sampled(3)

    rows = benchmark.measure([whole, part], engine, repeats=1)

    assert [r["lane_instructions"] for r in rows] == [8 * 64 * 7, 3 * 64 * 7]
    assert [(r["blocks"], r["blocks_of_grid"]) for r in rows] == [(8, 8), (3, 8)]
    for row in rows:
        assert row["engine"] == engine and row["stage"] == "a stage" and row["cores"] == 1
        assert row["lane_instructions_per_s"] == row["lane_instructions"] / row["seconds"]
        assert row["grid_seconds"] == pytest.approx(row["seconds"] * 8 / row["blocks"])


def test_a_sample_is_spread_over_the_grid():
    assert case(100).sampled(3).launch.blocks == (0, 49, 99)
    assert case(2).sampled(5).launch.blocks is None


def test_a_sample_of_so_much_work():
    """A block has 64 x 7 lane-instructions."""
    assert len(case(100).of_work(20 * 64 * 7).launch.blocks) == 20
    assert len(case(100).of_work(1).launch.blocks) == 8
    assert case(100).of_work(1e9).launch.blocks is None


def test_the_first_result_of_a_kernel_that_is_new_and_known():
    (row,) = first_results(STAGES[1:2], PRESETS["tiny"])

    assert (row["stage"], row["problem"], row["engine"]) == ("01_cooperative", "tiny", "llvm")
    assert row["new_s"] > row["known_s"] > 0


def test_speedup_is_the_median_of_interleaved_pairs():
    seconds = iter([8.0, 4.0, 9.0, 3.0, 8.0, 5.0])  # ratios 2, 3, 1.6
    cores_seen = []

    def run(_, engine: str, cores: int) -> SimpleNamespace:
        cores_seen.append(cores)
        return SimpleNamespace(seconds=next(seconds))

    assert benchmark.speedup(case(), 2, pairs=3, run=run) == 2.0
    assert cores_seen == [1, 2, 1, 2, 1, 2]


def test_stages_become_cases_that_run():
    cases = stage_cases([STAGES[0], STAGES[3]], PRESETS["tiny"])

    rows = benchmark.measure([c.sampled(2).checked_by(()) for c in cases], repeats=1)

    assert [r["stage"] for r in rows] == [STAGES[0].id, STAGES[3].id]
    assert all(r["lane_instructions"] > 0 and r["checks"] == [] for r in rows)
