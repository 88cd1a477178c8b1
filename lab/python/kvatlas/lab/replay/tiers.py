"""Tiers of the engines of a replay, as a router sees them: what engines can load, and which peers answer."""

from __future__ import annotations

import random
from collections.abc import Sequence
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
"""Tokens by which a source must be ahead in llm-d's rule, as its guide has it for gpt-oss-120b over RDMA."""


class LoadableIndex(Protocol):
    """Part of an index that knows what engines can load."""

    def find(self, *, content_hashes: Hashes) -> list[Loadable]: ...

    def lose(self, pool: str, *, content_hashes: Hashes) -> int: ...


class TierIndex(Protocol):
    """Index that knows of tiers: `kvatlas.BlockIndex` does."""

    @property
    def loading(self) -> LoadableIndex: ...

    def find(self, *, content_hashes: Hashes) -> IndexMatch: ...


@dataclass(slots=True)
class TierView:
    """View that a router has of tiers.

    Attributes:
        index: The index, which knows what engines hold and can load.
        engines: The engines, by number.
        tiers: Their settings.
    """

    index: TierIndex
    engines: Sequence[SteppedEngine]
    tiers: TierConfig
    numbers: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.numbers = {engine.worker: number for number, engine in enumerate(self.engines)}

    def find(self, query: Hashes) -> list[Loadable]:
        """Find what engines can load of a prompt."""
        return self.index.loading.find(content_hashes=query)

    def find_all(self, query: Hashes) -> tuple[IndexMatch, list[Loadable]]:
        """Find what engines hold, and what they can load of a prompt."""
        return self.index.find(content_hashes=query), self.find(query)

    def lose(self, query: Hashes, cached: int, expected: int, block_size: int) -> None:
        """Note that an engine found fewer tokens than it could load: the pool has lost the next chunk."""
        chunk = self.tiers.chunk
        end = (cached // block_size // chunk + 1) * chunk
        if self.tiers.pool_tokens != 0 and cached < expected and end <= len(query):
            self.index.loading.lose("pool", content_hashes=query[:end])

    def source(self, number: int) -> Offload | None:
        """The tiers of an engine that others may pull from."""
        return self.engines[number].offload

    def answering(self, now: float) -> list[str]:
        """Names of the engines that give a sign of life."""
        return [
            engine.worker
            for engine in self.engines
            if engine.offload is not None and not engine.offload.refuses and engine.offload.frozen_until <= now
        ]


class FixedPulls:
    """llm-d's rule: once the engine is chosen, it pulls if a source can serve a constant number of tokens more than it.

    The source is drawn from those that are within one block of the one with the most in host memory, with weights of
    1 / (1 + requests waiting there). Neither the cost of the pull nor the engine's own queue is weighed.
    """

    def __init__(self, block_size: int, min_delta: int = MIN_DELTA, seed: int = 0) -> None:
        self._size, self._delta = block_size, min_delta
        self._random = random.Random(seed)

    def apply(self, request: Request, engine: int, view: TierView) -> None:
        """Set the peer that a request pulls from, if any."""
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
