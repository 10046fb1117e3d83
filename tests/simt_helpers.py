"""Small PTX programs for the simulator's tests: one kernel, pointers in, arrays out."""

from __future__ import annotations

import numpy as np

from labs_common.simt import cupy_like as xp
from labs_common.simt.launch import Result

HEADER = ".version 9.0\n.target sm_90\n.address_size 64\n"
PREAMBLE = """
.reg .pred %p<20>;
.reg .b16 %h<40>;
.reg .b32 %r<60>;
.reg .f32 %f<40>;
.reg .b64 %d<40>;
.reg .f64 %g<40>;
"""


def kernel_text(body: str, pointers: int = 1, before: str = "", name: str = "k") -> str:
    """A kernel whose parameters p0, p1 ... are loaded into %d0, %d1 ...; %r0 is the thread, %r1 the block."""
    params = ", ".join(f".param .u64 p{n}" for n in range(pointers))
    loads = "\n".join(f"ld.param.u64 %d{n}, [p{n}];" for n in range(pointers))
    start = "mov.u32 %r0, %tid.x;\nmov.u32 %r1, %ctaid.x;\n"
    return f"{HEADER}{before}\n.visible .entry {name}({params})\n{{{PREAMBLE}{loads}\n{start}{body}\n}}\n"


def run(
    text: str,
    *arrays: np.ndarray,
    block=32,
    grid=1,
    shared: int = 0,
    engine: str = "numpy",
    name: str = "k",
    budget: int = 100_000_000,
) -> tuple[list[np.ndarray], Result]:
    """Launch; the arrays as the kernel left them, and the result."""
    module = xp.RawModule(text, engine=engine, budget=budget)
    kernel = module.get_function(name)
    if shared > 48 * 1024:
        kernel.max_dynamic_shared_size_bytes = shared
    devices = [xp.asarray(a) for a in arrays]
    kernel(grid, block, tuple(devices), shared_mem=shared)
    return [d.get() for d in devices], module.last_launch


def store_result(register: str, type_: str, width: int) -> str:
    """Store a register to p0[thread], elements of `width` bytes."""
    address = f"mul.wide.u32 %d30, %r0, {width};\nadd.u64 %d30, %d0, %d30;\n"
    return f"{address}st.global.{type_} [%d30], {register};\nret;"
