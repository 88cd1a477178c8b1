"""Topics of engines behind one address: subscriptions match by how a topic begins, streams by all of it."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
from tests.support.engine import BLOCK_SIZE, Publisher, payload, stored
from tests.support.waiting import until

from kvatlas._native import Service

from .dialect.tools import running
from .http_tools import query, register
from .test_publishers import metric, stream

FAST: dict[str, Any] = {"reconnect_min": 0.02, "probe_interval": 0.2, "reorder_grace": 0.02, "settle_timeout": 0.5}
TOPICS = [("host-1", "host-10"), ("kv@a", "kv@a-lora"), ("kv@a@m", "kv@a@m "), ("a", "aa"), ("é", "éé")]


class Proxy:
    """Several publishers behind one address, each with a topic and numbers of its own."""

    def __init__(self) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.XPUB)
        self.endpoint = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"

    def wait_for_readers(self, count: int = 1) -> None:
        for _ in range(count):
            assert self._socket.poll(60_000), "nobody has subscribed"
            self._socket.recv()

    def send(self, topic: str, seq: int, events: bytes) -> None:
        self._socket.send_multipart([topic.encode(), struct.pack(">Q", seq), events])

    def close(self) -> None:
        self._socket.close(0)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy()
    yield made
    made.close()


@pytest.fixture
def service() -> Iterator[Service]:
    with running(FAST) as made:
        yield made


def tokens(first: int, blocks: int) -> list[int]:
    return [first + at for at in range(blocks * BLOCK_SIZE)]


def block(first: int, at: int) -> bytes:
    """The next block of a chain that begins with this token."""
    name = first * 1000 + at
    return payload(stored([name], tokens(first, at + 1)[-BLOCK_SIZE:], parent=name - 1 if at else None))


@pytest.mark.parametrize(("topic", "other"), TOPICS)
def test_topics_that_begin_alike(service: Service, proxy: Proxy, topic: str, other: str) -> None:
    assert register(service, "one", proxy.endpoint, topic=topic).status == 201
    assert register(service, "ten", proxy.endpoint, topic=other).status == 201
    proxy.wait_for_readers(2)
    for at in range(8):
        # Each engine counts its own batches, and they are not equally fast.
        proxy.send(topic, at, block(1_000, at))
        for more in range(2):
            proxy.send(other, 2 * at + more, block(50_000, 2 * at + more))
    until(lambda: (stream(service, "one")["seq"], stream(service, "ten")["seq"]) == (7, 15))
    assert query(service, token_ids=tokens(1_000, 8))["scores"] == {"one": {"0": 8 * BLOCK_SIZE}}
    assert query(service, token_ids=tokens(50_000, 16))["scores"] == {"ten": {"0": 16 * BLOCK_SIZE}}
    one, ten = stream(service, "one"), stream(service, "ten")
    assert (one["counters"]["other_topic_batches"], ten["counters"].get("other_topic_batches", 0)) == (16, 0)
    for its in (one, ten):
        counters = its["counters"]
        assert not any(counters.get(name) for name in ("gaps", "resets", "contradictions", "malformed_messages")), its
        assert (its["partial"], its["epoch"]) == (False, 0)
    assert metric(service, 'kvatlas_stream_other_topic_batches_total{worker="one",rank="0"}') == 16


def test_a_topic_is_not_the_beginning_of_one(service: Service, proxy: Proxy) -> None:
    """As a setting it once was: then nothing comes, and that is said."""
    assert register(service, "e", proxy.endpoint, topic="kv@").status == 201
    proxy.wait_for_readers()
    for at in range(3):
        proxy.send("kv@host@m", at, block(1_000, at))
    until(lambda: stream(service, "e")["counters"].get("other_topic_batches") == 3)
    its = stream(service, "e")
    assert its["seq"] is None
    assert "kv@host@m" in its["last_error"]
    assert "kv@" in its["last_error"]
    # The right one ends that.
    proxy.send("kv@", 0, block(50_000, 0))
    until(lambda: stream(service, "e")["seq"] == 0)
    until(lambda: "last_error" not in stream(service, "e"))


def test_without_a_topic_any_is_taken(service: Service, proxy: Proxy) -> None:
    assert register(service, "e", proxy.endpoint).status == 201
    proxy.wait_for_readers()
    for at in range(3):
        proxy.send("kv@host@m", at, block(1_000, at))
    until(lambda: stream(service, "e")["seq"] == 2)
    assert "last_error" not in stream(service, "e")
    # Batches of two topics are read, if they are of one publisher; that they are is for its operator to see.
    proxy.send("kv@other", 3, block(1_000, 3))
    until(lambda: query(service, token_ids=tokens(1_000, 4))["scores"] == {"e": {"0": 4 * BLOCK_SIZE}})
    its = stream(service, "e")
    error = its.get("last_error") or its["previous_error"]
    assert "kv@host@m" in error
    assert "kv@other" in error


def test_one_publisher_that_counts_all_topics_together(service: Service, proxy: Proxy) -> None:
    """No engine does so. Its numbers go on over the topics, so none of them is missing."""
    assert register(service, "e", proxy.endpoint, topic="kv@a").status == 201
    proxy.wait_for_readers()
    for at in range(6):
        proxy.send("kv@a", 2 * at, block(1_000, at))
        proxy.send("kv@a-lora", 2 * at + 1, block(50_000, at))
    until(lambda: stream(service, "e")["seq"] == 10)
    its = stream(service, "e")
    assert (its["counters"].get("gaps", 0), its["counters"].get("resets", 0)) == (0, 0)
    assert query(service, token_ids=tokens(1_000, 6))["scores"] == {"e": {"0": 6 * BLOCK_SIZE}}
    assert query(service, token_ids=tokens(50_000, 1))["scores"] == {}


def test_a_lost_batch_is_a_gap_beside_other_topics(service: Service, proxy: Proxy) -> None:
    """Another engine's batch of the same number does not take its place."""
    assert register(service, "e", proxy.endpoint, topic="kv@a").status == 201
    proxy.wait_for_readers()
    for at in range(2):
        proxy.send("kv@a", at, block(1_000, at))
        proxy.send("kv@a-lora", at, block(50_000, at))
    proxy.send("kv@a-lora", 2, block(50_000, 2))
    proxy.send("kv@a", 3, block(1_000, 3))
    until(lambda: stream(service, "e")["counters"].get("lost_batches") == 1)
    assert stream(service, "e")["partial"]


@pytest.mark.parametrize("topic", ["kv@a", "kv@", "kv@a-lora"])
def test_topics_of_replays(service: Service, topic: str) -> None:
    with Publisher(replay_endpoint="tcp://127.0.0.1:*", topic=b"kv@a") as engine:
        for at in range(4):
            engine.publish(block(1_000, at), live=False)
        assert (
            register(service, "e", engine.endpoint, topic=topic, replay_endpoint=engine.replay_endpoint).status == 201
        )
        if topic == "kv@a":
            until(lambda: query(service, token_ids=tokens(1_000, 4))["scores"] == {"e": {"0": 4 * BLOCK_SIZE}})
            assert stream(service, "e")["counters"].get("other_topic_batches", 0) == 0
        else:
            until(lambda: stream(service, "e")["counters"].get("other_topic_batches", 0) >= 4)
            time.sleep(0.1)
            assert query(service, token_ids=tokens(1_000, 4))["scores"] == {}
