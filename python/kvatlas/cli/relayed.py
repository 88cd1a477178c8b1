"""Decoder of the messages that relays publish, for `kvatlas decode`. The service reads them in Rust.

The format is described in docs/reference/relay-format.md.
"""

from __future__ import annotations

import struct
from typing import Any

from kvatlas.errors import DecodeError

MAGIC = 0xC1  # begins no value of MessagePack
_TIERS = ("gpu", "cpu", "disk", "external")
_FLAGS = ("trusted", "partial", "upper_bound", "no_salts", "late", "unverified")
_BATCH, _STATE = 1, 4
_PLAIN = {2: "forgotten", 3: "state_begin", 6: "state_end", 8: "gone"}
_RANK_END, _STATUS = 5, 7
_STORE, _KNOWN, _REMOVE, _CLEAR = range(4)
_PARENT, _ONCE, _COPIES, _CHUNK = 16, 32, 64, 128


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        taken = self.data[self.at : self.at + count]
        if len(taken) < count:
            raise DecodeError(f"a relay's message ends in the middle, after {len(self.data)} bytes")
        self.at += count
        return taken

    def number(self) -> int:
        number = shift = 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
            if shift > 63:
                raise DecodeError("a number in a relay's message has more than 64 bits")

    def __bool__(self) -> bool:
        return self.at < len(self.data)


def decode_message(payload: bytes) -> dict[str, Any]:
    """Decode a relay's message: its life, id, block size, key, timestamp and frames.

    Raises:
        DecodeError: The bytes are not a relay's message of version 1.
    """
    data = _Bytes(payload)
    magic, version = data.take(2)
    if (magic, version) != (MAGIC, 1):
        raise DecodeError(f"not a relay's message of version 1: it begins with {payload[:2].hex()}, not c101")
    (life,) = struct.unpack("<Q", data.take(8))
    message = {"life": life, "id": data.number(), "block_size": data.number(), "key": data.number()}
    (message["timestamp"],) = struct.unpack("<d", data.take(8))
    message["frames"] = frames = []
    while data:
        frames.append(_frame(data))
    return message


def _frame(data: _Bytes) -> dict[str, Any]:
    tag = data.take(1)[0]
    if tag in (_BATCH, _STATE):
        rank = data.number()
        changes = _changes(_Bytes(data.take(data.number())))
        return {"type": "batch" if tag == _BATCH else "state", "rank": rank, "changes": changes}
    if tag == _RANK_END:
        return {"type": "state_rank_end", "rank": data.number()}
    if tag == _STATUS:
        bits = data.take(1)[0]
        return {"type": "status", **{flag: bool(bits >> at & 1) for at, flag in enumerate(_FLAGS)}}
    if tag in _PLAIN:
        return {"type": _PLAIN[tag]}
    raise DecodeError(f"a frame of a relay's message is of the unknown kind {tag}")


def _changes(data: _Bytes) -> list[dict[str, Any]]:
    changes: list[dict[str, Any]] = []
    last = 0
    while data:
        head = data.take(1)[0]
        kind, tier = head & 3, _TIERS[head >> 2 & 3]
        if head & _CHUNK:
            changes.append({"type": "chunk", "tier": tier, "blocks": data.number()})
            continue
        if kind == _CLEAR:
            last = 0
            changes.append({"type": "clear"})
            continue
        copies = data.number() if head & _COPIES else 1
        parent = None
        if head & _PARENT:
            parent = last = _from_zigzag(last, data.number())
        blocks, last = _blocks(data, last)
        if kind == _STORE:
            contents = list(struct.unpack(f"<{len(blocks)}Q", data.take(8 * len(blocks))))
            change = {"type": "store", "tier": tier, "parent": parent, "blocks": blocks, "content_hashes": contents}
            changes.append({**change, "once": bool(head & _ONCE), "copies": copies})
        else:
            changes.append({"type": "store_known" if kind == _KNOWN else "remove", "tier": tier, "blocks": blocks})
    return changes


def _blocks(data: _Bytes, last: int) -> tuple[list[int], int]:
    """Decode block numbers, written as runs of consecutive numbers."""
    left = data.number()
    blocks: list[int] = []
    while left > 0:
        first = data.number()
        last = _from_zigzag(last, first >> 1)
        run, step = 1, 1
        if first & 1:
            more = data.number()
            run, step = (more >> 1) + 2, -1 if more & 1 else 1
        if run > left:
            raise DecodeError("a run of blocks in a relay's message is longer than their number")
        blocks += range(last, last + run * step, step)
        last = blocks[-1]
        left -= run
    return blocks, last


def _from_zigzag(last: int, coded: int) -> int:
    return last + (coded >> 1) if coded & 1 == 0 else last - (coded + 1 >> 1)
