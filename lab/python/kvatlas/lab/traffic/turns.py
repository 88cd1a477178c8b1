"""Closed loops made from requests with the times of their answers.

A request depends on the previous request of its session, if that had ended before. The first request of a sub-agent
depends on the request that started the sub-agent: the last one of the parent session that had ended. The next request
of the parent session depends on the end of the sub-agent, if the sub-agent had ended; otherwise it runs in the
background.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from kvatlas.sim.dependencies import Dependency
from kvatlas.sim.trace import TraceRequest


@dataclass(slots=True)
class Turn:
    """Request and the time of its answer. Times are in seconds."""

    at: float
    end: float | None  # None: unknown
    request: TraceRequest  # without its time and what it waits for
    parent: str | None = None  # the session that started this one


def link_turns(turns: Sequence[Turn], longest_pause: float | None = None) -> list[tuple[float, TraceRequest]]:
    """Sort requests by time, and add to each the request that it depends on.

    `longest_pause`: maximum pause in seconds. Longer pauses are cut, and the rest of the session moves forward in time.
    """
    turns = sorted(turns, key=lambda turn: turn.at)
    sessions: dict[str | int, list[int]] = {}
    parents: dict[str | int, str] = {}
    for number, turn in enumerate(turns):
        name = turn.request.session_id
        if name is not None:
            sessions.setdefault(name, []).append(number)
            if turn.parent is not None and turn.parent != name:
                parents.setdefault(name, turn.parent)
    waits: list[list[tuple[int, float]]] = [[] for _ in turns]
    before: dict[int, int] = {}  # the request before each in its session
    for its in sessions.values():
        for one, other in pairwise(its):
            before[other] = one
            _wait(turns, waits, other, one)
    for name, parent in parents.items():
        its, above = sessions[name], sessions.get(parent, [])
        # The last one that had ended as the agent began, and the one after it.
        place = bisect_right(above, its[0]) - 1
        while place >= 0 and not _wait(turns, waits, its[0], above[place]):
            place -= 1
        if place >= 0 and place + 1 < len(above) and above[place + 1] > its[-1]:
            _wait(turns, waits, above[place + 1], its[-1])
    return _schedule(turns, waits, before, longest_pause)


def _wait(turns: Sequence[Turn], waits: list[list[tuple[int, float]]], later: int, earlier: int) -> bool:
    end = turns[earlier].end
    if end is None or end > turns[later].at:
        return False
    waits[later].append((earlier, turns[later].at - end))
    return True


def _schedule(
    turns: Sequence[Turn], waits: Sequence[Sequence[tuple[int, float]]], before: dict[int, int], longest: float | None
) -> list[tuple[float, TraceRequest]]:
    made: list[tuple[float, TraceRequest]] = []
    sooner: list[float] = []  # seconds by which each begins sooner than it did
    for number, turn in enumerate(turns):
        pauses = [(one, pause if longest is None else min(pause, longest)) for one, pause in waits[number]]
        shift = sooner[before[number]] if number in before else 0.0
        if pauses:
            shift = min(turn.at - ((turns[one].end or 0.0) - sooner[one] + pause) for one, pause in pauses)
        sooner.append(shift)
        after = tuple(Dependency(one, round(1000 * pause)) for one, pause in pauses)
        made.append((turn.at - shift, replace(turn.request, id=number, after=after)))
    return made
