"""Arrival times of the requests of a replay, in the open or the closed loop (`kvatlas.sim.loop`)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from kvatlas.lab.replay.drive import STUCK, Drive
from kvatlas.sim.loop import Starts
from kvatlas.sim.trace import Trace


def open_arrivals(trace: Trace, speedup: float) -> Iterator[tuple[int, float]]:
    """Iterate over requests in the open loop: number and arrival time, in seconds, of each request, in order."""
    begin = trace.requests[0].timestamp
    for number, line in enumerate(trace.requests):
        yield number, (line.timestamp - begin) / 1000 / speedup


def closed_arrivals(trace: Trace, speedup: float, drive: Drive) -> Iterator[tuple[int, float]]:
    """Iterate over requests in the closed loop: number and arrival time, in seconds.

    A request arrives when those that it depends on have ended. Pass each to `drive` at once. `speedup` divides the
    times between requests without dependencies; pauses stay as they are.
    """
    starts = Starts(trace.requests, speedup)
    drive.ended = starts.ended
    idle = 0.0
    while starts.next < math.inf or drive.open:
        due = drive.next_due()
        if starts.next <= due and starts.next < math.inf:
            idle = 0.0
            now = max(starts.next, drive.now)
            yield starts.start(now), now
        elif due < math.inf:
            idle = 0.0
            drive.run_until(due)
        elif idle < STUCK:
            idle += 1.0
            drive.wait_a_second()
        else:
            break  # `drain` says that the router keeps requests
