"""Where a recorded number comes from, so that it can be measured again, and what tells that it must be."""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from labs_common.compiler import compile_ptx
from labs_common.gpus import capability
from labs_common.plans import Device
from labs_common.problem import Problem
from labs_common.stages import Stage

_DEBUG_SECTION = re.compile(r"^\s*\.section\s+\.debug\w*\s*\{.*?^\s*\}", re.MULTILINE | re.DOTALL)
_DEBUG_LINES = (".loc", ".file", "$L__tmp")  # the labels are those that debug sections point to
_VARIABLE = re.compile(r"^\s*\.(?:global|const)\b.*?([\w$]+)(?:\[\d*\])?\s*(?:=.*)?;\s*$")


def ptx_hash(ptx: str) -> str:
    """SHA-256 over what a GPU executes of some PTX (its first 16 hex digits).

    Comments, the compiler's name, line information, and variables that nothing refers to are left out.
    """
    text = _DEBUG_SECTION.sub("", re.sub(r"//[^\n]*", "", ptx))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith(_DEBUG_LINES)]
    words = re.findall(r"[\w$]+", "\n".join(lines))
    mentions: dict[str, int] = {}
    for word in words:
        mentions[word] = mentions.get(word, 0) + 1
    kept = [line for line in lines if not ((v := _VARIABLE.match(line)) and mentions[v[1]] == 1)]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()[:16]


def kernel_hash(
    stage: Stage, problem: Problem, compute_capability: str, options: Mapping[str, int] | None = None
) -> str:
    """`ptx_hash` of a stage's kernels as they are compiled for a problem.

    Args:
        stage, problem: what runs.
        compute_capability: of the GPU, such as "9.0".
        options: of the stage's plan, such as ``splits``.

    Raises:
        ValueError: the stage does not take the problem, or an unknown compute capability.
        CompilerMissing: no NVRTC here.
    """
    limits = capability(compute_capability)
    device = Device(
        compute_capability=(limits.major, limits.minor),
        max_threads=limits.threads_per_block,
        max_shared_bytes=limits.shared_per_block,
    )
    plan = stage.plan(problem, device, **(options or {}))
    return ptx_hash(compile_ptx(stage.source(), plan.defines, device.arch))


def nvidia_smi(*fields: str) -> list[str] | None:
    """What ``nvidia-smi`` says of the first GPU, one text per field; None where it says nothing."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    lines = answer.strip().splitlines()
    return [part.strip() for part in lines[0].split(",")] if lines else None


def gpu_provenance(command: str) -> dict[str, object]:
    """GPU, driver, toolkit and date of a measurement made now, on this machine."""
    import cupy

    name, driver, version = nvidia_smi("name", "driver_version", "compute_cap") or (None, None, None)
    major, minor = cupy.cuda.nvrtc.getVersion()
    return {
        "gpu": name,
        "driver": driver,
        "compute_capability": version,
        "nvrtc": f"{major}.{minor}",
        "cupy": cupy.__version__,
        "python": platform.python_version(),
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def read_provenance(folder: Path) -> dict[str, object]:
    """The ``provenance.json`` of a folder; empty where there is none."""
    path = folder / "provenance.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_provenance(folder: Path, entries: dict[str, object]) -> None:
    """Write ``provenance.json`` beside the data it is about."""
    text = json.dumps(entries, indent=2, ensure_ascii=False) + "\n"
    (folder / "provenance.json").write_text(text, encoding="utf-8")
