"""Occupancy by formula against NVIDIA's cuda_occupancy.h, the document's figures and Nsight Compute's."""

import random
import re

import numpy as np
import pytest

from labs_common import metric_names as names
from labs_common import metrics
from labs_common.compiler import include_folders
from labs_common.engines import SimulatorEngine
from labs_common.gpus import CAPABILITIES, GPUS, KIB, capability, display_name, find_gpu, gpu_id
from labs_common.occupancy import launch_of, occupancy, occupancy_metrics, occupancy_of
from labs_common.recorded import recorded_metrics
from labs_common.reported import reported_metrics
from labs_common.source import Source

SEED = GPUS["document_36sm"]


@pytest.mark.parametrize(
    ("grid", "block", "registers", "shared", "percent", "waves", "limiter"),
    [
        (2048, 128, 31, 0, 100.0, 4.74, "warps"),
        (2048, 32, 64, 0, 50.0, 2.37, "blocks"),
        (512, 128, 39, 16384, 41.67, 2.84, "shared memory"),
        (16384, 32, 64, 0, 50.0, 18.96, "blocks"),
        (2048, 32, 40, 0, 50.0, 2.37, "blocks"),
    ],
    ids=["01", "02", "03", "04", "04 merge"],
)
def test_the_documents_figures(grid, block, registers, shared, percent, waves, limiter):
    found = occupancy(SEED.capability, block, registers, shared)

    assert round(found.percent, 2) == percent
    assert round(found.waves(grid, SEED.sms), 2) == waves
    assert found.limiters == (limiter,)


def test_the_documents_shared_memory_configurations():
    assert occupancy(SEED.capability, 32, 64).shared_config == 32 * KIB
    assert occupancy(SEED.capability, 128, 39, 16384).shared_config == 100 * KIB


def test_the_documents_metrics_come_out_of_its_launches():
    reported = reported_metrics()
    for stage in ("02_vectorized", "03_gqa_reuse"):
        rows = metrics.select(reported, stage=stage)
        by_formula = occupancy_of(rows)
        if "no block" in metrics.one(rows, names.WAVES)["reason"]:  # Nsight Compute did not know
            assert metrics.value(by_formula, names.THEORETICAL_OCCUPANCY) == 25
            continue
        for metric in (names.THEORETICAL_OCCUPANCY, names.WAVES, "sm__maximum_warps_avg_per_active_cycle"):
            assert round(metrics.value(by_formula, metric), 2) == metrics.value(rows, metric), metric


@pytest.mark.parametrize(
    ("block", "registers", "shared", "percent", "limits"),
    [
        (32, 36, 0, 50.0, {"blocks": 32, "warps": 64, "registers": 48}),
        (32, 39, 0, 50.0, {"blocks": 32, "warps": 64, "registers": 48}),
        (128, 38, 16384, 75.0, {"registers": 12, "warps": 16, "shared memory": 13}),
    ],
)
def test_nsight_computes_readings_on_an_h200(block, registers, shared, percent, limits):
    found = occupancy(GPUS["h200"].capability, block, registers, shared)

    assert found.percent == percent
    assert {name: found.limits[name] for name in limits} == limits


def test_a_smaller_shared_configuration_limits_as_nsight_compute_prints():
    found = occupancy(GPUS["h200"].capability, 32, 39, shared_config=32 * KIB)

    assert found.limits["shared memory"] == 32
    assert found.limiters == ("shared memory", "blocks")


