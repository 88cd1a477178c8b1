"""Pulls between simulated engines over TCP: the consumer asks for blocks at a port of the source.

A question is a line of JSON: the consumer's name, the names of a prompt's chunks, and the number of leading chunks that
the consumer has itself. The answer has the number of leading chunks in the source's host memory, and the seconds to
send those that the consumer lacks. No KV data is sent. A paused engine leaves questions open, as a frozen process does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass

from kvatlas.sim.loads import PullAnswer
from kvatlas.sim.offload import HANDSHAKE, REFUSED, SILENT, Offload
from kvatlas.sim.server.transfer import RemoteSource
from kvatlas.sim.transfers import Transfer

_MOST = 64 << 20  # bytes of a question, enough for the names of millions of blocks


@dataclass(frozen=True, slots=True)
class AnsweredPull:
    """Answer of a peer, received before the request is queued, as a `PullSource` without delay."""

    held: Container[int]
    seconds: float

    def answer(self, consumer: object, now: float) -> PullAnswer:
        """Return the chunks that the peer holds, without delay (see `PullSource`)."""
        return PullAnswer(self.held, 0.0)

    def send(self, consumer: object, transfer: Transfer, tokens: int, now: float) -> float:
        """Time at which pulled blocks arrive: `now` plus the seconds that the peer's answer gives."""
        return now + self.seconds


class PullClient:
    """Client with which one rank, the consumer, asks its peers for blocks to pull."""

    def __init__(self, name: str, offload: Offload, speed: float) -> None:
        """Create a client. `name`: name of the consumer. `speed`: virtual seconds per real second."""
        self._name, self._offload, self._speed = name, offload, speed
        self._spoken: set[tuple[str, int]] = set()
        self._is_broken = False

    async def ask(self, source: RemoteSource, chunks: Sequence[int], own: int) -> AnsweredPull | None:
        """Ask a peer which leading chunks of a prompt can be pulled.

        If the peer does not answer, returns None after the time that a real engine would wait. `chunks`: names of the
        prompt's chunks. `own`: number of leading chunks that the consumer itself has.
        """
        self._offload.counters.pulls += 1
        limit = HANDSHAKE
        if not self._is_broken:
            where = source.host, source.port
            spoken = where in self._spoken
            limit = SILENT if spoken else HANDSHAKE
            try:
                async with asyncio.timeout(limit / self._speed):
                    held, seconds = await self._exchange(source, chunks, own)
                self._spoken.add(where)
                connect = 0.0 if spoken else self._offload.config.pull.connect
                return AnsweredPull(frozenset(chunks[:held]), seconds + connect)
            except (OSError, ValueError, EOFError):
                limit = REFUSED
            except TimeoutError:
                self._is_broken = not spoken
                limit = 0.0  # that time has passed
        self._offload.counters.pulls_failed += 1
        await asyncio.sleep(limit / self._speed)
        return None

    async def _exchange(self, source: RemoteSource, chunks: Sequence[int], own: int) -> tuple[int, float]:
        reader, writer = await asyncio.open_connection(source.host, source.port, limit=_MOST)
        try:
            question = {"consumer": self._name, "chunks": [f"{name:x}" for name in chunks], "own": own}
            writer.write(json.dumps(question).encode() + b"\n")
            await writer.drain()
            line = await reader.readline()
            if not line:
                raise EOFError("no answer")
            answer = json.loads(line)
            return int(answer["held"]), float(answer["seconds"])
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class PullPort:
    """Server with which one rank, the source, answers peers that ask for blocks to pull."""

    def __init__(
        self, answer: Callable[[str, list[int], int], tuple[int, float]], ready: Callable[[], Awaitable[bool]]
    ) -> None:
        """Create a server. `answer` returns the number of leading chunks held, and the seconds to send them.

        The arguments of `answer` are the consumer's name, the names of the prompt's chunks, and the number of leading
        chunks that the consumer has; the seconds are for the other chunks. `ready` is awaited before each answer; False
        closes the connection without an answer.
        """
        self._answer, self._ready = answer, ready
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> None:
        """Listen on a port for questions of peers. Raises `OSError` if the port is taken."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_MOST)

    async def close(self) -> None:
        """Stop listening. Open questions of peers are not answered."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            question = json.loads(await reader.readline())
            if not await self._ready():
                return
            held, seconds = self._answer(
                str(question["consumer"]), [int(name, 16) for name in question["chunks"]], int(question["own"])
            )
            writer.write(json.dumps({"held": held, "seconds": seconds}).encode() + b"\n")
            await writer.drain()
        except (OSError, ValueError, KeyError, TypeError):
            pass  # who asks nonsense, or leaves, gets no answer
        finally:
            writer.close()
