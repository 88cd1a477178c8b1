"""Check that engines which pull from each other or share a pool use the same block hashes, with one prompt for all.

A separate service follows the engines' live events, without those announced before. So its index contains only this
prompt and those that clients sent meanwhile, and can be read as a whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence

from kvatlas._native import content_hashes
from kvatlas.client import AsyncClient
from kvatlas.errors import ClientError, KvatlasError, ServiceError
from kvatlas.router.check.findings import CheckedEngine
from kvatlas.router.check.model_tokenizers import ModelTokenizers
from kvatlas.router.check.tokens import tokens_of
from kvatlas.service import Config, HttpConfig, Service, Stream
from kvatlas.service.config.pools import Pool

_WORDS = ("blue", "stone", "river", "seven", "lamp", "cloud", "paper", "north")
_POLL = 0.05
_WAIT = 2.0  # seconds for the prompt to be announced
_REST = 0.5  # seconds kept for the report, of the time that the engine has


class CommonPrompt:
    """Sender of one prompt to all engines that pull from each other or share a pool, to compare block hashes."""

    def __init__(self, tokenizers: ModelTokenizers, pools: Sequence[Pool]) -> None:
        self._tokenizers, self._pools = tokenizers, pools
        self._client: AsyncClient | None = None
        self._text = ""

    @contextlib.asynccontextmanager
    async def following(self, looked: Sequence[CheckedEngine]) -> AsyncIterator[None]:
        """A context in which a service follows the live events of the given engines."""
        sharing = [one for one in looked if shares(one, self._pools)]
        streams = [stream for one in sharing for stream in _streams(one)]
        if not streams:
            yield
            return
        self._text = prompt_of(2 * max(one.found.block_size for one in sharing if one.found is not None))
        try:
            service = Service(streams=streams, config=Config(http=HttpConfig(bind="127.0.0.1:0")))
        except ServiceError:  # without it, engines are not compared
            yield
            return
        async with service, service.async_client() as client:
            self._client = client
            yield
        self._client = None

    async def through(self, one: CheckedEngine) -> None:
        """Send the prompt through an engine, and store the engine's block hashes for it."""
        client, found = self._client, one.found
        if client is None or found is None or not shares(one, self._pools):
            return
        if self._tokenizers.path(one.model) is None:
            return
        body = {"model": one.model, "max_tokens": 1, "temperature": 0, "prompt": self._text}
        try:
            tokens = await tokens_of(one.http, one.model, None, self._text, self._tokenizers.local(one.model))
            await one.http.generate("/v1/completions", body)
        except (ClientError, KvatlasError):
            return
        wanted = [int(content) for content in content_hashes(tokens[:-1], block_size=found.block_size)]
        clock = asyncio.get_running_loop().time
        until = min(clock() + _WAIT, one.until - _REST)
        while not one.block_names and clock() < until:
            one.block_names = await _names(client, one.report.worker, wanted)
            await asyncio.sleep(_POLL)


def shares(one: CheckedEngine, pools: Sequence[Pool]) -> bool:
    """True if an engine must use the same block hashes as others, because it pulls from them or shares a pool."""
    return one.entry.pull is not None or any(is_member(one, pool) for pool in pools)


def is_member(one: CheckedEngine, pool: Pool) -> bool:
    """True if an engine may load from a pool."""
    return pool.members is None or one.report.worker in pool.members


def _streams(one: CheckedEngine) -> list[Stream]:
    found = one.found
    if found is None:
        return []
    return [
        Stream(
            one.report.worker,
            source.endpoint,
            rank=source.rank,
            topic=source.topic,
            model=found.model,
            block_size=found.block_size,
        )
        for source in found.sources
        if not source.endpoint.startswith("bind://")  # an engine connects to one service only
    ]


async def _names(client: AsyncClient, worker: str, wanted: Sequence[int]) -> tuple[int, ...]:
    """The engine's block hashes for the content hashes `wanted`, up to the first that it has not announced."""
    known = {
        content: name
        for keyspace in await client.dump()
        for stored in keyspace.stored
        if stored.worker == worker
        for name, content in zip(stored.block_hashes, stored.content_hashes, strict=True)
    }
    names = []
    for content in wanted:
        if content not in known:
            break
        names.append(known[content])
    return tuple(names)


def prompt_of(words: int) -> str:
    """Random text with a given number of words."""
    start = f"Check {secrets.token_hex(8)}."
    return " ".join([start, *(_WORDS[(i * 5) % len(_WORDS)] for i in range(words))])
