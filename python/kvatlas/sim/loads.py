"""Loads of a request's blocks from other places than the engine's own cache, and the peers to pull from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Literal, Protocol

from kvatlas.sim.transfers import Transfer

Source = Literal["host", "disk", "p2p"]
"""Origin of loaded tokens, in the words of vLLM's metric."""


@dataclass(frozen=True, slots=True)
class PullAnswer:
    """Answer of a source to a consumer.

    Attributes:
        held: Names of the chunks that it can send.
        delay: Seconds until the answer.
        failed: Whether there was no answer, and the consumer gave up.
    """

    held: Container[int]
    delay: float
    failed: bool = False


class PullSource(Protocol):
    """Peer that a request may pull from."""

    def answer(self, consumer: object, now: float) -> PullAnswer:
        """Answer which chunks it holds."""

    def send(self, consumer: object, transfer: Transfer, tokens: int, now: float) -> float:
        """Send tokens to the consumer from `now` on. Returns the time at which they have arrived."""


@dataclass(slots=True)
class Load:
    """Load of one request.

    Attributes:
        start: Leading blocks of the prompt that were cached before.
        end: Leading blocks that will be cached when it is done.
        ready: Time at which it is done.
        tokens: Tokens by source.
        promoted: Chunks that are copied to host memory on the way, by their numbers in the prompt.
        chunks: Names of the chunks that it loads, which are kept from eviction meanwhile.
        waits: Whether it only waits for the load of another request, to look again after it.
    """

    start: int
    end: int
    ready: float
    tokens: Counter[Source] = field(default_factory=Counter)
    promoted: list[int] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    waits: bool = False
