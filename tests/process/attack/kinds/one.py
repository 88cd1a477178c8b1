"""Hostile clients of HTTP/1.1, by the connection and the byte. Each does one nasty thing once."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import time

from tests.process.attack.target import CHAT, HOLD, PATHS, STREAMED, Attack, Target, connected, drain


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
        made.socket.settimeout(HOLD)
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
    """Methods that no client needs."""
    with connected(target) as made:
        method = choose.choice(("TRACE", "CONNECT", "OPTIONS", "PROPFIND", "X" * 4000, "PUT", "DELETE"))
        made.sendall(target.head(method, choose.choice(PATHS), "Origin: https://evil.example", "Content-Length: 0"))
        drain(made)


def page_of_somebody(target: Target, choose: random.Random) -> None:
    """A request that a web page in a user's browser can send without a preflight."""
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
        made.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
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
        made.socket.shutdown(socket.SHUT_WR)
        drain(made)


def reset(target: Target, choose: random.Random) -> None:
    """A client that is gone at some moment of its request."""
    data = target.post(choose.choice(PATHS), CHAT)
    with connected(target) as made:
        made.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
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


def unfinished_heads(target: Target, choose: random.Random) -> None:
    """Many heads of 60 to 120 KiB that never end."""
    with contextlib.ExitStack() as stack:
        for _ in range(choose.randrange(50, 250)):
            made = stack.enter_context(connected(target))
            with contextlib.suppress(OSError):
                made.socket.settimeout(1.0)
                size = choose.randrange(60 << 10, 120 << 10)
                line = choose.choice((b"x-long: " + b"y" * size, b"x: y\r\n" * (size // 6), b"GET /" + b"a" * size))
                made.sendall(line if line.startswith(b"GET") else b"GET /health HTTP/1.1\r\n" + line)
        time.sleep(HOLD)


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
    unfinished_heads,
)
