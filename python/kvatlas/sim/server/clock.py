"""Clock of an engine's virtual time."""

from __future__ import annotations

import time


class Clock:
    """Clock of virtual seconds, which pass `speed` times as fast as real seconds while the clock runs.

    Real times are seconds of `time.monotonic`, as in event loops.
    """

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self._virtual = 0.0  # when real time was
        self._real = time.monotonic()
        self.stopped = False

    def now(self) -> float:
        """Virtual time, in seconds."""
        if self.stopped:
            return self._virtual
        return self._virtual + (time.monotonic() - self._real) * self.speed

    def real(self, virtual: float) -> float:
        """Real time at which the clock will show the virtual time `virtual`, unless the clock is stopped before."""
        return self._real + (virtual - self._virtual) / self.speed

    def stop(self) -> None:
        """Stop the virtual time of the clock."""
        self._virtual = self.now()
        self.stopped = True

    def go(self) -> None:
        """Continue the virtual time of the clock after `stop`."""
        if self.stopped:
            self._real = time.monotonic()
            self.stopped = False
