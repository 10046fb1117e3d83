"""Profiles of Nsight Compute in any of its forms, as Metrics: the one place that reads them.

Forms: .ncu-rep and .ncu-rep.xz (through ncu-report), --csv with the details or the raw page, --print-summary,
    the
plain text report, and this lab's own Metrics CSV. What form a file has is told by its content, not its name.
"""

from __future__ import annotations

import lzma
import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from labs_common.metric_names import NAMES, THEORETICAL_OCCUPANCY, WAVES, canonical
from labs_common.metrics import COLUMNS, Metrics, load_csv
from labs_common.ncu_csv import is_header, read_csv
from labs_common.ncu_report_file import LINE_METRICS, LINE_PREFIXES, read_report_file, report_sources
from labs_common.ncu_rows import (
    CONVERT,
    Context,
    CountersForbidden,
    NothingProfiled,
    ProfileError,
    rules_frame,
)
from labs_common.ncu_text import looks_like_report, read_text

__all__ = [
    "CountersForbidden",
    "NothingProfiled",
    "Profile",
    "ProfileError",
    "log_problem",
    "read_parts",
    "read_profile",
    "read_sources",
]

LARGEST = 512 * 1024**2  # bytes of a decompressed report
_REPORT, _XZ = b"NVR\0", b"\xfd7zXZ\0"
_SHARED_LIMIT = "launch__occupancy_limit_shared_mem"
_FROM_SHARED_LIMIT = (_SHARED_LIMIT, "sm__maximum_warps_avg_per_active_cycle", THEORETICAL_OCCUPANCY, WAVES)
_OTHER_BINARY = {
    b"SQLite format 3": "an SQLite database, such as Nsight Systems exports",
    b"\x7fELF": "a program",
}
# What Nsight Compute's log says: a pattern of its message, the error with its reason, the remedy.
_LOG_PROBLEMS: tuple[tuple[str, type[ProfileError], str, str], ...] = (
    (
        r"ERR_NVGPUCTRPERM",
        CountersForbidden,
        "not measured: no permission for the GPU's performance counters (ERR_NVGPUCTRPERM)",
        "Ask the administrator of this machine to allow it: NVreg_RestrictProfilingToAdminUsers=0 for the "
        "nvidia kernel module, and in a container --cap-add=SYS_ADMIN too; see "
        "https://developer.nvidia.com/ERR_NVGPUCTRPERM. Until then there are event times and recorded "
        "profiles",
    ),
    (
        r"^==ERROR== .*[Dd]river.* not compatible",
        ProfileError,
        "not measured: the driver is too old for this Nsight Compute",
        "Update the driver, or use the ncu of a CUDA toolkit that the driver supports",
    ),
    (
        r"^==ERROR== .*not supported on (this )?device",
        ProfileError,
        "not measured: this Nsight Compute does not support this GPU",
        "A newer GPU needs a newer ncu, a GPU that was dropped an older one: ncu --list-chips tells",
    ),
    (
        r"^==ERROR== .*resource was unavailable",
        ProfileError,
        "not measured: the GPU's counters are in use (Driver resource was unavailable)",
        "End other profilers of this GPU: another ncu, or DCGM's (dcgmi profile --pause)",
    ),
)

# What the table of a recorded profile keeps: every named metric, the stalls, and figures by line.
COMPACT = (
    *(name.metric for name in NAMES),
    *LINE_METRICS,
    "launch__shared_mem_per_block_allocated",
    *(
        f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum.per_cycle_elapsed"
        for op in ("ffma", "fmul", "fadd")
    ),
)
COMPACT_PREFIXES = LINE_PREFIXES


@dataclass(frozen=True)
class Profile:
    """A profile: its metrics, and apart from them its rules, with the columns `ncu_rows.RULE_COLUMNS`."""

    metrics: Metrics
    rules: pd.DataFrame


def read_profile(path: Path | str, **options: object) -> Metrics:
    """The metrics of a profile; arguments and errors as of `read_parts`."""
    return read_parts(path, **options).metrics  # type: ignore[arg-type]


