"""Fake engines over real sockets that do what engines do on bad days. A thread of asyncio serves all of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Self

from kvatlas.sim.server import Publisher
from kvatlas.sim.server.ports import free_block

MODEL = "model"


@dataclass
class EngineRequest:
    """A request as an engine got it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float = field(default_factory=time.monotonic)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Talk:
    """One request of a connection, for whoever answers it."""

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


def head(status: str = "200 OK", *fields: str, kind: str = "application/json") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", f"content-type: {kind}", *fields, "", ""]).encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(about: Any) -> bytes:
    return b"data: " + (about if isinstance(about, bytes) else json.dumps(about).encode()) + b"\n\n"


def delta(text: str, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": MODEL, "choices": [choice]}


def reply(status: str, body: Any, *fields: str, kind: str = "application/json") -> Behaviour:
    """An answer as a whole."""

    async def act(talk: Talk) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await talk.send(head(status, *fields, f"content-length: {len(data)}", kind=kind) + data)

    return act


def whole(text: str = "ok", prompt: int = 10, cached: int = 0) -> Behaviour:
    """A finished chat completion."""
    usage = {"prompt_tokens": prompt, "completion_tokens": 1, "total_tokens": prompt + 1}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    details = {"prompt_tokens_details": {"cached_tokens": cached}}
    answer = {"id": "chatcmpl-1", "object": "chat.completion", "model": MODEL, "choices": [choice]}
    return reply("200 OK", answer | {"usage": usage | details})


def stream(tokens: int = 5, pause: float = 0.0, after: Behaviour | None = None) -> Behaviour:
    """A streamed answer; `after` takes the place of its end."""

    async def act(talk: Talk) -> None:
        await talk.send(head("200 OK", "transfer-encoding: chunked", kind="text/event-stream"))
        for number in range(tokens):
            await talk.send(chunk(event(delta(f"t{number} "))))
            if pause:
                await asyncio.sleep(pause)
        if after is not None:
            await after(talk)
            return
        usage = {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens}
        last = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": usage}
        ends = event(delta("", "stop")) + event(last) + event(b"[DONE]")
        await talk.send(chunk(ends) + b"0\r\n\r\n")

    return act


async def die(talk: Talk) -> None:
    """Dies without a byte of an answer."""
    talk.abort()


async def hang(talk: Talk) -> None:
    """Takes the request and says nothing, until the other side has had enough."""
    await talk.gone()
    talk.engine.given_up.append(time.monotonic())


def slowly(data: bytes, pause: float = 0.01, piece: int = 1) -> Behaviour:
    """The behaviour of an engine that answers some bytes at a time."""

    async def act(talk: Talk) -> None:
        for at in range(0, len(data), piece):
            await talk.send(data[at : at + piece])
            await asyncio.sleep(pause)

    return act


def raw(data: bytes, *, close: bool = True) -> Behaviour:
    """These bytes, and the end of the connection."""

    async def act(talk: Talk) -> None:
        await talk.send(data)
        if close:
            talk.writer.close()

    return act


async def usual(talk: Talk) -> None:
    """An answer as the request wants it, streamed or not.

    What is no JSON object with messages or a prompt is refused.
    """
    try:
        asked = json.loads(talk.request.body)
        if not isinstance(asked, dict):
            raise TypeError("not an object")
        if not isinstance(asked.get("messages", asked.get("prompt", asked.get("input"))), list | str):
            raise TypeError("neither messages nor prompt")
        if asked.get("model", talk.engine.model) != talk.engine.model:
            error = {"message": f"The model `{asked['model']}` does not exist.", "type": "NotFoundError", "code": 404}
            await reply("404 Not Found", {"error": error})(talk)
            return
    except (ValueError, TypeError, RecursionError) as error:
        said = {"message": f"the engine says: {error}", "type": "BadRequestError", "code": 400}
        await reply("400 Bad Request", {"error": said})(talk)
        return
    await (stream(4) if asked.get("stream") is True else whole())(talk)


class Engine:
    """A server at a port of its own. `behaviour` may be changed at any time; it answers POST requests."""

    def __init__(self, behaviour: Behaviour = usual, *, model: str = MODEL, tls: ssl.SSLContext | None = None) -> None:
        self.behaviour = behaviour
        self.eager: Behaviour | None = None  # answers POST requests of which only the head was read
        self.dies_of: bytes | None = None  # text in a path or body that has it close the connection without an answer
        self.tls = tls
        self.model = model
        self.healthy = True
        self.close_after: float | None = None  # seconds that a connection may be idle
        self.received: list[EngineRequest] = []
        self.given_up: list[float] = []
        self.connections = 0
        self.metrics = ""
        self.version: str | None = None  # of vLLM, which it says that it is
        self.server_info: Behaviour | None = None  # answers GET /server_info; None for a server without it
        self.publishers: dict[int, Publisher] = {}  # of its events, by the rank
        self._loop = _loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._fresh: set[socket.socket] = set()  # accepted, and nobody reads from them yet
        self._listener: socket.socket | None = None
        # No port of the system's own pool: it must be there still when the engine has been away.
        self.port = free_block("127.0.0.1")
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def publisher(self) -> Publisher | None:
        """The publisher of the events of rank 0."""
        return self.publishers.get(0)

    @publisher.setter
    def publisher(self, publisher: Publisher) -> None:
        self.publishers = {0: publisher}

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
        """Dies: nobody listens, all connections are reset."""

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
        own = ("/health", "/metrics", "/v1/models", "/kv_event_sources", "/server_info", "/get_server_info")
        return sum(1 for one in self.received if one.method != "GET" or one.path not in own)

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
        path = talk.request.path.partition("?")[0]
        if talk.request.method == "POST":
            await self.behaviour(talk)
        elif path == "/v1/models":
            card = {"id": self.model, "object": "model", "owned_by": "vllm", "max_model_len": 131072}
            await reply("200 OK", {"object": "list", "data": [card]})(talk)
        elif path == "/health":
            await reply("200 OK" if self.healthy else "503 Service Unavailable", b"")(talk)
        elif path == "/kv_event_sources" and self.publishers:
            about = {"enable_kv_cache_events": True, "publisher": "zmq", "buffer_steps": 10_000, "topic": ""}
            sources = {
                str(rank): about | {"endpoint": its.endpoint, "replay_endpoint": its.replay_endpoint}
                for rank, its in self.publishers.items()
            }
            await reply("200 OK", sources)(talk)
        elif path == "/version" and self.version is not None:
            await reply("200 OK", {"version": self.version})(talk)
        elif path == "/server_info" and self.server_info is not None:
            await self.server_info(talk)
        elif path == "/metrics":
            await talk.send(
                head("200 OK", f"content-length: {len(self.metrics)}", kind="text/plain") + self.metrics.encode()
            )
        else:
            await reply("404 Not Found", {"detail": "Not Found"})(talk)


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
