"""Engines that misbehave in a replay, and what a router with the default settings makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvatlas.lab.replay.scenario import Kind, Trouble
from kvatlas.sim.stepped import SteppedEngine

FAILURES = 3
"""Failures in a row after which an engine is left alone: `health.failures` of a router."""

OPEN, OPEN_MAX = 1.0, 30.0
"""Seconds for which it is left alone at first, twice as long after each further failure, and at most: `health.open`."""

RETRIES = 2
"""Times that a request which failed is sent again: `upstream.retries` of a router."""


@dataclass(frozen=True, slots=True)
class PoolReport:
    """The figures of a pool of blocks that an engine reports."""

    size: int
    free: int
    cached: int


@dataclass(frozen=True, slots=True)
class EngineReport:
    """A report of an engine on itself at some time, in the shape of the engine."""

    pool: PoolReport
    waiting: range
    running: range


@dataclass(slots=True)
class Misbehaviour:
    """The engines that misbehave now, and those that the router leaves alone."""

    _now: dict[Kind, set[int]] = field(default_factory=dict)
    _stale: dict[int, EngineReport] = field(default_factory=dict)
    _failures: dict[int, int] = field(default_factory=dict)
    _open_until: dict[int, float] = field(default_factory=dict)

    def begin(self, trouble: Trouble, engine: SteppedEngine) -> None:
        """Begin a time of misbehaviour."""
        self._now.setdefault(trouble.kind, set()).add(trouble.engine)
        if trouble.kind == "stale":
            pool = PoolReport(engine.pool.size, engine.pool.free, engine.pool.cached)
            self._stale[trouble.engine] = EngineReport(pool, range(len(engine.waiting)), range(len(engine.running)))

    def end(self, trouble: Trouble) -> None:
        """End a time of misbehaviour."""
        self._now[trouble.kind].discard(trouble.engine)
        if trouble.kind == "stale":
            self._stale.pop(trouble.engine, None)

    def refuses(self, engine: int) -> bool:
        """True if an engine answers requests with errors, or not at all."""
        return any(engine in self._now.get(kind, ()) for kind in ("errors", "sleeps", "restarts"))

    def note_failure(self, engine: int, now: float) -> None:
        """A request failed there that another engine can answer."""
        failures = self._failures[engine] = self._failures.get(engine, 0) + 1
        if failures >= FAILURES:
            self._open_until[engine] = now + min(OPEN * 2.0 ** (failures - FAILURES), OPEN_MAX)

    def note_answer(self, engine: int) -> None:
        """A request got its first token there."""
        self._failures.pop(engine, None)
        self._open_until.pop(engine, None)

    def avoided(self, now: float) -> frozenset[int]:
        """The engines that get no new requests while there are others: left alone, late with health checks, or gone."""
        left = {engine for engine, until in self._open_until.items() if now < until}
        return frozenset(left.union(self._now.get("busy", ()), self._now.get("restarts", ())))

    def reports(self, engines: Sequence[SteppedEngine]) -> Sequence[SteppedEngine | EngineReport]:
        """The engines as they report on themselves."""
        return [self._stale.get(n, engine) for n, engine in enumerate(engines)] if self._stale else engines
