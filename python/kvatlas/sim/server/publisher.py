"""Publisher of an event stream at full speed, without an engine, for tests and benchmarks of readers."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

import zmq

from kvatlas.sim.server.sockets import EventSockets, SocketConfig, wanted


class Publisher:
    """Publisher of payloads over a PUB socket from any thread, which answers replays in a thread of its own.

    Endpoints may leave the choice of the port to the system (`tcp://127.0.0.1:*`): `endpoint` and `replay_endpoint`
    return the actual ones. With `connect`, the publisher connects to `endpoint`, where its reader listens. There are no
    faults and no simulation: batches are sent at once.
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
        connect: bool = False,
    ) -> None:
        config = SocketConfig(
            endpoint, replay_endpoint, topic, buffer_steps, hwm, old_replies, connect, sees_readers=True
        )
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
        """Sequence number of the next batch."""
        return self._sockets.next_seq

    def wait_for_reader(self, timeout: float = 60.0) -> None:
        """Wait until another reader has connected, as batches sent before do not reach it. Raises `TimeoutError`."""
        end = time.monotonic() + timeout
        while True:
            with self._lock:
                if self._sockets.reader_came():
                    return
            if time.monotonic() > end:
                raise TimeoutError(f"no reader of {self.endpoint} came in {timeout:g} s")
            time.sleep(0.002)

    def publish(self, payload: bytes, *, live: bool = True) -> int:
        """Send one batch, and return its sequence number. Without `live`, the batch is in replays only."""
        with self._lock:
            seq = self._sockets.record(payload)
            if live:
                self._sockets.send(seq, payload)
        return seq

    def send(self, seq: int, payload: bytes) -> None:
        """Send a batch under any sequence number.

        Replays do not have the batch, and the next number does not change.
        """
        with self._lock:
            self._sockets.send(seq, payload)

    def restart(self, next_seq: int = 0) -> None:
        """Continue like a new process at the same addresses: no batches are kept, and numbers begin at `next_seq`."""
        with self._lock:
            self._sockets.forget(next_seq)

    def close(self, linger: float = 1.0) -> None:
        """Stop the publisher. `linger`: seconds to deliver batches that are not sent yet."""
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
