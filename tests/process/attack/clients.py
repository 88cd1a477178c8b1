"""Hostile clients of an HTTP port. Each does one nasty thing once, and leaves nothing open behind it.

What each is told does not matter here: that the process lives, forgets them, and goes on serving
those who have a key is what the attack checks. The tests of each subject say what the right answer is.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A port to attack, and the key that the attacker has, if any."""

    port: int
    key: str | None = None

    def head(self, method: str, path: str, *fields: str) -> bytes:
        """The head of a request, with its empty line."""
        own = [] if self.key is None else [f"Authorization: Bearer {self.key}"]
        return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *own, *fields, "", ""]).encode()

    def post(self, path: str, body: bytes, *fields: str) -> bytes:
        """A whole POST of JSON."""
        more = ("Content-Type: application/json", f"Content-Length: {len(body)}")
        return self.head("POST", path, *more, *fields) + body


Attack = Callable[[Target, random.Random], None]

CHAT = json.dumps({"model": "sim-model", "messages": [{"role": "user", "content": "hello"}]}).encode()
STREAMED = json.dumps(
    {"model": "sim-model", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
).encode()
PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/load_lora_adapter",
    "/v1/fine_tuning/jobs",
    "/explain",
    "/engines",
    "/engines/x/drain",
    "/peers/work",
    "/peers/requests",
    "/register",
    "/unregister",
    "/query",
    "/query_by_hash",
    "/dump",
    "/snapshot",
    "/digest",
    "/metrics",
    "/v1/../admin",
)
HOLD = 3.0  # seconds that a client sits on what it has


@contextlib.contextmanager
def connected(target: Target) -> Iterator[socket.socket]:
    """A connection; whatever becomes of it is no error."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", target.port), 10) as made:
        yield made


def drain(made: socket.socket, seconds: float = HOLD) -> None:
    """Reads until the other side closes or is silent."""
    made.settimeout(seconds)
    while made.recv(65536):
        pass


def silence(target: Target, choose: random.Random) -> None:
    """Many connections that say nothing."""
    with contextlib.ExitStack() as stack:
        for _ in range(choose.randrange(20, 200)):
            stack.enter_context(connected(target))
        time.sleep(HOLD)


def strangers(target: Target, choose: random.Random) -> None:
    """Many idle connections that have asked for what needs no key."""
    with contextlib.ExitStack() as stack:
        for _ in range(choose.randrange(20, 200)):
            made = stack.enter_context(connected(target))
            with contextlib.suppress(OSError):
                made.sendall(target.head("GET", "/health"))
        time.sleep(HOLD)


def large_body(target: Target, choose: random.Random) -> None:
    """Part of a very long body, and then nothing."""
    size = choose.choice((8 << 20, 59 << 20, 1 << 40))
    with connected(target) as made:
        made.sendall(
            target.head("POST", choose.choice(PATHS), "Content-Type: application/json", f"Content-Length: {size}")
        )
        made.settimeout(HOLD)
        for _ in range(min(size, 59 << 20) >> 20):
            made.sendall(b" " * (1 << 20))
        time.sleep(HOLD)


def slow_head(target: Target, choose: random.Random) -> None:
    """A head that comes a byte at a time."""
    with connected(target) as made:
        for byte in target.head("POST", choose.choice(PATHS), "X-Slow: " + "x" * 100):
            made.sendall(bytes([byte]))
            time.sleep(0.02)


def smuggle(target: Target, choose: random.Random) -> None:
    """Requests whose end two readers would see in different places."""
    fields = choose.choice(
        (
            ("Content-Length: 4", "Transfer-Encoding: chunked"),
            ("Content-Length: 4", "Content-Length: 5"),
            ("Transfer-Encoding: chunked, identity",),
            ("Transfer-Encoding : chunked",),
            ("Content-Length: +4",),
            ("Host: other.example", "Content-Length: 4"),
        )
    )
    with connected(target) as made:
        made.sendall(target.head("POST", choose.choice(PATHS), *fields) + b"0\r\n\r\nGET /dump HTTP/1.1\r\n\r\n")
        drain(made)


def methods(target: Target, choose: random.Random) -> None:
    """Methods that nobody should need."""
    with connected(target) as made:
        method = choose.choice(("TRACE", "CONNECT", "OPTIONS", "PROPFIND", "X" * 4000, "PUT", "DELETE"))
        made.sendall(target.head(method, choose.choice(PATHS), "Origin: https://evil.example", "Content-Length: 0"))
        drain(made)


def page_of_somebody(target: Target, choose: random.Random) -> None:
    """A request that a web page in somebody's browser can send without being asked first."""
    body = json.dumps({"url": "http://127.0.0.1:1", "name": "engine-0"}).encode()
    fields = ("Origin: https://evil.example", "Sec-Fetch-Site: cross-site", "Content-Type: text/plain")
    with connected(target) as made:
        made.sendall(target.head("POST", choose.choice(PATHS), f"Content-Length: {len(body)}", *fields) + body)
        drain(made)


