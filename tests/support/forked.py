"""`kvatlas COMMAND` as a process that is forked from one which has imported it: a start takes a tenth of the time."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TextIO

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.support.forked", "kvatlas.cli.router", "kvatlas.cli.serve"])


class ForkedCommand:
    """A running command; used as a `subprocess.Popen` is."""

    def __init__(
        self,
        *args: str,
        logs: bool = True,
        env: dict[str, str] | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        """Start it.

        Args:
            args: The command and its arguments.
            logs: Whether its log comes on a pipe, `stderr`, that is to be read.
            env: Environment variables besides those of this process.
            before: What its process does first. It can be pickled.
        """
        reading, writing = _CONTEXT.Pipe(duplex=False)
        task = (args, os.environ | (env or {}), writing if logs else None, before)
        self._process = _CONTEXT.Process(target=_run, args=task, daemon=True)
        self._process.start()
        writing.close()
        self.stderr: TextIO = os.fdopen(os.dup(reading.fileno()), encoding="utf-8")
        reading.close()
        if not logs:
            self.stderr.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        """The exit status, once it has ended."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired("kvatlas", timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(
    args: tuple[str, ...],
    variables: dict[str, str],
    log: Connection | None,
    before: Callable[[], None] | None,
) -> None:
    """Does in the new process what `python -m kvatlas.cli ARGS` would do."""
    from kvatlas.cli import main  # noqa: PLC0415 - the process of the tests does not need it

    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    if log is not None:
        os.dup2(log.fileno(), 2)
        log.close()
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = ["kvatlas", *args]
    if before is not None:
        before()
    main()
