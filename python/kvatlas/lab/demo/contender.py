"""One policy with a fleet of its own: sends requests and counts what becomes of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from kvatlas import content_hashes
from kvatlas.client import AsyncClient
from kvatlas.errors import KvatlasError
from kvatlas.routing import Depths, Dispatched, Dispatcher, Prompt

WINDOW = 10.0  # seconds that "now" means
SAMPLES = 4_096


@dataclass(frozen=True, slots=True)
class Done:
    """A finished request. Times in seconds of the real clock."""

    at: float
    prompt_tokens: int
    cached_tokens: int
    first_token: float


class Blocks:
    """Depths in blocks by worker, as policies take them."""

    def __init__(self, scores: dict[str, int]) -> None:
        self._scores = scores

    def scores(self) -> dict[str, int]:
        """Leading blocks that each worker holds."""
        return self._scores


class Contender:
    """A policy, its engines, and how they fare."""

    def __init__(
        self,
        router: Dispatcher,
        urls: Sequence[str],
        model: str,
        block_size: int,
        client: AsyncClient,
    ) -> None:
        self.router = router  # its workers are the names under which the service knows the engines
        self.model = model
        self.failed = 0
        self.failure: str | None = None  # the last one
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.done = 0
        self.lookups = 0
        self.lookup_times: deque[float] = deque(maxlen=SAMPLES)  # seconds
        self._urls = list(urls)
        self._block_size = block_size
        self._client = client
        self._recent: deque[Done] = deque()

    @property
    def name(self) -> str:
        """The policy's name."""
        return self.router.name

    async def send(self, session: aiohttp.ClientSession, tokens: list[int], output: int) -> None:
        """Route one request, and see it through."""
        prompt = Prompt(len(tokens), content_hashes(tokens, self._block_size), self._block_size)
        try:
            sent = self.router.dispatch(prompt, await self._look_up(prompt))
        except KvatlasError as error:
            self._fail(str(error))
            return
        url = self._urls[sent.engine]
        body = {"prompt": tokens, "max_tokens": max(output, 1), "stream": True}
        body["stream_options"] = {"include_usage": True}
        began = time.monotonic()
        try:
            first, usage = await self._complete(session, url, body, sent)
        except aiohttp.ClientResponseError as error:
            self._fail(f"{url} returned status {error.status}: {error.message}")
            return
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            self._fail(f"{url}: {str(error) or type(error).__name__}")
            return
        finally:
            self.router.finished(sent)
        self._count(Done(time.monotonic(), len(tokens), usage, first - began))

    async def _look_up(self, prompt: Prompt) -> Depths:
        if not self.router.uses_index:
            return Blocks({})
        began = time.perf_counter()
        answer = await self._client.query(content_hashes=prompt.content_hashes, model=self.model)
        self.lookup_times.append(time.perf_counter() - began)
        self.lookups += 1
        return Blocks(answer.scores())

    async def _complete(
        self, session: aiohttp.ClientSession, url: str, body: dict[str, object], sent: Dispatched
    ) -> tuple[float, int]:
        """When the first token came, and how many tokens of the prompt were cached."""
        first, cached = 0.0, 0
        async with session.post(f"{url}/v1/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                if not first:
                    first = time.monotonic()
                    self.router.first_token(sent)
                if b'"usage": {' in line or b'"usage":{' in line:
                    usage = json.loads(line[6:])["usage"]
                    cached = usage["prompt_tokens_details"]["cached_tokens"]
        if not first:
            raise ValueError("an answer without a token")
        return first, cached

    def _fail(self, why: str) -> None:
        self.failed += 1
        self.failure = why

    def _count(self, done: Done) -> None:
        self.done += 1
        self.prompt_tokens += done.prompt_tokens
        self.cached_tokens += done.cached_tokens
        self._recent.append(done)

    def recent(self) -> list[Done]:
        """Requests that ended just now."""
        since = time.monotonic() - WINDOW
        while self._recent and self._recent[0].at < since:
            self._recent.popleft()
        return list(self._recent)


async def settle(tasks: set[asyncio.Task[None]], timeout: float) -> None:
    """Wait for requests under way, and give up those that take longer than `timeout` seconds."""
    if not tasks:
        return
    _, late = await asyncio.wait(tasks, timeout=timeout)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
