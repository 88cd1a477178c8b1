"""The service as a process of its own, started as a user does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading

PATIENCE = 60.0


def serving(*flags: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """`kvatlas serve` at a free port, with its log on a pipe."""
    command = [sys.executable, "-m", "kvatlas.cli", "serve", "--bind", "127.0.0.1:0", *flags]
    quiet = os.environ | {"PYTHONWARNINGS": "ignore"} | (env or {})
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=quiet)


def logged(process: subprocess.Popen[str], pattern: str) -> tuple[re.Match[str], str]:
    """The first match of a pattern in the log, and the log until then. A process that does not get there is killed."""
    assert process.stderr is not None
    log = ""
    late = threading.Timer(PATIENCE, process.kill)
    late.start()
    try:
        for line in process.stderr:
            log += line
            if found := re.search(pattern, line):
                return found, log
    finally:
        late.cancel()
    raise AssertionError(f"it ended before {pattern}: {log}")


def address_of(process: subprocess.Popen[str]) -> tuple[str, str]:
    """The address at which a process listens, and its log until it does."""
    found, log = logged(process, r"listening.*?(127\.0\.0\.1:\d+)")
    return found[1], log
