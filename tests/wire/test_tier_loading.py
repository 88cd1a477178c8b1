"""Recorded event streams of engines that offload, share a folder or pull: what they can load must be what they said."""

import base64
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.support.tier_records import records

from kvatlas import BlockIndex
from kvatlas.reference import ReferenceIndex
from kvatlas.types import Loadable
from kvatlas.wire import Batch, Cleared, Removed, Stored, decode_batch, encode_batch

BLOCK = 16


@dataclass(frozen=True)
class Fleet:
    """Engines whose streams were recorded together.

    Attributes:
        engines: Ends of the recordings' names, each of which is a worker's name too; the source of pulls first.
        chunk: Blocks in a chunk.
        answers: The engines' answers in all of them, and the pulls.
    """

    engines: tuple[str, ...]
    chunk: int
    answers: int


PLACEHOLDERS = Fleet(("cpu-placeholders",), 1, 80)
FOLDER = Fleet(("fs-a", "fs-b"), 4, 320)
PEERS = Fleet(("p2p-a", "p2p-b"), 1, 302 + 31)
FLEETS = [PLACEHOLDERS, FOLDER, PEERS]
BYSTANDER = "bystander"
"""A worker that has nothing, but may load from the folder: what it can load is what there is."""
NOTHING = Loadable("", 0, 0, 0, False, ())


@dataclass(frozen=True)
class ReaderSettings:
    """A way to read streams. Each field that is not its default is a mistake.

    Attributes:
        chunk: Blocks in a chunk, if not those that there are.
        keep_host: Whether the host is kept at a reset that emptied it.
        drop_host: Whether the host is dropped at every clear.
        share_folder: Whether what is stored in the folder by one engine can be loaded by the other.
        newest: Whether the newest announcement of a name, on any tier, says what it contains.
    """

    chunk: int | None = None
    keep_host: bool = False
    drop_host: bool = False
    share_folder: bool = True
    newest: bool = False
    looks: bool = False  # at the folder, whenever the recording lists what is in it
    names_alone: bool = False  # of chunks beyond the device, as engines without self_describing_kv_events have it


RIGHT = ReaderSettings()


class LoadableFinder(Protocol):
    """The part of the index, or of its literal model, that knows what engines can load."""

    def find(self, *, tokens: Sequence[int], lora: str | None, salt: str | None) -> list[Loadable]: ...


class IndexReader:
    """Feeds batches to the index, as the service does."""

    def __init__(self) -> None:
        self.index = BlockIndex(block_size=BLOCK)
        self.loading: Any = self.index.loading

    def apply(self, worker: str, batch: Batch) -> None:
        assert self.index.apply(worker, batch).refused == {}


class ModelReader:
    """Feeds batches to the literal model, which knows nothing of inherited salts."""

    def __init__(self, reading: ReaderSettings) -> None:
        self.index = ReferenceIndex(block_size=BLOCK)
        self.loading: Any = self.index.loading
        self.reading = reading
        self.salts: dict[tuple[str, int | bytes], str | None] = {}

    def apply(self, worker: str, batch: Batch) -> None:
        for event in batch.events:
            match event:
                case Stored():
                    self.store(worker, event)
                case Removed():
                    self.index.remove(worker, block_hashes=event.block_hashes, tier=event.tier)
                case Cleared():
                    self.loading.reset(worker)

    def store(self, worker: str, event: Stored) -> None:
        if event.block_size == 0:
            self.index.store_known(worker, block_hashes=event.block_hashes, tier=event.tier)
            return
        parent, salt = event.parent, event.salt
        for number, name in enumerate(event.block_hashes):
            if parent is not None:
                salt = self.salts.get((worker, parent))
            tokens = event.tokens[BLOCK * number : BLOCK * (number + 1)]
            said: dict[str, Any] = {"tokens": tokens, "parent": parent, "lora": event.lora, "salt": salt}
            self.index.store(worker, block_hashes=[name], tier=event.tier, **said)
            if self.reading.newest and event.tier != "gpu":
                self.index.store(worker, block_hashes=[name], tier="gpu", **said)
                self.index.remove(worker, block_hashes=[name])
            if event.tier == "gpu":
                self.salts[worker, name] = salt
            parent = name


