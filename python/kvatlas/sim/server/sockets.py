"""Sockets of one rank: PUB for the live stream, ROUTER for replays, with the batches kept for them.

Live messages are [topic, sequence number (8 bytes, big-endian), payload]. A replay request has the first number wanted,
and is answered by one message a batch and an end marker. A request for older batches than the kept ones is answered
from the oldest on; one that is not exactly [identity, delimiter, number] is not answered, as in engines.

There is no thread and no loop here: the owner of the sockets decides when to send and when to look for requests.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice

import zmq

END = b"\xff" * 8


@dataclass(frozen=True, slots=True)
class SocketConfig:
    """Settings of the sockets.

    Attributes:
        endpoint: The address of the live stream.
        replay_endpoint: The address of the replay socket; None for no replays.
        topic: Topic of the live stream.
        buffer_steps: Batches kept for replays.
        hwm: Batches that may wait for one reader of the live stream.
        old_replies: Whether replies have no topic frame.
        connect: Whether the live stream connects to its endpoint, where a reader listens, instead of binding it.
        sees_readers: Whether the live stream notices new readers. It is an XPUB socket then; engines have PUB.
    """

    endpoint: str
    replay_endpoint: str | None
    topic: bytes = b""
    buffer_steps: int = 10_000
    hwm: int = 100_000
    old_replies: bool = False
    connect: bool = False
    sees_readers: bool = False


class EventSockets:
    """PUB and ROUTER sockets, bound while open. Not for several threads, except `kept` and `record` under a lock."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], config: SocketConfig) -> None:
        self.config = config
        self.next_seq = 0
        self._context = context
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._pub: zmq.Socket[bytes] | None = None
        self.router: zmq.Socket[bytes] | None = None

    def open(self) -> None:
        """Bind the sockets. Raises `zmq.ZMQError`, with none left open, if an address is taken."""
        config = self.config
        kind = zmq.XPUB if config.sees_readers else zmq.PUB
        self._pub = self._make(kind, config.endpoint, config.hwm, connect=config.connect)
        if config.sees_readers:
            self._pub.setsockopt(zmq.XPUB_VERBOSE, 1)  # says so of one more, too
        try:
            self.open_replay()
        except zmq.ZMQError:
            self.close()
            raise

    def open_replay(self) -> None:
        """Bind the replay socket, if configured and not bound yet."""
        endpoint = self.config.replay_endpoint
        if endpoint is not None and self.router is None:
            # A whole replay and its end marker fit, for one slow reader.
            self.router = self._make(zmq.ROUTER, endpoint, 2 * (self.config.buffer_steps + 1))

    def close_replay(self) -> None:
        """Close the replay socket; the live one stays."""
        if self.router is not None:
            self.router.close(linger=0)
            self.router = None

    def close(self, linger: int = 0) -> None:
        """Close both. `linger`: milliseconds to deliver batches under way."""
        self.close_replay()
        if self._pub is not None:
            self._pub.close(linger=linger)
            self._pub = None

    def forget(self, next_seq: int = 0) -> None:
        """Start over like a new process: no kept batches, numbers from `next_seq` on."""
        self.next_seq = next_seq
        self._buffer.clear()

    @property
    def endpoint(self) -> str:
        """The address to which the live stream is bound."""
        return _bound(self._pub)

    @property
    def replay_endpoint(self) -> str | None:
        """The address of the bound replay socket; None without one."""
        return None if self.router is None else _bound(self.router)

    def record(self, payload: bytes) -> int:
        """Give a payload its number and keep it for replays."""
        seq = self.next_seq
        self.next_seq = seq + 1
        self._buffer.append((seq, payload))
        return seq

    def send(self, seq: int, payload: bytes) -> None:
        """Send a batch to the readers connected now."""
        if self._pub is not None:
            self._pub.send_multipart((self.config.topic, seq.to_bytes(8), payload))

    def reader_came(self) -> bool:
        """True if a reader has connected since the last call. Only for sockets with `sees_readers`."""
        came = False
        while self._pub is not None and not came and self._pub.poll(0):
            came = self._pub.recv().startswith(b"\x01")
        return came

    def kept(self, start: int) -> list[tuple[int, bytes]]:
        """The kept batches from number `start` on."""
        if not self._buffer or start >= self.next_seq:
            return []
        return list(islice(self._buffer, max(start - self._buffer[0][0], 0), None))

    def descriptor(self, socket: zmq.Socket[bytes]) -> int:
        """The file descriptor to watch for a socket's events. It is edge-triggered: read until nothing is left."""
        descriptor = socket.getsockopt(zmq.FD)
        if not isinstance(descriptor, int):
            raise TypeError(f"ZMQ gave {descriptor!r} for a file descriptor")
        return descriptor

    def request(self) -> list[bytes] | None:
        """The next message at the replay socket; None if there is none."""
        if self.router is None:
            return None
        try:
            return self.router.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return None

    def answer(self, request: list[bytes], batches: list[tuple[int, bytes]], *, end: bool = True) -> None:
        """Send `batches`, and with `end` the end marker, to the sender of `request`."""
        router, identity = self.router, request[0]
        if router is None:
            return
        lead = (identity, b"") if self.config.old_replies else (identity, b"", self.config.topic)
        for seq, payload in batches:
            router.send_multipart((*lead, seq.to_bytes(8), payload))
        if not end:
            return
        last = (identity, b"") if self.config.old_replies else (identity, b"", b"")
        router.send_multipart((*last, END, b""))

    def _make(self, kind: int, endpoint: str, hwm: int, *, connect: bool = False) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        try:
            socket.setsockopt(zmq.SNDHWM, hwm)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.IPV6, int("[" in endpoint))
            if connect:
                socket.setsockopt(zmq.RECONNECT_IVL, 20)  # milliseconds
                socket.connect(endpoint)
            else:
                socket.bind(endpoint)
        except zmq.ZMQError:
            socket.close(linger=0)
            raise
        return socket


def wanted(request: list[bytes]) -> int | None:
    """The first number that a replay request asks for; None if engines would not answer it."""
    return int.from_bytes(request[2]) if len(request) == 3 else None


def _bound(socket: zmq.Socket[bytes] | None) -> str:
    if socket is None:
        raise RuntimeError("the sockets are not open")
    bound = socket.getsockopt(zmq.LAST_ENDPOINT)
    return bound.decode().rstrip("\0") if isinstance(bound, bytes) else str(bound)
