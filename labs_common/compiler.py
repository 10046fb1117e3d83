"""NVRTC without a driver: CUDA C++ to PTX for the simulator, and to a cubin for its resource figures."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from labs_common.source import NEUTRAL_FOLDER, Source

DEFAULT_ARCH = "sm_90"  # the recorded GPU's: figures for another one say so
# CuPy always adds -ftz=true; the simulator's PTX must be the same code.
OPTIONS = ("--std=c++17", "-ftz=true", "-lineinfo")

_DIAGNOSTIC = re.compile(
    r"^(?P<file>[^\n(]*)\((?P<line>\d+)\): (?P<kind>catastrophic error|error)\b[^:]*: (?P<text>.*)$", re.M
)
_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_FIGURES = {
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "spill_store_bytes": re.compile(r"(\d+) bytes spill stores"),
    "spill_load_bytes": re.compile(r"(\d+) bytes spill loads"),
    "registers": re.compile(r"Used (\d+) registers"),
    "barriers": re.compile(r"used (\d+) barriers"),
    "shared_bytes": re.compile(r"(\d+) bytes smem"),
}


class CompileError(ValueError):
    """Source that does not compile; the message is the compiler's, on the author's own file and lines.

    Attributes:
        diagnostics: (file, line, message) of each error.
    """

    def __init__(self, log: str) -> None:
        self._log = log
        log = log.replace(f"{NEUTRAL_FOLDER}/", "").rstrip("\0")
        self.diagnostics = [(m["file"], int(m["line"]), m["text"]) for m in _DIAGNOSTIC.finditer(log)]
        hint = ""
        if "mma.h" in log:
            hint = '\nhint: NVRTC has no mma.h; write the instruction inline: asm("mma.sync.aligned…")'
        elif re.search(r'cannot open source file "c\w+"', log):
            hint = "\nhint: NVRTC has no C++ standard headers; expf, fmaxf and INFINITY need no include here"
        super().__init__(log.strip() + hint)

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), (self._log,)


class CompilerMissing(RuntimeError):
    """There is no NVRTC on this machine; the message says how to get one."""


@dataclass(frozen=True)
class Resources:
    """What one kernel takes of a multiprocessor, as ptxas reports it for one architecture.

    Attributes:
        registers: per thread.
        shared_bytes: static shared memory per block.
        stack_bytes: local memory per thread.
        spill_store_bytes, spill_load_bytes: register spills per thread.
        barriers: named barriers used.
    """

    registers: int = 0
    shared_bytes: int = 0
    stack_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    barriers: int = 0


def _with_last_line(log: str, text: str, path: str) -> str:
    """The log with a position where NVRTC only says "At end of source"."""
    start = text.rfind("#line ")
    number = re.match(r"#line (\d+)", text[start:]) if start >= 0 else None
    last = (int(number[1]) if number else 2) + max(0, text.count("\n", max(start, 0)) - 1)
    return re.sub(r"^At end of source: error", f"{path}({last}): error", log, flags=re.M)


@functools.lru_cache(maxsize=128)
def _compile(
    path: str, text: str, defines: tuple[tuple[str, object], ...], arch: str, kind: str
) -> tuple[bytes, str]:
    nvrtc = _nvrtc()
    options = [f"--gpu-architecture={arch}", *OPTIONS]
    options += [f"-I{folder}" for folder in include_folders()]
    options += [f"-D{name}={value}" for name, value in defines]
    if kind == "cubin":
        # From the driver's cache of compiled code ptxas would say nothing.
        options += ["--ptxas-options=-v", "--no-cache"]
    result, program = nvrtc.nvrtcCreateProgram(text.encode(), path.encode(), 0, [], [])
    _check(nvrtc, result)
    try:
        (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = _fetch(nvrtc, program, "ProgramLog").decode(errors="replace")
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(_with_last_line(log, text, path) or str(result))
        return _fetch(nvrtc, program, {"ptx": "PTX", "cubin": "CUBIN"}[kind]), log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def compile_ptx(source: Source, defines: Mapping[str, object] | None = None, arch: str = DEFAULT_ARCH) -> str:
    """The PTX of a kernel file, with line information.

    Args:
        source: the kernel file; local headers are inlined.
        defines: macros, as with ``-D``.
        arch: ``sm_90`` and the like.

    Raises:
        CompileError: the source does not compile.
        CompilerMissing: no NVRTC here.
    """
    virtual = arch.replace("sm_", "compute_")
    ptx, _ = _compile(source.neutral_path, source.expanded(), _sorted(defines), virtual, "ptx")
    return ptx.rstrip(b"\0").decode()


def compile_resources(
    source: Source, defines: Mapping[str, object] | None = None, arch: str = DEFAULT_ARCH
) -> dict[str, Resources]:
    """Registers, spills and shared memory of each kernel in a file, from ptxas, for a real architecture.

    Counts change with toolkit, architecture and flags: they describe one compilation, not the kernel as such.

    Raises:
        CompileError: the source does not compile, or not for this architecture.
        CompilerMissing: no NVRTC here.
    """
    _, log = _compile(source.neutral_path, source.expanded(), _sorted(defines), arch, "cubin")
    parts = _ENTRY.split(log)[1:]
    return {
        entry: Resources(**{name: int(m[1]) for name, rx in _FIGURES.items() if (m := rx.search(text))})
        for entry, text in zip(parts[::2], parts[1::2], strict=True)
    }


def _sorted(defines: Mapping[str, object] | None) -> tuple[tuple[str, object], ...]:
    return tuple(sorted((defines or {}).items()))


def compiler_version() -> str:
    """NVRTC's version, such as ``13.0``."""
    nvrtc = _nvrtc()
    result, major, minor = nvrtc.nvrtcVersion()
    _check(nvrtc, result)
    return f"{major}.{minor}"


@functools.cache  # what is installed is looked up in hundreds of files
def include_folders() -> tuple[Path, ...]:
    """Folders of the CUDA headers: of the wheels, and a toolkit's CUB where its wheel is missing.

    ``CUDA_PATH`` says where a toolkit is; it is read once in a process.
    """
    folders = set()
    wheels = ("nvidia-cuda-runtime", "nvidia-cuda-cccl")
    for package in (*wheels, *(f"{wheel}-cu12" for wheel in wheels)):
        try:
            files = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name in ("cuda_fp16.h", "cub.cuh"):
                levels = 0 if file.name == "cuda_fp16.h" else 1
                folders.add(Path(str(file.locate())).resolve().parents[levels])
    toolkit = Path(os.environ.get("CUDA_PATH", "/usr/local/cuda")) / "include" / "cccl"
    if not any((folder / "cub").is_dir() for folder in folders) and toolkit.is_dir():
        folders.add(toolkit)
    return tuple(sorted(folders))


def _nvrtc() -> ModuleType:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise CompilerMissing(
            f"no NVRTC on this machine ({error}): pip install -e '.[nogpu]' brings it"
        ) from None
    return nvrtc


def _check(nvrtc: ModuleType, result: object) -> None:
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC failed: {result}")


def _fetch(nvrtc: ModuleType, program: object, what: str) -> bytes:
    result, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    _check(nvrtc, result)
    buffer = bytes(size)
    (result,) = getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    _check(nvrtc, result)
    return buffer
