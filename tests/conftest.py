"""Settings and fixtures that all tests share."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from .racy import RACY
from .skips import REASONS

# Variables of the tests. Processes that tests start must not see them: kvatlas refuses variables that it does not know.
_OWN = ("KVATLAS_DYNAMO_PYTHON", "KVATLAS_K8S_MINUTES", "KVATLAS_SEEDS", "KVATLAS_STRESS_SECONDS", "KVATLAS_TRACES")
VARIABLES = pytest.StashKey[dict[str, str]]()
UNLISTED_SKIPS: list[str] = []
"""Tests that were skipped for a reason that is not listed, with the reason."""


def pytest_configure(config: pytest.Config) -> None:
    # readline, which pytest imports, sets the width of a terminal for processes: those of xdist would see it.
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    own = {name: os.environ.pop(name) for name in _OWN if name in os.environ}
    # A worker of pytest-xdist is started without them, and gets them from the process that starts it.
    given: dict[str, str] = getattr(config, "workerinput", {}).get("own_variables", {})
    config.stash[VARIABLES] = given | own


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.nodeid.startswith(test) for test in RACY):
            item.add_marker(pytest.mark.flaky(reruns=1))


def _note_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not any(each in reason for each in REASONS):
        UNLISTED_SKIPS.append(f"{report.nodeid}: {reason.removeprefix('Skipped: ')}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note_skip(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note_skip(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    # Workers of pytest-xdist hand their reports to the process that started them.
    if UNLISTED_SKIPS and not hasattr(session.config, "workerinput"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in UNLISTED_SKIPS:
        terminalreporter.write_line(f"SKIPPED for a reason that tests/skips.py does not list: {line}", red=True)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Called by pytest-xdist for each worker."""
    node.workerinput["own_variables"] = node.config.stash[VARIABLES]


@pytest.fixture(scope="session")
def own_variables(pytestconfig: pytest.Config) -> dict[str, str]:
    """The tests' own environment variables, where they are set."""
    return pytestconfig.stash[VARIABLES]


settings.register_profile("kvatlas", max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", parent=settings.get_profile("kvatlas"), max_examples=40)
settings.register_profile("long", parent=settings.get_profile("kvatlas"), max_examples=20_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "kvatlas"))


# The tests are to run with every assertion; what they start need not say so.
os.environ["PYTHONWARNINGS"] = "ignore:kvatlas is a debug build:RuntimeWarning"


RECORDINGS = Path(__file__).parent / "recordings"
"""The folder of recorded event streams of real engines; its readmes say how they were made and what is in them."""


@pytest.fixture(scope="session")
def engine_streams() -> Path:
    """The folder of recorded event streams of engines without offloading, with the engines' own answers."""
    return RECORDINGS / "engine_streams"


@pytest.fixture(scope="session")
def tier_streams() -> Path:
    """The folder of recorded event streams of engines that offload, with the engines' own answers by tier."""
    return RECORDINGS / "tier_streams"


@pytest.fixture(scope="session")
def conversation_trace(own_variables: dict[str, str]) -> Path:
    """The Mooncake conversation trace, which the repository does not contain; without it the test is skipped."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "traces"
    path = Path(own_variables.get("KVATLAS_TRACES", beside)) / "conversation_trace.jsonl"
    if not path.exists():
        pytest.skip("no conversation_trace.jsonl: set KVATLAS_TRACES to the folder that has it")
    return path


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """The interpreter switches between threads all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)
