"""Loads of a request's blocks into an engine's cache from other tiers, and the peers to pull blocks from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Literal, Protocol

from kvatlas.sim.transfers import Transfer

Source = Literal["host", "disk", "p2p"]
"""Origin of loaded tokens, as a label of vLLM's metric: host memory, a shared pool (`disk`), or a peer."""


@dataclass(frozen=True, slots=True)
class PullAnswer:
    """Answer of one engine (the source) to another engine (the consumer) that asks for blocks.

    Attributes:
        held: Names of the chunks of blocks that the source can send.
        delay: Seconds until the consumer has the answer.
        failed: True if the source did not answer, or refused, so that the consumer gave up.
    """

    held: Container[int]
    delay: float
    failed: bool = False


class PullSource(Protocol):
    """Engine (the source) from whose host memory another engine (the consumer) may pull blocks."""

    def answer(self, consumer: object, now: float) -> PullAnswer:
        """Answer a consumer that asks at virtual time `now` with the chunks that the source holds."""

    def send(self, consumer: object, transfer: Transfer, tokens: int, now: float) -> float:
        """Send `tokens` tokens to the consumer from virtual time `now` on. Returns the time at which they arrive."""


@dataclass(slots=True)
class Load:
    """Load of one request's blocks from the tiers behind an engine's cache. Times are virtual seconds.

    Attributes:
        start: Leading blocks of the prompt that were cached before the load.
        end: Leading blocks that are cached after the load.
        ready: Time at which the load ends.
        tokens: Number of loaded tokens by source.
        promoted: Chunks from the pool or a peer that are copied to host memory first, by their numbers in the prompt.
        chunks: Names of the loaded chunks, which cannot be evicted during the load.
        waits: True if nothing is loaded: the request waits for another request's load of the same chunks, and then
            looks again.
    """

    start: int
    end: int
    ready: float
    tokens: Counter[Source] = field(default_factory=Counter)
    promoted: list[int] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    waits: bool = False
