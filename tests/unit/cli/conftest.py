"""A command line that starts no process."""

from pathlib import Path

import pytest
from tests.support.command import Run, in_process


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `kvatlas ARGS` in an empty directory, in this process."""
    monkeypatch.chdir(tmp_path)
    return in_process
