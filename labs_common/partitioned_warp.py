"""How a warp of stage 05, or of a ring in fp32, is divided among query heads, tokens and chunks.

The names are those of the constants in the kernel files.
"""

from __future__ import annotations

from labs_common.layouts import chunk_elements
from labs_common.plans import WARP_SIZE, Plan
from labs_common.problem import Problem


def head_slots(plan: Plan) -> int:
    """Lanes that stand for one token's scores, a lane per query head of the warp; a power of two."""
    group, tile = int(plan.defines["GROUP_SIZE"]), int(plan.defines["TILE_TOKENS"])
    head_sets = -(-group // 8)
    heads = -(-group // head_sets)
    warps = 1 if "RING_SLOTS" in plan.defines else plan.launches[0].block[0] // WARP_SIZE
    warp_tokens = tile * head_sets // warps if warps > 1 else tile  # a tile of a ring is one warp's
    return _power_of_two(max(heads, WARP_SIZE // warp_tokens))


def step_tokens(plan: Plan) -> int:
    """Tokens whose scores fill the lanes of a warp, and so the lanes that hold scores of one query head."""
    return WARP_SIZE // head_slots(plan)


def row_lanes(plan: Plan, problem: Problem) -> int:
    """Lanes that share one row of ``head_dim`` elements, 16 bytes at a time."""
    chunks = problem.head_dim // chunk_elements(problem)
    return min(WARP_SIZE, _power_of_two(max(chunks, head_slots(plan))))


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
