"""Sets up ``.venv``: run by make with whatever Python there is, before anything is installed.

Standard library only, in the syntax of Python 3.6: an old Python gets a sentence instead of a traceback.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "ready"  # holds the checkout's path: a moved checkout is set up again
UNFINISHED = VENV / "unfinished"  # there while packages are being installed
INSTALLED_EXTRA = VENV / "extra"

MINIMUM_PYTHON = (3, 11)
CUDA_12_DRIVER = 525
CUDA_13_DRIVER = 580
CUDA_13_COMPUTE_CAPABILITY = (7, 5)
EXTRAS = ("nogpu", "cuda12", "cuda13")


def choose_extra(report, absence="nvidia-smi was not found"):
    """Which extra of pyproject.toml suits this machine, and why.

    Args:
        report: what ``nvidia-smi --query-gpu=driver_version,compute_cap,name --format=csv,noheader`` printed,
            a line per GPU; None where it could not be asked.
        absence: why it could not.

    Returns:
        One of ``EXTRAS`` and a sentence.
    """
    if report is None:
        return "nogpu", "{}: no CuPy, kernels run in the simulator".format(absence)
    rows = [[cell.strip() for cell in line.split(",", 2)] for line in report.splitlines() if line.strip()]
    rows = [row for row in rows if len(row) == 3 and re.match(r"\d+(\.\d+)*$", row[0])]
    if not rows:
        return "nogpu", "nvidia-smi lists no GPU: no CuPy, kernels run in the simulator"
    driver, _, name = rows[0]
    major = int(driver.split(".")[0])
    seen = "{} with driver {}".format(name, driver)
    if major < CUDA_12_DRIVER:
        return "nogpu", "{}: CuPy needs driver {} or newer; kernels run in the simulator".format(
            seen, CUDA_12_DRIVER
        )
    if major < CUDA_13_DRIVER:
        return "cuda12", "{}: CUDA 12 (CUDA 13 needs driver {})".format(seen, CUDA_13_DRIVER)
    capabilities = [tuple(map(int, row[1].split("."))) for row in rows if re.match(r"\d+\.\d+$", row[1])]
    if capabilities and min(capabilities) < CUDA_13_COMPUTE_CAPABILITY:
        return "cuda12", "{}: CUDA 12 (compute capability {}.{}; CUDA 13 needs 7.5)".format(
            seen, *min(capabilities)
        )
    return "cuda13", "{}: CUDA 13".format(seen)


def ask_nvidia_smi():
    """What nvidia-smi printed, or None and why not."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None, "nvidia-smi was not found"
    query = [program, "--query-gpu=driver_version,compute_cap,name", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            query, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, "nvidia-smi did not answer ({})".format(error)
    text = done.stdout.decode(errors="replace").strip()
    if done.returncode:
        first = text.splitlines()[0] if text else "exit status {}".format(done.returncode)
        return None, "nvidia-smi failed ({})".format(first)
    return text, ""


def missing_parts(version, importable):
    """What keeps this Python from making a virtual environment, as a sentence; None where nothing does.

    Args:
        version: ``sys.version_info``.
        importable: tells whether a module of a name can be imported.
    """
    if tuple(version[:2]) < MINIMUM_PYTHON:
        return (
            "Python {}.{} is too old, the lab needs {}.{} or newer: make … PYTHON=/path/to/python3.11".format(
                version[0], version[1], *MINIMUM_PYTHON
            )
        )
    for module in ("venv", "ensurepip"):
        if not importable(module):
            return (
                "this Python has no module {}: on Debian and Ubuntu, apt install python{}.{}-venv; "
                "or name another one with PYTHON=".format(module, version[0], version[1])
            )
    return None


def set_up(extra):
    """Create ``.venv`` where it is missing or broken, and install the lab with its tests and one extra."""
    python = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    # Two extras never share an environment: CuPy would pick up the other's NVRTC.
    another = INSTALLED_EXTRA.exists() and INSTALLED_EXTRA.read_text(encoding="utf-8").strip() != extra
    if another or UNFINISHED.exists() or not _runs(python, "-m", "pip", "--version"):
        print("setting up {} with Python {}.{}.{}".format(VENV, *sys.version_info[:3]), flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
    if STAMP.exists():
        STAMP.unlink()
    UNFINISHED.write_text("an interrupted set-up starts over\n", encoding="utf-8")
    print("installing packages; the first time that is a download of some 300 MB", flush=True)
    install = [str(python), "-m", "pip", "install", "-qq", "--no-input", "--disable-pip-version-check"]
    subprocess.run(
        [*install, "--editable", "{}[{},test]".format(ROOT, extra)],
        check=True,
        # A user's own settings that make no sense inside a virtual environment.
        env=dict(os.environ, PIP_USER="0", PIP_REQUIRE_VIRTUALENV="0"),
    )
    INSTALLED_EXTRA.write_text("{}\n".format(extra), encoding="utf-8")
    UNFINISHED.unlink()
    STAMP.write_text("{}\n".format(ROOT), encoding="utf-8")
    print("ready: {}".format(VENV), flush=True)


def main(arguments):
    """Set up for this machine, or for the extra that is named; returns the exit status."""
    trouble = missing_parts(sys.version_info, _importable)
    if trouble:
        print("set-up: {}".format(trouble), file=sys.stderr)
        return 1
    wanted = arguments[0] if arguments else ""
    if wanted and wanted not in EXTRAS:
        print("set-up: EXTRA={!r}: allowed are {}".format(wanted, ", ".join(EXTRAS)), file=sys.stderr)
        return 1
    extra, reason = (wanted, "asked for") if wanted else choose_extra(*ask_nvidia_smi())
    print("set-up: extra {!r} ({})".format(extra, reason), flush=True)
    try:
        set_up(extra)
    except KeyboardInterrupt:
        print("\nset-up: interrupted; the next make starts it over", file=sys.stderr)
        return 130
    except (OSError, subprocess.CalledProcessError) as error:
        print("set-up: failed ({}); the next make starts it over".format(error), file=sys.stderr)
        return 1
    return 0


def _runs(*command):
    try:
        done = subprocess.run(
            [str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        )
    except OSError:
        return False
    return done.returncode == 0


def _importable(module):
    try:
        __import__(module)
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
