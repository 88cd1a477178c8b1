"""A picker and its InferencePool in a real API server: the pool is made, changed, hidden, deleted and made again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.process.gateway.envoy import Envoy, Gateway, envoy
from tests.support.waiting import until

from kvatlas.sim import EngineConfig
from kvatlas.sim.server import EngineHandle, Fleet, ServerConfig
from kvatlas.sim.server.ports import free_block

from .cluster import SEE_PODS, SEE_POOLS, Cluster
from .load import MODEL, POOL, Clients, PickerProcess, at_one_port

ENGINE = EngineConfig(block_size=16, blocks=2_000, prefill_rate=1e5, decode_rate=200)


@pytest.fixture
def engines() -> Iterator[list[EngineHandle]]:
    """Three engines with one port, at addresses of their own."""
    fleet = Fleet(3, ServerConfig(engine=ENGINE, model=MODEL), processes=1, name="vllm")
    at_one_port(fleet, "127.0.2", free_block("0.0.0.0"))
    with fleet:
        yield fleet.engines


def picker(cluster: Cluster, home: Path, *more: str) -> PickerProcess:
    return PickerProcess(cluster, home, free_block("127.0.0.1"), *more)


def lost_changes(process: PickerProcess) -> int:
    """Number of times that the version of the pool or of its pods was too old for the API server."""
    text = httpx.get(f"{process.url}/metrics", timeout=60).text
    found = re.search(r'kvatlas_discovery_source_events_total\{source="pool:.*event="gone"\} (\d+)', text)
    return int(found[1]) if found else 0


def workers(engine: EngineHandle, *ports: int) -> set[str]:
    """The names of a pod's workers where a pool has several ports."""
    return {f"{engine.name}:{port}" for port in ports}


def test_a_picker_waits_for_its_pool_and_follows_it(
    cluster: Cluster, tmp_path: Path, engines: list[EngineHandle]
) -> None:
    one, two, three = engines
    port = one.config.http_port
    for engine in (one, two):
        cluster.add_engine(engine, labels={"tier": "a"})
    cluster.add_engine(three, labels={"tier": "b"})
    cluster.allow(SEE_PODS)
    with picker(cluster, tmp_path, "--discover-linger=60s") as process:
        until(lambda: process.source()["code"] == "http_403", "it may not see pools")
        cluster.allow(SEE_PODS, SEE_POOLS)
        until(lambda: process.source()["code"] == "http_404", "the cluster knows no pools")
        cluster.install_pools()
        until(lambda: process.source()["state"] == "following", "pools are known")
        until(lambda: process.source()["members"].get("no_pool") == 1, "there is no pool")
        assert not process.taking()

        cluster.add_pool(POOL, {"app": "vllm", "tier": "a"}, port)
        until(lambda: process.taking() == {one.name, two.name}, "its pods get requests")
        until(lambda: process.get("/ready")["index_ready"], "all of them are followed")
        # Pods of the pool come, are not ready, end, and go.
        cluster.label(two.name, None)
        until(lambda: process.taking() == {one.name}, "one has left the pool")
        cluster.label(two.name, "vllm")
        until(lambda: process.taking() == {one.name, two.name}, "it is back")
        cluster.set_ready(two.name, False)
        until(lambda: process.taking() == {one.name}, "one is not ready")
        cluster.set_ready(two.name, True)
        until(lambda: process.taking() == {one.name, two.name}, "it is ready")

        cluster.change_pool(POOL, {"app": "vllm"}, port)
        until(lambda: process.taking() == {engine.name for engine in engines}, "it selects more pods")
        cluster.change_pool(POOL, {"tier": "b"}, port)
        until(lambda: process.taking() == {three.name}, "it selects another pod")
        cluster.remove_pool(POOL)
        until(lambda: not process.taking(), "it is deleted")
        cluster.add_pool(POOL, {"app": "vllm"}, port)
        until(lambda: process.taking() == {engine.name for engine in engines}, "it is back")
        # All that happened within the time that engines are kept for, so nothing was forgotten.
        assert not [line for line in process.log if "is gone" in line]

        other = free_block(one.config.host)
        cluster.change_pool(POOL, {"app": "vllm"}, port, other)
        wanted = {name for engine in engines for name in workers(engine, port, other)}
        until(lambda: {it["name"] for it in process.get("/workers")} >= wanted, "an engine at each port")
        cluster.change_pool(POOL, {"app": "vllm"}, port)
        until(lambda: process.taking() == {engine.name for engine in engines}, "one port again")

        cluster.delete(two.name)
        until(lambda: process.taking() == {one.name, three.name}, "one ends")
        cluster.gone(two.name)
        until(lambda: [line for line in process.log if f"{two.name} is gone" in line], "it is gone")


