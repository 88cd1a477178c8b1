"""Readers of streams that know nothing of the publisher's code: pyzmq, msgspec and the reference index."""

import struct
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import msgspec
import pytest
import zmq

from kvatlas.reference import ReferenceIndex
from kvatlas.sim import EngineConfig
from kvatlas.sim.server import Fleet, ServerConfig

PATIENCE = 60.0
END = b"\xff" * 8
FAST = EngineConfig(block_size=4, blocks=64, prefill_rate=1e6, decode_rate=1e4, chunk=32)

Frames = list[bytes]


class Subscriber:
    """A plain SUB socket."""

    def __init__(self, endpoint: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        self.socket.connect(endpoint)

    def receive(self, seconds: float = PATIENCE) -> Frames | None:
        """The next message; None if none comes."""
        return self.socket.recv_multipart() if self.socket.poll(round(seconds * 1000)) else None

    def join(self, cause: Callable[[], object]) -> Frames:
        """Cause messages until one arrives: whatever is published from then on arrives too."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            cause()
            if (frames := self.receive(0.05)) is not None:
                self.drain()
                return frames
        raise AssertionError("nothing ever arrived")

    def drain(self, seconds: float = 0.1) -> list[Frames]:
        """Everything until nothing came for a while."""
        found: list[Frames] = []
        while (frames := self.receive(seconds)) is not None:
            found.append(frames)
        return found

    def until(self, seq: int) -> list[Frames]:
        """Everything up to message number `seq`."""
        found: list[Frames] = []
        while not found or number(found[-1]) != seq:
            frames = self.receive()
            assert frames is not None, f"{seq} never came, the last were {[number(f) for f in found[-5:]]}"
            found.append(frames)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.context.destroy(linger=0)


def number(frames: Frames) -> int:
    """The sequence number: the frame before the last."""
    return int(struct.unpack(">Q", frames[-2])[0])


def ask(endpoint: str | None, request: Frames, seconds: float = PATIENCE) -> list[Frames] | None:
    """The messages that a DEALER that sends `request` gets, up to the end marker; None if that does not come."""
    assert endpoint is not None
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.connect(endpoint)
        socket.send_multipart(request)
        found: list[Frames] = []
        while socket.poll(round(seconds * 1000)):
            frames = socket.recv_multipart()
            found.append(frames)
            if frames[-2] == END:
                return found
        return None
    finally:
        context.destroy(linger=0)


def replay(endpoint: str | None, start: int = 0) -> list[Frames]:
    """The replayed batches from number `start` on."""
    answer = ask(endpoint, [b"", struct.pack(">Q", start)])
    assert answer is not None, "no end marker"
    return answer[:-1]


class Reader:
    """Applies payloads to a reference index: maps or arrays of either engine, what cannot be read is counted."""

    def __init__(self, block_size: int) -> None:
        self.index = ReferenceIndex(block_size=block_size)
        self.size = block_size
        self.bad = 0
        self._salts: dict[object, str | None] = {}

    def apply(self, payload: bytes) -> None:
        try:
            _, events, rank = msgspec.msgpack.decode(payload)
        except (ValueError, TypeError):
            self.bad += 1
            return
        for event in events:
            try:
                self._event(event, rank)
            except (ValueError, TypeError, KeyError, IndexError, AttributeError):
                self.bad += 1

    def _event(self, event: Any, rank: int) -> None:
        fields = _named(event) if isinstance(event, list) else event
        kind = fields["type"]
        if kind == "AllBlocksCleared":
            self.index.clear("w", rank=rank)
            return
        names = fields["block_hashes"]
        if not isinstance(names, list) or not all(isinstance(name, int | bytes) for name in names):
            raise TypeError(names)
        if kind == "BlockRemoved":
            self.index.remove("w", block_hashes=names, rank=rank)
            return
        if kind != "BlockStored":
            raise ValueError(kind)
        parent, tokens, lora = fields["parent_block_hash"], fields["token_ids"], fields.get("lora_name")
        salt = fields.get("cache_salt")
        if keys := fields.get("extra_keys"):
            own = [key for key in keys[0] or () if key != lora]
            salt = own[0] if own else self._salts[parent] if parent is not None else None
        assert fields["block_size"] == self.size
        assert len(tokens) == len(names) * self.size
        self._salts.update(dict.fromkeys(names, salt))
        self.index.store("w", block_hashes=names, tokens=tokens, parent=parent, rank=rank, lora=lora, salt=salt)


def _named(event: list[Any]) -> dict[str, Any]:
    kind, *rest = event
    if kind != "BlockStored":
        return {"type": kind, "block_hashes": rest[0] if rest else None}
    keys = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")
    fields = {"type": kind, **dict(zip(keys, rest, strict=False))}
    more = rest[len(keys) :]
    if more and isinstance(more[0], dict):
        return {**fields, **more[0]}
    return {**fields, **dict(zip(("lora_name", "extra_keys", "group_idx", "kind"), more, strict=False))}


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """One engine for a module's tests, which each find it as they like."""
    with Fleet(1, ServerConfig(engine=FAST, ranks=2, loras=("adapter-a",), buffer_steps=500, topic="kv")) as fleet:
        yield fleet
