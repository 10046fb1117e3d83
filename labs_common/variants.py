"""Other ways to do a stage's work, for comparison: kernels that are no stage of their own."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from labs_common.plans import PARTITION_TOKENS, WARP_SIZE, Device, Launch, Plan, plan_partitioned_gqa
from labs_common.problem import LAYOUTS, Problem
from labs_common.source import KERNELS
from labs_common.stages import Stage


@dataclass(frozen=True)
class Variant(Stage):
    """A kernel in ``kernels/variants/`` that is planned, run and held against the reference like a stage."""

    @property
    def path(self) -> Path:
        """Its kernel file."""
        return KERNELS / "variants" / f"{self.id}.cu"


def plan_last_block(
    entry: str, problem: Problem, device: Device, partition_tokens: int = PARTITION_TOKENS
) -> Plan:
    """As stage 05, in one launch: the last block of a sequence and key/value head merges."""
    plan = plan_partitioned_gqa(entry, problem, device, partition_tokens)
    return dataclasses.replace(
        plan, launches=plan.launches[:1], counters={"arrived": (problem.batch, problem.kv_heads)}
    )


def plan_cub(entry: str, problem: Problem, device: Device, partition_tokens: int = PARTITION_TOKENS) -> Plan:
    """As stage 05; the merge has a block of 4 warps for every query head and four dimensions."""
    plan = plan_partitioned_gqa(entry, problem, device, partition_tokens)
    columns = problem.head_dim // 4
    merge = Launch(f"{entry}_merge", (problem.query_heads, problem.batch, columns), (4 * WARP_SIZE, 1, 1))
    return dataclasses.replace(plan, launches=(plan.launches[0], merge))


VARIANTS: tuple[Variant, ...] = (
    Variant(
        "05_partitioned_gqa_last_block",
        plan_last_block,
        "the last block to finish merges, in place of a second launch",
        ("float32", "float16"),
        LAYOUTS,
    ),
    Variant(
        "05_partitioned_gqa_cub",
        plan_cub,
        "cub::WarpReduce and cub::BlockReduce with the same combine",
        ("float32", "float16"),
        LAYOUTS,
    ),
)
