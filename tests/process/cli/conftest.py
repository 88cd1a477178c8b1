"""A command line for the tests of this folder."""

from pathlib import Path

import pytest
from tests.support.command import Run, as_process, in_process


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `kvatlas ARGS` in an empty directory.

    In this process, which spares the start of another; tests marked `process` get a process: those of signals, of
    pipes, of what the interpreter finds when it starts.
    """
    monkeypatch.chdir(tmp_path)
    return as_process if request.node.get_closest_marker("process") else in_process
