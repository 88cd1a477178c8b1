"""The times at which the requests of a replay come.

In the open loop each comes at its time in the trace, however late the answers are. In the closed loop a request comes
when those it waits for have ended, plus its pause: a fleet that is slow is asked less.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from kvatlas.errors import ConfigError
from kvatlas.lab.replay.drive import STUCK, Drive
from kvatlas.sim.trace import Trace

LOOPS = ("open", "closed")


def choose_loop(trace: Trace, loop: str | None) -> str:
    """The loop to replay `trace` in: closed, if not told otherwise and its requests wait for each other.

    Raises `ConfigError` where the trace does not have what the loop needs.
    """
    chosen = loop or ("closed" if trace.closed else "open")
    if chosen == "closed" and not trace.closed:
        raise ConfigError(f"{trace.name} does not say which requests wait for which: only the open loop can replay it")
    if chosen == "open" and not trace.timed:
        raise ConfigError(f"{trace.name} has no times but those of first requests: only the closed loop can replay it")
    return chosen


def open_arrivals(trace: Trace, speedup: float) -> Iterator[tuple[int, float]]:
    """Number and time in seconds of each request, in order."""
    begin = trace.requests[0].timestamp
    for number, line in enumerate(trace.requests):
        yield number, (line.timestamp - begin) / 1000 / speedup


def closed_arrivals(trace: Trace, speedup: float, drive: Drive) -> Iterator[tuple[int, float]]:
    """Number and time in seconds of each request as those it waits for are over. Give each to `drive` at once.

    `speedup` shortens the times between requests that wait for nothing; pauses stay as long as they are.
    """
    requests = trace.requests
    known = {line.id: number for number, line in enumerate(requests) if line.id is not None}
    begin = min(line.timestamp for line in requests)
    starts: list[list[tuple[int, float]]] = [[] for _ in requests]  # who waits for a request to start, how long after
    ends: list[list[tuple[int, float]]] = [[] for _ in requests]
    missing = [len(line.after) for line in requests]
    earliest = [0.0 if line.after else (line.timestamp - begin) / 1000 / speedup for line in requests]
    for number, line in enumerate(requests):
        for each in line.after:
            (starts if each.on_start else ends)[known[each.id]].append((number, each.delay / 1000))
    heap = [(earliest[number], number) for number, count in enumerate(missing) if not count]
    heapq.heapify(heap)

    def release(followers: list[tuple[int, float]], now: float) -> None:
        for number, delay in followers:
            earliest[number] = max(earliest[number], now + delay)
            missing[number] -= 1
            if not missing[number]:
                heapq.heappush(heap, (earliest[number], number))

    drive.ended = lambda number, now: release(ends[number], now)
    idle = 0.0
    while heap or drive.open:
        due = drive.next_due()
        if heap and heap[0][0] <= due:
            idle = 0.0
            now, number = heapq.heappop(heap)
            now = max(now, drive.now)
            release(starts[number], now)
            yield number, now
        elif due < math.inf:
            idle = 0.0
            drive.run_until(due)
        elif idle < STUCK:
            idle += 1.0
            drive.wait_a_second()
        else:
            break  # `drain` says that the router keeps requests
