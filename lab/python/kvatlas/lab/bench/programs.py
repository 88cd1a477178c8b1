"""Measurements in processes of their own: command lines, and readers of the results.

Each point has a fresh process, so no point inherits heap, caches or threads from another one. Each program prints its
result as one line of JSON on stdout. This package is `python -m kvatlas.lab.bench.point PLAN INDEX [OPTIONS]`; programs
of peers accept `--plan PLAN --index INDEX --options OPTIONS` and print the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from kvatlas.errors import MeasurementError

Result = dict[str, Any]

_STARTUP = 120.0  # seconds that a process may take besides its windows: to load a large plan, to compare


@dataclass(frozen=True, slots=True)
class Program:
    """Program that measures points: this package, or a program of a peer."""

    peers: Path | None = None

    def command(self, plan: Path, index: str, options: Mapping[str, object]) -> list[str]:
        """Command line that measures a point."""
        text = json.dumps(options, sort_keys=True)
        if self.peers is None:
            return [sys.executable, "-m", "kvatlas.lab.bench.point", str(plan), index, text]
        return [str(self.peers), "--plan", str(plan), "--index", index, "--options", text]


def run_point(
    program: Program, plan: Path, index: str, options: Mapping[str, object], *, seconds: float = 0.0
) -> Result:
    """Measure one point in a new process, and return the result that it printed.

    `seconds`: total length of the point's windows, including the warm-up.

    Raises:
        MeasurementError: The process failed, printed no readable result, or took far too long.
        KeyboardInterrupt: After Ctrl-C; the process has been ended.
    """
    return run_child(program.command(plan, index, options), index, _STARTUP + 30 * seconds)


def run_child(command: Sequence[str], index: str, limit: float) -> Result:
    """Run a command that prints a result, for at most `limit` seconds. Raises the same errors as `run_point`."""
    try:
        # A session of its own: Ctrl-C is ours to pass on.
        process = subprocess.Popen(  # noqa: S603 - our own arguments
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise MeasurementError(f"cannot run {command[0]}: {error.strerror or error}", "no_program") from error
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        _kill(process)
        raise MeasurementError(
            f"{index} did not finish within {limit:.0f} s and was stopped", "measurement_timeout"
        ) from None
    except BaseException:
        _kill(process)
        raise
    if process.returncode:
        raise MeasurementError(f"{index}: {_last_words(err, process.returncode)}")
    lines = out.strip().splitlines()
    try:
        result = json.loads(lines[-1]) if len(lines) == 1 else json.loads(out)
    except (IndexError, ValueError):
        said = out.strip()[:200] or _last_words(err, 0)
        raise MeasurementError(f"{index}: expected a result, got: {said}") from None
    if not isinstance(result, dict):
        raise MeasurementError(f"{index}: expected a JSON object as result, got {lines[-1][:80]}")
    return cast("Result", result)


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _last_words(err: str, code: int) -> str:
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    how = f"killed by signal {-code}" if code < 0 else f"exit status {code}"
    if not lines:
        return f"the process ended without a word ({how})"
    # Ours say `Error: ...`, a traceback ends with the exception, a panic begins with what it was.
    said = next((line for line in lines if "panicked at" in line), None)
    text = " ".join(lines[lines.index(said) : lines.index(said) + 2]) if said else lines[-1]
    return text.removeprefix("Error: ") + (f" ({how})" if code not in (0, 2) else "")
