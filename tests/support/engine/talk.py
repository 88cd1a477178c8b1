"""A request as an engine got it, and the connection that waits for the answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .server import Engine


@dataclass
class EngineRequest:
    """A request as an engine got it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float = field(default_factory=time.monotonic)

    @property
    def route(self) -> str:
        """The path without its query."""
        return self.path.partition("?")[0]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Talk:
    """One request of a connection, with the means to answer it."""

    engine: Engine
    request: EngineRequest
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def abort(self) -> None:
        """The connection is reset, as when the process dies."""
        self.writer.transport.abort()

    async def gone(self) -> None:
        """Until the other side has closed, with or without a reset."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(4096):
                pass


Behaviour = Callable[[Talk], Awaitable[None]]
"""The way in which an engine answers a request."""