def wrong_keys(target: Target, choose: random.Random) -> None:
    """Keys that are not the key."""
    with connected(target) as made:
        for _ in range(50):
            key = "".join(chr(choose.randrange(33, 127)) for _ in range(choose.choice((1, 18, 4000))))
            made.sendall(target.post("/v1/chat/completions", CHAT, f"Authorization: Bearer {key}"))
        drain(made)


def garbage(target: Target, choose: random.Random) -> None:
    """Bytes."""
    with connected(target) as made:
        start = choose.choice(
            (b"", b"GET ", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00", b"POST / HTTP/1.1\r\n")
        )
        made.sendall(start + choose.randbytes(choose.randrange(1, 20_000)))
        drain(made)


def not_read(target: Target, choose: random.Random) -> None:
    """A streamed answer that is asked for and never read."""
    with connected(target) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        made.sendall(target.post("/v1/chat/completions", STREAMED))
        time.sleep(HOLD * choose.random())


def mutation(target: Target, choose: random.Random) -> None:
    """A good request with some bytes changed, cut out or doubled."""
    data = bytearray(target.post(choose.choice(PATHS), CHAT))
    for _ in range(choose.randrange(1, 6)):
        at = choose.randrange(len(data))
        match choose.randrange(3):
            case 0:
                data[at] = choose.randrange(256)
            case 1:
                del data[at : at + choose.randrange(1, 20)]
            case _:
                data[at:at] = data[at : at + choose.randrange(1, 20)]
    with connected(target) as made:
        made.sendall(bytes(data))
        drain(made)


def half_close(target: Target, choose: random.Random) -> None:
    """A whole request, and then the end of this side."""
    with connected(target) as made:
        made.sendall(target.post(choose.choice(PATHS), CHAT))
        made.shutdown(socket.SHUT_WR)
        drain(made)


def reset(target: Target, choose: random.Random) -> None:
    """A client that is gone at some moment of its request."""
    data = target.post(choose.choice(PATHS), CHAT)
    with connected(target) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        made.sendall(data[: choose.randrange(len(data) + 1)])
        time.sleep(choose.random() / 10)


def deep(target: Target, choose: random.Random) -> None:
    """JSON that is nested too deep, or has numbers and strings beyond all bounds."""
    inner = choose.choice(
        (b"[" * 200_000, b'{"a":' * 100_000, b"1" * 1_000_000, b'"' + b"\\ud800" * 100_000 + b'"', b"1e" + b"9" * 5000)
    )
    with connected(target) as made:
        made.sendall(target.post(choose.choice(PATHS), b'{"model": "sim-model", "messages": ' + inner))
        drain(made)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2 (RFC 9113, 4.1)."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def http2_head(target: Target, method: str, path: str) -> bytes:
    """The header block of a request, without compression (RFC 7541, 6.2.2)."""
    fields = [(b":method", method.encode()), (b":scheme", b"http"), (b":path", path.encode())]
    fields += [(b":authority", b"127.0.0.1"), (b"content-type", b"application/json")]
    if target.key is not None:
        fields.append((b"authorization", b"Bearer " + target.key.encode()))
    return b"".join(b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields)


def no_window(target: Target, choose: random.Random) -> None:
    """HTTP/2 streams whose answers may not be sent, as the client gives them no window."""
    settings = frame(4, 0, 0, struct.pack(">HI", 4, 0))
    with connected(target) as made:
        made.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
        for number in range(choose.randrange(1, 100)):
            stream = 2 * number + 1
            if target.key is not None and choose.random() < 0.5:
                made.sendall(frame(1, 4, stream, http2_head(target, "POST", "/v1/chat/completions")))
                made.sendall(frame(0, 1, stream, STREAMED))
            else:
                path = choose.choice(("/health", "/ready", "/version", "/", "/ui", "/metrics", "/v1/models"))
                made.sendall(frame(1, 5, stream, http2_head(target, "GET", path)))
        time.sleep(HOLD)
        drain(made)


def rapid_reset(target: Target, choose: random.Random) -> None:
    """HTTP/2 streams that are ended as soon as they have begun (CVE-2023-44487)."""
    with connected(target) as made:
        made.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
        for number in range(choose.randrange(100, 2000)):
            stream = 2 * number + 1
            made.sendall(
                frame(1, 5, stream, http2_head(target, "GET", "/health")) + frame(3, 0, stream, struct.pack(">I", 8))
            )
        drain(made)


ATTACKS: tuple[Attack, ...] = (
    silence,
    strangers,
    large_body,
    slow_head,
    smuggle,
    methods,
    page_of_somebody,
    wrong_keys,
    garbage,
    not_read,
    mutation,
    half_close,
    reset,
    deep,
    no_window,
    rapid_reset,
)
