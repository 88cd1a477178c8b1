"""`kvatlas relay` and `kvatlas serve --from` as a user starts them, without NATS, before simulated engines.

The engines judge what the reader says of them. `crates/service/tests/streams` has what may go wrong between the two.
"""

from __future__ import annotations

import http.client
import json
import random
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import zmq
from tests.support.forked import ForkedCommand
from tests.support.waiting import until

from kvatlas.sim import EngineConfig
from kvatlas.sim.server import EngineHandle, Fleet, Query, ServerConfig
from kvatlas.sim.server.ports import free_block

BLOCK = 4
MODEL = "sim-model"
DEADLINE = 60.0
FLAGS = ("--adopt-share", "0", "--relay-heartbeat", "200ms", "--relay-lost-after", "2s")


class Node:
    """A process of `kvatlas` at a port of its own."""

    def __init__(self, command: str, *flags: str) -> None:
        self.port = free_block("127.0.0.1")
        bind = ("--bind", f"127.0.0.1:{self.port}")
        self.process = ForkedCommand(command, *bind, *FLAGS, *flags, logs=False)

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def is_ready(self) -> bool:
        try:
            return self.ask("GET", "/ready")[0] == 200
        except OSError:
            return False

    def trusted(self) -> int:
        """The number of engines that the service is sure of."""
        return sum(worker["streams"]["0"]["trusted"] for worker in self.ask("GET", "/workers")[1])

    def is_right(self, engines: list[EngineHandle], prompts: list[list[int]]) -> bool:
        """True if the service says of all engines, which rest, what they hold."""
        truths = {engine.name: engine.match_all([Query(prompt) for prompt in prompts]) for engine in engines}
        for number, prompt in enumerate(prompts):
            answer = self.ask("POST", "/query", {"token_ids": prompt, "model_name": MODEL})[1]
            if "untrusted" in answer or "scores" not in answer:
                return False
            for engine in engines:
                told = answer["scores"].get(engine.name, {}).get("0", 0)
                if told != truths[engine.name][number].held * BLOCK:
                    return False
        return True

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    engine = EngineConfig(block_size=BLOCK, blocks=150, prefill_rate=1e6, decode_rate=1e5)
    with Fleet(2, ServerConfig(engine=engine, model=MODEL)) as fleet:
        yield fleet


def test_a_reader_says_what_the_engines_hold(fleet: Fleet, tmp_path: Path) -> None:
    engines = list(fleet.engines)
    streams = [
        f"{engine.name}={engine.endpoint()},replay_endpoint={engine.replay_endpoint()},model={MODEL},block_size={BLOCK}"
        for engine in engines
    ]
    follow = [flag for stream in streams for flag in ("--stream", stream)]
    at = f"tcp://127.0.0.1:{free_block('127.0.0.1')}"
    draw = random.Random(5)
    system = [draw.randrange(9_000) for _ in range(24)]

    def load(requests: int) -> list[list[int]]:
        prompts = [system + [draw.randrange(40) for _ in range(draw.randrange(4, 24))] for _ in range(requests)]
        for prompt in prompts:
            draw.choice(engines).complete(prompt, 6)
        for engine in engines:
            engine.wait_quiet()
        return [*prompts[-8:], system]

    with ExitStack() as stack:

        def node(command: str, *flags: str) -> Node:
            started = Node(command, *flags)
            stack.callback(started.end)
            return started

        snapshots = ("--snapshot-dir", str(tmp_path), "--snapshot-every", "200ms")
        relay, reader = node("relay", "--publish", at, *follow), node("serve", "--from", at, *snapshots)
        until(relay.is_ready, "ready")
        until(reader.is_ready, "ready")
        prompts = load(60)
        until(lambda: reader.is_right(engines, prompts), "right")
        assert any(engine.match_all([Query(system)])[0].held for engine in engines)
        until(
            lambda: reader.ask("GET", "/health")[1]["relay"] == {"connected": True, "error": None},
            "said to be connected",
        )

        relay.end()
        until(lambda: reader.trusted() == 0, "unsure")
        prompts = load(40)
        assert reader.trusted() == 0
        until(lambda: not reader.ask("GET", "/health")[1]["relay"]["connected"], "said to be away")
        relay = node("relay", "--publish", at, *follow)
        until(lambda: reader.is_right(engines, prompts), "right again")

        reader.end()
        prompts = load(40)
        reader = node("serve", "--from", at, *snapshots)
        until(reader.is_ready, "ready")
        until(lambda: reader.is_right(engines, prompts), "right after a restart")
        prompts = load(40)
        until(lambda: reader.is_right(engines, prompts), "right to the end")


class HostileRelay(threading.Thread):
    """Follows the protocol of a relay, and sends what it is given as the messages of one stream."""

    def __init__(self, frames: list[bytes]) -> None:
        super().__init__()
        self.asked = 0
        self._frames = frames
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self.url = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.is_set():
            if not self._socket.poll(20):
                continue
            reader, _, said = self._socket.recv_multipart()
            if said[:1] == b"K":
                behind, first = struct.pack(">Q", 100 + len(self._frames)), struct.pack(">Q", 100)
                self._socket.send_multipart([reader, b"", b"", behind, first + said[1:]])
            elif said[:1] == b"F":
                for number, frames in enumerate(self._frames):
                    head = b"\xc1\x01" + struct.pack("<Q", 7) + bytes([number, BLOCK, 0]) + bytes(8)
                    place = struct.pack(">Q", 100 + number)
                    self._socket.send_multipart([reader, b"", b"kvatlas.default.m.w.0", place, head + frames])
            else:
                self.asked += 1
        self._socket.close()
        self._context.term()

    def end(self) -> None:
        self._ended.set()
        self.join()


# Of 2**24 blocks, in one run: removed, or stored on another tier; and one block stored 2**16 times, again and again.
RUN = b"\x80\x80\x80\x08\x01\xfc\xff\xff\x0f"
COPIES = b"\x40\x80\x80\x04\x01\x00" + bytes(8)


@pytest.mark.parametrize("changes", [b"\x02" + RUN, b"\x01" + RUN, COPIES * 5], ids=["removed", "known", "copies"])
def test_few_bytes_of_a_relay_do_not_become_much(changes: bytes) -> None:
    trusted = b"\x07\x01"
    batch = b"\x01\x00" + bytes([len(changes)]) + changes
    assert len(changes) < 100
    with ExitStack() as stack:
        relay = HostileRelay([b"\x02" + trusted, trusted, b"\x01\x00\x01\x03" + batch + trusted])
        relay.start()
        stack.callback(relay.end)
        node = Node("serve", "--from", relay.url)
        stack.callback(node.end)

        def stream() -> dict[str, Any]:
            (worker,) = node.ask("GET", "/workers")[1]
            return dict(worker["streams"]["0"])

        def is_registered() -> bool:
            try:
                return bool(node.ask("GET", "/workers")[1])
            except OSError:
                return False

        until(is_registered, "registered")
        until(lambda: stream()["counters"]["undecodable_batches"] == 1, "refused")
        until(lambda: relay.asked, "asked for all that it holds")
        found = stream()
        assert "more blocks" in found["last_error"]
        assert not found["trusted"]
        status = Path(f"/proc/{node.process.pid}/status").read_text()
        assert int(status.partition("VmHWM:")[2].split()[0]) >> 10 < 200, "MiB"
