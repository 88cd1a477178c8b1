"""`kvatlas COMMAND` as a process that is forked from one which has imported it: a start takes a tenth of the time."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import TextIO

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.support.forked", "kvatlas.cli.router", "kvatlas.cli.serve"])


class ForkedCommand:
    """A running command, with its log on a pipe; used as a `subprocess.Popen` is."""

    stderr: TextIO

    def __init__(self, *args: str) -> None:
        reading, writing = _CONTEXT.Pipe(duplex=False)
        self._process = _CONTEXT.Process(target=_run, args=(args, dict(os.environ), writing))
        self._process.start()
        writing.close()
        self.stderr = os.fdopen(os.dup(reading.fileno()), encoding="utf-8")
        reading.close()
        self.pid = self._process.pid

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
        if self.pid is not None and self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _run(args: tuple[str, ...], variables: dict[str, str], log: Connection) -> None:
    """Does in the new process what `python -m kvatlas.cli ARGS` would do."""
    from kvatlas.cli import main  # noqa: PLC0415 - the process of the tests does not need it

    os.dup2(log.fileno(), 2)
    log.close()
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = ["kvatlas", *args]
    main()
