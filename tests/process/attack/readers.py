"""Hostile readers of a relay's port for readers without NATS, with and without its key (ZMTP 3.0, RFC 23 and 24)."""

from __future__ import annotations

import contextlib
import random
import struct
import time

from tests.process.attack.target import HOLD, Attack, Target, connected, drain


def greeting(target: Target) -> bytes:
    """The greeting of a peer that has the key, or none."""
    mechanism = b"NULL" if target.key is None else b"PLAIN"
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


def handshake(target: Target) -> bytes:
    """All that a DEALER says before its first message, without waiting for an answer."""
    about = b"\x0bSocket-Type\x00\x00\x00\x06DEALER"

    def command(name: bytes, body: bytes) -> bytes:
        return bytes([4, 1 + len(name) + len(body), len(name)]) + name + body

    if target.key is None:
        return greeting(target) + command(b"READY", about)
    key = target.key.encode()
    hello = command(b"HELLO", b"\x01x" + bytes([len(key)]) + key)
    return greeting(target) + hello + command(b"INITIATE", about)


def message(body: bytes) -> bytes:
    """A message of an empty frame and this one."""
    return bytes([1, 0, 0, len(body)]) + body


def silent_peers(target: Target, choose: random.Random) -> None:
    """Many connections that never finish the handshake, or ask for nothing after it."""
    said = handshake(target)
    with contextlib.ExitStack() as stack:
        for _ in range(choose.randrange(20, 200)):
            made = stack.enter_context(connected(target))
            with contextlib.suppress(OSError):
                made.sendall(said[: choose.randrange(len(said) + 1)])
        time.sleep(HOLD)


def greedy(target: Target, choose: random.Random) -> None:
    """A reader that asks for everything again and again, and reads nothing."""
    question = choose.choice((b"F" + bytes(8), b"K0123456789abcdef", b"A" + bytes(24)))
    with connected(target) as made:
        made.sendall(handshake(target))
        made.socket.settimeout(HOLD)
        for _ in range(20):
            made.sendall(message(question) * 200)
        time.sleep(HOLD)


def follower(target: Target, choose: random.Random) -> None:
    """A reader that follows, and stops to read."""
    with connected(target) as made:
        made.sendall(handshake(target) + message(b"F" + struct.pack(">Q", choose.randrange(1 << 40))))
        made.socket.settimeout(HOLD)
        made.recv(100)
        time.sleep(HOLD)


def garbage(target: Target, choose: random.Random) -> None:
    """Bytes after a greeting, or after a whole handshake."""
    with connected(target) as made:
        made.sendall(choose.choice((greeting, handshake))(target) + choose.randbytes(choose.randrange(1, 20_000)))
        drain(made)


def huge_frame(target: Target, choose: random.Random) -> None:
    """A frame that claims to be very long."""
    with connected(target) as made:
        made.sendall(handshake(target) + b"\x02" + choose.choice((1 << 62, 1 << 31, 1 << 20)).to_bytes(8, "big"))
        made.sendall(bytes(1 << 16))
        time.sleep(HOLD)


READER_ATTACKS: tuple[Attack, ...] = (silent_peers, greedy, follower, garbage, huge_frame)
