"""The service as a process of its own, started as a user does."""

from __future__ import annotations

import os
import re
import subprocess
import sys


def serving(*flags: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """`kvatlas serve` at a free port, with its log on a pipe."""
    command = [sys.executable, "-m", "kvatlas.cli", "serve", "--bind", "127.0.0.1:0", *flags]
    quiet = os.environ | {"PYTHONWARNINGS": "ignore"} | (env or {})
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=quiet)


def address_of(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Where it listens, and the log until it does."""
    assert process.stderr is not None
    log = ""
    for line in process.stderr:
        log += line
        if "listening" in line and (found := re.search(r"127\.0\.0\.1:\d+", line)):
            return found[0], log
    raise AssertionError(f"it ended before it listened: {log}")
