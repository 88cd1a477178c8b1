"""Misbehaving engines in a replay, and the reaction of a router with default settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvatlas.lab.replay.scenario import Kind, Trouble
from kvatlas.sim.stepped import SteppedEngine

FAILURES = 3
"""Number of consecutive failures after which an engine is avoided: `health.failures` of a router."""

OPEN, OPEN_MAX = 1.0, 30.0
"""Seconds for which a failing engine is avoided: initially, and at most. Doubled after each further failure."""

RETRIES = 2
"""Maximum number of retries of a failed request: `upstream.retries` of a router."""


@dataclass(frozen=True, slots=True)
class PoolReport:
    """Figures that an engine reports about its pool of blocks."""

    size: int
    free: int
    cached: int


@dataclass(frozen=True, slots=True)
class EngineReport:
    """Report of an engine as of an earlier time, with the same attributes as the engine."""

    pool: PoolReport
    waiting: range
    running: range


@dataclass(slots=True)
class Misbehaviour:
    """Engines that misbehave at this time, and engines that the router avoids."""

    _now: dict[Kind, set[int]] = field(default_factory=dict)
    _stale: dict[int, EngineReport] = field(default_factory=dict)
    _failures: dict[int, int] = field(default_factory=dict)
    _open_until: dict[int, float] = field(default_factory=dict)

    def begin(self, trouble: Trouble, engine: SteppedEngine) -> None:
        """Begin a period of misbehaviour of an engine."""
        self._now.setdefault(trouble.kind, set()).add(trouble.engine)
        if trouble.kind == "stale":
            pool = PoolReport(engine.pool.size, engine.pool.free, engine.pool.cached)
            self._stale[trouble.engine] = EngineReport(pool, range(len(engine.waiting)), range(len(engine.running)))

    def end(self, trouble: Trouble) -> None:
        """End a period of misbehaviour of an engine."""
        self._now[trouble.kind].discard(trouble.engine)
        if trouble.kind == "stale":
            self._stale.pop(trouble.engine, None)

    def refuses(self, engine: int) -> bool:
        """True if an engine answers requests with errors, or not at all."""
        return any(engine in self._now.get(kind, ()) for kind in ("errors", "sleeps", "restarts"))

    def note_failure(self, engine: int, now: float) -> None:
        """Count a failed request of an engine."""
        failures = self._failures[engine] = self._failures.get(engine, 0) + 1
        if failures >= FAILURES:
            self._open_until[engine] = now + min(OPEN * 2.0 ** (failures - FAILURES), OPEN_MAX)

    def note_answer(self, engine: int) -> None:
        """Record a first token from an engine, which resets its count of failures."""
        self._failures.pop(engine, None)
        self._open_until.pop(engine, None)

    def avoided(self, engines: Sequence[SteppedEngine], now: float) -> frozenset[int]:
        """Engines that get no new requests while others can: failing, gone, or late with health checks and silent."""
        left = {engine for engine, until in self._open_until.items() if now < until}
        silent = {engine for engine in self._now.get("busy", ()) if not engines[engine].decoding}
        return frozenset(left.union(silent, self._now.get("restarts", ())))

    def reports(self, engines: Sequence[SteppedEngine]) -> Sequence[SteppedEngine | EngineReport]:
        """Current reports of the engines; some may be of an earlier time."""
        return [self._stale.get(n, engine) for n, engine in enumerate(engines)] if self._stale else engines
