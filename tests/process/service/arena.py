"""Simulated engines of every kind and a service that follows them, in processes of their own, for things to go wrong.

`compare` asks the engines and the service the same questions: at a quiet point the answers must be equal.
"""

from __future__ import annotations

import http.client
import json
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from tests.support.forked import ForkedCommand

from kvatlas.errors import KvatlasError
from kvatlas.sim import EngineConfig
from kvatlas.sim.server import EngineHandle, Fleet, Query, ServerConfig
from kvatlas.sim.server.faults import CHANCES
from kvatlas.sim.server.ports import free_block

BLOCK = 4
MODEL = "sim-model"
LORA = "tuned"
FAST = ("--replay-timeout", "250ms", "--replay-total-timeout", "3s", "--probe-interval", "500ms")
LONGEST_DOUBT = 600.0  # seconds, after many contradictions
PATIENCE = 60.0  # seconds, for what must happen in the end
CALM: dict[str, Any] = dict.fromkeys(CHANCES, 0.0)
KINDS = (
    {"dialect": "vllm"},
    {"dialect": "sglang", "ranks": 2},
    {"dialect": "vllm", "hash_bytes": True},
    {"dialect": "vllm", "arrays": True, "replay_socket": "old"},
)
FORGETFUL = ({"dialect": "vllm", "replay_socket": "none"}, {"dialect": "sglang", "buffer_steps": 20})
"""Engines that cannot say what was lost, or not for long."""


class Service:
    """`kvatlas serve` as a process that can be killed and started again."""

    def __init__(self, engines: list[EngineHandle], *flags: str) -> None:
        self.port = free_block("127.0.0.1")
        self.command = ["serve", "--bind", f"127.0.0.1:{self.port}", *flags]
        for engine in engines:
            for rank in range(engine.config.ranks):
                replay = engine.replay_endpoint(rank)
                worker = f"{engine.name}={engine.endpoint(rank)},rank={rank},model={MODEL},block_size={BLOCK}"
                self.command += ["--stream", worker + (f",replay_endpoint={replay}" if replay else "")]
        self.process: ForkedCommand | None = None

    def start(self) -> None:
        self.process = ForkedCommand(*self.command, logs=False)
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self.call("GET", "/health")
            except OSError:
                assert self.process.poll() is None, f"the service ended with {self.process.returncode}"
                assert time.monotonic() < end, "the service does not listen"
                time.sleep(0.02)
            else:
                return

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """End the service with SIGTERM. Returns the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def end(self) -> None:
        """End the service as `stop` does, unless it has ended."""
        if self.process is not None and self.process.poll() is None:
            assert self.stop() == 0

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            data = response.read()
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()
        try:
            return response.status, json.loads(data)
        except ValueError:
            return response.status, data

    def register(self, engine: EngineHandle, rank: int) -> None:
        """Follow a rank that was unregistered."""
        about = {"instance_id": engine.name, "dp_rank": rank, "endpoint": engine.endpoint(rank)}
        about |= {"replay_endpoint": engine.replay_endpoint(rank), "model_name": MODEL, "block_size": BLOCK}
        status, answer = self.call("POST", "/register", about)
        assert status == 201, answer

    def unregister(self, engine: EngineHandle, rank: int) -> None:
        """Follow a rank no more."""
        status, answer = self.call("POST", "/unregister", {"instance_id": engine.name, "dp_rank": rank})
        assert status == 200, answer

    def register_nobody(self) -> Callable[[], None]:
        """Register a worker that does not answer; returns how to take it back."""
        endpoint = f"tcp://127.0.0.1:{free_block('127.0.0.1')}"
        nobody = {"instance_id": "nobody", "endpoint": endpoint, "model_name": MODEL, "block_size": BLOCK}
        status, answer = self.call("POST", "/register", nobody)
        assert status == 201, answer

        def unregister() -> None:
            assert self.call("POST", "/unregister", {"instance_id": "nobody"})[0] == 200

        return unregister

    def wait_ready(self) -> None:
        """Wait until the service was ready once."""
        end = time.monotonic() + PATIENCE
        while self.call("GET", "/ready")[0] != 200:
            assert time.monotonic() < end, "the service does not become ready"
            time.sleep(0.02)

    def streams(self) -> dict[tuple[str, int], dict[str, Any]]:
        """The service's account of each stream, by worker and rank."""
        status, workers = self.call("GET", "/workers")
        assert status == 200
        return {
            (str(worker["instance_id"]), int(rank)): stream
            for worker in workers
            for rank, stream in worker["streams"].items()
        }


