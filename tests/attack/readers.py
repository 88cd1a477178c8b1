"""Hostile readers of a relay's port for readers without NATS."""

from __future__ import annotations

import contextlib
import random
import time

from tests.attack.clients import HOLD, Attack, Target, connected, drain

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def silent_peers(target: Target, choose: random.Random) -> None:
    """Many connections that never finish the handshake."""
    with contextlib.ExitStack() as stack:
        for _ in range(choose.randrange(20, 200)):
            made = stack.enter_context(connected(target))
            with contextlib.suppress(OSError):
                made.sendall(GREETING[: choose.randrange(len(GREETING) + 1)])
        time.sleep(HOLD)


def garbage(target: Target, choose: random.Random) -> None:
    """Bytes after a greeting."""
    with connected(target) as made:
        made.sendall(GREETING + choose.randbytes(choose.randrange(1, 20_000)))
        drain(made)


def huge_frame(target: Target, choose: random.Random) -> None:
    """A frame that claims to be very long."""
    with connected(target) as made:
        made.sendall(GREETING + b"\x02" + choose.choice((1 << 62, 1 << 31, 1 << 20)).to_bytes(8, "big"))
        made.sendall(bytes(1 << 16))
        time.sleep(HOLD)


READER_ATTACKS: tuple[Attack, ...] = (silent_peers, garbage, huge_frame)
