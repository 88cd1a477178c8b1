"""Queries to a `kvatlas serve` or a `kvatlas router`: the known engines, and the part of a prompt that each holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import numpy as np

from kvatlas._native import content_hashes
from kvatlas.client import AsyncClient
from kvatlas.client.prompts import prepare_async
from kvatlas.errors import ClientError, InvalidArgumentError, KvatlasError, UnreachableError
from kvatlas.litellm.asked import AskedPrompt
from kvatlas.tokenize import AnyTokenizer

if TYPE_CHECKING:
    import numpy.typing as npt

T = TypeVar("T")

FLEET_AGE = 10.0  # seconds after which the engines are listed anew
REST = 1.0  # seconds for which what did not answer is not asked again
# Codes of an index that has nothing of a model yet.
_UNKNOWN_MODEL = frozenset(["unknown_keyspace", "ambiguous_model"])


@dataclass(frozen=True)
class NoAnswer:
    """The reason why a query has no answer: a word for counters, and a sentence for the log."""

    reason: str
    words: str


@dataclass(frozen=True)
class EngineNames:
    """The engines in an index, and their names by host and port."""

    workers: frozenset[str]
    by_address: Mapping[str, str]

    def name_of(self, url: str) -> str:
        """The index's name of the engine at a URL; its host and port if the index has no name for it."""
        address = urlsplit(url).netloc
        return self.by_address.get(address, address)


@dataclass(frozen=True)
class Holdings:
    """The part of a prompt that each engine holds.

    Attributes:
        length: The number of the prompt's tokens.
        block_size: Tokens in a block; None if unknown.
        hashes: The content hashes of the prompt's blocks; None if the prompt could not be read.
        held: Number of leading tokens in the device's memory, by worker; None if the prompt could not be looked up.
        untrusted: Workers whose blocks in the index may be wrong at present.
        unread: The reason why `held` is None, as a word.
    """

    length: int
    block_size: int | None
    hashes: Sequence[int] | npt.NDArray[np.uint64] | None
    held: Mapping[str, int] | None
    untrusted: frozenset[str] = frozenset()
    unread: str | None = None


