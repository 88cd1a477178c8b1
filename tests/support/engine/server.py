"""An engine's HTTP by hand, over real sockets. A thread of asyncio serves all engines of a process."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any, Self

from kvatlas.sim.server import Publisher
from kvatlas.sim.server.ports import free_block

from .about import source
from .behaviour import MODEL, reply, usual
from .talk import Behaviour, EngineRequest, Talk

NOT_FOUND = reply("404 Not Found", {"detail": "Not Found"})
OWN = (
    "/health",
    "/metrics",
    "/v1/models",
    "/kv_event_sources",
    "/server_info",
    "/get_server_info",
    "/version",
    "/is_sleeping",
)
"""The paths of the router's own questions."""


class Engine:
    """A server at a port of its own. All that it does may be changed at any time.

    `answers` has what it says by the path: a behaviour, a dict or list as JSON, a text, or an int for a status. What
    else is posted is up to `behaviour`, and what else is asked for is not found. An engine that is made with answers
    says nothing besides.
    """

    def __init__(
        self,
        answers: dict[str, Any] | None = None,
        *,
        behaviour: Behaviour | None = None,
        model: str = MODEL,
        key: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        usual_answers = {
            "/v1/models": self._models,
            "/health": self._health,
            "/kv_event_sources": self._sources,
            "/metrics": "",
        }
        self.answers = usual_answers if answers is None else answers
        self.behaviour = behaviour or (usual if answers is None else NOT_FOUND)
        self.eager: Behaviour | None = None  # answers POST requests after reading only the head
        self.dies_of: bytes | None = None  # text in a path or body that has it close the connection without an answer
        self.publishers: dict[int, Publisher] = {}  # of its events, by the rank
        self.model = model
        self.key = key
        self.tls = tls
        self.healthy = True
        self.close_after: float | None = None  # seconds that a connection may be idle
        self.received: list[EngineRequest] = []
        self.given_up: list[float] = []
        self.connections = 0
        self._loop = _loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._fresh: set[socket.socket] = set()  # accepted, and not read yet
        self._listener: socket.socket | None = None
        # No port of the system's own pool: it must be there still when the engine has been away.
        self.port = free_block("127.0.0.1")
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listens, at the port that it had."""

        async def begin() -> None:
            made = self._listener = socket.create_server(("127.0.0.1", self.port), backlog=1024)
            made.setblocking(False)
            self._loop.add_reader(made, self._accept, made)

        asyncio.run_coroutine_threadsafe(begin(), self._loop).result(60)

    def stop(self) -> None:
        """Dies: the port closes, and all connections are reset."""

        async def end() -> None:
            if self._listener is not None:
                self._loop.remove_reader(self._listener)
                self._listener.close()
                self._listener = None
            for writer in list(self._writers):
                writer.transport.abort()
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            while self._fresh:
                self._fresh.pop().close()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(60)

    def asked(self) -> int:
        """Requests for generation so far."""
        return sum(1 for one in self.received if one.method == "POST")

    @property
    def last(self) -> EngineRequest:
        """The last request for generation."""
        return [one for one in self.received if one.method == "POST"][-1]

    def passed_on(self) -> int:
        """Requests so far that are not the router's own questions."""
        return sum(1 for one in self.received if one.method != "GET" or one.path not in OWN)

    def times(self, path: str) -> int:
        """Requests so far for a path."""
        return sum(1 for one in self.received if one.route == path)

    def _run(self, what: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _accept(self, listener: socket.socket) -> None:
        try:
            made, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._fresh.add(made)
        self._run(self._serve(made))

    async def _serve(self, made: socket.socket) -> None:
        reader = asyncio.StreamReader(limit=1 << 20)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, made, ssl=self.tls)
        except OSError:
            return  # no TLS
        finally:
            self._fresh.discard(made)
        writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
        self._writers.add(writer)
        self.connections += 1
        try:
            while True:
                try:
                    request = await asyncio.wait_for(_read_head(reader), self.close_after)
                except TimeoutError:
                    break
                if request is None:
                    break
                if self.eager is not None and request.method == "POST":
                    self.received.append(request)
                    await self.eager(Talk(self, request, reader, writer))
                    break
                request.body = await read_body(reader, request.headers)
                self.received.append(request)
                if self.dies_of is not None and self.dies_of in request.path.encode() + request.body:
                    break
                await self._answer(Talk(self, request, reader, writer))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, RuntimeError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, talk: Talk) -> None:
        said = self.answers.get(talk.request.route)
        if self.key is not None and talk.request.headers.get("authorization") != f"Bearer {self.key}":
            said = 401
        if said is None:
            said = self.behaviour if talk.request.method == "POST" else NOT_FOUND
        elif isinstance(said, int):
            said = reply(f"{said} {HTTPStatus(said).phrase}", b"")
        elif isinstance(said, str):
            said = reply("200 OK", said.encode(), kind="text/plain")
        await (said if callable(said) else reply("200 OK", said))(talk)

    async def _models(self, talk: Talk) -> None:
        card = {"id": self.model, "object": "model", "owned_by": "vllm", "max_model_len": 10_000_000}
        await reply("200 OK", {"object": "list", "data": [card]})(talk)

    async def _health(self, talk: Talk) -> None:
        await reply("200 OK" if self.healthy else "503 Service Unavailable", b"")(talk)

    async def _sources(self, talk: Talk) -> None:
        known = {str(rank): source(its.endpoint, its.replay_endpoint) for rank, its in self.publishers.items()}
        await (reply("200 OK", known) if known else NOT_FOUND)(talk)


async def _read_head(reader: asyncio.StreamReader) -> EngineRequest | None:
    try:
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = text.rstrip("\r\n").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return EngineRequest(method, path, headers, b"")


async def read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "chunked" not in headers.get("transfer-encoding", ""):
        return await reader.readexactly(int(headers.get("content-length", "0")))
    body = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readline()
    while (await reader.readline()).strip():
        pass
    return body


_running: list[asyncio.AbstractEventLoop] = []


def _loop() -> asyncio.AbstractEventLoop:
    """The loop of all engines of this process."""
    if not _running:
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="engines", daemon=True).start()
        _running.append(loop)
    return _running[0]
