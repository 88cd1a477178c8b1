"""Engines that connect their publisher to the service, over real sockets."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any, Self

import msgspec
import zmq

from kvatlas._native import Service
from kvatlas.sim.server.ports import free_block

from .dialect.tools import BLOCK_SIZE, DEADLINE, MODEL, Answer, ask, running, stored, until

FAST: dict[str, Any] = {"reconnect_min": 0.02, "probe_interval": 0.2, "reorder_grace": 0.02, "settle_timeout": 0.5}


@contextlib.contextmanager
def bound(**streams: Any) -> Iterator[tuple[Service, int]]:
    port = free_block("127.0.0.1")
    with running(FAST | {"bind": [f"127.0.0.1:{port}"]} | streams) as service:
        yield service, port


class Engine:
    """An engine whose publisher connects, with blocks of its own, and with a replay socket if asked for."""

    def __init__(self, port: int, topic: str, tokens: list[int], *, replay: bool = False) -> None:
        self.topic, self.tokens = topic.encode(), tokens
        self.batches: list[list[bytes]] = []
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._publisher = self._context.socket(zmq.XPUB)
        self._publisher.linger = 0
        self._publisher.reconnect_ivl = 20
        self._publisher.connect(f"tcp://127.0.0.1:{port}")
        self._stop = threading.Event()
        self.replay_endpoint: str | None = None
        self._thread: threading.Thread | None = None
        if replay:
            router = self._context.socket(zmq.ROUTER)
            router.linger = 0
            self.replay_endpoint = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"
            self._thread = threading.Thread(target=self._serve, args=[router])
            self._thread.start()

    def _serve(self, router: zmq.Socket[bytes]) -> None:
        while not self._stop.is_set():
            if router.poll(20):
                identity, empty, start = router.recv_multipart()
                for batch in self.batches[struct.unpack(">Q", start)[0] :]:
                    router.send_multipart([identity, empty, *batch])
                router.send_multipart([identity, empty, b"", b"\xff" * 8, b""])
        router.close()

    def connected(self) -> Engine:
        """Once somebody has subscribed: what is published before is lost."""
        until(lambda: self._publisher.poll(50) and self._publisher.recv().startswith(b"\x01"))
        return self

    def publish(self, *, live: bool = True) -> None:
        """One block more of its chain."""
        at = len(self.batches)
        tokens = self.tokens[at * BLOCK_SIZE : (at + 1) * BLOCK_SIZE]
        event = stored([self.tokens[0] * 1000 + at], tokens, parent=self.tokens[0] * 1000 + at - 1 if at else None)
        payload = msgspec.msgpack.encode([time.time(), [event], 0])
        self.batches.append([self.topic, struct.pack(">Q", at), payload])
        if live:
            self._publisher.send_multipart(self.batches[-1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._publisher.close()
        self._context.term()


def register(service: Service, worker: str, port: int, topic: str, **more: Any) -> Answer:
    about = {"instance_id": worker, "endpoint": f"bind://{port}", "topic": topic}
    body = about | {"model_name": MODEL, "block_size": BLOCK_SIZE} | {k: v for k, v in more.items() if v is not None}
    return ask(service.address, "POST", "/register", body)


def scores(service: Service, tokens: list[int]) -> dict[str, dict[str, int]]:
    """What trusted workers hold of a prompt."""
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
                engine.connected()
                for _ in range(3):
                    engine.publish()
            until(lambda: scores(service, a.tokens) == {"a": {"0": 3 * BLOCK_SIZE}})
            until(lambda: scores(service, b.tokens) == {"b": {"0": 3 * BLOCK_SIZE}})
            assert metric(service, "kvatlas_publishers") == 2
        until(lambda: metric(service, "kvatlas_publishers") == 0)
        until(lambda: scores(service, chain(1)) == {})  # nothing is trusted without a connection


def test_a_replay_socket_makes_it_whole() -> None:
    with bound() as (service, port), Engine(port, "kv-a", chain(1), replay=True) as engine:
        for _ in range(5):
            engine.publish(live=False)  # before anybody listened
        assert register(service, "a", port, "kv-a", replay_endpoint=engine.replay_endpoint).status == 201
        engine.connected()
        engine.publish()
        until(lambda: scores(service, engine.tokens) == {"a": {"0": 6 * BLOCK_SIZE}})
        assert not stream(service, "a").get("partial")
        engine.publish(live=False)  # lost
        until(lambda: scores(service, engine.tokens) == {"a": {"0": 7 * BLOCK_SIZE}})


def test_without_a_replay_socket_it_says_that_it_began_late() -> None:
    with bound() as (service, port), Engine(port, "kv-a", chain(1)) as engine:
        assert register(service, "a", port, "kv-a").status == 201
        engine.publish(live=False)
        engine.connected()
        engine.publish()
        until(lambda: stream(service, "a").get("partial"))


def test_an_unknown_topic_is_counted_and_known_later() -> None:
    with bound() as (service, port), Engine(port, "kv-late", chain(1), replay=True) as engine:
        engine.connected()
        for _ in range(3):
            engine.publish()
        until(lambda: metric(service, "kvatlas_unknown_topic_batches_total") == 3)
        assert register(service, "a", port, "kv-late", replay_endpoint=engine.replay_endpoint).status == 201
        # It does not take another batch: the connection is known by the topic of those before.
        until(lambda: scores(service, engine.tokens) == {"a": {"0": 3 * BLOCK_SIZE}})
        engine.publish()
        until(lambda: scores(service, engine.tokens) == {"a": {"0": 4 * BLOCK_SIZE}})
        assert metric(service, "kvatlas_unknown_topic_batches_total") == 3


def test_a_prefix_of_a_topic_is_another_topic() -> None:
    with bound() as (service, port), Engine(port, "kv-a2", chain(1)) as engine:
        assert register(service, "a", port, "kv-a").status == 201
        engine.connected()
        engine.publish()
        until(lambda: metric(service, "kvatlas_unknown_topic_batches_total") == 1)
        assert stream(service, "a")["state"] == "connecting"


def test_an_engine_that_restarts() -> None:
    with bound() as (service, port):
        with Engine(port, "kv-a", chain(1)) as engine:
            assert register(service, "a", port, "kv-a").status == 201
            engine.connected()
            for _ in range(4):
                engine.publish()
            until(lambda: scores(service, engine.tokens) == {"a": {"0": 4 * BLOCK_SIZE}})
        until(lambda: stream(service, "a")["state"] != "live")
        with Engine(port, "kv-a", chain(500)) as other:
            other.connected()
            other.publish()
            until(lambda: scores(service, other.tokens) == {"a": {"0": BLOCK_SIZE}})
            assert scores(service, engine.tokens) == {}, "of the life before"


def test_two_publishers_with_one_topic_are_not_trusted() -> None:
    with bound() as (service, port):
        assert register(service, "a", port, "kv").status == 201
        with Engine(port, "kv", chain(1)) as one, Engine(port, "kv", chain(9000)) as other:
            one.connected()
            other.connected()

            one.tokens, other.tokens = chain(1, 400), chain(9000, 400)

            def conflict() -> bool:
                if len(one.batches) < 400:
                    one.publish()
                    other.publish()
                time.sleep(0.05)
                found = stream(service, "a")
                said = found["state"] == "conflict" and "two publishers" in found.get("last_error", "")
                return said and not found["trusted"]

            until(conflict)
            assert scores(service, one.tokens) == {} == scores(service, other.tokens)


def test_addresses_that_are_not_allowed_are_refused() -> None:
    with bound(allow=["10.0.0.0/8"]) as (service, port), Engine(port, "kv-a", chain(1)) as engine:
        assert register(service, "a", port, "kv-a").status == 201, "nothing is connected to"
        name = 'kvatlas_publishers_refused_total{reason="not_allowed"}'
        until(lambda: metric(service, name) > 1)
        engine.publish()
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
            engine.connected()
            engine.publish()
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
