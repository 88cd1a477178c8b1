"""Periods of misbehaving engines, generated from kinds and rates.

Periods are spread evenly over engines and time by multiples of the golden ratio, equally for all policies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import get_args

from kvatlas.errors import ConfigError
from kvatlas.lab.replay.scenario import GOLDEN, Kind, Scenario, Trouble
from kvatlas.sim.trace import Trace

SLOW = 10.0
"""Factor by which an engine's steps are longer in a period of the kind "slow"."""

LATE = (10.0, 60.0)
"""Minimum and maximum lateness of late requests, in seconds."""

LIMIT = 8
"""Maximum number of running requests of an engine that reports a higher limit."""


@dataclass(frozen=True, slots=True)
class TroubleKind:
    """Kind of misbehaviour of engines.

    Attributes:
        text: Description in one line.
        rate: Default rate: a share of the requests ("late"), of the engines ("limit"), or of the engines' time.
        length: Length of a period of misbehaviour, in seconds; 0 for kinds without periods.
    """

    text: str
    rate: float
    length: float = 0.0


TROUBLES: Mapping[str, TroubleKind] = {
    "late": TroubleKind("requests reach the queue of their engine 10 to 60 s late", 0.01),
    "limit": TroubleKind(f"engines run at most {LIMIT} requests, and do not say so", 0.25),
    "stops": TroubleKind("an engine does nothing for 20 s, then goes on where it was", 0.02, 20.0),
    "slow": TroubleKind("an engine is ten times as slow for 60 s", 0.02, 60.0),
    "errors": TroubleKind("an engine answers with errors at once for 30 s, with a status of 200 or not", 0.02, 30.0),
    "busy": TroubleKind("an engine answers health checks late for 10 s; it works on", 0.02, 10.0),
    "restarts": TroubleKind("an engine is gone with its requests, and back after 30 s with an empty cache", 0.01, 30.0),
    "sleeps": TroubleKind(
        "an engine refuses requests for 60 s, ends those that it has, and forgets its cache", 0.02, 60.0
    ),
    "stale": TroubleKind("what an engine reports of itself is what it was up to 60 s before", 0.1, 60.0),
    "mute": TroubleKind("an engine does not answer peers that pull from it for 60 s; it works on", 0.02, 60.0),
}
"""All kinds of misbehaviour by name."""


def parse_troubles(texts: tuple[str, ...]) -> dict[str, float]:
    """Parse kinds of misbehaviour with rates: `KIND`, `KIND=RATE` or `all`. Returns the rate of each kind.

    Raises `ConfigError` that lists the valid values.
    """
    rates: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.partition("=")
        if name != "all" and name not in TROUBLES:
            raise ConfigError(f"no trouble {name!r}: it must be all or one of {', '.join(TROUBLES)}")
        try:
            rate = float(number) if equals else None
        except ValueError:
            rate = math.nan
        if rate is not None and (name == "all" or not 0 <= rate <= 1):
            raise ConfigError(
                f"trouble {text!r}: it must be {name if name != 'all' else 'KIND'}=RATE, RATE from 0 to 1"
            )
        for kind in TROUBLES if name == "all" else (name,):
            rates[kind] = TROUBLES[kind].rate if rate is None else rate
    return rates


def trace_seconds(trace: Trace, speedup: float) -> float:
    """Virtual seconds from the first request of a trace to its last; at least a minute."""
    times = [request.timestamp for request in trace.requests]
    return max((max(times) - min(times)) / 1000 / speedup if times else 0.0, 60.0)


def with_troubles(scenario: Scenario, rates: Mapping[str, float], engines: int, seconds: float) -> Scenario:
    """Add misbehaviour to a scenario, for a number of engines and a duration in virtual seconds."""
    troubles = list(scenario.troubles)
    for nth, kind in enumerate(get_args(Kind)):
        rate, length = rates.get(kind, 0.0), TROUBLES[kind].length
        count = max(1, round(rate * engines * seconds / length)) if rate else 0
        for number in range(count):
            place = (number * GOLDEN + nth * GOLDEN**2) % 1.0
            engine = int((number * math.sqrt(2) + nth * math.sqrt(3)) % 1.0 * engines)
            begin = place * max(seconds - length, 0.0)
            one = Trouble(kind, engine, begin, begin + length)
            if not any(other.engine == engine and other.overlaps(one) for other in troubles):
                troubles.append(one)
    limits = dict(scenario.limits)
    if rate := rates.get("limit", 0.0):
        limited = max(1, round(rate * engines))
        limits |= {int(number * engines / limited): LIMIT for number in range(limited)}
    changed = replace(scenario, troubles=tuple(sorted(troubles, key=Trouble.order)), limits=limits)
    if rate := rates.get("late", 0.0):
        changed = replace(changed, late=rate, late_by=LATE[0], late_to=LATE[1])
    return changed
