"""IR text -> machine code, and the disk cache of optimised object files.

The cache is `$XDG_CACHE_HOME/palab` (or `~/.cache/palab`); a file's name is the hash of everything that its
contents depend on. Files are written whole under another name first; one that cannot be read, is cut short or
does not fit its checksum is ignored and rebuilt.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from . import llvm_driver

ATTRIBUTES = '"min-legal-vector-width"="512"'
MAGIC = b"palab simt object 1\n"
QUICK, OPTIMISED = 1, 2
MOST_FILES = 500  # about 100 KB each


@functools.cache
def host() -> tuple[str, str, str]:
    """(triple, CPU name, features) of this machine."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    flags = features.flatten()
    if features.get("avx512f"):
        flags += ",-prefer-256-bit"
    return llvm.get_process_triple(), llvm.get_host_cpu_name(), flags


def _target_machine(level: int) -> llvm.TargetMachine:
    triple, cpu, features = host()
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=0 if level == QUICK else 2, jit=True, codemodel="jitdefault"
    )


def build(text: str, level: int) -> bytes:
    """The object file of an IR text.

    Few passes: the text is vectors already, and what takes time in LLVM's usual pipeline finds nothing here.
    """
    machine = _target_machine(level)
    module = llvm.parse_assembly(text)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    if level == OPTIMISED:
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)
    return machine.emit_object(module)


@dataclass(frozen=True)
class Native:
    """A kernel's machine code. run(context, resume) and run_stepped -> code; setup(context, warp state).

    uniform and masked are the addresses that the drivers call.
    """

    run: Callable[[int, int], int]
    run_stepped: Callable[[int, int], int]
    setup: Callable[[int, int], None]
    uniform: int
    masked: int
    level: int
    engine: llvm.ExecutionEngine  # owns the code


def map_objects(parts: list[bytes]) -> llvm.ExecutionEngine:
    """Object files in memory, linked with each other; the engine owns them."""
    empty = llvm.parse_assembly(f'target triple = "{host()[0]}"')
    engine = llvm.create_mcjit_compiler(empty, _target_machine(OPTIMISED))
    for data in parts:
        engine.add_object_file(llvm.ObjectFileRef.from_data(data))
    engine.finalize_object()
    return engine


def load(data: bytes, level: int) -> Native:
    """Map an object file beside the runtime's."""
    engine = map_objects([runtime_object(), data])
    run, stepped, setup, uniform, masked = (
        engine.get_function_address(name) for name in ("run", "run_stepped", "setup", "uniform", "masked")
    )
    driver = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32)
    return Native(
        driver(run),
        driver(stepped),
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(setup),
        uniform,
        masked,
        level,
        engine,
    )


@functools.cache
def runtime_object() -> bytes:
    """The object file of llvm_driver, from the disk cache or built."""
    name = key("runtime")
    kept = fetch(name)
    if kept is not None:
        return kept.data
    data = build(llvm_driver.text(host()[0], ATTRIBUTES), OPTIMISED)
    keep(name, Kept(OPTIMISED, 0, data))
    return data


@functools.cache
def engine_version() -> str:
    """A hash of this engine's own modules: code built by other ones is not used."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(here.glob("*.py")):
        if path.name.startswith("llvm_") or path.stem in ("ops", "vector_math", "program", "parse", "memory"):
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def key(program_text: str) -> str:
    """The cache key of a kernel: its PTX and entry, this CPU, this engine, this LLVM."""
    parts = (program_text, *host(), engine_version(), llvmlite.__version__, str(llvm.llvm_version_info))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def folder() -> Path:
    """Where object files are kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "palab"


@dataclass(frozen=True)
class Kept:
    """What the cache keeps: how well it was built, the bytes of a warp state, the object file."""

    level: int
    warp_bytes: int
    data: bytes


def fetch(name: str) -> Kept | None:
    """What is kept under a key, or None."""
    try:
        data = (folder() / f"{name}.o").read_bytes()
    except OSError:
        return None
    head = len(MAGIC) + 32
    if not data.startswith(MAGIC) or hashlib.sha256(data[head:]).digest() != data[len(MAGIC) : head]:
        return None
    level, warp_bytes = (int.from_bytes(data[head + k : head + k + 8], "little") for k in (0, 8))
    return Kept(level, warp_bytes, data[head + 16 :])


def keep(name: str, kept: Kept) -> None:
    """Store an object file; a cache that cannot be written is no error."""
    data = kept.level.to_bytes(8, "little") + kept.warp_bytes.to_bytes(8, "little") + kept.data
    try:
        folder().mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder(), prefix=f"{name}.", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(MAGIC + hashlib.sha256(data).digest() + data)
            os.replace(temporary, folder() / f"{name}.o")
            _prune()
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError:
        pass


def _prune() -> None:
    """Delete the oldest object files beyond MOST_FILES."""
    files = list(folder().glob("*.o"))
    if len(files) > MOST_FILES:
        files.sort(key=lambda path: path.stat().st_mtime)
        for path in files[: len(files) - MOST_FILES]:
            path.unlink(missing_ok=True)
