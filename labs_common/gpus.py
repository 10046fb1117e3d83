"""GPUs by name, and what each compute capability allows an SM and a block.

Capabilities are from the CUDA C++ Programming Guide's table "Technical specifications per compute
capability"; occupancy's granularities from `cuda_occupancy.h`. A GPU's figures are its maker's nominal ones
(boost clock, best memory of that name): good for choosing an axis, no ceiling to measure against.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

KIB = 1024
MIB = 1024**2
WARP_SIZE = 32


@dataclass(frozen=True)
class Capability:
    """Limits of one compute capability.

    Attributes:
        version: such as "9.0".
        warps: resident warps of an SM.
        blocks: resident blocks of an SM.
        shared_sizes: bytes of shared memory that an SM can be configured to, ascending.
        shared_per_block: bytes that a block may opt in to, without the driver's part.
        shared_driver: bytes that the driver takes of every block's allocation.
        shared_unit: bytes to which a block's allocation is rounded up.
        registers: of an SM, and of a block.
        register_unit: registers to which a warp's allocation is rounded up.
        registers_per_thread: the most a thread can have.
        partitions: schedulers of an SM; the warps of a block are dealt to them evenly.
        threads_per_block: the largest block.
    """

    version: str
    warps: int
    blocks: int
    shared_sizes: tuple[int, ...]
    shared_per_block: int
    shared_driver: int = 1 * KIB
    shared_unit: int = 128
    registers: int = 65_536
    register_unit: int = 256
    registers_per_thread: int = 255
    partitions: int = 4
    threads_per_block: int = 1024

    @property
    def major(self) -> int:
        """The part before the point."""
        return int(self.version.split(".")[0])

    @property
    def minor(self) -> int:
        """The part after the point."""
        return int(self.version.split(".")[1])


_TO_100 = tuple(KIB * size for size in (0, 8, 16, 32, 64, 100))
_TO_164 = (*_TO_100, 132 * KIB, 164 * KIB)
_TO_228 = (*_TO_164, 196 * KIB, 228 * KIB)

CAPABILITIES: dict[str, Capability] = {
    c.version: c
    for c in (
        Capability("7.5", 32, 16, (32 * KIB, 64 * KIB), 64 * KIB, shared_driver=0, shared_unit=256),
        Capability("8.0", 64, 32, _TO_164, 163 * KIB),
        Capability("8.6", 48, 16, _TO_100, 99 * KIB),
        Capability("8.7", 48, 16, _TO_164, 163 * KIB),
        Capability("8.9", 48, 24, _TO_100, 99 * KIB),
        Capability("9.0", 64, 32, _TO_228, 227 * KIB),
        Capability("10.0", 64, 32, _TO_228, 227 * KIB),
        Capability("10.3", 64, 32, _TO_228, 227 * KIB),
        Capability("11.0", 48, 24, _TO_228, 227 * KIB),
        Capability("12.0", 48, 24, _TO_100, 99 * KIB),
        Capability("12.1", 48, 24, _TO_100, 99 * KIB),
    )
}


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        id: lower-case key, also of data/recorded/.
        name: as the driver gives it, or what a chart calls it.
        capability: what an SM and a block may have.
        sms: streaming multiprocessors; None where unknown.
        memory_bandwidth: nominal, byte/second; None where unknown.
        l2_bytes: second-level cache; None where unknown.
        peak_fp32: nominal flop/second, a fused multiply-add counted as two; None where unknown.
        kind: data-centre, workstation, consumer, embedded or document.
    """

    id: str
    name: str
    capability: Capability
    sms: int | None
    memory_bandwidth: float | None
    l2_bytes: int | None
    peak_fp32: float | None
    kind: str


def _gpu(
    key: str,
    name: str,
    version: str,
    sms: int,
    gb_per_s: float,
    l2_mib: float | None,
    tflops: float,
    kind: str,
) -> Gpu:
    l2 = None if l2_mib is None else int(l2_mib * MIB)
    return Gpu(key, name, CAPABILITIES[version], sms, gb_per_s * 1e9, l2, tflops * 1e12, kind)


