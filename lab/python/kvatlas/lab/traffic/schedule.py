"""Start times for the requests of a closed-loop trace, as idle engines with a shared cache would cause them."""

from __future__ import annotations

import heapq
from dataclasses import replace

from kvatlas.sim.hardware import idle_seconds
from kvatlas.sim.statistics import infinite_cache
from kvatlas.sim.trace import Trace


def schedule(trace: Trace) -> Trace:
    """Give start times to the requests of a trace, and sort them. Requests without dependencies keep their times."""
    requests = trace.requests
    size = 16 if trace.block % 16 == 0 else trace.block
    took = [
        idle_seconds(line.input_length - cached, line.output_length)
        for line, cached in zip(requests, infinite_cache(requests, size, trace.block), strict=True)
    ]
    known = {line.id: number for number, line in enumerate(requests) if line.id is not None}
    followers: list[list[int]] = [[] for _ in requests]
    missing = [len(line.after) for line in requests]
    for number, line in enumerate(requests):
        for each in line.after:
            followers[known[each.id]].append(number)
    starts = [line.timestamp / 1000 for line in requests]
    ready = [(starts[number], number) for number, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, number = heapq.heappop(ready)
        order.append(number)
        for later in followers[number]:
            missing[later] -= 1
            if not missing[later]:
                starts[later] = max(
                    starts[known[each.id]] + (0.0 if each.on_start else took[known[each.id]]) + each.delay / 1000
                    for each in requests[later].after
                )
                heapq.heappush(ready, (starts[later], later))
    order.sort(key=lambda number: (starts[number], number))
    begin = starts[order[0]]
    made = [replace(requests[number], timestamp=round(1000 * (starts[number] - begin))) for number in order]
    return replace(trace, requests=made, timed=True)
