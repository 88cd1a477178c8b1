"""A pool that is Mooncake's store: a master that lists its keys, and one that publishes events.

No released wheel of Mooncake publishes events. Those here have the fields that its source code has, packed by the few
lines below. `benchmarks/real_engines/mooncake.py` looks at a real master.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from tests.support.engine import BLOCK_SIZE, Engine, Publisher, stored
from tests.support.waiting import until

from kvatlas.service import Config, HttpConfig, Service
from kvatlas.service.config import Pool

SOON = 0.02
PROMPT = list(range(6 * BLOCK_SIZE))
NAMES = [0x9000_0000_0000_0001 + at for at in range(6)]
MODEL = "m"


def packed(value: Any) -> bytes:
    """MessagePack of what the master's events have."""
    match value:
        case None:
            return b"\xc0"
        case int() if value >= 0:
            return b"\xcf" + value.to_bytes(8, "big")
        case int():
            return b"\xd3" + value.to_bytes(8, "big", signed=True)
        case str():
            return b"\xda" + len(value.encode()).to_bytes(2, "big") + value.encode()
        case list():
            return b"\xdc" + len(value).to_bytes(2, "big") + b"".join(map(packed, value))
        case dict():
            items = (packed(each) for item in value.items() for each in item)
            return b"\xde" + len(value).to_bytes(2, "big") + b"".join(items)
    raise TypeError(value)


def key(name: int, rank: int = 0, base: str = MODEL) -> str:
    """Return the key of a vLLM object: it has the whole digest, and events have the end of the digest."""
    return f"{base}@tp_rank:{rank}@pcp0@dcp0@pp_rank:0@group:0@{0xABC:048x}{name:016x}"


@dataclass
class Master:
    """A store's master: its keys, and its events if it publishes any."""

    engine: Engine
    publisher: Publisher
    keys: set[str] = field(default_factory=set)
    events: int = 0

    def show(self, *, publishes: bool = False) -> None:
        counts = dict.fromkeys(("published_batches", "published_events", "dropped_events", "skipped_unparsed_keys"), 0)
        self.engine.answers["/kv_events/status"] = {"enabled": publishes, **counts}
        self.engine.answers["/get_all_keys"] = "".join(f"{each}\n" for each in sorted(self.keys))

    def event(self, kind: str, key: str, medium: str = "cpu", **more: Any) -> dict[str, Any]:
        """An event with its compatible fields, as the master makes it of a key that is no number."""
        self.events += 1
        now = int(time.time() * 1000)
        about: dict[str, Any] = {"event_id": self.events, "timestamp": now, "event_type": kind}
        about["type"] = {"stored": "BlockStored", "removed": "BlockRemoved"}.get(kind, "AllBlocksCleared")
        about |= dict.fromkeys(("model_name", "block_size", "additional_salt", "lora_name"))
        about |= {"tenant_id": "default", "backend_id": "b", "medium": medium, "dp_rank": None, "group_id": None}
        about |= {"object_key": key, "seq_hashes": [], "block_hashes": [], "base_block_idx": 0}
        return about | {"parent_hash": None, "token_ids": None, "parent_block_hash": None} | more

    def publish(self, *events: dict[str, Any]) -> None:
        self.publisher.publish(packed([int(time.time() * 1000), list(events), 0]))

    def put(self, *keys: str) -> None:
        self.keys |= set(keys)
        self.show(publishes=True)
        self.publish(*(self.event("stored", each) for each in keys))

    def remove(self, *keys: str) -> None:
        self.keys -= set(keys)
        self.show(publishes=True)
        self.publish(*(self.event("removed", each) for each in keys))


@contextmanager
def master(*, publishes: bool = False) -> Iterator[Master]:
    with Engine({}) as engine, Publisher() as publisher:
        publisher.restart(1)  # its first number
        it = Master(engine, publisher)
        it.show(publishes=publishes)
        yield it


@contextmanager
def following(master: Master, publishers: dict[str, Publisher], **pool: Any) -> Iterator[Service]:
    """A service that follows engines and a master."""
    streams = [f"{name}={it.endpoint},model={MODEL},block_size={BLOCK_SIZE}" for name, it in publishers.items()]
    pools = (Pool("store", members=("a", "b"), mooncake=master.engine.url, **({"look_every": SOON} | pool)),)
    with Service(streams=streams, config=Config(http=HttpConfig(bind="127.0.0.1:0"), pools=pools)) as service:
        for publisher in publishers.values():
            publisher.wait_for_reader()
        yield service


