"""HTTP/2 by the frame, for clients that no library would be: RFC 9113, with header blocks without compression."""

from __future__ import annotations

import socket
import struct
from typing import Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
INITIAL_WINDOW_SIZE = 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def block(*fields: tuple[str, str]) -> bytes:
    """Fields of a header, as literals that are not indexed."""

    def text(value: str) -> bytes:
        data = value.encode()
        assert len(data) < 127
        return bytes([len(data)]) + data

    return b"".join(b"\x00" + text(name) + text(value) for name, value in fields)


class Connection:
    """A client that answers pings and acknowledges settings, and nothing else; use as a context manager."""

    def __init__(self, port: int, window: int = 65_535, timeout: float = 60.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = -1
        settings = struct.pack(">HI", INITIAL_WINDOW_SIZE, window)
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, settings))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(
        self, method: str, path: str, body: bytes = b"", *fields: tuple[str, str], authority: str | None = "127.0.0.1"
    ) -> int:
        """Send a request. Returns the number of its stream."""
        self.stream += 2
        to = [] if authority is None else [(":authority", authority)]
        own = [(":method", method), (":scheme", "http"), (":path", path), *to, *fields]
        flags = END_HEADERS | (0 if body else END_STREAM)
        data = frame(HEADERS, flags, self.stream, block(*own))
        if body:
            data += frame(DATA, END_STREAM, self.stream, body)
        self.socket.sendall(data)
        return self.stream

    def widen(self, stream: int, more: int) -> None:
        self.socket.sendall(frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", more)))

    def read(self) -> tuple[int, int, int, bytes] | None:
        """The next frame that is neither settings nor a ping: kind, flags, stream, payload; none at the end."""
        while True:
            head = self._exactly(9)
            if head is None:
                return None
            payload = self._exactly(int.from_bytes(head[:3], "big"))
            if payload is None:
                return None
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
            if kind in (SETTINGS, PING):
                if not flags & ACK:
                    self.socket.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
                continue
            return kind, flags, stream, payload

    def until(self, kind: int, stream: int) -> tuple[int, bytes]:
        """Flags and payload of the next frame of this kind on this stream."""
        while (got := self.read()) is not None:
            if got[0] == kind and got[2] == stream:
                return got[1], got[3]
        raise AssertionError(f"no frame of kind {kind} came on stream {stream}")

    def _exactly(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                return None
            data += piece
        return data