class Arena:
    """Engines, a service, a load, and the comparison."""

    def __init__(self, seed: int = 0, kinds: tuple[dict[str, Any], ...] = KINDS) -> None:
        self.random = random.Random(seed)
        self._stack = ExitStack()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.requests = 0
        self.compared = 0
        self.hits = 0
        self.partial = 0
        prompts = random.Random(seed + 1)
        self._heads = [[prompts.randrange(9_000) for _ in range(prompts.randrange(5, 90))] for _ in range(6)]
        self._asked: list[Query] = []
        self.fleets: list[Fleet] = []
        for number, kind in enumerate(kinds):
            settings = ServerConfig(
                engine=EngineConfig(block_size=BLOCK, blocks=120, prefill_rate=60_000, decode_rate=3_000),
                model=MODEL,
                loras=(LORA,),
                seed=seed + number,
                **kind,
            )
            self.fleets.append(Fleet(1, settings, name=f"kind{number}"))
        self.engines: list[EngineHandle] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for fleet in self.fleets:
                stack.enter_context(fleet)
                self.engines.append(fleet[0])
                stack.callback(fleet[0].close)
            self.service = Service(self.engines, *FAST)
            stack.callback(self.service.end)
            self.service.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.quiesce_load()
        self._stack.close()

    # Load

    def prompt(self, choose: random.Random) -> Query:
        """Something that others have begun with, too."""
        head = choose.choice(self._heads)
        tokens = head[: choose.randrange(1, len(head) + 1)] if choose.random() < 0.3 else list(head)
        tokens += [choose.randrange(50) for _ in range(choose.randrange(12))]
        lora = LORA if choose.random() < 0.2 else None
        salt = choose.choice(("red", "blue")) if choose.random() < 0.25 else None
        return Query(tokens, lora, salt)

    def start_load(self) -> None:
        """Requests to every engine, from a thread each, until `quiesce_load`."""
        self._stop.clear()
        for engine in self.engines:
            seed = self.random.randrange(1 << 30)
            thread = threading.Thread(target=self._load, args=(engine, random.Random(seed)))
            thread.start()
            self._threads.append(thread)

    def _load(self, engine: EngineHandle, choose: random.Random) -> None:
        own = EngineHandle(engine.number, engine.config, engine._process)
        try:
            while not self._stop.is_set():
                query = self.prompt(choose)
                try:
                    own.complete(query.tokens, choose.randrange(1, 30), lora=query.lora, salt=query.salt)
                except KvatlasError:
                    self._stop.wait(0.05)  # it is restarting, or hangs, or was killed
                else:
                    self.requests += 1
                    self._asked.append(query)
        finally:
            own.close()

    def quiesce_load(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def run(self, seconds: float) -> None:
        """Some load."""
        self.start_load()
        self._stop.wait(seconds)
        self.quiesce_load()

    # The comparison

    def calm(self) -> None:
        """Nothing goes wrong any more; everything that was sent has arrived."""
        for engine in self.engines:
            if not engine.alive:
                engine.respawn()
            engine.resume()
            replay = {} if engine.config.replay_socket == "none" else {"replay_socket": "on"}
            engine.faults(**CALM, **replay)
        self.quiesce_load()
        end = time.monotonic() + PATIENCE
        latest = time.monotonic() + LONGEST_DOUBT + PATIENCE
        mute = [engine for engine in self.engines if engine.config.replay_socket == "none"]
        while True:
            for engine in mute:
                engine.settle()  # its state and its last batch are unknown until there is another batch
            wanted = {(e.name, state.rank): state for e in self.engines for state in e.wait_quiet()}
            streams = self.service.streams()
            behind = {
                key: (state.seq, {k: streams.get(key, {}).get(k) for k in ("state", "seq", "trusted", "last_error")})
                for key, state in wanted.items()
                if not (streams.get(key, {}).get("trusted") and streams[key]["seq"] == state.seq)
            }
            if not behind:
                return
            mute = [engine for engine in mute if any(engine.name == name for name, _ in behind)]
            unreadable = {name for (name, _), (_, stream) in behind.items() if stream["state"] == "unreadable"}
            for engine in self.engines:
                if engine.name in unreadable:
                    engine.reset()  # events of unknown types may have removed anything: a clear ends the doubt
            if any(stream["state"] == "conflict" for _, stream in behind.values()):
                end = max(end, time.monotonic() + 1.0)  # the more batches contradicted each other, the longer it doubts
            assert time.monotonic() < min(end, latest), f"the service does not catch up: {behind}"
            time.sleep(0.05)

    def _answers(self, queries: list[Query]) -> list[dict[str, dict[str, int]]] | None:
        """Tokens by worker and rank, for each query; None if the service said that it is not sure."""
        answers = []
        for query in queries:
            body: dict[str, object] = {"token_ids": query.tokens, "model_name": MODEL}
            body |= {"lora_name": query.lora, "cache_salt": query.salt}
            status, answer = self.service.call("POST", "/query", body)
            assert status == 200, answer
            if "untrusted" in answer:
                return None
            answers.append(answer["scores"])
        return answers

    def compare(self, count: int = 60) -> None:
        """Check that, at a quiet point, every answer is the engine's own; of a partial stream, not more than that."""
        queries = [self.prompt(self.random) for _ in range(count // 2)]
        queries += self.random.sample(self._asked, min(len(self._asked), count - len(queries)))
        while (answers := self._answers(queries)) is None:
            self.calm()  # a partial stream tries to become whole now and then
        streams = self.service.streams()
        for engine in self.engines:
            for state in engine.state():
                key = (engine.name, state.rank)
                truths = engine.match_all([Query(q.tokens, q.lora, q.salt, state.rank) for q in queries])
                assert all(truth.quiet for truth in truths)
                partial = streams[key]["partial"]
                self.partial += partial
                for query, truth, scores in zip(queries, truths, answers, strict=True):
                    told = scores.get(engine.name, {}).get(str(state.rank), 0)
                    right = truth.held * BLOCK
                    assert told == right or (partial and told < right), (
                        f"{key}: {told} tokens, not {right}, of {query}; {streams[key]}"
                    )
                    self.compared += 1
                    self.hits += right > 0
                if not partial:
                    assert streams[key]["blocks"] == state.held, f"{key}: {streams[key]} but {state}"
