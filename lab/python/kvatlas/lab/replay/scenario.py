"""Scenario of a replay: changes and faults in a fleet besides its requests."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, field, fields
from typing import Literal, get_args

from kvatlas.errors import ConfigError

Kind = Literal["stops", "slow", "errors", "busy", "restarts", "sleeps", "stale", "mute"]
"""Kind of misbehaviour of an engine; `kvatlas.lab.replay.trouble.TROUBLES` describes them."""

GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples, without their whole parts, are spread evenly


@dataclass(frozen=True, slots=True)
class Trouble:
    """Period in which an engine misbehaves.

    Attributes:
        kind: Kind of misbehaviour.
        engine: Number of the engine.
        begin: Beginning of the period, in seconds from the first request.
        end: End of the period, in seconds from the first request.
    """

    kind: Kind
    engine: int
    begin: float
    end: float

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigError(f"kind of a trouble must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        if self.engine < 0 or not (math.isfinite(self.end) and 0 <= self.begin <= self.end):
            raise ConfigError(f"{self.kind} of engine {self.engine} cannot be from {self.begin} to {self.end}")

    def overlaps(self, other: Trouble) -> bool:
        """True if this period and another one overlap."""
        return self.begin <= other.end and other.begin <= self.end

    def order(self) -> tuple[float, int, str]:
        """Key to sort troubles by time."""
        return self.begin, self.engine, self.kind


@dataclass(frozen=True, slots=True)
class Scenario:
    """Scenario of a replay: engines by number, and times in seconds from the first request (on the trace's clock).

    Attributes:
        slow: Factor by which the steps of an engine are longer than those of other engines.
        joins: Times at which engines join that are absent at first, with empty caches.
        dies: Times at which engines die with their caches; their requests are sent again.
        troubles: Periods in which engines misbehave.
        limits: Maximum number of running requests of an engine, if smaller than the reported one.
        late: Share of the requests, from 0 to 1, that reach the queue of their engine `late_by` to `late_to` seconds
            after they were sent there: as with a picture that is slow to fetch, the engine serves others meanwhile.
        late_by: Minimum lateness, in seconds.
        late_to: Maximum lateness, in seconds; None if all are `late_by` late.
        event_delay: Delay of announcements, in seconds.
        lose_events: Share of the announcements that are lost, from 0 to 1. The next announcement of the same engine
            shows the gap; it waits, with those after it, until the lost one has been fetched.
        repair: Seconds from the detection of a gap until the lost announcement is fetched.
        no_events: True if the router gets no announcements at all.
    """

    slow: dict[int, float] = field(default_factory=dict)
    joins: dict[int, float] = field(default_factory=dict)
    dies: dict[int, float] = field(default_factory=dict)
    troubles: tuple[Trouble, ...] = ()
    limits: dict[int, int] = field(default_factory=dict)
    late: float = 0.0
    late_by: float = 12.0
    late_to: float | None = None
    event_delay: float = 0.0
    lose_events: float = 0.0
    repair: float = 1.0
    no_events: bool = False

    def __post_init__(self) -> None:
        for name in ("event_delay", "repair", "late_by"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} must be a number of seconds, not below 0, got {value}")
        if not 0 <= self.lose_events < 1:
            raise ConfigError(f"lose_events must be from 0 to below 1, got {self.lose_events}")
        if not 0 <= self.late <= 1:
            raise ConfigError(f"late must be from 0 to 1, got {self.late}")
        if self.late_to is not None and not (math.isfinite(self.late_to) and self.late_to >= self.late_by):
            raise ConfigError(f"late_to must not be below late_by ({self.late_by} s), got {self.late_to}")
        for engine, limit in self.limits.items():
            if engine < 0 or limit < 1:
                raise ConfigError(f"limits of engine {engine} cannot be {limit}")
        for name in ("slow", "joins", "dies"):
            for engine, value in getattr(self, name).items():
                if engine < 0 or not (math.isfinite(value) and value >= 0):
                    raise ConfigError(f"{name} of engine {engine} cannot be {value}")
        if any(factor <= 0 for factor in self.slow.values()):
            raise ConfigError(f"slow must be above 0, got {self.slow}")

    @property
    def plain(self) -> bool:
        """True if the scenario has no changes or faults."""
        return all(getattr(self, f.name) == f.default for f in fields(self) if f.default is not MISSING) and not (
            self.slow or self.joins or self.dies or self.limits
        )

    def lateness(self, number: int) -> float:
        """Lateness of the request with number `number`, in seconds: evenly distributed, and equal for all policies."""
        place = number * GOLDEN % 1.0
        if place >= self.late:
            return 0.0
        return self.late_by + ((self.late_to or self.late_by) - self.late_by) * (place / self.late)

    @property
    def loses_caches(self) -> bool:
        """True if engines lose their caches without announcing it."""
        return bool(self.dies) or any(trouble.kind == "restarts" for trouble in self.troubles)

    @property
    def exact_events(self) -> bool:
        """True if the index gets every announcement at once, with no delay or loss."""
        return not (self.event_delay or self.lose_events or self.no_events)

    def named_engines(self) -> list[tuple[str, int]]:
        """Numbers of the engines in the scenario, each with the name of the setting that mentions it."""
        named = [(name, n) for name in ("slow", "joins", "dies", "limits") for n in getattr(self, name)]
        return named + [(trouble.kind, trouble.engine) for trouble in self.troubles]
