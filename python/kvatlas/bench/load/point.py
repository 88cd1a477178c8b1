"""One measurement, in a process of its own: `python -m kvatlas.bench.load.point PLAN INDEX [OPTIONS]`.

A fresh process for each point: no point inherits another's heap, caches or threads. PLAN is a file, INDEX a design's
name or `module:attribute` of one's own in Python, OPTIONS the replay's as JSON. The result is one line of JSON on
stdout, whatever else the design prints goes to stderr. Programs of peers answer to
`--plan PLAN --index INDEX --options OPTIONS` in the same way.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from kvatlas.errors import KvatlasError

Result = dict[str, Any]

_STARTUP = 120.0  # seconds that a process may take besides its windows: to load a large plan, to compare


class PointError(KvatlasError, RuntimeError):
    """A measurement that came to no result at all. Codes: "point_failed", "point_timeout", "no_program"."""

    code = "point_failed"


@dataclass(frozen=True, slots=True)
class Program:
    """What runs a point: this package, or a peer's program."""

    peers: Path | None = None

    def command(self, plan: Path, index: str, options: Mapping[str, object]) -> list[str]:
        """What to execute."""
        text = json.dumps(options, sort_keys=True)
        if self.peers is None:
            return [sys.executable, "-m", "kvatlas.bench.load.point", str(plan), index, text]
        return [str(self.peers), "--plan", str(plan), "--index", index, "--options", text]


def run_point(
    program: Program, plan: Path, index: str, options: Mapping[str, object], *, seconds: float = 0.0
) -> Result:
    """Measure one point and return what it printed. `seconds`: how long its windows are, warm-up and all.

    Raises:
        PointError: The process failed, said nothing that can be read, or took far too long.
        KeyboardInterrupt: After Ctrl-C; the process is gone.
    """
    return run_child(program.command(plan, index, options), index, _STARTUP + 30 * seconds)


def run_child(command: Sequence[str], index: str, limit: float) -> Result:
    """Run a command that prints a result, for at most `limit` seconds. Raises as `run_point`."""
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
        raise PointError(f"cannot run {command[0]}: {error.strerror or error}", "no_program") from error
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        _kill(process)
        raise PointError(f"{index} came to no end within {limit:.0f} s and was stopped", "point_timeout") from None
    except BaseException:
        _kill(process)
        raise
    if process.returncode:
        raise PointError(f"{index}: {_last_words(err, process.returncode)}")
    lines = out.strip().splitlines()
    try:
        result = json.loads(lines[-1]) if len(lines) == 1 else json.loads(out)
    except (IndexError, ValueError):
        said = out.strip()[:200] or _last_words(err, 0)
        raise PointError(f"{index}: no result came back, but: {said}") from None
    if not isinstance(result, dict):
        raise PointError(f"{index}: a result is a JSON object, not {lines[-1][:80]}")
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


def result_to_stdout(run: Callable[[Sequence[str]], str], arguments: Sequence[str]) -> int:
    """Print what `run` returns, and nothing else, on stdout. Returns the exit status: 0 for a result; 2 for none."""
    # Only the result goes to stdout, even if a design prints from another thread.
    real = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        text = run(arguments)
    except (KvatlasError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    except MemoryError:
        print("Error: out of memory", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    with real:
        real.write(" ".join(text.splitlines()) + "\n")
    return 0


def run(arguments: Sequence[str]) -> str:
    """Replay in this process."""
    if not 2 <= len(arguments) <= 3:
        raise SystemExit("Error: usage: python -m kvatlas.bench.load.point PLAN INDEX [OPTIONS]")
    from kvatlas._native import Plan, replay  # noqa: PLC0415 - the parent does not need it
    from kvatlas.bench.load.designs import make_design  # noqa: PLC0415 - it imports this file

    plan = Plan.load(arguments[0])
    options = arguments[2] if len(arguments) == 3 else "{}"
    strict = '"strict": true' in options  # the replay reads them properly, and says what is wrong with them
    return replay(plan, make_design(arguments[1], strict=strict), options)


if __name__ == "__main__":
    sys.exit(result_to_stdout(run, sys.argv[1:]))