CALCULATOR = r"""
extern "C" __global__ void calculate(const int *cases, int *answers, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int *a = cases + 11 * i;
  cudaOccDeviceProp p;
  p.computeMajor = a[0]; p.computeMinor = a[1]; p.maxThreadsPerBlock = 1024;
  p.maxThreadsPerMultiprocessor = a[2]; p.regsPerBlock = 65536; p.regsPerMultiprocessor = 65536;
  p.warpSize = 32; p.sharedMemPerBlock = 49152; p.sharedMemPerMultiprocessor = a[3];
  p.sharedMemPerBlockOptin = a[4]; p.reservedSharedMemPerBlock = a[5]; p.numSms = 1;
  cudaOccFuncAttributes f;
  f.maxThreadsPerBlock = 1024; f.numRegs = a[6]; f.sharedSizeBytes = a[7];
  f.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN; f.maxDynamicSharedSizeBytes = a[8];
  f.numBlockBarriers = 1; f.partitionedGCConfig = PARTITIONED_GC_OFF;
  cudaOccDeviceState s;
  s.carveoutConfig = a[10];
  cudaOccResult r;
  int *to = answers + 7 * i;
  to[0] = cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &f, &s, a[9], a[8]);
  to[1] = r.activeBlocksPerMultiprocessor; to[2] = r.blockLimitRegs; to[3] = r.blockLimitSharedMem;
  to[4] = r.blockLimitWarps; to[5] = r.blockLimitBlocks; to[6] = r.limitingFactors;
}
"""


@pytest.fixture(scope="module")
def nvidia_calculator():
    """NVIDIA's calculator: configurations in, limits out.

    Its header has functions for host and device. They are run as a kernel in the simulator, so that no C++
    compiler is needed.
    """
    header = next(h for folder in include_folders() if (h := folder / "cuda_occupancy.h").exists())
    # NVRTC has no C headers; of these three the calculator needs two limits only.
    text = re.sub(r"#include <(stddef|limits|string)\.h>", "", header.read_text(encoding="utf-8"))
    limits = "#define INT_MAX 2147483647\n#define UINT_MAX 4294967295u\n"
    engine = SimulatorEngine(core="numpy")
    kernel = engine.module(Source("calculator.cu", limits + text + CALCULATOR)).get_function("calculate")

    def calculate(cases):
        xp = engine.xp
        answers = xp.full((len(cases), 7), -1, np.int32)
        blocks = -(-len(cases) // 128)
        kernel((blocks, 1, 1), (128, 1, 1), (xp.asarray(cases), answers, np.int32(len(cases))))
        return xp.asnumpy(answers).tolist()

    return calculate


@pytest.mark.parametrize("version", CAPABILITIES)
def test_nvidias_calculator_agrees(nvidia_calculator, version):
    c, draw = capability(version), random.Random(version)
    cases = []
    for _ in range(1500):
        block = draw.choice([draw.randint(1, 1024), 32 * draw.randint(1, 32)])
        static = draw.choice([0, 0, draw.randint(0, 48 * KIB)])
        most = c.shared_per_block - static
        dynamic = draw.choice([0, 0, draw.randint(0, most), draw.randint(0, min(most, 4 * KIB)), most])
        config = draw.choice([None, *c.shared_sizes])
        cases.append((block, draw.randint(0, 255), dynamic, static, config))
    rows = []
    for block, registers, dynamic, static, config in cases:
        # The smallest whole percentage that NVIDIA rounds up to this configuration.
        carveout = -1 if config is None else -(-100 * config // c.shared_sizes[-1])
        if config is not None and carveout * c.shared_sizes[-1] // 100 > config:
            carveout -= 1
        limits = (c.major, c.minor, c.warps * 32, c.shared_sizes[-1], c.shared_per_block, c.shared_driver)
        rows.append((*limits, registers, static, dynamic, block, carveout))
    answers = nvidia_calculator(np.array(rows, np.int32))
    assert len(answers) == len(cases)
    seen = set()
    for case, (status, blocks, by_registers, by_shared, by_warps, by_blocks, factors) in zip(
        cases, answers, strict=True
    ):
        block, registers, dynamic, static, config = case
        found = occupancy(c, block, registers, dynamic, static, config)
        assert status == 0, case
        assert found.blocks == blocks, case
        assert (found.limits["warps"], found.limits["blocks"]) == (by_warps, by_blocks), case
        assert found.limits["registers"] == by_registers, case
        assert found.limits["shared memory"] == by_shared, case
        if blocks:
            bits = {"warps": 1, "registers": 2, "shared memory": 4, "blocks": 8}
            assert {name for name, bit in bits.items() if factors & bit} == set(found.limiters), case
        seen.update(found.limiters)
    assert seen == {"registers", "shared memory", "warps", "blocks"}


def test_the_second_documents_block_of_48_kb():
    gpu = GPUS["document_48kb"]

    assert occupancy(gpu.capability, 128, 64, 48 * KIB).blocks == 1
    too_much = occupancy(gpu.capability, 128, 64, 48 * KIB + 1)
    assert (too_much.blocks, too_much.limiters) == (0, ("shared memory",))
    with pytest.raises(ValueError, match="limited by shared memory"):
        too_much.waves(800, 16)
    waves = metrics.one(occupancy_metrics(gpu, "k", 800, 128, 64, 1024), names.WAVES)
    assert "not known" in waves["reason"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_threads": 0}, "block_threads=0 is not allowed: 1 to 1024"),
        ({"block_threads": 1025}, "block_threads=1025"),
        ({"registers": 256}, "registers=256 is not allowed: 0 to 255"),
        ({"shared_dynamic": -1}, "shared_dynamic=-1"),
        ({"shared_config": 5}, "shared_config=5 is no configuration of 9.0"),
    ],
)
def test_impossible_kernels_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        occupancy(**{"capability": capability("9.0"), "block_threads": 32, "registers": 32, **change})


LIMITS = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
}


