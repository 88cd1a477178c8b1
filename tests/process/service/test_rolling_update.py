"""Two replicas are replaced one after the other, as Kubernetes does it: a ready replica answers all the time, and
right.

Real processes of `kvatlas serve` behind one name, simulated engines whose replay buffers are too short to start from,
a client that asks a ready replica, and the engines themselves as the judges of every answer.
"""

from __future__ import annotations

import http.client
import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked import ForkedCommand
from tests.support.waiting import until

from kvatlas.sim import EngineConfig
from kvatlas.sim.server import EngineHandle, Fleet, Query, ServerConfig
from kvatlas.sim.server.ports import free_block

from .named import know

BLOCK = 4
MODEL = "sim-model"
NAME = "kvatlas-peers.test"
DEADLINE = 60.0
# Without learning: what a replica knows, it knows from the snapshot and the replay.
FLAGS = ("--adopt-share", "0", "--probe-interval", "0.5s", "--replay-timeout", "30s", "--drain-delay", "1s")


def _stream(engine: EngineHandle) -> str:
    where = f"{engine.endpoint()},replay_endpoint={engine.replay_endpoint()}"
    return f"{engine.name}={where},model={MODEL},block_size={BLOCK}"


class Replica:
    """A process at an address of its own, as a pod has it."""

    def __init__(self, address: str, port: int, zone: Path, engines: list[EngineHandle], *more: str) -> None:
        self.address, self.port = address, port
        streams = [flag for engine in engines for flag in ("--stream", _stream(engine))]
        bind = ("--bind", f"{address}:{port}")
        before = partial(know, NAME, zone)
        self.process = ForkedCommand("serve", *bind, *FLAGS, *streams, *more, logs=False, before=before)

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status and answer. Raises `OSError` if it does not answer."""
        connection = http.client.HTTPConnection(self.address, self.port, timeout=DEADLINE)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()

    def is_ready(self) -> bool:
        try:
            return self.ask("GET", "/ready")[0] == 200
        except OSError:
            return False

    def streams(self) -> dict[str, dict[str, Any]]:
        status, listed = self.ask("GET", "/workers")
        assert status == 200
        return {worker["instance_id"]: worker["streams"]["0"] for worker in listed}

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Cluster:
    """Looks all the time who is ready, and gives the name their addresses: what Kubernetes does for a Service."""

    def __init__(self, zone: Path) -> None:
        self.zone = zone
        self.pods: list[Replica] = []
        self.ready: list[Replica] = []
        self._stop = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _write(self) -> None:
        fresh = self.zone.with_suffix(".new")
        fresh.write_text("\n".join(pod.address for pod in self.ready))
        fresh.replace(self.zone)

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            self.ready = [pod for pod in list(self.pods) if pod.is_ready()]
            self._write()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for pod in self.pods:
            pod.end()


class Client:
    """Sends each engine requests, lets it come to rest, and asks every replica that is ready about the same prompts."""

    def __init__(self, cluster: Cluster, engines: list[EngineHandle]) -> None:
        self.cluster, self.engines = cluster, engines
        self.random = random.Random(5)
        self.system = [self.random.randrange(9_000) for _ in range(24)]
        self.rounds = self.answers = self.hits = 0

    def prompt(self) -> list[int]:
        return self.system + [self.random.randrange(40) for _ in range(self.random.randrange(4, 24))]

    def load(self, requests: int) -> list[list[int]]:
        sent = [self.prompt() for _ in range(requests)]
        for prompt in sent:
            self.random.choice(self.engines).complete(prompt, 6)
        return sent

    def round(self) -> None:
        """One look at everything, while the engines rest."""
        prompts = [*self.load(4), self.system, self.prompt()]
        last = {engine.name: engine.wait_quiet()[0].seq for engine in self.engines}
        truths = {engine.name: engine.match_all([Query(prompt) for prompt in prompts]) for engine in self.engines}
        end = time.monotonic() + DEADLINE
        answered = 0
        while not answered:  # readiness may be a moment old: like any client, try the others
            ready = list(self.cluster.ready)
            assert ready, "nobody is ready"
            assert time.monotonic() < end, "those that are said to be ready do not answer"
            answered = sum(self._judged(pod, prompts, truths, last) for pod in ready)
        self.rounds += 1

    def _judged(
        self, pod: Replica, prompts: list[list[int]], truths: dict[str, Any], last: dict[str, int | None]
    ) -> bool:
        """True if the replica answered. Fails unless it then answers as the engines would."""
        try:
            end = time.monotonic() + DEADLINE
            while True:
                streams = pod.streams()
                if all(stream["seq"] == last[name] for name, stream in streams.items()):
                    break
                assert time.monotonic() < end, f"{pod.address} does not hear the last batches: {streams}, not {last}"
                time.sleep(0.01)
            answers = [pod.ask("POST", "/query", {"token_ids": prompt, "model_name": MODEL})[1] for prompt in prompts]
        except OSError:
            return False
        assert len(streams) == len(self.engines)
        for name, stream in streams.items():
            assert stream["trusted"], f"{pod.address} is ready, but not sure of {name}: {stream}"
            assert not stream["partial"], f"{pod.address} is ready, but not whole: {stream}"
        for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            assert "untrusted" not in answer
            for engine in self.engines:
                told = answer["scores"].get(engine.name, {}).get("0", 0)
                right = truths[engine.name][number].held * BLOCK
                assert told == right, f"{pod.address} says {told} tokens, {engine.name} has {right}, of {prompt}"
                self.answers += 1
                self.hits += right > 0
        return True


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    engine = EngineConfig(block_size=BLOCK, blocks=150, prefill_rate=1e6, decode_rate=1e5)
    # 60 batches: enough between a snapshot and the question for the rest, far too few to begin with.
    with Fleet(2, ServerConfig(engine=engine, model=MODEL, buffer_steps=60)) as fleet:
        yield fleet


@pytest.mark.slow
def test_replicas_are_replaced_one_after_the_other(fleet: Fleet, tmp_path: Path) -> None:
    port = free_block("127.0.0.1")
    zone = tmp_path / "zone"
    peer = ("--peer-snapshot", f"dns:{NAME}:{port}")
    engines = list(fleet.engines)
    with ExitStack() as stack:
        cluster = Cluster(zone)
        stack.callback(cluster.close)
        client = Client(cluster, engines)
        pods = [Replica(f"127.0.0.{number}", port, zone, engines, *peer) for number in (2, 3)]
        cluster.pods += pods
        until(lambda: len(cluster.ready) == 2, "ready")
        client.load(300)
        assert all((engine.state()[0].seq or 0) > 60 + 30 for engine in engines)

        # Who begins now with nothing but the replay buffer does not know how the prompts begin, and says so.
        late = Replica("127.0.0.9", port, zone, engines)
        stack.callback(late.end)
        until(late.is_ready, "ready")
        assert all(stream["partial"] for stream in late.streams().values())
        late.end()

        client.round()
        failures: list[BaseException] = []

        def update() -> None:
            try:
                for number, old in enumerate(pods):
                    old.process.send_signal(signal.SIGTERM)
                    assert old.process.wait(DEADLINE) == 0, "requests were cut off"
                    cluster.pods.remove(old)
                    new = Replica(f"127.0.0.{4 + number}", port, zone, engines, *peer)
                    cluster.pods.append(new)
                    until(lambda new=new: new in cluster.ready, "ready")
                    assert {stream["snapshot"]["from"] for stream in new.streams().values()} == {"peer"}
                    assert {stream["snapshot"]["outcome"] for stream in new.streams().values()} == {"kept"}
            except BaseException as error:  # noqa: BLE001 - raised by the test
                failures.append(error)

        updating = threading.Thread(target=update)
        updating.start()
        try:
            while updating.is_alive():
                client.round()
        finally:
            updating.join()
        assert not failures, failures
        assert [pod.address for pod in cluster.pods] == ["127.0.0.4", "127.0.0.5"]
        client.round()
        assert client.rounds > 5
        assert client.hits > client.answers / 4
