"""The busiest warp is found by budgets alone, whatever a block executes."""

from types import SimpleNamespace

import numpy as np
import pytest

from labs_common.grading.execution import BUDGET, _ends, _least_budget
from labs_common.simt.errors import BudgetError


class Block:
    """Stands in for a module and its launch: warps with so many instructions each."""

    def __init__(self, *warps):
        self.warps, self.budget, self.runs = warps, BUDGET, 0
        counters = SimpleNamespace(warp_executions=lambda: np.array(warps))
        self.last_launch = SimpleNamespace(counters=counters)

    def __call__(self, blocks):
        self.runs += 1
        if max(self.warps) > self.budget:
            raise BudgetError("k", self.budget)


@pytest.mark.parametrize("warps", [(1,), (2, 1), (3,), (19, 1), (21, 20), (1000, 10, 10), (500_000,) * 8])
def test_within_5_percent_and_always_at_an_end(warps):
    block = Block(*warps)

    found = _least_budget(block, block, 0, 0)

    assert max(warps) <= found <= max(warps) * 1.06 + 1
    assert block.runs < 40
    assert block.budget == BUDGET


def test_a_block_that_needs_more_is_told():
    block = Block(10, 5)

    assert _ends(block, block, 0, 10)
    assert not _ends(block, block, 0, 9)
    assert block.budget == BUDGET
