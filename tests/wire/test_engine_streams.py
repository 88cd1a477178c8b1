"""Recorded event streams of two inference engines: the index must know what the engine itself knew at each moment."""

import base64
import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvatlas import BlockIndex
from kvatlas.reference import ReferenceIndex
from kvatlas.types import Dialect
from kvatlas.wire import Batch, Cleared, Event, Removed, Stored, decode_batch, encode_batch

RECORDINGS = {
    "vllm-0.33.0": 410,
    "vllm-0.33.0-bytes": 130,
    "sglang-0.5.23": 408,
    "sglang-0.5.23-unified": 410,
}
"""Name of a recording -> answers of the engine in it."""
WORKER = "engine"


def records(engine_streams: Path, recording: str) -> Iterator[dict[str, Any]]:
    with gzip.open(engine_streams / f"{recording}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def payload(record: dict[str, Any]) -> bytes:
    return base64.b64decode(record["frames"][2])


class Reference:
    """Feeds batches to the literal model, which knows nothing of inherited salts."""

    def __init__(self) -> None:
        self.index = ReferenceIndex(block_size=16)
        self.salts: dict[int | bytes, str | None] = {}

    def apply(self, worker: str, batch: Batch) -> None:
        for event in batch.events:
            match event:
                case Stored():
                    salt = event.salt if event.parent is None else self.salts[event.parent]
                    self.index.store(
                        worker,
                        block_hashes=event.block_hashes,
                        tokens=event.tokens,  # type: ignore[arg-type]
                        parent=event.parent,
                        tier=event.tier,
                        lora=event.lora,
                        salt=salt,
                    )
                    self.salts.update(dict.fromkeys(event.block_hashes, salt))
                case Removed():
                    self.index.remove(worker, block_hashes=event.block_hashes, tier=event.tier)
                case Cleared():
                    self.index.clear(worker, rank=0)


@pytest.mark.parametrize("recording", RECORDINGS)
@pytest.mark.parametrize("kind", [BlockIndex, ReferenceIndex])
def test_every_answer_of_the_engine(
    engine_streams: Path, recording: str, kind: type[BlockIndex | ReferenceIndex]
) -> None:
    reference = Reference()
    index: BlockIndex | ReferenceIndex = BlockIndex(block_size=16) if kind is BlockIndex else reference.index
    judged = hits = 0
    for record in records(engine_streams, recording):
        match record["type"]:
            case "frames":
                batch = decode_batch(payload(record))
                assert batch.refused == ()
                assert batch.rank == 0
                if isinstance(index, BlockIndex):
                    tally = index.apply(WORKER, batch)
                    assert (tally.events, tally.refused) == (len(batch.events), {})
                    assert not tally.upper_bound
                else:
                    reference.apply(WORKER, batch)
            case "truth":
                found = index.find(tokens=record["token_ids"], lora=record["lora_name"], salt=record["cache_salt"])
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
    assert judged == RECORDINGS[recording]
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


@pytest.mark.parametrize("recording", RECORDINGS)
def test_encoding_is_what_the_engine_wrote(engine_streams: Path, recording: str) -> None:
    dialect: Dialect = "sglang" if recording.startswith("sglang") else "vllm"
    batches = 0
    for record in records(engine_streams, recording):
        if record["type"] == "frames":
            sent = payload(record)
            batch = decode_batch(sent)
            again = encode_batch(batch.events, timestamp=batch.timestamp, rank=batch.rank, dialect=dialect)
            assert again == sent
            batches += 1
    assert batches > 150


@pytest.mark.parametrize("dialect", ["vllm-arrays", "sglang-arrays", "vllm"])
@pytest.mark.parametrize("recording", RECORDINGS)
def test_other_formats_say_the_same(engine_streams: Path, recording: str, dialect: Dialect) -> None:
    """Every stream in the other formats. vLLM's show less of a salt, so that inheriting it is needed."""

    def other(events: Sequence[Event]) -> Iterable[Event]:
        return decode_batch(encode_batch(events, timestamp=0, dialect=dialect)).events

    assert wrong_answers(engine_streams, recording, other) == 0


def without(event: Stored, *fields: str) -> Stored:
    """The store without some of its fields."""
    kept = {
        name: getattr(event, name) for name in ("lora", "salt", "group_idx", "kind", "medium") if name not in fields
    }
    return Stored(event.block_hashes, event.parent, event.tokens, event.block_size, **kept)


def ignoring_lora(events: Sequence[Event]) -> Iterable[Event]:
    return [without(event, "lora") if isinstance(event, Stored) else event for event in events]


def ignoring_salt(events: Sequence[Event]) -> Iterable[Event]:
    return [without(event, "salt") if isinstance(event, Stored) else event for event in events]


def ignoring_clears(events: Sequence[Event]) -> Iterable[Event]:
    return [event for event in events if not isinstance(event, Cleared)]


def stores_first(events: Sequence[Event]) -> Iterable[Event]:
    return sorted(events, key=lambda event: not isinstance(event, Stored))


def as_sent(events: Sequence[Event]) -> Iterable[Event]:
    return events


def wrong_answers(
    engine_streams: Path,
    recording: str,
    read: Callable[[Sequence[Event]], Iterable[Event]],
    *,
    count_copies: bool = True,
    lora: bool = True,
    salt: bool = True,
) -> int:
    """The number of the engine's answers that a reader of its own mind gets wrong."""
    index = BlockIndex(16, count_copies)
    wrong = 0
    for record in records(engine_streams, recording):
        if record["type"] == "frames":
            # By way of the format that shows every field on every store.
            events = read(decode_batch(payload(record)).events)
            index.apply(WORKER, decode_batch(encode_batch(events, timestamp=0, dialect="sglang")))
        elif record["type"] == "truth":
            names = record["lora_name"] if lora else None, record["cache_salt"] if salt else None
            found = index.find(tokens=record["token_ids"], lora=names[0], salt=names[1])
            wrong += found.depth != record["hit_blocks"]
    return wrong


@pytest.mark.parametrize(
    ("read", "how", "expected"),
    [
        (as_sent, {}, (0, 0, 0, 0)),
        (as_sent, {"count_copies": False}, (13, 2, 0, 0)),
        (ignoring_lora, {"lora": False}, (49, 15, 48, 50)),
        (ignoring_salt, {"salt": False}, (45, 15, 33, 37)),
        (ignoring_clears, {}, (55, 24, 74, 46)),
        (stores_first, {}, (0, 2, 0, 18)),
    ],
)
def test_readers_that_are_known_to_be_wrong(
    engine_streams: Path,
    read: Callable[[Sequence[Event]], Iterable[Event]],
    how: dict[str, bool],
    expected: tuple[int, ...],
) -> None:
    """The recordings tell right from wrong: each mistake costs the answers that their description says it does."""
    assert tuple(wrong_answers(engine_streams, recording, read, **how) for recording in RECORDINGS) == expected
