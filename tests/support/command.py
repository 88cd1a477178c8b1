"""The command line, run in the test's own process or in one of its own."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from kvatlas.cli import main

WIDTH = 78  # of the help where there is no terminal
Run = Callable[..., subprocess.CompletedProcess[str]]


def in_process(*args: object) -> subprocess.CompletedProcess[str]:
    """Run `kvatlas ARGS` in this process, which spares the start of another."""
    texts = [str(arg) for arg in args]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["kvatlas", *texts])
        result = CliRunner().invoke(main, texts, prog_name="kvatlas", terminal_width=WIDTH)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return subprocess.CompletedProcess(texts, result.exit_code, result.stdout, result.stderr)


def as_process(*args: object) -> subprocess.CompletedProcess[str]:
    """Run `kvatlas ARGS` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "kvatlas.cli", *map(str, args)],
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