def parts(service: Service, worker: str) -> list[tuple[int, int, str, bool]]:
    """Return the parts that a worker can load: first block, block after the last, source, certainty."""
    answer = httpx.post(
        f"{service.url}/query", json={"token_ids": PROMPT, "model_name": MODEL}, timeout=60, trust_env=False
    ).json()
    return [
        (it["from"] // BLOCK_SIZE, it["to"] // BLOCK_SIZE, it["source"], it["certain"])
        for it in answer["instances"].get(worker, {}).get("loadable", [])
    ]


def metric(service: Service, name: str) -> float:
    lines = httpx.get(f"{service.url}/metrics", timeout=60, trust_env=False).text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


def announce(publisher: Publisher, start: int, end: int, medium: str) -> None:
    tokens = PROMPT[start * BLOCK_SIZE : end * BLOCK_SIZE]
    parent = NAMES[start - 1] if start else None
    publisher.publish(stored(NAMES[start:end], tokens, parent=parent, medium=medium))


def in_pool(end: int, *, certain: bool = False) -> list[tuple[int, int, str, bool]]:
    return [(0, end, "store", certain)] if end else []


def test_what_the_store_lists_counts_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="kvatlas.discovery")
    with master() as store, Publisher() as a, Publisher() as b:
        store.keys = {key(name, rank) for name in NAMES[:3] for rank in (0, 1)} | {key(NAMES[3]), "another thing"}
        store.show()
        with following(store, {"a": a, "b": b}, events="tcp://127.0.0.1:1") as service:
            until(lambda: metric(service, "kvatlas_pool_waiting_blocks") == 3, "nothing is known of them")
            assert metric(service, "kvatlas_pool_store_blocks") == 4
            assert metric(service, "kvatlas_pool_store_broken_blocks") == 1, "one rank's object is missing"
            assert metric(service, "kvatlas_pool_store_unread_total") > 0
            assert metric(service, "kvatlas_pool_store_publishes") == 0
            announce(a, 0, 6, "GPU")
            # The other one can load what the store has.
            until(lambda: parts(service, "b") == in_pool(3), "described")
            # What is announced counts until the store has been asked: this one is not there.
            before = metric(service, "kvatlas_pool_gone_blocks_total")
            announce(a, 3, 4, "cpu")
            until(lambda: metric(service, "kvatlas_pool_gone_blocks_total") > before, "looked at")
            assert parts(service, "b") == in_pool(3)
            store.keys |= {key(NAMES[3], 1)}
            store.show()
            until(lambda: parts(service, "b") == in_pool(4), "all of its objects are there")
            store.keys -= {key(NAMES[1], 1)}
            store.show()
            until(lambda: parts(service, "b") == in_pool(1), "evicted in part")
            # A store that does not answer changes nothing.
            store.engine.answers["/get_all_keys"] = 503
            failed = metric(service, "kvatlas_pool_store_failed_looks_total")
            until(lambda: metric(service, "kvatlas_pool_store_failed_looks_total") > failed + 1)
            assert parts(service, "b") == in_pool(1)
            # Reset by an engine, or another master: it is empty.
            store.keys.clear()
            store.show()
            until(lambda: parts(service, "b") == [], "empty")
            store.keys = {key(name) for name in NAMES[:2]}
            store.show()
            until(lambda: parts(service, "b") == in_pool(2), "engines with one rank")
    said = caplog.text
    assert said.count("publishes no events (/kv_events/status): released wheels are built without them") == 1
    assert "returned status 503" in said
    assert "answers again" in said