def read_parts(
    path: Path | str,
    *,
    source: str = "recorded",
    gpu: str = "",
    stage: str = "",
    kernel: str = "",
    problem: str = "",
    decimal: str | None = None,
    only: Iterable[str] | None = None,
    lines: bool = True,
) -> Profile:
    """Metrics and rules of a profile, in whatever form it is.

    Args:
        path: the file.
        source: "measured" for one made here and now, "recorded", or "reported".
        gpu: id; by default what the profile names, a device or its compute capability.
        stage, kernel: by default the kernel's function name and the lab's stage that it belongs to.
        problem: what was run; no profile says it.
        decimal: "." or ",", for a report whose numbers prove neither.
        only: names of metrics to keep, a trailing * for all that begin so; all by default. `ncu.compact()` is
            the selection of recorded profiles.
        lines: whether figures of source lines are kept, where the form has them.

    Raises:
        FileNotFoundError: no such file.
        CountersForbidden, NothingProfiled: what the log of a failed profiling run says, with the remedy.
        ProfileError: a form that cannot be read, an unknown unit, an ambiguous number.
    """
    if decimal not in (None, ".", ","):
        raise ValueError(f"decimal={decimal!r} is not allowed: None, '.' or ','")
    path = Path(path)
    wanted = _selection(only)
    context = Context(source, gpu, stage, kernel, problem, decimal)
    data = path.read_bytes()
    if data.startswith(_XZ):
        data = _decompressed(path, data)
        if not data.startswith(_REPORT):
            return _believed(_of_text(path, _decoded(path, data), context, wanted))
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / path.name.removesuffix(".xz")
            plain.write_bytes(data)
            return _believed(Profile(*read_report_file(plain, context, wanted, lines)))
    if data.startswith(_REPORT):
        return _believed(Profile(*read_report_file(path, context, wanted, lines)))
    return _believed(_of_text(path, _decoded(path, data), context, wanted))


def _believed(profile: Profile) -> Profile:
    """Without the occupancy of kernels for no block of which Nsight Compute finds shared memory: they ran."""
    frame = profile.metrics
    none = frame[(frame["metric"] == _SHARED_LIMIT) & (frame["value"] == 0)]
    if none.empty:
        return profile
    pairs = pd.MultiIndex.from_frame(none[["kernel", "launch"]])
    wrong = frame["metric"].isin(_FROM_SHARED_LIMIT)
    wrong &= pd.MultiIndex.from_frame(frame[["kernel", "launch"]]).isin(pairs)
    reason = "Nsight Compute finds shared memory for no block of a kernel that ran"
    believed = frame.assign(value=frame["value"].mask(wrong), reason=frame["reason"].mask(wrong, reason))
    return replace(profile, metrics=believed)


def read_sources(path: Path | str) -> dict[str, str]:
    """The source files that a report file carries, as they were profiled: text by file name.

    Lines of a profile are lines of these, which today's files may no longer be.

    Raises:
        FileNotFoundError: no such file.
        ProfileError: no .ncu-rep or .ncu-rep.xz, or one that cannot be loaded.
    """
    path = Path(path)
    data = path.read_bytes()
    if data.startswith(_XZ):
        data = _decompressed(path, data)
    if not data.startswith(_REPORT):
        raise ProfileError(f"{path} is no report file: only .ncu-rep carries sources")
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "profile.ncu-rep"
        plain.write_bytes(data)
        return report_sources(plain)


def compact() -> list[str]:
    """Names for `only` that a recorded profile keeps."""
    return [*COMPACT, *(prefix + "*" for prefix in COMPACT_PREFIXES)]


def _selection(only: Iterable[str] | None) -> Callable[[str], bool]:
    if only is None:
        return lambda _: True
    names = [name for entry in only for name in (entry, canonical(entry))]
    exact, prefixes = set(names), tuple(n[:-1] for n in names if n.endswith("*"))
    return lambda metric: metric in exact or metric.startswith(prefixes)


def _decompressed(path: Path, data: bytes) -> bytes:
    unpacker = lzma.LZMADecompressor(memlimit=256 * 1024**2)
    try:
        plain = unpacker.decompress(data, max_length=LARGEST)
    except lzma.LZMAError as error:
        raise ProfileError(f"{path} is damaged or no xz file: {error}") from error
    if not unpacker.eof:
        raise ProfileError(f"{path} is cut off, or larger than {LARGEST} bytes when decompressed")
    return plain


