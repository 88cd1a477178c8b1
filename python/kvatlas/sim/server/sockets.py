"""Sockets of one rank: PUB for the live event stream, ROUTER for replays, with the batches kept for replays.

Live messages are [topic, sequence number (8 bytes, big-endian), payload]. A replay request names the first sequence
number wanted; the answer has one message for each batch, and an end marker. If the wanted batch is no longer kept, the
answer begins with the oldest one kept. A request that is not exactly [identity, delimiter, number] is not answered, as
in engines.

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
    """Settings of the sockets of a rank.

    Attributes:
        endpoint: Address of the live event stream.
        replay_endpoint: Address of the replay socket; None for no replay socket.
        topic: ZMQ topic of the live stream.
        buffer_steps: Maximum number of batches kept for replays.
        hwm: Maximum number of batches queued for one reader of the live stream; more are dropped.
        old_replies: True if replies to replay requests have no topic frame.
        connect: True if the live stream connects to its endpoint, where a reader listens, instead of binding it.
        sees_readers: True if the live stream detects new readers. The socket is then an XPUB; engines have PUB.
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
    """Sockets of one rank: PUB for live batches, ROUTER for replays.

    Only `kept` and `record` may be called from other threads, and calls of these two need a lock.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], config: SocketConfig) -> None:
        self.config = config
        self.next_seq = 0
        self._context = context
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._pub: zmq.Socket[bytes] | None = None
        self.router: zmq.Socket[bytes] | None = None

    def open(self) -> None:
        """Bind the sockets. Raises `zmq.ZMQError`, and leaves no socket open, if an address is taken."""
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
        """Bind the replay socket, if configured and not yet bound."""
        endpoint = self.config.replay_endpoint
        if endpoint is not None and self.router is None:
            # Enough for one slow reader's whole replay with its end marker.
            self.router = self._make(zmq.ROUTER, endpoint, 2 * (self.config.buffer_steps + 1))

    def close_replay(self) -> None:
        """Close the replay socket; the live stream stays open."""
        if self.router is not None:
            self.router.close(linger=0)
            self.router = None

    def close(self, linger: int = 0) -> None:
        """Close the live and the replay socket. `linger`: milliseconds to deliver batches that are not sent yet."""
        self.close_replay()
        if self._pub is not None:
            self._pub.close(linger=linger)
            self._pub = None

    def forget(self, next_seq: int = 0) -> None:
        """Drop all kept batches, like a new process. `next_seq`: sequence number of the next batch."""
        self.next_seq = next_seq
        self._buffer.clear()

    @property
    def endpoint(self) -> str:
        """Address to which the live stream is bound."""
        return _bound(self._pub)

    @property
    def replay_endpoint(self) -> str | None:
        """Address to which the replay socket is bound; None without a replay socket."""
        return None if self.router is None else _bound(self.router)

    def record(self, payload: bytes) -> int:
        """Keep a payload for replays, and return the sequence number given to it."""
        seq = self.next_seq
        self.next_seq = seq + 1
        self._buffer.append((seq, payload))
        return seq

    def send(self, seq: int, payload: bytes) -> None:
        """Send a batch with sequence number `seq` to the readers that are connected now."""
        if self._pub is not None:
            self._pub.send_multipart((self.config.topic, seq.to_bytes(8), payload))

    def reader_came(self) -> bool:
        """True if a reader has connected since the last call. Needs `sees_readers`."""
        came = False
        while self._pub is not None and not came and self._pub.poll(0):
            came = self._pub.recv().startswith(b"\x01")
        return came

    def kept(self, start: int) -> list[tuple[int, bytes]]:
        """Batches from sequence number `start` on that are still kept for replays, each with its sequence number."""
        if not self._buffer or start >= self.next_seq:
            return []
        return list(islice(self._buffer, max(start - self._buffer[0][0], 0), None))

    def descriptor(self, socket: zmq.Socket[bytes]) -> int:
        """File descriptor to watch for events of a socket. It is edge-triggered: read until no message is left."""
        descriptor = socket.getsockopt(zmq.FD)
        if not isinstance(descriptor, int):
            raise TypeError(f"ZMQ gave {descriptor!r} for a file descriptor")
        return descriptor

    def request(self) -> list[bytes] | None:
        """Next message at the replay socket, as frames; None if none has arrived."""
        if self.router is None:
            return None
        try:
            return self.router.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return None

    def answer(self, request: list[bytes], batches: list[tuple[int, bytes]], *, end: bool = True) -> None:
        """Send `batches` to the sender of the replay request `request`, and then an end marker if `end`."""
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
    """First sequence number that a replay request asks for; None for a request that engines ignore."""
    return int.from_bytes(request[2]) if len(request) == 3 else None


def _bound(socket: zmq.Socket[bytes] | None) -> str:
    if socket is None:
        raise RuntimeError("the sockets are not open")
    bound = socket.getsockopt(zmq.LAST_ENDPOINT)
    return bound.decode().rstrip("\0") if isinstance(bound, bytes) else str(bound)
