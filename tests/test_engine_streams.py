"""Recorded event streams of two inference engines: the index must know what the engine itself knew at each moment."""

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvatlas import BlockIndex
from kvatlas.reference import ReferenceIndex

RECORDINGS = [
    "vllm-0.33.0.jsonl.gz",
    "vllm-0.33.0-bytes.jsonl.gz",
    "sglang-0.5.23.jsonl.gz",
    "sglang-0.5.23-unified.jsonl.gz",
]
WORKER = "engine"


def records(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


class Reader:
    """Feeds the events of a stream to an index.

    A cache salt is named on the first block of a chain only; stores that continue the chain inherit it.
    """

    def __init__(self, index: BlockIndex | ReferenceIndex) -> None:
        self.index = index
        self.salts: dict[int | bytes, str | None] = {}

    def batch(self, frames: list[str]) -> None:
        _timestamp, events, rank = msgspec.msgpack.decode(base64.b64decode(frames[2]))
        for event in events:
            self.event(event, rank)

    def event(self, event: dict[str, Any], rank: int) -> None:
        match event["type"]:
            case "BlockStored":
                salt = self.salt(event)
                self.index.store(
                    WORKER,
                    block_hashes=event["block_hashes"],
                    tokens=event["token_ids"],
                    parent=event["parent_block_hash"],
                    rank=rank,
                    tier=event["medium"].lower(),
                    lora=event.get("lora_name"),
                    salt=salt,
                )
                self.salts.update(dict.fromkeys(event["block_hashes"], salt))
            case "BlockRemoved":
                self.index.remove(WORKER, block_hashes=event["block_hashes"], rank=rank, tier=event["medium"].lower())
            case "AllBlocksCleared":
                self.index.clear(WORKER, rank=rank)
            case kind:
                pytest.fail(f"an event that no recording has: {kind}")

    def salt(self, event: dict[str, Any]) -> str | None:
        if event["parent_block_hash"] is not None:
            return self.salts[event["parent_block_hash"]]
        keys = (event.get("extra_keys") or [None])[0] or []
        named = event.get("cache_salt") or next(iter(keys[1:] if event.get("lora_name") else keys), None)
        assert named is None or isinstance(named, str)
        return named


@pytest.mark.parametrize("recording", RECORDINGS)
@pytest.mark.parametrize("kind", [BlockIndex, ReferenceIndex])
def test_every_answer_of_the_engine(shared: Path, recording: str, kind: type[BlockIndex | ReferenceIndex]) -> None:
    index = kind(block_size=16)
    reader = Reader(index)
    judged = hits = 0
    for record in records(shared / "engine_streams" / recording):
        match record["type"]:
            case "frames":
                reader.batch(record["frames"])
            case "truth":
                found = index.find_tokens(record["token_ids"], lora=record["lora_name"], salt=record["cache_salt"])
                assert found.depth == record["hit_blocks"], f"after batch {record['after_seq']}: {record['kind']}"
                assert found.any_tier.depth == found.depth
                stats = index.stats()
                assert stats["blocks"] == record.get("cached_hashes", record.get("cached_pages"))
                assert stats["blocks"] + stats["copies"] == record.get("cached_copies", record.get("cached_pages"))
                assert stats["unknown_removals"] == stats["replaced"] == 0
                judged += 1
                hits += found.depth > 0
            case "snapshot":
                check_snapshot(index, record["held"])
            case kind_of_record:
                assert kind_of_record in {"meta", "end"}
    assert judged >= 130
    assert hits >= 71


def check_snapshot(index: BlockIndex | ReferenceIndex, held: list[tuple[int | str, int]]) -> None:
    """A snapshot lists every cached hash with its number of copies."""
    stats = index.stats()
    assert stats["blocks"] == len(held)
    assert stats["blocks"] + stats["copies"] == sum(copies for _, copies in held)
    if held and isinstance(held[0][0], int):
        copies: dict[int | bytes, int] = {}
        for event in index.dump():
            for name in event.block_hashes:
                copies[name] = copies.get(name, 0) + 1
        assert copies == dict(held)
