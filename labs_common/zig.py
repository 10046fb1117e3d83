"""The clang in the ``ziglang`` wheel as a second front end: CUDA C++ to PTX with no CUDA toolkit at all.

It knows no CUDA header; ``zig_headers`` has what NVRTC has built in. It makes PTX only: there is no ptxas, so
registers, spills and cubins are NVRTC's alone.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from labs_common.compiler import CompileError, CompilerMissing
from labs_common.source import NEUTRAL_FOLDER, Source
from labs_common.zig_ir import widen_copies

HEADERS = Path(__file__).resolve().parent / "zig_headers"
NEUTRAL_HEADERS = "/lab/zig_headers"
TIMEOUT_S = 120
# As NVRTC's of compiler.OPTIONS: C++17, denormals flushed, line information, precise division and square
# root. Both contract a product and a sum to an fma by default. One host target everywhere, since it decides
# how wide a long is; no header but ours, since NVRTC has none either.
OPTIONS = (
    *("-x", "cuda", "--cuda-device-only", "-nocudainc", "-nocudalib", "-nostdinc", "-nostdinc++"),
    *("--target=x86_64-unknown-linux-gnu", "-O3", "-std=c++17", "-fno-exceptions"),
    *("-fgpu-flush-denormals-to-zero", "-ffp-contract=fast", "-g1", "-w", "-ferror-limit=20"),
)
_TO_IR = ("-S", "-emit-llvm", "-Xclang", "-disable-llvm-passes", "-fno-discard-value-names")
_TO_PTX = (
    "-cc1",
    "-triple",
    "nvptx64-nvidia-cuda",
    "-x",
    "ir",
    "-O3",
    "-S",
    "-ffp-contract=fast",
    "-fno-dwarf-directory-asm",
    "-w",
)

_DIAGNOSTIC = re.compile(r"^(?P<file>[^\n:]*):(?P<line>\d+):\d+: (?:fatal )?error: ", re.M)
_SUMMARY = re.compile(r"^(In file included from .*|\d+ errors? generated.*)\n?", re.M)
_LOC = re.compile(r"^(\t\.loc)\t(\d+) (\d+) (\d+)[^\n/]*// ([^\n]*?)$", re.M)
_FILE = re.compile(r'^\t\.file\t(\d+) "([^"\n]*)"', re.M)
_FRAME = re.compile(r"(\S+?):(\d+):(\d+)(?= @\[| \]|$)")


def compile_ptx(source: Source, defines: Mapping[str, object] | None, arch: str) -> str:
    """The PTX of a kernel file, with line information and inlined-at chains.

    Raises:
        CompileError: the source does not compile; messages are on the author's own file and lines.
        CompilerMissing: no ziglang here.
    """
    macros = tuple(f"-D{name}={value}" for name, value in sorted((defines or {}).items()))
    return _compile(source.expanded(), macros, arch)


def version() -> str:
    """What compiles, such as ``clang 22.1.8 (ziglang 0.17.1)``.

    Raises:
        CompilerMissing: no ziglang here.
    """
    wheel = importlib.metadata.version("ziglang") if _program() else ""
    found = re.search(r"clang version (\S+)", _run(("--version",), "").stdout)
    return f"clang {found[1] if found else '?'} (ziglang {wheel})"


def available() -> bool:
    """Whether the wheel is installed."""
    return importlib.util.find_spec("ziglang") is not None


def missing_functions() -> list[str]:
    """Names of CUDA's functions that the prelude knows only to say that it has not got them."""
    prelude = (HEADERS / "prelude.cuh").read_text(encoding="utf-8")
    return re.findall(r"^LAB_MISSING\((\w+)\)$", prelude, re.M)


@functools.lru_cache(maxsize=128)
def _compile(text: str, macros: tuple[str, ...], arch: str) -> str:
    prelude = f'#line 1 "{NEUTRAL_HEADERS}/prelude.cuh"\n' + (HEADERS / "prelude.cuh").read_text(
        encoding="utf-8"
    )
    options = (*OPTIONS, *_TO_IR, f"--cuda-gpu-arch={arch}", f"-I{HEADERS}", *macros, "-", "-o", "-")
    ir = widen_copies(_output(options, prelude + text))
    return _with_chains(_output((*_TO_PTX, "-target-cpu", arch, "-", "-o", "-"), ir))


def _output(options: tuple[str, ...], text: str) -> str:
    done = _run(options, text)
    if done.returncode:
        raise CompileError(_as_nvrtc(done.stderr) or f"clang ended with status {done.returncode}")
    return done.stdout


def _run(options: tuple[str, ...], text: str) -> subprocess.CompletedProcess:
    # Zig keeps a cache of its own beside the user's; it must not come to lie in the project.
    environment = os.environ | {"ZIG_GLOBAL_CACHE_DIR": str(Path(tempfile.gettempdir()) / "palab-zig")}
    return subprocess.run(
        [str(_program()), "clang", *options],
        input=text,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=environment,
        timeout=TIMEOUT_S,
        check=False,
    )


@functools.cache
def _program() -> Path:
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise CompilerMissing("no ziglang on this machine: pip install ziglang")
    folder = Path(spec.origin).parent
    return folder / ("zig.exe" if os.name == "nt" else "zig")


def _as_nvrtc(log: str) -> str:
    """Clang's messages with NVRTC's ``file(line): error: text``, which all else reads; carets stay."""
    log = log.replace(f"{HEADERS}{os.sep}", f"{NEUTRAL_FOLDER}/").replace(f"{NEUTRAL_HEADERS}/", "")
    log = _SUMMARY.sub("", _DIAGNOSTIC.sub(r"\g<file>(\g<line>): error: ", log)).strip()
    if missing := re.search(r"error: '([^'\n]+)' file not found", log):
        known = ", ".join(sorted(path.name for path in HEADERS.glob("*.h")))
        log += f"\nhint: {missing[1]} comes with NVRTC's toolkit, if at all; the zig front end has {known}"
    return log


def _with_chains(ptx: str) -> str:
    """The PTX with `inlined_at` on each ``.loc``.

    This clang writes where an instruction was inlined only as a comment, ``a.cuh:6:3 @[ b.cu:10:1 ]``,
    innermost first. A chain is told outermost first, a ``.loc`` for every frame, as NVRTC does.
    """
    numbers = {name: number for number, name in _FILE.findall(ptx)}

    def told(match: re.Match[str]) -> str:
        frames = [(numbers[f], line, column) for f, line, column in _FRAME.findall(match[5]) if f in numbers]
        if len(frames) < 2:
            return match[0]
        lines = [f"{match[1]}\t{' '.join(frames[-1])}"]
        for inner, outer in zip(frames[-2::-1], frames[:0:-1], strict=True):
            lines.append(f"{match[1]}\t{' '.join(inner)}, inlined_at {' '.join(outer)}")
        return "\n".join(lines)

    return _LOC.sub(told, ptx)
