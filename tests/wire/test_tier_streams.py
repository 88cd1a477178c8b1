"""Recorded event streams of an engine that offloads: what its device holds must be what the engine itself said."""

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from kvatlas import BlockIndex
from kvatlas.reference import ReferenceIndex
from kvatlas.wire import Cleared, Removed, Stored, decode_batch

RECORDINGS = {
    "vllm-0.33.0-cpu-placeholders": 80,
    "vllm-0.33.0-fs-a": 160,
    "vllm-0.33.0-fs-b": 160,
    "vllm-0.33.0-p2p-a": 151,
    "vllm-0.33.0-p2p-b": 151,
}
"""Name of a recording -> answers of the engine in it."""
WORKER = "engine"
Reading = Literal["device", "first"]
"""Announcement that says what a name contains: the device's, or wrongly the first on any tier."""


def records(tier_streams: Path, recording: str) -> Iterator[dict[str, Any]]:
    with gzip.open(tier_streams / f"{recording}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


class Reader:
    """Feeds batches to the literal model, which knows nothing of inherited salts. Its reading of names may be wrong."""

    def __init__(self, reading: Reading) -> None:
        self.index = ReferenceIndex(block_size=16)
        self.reading = reading
        self.salts: dict[int | bytes, str | None] = {}
        self.said: dict[int | bytes, dict[str, Any]] = {}

    def apply(self, payload: bytes) -> None:
        batch = decode_batch(payload)
        assert batch.refused == ()
        for event in batch.events:
            match event:
                case Stored():
                    self.store(event)
                case Removed():
                    self.index.remove(WORKER, block_hashes=event.block_hashes, tier=event.tier)
                case Cleared():
                    self.index.clear(WORKER, rank=0)

    def store(self, event: Stored) -> None:
        if event.block_size == 0:
            return  # Announced by name alone, which the device's answers do not depend on.
        parent, salt = event.parent, event.salt
        for number, name in enumerate(event.block_hashes):
            if parent is not None:
                salt = self.salts.get(parent)
            tokens = event.tokens[16 * number : 16 * (number + 1)]
            said: dict[str, Any] = {"tokens": tokens, "parent": parent, "lora": event.lora, "salt": salt}
            if self.reading == "first":
                said = self.said.setdefault(name, said)
            self.index.store(WORKER, block_hashes=[name], tier=event.tier, **said)
            if event.tier == "gpu" or self.reading == "first":
                self.salts[name] = said["salt"]
            parent = name


class IndexReader:
    """Feeds batches to the index, as the service does."""

    def __init__(self) -> None:
        self.index = BlockIndex(block_size=16)

    def apply(self, payload: bytes) -> None:
        batch = decode_batch(payload)
        assert batch.refused == ()
        assert self.index.apply(WORKER, batch).refused == {}


def wrong_answers(tier_streams: Path, recording: str, reader: Reader | IndexReader) -> int:
    """The number of the engine's answers about its device that a reader gets wrong."""
    wrong = judged = hits = 0
    for record in records(tier_streams, recording):
        if record["type"] == "frames":
            reader.apply(base64.b64decode(record["frames"][2]))
        elif record["type"] == "truth":
            query = {"tokens": record["token_ids"], "lora": record["lora_name"], "salt": record["cache_salt"]}
            depth = reader.index.find(**query).depth
            judged += 1
            hits += record["device_blocks"] > 0
            wrong += depth != record["device_blocks"]
    assert judged == RECORDINGS[recording]
    assert hits > 10
    return wrong


@pytest.mark.parametrize("recording", RECORDINGS)
def test_every_answer_about_the_device(tier_streams: Path, recording: str) -> None:
    assert wrong_answers(tier_streams, recording, Reader("device")) == 0


@pytest.mark.parametrize("recording", RECORDINGS)
def test_every_answer_of_the_index_about_the_device(tier_streams: Path, recording: str) -> None:
    assert wrong_answers(tier_streams, recording, IndexReader()) == 0


def test_the_first_announcement_of_a_name_does_not_say_what_it_contains(tier_streams: Path) -> None:
    """After a pull the host is announced before the device, and without the salt."""
    assert wrong_answers(tier_streams, "vllm-0.33.0-p2p-b", Reader("first")) == 24
