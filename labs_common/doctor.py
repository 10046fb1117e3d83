"""What this machine can do for the lab, and why not more."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from labs_common.compiler import CompilerMissing, compiler_version
from labs_common.front_ends import ENVIRONMENT, open_front_end
from labs_common.provenance import nvidia_smi

TOOLKITS = Path("/usr/local")  # where CUDA's installer puts its cuda-*/ folders
NO_NCU = "install Nsight Compute (it comes with the CUDA toolkit), or put its folder on PATH"
MINIMUM_DRIVER = {"cuda13": 580, "cuda12": 525}


@dataclass(frozen=True)
class Ability:
    """One thing that a machine can or cannot do.

    Attributes:
        name: of the ability.
        works: whether it does.
        detail: what was found.
        remedy: what to do where it does not work; empty where nothing can be done.
    """

    name: str
    works: bool
    detail: str
    remedy: str = ""


def diagnose() -> list[Ability]:
    """Every ability, tried out rather than guessed."""
    return [
        _compiler(),
        _front_end(),
        _simulator(),
        gpu_ability(),
        cupy_ability(),
        ncu_ability(),
        _notebooks(),
    ]


def find_ncu() -> str | None:
    """Path of the ``ncu`` program: on PATH, or in the newest toolkit under the usual folder."""
    usual = sorted(TOOLKITS.glob("cuda*/bin/ncu"), reverse=True)
    return shutil.which("ncu") or next((str(path) for path in usual), None)


def engine_choice() -> tuple[str, str]:
    """Which engine ``auto`` takes here, and why: ``("gpu" | "sim", reason)``."""
    gpu, cupy = gpu_ability(), cupy_ability()
    if gpu.works and cupy.works:
        return "gpu", gpu.detail
    missing = gpu if not gpu.works else cupy
    return "sim", f"{missing.name}: {missing.detail}"


def _compiler() -> Ability:
    try:
        return Ability("CUDA compiler", True, f"NVRTC {compiler_version()}, no driver needed")
    except CompilerMissing as error:
        return Ability("CUDA compiler", False, str(error).split(":")[0], "make run sets it up; or see README")


def _front_end() -> Ability:
    """What compiles for the simulator; may be another one than NVRTC, by lack of it or by choice."""
    name = "Front end"
    try:
        front_end = open_front_end()
    except (CompilerMissing, ValueError) as error:
        return Ability(name, False, str(error).split(":")[0], f"pip install ziglang, or unset {ENVIRONMENT}")
    if front_end.name == "nvrtc":
        return Ability(name, True, f"the simulator counts code of {front_end.label}")
    counts = f"the simulator counts code of {front_end.label}, not of NVRTC; registers are not measured"
    return Ability(name, True, counts)


def _simulator() -> Ability:
    try:
        version = importlib.metadata.version("llvmlite")
    except importlib.metadata.PackageNotFoundError:
        return Ability("Simulator", False, "llvmlite is missing", "pip install llvmlite")
    return Ability("Simulator", True, f"{os.cpu_count()} cores, {platform.machine()}, llvmlite {version}")


def gpu_ability() -> Ability:
    """Whether there is an NVIDIA GPU with a driver that is new enough."""
    answer = nvidia_smi("name", "driver_version", "compute_cap")
    if answer is None:
        return Ability("GPU", False, "nvidia-smi finds none", "none needed: the simulator runs every stage")
    name, driver, capability = answer
    detail = f"{name}, compute capability {capability}, driver {driver}"
    if int(driver.split(".")[0]) < MINIMUM_DRIVER["cuda12"]:
        return Ability("GPU", False, detail, f"install driver {MINIMUM_DRIVER['cuda12']} or newer")
    return Ability("GPU", True, detail)


def cupy_ability() -> Ability:
    """Whether CuPy is there and reaches the GPU."""
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
        return Ability("CuPy", True, f"CuPy {cupy.__version__}")
    except ImportError:
        return Ability(
            "CuPy",
            False,
            "not installed",
            f"pip install -e '.[cuda13]' (driver {MINIMUM_DRIVER['cuda13']} or newer) or '.[cuda12]'",
        )
    except Exception as error:
        return Ability("CuPy", False, f"{type(error).__name__}: {error}", "check that driver and CuPy match")


def ncu_ability() -> Ability:
    """Whether there is an ncu that starts; `tiers` tells whether it can measure."""
    path = find_ncu()
    if path is None:
        return Ability("Nsight Compute", False, "no ncu found", NO_NCU)
    command = [path, "--version"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return Ability("Nsight Compute", False, f"{path} does not start: {error}", NO_NCU)
    version = next((line for line in said.splitlines() if line.startswith("Version")), "unknown version")
    return Ability("Nsight Compute", True, version)


def _notebooks() -> Ability:
    try:
        return Ability("Notebooks", True, f"JupyterLab {importlib.metadata.version('jupyterlab')}")
    except importlib.metadata.PackageNotFoundError:
        return Ability("Notebooks", False, "JupyterLab is missing", "pip install jupyterlab")
