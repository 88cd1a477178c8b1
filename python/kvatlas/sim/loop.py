"""Start times of the requests of a trace, in the open or the closed loop.

In the open loop each request starts at its time in the trace, however late the answers are. In the closed loop a
request starts when the requests that it depends on have ended, plus its pause: a slow fleet receives fewer requests.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from kvatlas.errors import ConfigError
from kvatlas.sim.trace import Trace, TraceRequest

LOOPS = ("open", "closed")


def choose_loop(trace: Trace, loop: str | None) -> str:
    """Choose the loop, open or closed, in which to replay `trace`.

    The default is the closed loop if any request depends on another. Raises `ConfigError` if the trace lacks the data
    for the chosen loop.
    """
    chosen = loop or ("closed" if trace.closed else "open")
    if chosen == "closed" and not trace.closed:
        raise ConfigError(
            f"{trace.name} does not say which requests wait for which: only the open loop can replay it (--loop open)"
        )
    if chosen == "open" and not trace.timed:
        raise ConfigError(
            f"{trace.name} has no times but those of first requests: only the closed loop can replay it (--loop closed)"
        )
    return chosen


class Starts:
    """Start times of a trace's requests in the closed loop, in seconds from the first.

    Call `ended` at the end of each request.
    """

    def __init__(self, requests: Sequence[TraceRequest], speedup: float = 1.0) -> None:
        """Compute the start times.

        `speedup` divides the times of requests that depend on no other, but not the pauses.
        """
        known = {line.id: number for number, line in enumerate(requests) if line.id is not None}
        begin = min((line.timestamp for line in requests), default=0)
        # Who waits for a request to start, or to end, and how long after.
        self._starts: list[list[tuple[int, float]]] = [[] for _ in requests]
        self._ends: list[list[tuple[int, float]]] = [[] for _ in requests]
        self._missing = [len(line.after) for line in requests]
        self._earliest = [0.0 if line.after else (line.timestamp - begin) / 1000 / speedup for line in requests]
        for number, line in enumerate(requests):
            for each in line.after:
                (self._starts if each.on_start else self._ends)[known[each.id]].append((number, each.delay / 1000))
        self._heap = [(self._earliest[number], number) for number, count in enumerate(self._missing) if not count]
        heapq.heapify(self._heap)

    @property
    def next(self) -> float:
        """Time of the next start, in seconds; infinite if some request must end before any other can start."""
        return self._heap[0][0] if self._heap else math.inf

    def start(self, now: float) -> int:
        """Remove and return the number of the request that starts next. `now`: the time of the start, in seconds."""
        _, number = heapq.heappop(self._heap)
        self._release(self._starts[number], now)
        return number

    def ended(self, number: int, now: float) -> None:
        """Record that a request ended at time `now`, in seconds, so that the requests that depend on it can start."""
        self._release(self._ends[number], now)

    def _release(self, followers: list[tuple[int, float]], now: float) -> None:
        for number, delay in followers:
            self._earliest[number] = max(self._earliest[number], now + delay)
            self._missing[number] -= 1
            if not self._missing[number]:
                heapq.heappush(self._heap, (self._earliest[number], number))


def groups(requests: Sequence[TraceRequest]) -> list[list[int]]:
    """Split the requests of a trace into groups without dependencies between groups, ordered by first request.

    Returns the numbers of the requests in each group.
    """
    known = {line.id: number for number, line in enumerate(requests) if line.id is not None}
    first = list(range(len(requests)))

    def find(number: int) -> int:
        while first[number] != number:
            first[number] = number = first[first[number]]
        return number

    for number, line in enumerate(requests):
        for each in line.after:
            one, other = find(number), find(known[each.id])
            first[max(one, other)] = min(one, other)
    found: dict[int, list[int]] = {}
    for number in range(len(requests)):
        found.setdefault(find(number), []).append(number)
    return list(found.values())