_TABLE = (
    _gpu("t4", "Tesla T4", "7.5", 40, 320, 4, 8.1, "data-centre"),
    _gpu("rtx_2080_ti", "NVIDIA GeForce RTX 2080 Ti", "7.5", 68, 616, 5.5, 13.4, "consumer"),
    _gpu("a100_40gb", "NVIDIA A100-SXM4-40GB", "8.0", 108, 1555, 40, 19.5, "data-centre"),
    _gpu("a100_80gb", "NVIDIA A100-SXM4-80GB", "8.0", 108, 2039, 40, 19.5, "data-centre"),
    _gpu("a10", "NVIDIA A10", "8.6", 72, 600, 6, 31.2, "data-centre"),
    _gpu("a6000", "NVIDIA RTX A6000", "8.6", 84, 768, 6, 38.7, "workstation"),
    _gpu("rtx_3060", "NVIDIA GeForce RTX 3060", "8.6", 28, 360, 3, 12.7, "consumer"),
    _gpu("rtx_3070", "NVIDIA GeForce RTX 3070", "8.6", 46, 448, 4, 20.3, "consumer"),
    _gpu("rtx_3090", "NVIDIA GeForce RTX 3090", "8.6", 82, 936, 6, 35.6, "consumer"),
    _gpu("agx_orin", "Jetson AGX Orin 64GB", "8.7", 16, 204.8, 4, 5.3, "embedded"),
    _gpu("l4", "NVIDIA L4", "8.9", 58, 300, 48, 30.3, "data-centre"),
    _gpu("l40s", "NVIDIA L40S", "8.9", 142, 864, 96, 91.6, "data-centre"),
    _gpu("rtx_4060", "NVIDIA GeForce RTX 4060", "8.9", 24, 272, 24, 15.1, "consumer"),
    _gpu("rtx_4090", "NVIDIA GeForce RTX 4090", "8.9", 128, 1008, 72, 82.6, "consumer"),
    _gpu("h100", "NVIDIA H100 80GB HBM3", "9.0", 132, 3350, 50, 66.9, "data-centre"),
    _gpu("h200", "NVIDIA H200", "9.0", 132, 4800, 60, 66.9, "data-centre"),
    _gpu("b200", "NVIDIA B200", "10.0", 148, 8000, None, 75.0, "data-centre"),
    _gpu("jetson_thor", "NVIDIA Thor", "11.0", 20, 273, None, 8.1, "embedded"),
    _gpu("rtx_5060_ti", "NVIDIA GeForce RTX 5060 Ti", "12.0", 36, 448, 32, 23.7, "consumer"),
    _gpu("rtx_5070", "NVIDIA GeForce RTX 5070", "12.0", 48, 672, 48, 30.9, "consumer"),
    _gpu("rtx_5090", "NVIDIA GeForce RTX 5090", "12.0", 170, 1792, 96, 104.8, "consumer"),
    _gpu("gb10", "NVIDIA GB10", "12.1", 48, 273, 24, 31.0, "workstation"),
    # The first document's GPU, which it does not name: 36 SMs and their limits are printed; the bandwidth is
    # four memory channels of 8 bytes a cycle at its 13.79 GHz, which its DRAM cycles agree with.
    Gpu("document_36sm", "36-SM GPU", CAPABILITIES["12.0"], 36, 441.3e9, None, None, "document"),
    # The second document's GPU is no NVIDIA one. Only its 48 KB of shared memory a block and its 6 MB of L2
    # are stated; the other limits are stand-ins, those of compute capability 7.5 without its opt-in.
    Gpu(
        "document_48kb",
        "GPU with 48 KB of shared memory a block",
        replace(CAPABILITIES["7.5"], shared_per_block=48 * KIB),
        None,
        None,
        6_000_000,
        None,
        "document",
    ),
)

GPUS: dict[str, Gpu] = {gpu.id: gpu for gpu in _TABLE}
_BY_NAME = {gpu.name.lower(): gpu for gpu in _TABLE}


def capability(version: str | tuple[int, int]) -> Capability:
    """Limits of a compute capability, such as "9.0" or (9, 0).

    Raises:
        ValueError: none of the table's.
    """
    text = version if isinstance(version, str) else f"{version[0]}.{version[1]}"
    if text not in CAPABILITIES:
        raise ValueError(f"compute capability {text!r} is not in the table: {', '.join(CAPABILITIES)}")
    return CAPABILITIES[text]


def find_gpu(name: str) -> Gpu | None:
    """The GPU of an id or of the name that its driver gives, in any case; None where the table lacks it."""
    key = name.strip().lower()
    return GPUS.get(key) or _BY_NAME.get(key) or _BY_NAME.get(f"nvidia {key}")


def gpu_id(name: str) -> str:
    """The id of a GPU by its driver's name; for one that the table lacks, made from the name."""
    known = find_gpu(name)
    if known is not None:
        return known.id
    words = name.lower().removeprefix("nvidia ").removeprefix("geforce ")
    return "_".join("".join(c if c.isalnum() else " " for c in words).split())


def display_name(gpu: str) -> str:
    """What a chart calls the GPU of an id: its name without the maker's."""
    known = find_gpu(gpu)
    if known is not None:
        return known.name.removeprefix("NVIDIA ").removeprefix("GeForce ")
    capability_only = re.fullmatch(r"cc_(\d+)_(\d+)", gpu)
    return "compute capability {}.{}".format(*capability_only.groups()) if capability_only else gpu
