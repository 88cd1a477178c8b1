"""Bounds for comparison with policies: placement of requests with full knowledge of the engines.

`GreedyBound` knows each engine's true cache, its queue and running requests, and the length of each answer, and sends
each request to the engine where it expects the least total delay. It is greedy and does not know later requests, so it
is not a strict bound. With one cache for all engines (as large as all engines' caches together, or unlimited), it shows
the gain that sharing caches would bring.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvatlas._hashes import Hashes
from kvatlas.lab.replay.measure import IndexMatch
from kvatlas.lab.replay.misbehaviour import EngineReport
from kvatlas.sim.request import Request
from kvatlas.sim.stepped import SteppedEngine

BOUNDS = ("greedy", "shared-cache", "infinite-cache", "all-memory-free", "all-memory-paid", "host-memory-paid")
"""Names of the bounds: `GreedyBound` with each engine's own cache, one cache as large as all, and one without limit.

In the last three bounds, each engine has its own cache, and a shared pool behind it. In the `all-memory` bounds the
pool is as large as the device and host memory of all engines; in `host-memory-paid` it is as large as their host memory
alone, which also has a copy of the blocks on devices. Loads from the pool are free, or ("paid") cost a transfer (a
pull, if engines pull, otherwise the pool's).
"""


@dataclass(slots=True)
class GreedyBound:
    """Placer of requests with full knowledge of the engines. Set `engines` before the first request."""

    name: str
    block_size: int
    seed: int = 0
    harm: float = 0.02  # seconds that a second of prefill costs each decoding request
    engines: Sequence[SteppedEngine] = ()
    uses_index: bool = False
    _uncached: dict[int, int] = field(default_factory=dict)  # of requests that wait, by number
    _down: set[int] = field(default_factory=set)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def choose(
        self,
        request: Request,
        query: Hashes,
        match: IndexMatch | None,
        now: float,
        *,
        without: frozenset[int] = frozenset(),
        waited: float = 0.0,
    ) -> int | None:
        """Choose the engine with the least total delay, for the request itself and for the other requests there."""
        names = request.block_hashes[: (request.prompt_tokens - 1) // self.block_size]
        best: list[int] = []
        least = float("inf")
        uncached: dict[int, int] = {}
        for number, engine in enumerate(self.engines):
            if number in self._down or number in without:
                continue
            depth, seconds = engine.usable(names)
            mine = uncached[number] = request.prompt_tokens - depth * self.block_size
            cost = seconds + self._cost(engine, mine, request.prompt_tokens)
            if cost < least - 1e-9:
                best, least = [number], cost
            elif cost <= least + 1e-9:
                best.append(number)
        chosen = self._random.choice(best)
        self._uncached[request.number] = uncached[chosen]
        return chosen

    def _cost(self, engine: SteppedEngine, uncached: int, prompt: int) -> float:
        """Seconds to the first token on an engine, plus the delay of the other requests there."""
        steps, chunk = engine.steps, engine.config.chunk or 8_192
        alone = steps.of(0, engine.decoding + 1, engine.context)
        each = (alone + steps.prefill * chunk) / chunk  # seconds a token
        waiting = sum(self._uncached.get(other.number, other.target) for other in engine.waiting)
        own = uncached * each + steps.attention * uncached * (prompt - uncached / 2)
        # Requests whose answers end before are not delayed.
        delayed = sum(
            min(own, alone * (other.cacheable_tokens - other.computed)) for other in engine.running if other.computed
        )
        return (waiting + engine.begun_tokens) * each + own + self.harm * delayed

    @property
    def waiting(self) -> Sequence[Request]:
        """Empty list, because no request waits in the router (see `Placer`)."""
        return ()

    def avoid(self, request: Request, without: frozenset[int]) -> None:
        pass

    def bound(self, now: float) -> Sequence[tuple[Request, int]]:
        return ()

    def first_token(self, request: Request, now: float) -> None:
        self._uncached.pop(request.number, None)

    def finished(self, request: Request, now: float) -> None:
        self._uncached.pop(request.number, None)

    def failed(self, request: Request, now: float) -> None:
        self._uncached.pop(request.number, None)

    def observe(self, engines: Sequence[SteppedEngine | EngineReport], now: float) -> None:
        pass

    def joins(self, engine: int, now: float) -> None:
        self._down.discard(engine)

    def leaves(self, engine: int, now: float) -> None:
        self._down.add(engine)
