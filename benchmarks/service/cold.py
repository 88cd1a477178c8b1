"""A cold start: engines with full replay buffers, and a service that has to read them all."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from typing import Self

import msgspec
import numpy as np
import zmq

from .content import Chain
from .servers import BLOCK, Server
from .servers import ours as start_ours

VARIANTS = 16  # engines with the same number modulo this hold the same blocks
CHAIN = 1_000  # blocks of one prompt
TURN = 32  # batches that one engine sends before the next has its turn
LIMIT = 1_800.0  # seconds
END = b"\xff" * 8

Replay = tuple[zmq.Socket[bytes], bytes, list[bytes], int]


class Full:
    """Engines that have published before anybody listened, and answer with it when asked, all on one thread."""

    def __init__(self, count: int, batches: int) -> None:
        self._buffers = [payloads(variant, batches) for variant in range(min(count, VARIANTS))]
        self._numbers = [struct.pack(">Q", seq) for seq in range(batches)]
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.max_sockets = 4 * count
        self._sockets: list[zmq.Socket[bytes]] = []
        self._poller = zmq.Poller()
        self._buffer_of: dict[zmq.Socket[bytes], list[bytes]] = {}
        self.endpoints: list[tuple[str, str]] = []
        for engine in range(count):
            publisher, router = self._context.socket(zmq.PUB), self._context.socket(zmq.ROUTER)
            router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a full queue is an error, not a loss
            self._sockets += [publisher, router]
            ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in (publisher, router)]
            self._poller.register(router, zmq.POLLIN)
            self._buffer_of[router] = self._buffers[engine % len(self._buffers)]
            self.endpoints.append((f"tcp://127.0.0.1:{ports[0]}", f"tcp://127.0.0.1:{ports[1]}"))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        replays: list[Replay] = []
        while not self._stop.is_set():
            for socket, _ in self._poller.poll(0 if replays else 100):
                identity, _empty, start = socket.recv_multipart()
                replays.append((socket, identity, self._buffer_of[socket], struct.unpack(">Q", start)[0]))
            replays = [replay for replay in map(self._send, replays) if replay is not None]

    def _send(self, replay: Replay) -> Replay | None:
        """Sends a turn's batches; what is left of the replay."""
        socket, identity, batches, at = replay
        try:
            for at in range(at, min(at + TURN, len(batches))):  # noqa: B020 - where it stopped
                socket.send_multipart([identity, b"", b"", self._numbers[at], batches[at]], zmq.DONTWAIT)
            at = min(at + 1, len(batches))
            if at == len(batches):
                socket.send_multipart([identity, b"", b"", END, b""], zmq.DONTWAIT)
                return None
        except zmq.Again:
            pass
        except zmq.ZMQError:
            return None  # the client has gone
        return socket, identity, batches, at

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for socket in self._sockets:
            socket.close(linger=0)
        self._context.term()


def payloads(variant: int, batches: int) -> list[bytes]:
    """Batches of one block each, in chains, as vLLM encodes them."""
    choose = np.random.default_rng(variant)
    made: list[bytes] = []
    while len(made) < batches:
        chain = Chain.random(choose, CHAIN)
        for at in range(min(CHAIN, batches - len(made))):
            event = {
                "type": "BlockStored",
                "block_hashes": chain.names[at : at + 1],
                "parent_block_hash": chain.names[at - 1] if at else None,
                "token_ids": chain.tokens[at * BLOCK : (at + 1) * BLOCK].tolist(),
                "block_size": BLOCK,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
            }
            made.append(msgspec.msgpack.encode([time.time(), [event], 0]))
    return made


def cold(engines: int, batches: int, note: Callable[[str], None]) -> dict[str, float]:
    """Peak memory of our service, and seconds until it is ready, for `engines` engines with `batches` batches each."""
    with Full(engines, batches) as full, start_ours("--settle-timeout", f"{LIMIT:.0f}") as server:
        idle = server.memory()
        began = time.monotonic()
        for worker, (endpoint, replay) in enumerate(full.endpoints):
            server.register(worker, endpoint, replay)
        _until_whole(server, engines * batches)
        seconds = time.monotonic() - began
        peak, end = server.peak_memory(), server.memory()
        index = server.metric("kvatlas_index_bytes")
    before, most, after, held = (f"{size / 2**20:.0f} MiB" for size in (idle, peak, end, index))
    note(
        f"{engines:,} engines with {batches:,} batches each: whole after {seconds:.0f} s; resident {before} before, "
        f"at most {most}, {after} at the end, {held} of it the index"
    )
    return {"seconds": seconds, "peak_bytes": peak, "end_bytes": end, "index_bytes": index, "idle_bytes": idle}


def _until_whole(server: Server, blocks: int) -> None:
    end = time.monotonic() + LIMIT
    while server.metric("kvatlas_index_blocks") < blocks or server.metric("kvatlas_streams_untrusted") > 0:
        if time.monotonic() > end:
            raise RuntimeError(f"not whole after {LIMIT:.0f} s: {server.metric('kvatlas_index_blocks'):.0f} blocks")
        time.sleep(0.5)
