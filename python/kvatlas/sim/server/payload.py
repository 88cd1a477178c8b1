"""Encoder of events as payloads (the third frame of a message), and of invalid payloads for injected faults.

msgspec encodes declared structs, as in the engines themselves, so the bytes equal the engines' (including the wide map
header of a stored block) and do not depend on kvatlas' own decoder.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kvatlas.sim.server.events import Cleared, Dialect, Event, Placeholder, Removed, Stored
from kvatlas.sim.server.names import lora_id

_MEDIUM = "GPU"
_KIND = "full_attention"

Name = int | bytes
Keys = list[list[str] | None]


class _Map(msgspec.Struct, omit_defaults=True, tag_field="type", gc=False):
    pass


class _VllmStored(_Map, tag="BlockStored"):
    """Stored event of vLLM, with all declared fields, because their number determines the width of the map's header."""

    block_hashes: list[Name]
    parent_block_hash: Name | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: Keys | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class _VllmRemoved(_Map, tag="BlockRemoved"):
    block_hashes: list[Name]
    medium: str | None
    group_idx: int | None = None


class _SglangStored(_Map, tag="BlockStored"):
    block_hashes: list[Name]
    parent_block_hash: Name | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    cache_salt: str | None = None
    session_id: str | None = None
    lora_name: str | None = None


class _SglangRemoved(_Map, tag="BlockRemoved"):
    block_hashes: list[Name]
    medium: str | None


class _Cleared(_Map, tag="AllBlocksCleared"):
    pass


def _vllm(event: Event, size: int) -> object:
    match event:
        case Stored(names, parent, tokens, lora, _, medium, locality):
            return _VllmStored(
                names, parent, tokens, size, _number(lora), medium, lora, extra_keys(event), 0, _KIND,
                locality=locality,
            )  # fmt: skip
        case Placeholder(names, medium, locality):
            return _VllmStored(names, None, [], 0, None, medium, None, None, 0, locality=locality)
        case Removed(names, medium):
            return _VllmRemoved(names, medium, 0)
        case Cleared():
            return _Cleared()


def _vllm_array(event: Event, size: int) -> object:
    match event:
        case Stored(names, parent, tokens, lora, _, medium):
            head = ["BlockStored", names, parent, tokens, size, _number(lora), medium]
            return [*head, lora, extra_keys(event), 0, _KIND, None]
        case Placeholder(names, medium):
            return ["BlockStored", names, None, [], 0, None, medium, None, None, 0, None, None]
        case Removed(names, medium):
            return ["BlockRemoved", names, medium, 0]
        case Cleared():
            return ["AllBlocksCleared"]


def _sglang(event: Event, size: int) -> object:
    match event:
        case Stored(names, parent, tokens, lora, salt, medium):
            return _SglangStored(names, parent, tokens, size, None, medium, cache_salt=salt, lora_name=lora)
        case Removed(names, medium):
            return _SglangRemoved(names, medium)
        case Placeholder():
            raise ValueError("SGLang describes all that it stores")
        case Cleared():
            return _Cleared()


def _sglang_array(event: Event, size: int) -> object:
    match event:
        case Stored(names, parent, tokens, lora, salt, medium):
            head = ["BlockStored", names, parent, tokens, size, None, medium]
            more = {key: value for key, value in (("cache_salt", salt), ("lora_name", lora)) if value}
            return [*head, more] if more else head
        case Removed(names, medium):
            return ["BlockRemoved", names, medium]
        case Placeholder():
            raise ValueError("SGLang describes all that it stores")
        case Cleared():
            return ["AllBlocksCleared"]


_FORMS: dict[Dialect, Callable[[Event, int], object]] = {
    "vllm": _vllm,
    "vllm-arrays": _vllm_array,
    "sglang": _sglang,
    "sglang-arrays": _sglang_array,
}
_encoder = msgspec.msgpack.Encoder()


def rows(events: Sequence[Event], *, block_size: int, dialect: Dialect) -> list[object]:
    """Convert events to the rows of a batch, in the encoding `dialect`."""
    form = _FORMS[dialect]
    return [form(event, block_size) for event in events]


def encode(rows: Sequence[object], *, timestamp: float, rank: int) -> bytes:
    """Encode the rows of one batch as a payload."""
    return _encoder.encode((timestamp, rows, rank))


def extra_keys(event: Stored) -> Keys | None:
    """Extra keys in vLLM's stored event, one entry for each block: the adapter, and the salt in a chain's first block.

    None for offloaded blocks, for which vLLM omits the keys.
    """
    if event.medium != "GPU":
        return None
    adapter = [event.lora] if event.lora else None
    keys: Keys = [adapter] * len(event.names)
    if event.salt and event.parent is None:
        keys[0] = [*(adapter or ()), event.salt]
    return keys


def _number(lora: str | None) -> int | None:
    return int(lora_id(lora)[:6], 16) if lora else None


# Faults of events, published in addition to the engine's own events: a reader that skips and counts them loses nothing.


def undecodable(random: random.Random, dialect: Dialect) -> object:
    """Generate an invalid event, with wrong types or missing fields."""
    wrong: list[dict[str, Any]] = [
        {"type": "BlockStored", "block_hashes": "all of them", "parent_block_hash": None, "token_ids": [1]},
        {"type": "BlockStored", "parent_block_hash": None, "token_ids": [1], "block_size": 1},
        {"type": "BlockRemoved", "block_hashes": [{}], "medium": _MEDIUM},
        {"type": "BlockRemoved", "block_hashes": 7, "medium": _MEDIUM},
        {"type": 7, "block_hashes": [1]},
        {"block_hashes": [1]},
    ]
    others: list[object] = [7, None, "BlockStored", [], [None], 0.5]
    chosen = random.choice([*wrong, *others])
    return list(chosen.values()) if isinstance(chosen, dict) and dialect.endswith("arrays") else chosen


def unknown(random: random.Random, dialect: Dialect) -> object:
    """Generate an event of an unknown type."""
    name, hashes = f"Block{random.choice(('Pinned', 'Moved', 'Touched'))}", [random.getrandbits(63)]
    return [name, hashes] if dialect.endswith("arrays") else {"type": name, "block_hashes": hashes}


def garbage(random: random.Random) -> bytes:
    """Generate a payload that is not a valid batch."""
    whole = encode([_VllmRemoved([1, 2], _MEDIUM, 0)], timestamp=1.0, rank=0)
    chosen = random.randrange(4)
    if chosen == 0:
        return b""
    if chosen == 1:
        return whole[: random.randrange(1, len(whole) - 1)]
    if chosen == 2:
        return _encoder.encode({"not": ["a", "batch"]})
    return b"\xc1" + random.randbytes(random.randrange(1, 64))  # 0xc1 is never used in msgpack


def truncated(data: bytes, random: random.Random) -> bytes:
    """Cut a payload after a random number of bytes."""
    return data[: random.randrange(len(data))] if data else data


def stray(random: random.Random, dialect: Dialect, block_size: int) -> bytes:
    """Generate a batch that stores a block which the engine does not hold."""
    tokens = [random.randrange(1 << 20, 1 << 21) for _ in range(block_size)]
    event = Stored([random.getrandbits(62)], None, tokens, None, None)
    return encode(rows([event], block_size=block_size, dialect=dialect), timestamp=time.time(), rank=0)
