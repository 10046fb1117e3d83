"""Small problems whose inputs make faults differ.

They have finite numbers where the lab otherwise puts NaN, scores far from zero, and values that show which
token got which weight.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from labs_common.inputs import Inputs, make_inputs
from labs_common.layouts import from_nhd, to_nhd
from labs_common.plans import Device, Plan, most_block_heads
from labs_common.problem import Problem
from labs_common.stages import Stage


@dataclass(frozen=True)
class Probe:
    """A small problem that makes faults visible.

    Attributes:
        name: for messages.
        problem: what is computed.
        shape: changes the inputs that ``make_inputs`` gives.
        splits, partition_tokens: of stages that split the context.
        tile_tokens: of stages that stage pages in shared memory; None for whole pages.
        blocks: of stages whose host plans the work; None for one a multiprocessor.
        for_rings: whether it is only for stages whose warps each have a ring of tiles.
    """

    name: str
    problem: Problem
    shape: Callable[[Problem, Inputs], Inputs]
    splits: int = 3
    partition_tokens: int = 32
    tile_tokens: int | None = None
    blocks: int | None = None
    for_rings: bool = False

    def fitted(self, stage: Stage) -> Probe:
        """It as a stage can take it: in its number format, and for a ring with a head_dim that is."""
        problem = stage.typed(self.problem)
        if stage.towards_roof:
            problem = problem.replace(head_dim=-(-problem.head_dim // 32) * 32)
        return dataclasses.replace(self, problem=problem)

    def inputs(self) -> Inputs:
        """Its arrays, the same every time."""
        return self.shape(self.problem, make_inputs(self.problem, seed=11))

    def plan(self, stage: Stage, device: Device | None = None) -> Plan:
        """A stage's launches for it.

        Raises:
            ValueError: the stage does not take the problem.
        """
        device = device or Device()
        tile = stage.plan(self.problem, device).numbers.get("tile_tokens")
        if tile is not None and self.tile_tokens is not None:
            token_bytes = 2 * self.problem.head_dim * self.problem.itemsize
            device = dataclasses.replace(device, max_shared_bytes=self.tile_tokens * token_bytes)
        numbers = stage.plan(self.problem, device).numbers
        options: dict[str, int] = {}
        if "splits" in numbers:
            options["splits"] = self.splits
        if "partitions" in numbers:
            options["partition_tokens"] = self.partition_tokens
        if "segments" in stage.plan(self.problem, device).tables and self.blocks is not None:
            options["blocks"] = self.blocks
        if "merges" in stage.plan(self.problem, device).tables:
            # So that there is something to merge, and all heads of a sequence are cut at the same tokens.
            options |= {"whole": False, "block_heads": most_block_heads(self.problem)}
        return stage.plan(self.problem, device, **stage.taken_options(**options))


def _as_they_are(problem: Problem, inputs: Inputs) -> Inputs:
    return inputs


def _finite(problem: Problem, inputs: Inputs) -> Inputs:
    """Ordinary numbers in every slot, and a page of the pool in every table entry."""
    random = np.random.default_rng(12)
    caches = []
    for cache in (inputs.key_cache, inputs.value_cache):
        filled = random.standard_normal(cache.shape).astype(cache.dtype)
        caches.append(np.where(np.isnan(cache), filled, cache))
    tables = inputs.block_tables.copy()
    pages = len(inputs.key_cache)
    bad = (tables < 0) | (tables >= pages)
    tables[bad] = random.integers(0, pages, int(bad.sum()))
    return dataclasses.replace(inputs, key_cache=caches[0], value_cache=caches[1], block_tables=tables)


def _extreme(problem: Problem, inputs: Inputs) -> Inputs:
    """Scores around +160 in even sequences and −160 in odd ones, a few apart from each other."""
    inputs = _finite(problem, inputs)
    return score_level(problem, inputs, np.where(np.arange(problem.batch) % 2 == 0, 160.0, -160.0))


def score_level(problem: Problem, inputs: Inputs, scores: np.ndarray) -> Inputs:
    """Inputs whose scores lie around a level in each sequence, a few apart from each other.

    Args:
        problem: shapes and layout.
        inputs: of ``make_inputs``; slots with NaN keep it.
        scores: ``[batch]``, the level of each sequence.
    """
    signs = np.where(np.arange(problem.head_dim) % 3 == 0, -1.0, 1.0)
    key, value = to_nhd(problem, inputs.key_cache, inputs.value_cache)
    key = (0.25 * key.astype(np.float64) + signs).astype(key.dtype)
    side = (scores / (problem.head_dim * inputs.scale))[:, None, None]
    query = (inputs.query + side * signs).astype(inputs.query.dtype)
    keys, values = from_nhd(problem, key, value)
    return dataclasses.replace(inputs, query=query, key_cache=keys, value_cache=values)


def _weights_shown(problem: Problem, inputs: Inputs) -> Inputs:
    """Token t's value is 1 in dimension t and 0 elsewhere, so that the output lists the weights."""
    inputs = _finite(problem, inputs)
    key, value = to_nhd(problem, inputs.key_cache, inputs.value_cache)
    value = np.zeros_like(value)
    size = problem.page_size
    for row, pages in enumerate(problem.pages_per_sequence):
        for page in range(pages):
            for slot in range(min(size, problem.head_dim - page * size)):
                value[inputs.block_tables[row, page], slot, :, page * size + slot] = 1.0
    keys, values = from_nhd(problem, key, value)
    return dataclasses.replace(inputs, key_cache=keys, value_cache=values)


WEIGHTS = Probe(
    "weights",
    Problem(8, 4, 80, 8, (5, 16, 0, 77, 30), name="probe of weights"),
    _weights_shown,
    partition_tokens=64,  # two tiles in one partition
    tile_tokens=5,  # and two tiles in a page
)
PROBES: tuple[Probe, ...] = (
    Probe("plain", Problem(8, 4, 80, 8, (13, 1, 8, 0, 53, 24), name="probe, plain"), _finite),
    Probe(
        "wide",
        Problem(6, 2, 160, 16, (37, 21), name="probe, wide heads"),
        _finite,
        splits=2,
        tile_tokens=6,
    ),
    # Of the low scores one context fills whole tiles of a ring; a block's tile, of 32 tokens, is never full.
    Probe("extreme", Problem(4, 2, 80, 8, (19, 30, 3, 16), name="probe, extreme scores"), _extreme, splits=2),
    WEIGHTS,
    Probe(
        "poisoned",
        Problem(8, 4, 80, 8, (13, 1, 8, 0, 53, 24), name="probe, NaN in unused slots"),
        _as_they_are,
    ),
    # Every warp has several tiles of a part, and a block goes on from one sequence to the next.
    Probe(
        "long",
        Problem(8, 2, 32, 16, (300, 21), name="probe, long contexts"),
        _finite,
        partition_tokens=256,
        blocks=2,
        for_rings=True,
    ),
)


@lru_cache(maxsize=32)
def probes_of(stage: Stage, device: Device | None = None) -> dict[str, Probe]:
    """The probes of a stage by name, each as the stage can take it; without those that it cannot."""
    fitted = {
        probe.name: probe.fitted(stage) for probe in PROBES if stage.towards_roof or not probe.for_rings
    }
    return {name: probe for name, probe in fitted.items() if stage.supports(probe.problem, device) is None}
