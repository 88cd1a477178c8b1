"""Signals that ask a process to stop."""

from __future__ import annotations

import contextlib
import queue
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """SIGTERM and SIGINT as requests to stop the process, and SIGHUP as a request to read the settings again.

    Handlers run in the main thread, between any two of its steps. They use a `SimpleQueue`, whose methods may be
    interrupted by themselves. The lock of a `threading.Event` may not: a signal at the wrong moment would hang the
    process.

    Attributes:
        number: The first signal that asked to stop; 0 before.
    """

    def __init__(self, again: Callable[[int], None] | None = None) -> None:
        """Begin to record signals.

        Args:
            again: Called with the number of each further signal that requests to stop; None to ignore them.
        """
        self.number = 0
        self._again = again
        self._reload = False
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wait(self, seconds: float | None) -> bool:
        """Wait for a signal, at most `seconds`; None for any time. Returns True once a signal has requested to stop."""
        if not self.number:
            with contextlib.suppress(queue.Empty):
                self._woken.get(timeout=seconds)
        return self.number != 0

    def take_reload(self) -> bool:
        """Return True if SIGHUP has come since the last call."""
        had, self._reload = self._reload, False
        return had

    def handle(self, number: int, _frame: FrameType | None) -> None:
        if self.number:
            if self._again is not None:
                self._again(number)
            return
        self.number = number
        self._woken.put(None)

    def handle_reload(self, _number: int, _frame: FrameType | None) -> None:
        self._reload = True
        self._woken.put(None)


@contextmanager
def stop_signals(again: Callable[[int], None] | None = None, reload: bool = False) -> Iterator[StopSignals]:
    """A context, for the main thread, in which SIGTERM and SIGINT request to stop.

    Args:
        again: Called with the number of each signal after the first one.
        reload: True to handle SIGHUP as well.
    """
    stop = StopSignals(again)
    before = {number: signal.signal(number, stop.handle) for number in SIGNALS}
    if reload:
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, stop.handle_reload)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
