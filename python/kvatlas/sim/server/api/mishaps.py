"""Injected faults of an HTTP answer: refused, never sent, cut short, not HTTP, slow, or early."""

from __future__ import annotations

import asyncio
import random

from aiohttp import web

from kvatlas.sim.server.api.bodies import Handler, error_response
from kvatlas.sim.server.engine import ServedEngine
from kvatlas.sim.server.faults import MISHAPS

_GARBAGE = b"\x15\x03\x01\x00\x02\x02\x16 what is this\r\n\r\n"
_PIECE = 64  # bytes of a slow answer at a time
CUT = "cut"
"""Key in a request's mapping: number of events after which the streamed answer is cut."""
SLOW = "slow"
"""Key in a request's mapping: seconds between two events of the streamed answer."""
EARLY = "early"
"""Key in a request's mapping: True if the streamed answer begins before the prompt is computed."""


def concerns(request: web.Request) -> bool:
    """True if a request asks for a model's answer; only answers of this kind have injected faults."""
    return request.method == "POST" and request.path.startswith("/v1/")


class Mishaps:
    """Injector of faults, drawn at random, into the HTTP answers of an engine."""

    def __init__(self, engine: ServedEngine) -> None:
        self._engine = engine
        self._random = random.Random(f"{engine.config.seed}/{engine.config.name}/http")

    async def answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request by `handler`, with a fault if one is drawn for it."""
        name = self._draw()
        if name is None:
            return await handler(request)
        self._engine.counts[name] += 1
        faults = self._engine.faults
        if name == "http_refuse":
            refusal = error_response(503, "the engine has too much to do", "service_unavailable")
            refusal.headers["Retry-After"] = str(faults.http_retry_after)
            return refusal
        if name == "http_hang":
            await asyncio.sleep(3600)  # until the client is gone, which cancels this
            return _cut(request)
        if name in ("http_die_before", "http_garbage"):
            await request.read()
            if name == "http_garbage" and request.transport is not None:
                request.transport.write(_GARBAGE)
            return _cut(request, abort=name == "http_die_before")
        if name == "http_early":
            request[EARLY] = True
            return await handler(request)
        if name == "http_die_after":
            request[CUT] = 2
        else:
            request[SLOW] = faults.http_slow_seconds
        response = await handler(request)
        if not isinstance(response, web.Response) or response.prepared:
            return response  # streamed: it has seen to it
        return await self._whole(request, response)

    def _draw(self) -> str | None:
        faults = self._engine.faults
        if not any(getattr(faults, name) for name in MISHAPS):
            return None
        left = self._random.random()
        for name in MISHAPS:
            left -= getattr(faults, name)
            if left < 0:
                return name
        return None

    async def _whole(self, request: web.Request, response: web.Response) -> web.StreamResponse:
        """Send a whole (not streamed) answer with a fault: in pieces, slowly, or only half of it."""
        body = response.body if isinstance(response.body, bytes) else b""
        sent = web.StreamResponse(status=response.status, headers={"Content-Type": "application/json"})
        sent.content_length = len(body)
        await sent.prepare(request)
        if CUT in request:
            await sent.write(body[: len(body) // 2])
            return _cut(request, sent)
        for start in range(0, len(body), _PIECE):
            await sent.write(body[start : start + _PIECE])
            await asyncio.sleep(request[SLOW])
        await sent.write_eof()
        return sent


def _cut(
    request: web.Request, response: web.StreamResponse | None = None, *, abort: bool = False
) -> web.StreamResponse:
    """Close the connection of a request. Bytes already written may still be sent, unless `abort`."""
    if (transport := request.transport) is not None:
        if abort:
            transport.abort()
        else:
            transport.close()
    return response if response is not None else web.Response()


def cut(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Close the connection of a request in the middle of a streamed answer."""
    return _cut(request, response)