def test_recorded_profiles_have_the_occupancy_of_the_formula():
    kernels = 0
    for key, rows in recorded_metrics(tool="ncu").groupby(["gpu", "stage", "problem", "kernel"]):
        rows = rows.reset_index(drop=True)
        by_formula = occupancy_of(rows)
        if "no block" in metrics.one(rows, names.WAVES)["reason"]:  # Nsight Compute did not know
            assert metrics.value(by_formula, names.THEORETICAL_OCCUPANCY) == 25
            continue
        for metric in (names.THEORETICAL_OCCUPANCY, names.WAVES):
            assert metrics.value(by_formula, metric) == pytest.approx(
                metrics.value(rows, metric), rel=1e-6
            ), key
        # Nsight Compute's limit by shared memory is that of the configuration that the driver chose.
        gpu, launch = launch_of(rows)
        launch.pop("grid_blocks")
        config = int(metrics.value(rows, "launch__shared_mem_config_size"))
        limits = occupancy(gpu.capability, **launch, shared_config=config).limits
        assert limits == {name: metrics.value(rows, metric) for name, metric in LIMITS.items()}, key
        kernels += 1
    assert kernels >= 30  # five problems, five stages, one of them of two kernels


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (lambda f: f, "one kernel on one GPU, not of 6"),
        (lambda f: metrics.select(f, stage="00_baseline"), "no launch__registers_per_thread"),
        (lambda f: metrics.select(f, stage="02_vectorized").assign(gpu="abacus"), "'abacus' is not in the"),
    ],
)
def test_what_the_formula_needs_is_named(keep, message):
    with pytest.raises(ValueError, match=message):
        occupancy_of(keep(reported_metrics()))


def test_gpus_are_found_by_the_drivers_name():
    assert find_gpu("NVIDIA H200").id == "h200"
    assert find_gpu("geforce rtx 3070") is not None
    assert gpu_id("NVIDIA GeForce RTX 9999 Ti") == "rtx_9999_ti"
    assert display_name("h200") == "H200"
    assert find_gpu("abacus") is None
    with pytest.raises(ValueError, match=r"'13\.0' is not in the table"):
        capability((13, 0))


def test_every_gpu_has_plausible_figures():
    for gpu in GPUS.values():
        assert gpu.sms is None or 1 <= gpu.sms <= 256, gpu
        assert gpu.memory_bandwidth is None or 1e11 < gpu.memory_bandwidth < 1e13, gpu
        assert gpu.peak_fp32 is None or 1e12 < gpu.peak_fp32 < 2e14, gpu
    assert {g.capability.version for g in GPUS.values()} >= set(CAPABILITIES) - {"10.3"}
