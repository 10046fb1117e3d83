"""Set-up: which packages a machine gets, and that pip's and conda's lists are one."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from labs_common import setup_env

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]

# Where conda-forge's name differs from PyPI's.
CONDA_NAMES = {
    "matplotlib": "matplotlib-base",
    "nvidia-cuda-nvrtc": "cuda-nvrtc",
    "nvidia-cuda-runtime": "cuda-cudart-dev",
    "nvidia-cuda-cccl": "cuda-cccl",
    "cupy-cuda13x": "cupy",
}
CONDA_ONLY = {"python", "pip", "cuda-version"}


def requirements(lines):
    """name -> (operator, version) of each line, following the project's own extras."""
    found = {}
    for line in lines:
        requirement = Requirement(line)
        if requirement.name == PROJECT["name"]:
            for extra in requirement.extras:
                found |= requirements(EXTRAS[extra])
        else:
            (specifier,) = requirement.specifier
            found[requirement.name] = (specifier.operator, specifier.version.removesuffix(".*"))
    return found


def conda_requirements():
    listed, from_pip = {}, []
    document = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    for entry in document["dependencies"]:
        if isinstance(entry, dict):
            from_pip = entry["pip"]
            continue
        name, operator, version = re.fullmatch(r"([a-z0-9_-]+)(?:(>=|=)([\d.]+))?", entry).groups()
        listed[name] = ({"=": "=="}.get(operator, operator), version)
    return listed, from_pip


def test_conda_lists_the_same_packages_and_versions_as_pip():
    conda, from_pip = conda_requirements()
    pip = requirements(PROJECT["dependencies"] + EXTRAS["cuda13"] + EXTRAS["test"])
    by_pip = requirements(line for line in from_pip if not line.startswith("--editable"))

    assert by_pip.items() <= pip.items()
    expected = {CONDA_NAMES.get(name, name): spec for name, spec in pip.items() if name not in by_pip}
    assert {name: spec for name, spec in conda.items() if name not in CONDA_ONLY} == expected
    assert conda["python"] == (">=", PROJECT["requires-python"].removeprefix(">="))
    assert conda["cuda-version"] == conda["cuda-nvrtc"]
    assert "--editable ." in from_pip


@pytest.mark.parametrize("name", ["pyproject.toml", "environment.yml"])
def test_every_package_has_its_reason_beside_it(name):
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    entry = re.compile(r'\s+("[\w.\[\]-]+(>=|==)[^"]*"|- [\w-]+(>=|=)[\d.]+)')
    pins = [line for line in lines if entry.match(line) and "nvidia-cuda" not in line]

    assert len(pins) > 15
    # The CUDA packages share one reason, in the comment above them or beside the first.
    assert [line for line in pins if "#" not in line and "cuda-bindings" not in line] == []


def test_a_gpu_extra_brings_one_nvrtc_only():
    """With NVRTC 12 and 13 side by side CuPy loads 13 even on a CUDA 12 driver."""
    for extra in ("nogpu", "cuda12", "cuda13"):
        nvrtc = [name for name in requirements(EXTRAS[extra]) if "nvrtc" in name]
        assert len(nvrtc) == 1, extra
    assert "nvrtc" not in " ".join(PROJECT["dependencies"])
    assert not any("cupy" in line for line in PROJECT["dependencies"] + EXTRAS["nogpu"] + EXTRAS["test"])


@pytest.mark.parametrize(
    ("report", "extra", "reason"),
    [
        ("580.159.04, 9.0, NVIDIA H200", "cuda13", "580.159.04"),
        ("580.65, 7.5, Tesla T4\n", "cuda13", "Tesla T4"),
        ("610.1, 12.0, NVIDIA GeForce RTX 5060, Ti", "cuda13", "RTX 5060, Ti"),
        ("580.65, 7.0, Tesla V100", "cuda12", "7.0"),
        ("580.65, 9.0, NVIDIA H200\n580.65, 6.1, NVIDIA GeForce GTX 1080", "cuda12", "6.1"),
        ("579.99, 9.0, NVIDIA H200", "cuda12", "579.99"),
        ("525.60.13, 8.0, NVIDIA A100", "cuda12", "CUDA 12"),
        ("524.9, 8.0, NVIDIA A100", "nogpu", "525"),
        ("470.57, [N/A], Tesla K80", "nogpu", "470.57"),
        ("590.1, [N/A], NVIDIA Something", "cuda13", "590.1"),
        ("", "nogpu", "no GPU"),
        ("No devices were found", "nogpu", "no GPU"),
        (None, "nogpu", "nvidia-smi was not found"),
    ],
)
def test_the_driver_decides_which_cupy(report, extra, reason):
    chosen, why = setup_env.choose_extra(report)

    assert chosen == extra
    assert reason in why


