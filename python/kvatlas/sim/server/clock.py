"""The engine's time beside the real one."""

from __future__ import annotations

import time


class Clock:
    """Virtual seconds that pass `speed` times as fast as real ones, and not at all while stopped.

    Real time is that of `time.monotonic`, which is an event loop's too.
    """

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self._virtual = 0.0  # when real time was
        self._real = time.monotonic()
        self.stopped = False

    def now(self) -> float:
        """The virtual time."""
        if self.stopped:
            return self._virtual
        return self._virtual + (time.monotonic() - self._real) * self.speed

    def real(self, virtual: float) -> float:
        """When it will be (or was) `virtual`, in real time, unless stopped in between."""
        return self._real + (virtual - self._virtual) / self.speed

    def stop(self) -> None:
        """Time stands still."""
        self._virtual = self.now()
        self.stopped = True

    def go(self) -> None:
        """Time goes on from where it stood."""
        if self.stopped:
            self._real = time.monotonic()
            self.stopped = False
