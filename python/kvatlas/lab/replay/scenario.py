"""The scenario of a replay: what happens to a fleet besides its requests."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, field, fields

from kvatlas.errors import ConfigError

GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples, without their whole parts, are spread evenly


@dataclass(frozen=True, slots=True)
class Scenario:
    """Engines by number, times in seconds from the first request of the trace (of its own clock, sped up or not).

    Attributes:
        slow: How many times as slow an engine is as the others, in everything.
        joins: When an engine joins that is not there from the beginning; its cache is empty.
        dies: When an engine is gone, with its cache and its requests, which are sent again.
        hangs: When an engine stops doing anything, and when it goes on where it was.
        late: Share of the requests, from 0 to 1, that reach the queue of their engine `late_by` seconds after they were
            sent there: as with a picture that is slow to fetch, the engine serves others meanwhile.
        late_by: How late those are.
        event_delay: How late announcements arrive.
        lose_events: Share of the announcements that are lost, from 0 to 1. The next one of the same engine shows the
            gap; those that follow wait until the lost one has been asked for again and came.
        repair: How long that takes after the gap is seen.
        no_events: True if the router gets no announcements at all.
    """

    slow: dict[int, float] = field(default_factory=dict)
    joins: dict[int, float] = field(default_factory=dict)
    dies: dict[int, float] = field(default_factory=dict)
    hangs: dict[int, tuple[float, float]] = field(default_factory=dict)
    late: float = 0.0
    late_by: float = 12.0
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
        for engine, (begin, end) in self.hangs.items():
            if engine < 0 or not (math.isfinite(end) and 0 <= begin <= end):
                raise ConfigError(f"hangs of engine {engine} cannot be from {begin} to {end}")
        for name in ("slow", "joins", "dies"):
            for engine, value in getattr(self, name).items():
                if engine < 0 or not (math.isfinite(value) and value >= 0):
                    raise ConfigError(f"{name} of engine {engine} cannot be {value}")
        if any(factor <= 0 for factor in self.slow.values()):
            raise ConfigError(f"slow must be above 0, got {self.slow}")

    @property
    def plain(self) -> bool:
        """True if the scenario changes nothing."""
        return all(getattr(self, f.name) == f.default for f in fields(self) if f.default is not MISSING) and not (
            self.slow or self.joins or self.dies or self.hangs
        )

    def is_late(self, number: int) -> bool:
        """True if the request of this number is late: the same ones under every policy, spread evenly."""
        return number * GOLDEN % 1.0 < self.late

    @property
    def exact_events(self) -> bool:
        """True if the index hears of everything at once."""
        return not (self.event_delay or self.lose_events or self.no_events)
