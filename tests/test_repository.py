"""The repository holds together: make, README, registry, licence, and nothing private in any file."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from labs_common.stages import ALL_STAGES, STAGES

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("run", "test", "lab", "notebooks", "check", "setup", "clean")


def tracked_files() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.fail(f"git ls-files: {done.stderr.decode()}")
    return [ROOT / name for name in done.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("target", TARGETS)
def test_make_knows_its_targets_and_the_readme_names_them(target, readme):
    recipe = subprocess.run(
        ["make", "--dry-run", "--always-make", target], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert recipe.returncode == 0, recipe.stderr
    assert recipe.stdout.strip()
    assert f"make {target}" in readme


def test_no_file_that_is_a_tests_input_is_imported_with_the_tests():
    """A submission's conftest.py once put its own numpy.py on the path of all processes of the tests."""
    inputs = [str(path) for path in (ROOT / "tests").iterdir() if path.is_dir()]

    assert not [place for place in sys.path if place.startswith(tuple(inputs))]


def test_make_help_lists_every_target():
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)

    assert re.findall(r"^make (\w+)", done.stdout, re.M) == list(TARGETS)


def test_every_stage_has_its_kernel_and_its_notebook():
    notebooks = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))

    assert sorted(path.stem for path in (ROOT / "kernels").glob("*.cu")) == [stage.id for stage in STAGES]
    assert notebooks == [*(stage.id for stage in ALL_STAGES), "start_here"]


def test_the_readme_lists_every_stage(readme):
    assert [stage.id for stage in ALL_STAGES if stage.id not in readme] == []


PRIVATE = {
    "a path of somebody's machine": re.compile(r"(?<![\w.])/(?:home|Users|root|work|opt|tmp)/\w"),
    "a package registry's host": re.compile(
        r"(?:pypi\.org|pythonhosted\.org|registry\.npmjs|deb\.debian|anaconda\.org|index-url\s*=?\s*http)",
        re.I,
    ),
    "a credential": re.compile(r"(?:ghp_|github_pat_|AKIA|-----BEGIN [A-Z ]*PRIVATE KEY)\w"),
}


@pytest.mark.parametrize("what", PRIVATE)
def test_no_file_holds(what):
    found = []
    for path in tracked_files():
        if path == Path(__file__).resolve():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # binary
            continue
        text = re.sub(r'"image/png": "[^"]*"', "", text)  # base64 spells anything
        if "path" in what and "tests" in path.relative_to(ROOT).parts:  # tests need made-up paths
            continue
        found += [f"{path.relative_to(ROOT)}: {m.group(0)}" for m in PRIVATE[what].finditer(text)]

    assert found == []


def test_no_file_holds_the_path_of_this_checkout():
    here = str(ROOT)
    if len(ROOT.parts) < 3:
        here += "/labs_common"  # a checkout in / or /x would be found in innocent text
    holding = [p.relative_to(ROOT) for p in tracked_files() if here.encode() in p.read_bytes()]

    assert holding == []


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("a path of somebody's machine", "File /home/someone/lab.py"),
        ("a package registry's host", "https://PyPI.org/simple"),
        ("a credential", "ghp_abcdef"),
    ],
)
def test_what_is_private_would_be_found(what, text):
    assert PRIVATE[what].search(text)


def test_the_licence_is_apache_2_whole():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")

    for part in (
        "Version 2.0, January 2004",
        *(f"\n   {number}. " for number in range(1, 10)),
        "END OF TERMS AND CONDITIONS",
        "APPENDIX: How to apply",
    ):
        assert part in text


def test_text_files_end_with_one_newline_and_have_no_trailing_blanks():
    suffixes = {".py", ".cu", ".cuh", ".md", ".toml", ".yml", ""}
    bad = []
    for path in tracked_files():
        if path.suffix not in suffixes or path.name == "LICENSE":
            continue
        text = path.read_text(encoding="utf-8")
        if text and (not text.endswith("\n") or text.endswith("\n\n") or re.search(r"[ \t]+$", text, re.M)):
            bad.append(str(path.relative_to(ROOT)))

    assert bad == []


@pytest.mark.parametrize(
    ("reason", "ci", "status", "words"),
    [
        ("gpu: none here", "true", 0, "skipped: gpu 1, browser 0, triton 0"),
        ("triton: not installed", "true", 0, "skipped: gpu 0, browser 0, triton 1"),
        ("too hard", "true", 1, "not allowed in CI, skipped because: too hard"),
        ("too hard", "", 0, "skipped: gpu 0, browser 0, triton 0, too hard 1"),
    ],
)
def test_skips_are_counted_by_kind_and_others_fail_in_ci(tmp_path, reason, ci, status, words):
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    (tmp_path / "test_some.py").write_text(
        "import pytest\n\ndef test_good():\n    pass\n\n"
        f"@pytest.mark.skip(reason={reason!r})\ndef test_it():\n    pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == status, done.stdout
    assert words in done.stdout
