"""The cost of a thousand quiet engines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self

import zmq

from .servers import Server
from .servers import ours as start_ours

STREAMS = 1_000
SETTLE = 15.0  # seconds, for connections and first replays
END = b"\xff" * 8


class Quiet:
    """Engines that have published nothing and say so when asked, all on one thread."""

    def __init__(self, count: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.max_sockets = 4 * count
        self._sockets: list[zmq.Socket[bytes]] = []
        self._poller = zmq.Poller()
        self.endpoints: list[tuple[str, str]] = []
        for _ in range(count):
            publisher, router = self._context.socket(zmq.PUB), self._context.socket(zmq.ROUTER)
            self._sockets += [publisher, router]
            ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in (publisher, router)]
            self._poller.register(router, zmq.POLLIN)
            self.endpoints.append((f"tcp://127.0.0.1:{ports[0]}", f"tcp://127.0.0.1:{ports[1]}"))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stop.is_set():
            for socket, _ in self._poller.poll(200):
                identity, *_ = socket.recv_multipart()
                socket.send_multipart([identity, b"", b"", END, b""])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for socket in self._sockets:
            socket.close(linger=0)
        self._context.term()


def idle(seconds: float, note: Callable[[str], None]) -> dict[str, float]:
    """CPU of our service, as a share of one core, with a thousand registered streams and nothing to do."""
    with Quiet(STREAMS) as quiet, start_ours() as server:
        for worker, (endpoint, replay) in enumerate(quiet.endpoints):
            server.register(worker, endpoint, replay)
        _settle(server)
        began, before = time.monotonic(), server.cpu_seconds()
        time.sleep(seconds)
        share = (server.cpu_seconds() - before) / (time.monotonic() - began)
        memory = server.memory()
    note(f"{STREAMS:,} quiet streams: {share:.1%} of one core, {memory / 2**20:.0f} MiB resident")
    return {"cpu": share, "bytes": memory}


def _settle(server: Server) -> None:
    end = time.monotonic() + SETTLE
    while server.request("GET", "/ready")[0] != 200 and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(3.0)
