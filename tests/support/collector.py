"""A collector of spans by OTLP, over HTTP with protobuf."""

from __future__ import annotations

import http.server
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

SERVER, CLIENT = 2, 3
"""The kinds of spans (`opentelemetry/proto/trace/v1/trace.proto`)."""


@dataclass
class Span:
    """A span as it came, with its ids in hexadecimal."""

    trace: str
    id: str
    parent: str
    state: str
    name: str
    kind: int
    start: int
    end: int
    attributes: dict[str, Any]
    events: list[str]
    status: int  # 2 for an error
    resource: dict[str, Any]


@dataclass
class Collector:
    """A collector at a port of its own; use as a context manager. It answers with `status`."""

    status: int = 200
    spans: list[Span] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def of_kind(self, kind: int) -> list[Span]:
        return [span for span in self.spans if span.kind == kind]

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                names = {name.lower(): value for name, value in self.headers.items()}
                collector.requests.append((self.path, names, body))
                if collector.status == 200:
                    collector.spans += spans_of(body)
                self.send_response(collector.status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name is the base's
                pass

        return Handler


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message of protobuf: numbers, and integers, doubles as 8 bytes, or bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        match key & 7:
            case 0:
                yield key >> 3, varint()
            case 2:
                length = varint()
                at += length
                yield key >> 3, data[at - length : at]
            case 1 | 5 as wire:
                length = 8 if wire == 1 else 4
                at += length
                yield key >> 3, data[at - length : at]
            case other:
                raise ValueError(f"wire type {other}")


def last(data: bytes, number: int, default: Any) -> Any:
    """The last value of a field."""
    return next((value for found, value in reversed(list(fields(data))) if found == number), default)


def attributes_of(data: bytes, number: int) -> dict[str, Any]:
    """The attributes in a repeated field."""
    pairs = [value for found, value in fields(data) if found == number]
    return {last(pair, 1, b"").decode(): value_of(last(pair, 2, b"")) for pair in pairs}


def value_of(data: bytes) -> Any:
    for number, value in fields(data):
        match number:
            case 1:
                return value.decode()
            case 2:
                return bool(value)
            case 3:
                return value
            case 4:
                return struct.unpack("<d", value)[0]
            case _:
                raise ValueError(f"a value of kind {number}")
    return None


def spans_of(request: bytes) -> list[Span]:
    """The spans of an `ExportTraceServiceRequest`."""
    found: list[Span] = []
    for _, resource_spans in fields(request):
        resource = attributes_of(last(resource_spans, 1, b""), 1)
        for scope in (value for number, value in fields(resource_spans) if number == 2):
            found += (span_of(value, resource) for number, value in fields(scope) if number == 2)
    return found


def span_of(data: bytes, resource: dict[str, Any]) -> Span:
    """A span of a process with these attributes."""
    return Span(
        trace=last(data, 1, b"").hex(),
        id=last(data, 2, b"").hex(),
        parent=last(data, 4, b"").hex(),
        state=last(data, 3, b"").decode(),
        name=last(data, 5, b"").decode(),
        kind=last(data, 6, 0),
        start=struct.unpack("<Q", last(data, 7, bytes(8)))[0],
        end=struct.unpack("<Q", last(data, 8, bytes(8)))[0],
        attributes=attributes_of(data, 9),
        events=[last(value, 2, b"").decode() for number, value in fields(data) if number == 11],
        status=last(last(data, 15, b""), 3, 0),
        resource=resource,
    )
