"""A stream by itself, as fast as it goes: for tests and benchmarks of whoever reads streams."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import zmq

from kvatlas.sim.server.sockets import EventSockets, SocketConfig, wanted


class Publisher:
    """Publishes payloads over PUB from any thread and answers replays from a thread of its own.

    Endpoints may leave the port to the system (`tcp://127.0.0.1:*`): `endpoint` and `replay_endpoint` tell the real
    ones. No faults and no simulation: what is published is sent at once.
    """

    def __init__(
        self,
        endpoint: str = "tcp://127.0.0.1:*",
        replay_endpoint: str | None = "tcp://127.0.0.1:*",
        buffer_steps: int = 10_000,
        *,
        topic: bytes = b"",
        hwm: int = 100_000,
        old_replies: bool = False,
    ) -> None:
        config = SocketConfig(endpoint, replay_endpoint, topic, buffer_steps, hwm, old_replies)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets = EventSockets(self._context, config)
        try:
            self._sockets.open()
        except zmq.ZMQError:
            self._context.term()
            raise
        self.endpoint = self._sockets.endpoint
        self.replay_endpoint = self._sockets.replay_endpoint
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="replays", daemon=True)
        self._thread.start()

    @property
    def next_seq(self) -> int:
        """The number of the next batch."""
        return self._sockets.next_seq

    def publish(self, payload: bytes) -> int:
        """Send one batch; returns its number."""
        with self._lock:
            seq = self._sockets.record(payload)
            self._sockets.send(seq, payload)
        return seq

    def close(self, linger: float = 1.0) -> None:
        """Stop; `linger`: seconds for what is still on its way to readers."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join()
        with self._lock:
            self._sockets.close(linger=round(linger * 1000))
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self) -> None:
        router = self._sockets.router
        while not self._stop.is_set():
            if router is None:
                self._stop.wait()
            elif router.poll(20):
                while (request := self._sockets.request()) is not None:
                    if (start := wanted(request)) is not None:
                        with self._lock:
                            batches = self._sockets.kept(start)
                        self._sockets.answer(request, batches)
