"""The scenario of a replay: what happens to a fleet besides its requests."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

from kvatlas.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Scenario:
    """Engines by number, times in seconds from the first request of the trace (of its own clock, sped up or not).

    Attributes:
        slow: How many times as slow an engine is as the others, in everything.
        joins: When an engine joins that is not there from the beginning; its cache is empty.
        dies: When an engine is gone, with its cache and its requests, which are sent again.
        event_delay: How late announcements arrive.
        lose_events: Share of the announcements that are lost, from 0 to 1. The next one of the same engine shows the
            gap; those that follow wait until the lost one has been asked for again and came.
        repair: How long that takes after the gap is seen.
        no_events: True if the router gets no announcements at all.
    """

    slow: dict[int, float] = field(default_factory=dict)
    joins: dict[int, float] = field(default_factory=dict)
    dies: dict[int, float] = field(default_factory=dict)
    event_delay: float = 0.0
    lose_events: float = 0.0
    repair: float = 1.0
    no_events: bool = False

    def __post_init__(self) -> None:
        for name in ("event_delay", "repair"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} must be a number of seconds, not below 0, got {value}")
        if not 0 <= self.lose_events < 1:
            raise ConfigError(f"lose_events must be from 0 to below 1, got {self.lose_events}")
        for name in ("slow", "joins", "dies"):
            for engine, value in getattr(self, name).items():
                if engine < 0 or not (math.isfinite(value) and value >= 0):
                    raise ConfigError(f"{name} of engine {engine} cannot be {value}")
        if any(factor <= 0 for factor in self.slow.values()):
            raise ConfigError(f"slow must be above 0, got {self.slow}")

    @property
    def plain(self) -> bool:
        """True if the scenario changes nothing."""
        return all(
            getattr(self, f.name) == f.default for f in fields(self) if f.name not in ("slow", "joins", "dies")
        ) and not (self.slow or self.joins or self.dies)

    @property
    def exact_events(self) -> bool:
        """True if the index hears of everything at once."""
        return not (self.event_delay or self.lose_events or self.no_events)
