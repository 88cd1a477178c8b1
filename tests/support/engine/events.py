"""Events as tests write them, and the simulator's publisher for them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from kvatlas.sim import server

BLOCK_SIZE = 4


class Publisher(server.Publisher):
    """The simulator's publisher, which takes events as well as payloads. By default it answers no replays."""

    def __init__(self, endpoint: str = "tcp://127.0.0.1:*", replay_endpoint: str | None = None, **more: Any) -> None:
        super().__init__(endpoint, replay_endpoint, **more)

    def publish(self, *batch: Any, live: bool = True, rank: int | None = None) -> int:
        """Send one batch: its events, or its payload."""
        is_payload = len(batch) == 1 and isinstance(batch[0], bytes)
        return super().publish(batch[0] if is_payload else payload(*batch, rank=rank), live=live)


def payload(*events: dict[str, Any] | list[Any], rank: int | None = None) -> bytes:
    """A batch as it is sent."""
    return msgspec.msgpack.encode([time.time(), events, rank])


def stored(
    hashes: Sequence[int],
    tokens: Sequence[int],
    *,
    parent: int | None = None,
    block_size: int = BLOCK_SIZE,
    medium: str = "GPU",
    lora: str | None = None,
) -> dict[str, Any]:
    """The event of vLLM that says that blocks were cached."""
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": block_size,
        "lora_id": None,
        "medium": medium,
        "lora_name": lora,
    }


def removed(hashes: Sequence[int], *, medium: str = "GPU") -> dict[str, Any]:
    """The event of vLLM that says that blocks were evicted."""
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": medium}
