"""The command line: in this process, or as a process of its own where that makes a difference."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvatlas.cli import main

WIDTH = 78  # of the help where there is no terminal
Run = Callable[..., subprocess.CompletedProcess[str]]


def _in_process(args: list[str]) -> subprocess.CompletedProcess[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["kvatlas", *args])
        result = CliRunner().invoke(main, args, prog_name="kvatlas", terminal_width=WIDTH)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return subprocess.CompletedProcess(args, result.exit_code, result.stdout, result.stderr)


def _as_process(args: list[str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "kvatlas.cli", *args],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=dict(os.environ),  # not what readline, which pytest imports, puts behind it: COLUMNS=80
        check=False,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `kvatlas ARGS` in an empty directory.

    In this process, which spares the start of another; tests marked `process` get a process: those of signals, of
    pipes, of what the interpreter finds when it starts.
    """
    separate = request.node.get_closest_marker("process")
    monkeypatch.chdir(tmp_path)
    how = _as_process if separate else _in_process
    return lambda *args: how([str(arg) for arg in args])
