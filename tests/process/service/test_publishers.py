"""Engines that connect their publisher to the service, over real sockets."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.engine import BLOCK_SIZE, Publisher, payload, stored
from tests.support.waiting import until

from kvatlas._native import Service
from kvatlas.client import Client
from kvatlas.sim.server.ports import free_block

from .dialect.tools import DEADLINE, MODEL, Answer, Connection, ask, running

FAST: dict[str, Any] = {"reconnect_min": 0.02, "probe_interval": 0.2, "reorder_grace": 0.02, "settle_timeout": 0.5}


@contextlib.contextmanager
def bound(**streams: Any) -> Iterator[tuple[Service, int]]:
    port = free_block("127.0.0.1")
    with running(FAST | {"bind": [f"127.0.0.1:{port}"]} | streams) as service:
        yield service, port


class Engine(Publisher):
    """An engine whose publisher connects, with blocks of its own, and with a replay socket if asked for."""

    def __init__(self, port: int, topic: str, tokens: list[int], *, replay: bool = False) -> None:
        replay_endpoint = "tcp://127.0.0.1:*" if replay else None
        super().__init__(f"tcp://127.0.0.1:{port}", replay_endpoint, topic=topic.encode(), connect=True)
        self.tokens = tokens

    def grow(self, *, live: bool = True) -> None:
        """Announces one block more of its chain."""
        self.publish(self.block(self.next_seq), live=live, rank=0)

    def block(self, at: int) -> dict[str, Any]:
        first = self.tokens[0] * 1000
        tokens = self.tokens[at * BLOCK_SIZE : (at + 1) * BLOCK_SIZE]
        return stored([first + at], tokens, parent=first + at - 1 if at else None)


def register(service: Service, worker: str, port: int, topic: str, **more: Any) -> Answer:
    about = {"instance_id": worker, "endpoint": f"bind://{port}", "topic": topic}
    body = about | {"model_name": MODEL, "block_size": BLOCK_SIZE} | {k: v for k, v in more.items() if v is not None}
    return ask(service.address, "POST", "/register", body)


def scores(service: Service, tokens: list[int]) -> dict[str, dict[str, int]]:
    """The tokens of a prompt that trusted workers hold, by worker and rank."""
    answer = ask(service.address, "POST", "/query", {"model_name": MODEL, "token_ids": tokens})
    assert answer.status == 200, answer
    found: dict[str, dict[str, int]] = answer.json["scores"]
    return found


def stream(service: Service, worker: str) -> dict[str, Any]:
    workers = ask(service.address, "GET", "/workers").json
    (found,) = [item["streams"]["0"] for item in workers if item["instance_id"] == worker]
    return dict(found)


def metric(service: Service, name: str) -> float:
    lines = ask(service.address, "GET", "/metrics").body.decode().splitlines()
    (value,) = [float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name]
    return value


def chain(first: int, blocks: int = 40) -> list[int]:
    return [first + i for i in range(blocks * BLOCK_SIZE)]


def test_topics_tell_engines_apart() -> None:
    with bound() as (service, port):
        for worker in ("a", "b"):
            assert register(service, worker, port, f"kv-{worker}").status == 201
        assert stream(service, "a")["state"] == "connecting"
        with Engine(port, "kv-a", chain(1)) as a, Engine(port, "kv-b", chain(500)) as b:
            for engine in (a, b):
                engine.wait_for_reader()
                for _ in range(3):
                    engine.grow()
            until(lambda: scores(service, a.tokens) == {"a": {"0": 3 * BLOCK_SIZE}})
            until(lambda: scores(service, b.tokens) == {"b": {"0": 3 * BLOCK_SIZE}})
            assert metric(service, "kvatlas_publishers") == 2
        until(lambda: metric(service, "kvatlas_publishers") == 0)
        until(lambda: scores(service, chain(1)) == {})  # nothing is trusted without a connection


def test_a_replay_socket_makes_it_whole() -> None:
    with bound() as (service, port), Engine(port, "kv-a", chain(1), replay=True) as engine:
        for _ in range(5):
            engine.grow(live=False)  # before anybody listened
        assert register(service, "a", port, "kv-a", replay_endpoint=engine.replay_endpoint).status == 201
        engine.wait_for_reader()
        engine.grow()
        until(lambda: scores(service, engine.tokens) == {"a": {"0": 6 * BLOCK_SIZE}})
        assert not stream(service, "a").get("partial")
        engine.grow(live=False)  # lost
        until(lambda: scores(service, engine.tokens) == {"a": {"0": 7 * BLOCK_SIZE}})


def test_without_a_replay_socket_it_says_that_it_began_late() -> None:
    with bound() as (service, port), Engine(port, "kv-a", chain(1)) as engine:
        assert register(service, "a", port, "kv-a").status == 201
        engine.grow(live=False)
        engine.wait_for_reader()
        engine.grow()
        until(lambda: stream(service, "a").get("partial"))


def test_an_unknown_topic_is_counted_and_known_later() -> None:
    with bound() as (service, port), Engine(port, "kv-late", chain(1), replay=True) as engine:
        engine.wait_for_reader()
        for _ in range(3):
            engine.grow()
        until(lambda: metric(service, "kvatlas_unknown_topic_batches_total") == 3)
        assert register(service, "a", port, "kv-late", replay_endpoint=engine.replay_endpoint).status == 201
        # It does not take another batch: the connection is known by the topic of those before.
        until(lambda: scores(service, engine.tokens) == {"a": {"0": 3 * BLOCK_SIZE}})
        engine.grow()
        until(lambda: scores(service, engine.tokens) == {"a": {"0": 4 * BLOCK_SIZE}})
        assert metric(service, "kvatlas_unknown_topic_batches_total") == 3


def test_a_prefix_of_a_topic_is_another_topic() -> None:
    with bound() as (service, port), Engine(port, "kv-a2", chain(1)) as engine:
        assert register(service, "a", port, "kv-a").status == 201
        engine.wait_for_reader()
        engine.grow()
        until(lambda: metric(service, "kvatlas_unknown_topic_batches_total") == 1)
        assert stream(service, "a")["state"] == "connecting"


def test_an_engine_that_restarts() -> None:
    with bound() as (service, port):
        with Engine(port, "kv-a", chain(1)) as engine:
            assert register(service, "a", port, "kv-a").status == 201
            engine.wait_for_reader()
            for _ in range(4):
                engine.grow()
            until(lambda: scores(service, engine.tokens) == {"a": {"0": 4 * BLOCK_SIZE}})
        until(lambda: stream(service, "a")["state"] != "live")
        with Engine(port, "kv-a", chain(500)) as other:
            other.wait_for_reader()
            other.grow()
            until(lambda: scores(service, other.tokens) == {"a": {"0": BLOCK_SIZE}})
            assert scores(service, engine.tokens) == {}, "of the life before"


def test_two_publishers_with_one_topic_are_not_trusted() -> None:
    with bound() as (service, port):
        assert register(service, "a", port, "kv").status == 201
        with Engine(port, "kv", chain(1)) as one, Engine(port, "kv", chain(9000)) as other:
            one.wait_for_reader()
            other.wait_for_reader()

            one.tokens, other.tokens = chain(1, 400), chain(9000, 400)

            def conflict() -> bool:
                if one.next_seq < 400:
                    one.grow()
                    other.grow()
                time.sleep(0.05)
                found = stream(service, "a")
                said = found["state"] == "conflict" and "two publishers" in found.get("last_error", "")
                return said and not found["trusted"]

            until(conflict)
            assert scores(service, one.tokens) == {} == scores(service, other.tokens)


@pytest.mark.parametrize("behind", [-2, -1, 0, 1])
def test_a_second_publisher_is_not_taken_for_the_engine(behind: int) -> None:
    """Whatever its numbers, the engine is read, and no publisher is trusted until the other one has left."""
    with bound() as (service, port):
        assert register(service, "a", port, "kv").status == 201
        with Engine(port, "kv", chain(1)) as engine:
            engine.wait_for_reader()
            for _ in range(4):
                engine.grow()
            until(lambda: scores(service, engine.tokens) == {"a": {"0": 4 * BLOCK_SIZE}})
            with Engine(port, "kv", chain(9000)) as other:
                other.restart(4 + behind)
                other.wait_for_reader()
                other.grow()
                until(lambda: stream(service, "a")["counters"]["rivals"] >= 1)
                found = stream(service, "a")
                assert (found["state"], found["trusted"]) == ("conflict", False)
                assert "two publishers" in found["last_error"]
                assert metric(service, 'kvatlas_stream_rivals_total{worker="a",rank="0"}') >= 1
                engine.grow()
                until(lambda: stream(service, "a")["seq"] == 4)
                assert scores(service, engine.tokens) == {} == scores(service, other.tokens)
            until(lambda: scores(service, engine.tokens) == {"a": {"0": 5 * BLOCK_SIZE}})
            assert scores(service, other.tokens) == {}
            assert "last_error" not in stream(service, "a")


def test_the_replay_socket_shows_which_publisher_is_the_engine() -> None:
    with bound() as (service, port), Engine(port, "kv", chain(1), replay=True) as engine:
        assert register(service, "a", port, "kv", replay_endpoint=engine.replay_endpoint).status == 201
        engine.wait_for_reader()
        for _ in range(4):
            engine.grow()
        until(lambda: scores(service, engine.tokens) == {"a": {"0": 4 * BLOCK_SIZE}})
        with Engine(port, "kv", chain(9000)) as other:
            other.restart(engine.next_seq)
            other.wait_for_reader()
            other.grow()
            until(lambda: stream(service, "a")["counters"]["rivals"] == 1)
            assert scores(service, engine.tokens) == {}
            engine.grow()
            until(lambda: scores(service, engine.tokens) == {"a": {"0": 5 * BLOCK_SIZE}})
            other.grow()
            engine.grow()
            until(lambda: scores(service, engine.tokens) == {"a": {"0": 6 * BLOCK_SIZE}})
            assert scores(service, other.tokens) == {}
            assert stream(service, "a")["epoch"] == 0


def greeting() -> bytes:
    """The bytes that a publisher sends before its messages."""
    ready = b"\x05READY\x0bSocket-Type\0\0\0\x03PUB"
    return b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL".ljust(64, b"\0") + bytes([4, len(ready)]) + ready


def test_a_connection_that_nobody_has_any_more_gives_way() -> None:
    with bound() as (service, port), Engine(port, "kv", chain(1)) as engine:
        assert register(service, "a", port, "kv").status == 201
        with socket.create_connection(("127.0.0.1", port), DEADLINE) as lost:
            # The engine's, before the network failed: it answers nothing any more, and does not end.
            engine.grow(live=False)
            frames = [b"kv", bytes(8), payload(engine.block(0), rank=0)]
            sent = b"".join(bytes([int(at < 2), len(frame)]) + frame for at, frame in enumerate(frames))
            lost.sendall(greeting() + sent)
            until(lambda: scores(service, engine.tokens) == {"a": {"0": BLOCK_SIZE}})
            engine.wait_for_reader()
            engine.grow()
            until(lambda: stream(service, "a")["counters"]["rivals"] == 1)
            assert not stream(service, "a")["trusted"]
            until(lambda: scores(service, engine.tokens) == {"a": {"0": 2 * BLOCK_SIZE}})
            assert stream(service, "a")["unverified"]


def test_what_a_number_alone_says_is_marked_and_left_out_if_asked_for() -> None:
    with bound() as (service, port):
        assert register(service, "a", port, "kv").status == 201
        assert register(service, "b", port, "kv-b").status == 201
        with Engine(port, "kv-b", chain(1)) as other:
            other.wait_for_reader()
            other.grow()
            with Engine(port, "kv", chain(1)) as engine:
                engine.wait_for_reader()
                for _ in range(10):
                    engine.grow()
                until(lambda: scores(service, engine.tokens).get("a") == {"0": 10 * BLOCK_SIZE})
                assert "unverified" not in asked(service, engine.tokens)
            until(lambda: "a" not in scores(service, engine.tokens))
            with Engine(port, "kv", chain(9000)) as restarted:
                # It holds none of the known blocks, but its numbers continue, so this cannot be noticed.
                restarted.restart(engine.next_seq)
                restarted.wait_for_reader()
                restarted.grow()
                until(lambda: "a" in scores(service, engine.tokens))
                marked = asked(service, engine.tokens)
                assert marked["unverified"] == [{"instance_id": "a", "dp_rank": 0}]
                assert marked["scores"]["a"] == {"0": 10 * BLOCK_SIZE}
                strict = asked(service, engine.tokens, strict=True)
                assert (strict["scores"], strict["unverified"]) == ({"b": {"0": BLOCK_SIZE}}, marked["unverified"])
                batch = {"model_name": MODEL, "queries": [{"token_ids": engine.tokens}], "strict": True}
                answer = ask(service.address, "POST", "/query_batch", batch).json
                assert answer["workers"] == [{"instance_id": "b", "dp_rank": 0}]
                assert answer["unverified"] == marked["unverified"]
                with Client(f"http://{service.address}") as client:
                    for kept, strictly in (({"a", "b"}, False), ({"b"}, True)):
                        found = client.query(tokens=engine.tokens, model=MODEL, strict=strictly)
                        assert {depth.worker for depth in found.workers} == kept
                        assert found.unverified == (("a", 0),)
                        several = client.query_batch([engine.tokens], model=MODEL, strict=strictly)
                        assert set(several.answers[0].token_scores()) == kept
                        assert several.unverified == (("a", 0),)
                body = struct.pack(f"<{len(engine.tokens)}I", *engine.tokens)
                path = f"/query?model_name={MODEL}&strict=1"
                octets = {"Content-Type": "application/octet-stream"}
                with Connection(service.address) as connection:
                    assert set(connection.ask("POST", path, body, headers=octets).json["scores"]) == {"b"}


def asked(service: Service, tokens: list[int], **more: Any) -> dict[str, Any]:
    answer = ask(service.address, "POST", "/query", {"model_name": MODEL, "token_ids": tokens} | more)
    assert answer.status == 200, answer
    return dict(answer.json)


def test_addresses_that_are_not_allowed_are_refused() -> None:
    with bound(allow=["10.0.0.0/8"]) as (service, port), Engine(port, "kv-a", chain(1)) as engine:
        assert register(service, "a", port, "kv-a").status == 201, "nothing is connected to"
        name = 'kvatlas_publishers_refused_total{reason="not_allowed"}'
        until(lambda: metric(service, name) > 1)
        engine.grow()
        assert metric(service, "kvatlas_publishers") == 0
        assert stream(service, "a")["state"] == "connecting"


def test_strangers_hold_no_place() -> None:
    with bound(limits={"streams": 2}) as (service, port):
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            name = 'kvatlas_publishers_refused_total{reason="too_many"}'
            until(lambda: metric(service, name) >= 1)
            until(lambda: metric(service, "kvatlas_publishers") == 0)  # they shake no hands
        with (
            socket.create_connection(("127.0.0.1", port), DEADLINE) as other,
            contextlib.suppress(ConnectionResetError),
        ):
            other.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while other.recv(1000):
                pass
        assert register(service, "a", port, "kv-a").status == 201
        with Engine(port, "kv-a", chain(1)) as engine:
            engine.wait_for_reader()
            engine.grow()
            until(lambda: scores(service, engine.tokens) == {"a": {"0": BLOCK_SIZE}})


def test_registrations_that_cannot_be() -> None:
    with bound() as (service, port):
        answer = register(service, "a", 1, "kv-a")
        assert (answer.status, answer.code) == (409, "not_listening")
        assert "--streams-bind 0.0.0.0:1" in answer.body.decode()
        assert register(service, "a", port, "kv-a").status == 201
        assert register(service, "a", port, "kv-a").status == 200, "the same again"
        answer = register(service, "b", port, "kv-a")
        assert (answer.status, answer.code) == (409, "topic_taken")
        assert ask(service.address, "POST", "/unregister", {"instance_id": "a"}).status == 200
        assert register(service, "b", port, "kv-a").status == 201
        for bad in ("bind://", "bind://0", "bind://x", "bind://70000"):
            answer = register(service, "c", port, "kv-c", endpoint=bad)
            assert (answer.status, answer.code) == (400, "invalid_endpoint")
        answer = register(service, "c", port, "kv-c", replay_endpoint=f"bind://{port}")
        assert (answer.status, answer.code) == (400, "invalid_endpoint")