@pytest.mark.parametrize(
    ("body", "expected", "why"),
    [
        ("echo '580.65, 9.0, NVIDIA H200'", "580.65, 9.0, NVIDIA H200", ""),
        (
            "echo 'NVIDIA-SMI has failed because it could not communicate'; exit 9",
            None,
            "could not communicate",
        ),
        ("exit 3", None, "exit status 3"),
    ],
)
def test_nvidia_smi_is_asked_and_its_failure_told(tmp_path, monkeypatch, body, expected, why):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    report, absence = setup_env.ask_nvidia_smi()

    assert report == expected
    assert why in absence


@pytest.mark.parametrize(
    ("version", "missing", "words"),
    [
        ((3, 10, 14), (), "Python 3.10 is too old"),
        ((2, 7, 18), (), "Python 2.7 is too old"),
        ((3, 11, 0), ("ensurepip",), "python3.11-venv"),
        ((3, 13, 0), ("venv",), "python3.13-venv"),
    ],
)
def test_a_python_that_will_not_do_gets_a_sentence(version, missing, words):
    assert words in setup_env.missing_parts(version, lambda module: module not in missing)


@pytest.mark.parametrize("version", [(3, 11, 0), (3, 14, 1), (4, 0, 0)])
def test_a_new_enough_python_is_taken(version):
    assert setup_env.missing_parts(version, lambda module: True) is None


def test_an_unknown_extra_is_refused_by_name():
    done = subprocess.run(
        [sys.executable, "-I", setup_env.__file__, "cuda11"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert "cuda11" in done.stderr and "cuda12" in done.stderr


@pytest.fixture
def small_project(tmp_path, monkeypatch):
    """A project whose environment takes a second: pip is replaced by a recording program."""
    venv = tmp_path / ".venv"
    calls = []

    def run(command, **_):
        command = [str(part) for part in command]
        calls.append(command)
        if "venv" in command:
            if "--clear" in command and venv.exists():
                shutil.rmtree(venv)
            (venv / "bin").mkdir(parents=True)
            (venv / "bin" / "python").write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
            (venv / "bin" / "python").chmod(0o755)
        elif "install" in command and small_project_fails:
            raise small_project_fails.pop()

    small_project_fails = []
    monkeypatch.setattr(setup_env, "ROOT", tmp_path)
    for name in ("VENV", "STAMP", "UNFINISHED", "INSTALLED_EXTRA"):
        path = getattr(setup_env, name)
        monkeypatch.setattr(setup_env, name, tmp_path / path.relative_to(ROOT))
    real_run = subprocess.run
    monkeypatch.setattr(
        setup_env.subprocess,
        "run",
        lambda command, **options: (
            real_run(command, **options) if "--version" in command else run(command, **options)
        ),
    )
    return tmp_path, calls, small_project_fails


def made_anew(calls):
    return sum("venv" in command for command in calls)


def test_setting_up_twice_keeps_the_environment(small_project):
    root, calls, _ = small_project

    assert setup_env.main(["nogpu"]) == 0
    assert setup_env.main(["nogpu"]) == 0

    assert made_anew(calls) == 1
    assert (root / ".venv/ready").read_text(encoding="utf-8").strip() == str(root)


@pytest.mark.parametrize(
    ("interruption", "status"), [(KeyboardInterrupt(), 130), (subprocess.CalledProcessError(1, "pip"), 1)]
)
def test_an_interrupted_set_up_starts_over(small_project, interruption, status, capsys):
    root, calls, fails = small_project
    fails.append(interruption)

    assert setup_env.main(["nogpu"]) == status
    assert not (root / ".venv/ready").exists()
    assert "starts it over" in capsys.readouterr().err

    assert setup_env.main(["nogpu"]) == 0
    assert made_anew(calls) == 2
    assert (root / ".venv/ready").exists()


def test_another_extra_gets_a_fresh_environment(small_project):
    _, calls, _ = small_project

    setup_env.main(["nogpu"])
    setup_env.main(["cuda12"])

    assert made_anew(calls) == 2
    assert [command for command in calls if "install" in command][-1][-1].endswith("[cuda12,test]")


def test_importing_the_package_needs_no_gpu_and_no_cupy():
    code = (
        "import sys; sys.modules['cupy'] = None; import labs_common, labs_common.engines; "
        "print(sorted(name for name in sys.modules if name.startswith('cupy.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="gpu: this machine has one")
def test_without_a_gpu_no_cupy_is_installed():
    names = {distribution.metadata["Name"] for distribution in importlib.metadata.distributions()}

    assert [name for name in names if name and name.startswith("cupy")] == []
