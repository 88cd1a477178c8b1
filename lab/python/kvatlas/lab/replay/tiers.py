"""Tiers of a replay's engines, as a router sees them: the blocks that engines can load, and peers that answer."""

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
"""Minimum lead of a peer, in cached tokens, for a pull by llm-d's rule; its guide's value for gpt-oss-120b over
RDMA.
"""


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