def test_keys_of_other_models_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    with master() as store, Publisher() as a, Publisher() as b:
        store.keys = {key(name, base=base) for name in NAMES[:2] for base in ("prod@m", "test@m")}
        store.show()
        with following(store, {"a": a, "b": b}) as service:
            announce(a, 0, 4, "cpu")
            until(lambda: parts(service, "b") == in_pool(4), "announced")
            looks = metric(service, "kvatlas_pool_store_looks_total")
            until(lambda: metric(service, "kvatlas_pool_store_looks_total") > looks + 2)
            assert parts(service, "b") == in_pool(4), "which keys are meant is not clear, so what was announced counts"
        with following(store, {"a": a, "b": b}, key_prefix="test@m") as service:
            announce(a, 0, 4, "cpu")
            until(lambda: parts(service, "b") == in_pool(2), "by the keys with this beginning")
    assert "set key_prefix of the pool to one of prod@m, test@m" in caplog.text


def test_events_of_the_store() -> None:
    with master(publishes=True) as store, Publisher() as a, Publisher() as b:
        store.keys = {key(name, rank) for name in NAMES[:2] for rank in (0, 1)}
        store.show(publishes=True)
        with following(store, {"a": a, "b": b}, events=store.publisher.endpoint, look_every=3600.0) as service:
            announce(a, 0, 6, "GPU")
            until(lambda: parts(service, "b") == in_pool(2, certain=True), "listed once its events are followed")
            store.put(key(NAMES[2]))
            store.put(key(NAMES[2], 1), key(NAMES[3], 1))
            until(lambda: parts(service, "b") == in_pool(3, certain=True), "both objects of one, one of the other")
            looks = metric(service, "kvatlas_pool_store_looks_total")
            # A member's events put nothing in, and take nothing out.
            announce(a, 3, 4, "cpu")
            store.remove(key(NAMES[1], 1))
            until(lambda: parts(service, "b") == in_pool(1, certain=True), "an object is gone")
            assert metric(service, "kvatlas_pool_gone_blocks_total") == 1
            store.put(key(NAMES[1], 1))
            until(lambda: parts(service, "b") == in_pool(3, certain=True), "and there again")
            # On a second medium, and gone from the first.
            store.publish(store.event("stored", key(NAMES[0]), "disk"), store.event("removed", key(NAMES[0]), "cpu"))
            store.put(key(NAMES[3]))
            until(lambda: parts(service, "b") == in_pool(4, certain=True))
            # Events of another tenant, and without a key.
            other = [store.event("cleared", "", tenant_id="t"), store.event("stored", "", object_key=None)]
            store.publish(*other)
            until(lambda: metric(service, "kvatlas_pool_store_unread_total") == 2)
            assert parts(service, "b") == in_pool(4, certain=True)
            assert metric(service, "kvatlas_pool_store_looks_total") == looks
            store.keys.clear()
            store.show(publishes=True)
            store.publish(store.event("cleared", ""))
            until(lambda: parts(service, "b") == [])


def test_after_a_gap_the_store_is_looked_at() -> None:
    with master(publishes=True) as store, Publisher() as a, Publisher() as b:
        store.keys = {key(name) for name in NAMES[:4]}
        store.show(publishes=True)
        with following(store, {"a": a, "b": b}, events=store.publisher.endpoint, look_every=3600.0) as service:
            announce(a, 0, 6, "GPU")
            until(lambda: parts(service, "b") == in_pool(4, certain=True))
            # Numbers tell what is missing from the first event on.
            store.put(key(NAMES[3]))
            until(lambda: metric(service, "kvatlas_pool_store_events_total") == 1)
            # An event is lost: the removal of an object.
            store.keys = {key(name) for name in (*NAMES[:2], *NAMES[3:5])}
            store.engine.answers["/get_all_keys"] = 503
            lost = packed([0, [store.event("removed", key(NAMES[2]))], 0])
            store.publisher.publish(lost, live=False)
            store.publish(store.event("stored", key(NAMES[5])))
            until(lambda: parts(service, "b") == in_pool(4), "not certain any more")
            assert metric(service, "kvatlas_pool_store_gaps_total") == 1
            store.keys.add(key(NAMES[5]))
            store.show(publishes=True)
            until(lambda: parts(service, "b") == in_pool(2, certain=True), "looked at anew")
            store.put(key(NAMES[2]))
            until(lambda: parts(service, "b") == in_pool(6, certain=True))
            # Another master: no object, and numbers from the start.
            store.keys.clear()
            store.show(publishes=True)
            store.publisher.restart(1)
            store.put(key(NAMES[0]))
            until(lambda: parts(service, "b") == in_pool(1, certain=True))
