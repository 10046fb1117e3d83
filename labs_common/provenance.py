"""Where a recorded number comes from, so that it can be measured again."""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path

from labs_common.source import KERNELS, Source


def source_hash(sources: Iterable[Source]) -> str:
    """SHA-256 over kernel files as compiled, headers included (its first 16 hex digits)."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.expanded().encode())
    return digest.hexdigest()[:16]


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
    """GPU, driver, toolkit, kernels and date of a measurement made now, on this machine."""
    import cupy

    name, driver = nvidia_smi("name", "driver_version") or (None, None)
    major, minor = cupy.cuda.nvrtc.getVersion()
    return {
        "gpu": name,
        "driver": driver,
        "nvrtc": f"{major}.{minor}",
        "cupy": cupy.__version__,
        "python": platform.python_version(),
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "kernels_sha256": {
            path.stem: source_hash([Source.read(path)]) for path in sorted(KERNELS.glob("*.cu"))
        },
    }


def write_provenance(folder: Path, entries: dict[str, object]) -> None:
    """Write ``provenance.json`` beside the data it is about."""
    text = json.dumps(entries, indent=2, ensure_ascii=False) + "\n"
    (folder / "provenance.json").write_text(text, encoding="utf-8")
