"""Estimates of engines' caches without events, from the requests that were sent to them, by two known methods.

- `MockCaches`: each engine's cache is simulated by the rules of the block pool, with the size that the engine reports;
- `TtlCaches`: a block counts as held for a fixed time after it was sent to the engine.

Both methods use only the knowledge of a router: which prompt went to which engine, and the times of its first token and
its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from kvatlas.sim.pool import BlockPool
from kvatlas.sim.request import Request

TTL = 120.0  # seconds, as Dynamo's router has it where no events come


class Guess(Protocol):
    """Estimate of the blocks that all engines hold."""

    def depths(self, names: Sequence[int], now: float) -> Mapping[int, int]:
        """Estimated depth on each engine, in blocks: the number of leading `names` that it may hold."""

    def sent(self, request: Request, names: Sequence[int], engine: int, now: float) -> None:
        """Record that a prompt with the block hashes `names` was sent to an engine."""

    def ended(self, request: Request, now: float) -> None:
        """Record the end of a request, for any reason."""

    def forget(self, engine: int) -> None:
        """Forget the blocks of an engine that has left the fleet."""


class MockCaches:
    """Estimate from simulated caches.

    A prompt's blocks are cached when the prompt is sent; its generated tokens are unknown.
    """

    def __init__(self, engines: int, blocks: int) -> None:
        self._blocks = blocks
        self._pools = [BlockPool(blocks) for _ in range(engines)]
        self._held: dict[int, tuple[BlockPool, list[int]]] = {}

    def depths(self, names: Sequence[int], now: float) -> Mapping[int, int]:
        found = ((engine, pool.depth(names)) for engine, pool in enumerate(self._pools))
        return {engine: depth for engine, depth in found if depth}

    def sent(self, request: Request, names: Sequence[int], engine: int, now: float) -> None:
        pool = self._pools[engine]
        hits = pool.lookup(names)
        new = len(names) - len(hits)
        if new + pool.idle(hits) > pool.free:
            return  # it waits in the engine for room: its hits after the wait are unknown
        pool.touch(hits)
        taken, _ = pool.take(new)
        pool.fill(taken, names[len(hits) :])
        self._held[request.number] = pool, hits + taken

    def ended(self, request: Request, now: float) -> None:
        pool, blocks = self._held.pop(request.number, (None, []))
        if pool is not None:
            pool.release(blocks)

    def forget(self, engine: int) -> None:
        gone = self._pools[engine]
        self._pools[engine] = BlockPool(self._blocks)
        self._held = {number: held for number, held in self._held.items() if held[0] is not gone}


class TtlCaches:
    """Estimate by time: a block counts as held for `ttl` seconds after it was last sent to the engine."""

    def __init__(self, engines: int, ttl: float = TTL) -> None:
        self._ttl = ttl
        self._until: list[dict[int, float]] = [{} for _ in range(engines)]
        self._sweep = ttl

    def depths(self, names: Sequence[int], now: float) -> Mapping[int, int]:
        found = {}
        for engine, until in enumerate(self._until):
            depth = 0
            for name in names:
                if until.get(name, -1.0) < now:
                    break
                depth += 1
            if depth:
                found[engine] = depth
        return found

    def sent(self, request: Request, names: Sequence[int], engine: int, now: float) -> None:
        self._until[engine].update(dict.fromkeys(names, now + self._ttl))
        if now >= self._sweep:
            self._sweep = now + self._ttl
            self._until = [{name: t for name, t in until.items() if t >= now} for until in self._until]

    def ended(self, request: Request, now: float) -> None:
        pass

    def forget(self, engine: int) -> None:
        self._until[engine] = {}