def wrong_answers(
    tier_streams: Path, fleet: Fleet, reader: IndexReader | ModelReader, reading: ReaderSettings = RIGHT
) -> Counter[str]:
    """The number of the engines' answers that a reader gets wrong, by the kind of answer."""
    loading = reader.loading
    chunk = reading.chunk or fleet.chunk
    for engine in fleet.engines:
        keeps = None if reading.drop_host else True
        loading.set_offloading(engine, host_chunk=chunk, external_chunk=chunk, resets_keep=keeps)
    if fleet is FOLDER:
        members = fleet.engines if reading.share_folder else ()
        loading.add_pool("folder", members=[*members, BYSTANDER], chunk=chunk)
    wrong: Counter[str] = Counter()
    answers = 0
    has_deleted, pulled_tokens = False, 0
    for engine, record in records(tier_streams, fleet.engines):
        match record["type"]:
            case "frames":
                batch = decode_batch(base64.b64decode(record["frames"][2]))
                assert batch.refused == ()
                if reading.names_alone:
                    batch = with_names_alone(batch, fleet.chunk)
                reader.apply(engine, batch)
            case "reset" if record["connector"] and not reading.keep_host:
                reader.index.clear(engine, tier="cpu")  # The stream does not say it.
            case "deleted_files":
                has_deleted = True
            case "snapshot" if reading.looks:
                loading.keep("folder", block_hashes=record["storage"])
                has_deleted = False
            case "pulled":
                wrong["pulled"] += record["cached_tokens"] != pulled_tokens
                answers += 1
            case "truth":
                found = found_by(loading, record)
                judge(wrong, record, found.get(engine, NOTHING), found.get(BYSTANDER), has_deleted)
                answers += 1
                if record["kind"] == "consumer, before a pull":
                    source, own = (found.get(name, NOTHING) for name in fleet.engines)
                    last_token = (len(record["token_ids"]) - 1) // BLOCK
                    pulled_tokens = BLOCK * min(last_token, max(own.own_depth, source.host))
    assert answers == fleet.answers
    return +wrong


def with_names_alone(batch: Batch, chunk: int) -> Batch:
    """The batch as an engine without `self_describing_kv_events` has it: chunks by the name of their last block."""
    events: list[Stored | Removed | Cleared] = []
    for event in batch.events:
        if isinstance(event, Cleared) or event.tier == "gpu":
            events.append(event)
            continue
        last = event.block_hashes[chunk - 1 :: chunk]
        where: dict[str, Any] = {"medium": event.medium, "locality": event.locality}
        if isinstance(event, Stored):
            events += [Stored([name], parent=None, tokens=[], block_size=0, **where) for name in last]
        else:
            events.append(Removed(last, **where))
    return decode_batch(encode_batch(events, timestamp=batch.timestamp, rank=batch.rank))


def found_by(loading: LoadableFinder, record: dict[str, Any]) -> dict[str, Loadable]:
    """Find what each worker can load of the prompt of a record."""
    query = {"tokens": record["token_ids"], "lora": record["lora_name"], "salt": record["cache_salt"]}
    return {it.worker: it for it in loading.find(**query)}


def judge(
    wrong: Counter[str], record: dict[str, Any], it: Loadable, folder: Loadable | None, has_deleted: bool
) -> None:
    """Count what differs from an engine's answer. `folder`: what can be loaded of the folder alone, if there is one."""
    late = " after a deletion" if has_deleted else ""
    wrong["device"] += it.device != record["device_blocks"]
    wrong["host"] += it.host != record["host_blocks"]
    wrong["device and host"] += it.own_depth != record["device_host_blocks"]
    wrong["loadable" + late] += it.depth != record["loadable_blocks"]
    if folder is not None:
        wrong["folder" + late] += folder.depth != record["storage_blocks"]


