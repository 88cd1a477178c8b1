"""Tools that the tests of the HTTP side share: the service in this process, and a client."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from kvatlas._native import Service

DEADLINE = 60.0
"""Long after which something that should happen has not, in seconds."""

MODEL = "m"


@contextlib.contextmanager
def running(streams: dict[str, Any] | None = None, **http: Any) -> Iterator[Service]:
    """A service on a port of its own."""
    settings = {"http": {"bind": "127.0.0.1:0"} | http, "streams": streams or {}, "log": {"level": "off"}}
    service = Service(json.dumps(settings))
    try:
        yield service
    finally:
        service.close()


@dataclass
class Answer:
    """An answer of the service, as it came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        code: str = self.json["code"]
        return code


class Connection:
    """One connection, over which anything can be sent."""

    def __init__(self, address: str, wrap: Any = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), DEADLINE)
        if wrap is not None:
            self.socket = wrap(self.socket)
        self._buffer = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def finish(self) -> None:
        """Says that nothing more will be sent."""
        # The service may have closed it already.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def ask(self, method: str, path: str, body: object = None, *, headers: dict[str, str] | None = None) -> Answer:
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = {"Host": "localhost", "Content-Length": str(len(data)), "Content-Type": "application/json"} | (
            headers or {}
        )
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{key}: {value}\r\n" for key, value in lines.items())
        self.send(head.encode() + b"\r\n" + data)
        return self.read(head=method == "HEAD")

    def read(self, *, head: bool = False) -> Answer:
        """The next answer; EOFError if the service has closed the connection instead."""
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        top, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        first, *lines = top.decode("latin-1").split("\r\n")
        headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        if head:
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            body = self._chunks()
        else:
            body = self._take(int(headers.get("content-length", 0)))
        return Answer(int(first.split()[1]), headers, body)

    def is_closed(self) -> bool:
        """True if the service closes the connection, without a further word, before the deadline."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def rest(self) -> bytes:
        """All that comes until the service closes the connection."""
        data = b""
        with contextlib.suppress(ConnectionError):
            while more := self.socket.recv(1 << 16):
                data += more
        return data

    def _chunks(self) -> bytes:
        body = b""
        while True:
            while b"\r\n" not in self._buffer:
                self._more()
            size, _, self._buffer = self._buffer.partition(b"\r\n")
            chunk = self._take(int(size, 16) + 2)[:-2]
            if not chunk:
                return body
            body += chunk

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._more()
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _more(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise EOFError
        self._buffer += data

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ask(address: str, method: str, path: str, body: object = None, *, headers: dict[str, str] | None = None) -> Answer:
    """One request on a connection of its own."""
    with Connection(address) as connection:
        return connection.ask(method, path, body, headers=headers)
