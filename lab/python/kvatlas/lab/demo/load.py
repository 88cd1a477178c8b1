"""Load on a router: requests sent at their start times, and their outcomes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

import aiohttp

from kvatlas.lab.demo.config import MODEL
from kvatlas.sim import TraceRequest
from kvatlas.sim.server import prompt_tokens

_PATIENCE = 120.0  # seconds for one answer
_GRACE = 5.0  # seconds for those under way when the turn is over
_DECISION = "x-kvatlas-decision-us"


@dataclass(slots=True)
class Tally:
    """Counts and times of the sent requests. Times are in seconds of real time."""

    sent: int = 0
    failed: int = 0
    failure: str | None = None  # the last one
    prompt_tokens: int = 0
    cached_tokens: int = 0
    first_tokens: list[float] = field(default_factory=list)
    decisions: list[float] = field(default_factory=list)  # seconds that the router took to decide

    @property
    def done(self) -> int:
        """Number of answered requests."""
        return len(self.first_tokens)

    @property
    def in_flight(self) -> int:
        """Number of requests in progress."""
        return self.sent - self.done - self.failed

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that the engines had cached, from 0 to 1."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def first_token(self, quantile: float | None = None) -> float | None:
        """Mean time to the first token, or the given quantile of it, in seconds; None before the first one."""
        if not self.first_tokens:
            return None
        if quantile is None:
            return fmean(self.first_tokens)
        return sorted(self.first_tokens)[min(int(quantile * self.done), self.done - 1)]

    @property
    def decision(self) -> float | None:
        """Median duration of the router's decisions, in seconds; None if the router does not report it."""
        return median(self.decisions) if self.decisions else None

    def fail(self, why: str) -> None:
        """Count a failed request. `why`: reason of the failure."""
        self.failed += 1
        self.failure = why


class Load:
    """Sender of the requests of one policy's run to a router."""

    def __init__(self, url: str, tally: Tally, stop: Callable[[], bool]) -> None:
        self._url = url
        self._tally = tally
        self._stop = stop

    async def run(self, requests: Sequence[TraceRequest], seconds: float, speed: float) -> None:
        """Send all requests due within `seconds` on the engines' clock, then wait for the end of those in progress."""
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=_PATIENCE)
        tasks: set[asyncio.Task[None]] = set()
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            try:
                began = time.monotonic()
                for request in requests:
                    due = began + (request.timestamp - requests[0].timestamp) / 1000 / speed
                    if due - began > seconds or not await self._until(due):
                        break
                    self._tally.sent += 1
                    task = asyncio.create_task(self._send(session, request))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                await self._until(began + seconds)
            finally:
                if tasks:
                    _, late = await asyncio.wait(tasks, timeout=_GRACE)
                    for task in late:
                        task.cancel()
                    await asyncio.gather(*late, return_exceptions=True)

    async def _until(self, due: float) -> bool:
        """Wait until the time `due`. Returns False if the load is to stop."""
        while (wait := due - time.monotonic()) > 0:
            if self._stop():
                return False
            await asyncio.sleep(min(wait, 0.1))
        return not self._stop()

    async def _send(self, session: aiohttp.ClientSession, request: TraceRequest) -> None:
        tokens = prompt_tokens(request)
        body = {
            "model": MODEL,
            "prompt": tokens,
            "max_tokens": max(request.output_length, 1),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        tally, began, first, cached = self._tally, time.monotonic(), 0.0, 0
        try:
            async with session.post(f"{self._url}/v1/completions", json=body) as response:
                if response.status != 200:
                    tally.fail(f"status {response.status}: {(await response.text())[:300]}")
                    return
                if (took := response.headers.get(_DECISION)) is not None:
                    tally.decisions.append(float(took) / 1e6)
                async for line in response.content:
                    if not line.startswith(b"data: {"):
                        continue
                    first = first or time.monotonic()
                    if b'"error"' in line:
                        tally.fail(line.decode(errors="replace").strip()[:300])
                        return
                    if b'"usage": {' in line or b'"usage":{' in line:
                        cached = json.loads(line[6:])["usage"]["prompt_tokens_details"]["cached_tokens"]
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            tally.fail(str(error) or type(error).__name__)
            return
        if not first:
            tally.fail("an answer without a token")
            return
        tally.first_tokens.append(first - began)
        tally.prompt_tokens += len(tokens)
        tally.cached_tokens += cached
