"""Facts about a service that a client learns from its answers: block sizes, and accepted forms of queries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import httpx

from kvatlas.client.answers import Answer, BatchAnswer, WorkerStatus
from kvatlas.client.prompts import Prompt
from kvatlas.errors import ClientError

_MOST_TOLD = 1 << 16  # prompts that are remembered to have been sent as tokens


@dataclass(frozen=True, slots=True)
class Keyspace:
    """A model and a routing group, which have one block size at a time."""

    model: str
    routing_group: str


@dataclass(frozen=True, slots=True)
class Way:
    """Form in which a query is sent.

    Attributes:
        block_size: Tokens in a block, to hash tokens in the client; None to send the tokens.
        as_bytes: True to send numbers as bytes, False to send them in JSON.
    """

    block_size: int | None
    as_bytes: bool


class ServiceKnowledge:
    """Facts about one service that determine the form of queries.

    A query is sent in the best form known. Its answer is recorded, and may require asking again in another form. Each
    further form is simpler, so the attempts end.
    """

    def __init__(self, *, local_hashing: bool) -> None:
        self._local_hashing = local_hashing
        self._as_bytes = True
        self._block_sizes: dict[Keyspace, int] = {}
        # For services that want tokens: the prompts whose tokens were sent since.
        self._told: dict[Keyspace, set[int]] = {}

    def way(self, keyspace: Keyspace, prompts: Iterable[Prompt]) -> Way:
        """The best form known for a query: hashes or tokens, as bytes or JSON."""
        given = [prompt for prompt in prompts if not prompt.is_hashed]
        hashes = self._local_hashing and bool(given)
        if hashes and keyspace in self._told and self._tells(self._told[keyspace], given):
            hashes = False
        return Way(self._block_sizes.get(keyspace) if hashes else None, self._as_bytes)

    @staticmethod
    def _tells(told: set[int], prompts: Iterable[Prompt]) -> bool:
        """Add prompts to the set of those sent before (`told`). True if a prompt without an adapter is new."""
        new = {hash((prompt.content(), prompt.salt)) for prompt in prompts if not prompt.lora} - told
        if len(told) + len(new) > _MOST_TOLD:
            told.clear()
        told |= new
        return bool(new)

    def workers(self, fleet: Iterable[WorkerStatus]) -> None:
        """Learn the block sizes from the list of workers."""
        for worker in fleet:
            self._block_sizes[Keyspace(worker.model, worker.routing_group)] = worker.block_size

    def answered(self, keyspace: Keyspace, way: Way, answer: Answer | BatchAnswer) -> Way | None:
        """Learn from an answer.

        Returns another form in which to ask again if the client has hashed with a wrong block size, else None.
        """
        block_size, lora = answer.block_size, answer.lora
        if answer.wants_tokens:
            self._told.setdefault(keyspace, set())
        elif way.block_size is not None:  # unknown for prompts in tokens
            self._told.pop(keyspace, None)
        # The service divides by it, too, so it is never 0; another server's might be.
        if lora is not None:
            # The model's name is an adapter's. Only the service knows that, so it hashes for it.
            self._block_sizes.pop(keyspace, None)
        elif block_size > 0:
            self._block_sizes[keyspace] = block_size
        if way.block_size is None or (lora is None and way.block_size == block_size):
            return None
        return replace(way, block_size=None)

    def refused(self, keyspace: Keyspace, way: Way, error: ClientError) -> Way | None:
        """Learn from a refusal. Returns another form in which to ask again if that might be accepted, else None."""
        if error.status == httpx.codes.UNSUPPORTED_MEDIA_TYPE and way.as_bytes:
            self._as_bytes = False
            return replace(way, as_bytes=False)
        if error.status == httpx.codes.NOT_FOUND and way.block_size is not None:
            # No worker is registered any more, so the block size may differ next time.
            self._block_sizes.pop(keyspace, None)
            return replace(way, block_size=None)
        return None
