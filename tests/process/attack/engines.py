"""Hostile engines: what they do on bad days, and what of requests must never reach one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.process.attack.kinds.bodies import FORGED
from tests.process.attack.processes import Keys
from tests.support import engine as bad

MIB = 1 << 20


def _endless(beginning: bytes, piece: bytes, size: int = 60 * MIB) -> bad.Behaviour:
    """These bytes, and one piece again and again."""

    async def act(talk: bad.Talk) -> None:
        await talk.send(beginning)
        many = piece * (MIB // 4 // len(piece))
        for _ in range(size // len(many)):
            await talk.send(many)
        talk.writer.close()

    return act


_SSE = bad.head("200 OK", "transfer-encoding: chunked", kind="text/event-stream")
_JSON = bad.head("200 OK", "transfer-encoding: chunked")
_UNTIL_CLOSE = bad.head("200 OK")

BAD_DAYS: dict[str, bad.Behaviour] = {
    "well": bad.usual,
    "die": bad.die,
    "die in a stream": bad.stream(3, after=bad.die),
    "short": bad.raw(bad.head("200 OK", "content-length: 100")),
    "bad chunk": bad.raw(bad.head("200 OK", "transfer-encoding: chunked") + b"zz\r\n"),
    "too large": bad.raw(bad.head("413 Payload Too Large", "content-length: 0")),
    "garbage": bad.raw(b"garbage\r\n\r\n"),
    "slowly": bad.slowly(bad.head("200 OK", "content-length: 2") + b"{}", pause=0.05),
    "interim answers": _endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "hints": _endless(b"", b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"),
    "a head without end": _endless(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
    "extensions": _endless(_SSE + b"1;", b"a=b;"),
    "trailers": _endless(_SSE + b"0\r\n", b"a: b\r\n"),
    "comments": _endless(_SSE, bad.chunk(b": nothing\n\n")),
    "one line": _endless(_SSE, bad.chunk(b"data: x")),
    "usage": _endless(_UNTIL_CLOSE, b'"usage":{'),
    "usage in a stream": _endless(_SSE, bad.chunk(b'data: {"usage":{')),
    "nested": _endless(_UNTIL_CLOSE, b"["),
    "a long refusal": _endless(bad.head("400 Bad Request"), b'{"error":{"":[[],[],{}]}},'),
    "a denial": _endless(bad.head("404 Not Found"), b'{"message":"model not found"},'),
    "late": bad.stream(3, pause=0.4),
}

_FILLER = b"[" + b'{"":[]},' * (15 * MIB // 8) + b"0]"
_LISTED = b",".join(b'{"id": "m%d"}' % number for number in range(200_000))
_LONG_WORDS = {
    "/v1/models": b'{"data": [{"id": "sim-model"}, %s], "more": %s}' % (_LISTED, _FILLER),
    "/server_info": b'{"kv_events": %s}' % _FILLER,
    "/get_server_info": b'{"kv_events": %s}' % _FILLER,
    "/kv_event_sources": b'{"0": %s}' % _FILLER,
    "/version": b'{"version": "0.33.0", "more": %s}' % _FILLER,
    "/is_sleeping": b'{"is_sleeping": false, "more": %s}' % _FILLER,
    "/metrics": b"".join(b'vllm:num_requests_running{engine="%d"} 1\n' % rank for rank in range(300_000)),
}


def long_words(engine: bad.Engine) -> None:
    """Makes an engine say 15 MiB wherever it is asked about itself."""
    for path, body in _LONG_WORDS.items():
        engine.answers[path] = bad.raw(bad.head("200 OK", f"content-length: {len(body)}") + body)


_FORBIDDEN = (
    (FORGED.encode(), "a name of a picture that the router did not write"),
    (
        rb'"(?:kv_transfer_params|bootstrap_(?:host|port|room)|ec_transfer_params|data_parallel_rank)"',
        "a field of its own",
    ),
)
_PATH = re.compile(r"\.\.|;|\\|%2e|%5c|%252e|//", re.IGNORECASE)
_FIELDS = ("x-original-url", "x-rewrite-url", "x-http-method-override", "x-http-method", "x-method-override")


def forbidden(engines: list[bad.Engine], keys: Keys) -> Iterator[str]:
    """Words on all that has reached engines since the last look, and must not; each look forgets what it saw."""
    secrets = [key.encode() for key in (keys.ask, keys.admin)]
    for engine in engines:
        seen, engine.received[:] = engine.received[:], []
        for request in seen:
            lines = "\n".join(f"{name}: {value}" for name, value in request.headers.items())
            head = f"{request.path}\n{lines}".encode()
            body = request.body.replace(b"\\u006b", b"k").replace(b"\\u006B", b"k")
            if any(secret in head or secret in body for secret in secrets):
                yield f"a key of the router reached an engine at {request.route}"
            if _PATH.search(request.path):
                yield f"a path in disguise reached an engine: {request.path[:100]}"
            for name in _FIELDS:
                if name in request.headers:
                    yield f"{name} reached an engine"
            for pattern, what in _FORBIDDEN:
                if (found := re.search(pattern, body)) is not None:
                    yield f"{what} reached an engine at {request.route}: {found[0]!r}"
