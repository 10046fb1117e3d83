"""Skipped tests are counted by kind, and only three kinds are allowed."""

import os
import signal
from collections import Counter

import pytest

# Consoles take their width when they are made; a test process may have been given a narrow one.
os.environ["COLUMNS"] = "200"
# A shell starts its background jobs with Ctrl-C ignored; tests of it, and the processes they start, need it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from labs_common.doctor import engine_choice
from labs_common.engines import open_engine

# What a machine may lack; every other reason to skip fails the run where CI is set.
SKIP_KINDS = ("gpu", "browser", "triton")


def pytest_collection_modifyitems(items) -> None:
    """GPU tests are skipped where there is no GPU to run them, with what is missing as the reason."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked:
        engine, reason = engine_choice()
        for item in marked if engine != "gpu" else []:
            item.add_marker(pytest.mark.skip(reason=f"gpu: {reason}"))


@pytest.fixture(scope="session")
def simulator():
    """The simulator's engine; cheap, and stateless between runs."""
    return open_engine("sim")


@pytest.fixture(scope="session")
def gpu():
    """The GPU's engine; for tests that are marked gpu."""
    return open_engine("gpu")


@pytest.fixture(params=["sim", pytest.param("gpu", marks=pytest.mark.gpu)])
def engine(request):
    """Each engine in turn: the same test on both."""
    return request.getfixturevalue({"sim": "simulator", "gpu": "gpu"}[request.param])


def skip_kind(report) -> str:
    """The marker that explains a skip, or the reason itself."""
    for kind in SKIP_KINDS:
        if kind in report.keywords or f"Skipped: {kind}:" in str(report.longrepr):
            return kind
    _, _, reason = (
        report.longrepr if isinstance(report.longrepr, tuple) else (None, None, str(report.longrepr))
    )
    return reason.removeprefix("Skipped: ")


def pytest_terminal_summary(terminalreporter) -> None:
    """One line with the number of skipped tests of each kind, none left out."""
    counts = Counter(skip_kind(report) for report in terminalreporter.stats.get("skipped", []))
    listed = {kind: counts.pop(kind, 0) for kind in SKIP_KINDS} | counts
    terminalreporter.write_line("skipped: " + ", ".join(f"{kind} {count}" for kind, count in listed.items()))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus) -> None:
    """In CI a test may not be skipped for another reason than those of ``SKIP_KINDS``."""
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if os.environ.get("CI") != "true" or reporter is None or exitstatus:
        return
    others = {skip_kind(report) for report in reporter.stats.get("skipped", [])} - set(SKIP_KINDS)
    if others:
        reporter.write_line(f"not allowed in CI, skipped because: {'; '.join(sorted(others))}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
