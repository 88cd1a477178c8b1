"""A trace sent to a router as chats, each request when it is due, and what a client sees of each.

A request is due at its time in the trace, or, if it waits for others, its pause after the last of their answers: agents
are slow if their router is.
"""

from __future__ import annotations

import asyncio
import functools
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp

from kvatlas.sim.trace import TRACE_BLOCK, TraceRequest

from .engines import MODEL

PATIENCE = 900.0  # seconds for one answer
_LETTERS = "eeeeetttaaooiinnsshhrrddllcumwfgypbvk        "


@functools.lru_cache(maxsize=200_000)
def block_text(number: int, tokens: int) -> str:
    """The text of one block of a trace: letters that follow from its number alone, a token each."""
    return "".join(random.Random(number).choices(_LETTERS, k=tokens))


def text_of(request: TraceRequest, block: int = TRACE_BLOCK) -> str:
    """The prompt of a request: equal blocks give equal text."""
    text = "".join(block_text(number, block) for number in request.hash_ids)[: request.input_length]
    return text + "x" * (request.input_length - len(text))


@dataclass(slots=True)
class ClientView:
    """A client's view of the requests of one turn. Times in seconds of the engines' clock, from when each was due."""

    sent: int = 0
    first_token: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    failures: dict[str, int] = field(default_factory=dict)

    def fail(self, why: str) -> None:
        """Count a request without a whole answer, by its reason."""
        self.failures[why] = self.failures.get(why, 0) + 1

    def as_dict(self) -> dict[str, Any]:
        """The view as plain data, for JSON."""
        return asdict(self)


async def replay(
    url: str, requests: Sequence[TraceRequest], speed: float, headers: dict[str, str], block: int = TRACE_BLOCK
) -> ClientView:
    """Send each request when it is due, and wait for all answers. Ids stand for `block` tokens."""
    seen = ClientView()
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        loop = asyncio.get_running_loop()
        began = time.monotonic() + 0.5
        ends: dict[str | int, asyncio.Future[float]] = {
            each.id: loop.create_future() for each in requests if each.id is not None
        }

        async def one(request: TraceRequest) -> None:
            due = began + (request.timestamp - requests[0].timestamp) / 1000 / speed
            if request.after:
                due = max([await ends[each.id] + each.delay / 1000 / speed for each in request.after])
            await asyncio.sleep(max(due - time.monotonic(), 0))
            its = headers if request.session_id is None else {**headers, "x-session-id": str(request.session_id)}
            seen.sent += 1
            await _send(session, url, _body(request, block), due, speed, its, seen)
            if request.id is not None:
                ends[request.id].set_result(time.monotonic())

        await asyncio.gather(*(one(request) for request in requests))
    return seen


def _body(request: TraceRequest, block: int) -> bytes:
    return json.dumps(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": text_of(request, block)}],
            "max_tokens": max(request.output_length, 1),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()


async def _send(
    session: aiohttp.ClientSession,
    url: str,
    body: bytes,
    due: float,
    speed: float,
    headers: dict[str, str],
    seen: ClientView,
) -> None:
    first = 0.0
    usage: dict[str, Any] = {}
    headers = {"content-type": "application/json", **headers}
    try:
        async with session.post(f"{url}/v1/chat/completions", data=body, headers=headers) as answer:
            if answer.status != 200:
                seen.fail(f"status {answer.status}")
                return
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                if not first and b'"content"' in line:
                    piece = json.loads(line[6:])
                    if piece.get("choices") and piece["choices"][0]["delta"].get("content"):
                        first = time.monotonic()
                if b'"usage"' in line and (found := json.loads(line[6:]).get("usage")):
                    usage = found
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        seen.fail(type(error).__name__)
        return
    if not first or not usage:
        seen.fail("an answer without a token" if not first else "an answer without usage")
        return
    seen.first_token.append((first - due) * speed)
    seen.whole.append((time.monotonic() - due) * speed)
    seen.prompt_tokens += usage["prompt_tokens"]
    seen.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
