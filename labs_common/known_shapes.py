"""The shapes on which public kernels were measured: decode with one query token a sequence, pages of 16."""

from __future__ import annotations

import numpy as np

from labs_common.problem import FP8, Problem

RAGGED = np.random.default_rng(1)
SHAPES: dict[str, Problem] = {
    problem.name: problem
    for problem in (
        Problem(32, 8, 128, 16, (4096,) * 64, name="S1"),
        Problem(32, 8, 128, 16, tuple(int(n) for n in RAGGED.integers(1, 8193, 64)), name="S1r"),
        Problem(24, 4, 256, 16, (100_000,), name="S2"),
        Problem(32, 8, 128, 16, (1024,) * 256, name="S3"),
        Problem(32, 8, 128, 16, (32_768,) * 16, name="S4"),
    )
}
# Two of them in three number formats, of which profiles are recorded.
PROFILED: dict[str, Problem] = {
    problem.name: problem
    for shape in ("S1", "S2")
    for problem in (
        SHAPES[shape].replace(dtype=dtype, name=f"{shape}-{dtype.split('_')[0]}")
        for dtype in ("float16", FP8, "float32")
    )
}
