"""Tiers of a replay's engines, as a router sees them: the blocks that engines can load, and peers that answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvatlas._hashes import Hashes
from kvatlas.lab.replay.measure import IndexMatch
from kvatlas.sim.offload import Offload
from kvatlas.sim.request import Request
from kvatlas.sim.stepped import SteppedEngine
from kvatlas.sim.tiers import TierConfig
from kvatlas.types import Loadable

PULL = "+pull"
"""Suffix of a policy's name that adds `FixedPulls` to the policy."""

MIN_DELTA = 2_048
"""Minimum lead of a peer, in cached tokens, for a pull by llm-d's rule; its guide's value for gpt-oss-120b over
RDMA.
"""


WARM_UP_LASTS = 60.0
"""Seconds from the first request of an engine's warm-up until none begins any more."""

WARM_UP_REQUESTS = 64
"""Most requests of one warm-up."""

WARM_UP_LEAST = 512
"""Fewest tokens that a request of a warm-up pulls."""

WARM_UP_SHARE = 0.75
"""Share of a prompt that has to be pulled, and of the pulled part that two engines have to hold."""

Ask = Callable[[Request, int, float, Callable[[], None]], None]
"""Sends a request to an engine, by its number, at a time, beside those of clients; then calls a function at its end."""


class LoadableIndex(Protocol):
    """Part of an index that knows the blocks that engines can load."""

    def find(self, *, content_hashes: Hashes) -> list[Loadable]: ...

    def lose(self, pool: str, *, content_hashes: Hashes) -> int: ...


class TierIndex(Protocol):
    """Index that covers tiers, for example `kvatlas.BlockIndex`."""

    @property
    def loading(self) -> LoadableIndex: ...

    def find(self, *, content_hashes: Hashes) -> IndexMatch: ...