class IndexLookup:
    """Client of a service or a router, with a time limit for each query."""

    def __init__(self, client: AsyncClient, tokenizers: Mapping[str, AnyTokenizer], timeout: float) -> None:
        self._client, self._tokenizers, self._timeout = client, tokenizers, timeout
        self._is_router: bool | None = None  # until it has answered
        self._names: EngineNames | None = None
        self._listed = -FLEET_AGE
        self._listing: asyncio.Task[EngineNames] | None = None
        self._away = -REST
        self._away_for = NoAnswer("unreachable", "the engines could not be listed")

    async def names(self) -> EngineNames | NoAnswer:
        """The engines in the index, from a list that is at most `FLEET_AGE` old as long as the index answers.

        `NoAnswer` if the index never answered.
        """
        if time.monotonic() - self._listed >= FLEET_AGE and self._listing is None:
            self._listing = asyncio.create_task(self._list())
            self._listing.add_done_callback(self._note_listed)
        if self._names is None and self._listing is not None:
            return await self._bounded(asyncio.shield(self._listing))
        return self._names or self._away_for

    async def find(self, asked: AskedPrompt) -> Holdings | NoAnswer:
        """Ask how much of a request's prompt each engine holds, within the time limit."""
        return await self._bounded(self._find(asked))

    async def close(self) -> None:
        """Close the connections."""
        if self._listing is not None:
            self._listing.cancel()
        await self._client.close()

    async def _bounded(self, answer: Awaitable[T]) -> T | NoAnswer:
        if time.monotonic() - self._away < REST:
            if asyncio.iscoroutine(answer):
                answer.close()
            return NoAnswer("away", self._away_for.words)
        try:
            return await asyncio.wait_for(answer, self._timeout)
        except TimeoutError:
            words = f"{self._client.url} did not answer within {self._timeout:g} s"
            return self._note_away("timeout", words)
        except UnreachableError as error:
            return self._note_away("timeout" if error.code == "timeout" else "unreachable", str(error))
        except ClientError as error:
            if error.code == "unknown_path":  # a service is there now where a router was
                self._is_router, self._listed = None, -FLEET_AGE
            return NoAnswer("refused", str(error))

    def _note_away(self, reason: str, words: str) -> NoAnswer:
        self._away, self._away_for = time.monotonic(), NoAnswer(reason, words)
        return self._away_for

    async def _list(self) -> EngineNames:
        engines = await self._client.engines()
        fleet = await self._client.workers()
        if self._is_router is None:
            self._is_router = await self._explains()
        by_address = {urlsplit(engine.url).netloc: engine.worker for engine in engines if "://" in engine.url}
        return EngineNames(frozenset(worker.worker for worker in fleet) | set(by_address.values()), by_address)

    async def _explains(self) -> bool:
        """True if the index is a router's, which has a route for explanations."""
        try:
            await self._client.explain({"prompt": ""})
        except UnreachableError:
            raise
        except ClientError as error:
            return error.code != "unknown_path"
        return True

    def _note_listed(self, listing: asyncio.Task[EngineNames]) -> None:
        self._listing = None
        if not listing.cancelled() and listing.exception() is None:
            self._names, self._listed = listing.result(), time.monotonic()
        else:
            self._listed = time.monotonic() - FLEET_AGE + REST  # asked again soon

    async def _find(self, asked: AskedPrompt) -> Holdings:
        tokenizer = self._tokenizers.get(asked.model)
        if self._is_router and (tokenizer is None or asked.query is None):
            return await self._explained(asked.body)
        if asked.query is None:
            return _unread(asked, asked.unread or "other_route")
        if tokenizer is None:
            return _unread(asked, "no_tokenizer")
        try:
            query = await prepare_async(asked.query, tokenizer)
        except InvalidArgumentError:
            return _unread(asked, "not_text")
        except ClientError:
            raise
        except KvatlasError:
            return _unread(asked, "tokenizer_failed")
        tokens = np.asarray(query.tokens if query.tokens is not None else (), np.uint32)
        if self._is_router:
            body: dict[str, Any] = {"model": asked.model, "prompt": tokens.tolist()}
            if asked.salt is not None:
                body["cache_salt"] = asked.salt
            return await self._explained(body)
        try:
            answer = await self._client.query(tokens=tokens, model=asked.model, salt=asked.salt)
        except ClientError as error:
            if error.code not in _UNKNOWN_MODEL:
                raise
            return Holdings(len(tokens), None, None, None, unread="unknown_model")
        hashes = content_hashes(tokens, answer.block_size, answer.lora, asked.salt)
        untrusted = frozenset(rank.worker for rank in answer.untrusted)
        return Holdings(len(tokens), answer.block_size, hashes, answer.token_scores(), untrusted)

    async def _explained(self, body: dict[str, Any]) -> Holdings:
        """Ask a router how its engines compare for a request's body, which the router parses itself."""
        said = await self._client.explain(body, hashes=True)
        length, block_size = max(int(said["tokens"]), 1), int(said["block_size"])
        hashes = [int(each) for each in said["content_hashes"]]
        if not hashes and length >= block_size:
            return Holdings(length, block_size, None, None, unread="router_cannot_read")
        held: dict[str, int] = {}
        for each in said["candidates"]:
            tokens = int((each.get("held_tokens") or {"device": each["cached_tokens"]})["device"])
            held[str(each["worker"])] = max(tokens, held.get(str(each["worker"]), 0))
        return Holdings(length, block_size, hashes, held)


def _unread(asked: AskedPrompt, reason: str) -> Holdings:
    return Holdings(asked.estimate, None, None, None, unread=reason)