def of_index(_: ReaderSettings = RIGHT) -> IndexReader:
    return IndexReader()


@pytest.mark.parametrize("make", [of_index, ModelReader], ids=["index", "model"])
@pytest.mark.parametrize("fleet", FLEETS, ids=lambda fleet: fleet.engines[0])
def test_every_answer(
    tier_streams: Path, fleet: Fleet, make: Callable[[ReaderSettings], IndexReader | ModelReader]
) -> None:
    """Only what was deleted behind the engines' backs is wrong, and too deep."""
    deleted = {"folder after a deletion": 10, "loadable after a deletion": 5} if fleet is FOLDER else {}
    assert wrong_answers(tier_streams, fleet, make(RIGHT)) == deleted


@pytest.mark.parametrize("make", [of_index, ModelReader], ids=["index", "model"])
@pytest.mark.parametrize("fleet", [FOLDER, PEERS], ids=lambda fleet: fleet.engines[0])
def test_every_answer_of_names_alone(
    tier_streams: Path, fleet: Fleet, make: Callable[[ReaderSettings], IndexReader | ModelReader]
) -> None:
    """Blocks that are pulled or come from the folder are announced in host memory before the device describes them."""
    reading = ReaderSettings(names_alone=True)
    deleted = {"folder after a deletion": 10, "loadable after a deletion": 5} if fleet is FOLDER else {}
    assert wrong_answers(tier_streams, fleet, make(reading), reading) == deleted
    unknown = ReaderSettings(chunk=1, names_alone=True)
    wrong = wrong_answers(tier_streams, fleet, make(unknown), unknown)
    assert (wrong["host"] > 40) == (fleet is FOLDER), "chunks whose length is not known do not count"


@pytest.mark.parametrize("make", [of_index, ModelReader], ids=["index", "model"])
def test_a_look_at_the_folder_finds_what_was_deleted(
    tier_streams: Path, make: Callable[[ReaderSettings], IndexReader | ModelReader]
) -> None:
    """From the first look on after files were deleted, no answer is wrong."""
    reading = ReaderSettings(looks=True)
    wrong = wrong_answers(tier_streams, FOLDER, make(reading), reading)
    assert not {"folder", "loadable", "host", "device", "device and host"} & wrong.keys()
    assert 0 < wrong["folder after a deletion"] <= 10, "before that look"


@pytest.mark.parametrize(
    ("fleet", "reading", "wrong"),
    [
        (PLACEHOLDERS, ReaderSettings(keep_host=True), {"host": 8}),
        (FOLDER, ReaderSettings(keep_host=True), {"host": 8}),
        (PLACEHOLDERS, ReaderSettings(drop_host=True), {"host": 15}),
        (FOLDER, ReaderSettings(chunk=1), {"host": 85, "device and host": 18}),
        (FOLDER, ReaderSettings(share_folder=False), {"loadable": 27}),
    ],
)
@pytest.mark.parametrize("make", [of_index, ModelReader], ids=["index", "model"])
def test_readings_that_are_wrong(
    tier_streams: Path,
    fleet: Fleet,
    reading: ReaderSettings,
    wrong: dict[str, int],
    make: Callable[[ReaderSettings], IndexReader | ModelReader],
) -> None:
    counted = wrong_answers(tier_streams, fleet, make(reading), reading)
    assert {kind: counted[kind] for kind in wrong} == wrong


def test_the_newest_announcement_does_not_say_what_a_name_means(tier_streams: Path) -> None:
    reading = ReaderSettings(newest=True)
    assert wrong_answers(tier_streams, PEERS, ModelReader(reading), reading)["host"] > 0
