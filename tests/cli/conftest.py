"""The command line, driven as a process."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `kvatlas ARGS` in an empty directory."""

    def run(*args: object) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "kvatlas.cli", *map(str, args)],
            capture_output=True,
            text=True,
            encoding="utf-8",
            cwd=tmp_path,
            env=dict(os.environ),  # not what readline, which pytest imports, puts behind it: COLUMNS=80
            check=False,
            timeout=300,
            stdin=subprocess.DEVNULL,
        )
        assert "Traceback" not in done.stderr
        return done

    return run
