"""The registry: one line here, one kernel file and one notebook make a stage."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labs_common.plans import (
    Device,
    Plan,
    plan_async_ring,
    plan_balanced,
    plan_memory_roof,
    plan_partitioned_gqa,
    plan_per_kv_head,
    plan_per_query_head,
    plan_split_context,
    plan_tensor_core,
    plan_warp_per_query_head,
)
from labs_common.problem import DTYPES, LAYOUTS, Problem
from labs_common.source import KERNELS, Source

ROW_LAYOUTS = ("NHD", "HND")  # in which a token's key is one row, as the copies of a ring need it


@dataclass(frozen=True)
class Stage:
    """One step of the optimisation.

    Attributes:
        id: ``NN_name``, the stem of its kernel file and its notebook.
        planner: its launches for a problem; see ``plans``.
        idea: what it changes, in a few words.
        dtypes, layouts: of the problems it takes.
        tensor_cores: whether it rounds softmax weights to the query's 16 bits, as tensor cores need them.
        folder: of its kernel file, in ``kernels/``.
    """

    id: str
    planner: Callable[..., Plan]
    idea: str
    dtypes: tuple[str, ...] = ("float32",)
    layouts: tuple[str, ...] = ("NHD",)
    tensor_cores: bool = False
    folder: str = ""

    @property
    def entry(self) -> str:
        """Name of its ``__global__`` function; a second kernel's name adds a suffix."""
        return f"paged_attention_{self.id[3:]}"

    @property
    def path(self) -> Path:
        """Its kernel file."""
        return KERNELS / self.folder / f"{self.id}.cu"

    @property
    def fixes_shapes(self) -> bool:
        """Whether macros give the shape, so that every problem is a kernel to be built: from 05 on."""
        return self.id >= "05"

    @property
    def towards_roof(self) -> bool:
        """Whether it is one of those after stage 05."""
        return self.folder == "roof"

    def weights(self, problem: Problem) -> str:
        """The dtype that softmax weights are rounded to, which ``compare`` must allow for."""
        return problem.query_dtype if self.tensor_cores else "float32"

    def typed(self, problem: Problem) -> Problem:
        """A problem in the number format that the stage is taught with: float16 where it has tensor cores."""
        if not self.tensor_cores or problem.dtype != "float32":
            return problem
        return problem.replace(dtype="float16", name=f"{problem.name}-float16")

    def taken(self, problem: Problem) -> Problem:
        """A problem as it is where the stage takes its number format; else in the one it is taught with."""
        return problem if problem.dtype in self.dtypes else self.typed(problem)

    def source(self) -> Source:
        """Its kernel file, read."""
        return Source.read(self.path)

    def plan(self, problem: Problem, device: Device | None = None, **options: int) -> Plan:
        """Its launches for a problem.

        Args:
            problem: what to compute.
            device: the limits to keep, by default the recorded GPU's.
            options: a stage's own, such as ``splits`` of 04.

        Raises:
            ValueError: the stage does not take the problem, or a launch exceeds the device.
        """
        if problem.dtype not in self.dtypes:
            raise ValueError(f"dtype={problem.dtype}: stage {self.id} takes {' or '.join(self.dtypes)}")
        if problem.layout not in self.layouts:
            raise ValueError(f"layout={problem.layout}: stage {self.id} takes {' or '.join(self.layouts)}")
        return self.planner(self.entry, problem, device or Device(), **options)

    def taken_options(self, **options: int) -> dict[str, int]:
        """Those of some options that its planner takes: somebody's own may take none."""
        parameters = inspect.signature(self.planner).parameters.values()
        if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters):
            return options
        known = {parameter.name for parameter in parameters if parameter.kind != parameter.POSITIONAL_ONLY}
        return {name: value for name, value in options.items() if name in known}

    def supports(self, problem: Problem, device: Device | None = None) -> str | None:
        """None where the stage takes the problem, else the reason why not."""
        try:
            self.plan(problem, device)
        except ValueError as error:
            return str(error)
        return None


# What the two source documents lead to.
STAGES: tuple[Stage, ...] = (
    Stage("00_baseline", plan_per_query_head, "every thread repeats every dot product"),
    Stage("01_cooperative", plan_per_query_head, "threads share one dot product"),
    Stage("02_vectorized", plan_warp_per_query_head, "16-byte loads, a warp per head, no block barrier"),
    Stage("03_gqa_reuse", plan_per_kv_head, "a page in shared memory serves its whole group"),
    Stage("04_split_kv", plan_split_context, "the context split over blocks, then merged"),
    Stage(
        "05_partitioned_gqa",
        plan_partitioned_gqa,
        "a split context and shared pages, merged over lanes, warps and partitions",
        ("float32", "float16"),
        LAYOUTS,
    ),
)

# On from there towards the memory roof. Their headers hold one another's solutions, and so they lie apart.
ROOF: tuple[Stage, ...] = (
    Stage(
        "06_async_ring",
        plan_async_ring,
        "each warp keeps tiles in flight in a ring of its own",
        ("float32", "float16", "bfloat16"),
        ROW_LAYOUTS,
        folder="roof",
    ),
    Stage(
        "07_tensor_core",
        plan_tensor_core,
        "tensor cores multiply 16 tokens by 8 query heads",
        ("float16", "bfloat16", "float8_e4m3fn"),
        ROW_LAYOUTS,
        tensor_cores=True,
        folder="roof",
    ),
    Stage(
        "08_balanced_plan",
        plan_balanced,
        "equal runs of pages for every multiprocessor, across sequences",
        DTYPES,
        ROW_LAYOUTS,
        tensor_cores=True,
        folder="roof",
    ),
    Stage(
        "09_memory_roof",
        plan_memory_roof,
        "the last points: L2's lines, whole sequences, a merge of cuts alone",
        DTYPES,
        ROW_LAYOUTS,
        tensor_cores=True,
        folder="roof",
    ),
)
ALL_STAGES: tuple[Stage, ...] = (*STAGES, *(s for s in ROOF if s.path.exists()))  # editions leave some out


def stage_before(stage: Stage) -> Stage | None:
    """The stage that a stage is compared with; None for the first."""
    at = ALL_STAGES.index(stage)
    return ALL_STAGES[at - 1] if at else None


def find_stage(name: str | int) -> Stage:
    """The stage whose id is ``name`` or begins with it; ``3``, ``"03"`` and ``"03_gqa"`` are the same.

    Raises:
        ValueError: none or several match; the message lists the ids.
    """
    text = str(name)
    prefix = f"{int(text):02d}" if text.isdigit() else text
    matches = [stage for stage in ALL_STAGES if stage.id == text] or [
        s for s in ALL_STAGES if prefix and s.id.startswith(prefix)
    ]
    if len(matches) != 1:
        what = "no stage" if not matches else "several stages"
        raise ValueError(f"{what} called {text!r}; there are {', '.join(stage.id for stage in ALL_STAGES)}")
    return matches[0]
