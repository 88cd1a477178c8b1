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
    """SIGTERM and SIGINT as requests to stop, and SIGHUP as one to read settings again.

    Handlers run in the main thread, between any two of its steps. They put into a `SimpleQueue` because that may be
    interrupted by itself. The lock of a `threading.Event` may not: a signal at the wrong moment would hang the process.

    Attributes:
        number: The first signal that asked to stop; 0 before.
    """

    def __init__(self, again: Callable[[int], None] | None = None) -> None:
        """Await signals.

        Args:
            again: Called with each further signal that asks to stop. These are ignored if not given.
        """
        self.number = 0
        self._again = again
        self._reload = False
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wait(self, seconds: float | None) -> bool:
        """Wait for a signal, at most `seconds`; None for any time. Returns true once one has asked to stop."""
        if not self.number:
            with contextlib.suppress(queue.Empty):
                self._woken.get(timeout=seconds)
        return self.number != 0

    def take_reload(self) -> bool:
        """Return true if SIGHUP has come since the last call."""
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
    """A context, for the main thread, in which SIGTERM and SIGINT ask to stop.

    Args:
        again: Called with each signal after the first one.
        reload: If SIGHUP, too, is taken.
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
