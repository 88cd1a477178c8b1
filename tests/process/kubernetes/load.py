"""Clients that stream completions from a router all the time, and the router that they ask."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
from tests.support.forked import ForkedCommand
from tests.support.waiting import until

from kvatlas.sim.server import Fleet
from kvatlas.sim.server.ports import free_block

from .cluster import NAMESPACE, SEE_PODS, SEE_POOLS, Cluster

MODEL, POOL = "sim-model", "engines"


class RouterProcess:
    """`kvatlas router` that finds its engines in a cluster."""

    def __init__(self, cluster: Cluster, home: Path, port: int, *more: str) -> None:
        self.account = home / "account"
        cluster.account(self.account)
        self.url = f"http://127.0.0.1:{port}"
        command = [*self.command(), "--bind", f"127.0.0.1:{port}", "--tokenizer", "none"]
        command += ["--kubernetes-url", cluster.url, "--kubernetes-account", str(self.account)]
        self.process = ForkedCommand(*command, *more)
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def command(self) -> list[str]:
        """The command, with the options that say where the engines are."""
        return ["router", "--discover", f"k8s:{NAMESPACE}/app=vllm"]

    def _read(self) -> None:
        for line in self.process.stderr:
            self.log.append(line.rstrip())

    def __enter__(self) -> Self:
        until(self.is_listening, "the router listens")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(60)
        self._reader.join()
        self.process.stderr.close()

    def get(self, path: str) -> Any:
        return httpx.get(self.url + path, timeout=60).json()

    def is_listening(self) -> bool:
        assert self.process.poll() is None, self.log
        try:
            return bool(self.get("/router"))
        except httpx.HTTPError:
            return False

    def is_up(self) -> bool:
        try:
            return httpx.get(self.url + "/ready", timeout=60).status_code == 200
        except httpx.HTTPError:
            return False

    def taking(self) -> set[str]:
        """The names of the engines that get requests."""
        return {engine["name"] for engine in self.get("/workers") if engine["standing"] != "draining"}

    def source(self) -> dict[str, Any]:
        """The state of the source."""
        found: dict[str, Any] = self.get("/router")["discovery"][0]
        return found

    def same(self, cluster: Cluster) -> float:
        """Wait until those that get requests are those that the API server says are ready. Returns the seconds."""
        wanted, began = cluster.ready(), time.monotonic()
        until(lambda: self.taking() == wanted, f"the fleet is that of the API server: {len(wanted)} engines")
        return time.monotonic() - began


class PickerProcess(RouterProcess):
    """`kvatlas epp` that follows a pool of the cluster.

    Gateways ask at `gateway_port`; it also serves as a router does.
    """

    def command(self) -> list[str]:
        self.gateway_port = free_block("127.0.0.1", 3)
        ports = ("grpc-port", "grpc-health-port", "metrics-port")
        listening = [f"--{name}={port}" for port, name in enumerate(ports, self.gateway_port)]
        return ["epp", f"--pool-name={POOL}", f"--pool-namespace={NAMESPACE}", "--secure-serving=false", *listening]


def at_one_port(fleet: Fleet, network: str, port: int) -> None:
    """Give each engine of a fleet that does not run yet an address of its own and one port for all, as pods have."""
    for engine in fleet.engines:
        engine.config = replace(engine.config, host=f"{network}.{engine.number + 1}", http_port=port)


def following(source: str, cluster: Cluster, fleets: list[Fleet], home: Path, *more: str) -> RouterProcess:
    """A router that finds the pods of fleets that do not run yet: `pods`, by their labels; `pool`, as a picker does."""
    port = free_block("127.0.0.1")
    if source == "pods":
        return RouterProcess(cluster, home, port, *more)
    at = free_block("0.0.0.0")
    for number, fleet in enumerate(fleets):
        at_one_port(fleet, f"127.0.{2 + number}", at)
    cluster.allow(SEE_PODS, SEE_POOLS)
    cluster.install_pools()
    cluster.add_pool(POOL, {"app": "vllm"}, at)
    return PickerProcess(cluster, home, port, *more)


class Clients:
    """Threads that stream completions, one after the other: long prompts that begin alike, but for one in ten."""

    def __init__(self, url: str, count: int, pause: float) -> None:
        self.url, self.pause = urlsplit(url), pause
        self.errors: list[str] = []
        self.first: list[tuple[float, float]] = []  # when, and seconds to the first token
        self.served: Counter[str] = Counter()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        chance = random.Random(number)
        own = [chance.randrange(9_000) for _ in range(800)]
        while not self._stop.wait(chance.uniform(0, 2 * self.pause)):
            # One in ten begins a conversation: no engine has its prompt.
            known = own if chance.random() < 0.9 else [chance.randrange(9_000) for _ in range(800)]
            prompt = known[: chance.randrange(200, 800)] + [chance.randrange(9_000) for _ in range(10)]
            try:
                self._ask(prompt)
            except (OSError, http.client.HTTPException, AssertionError) as error:
                self.errors.append(f"{time.monotonic():.2f}: {error!r}"[:300])

    def _ask(self, prompt: list[int]) -> None:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "stream": True}
        connection = http.client.HTTPConnection(self.url.hostname or "", self.url.port, timeout=60)
        try:
            began = time.monotonic()
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            first = answer.readline()
            took = time.monotonic() - began
            rest = answer.read()
            assert first.startswith(b"data:"), first
            assert b"[DONE]" in rest, rest
            self.first.append((began, took))
            self.served[answer.headers.get("x-kvatlas-worker", "?")] += 1
        finally:
            connection.close()

    def p99(self, begin: float = 0.0, end: float = float("inf")) -> float:
        """The 99th percentile of the seconds to the first token, of requests that began in a span of time."""
        found = sorted(took for when, took in self.first if begin <= when < end)
        return found[min(len(found) * 99 // 100, len(found) - 1)]