def _decoded(path: Path, data: bytes) -> str:
    """The text of a file: UTF-8, or UTF-16 as PowerShell redirects it."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16")
    kind = next((what for start, what in _OTHER_BINARY.items() if data.startswith(start)), None)
    if kind or b"\0" in data[:4096]:
        raise ProfileError(
            f"{path} is {kind or 'a binary file'}, no profile of Nsight Compute: those begin with NVR, or "
            f"are text. Export one with: {CONVERT}"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ProfileError(f"{path} is no UTF-8 text: {error}; export it again with: {CONVERT}") from error


def log_problem(text: str) -> ProfileError | None:
    """What a log of Nsight Compute says went wrong, with the remedy; None when it names no problem."""
    for pattern, kind, reason, remedy in _LOG_PROBLEMS:
        if re.search(pattern, text, re.MULTILINE):
            return kind(reason, remedy)
    if re.search(r"^==WARNING== No kernels were profiled", text, re.MULTILINE):
        seen = re.findall(r"^\s*\d+\. (\S.*)$", text.partition("Available Kernels")[2], re.MULTILINE)
        seen += re.findall(r'^==PROF== Profiling "([^"]+)"', text, re.MULTILINE)
        listed = ", ".join(dict.fromkeys(name.strip() for name in seen))
        child = (
            "none was seen. A kernel that a child process launches needs --target-processes all; Jupyter's "
            "own process cannot be profiled, a script can"
        )
        why = f"seen: {listed}" if listed else child
        return NothingProfiled(f"0 kernels matched; {why}")
    error = re.search(r"^==ERROR== (.+)$", text, re.MULTILINE)
    return ProfileError(f"not measured: Nsight Compute says: {error[1].strip()}") if error else None


def _of_text(path: Path, text: str, context: Context, wanted: Callable[[str], bool]) -> Profile:
    if text.startswith(",".join(list(COLUMNS)[:4])):
        metrics, rules = load_csv(path), rules_frame([])
    else:
        body, processes = _own_output(text)
        try:
            metrics, rules = _table(body, context, processes)
        except NothingProfiled as error:
            raise (log_problem(text) or _nothing(path, text, body, error)) from error
        except ProfileError as error:
            raise type(error)(f"{path}: {error}") from error
    keep = metrics["metric"].map(wanted)
    return Profile(metrics[keep].reset_index(drop=True), rules)


def _table(body: str, context: Context, processes: set[str]) -> tuple[Metrics, pd.DataFrame]:
    lines = body.splitlines(keepends=True)
    header = next((i for i, line in enumerate(lines) if is_header(line)), None)
    if header is not None:
        metrics, rules = read_csv("".join(lines[header:]), context, processes)
    elif looks_like_report(body):
        metrics, rules = read_text(body, context)
    else:
        raise NothingProfiled("no table of metrics")
    if metrics.empty:
        raise NothingProfiled("a table without rows")
    return metrics, rules


def _own_output(text: str) -> tuple[str, set[str]]:
    """What Nsight Compute printed itself, and the processes that it profiled.

    It prints results after the last profiled process has ended, so what stands before that is a program's
    output and no profile, whatever it looks like. A log without these marks is taken whole.
    """
    processes = set(re.findall(r"^==PROF== Connected to process (\d+)", text, re.MULTILINE))
    ends = list(re.finditer(r"==PROF== Disconnected from process \d+.*", text))
    return (text[ends[-1].end() :].lstrip("\n") if ends else text), processes


def _nothing(path: Path, text: str, body: str, error: ProfileError) -> ProfileError:
    if body != text and (looks_like_report(text) or any(is_header(line) for line in text.splitlines())):
        return NothingProfiled(
            f"{path}: the only table stands before '==PROF== Disconnected', where programs print: it is not "
            "Nsight Compute's. Profile with --log-file"
        )
    if not text.strip():
        return NothingProfiled(f"{path} is empty: nothing was profiled")
    return NothingProfiled(
        f"{path}: {error}. Readable are .ncu-rep, --csv with --page details or raw, --print-summary "
        "per-kernel, and the text report"
    )
