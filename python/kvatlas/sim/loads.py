"""Loads of a request's blocks from other places than the engine's own cache, and the peers to pull from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Literal, Protocol

from kvatlas.sim.transfers import Transfer

Source = Literal["host", "disk", "p2p"]
"""Origin of loaded tokens, by the labels of vLLM's metric: host memory, a shared pool, or a peer."""


@dataclass(frozen=True, slots=True)
class PullAnswer:
    """Answer of an engine (the source) that another engine (the consumer) asks for blocks.

    Attributes:
        held: Names of the chunks that the source can send.
        delay: Seconds until the answer.
        failed: Whether the source did not answer, or refused, so that the consumer gave up.
    """

    held: Container[int]
    delay: float
    failed: bool = False


class PullSource(Protocol):
    """Engine (the source) from whose host memory another engine (the consumer) may pull blocks."""

    def answer(self, consumer: object, now: float) -> PullAnswer:
        """Answer a consumer, which asks at time `now`, with the chunks that the source holds."""

    def send(self, consumer: object, transfer: Transfer, tokens: int, now: float) -> float:
        """Send `tokens` tokens to the consumer from time `now` on. Returns the time of their arrival."""


@dataclass(slots=True)
class Load:
    """Load of one request's blocks from the tiers behind an engine's cache. Times are virtual seconds.

    Attributes:
        start: Leading blocks of the prompt that were cached before the load.
        end: Leading blocks that are cached after the load.
        ready: Time at which the load is done.
        tokens: Tokens by source.
        promoted: Chunks that are copied to host memory on the way, by their numbers in the prompt.
        chunks: Names of the loaded chunks, which are not evicted during the load.
        waits: Whether nothing is loaded: the request waits for another request's load and then looks again.
    """

    start: int
    end: int
    ready: float
    tokens: Counter[Source] = field(default_factory=Counter)
    promoted: list[int] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    waits: bool = False
