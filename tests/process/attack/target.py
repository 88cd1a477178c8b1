"""A port to attack, and connections to it that count what goes over them."""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

HOLD = 3.0  # seconds that a client sits on what it has
MODEL = "sim-model"
CHAT = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}).encode()
STREAMED = json.dumps({"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "hello"}]}).encode()
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


@dataclass(frozen=True)
class Target:
    """A port to attack, the key that the attacker has, if any, and what came of it.

    Attributes:
        port: The port of requests.
        key: The key that the attacker shows.
        admin: The port of the admin listener.
        outcomes: Statuses that were answered; "closed" for a connection that ended without one, "silent" for one that
            was given up.
        traffic: Bytes sent and received.
    """

    port: int
    key: str | None = None
    admin: int | None = None
    outcomes: Counter[str] = field(default_factory=Counter)
    traffic: Counter[str] = field(default_factory=Counter)

    def head(self, method: str, path: str, *fields: str) -> bytes:
        """The head of a request, with its empty line."""
        own = [] if self.key is None else [f"Authorization: Bearer {self.key}"]
        return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *own, *fields, "", ""]).encode()

    def post(self, path: str, body: bytes, *fields: str) -> bytes:
        """A whole POST of JSON."""
        more = ("Content-Type: application/json", f"Content-Length: {len(body)}")
        return self.head("POST", path, *more, *fields) + body


Attack = Callable[[Target, random.Random], None]


class Connection:
    """A socket that counts."""

    def __init__(self, made: socket.socket) -> None:
        self.socket = made
        self.sent = self.received = 0
        self.beginning = b""
        self.over = False

    def sendall(self, data: bytes) -> None:
        """Send all of it, or as much as is taken."""
        for at in range(0, len(data), 1 << 18):
            piece = data[at : at + (1 << 18)]
            self.socket.sendall(piece)
            self.sent += len(piece)

    def recv(self, most: int) -> bytes:
        """The bytes that have come; none at the end."""
        data = self.socket.recv(most)
        self.received += len(data)
        self.over |= not data
        if len(self.beginning) < 64:
            self.beginning += data[:64]
        return data

    def outcome(self) -> str:
        """The first status that was answered, or the end without one."""
        found = re.match(rb"HTTP/1\.\d (\d)", self.beginning)
        if found:
            return f"{found[1].decode()}xx"
        if self.beginning:
            return "other"
        return "closed" if self.over else "silent"


@contextlib.contextmanager
def connected(target: Target, port: int | None = None) -> Iterator[Connection]:
    """A connection; whatever becomes of it is no error."""
    made = None
    try:
        with socket.create_connection(("127.0.0.1", port or target.port), 10) as raw:
            made = Connection(raw)
            yield made
    except TimeoutError:
        pass
    except OSError:
        if made is not None:
            made.over = True
    finally:
        if made is None:
            target.outcomes["closed"] += 1
        else:
            target.outcomes[made.outcome()] += 1
            target.traffic["sent"] += made.sent
            target.traffic["received"] += made.received


def drain(made: Connection, seconds: float = HOLD) -> None:
    """Reads until the other side closes or is silent."""
    made.socket.settimeout(seconds)
    while made.recv(65536):
        pass


def send(target: Target, data: bytes, seconds: float = HOLD) -> None:
    """Sends bytes on a connection of their own, and reads what comes."""
    with connected(target) as made:
        made.socket.settimeout(seconds)
        made.sendall(data)
        drain(made, seconds)