@dataclass(slots=True)
class TierView:
    """View of the engines' tiers that a router has.

    Attributes:
        index: The index, which knows the blocks that engines hold and can load.
        engines: The engines, by number.
        tiers: Settings of the engines' tiers.
    """

    index: TierIndex
    engines: Sequence[SteppedEngine]
    tiers: TierConfig
    numbers: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.numbers = {engine.worker: number for number, engine in enumerate(self.engines)}

    def find(self, query: Hashes) -> list[Loadable]:
        """Find the blocks of a prompt that engines can load."""
        return self.index.loading.find(content_hashes=query)

    def find_all(self, query: Hashes) -> tuple[IndexMatch, list[Loadable]]:
        """Find the blocks of a prompt that engines hold, and those that they can load."""
        return self.index.find(content_hashes=query), self.find(query)

    def lose(self, query: Hashes, cached: int, expected: int, block_size: int) -> None:
        """Record that an engine found fewer tokens than expected, because the pool has evicted the next chunk."""
        chunk = self.tiers.chunk
        end = (cached // block_size // chunk + 1) * chunk
        if self.tiers.pool_tokens != 0 and cached < expected and end <= len(query):
            self.index.loading.lose("pool", content_hashes=query[:end])

    def source(self, number: int) -> Offload | None:
        """Tiers of an engine, from which other engines may pull."""
        return self.engines[number].offload

    def answering(self, now: float) -> list[str]:
        """Names of the engines that answer pulls at this time."""
        return [
            engine.worker
            for engine in self.engines
            if engine.offload is not None and not engine.offload.refuses and engine.offload.frozen_until <= now
        ]


class FixedPulls:
    """llm-d's rule for pulls: pull if a peer (the source) has a constant number of tokens more than the chosen engine.

    The source is drawn from the peers that are within one block of the one with the most blocks in host memory, with
    weights of 1 / (1 + requests waiting there). The rule ignores the cost of the pull and the engine's own queue.
    """

    def __init__(self, block_size: int, min_delta: int = MIN_DELTA, seed: int = 0) -> None:
        self._size, self._delta = block_size, min_delta
        self._random = random.Random(seed)

    def apply(self, request: Request, engine: int, view: TierView) -> None:
        """Set the peer from which a request pulls blocks, if any."""
        request.pull = None
        found = view.find(request.content_hashes[: request.prompt_tokens // self._size])
        own = max((it.depth for it in found if view.numbers.get(it.worker) == engine), default=0)
        hosts = {view.numbers[it.worker]: it.host for it in found if it.host and it.worker in view.numbers}
        if not hosts:
            return
        most = max(hosts.values())
        close = [number for number, blocks in hosts.items() if blocks + 1 >= most]
        weights = [1 / (1 + len(view.engines[number].waiting)) for number in close]
        source = self._random.choices(close, weights)[0]
        if source != engine and (hosts[source] - own) * self._size >= self._delta:
            request.pull, request.pull_blocks = view.source(source), hosts[source]


@dataclass(slots=True)
class _WarmUp:
    """Warm-up of one engine: the time of its first request, its requests, and the tokens that these were to pull."""

    began: float | None = None
    requests: int = 0
    tokens: int = 0
    is_under_way: bool = False
    is_over: bool = False


class WarmUps:
    """Warm-ups of empty engines, by the rule of `kvatlas router --warm-up`.

    While a request for another engine passes, an empty engine is asked for one token of the same prompt, and pulls it.
    The prompt has to consist mostly of blocks that two engines hold, or one if no other holds any of it.
    """

    def __init__(self, view: TierView, most: int, block_size: int, ask: Ask) -> None:
        """Create warm-ups up to `most` tokens for each engine."""
        self._view, self._most, self._size, self._ask = view, most, block_size, ask
        self._engines = [_WarmUp() for _ in view.engines]
        self.requests = self.tokens = 0

    def forget(self, engine: int) -> None:
        """Begin anew with an engine that has left."""
        self._engines[engine] = _WarmUp()

    def look(self, request: Request, chosen: int, away: Collection[int], now: float) -> None:
        """Warm up an engine with a request that another engine, `chosen`, takes. `away`: engines that are not there."""
        due = [
            n for n, each in enumerate(self._engines) if n != chosen and n not in away and self._is_due(n, each, now)
        ]
        if not due:
            return
        usable = (request.prompt_tokens - 1) // self._size
        found = self._view.find(request.content_hashes[: request.prompt_tokens // self._size])
        depths = {self._view.numbers[it.worker]: (it.depth, it.host) for it in found if it.worker in self._view.numbers}
        answering = {self._view.numbers[name] for name in self._view.answering(now)} - set(away)
        for n in due:
            own = min(depths.get(n, (0, 0))[0], usable)
            sources = [(min(host, usable), -other) for other, (_, host) in depths.items() if other in answering - {n}]
            reached, source = max(sources, default=(0, 0))
            pulled = (reached - own) * self._size
            held = sorted((depth for other, (depth, _) in depths.items() if other != n and depth), reverse=True)
            shared = held[min(1, len(held) - 1)] * self._size if held else 0
            is_hot = shared >= WARM_UP_SHARE * pulled
            if is_hot and pulled >= max(WARM_UP_LEAST, WARM_UP_SHARE * request.prompt_tokens):
                self._send(request, n, -source, reached, now)
                return

    def _is_due(self, engine: int, its: _WarmUp, now: float) -> bool:
        held = self._view.engines[engine].pool.cached * self._size
        is_late = its.began is not None and now - its.began >= WARM_UP_LASTS
        if is_late or held >= self._most or its.tokens >= self._most or its.requests >= WARM_UP_REQUESTS:
            its.is_over = True
        return not its.is_over and not its.is_under_way

    def _send(self, request: Request, engine: int, source: int, blocks: int, now: float) -> None:
        its = self._engines[engine]
        its.began = now if its.began is None else its.began
        its.requests += 1
        its.is_under_way = True
        self.requests += 1
        copy = Request(-self.requests, request.prompt_tokens, 1, request.content_hashes, request.block_hashes)
        copy.pull, copy.pull_blocks = self._view.source(source), blocks

        def ended() -> None:
            its.is_under_way = False
            its.tokens += copy.hit_tokens
            self.tokens += copy.hit_tokens
            # It computed what it was to pull: its warm-up is over.
            its.is_over |= copy.hit_tokens < blocks * self._size // 2

        self._ask(copy, engine, now, ended)