def test_what_is_known_stays_while_the_server_is_away_or_refuses(
    cluster: Cluster, tmp_path: Path, engines: list[EngineHandle]
) -> None:
    one, two, three = engines
    port = one.config.http_port
    cluster.allow(SEE_PODS, SEE_POOLS)
    cluster.install_pools()
    cluster.add_pool(POOL, {"app": "vllm"}, port)
    for engine in (one, two):
        cluster.add_engine(engine)
    with picker(cluster, tmp_path) as process:
        until(lambda: process.taking() == {one.name, two.name}, "its pods get requests")
        with Clients(process.url, 4, 0.05) as clients:
            # Others are changed last, so that the version of the pool is too old for the server that starts.
            cluster.label(one.name, "vllm")
            cluster.add_engine(three, labels={"app": "other"})
            cluster.kill()
            until(lambda: process.source()["state"] == "away", "away is said")
            assert process.taking() == {one.name, two.name}
            cluster.start()
            until(lambda: process.source()["state"] == "following", "followed again")
            until(lambda: lost_changes(process) > 0, "the version was too old: all is asked for again")
            # Changes arrive as before.
            cluster.change_pool(POOL, {"app": "other"}, port)
            until(lambda: process.taking() == {three.name}, "it selects another pod")
            cluster.change_pool(POOL, {"app": "vllm"}, port)
            until(lambda: process.taking() == {one.name, two.name}, "and the first ones again")

            cluster.allow(SEE_PODS)
            cluster.kill()  # so that rights are asked for
            cluster.start()
            until(lambda: process.source()["code"] == "http_403", "the right to see pools is gone")
            assert process.taking() == {one.name, two.name}
            # Pods are followed all the while.
            cluster.set_ready(two.name, False)
            until(lambda: process.taking() == {one.name}, "one is not ready")
            cluster.change_pool(POOL, {"app": "other"}, port)
            cluster.allow(SEE_PODS, SEE_POOLS)
            until(lambda: process.taking() == {three.name}, "what has changed meanwhile is known")
            assert process.source()["state"] == "following"
        assert clients.first
        assert not clients.errors, clients.errors[:5]
        assert not [line for line in process.log if f"{one.name} is another one" in line]


def test_a_gateway_is_given_the_pods_of_the_pool(cluster: Cluster, tmp_path: Path, engines: list[EngineHandle]) -> None:
    envoy()
    port = engines[0].config.http_port
    cluster.allow(SEE_PODS, SEE_POOLS)
    cluster.install_pools()
    for engine in engines:
        cluster.add_engine(engine)
    with (
        picker(cluster, tmp_path) as process,
        Envoy(Gateway(), [process.gateway_port], [(it.config.host, port) for it in engines]) as gateway,
        # No request is refused: all wait for the pool.
        Clients(gateway.url, 4, 0.05) as clients,
    ):
        until(lambda: process.get("/router")["waiting_for_engine"] > 0, "requests wait")
        cluster.add_pool(POOL, {"app": "vllm"}, port)
        until(lambda: len(clients.first) > 20, "they are answered")
        for engine in engines[1:]:
            cluster.delete(engine.name)
        until(lambda: process.taking() == {engines[0].name}, "two of them end")
        for engine in engines[1:]:
            engine.wait_quiet()
            cluster.gone(engine.name)
        before = len(clients.first)
        until(lambda: len(clients.first) > before + 20, "the other one answers")
    assert not clients.errors, clients.errors[:5]
