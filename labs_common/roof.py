"""The way to the memory roof: kernels after stage 05, run and held against the reference like stages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from labs_common.plans import plan_async_ring, plan_balanced, plan_memory_roof, plan_tensor_core
from labs_common.problem import DTYPES
from labs_common.source import KERNELS
from labs_common.stages import Stage

ROW_LAYOUTS = ("NHD", "HND")  # in which a token's key is one row, as their copies need it


@dataclass(frozen=True)
class RoofStage(Stage):
    """A kernel in ``kernels/roof/``."""

    @property
    def path(self) -> Path:
        """Its kernel file."""
        return KERNELS / "roof" / f"{self.id}.cu"


ROOF: tuple[RoofStage, ...] = (
    RoofStage(
        "06_async_ring",
        plan_async_ring,
        "each warp keeps tiles in flight in a ring of its own",
        ("float32", "float16", "bfloat16"),
        ROW_LAYOUTS,
    ),
    RoofStage(
        "07_tensor_core",
        plan_tensor_core,
        "tensor cores multiply 16 tokens by 8 query heads",
        ("float16", "bfloat16", "float8_e4m3fn"),
        ROW_LAYOUTS,
        tensor_cores=True,
    ),
    RoofStage(
        "08_balanced_plan",
        plan_balanced,
        "equal runs of pages for every multiprocessor, across sequences",
        DTYPES,
        ROW_LAYOUTS,
        tensor_cores=True,
    ),
    RoofStage(
        "09_memory_roof",
        plan_memory_roof,
        "the last points: L2's lines, whole sequences, a merge of cuts alone",
        DTYPES,
        ROW_LAYOUTS,
        tensor_cores=True,
    ),
)
