"""`kvatlas relay` and `kvatlas serve --from` as a user starts them, with `nats-server` between them.

The simulated engines judge the reader's answers. `crates/follow/tests/streams/relay.rs` has faults between the two.
"""

from __future__ import annotations

import http.client
import json
import random
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
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
def nats(tmp_path: Path) -> Iterator[int]:
    """The port of a `nats-server` with JetStream."""
    command = shutil.which("nats-server")
    if command is None:
        pytest.skip("nats-server is not installed: apt-get install nats-server")
    port = free_block("127.0.0.1")
    flags = ("-js", "-a", "127.0.0.1", "-p", str(port), "-sd", str(tmp_path / "nats"))
    server = subprocess.Popen((command, *flags), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: is_listening(port), "nats-server listens")
        yield port
    finally:
        server.kill()
        server.wait()


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    engine = EngineConfig(block_size=BLOCK, blocks=150, prefill_rate=1e6, decode_rate=1e5)
    with Fleet(2, ServerConfig(engine=engine, model=MODEL)) as fleet:
        yield fleet


def test_a_reader_says_what_the_engines_hold(fleet: Fleet, nats: int, tmp_path: Path) -> None:
    engines = list(fleet.engines)
    streams = [
        f"{engine.name}={engine.endpoint()},replay_endpoint={engine.replay_endpoint()},model={MODEL},block_size={BLOCK}"
        for engine in engines
    ]
    follow = [flag for stream in streams for flag in ("--stream", stream)]
    at = f"nats://127.0.0.1:{nats}"
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

        snapshots = ("--snapshot-dir", str(tmp_path / "snapshots"), "--snapshot-every", "200ms")
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
        relay = node("relay", "--publish", at, *follow)
        until(lambda: reader.is_right(engines, prompts), "right again")

        reader.end()
        prompts = load(40)
        reader = node("serve", "--from", at, *snapshots)
        until(reader.is_ready, "ready")
        until(lambda: reader.is_right(engines, prompts), "right after a restart")
        prompts = load(40)
        until(lambda: reader.is_right(engines, prompts), "right to the end")


class HostileRelay:
    """Speaks NATS as a relay does, and publishes what it is given as the messages of one stream."""

    def __init__(self, port: int) -> None:
        self.asked = threading.Event()
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)
        self._lines = self._socket.makefile("rb")
        self._lines.readline()  # INFO
        self._send(b'CONNECT {"verbose": false}\r\nSUB ask-kvatlas.> 1\r\nSUB _INBOX.made 2\r\n')
        log = json.dumps({"name": "kvatlas", "subjects": ["kvatlas.>"], "storage": "memory"}).encode()
        self._publish(b"$JS.API.STREAM.CREATE.kvatlas _INBOX.made", log)
        while not self._lines.readline().startswith(b"MSG _INBOX.made"):
            pass
        threading.Thread(target=self._listen, daemon=True).start()

    def publish(self, number: int, frames: bytes) -> None:
        head = b"\xc1\x01" + struct.pack("<Q", 7) + bytes([number, BLOCK, 0]) + bytes(8)
        self._publish(b"kvatlas.default.m.w.0", head + frames)

    def end(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _publish(self, to: bytes, payload: bytes) -> None:
        self._send(b"PUB %s %d\r\n%s\r\n" % (to, len(payload), payload))

    def _send(self, said: bytes) -> None:
        self._socket.sendall(said)

    def _listen(self) -> None:
        for line in self._lines:
            if line.startswith(b"MSG ask-kvatlas."):
                self.asked.set()
            elif line.startswith(b"PING"):
                self._send(b"PONG\r\n")


# Of 2**24 blocks, in one run: removed, or stored on another tier; and one block stored 2**16 times, again and again.
RUN = b"\x80\x80\x80\x08\x01\xfc\xff\xff\x0f"
COPIES = b"\x40\x80\x80\x04\x01\x00" + bytes(8)


@pytest.mark.parametrize("changes", [b"\x02" + RUN, b"\x01" + RUN, COPIES * 5], ids=["removed", "known", "copies"])
def test_few_bytes_of_a_relay_do_not_become_much(nats: int, changes: bytes) -> None:
    trusted = b"\x07\x01"
    batch = b"\x01\x00" + bytes([len(changes)]) + changes
    assert len(changes) < 100
    with ExitStack() as stack:
        relay = HostileRelay(nats)
        stack.callback(relay.end)
        node = Node("serve", "--from", f"nats://127.0.0.1:{nats}")
        stack.callback(node.end)
        until(node.is_ready, "ready")
        for number, frames in enumerate([b"\x02" + trusted, trusted, b"\x01\x00\x01\x03" + batch + trusted]):
            relay.publish(number, frames)

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
        until(relay.asked.is_set, "asked for all that it holds")
        found = stream()
        assert "more blocks" in found["last_error"]
        assert not found["trusted"]
        status = Path(f"/proc/{node.process.pid}/status").read_text()
        assert int(status.partition("VmHWM:")[2].split()[0]) >> 10 < 200, "MiB"
