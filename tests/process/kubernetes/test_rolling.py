"""A Deployment of eight engines is updated under load: a new pod is ready before an old one begins to end."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.support.waiting import until

from kvatlas.sim import EngineConfig
from kvatlas.sim.server import Fleet, ServerConfig
from kvatlas.sim.server.ports import free_block

from .cluster import Cluster
from .load import MODEL, Clients, RouterProcess

ENGINES = 8
ENGINE = EngineConfig(block_size=16, blocks=4_000, prefill_rate=8_000, decode_rate=200)


@pytest.mark.slow
def test_a_rolling_update_under_load(
    cluster: Cluster, minutes: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ServerConfig(engine=ENGINE, model=MODEL)
    with (
        Fleet(ENGINES, config, processes=2, name="old") as old,
        Fleet(ENGINES, config, processes=2, name="new") as new,
        RouterProcess(cluster, tmp_path, free_block("127.0.0.1")) as router,
    ):
        for engine in old.engines:
            cluster.add(engine.name, engine.config.http_port)
        until(router.is_up, "the router is ready")
        router.same(cluster)
        with Clients(router.url, 8, 0.2) as clients:
            seconds = minutes * 60 / 4
            until(lambda: len(clients.first) > 100, "warm")
            began = time.monotonic()
            time.sleep(seconds)
            updating = time.monotonic()
            for before, after in zip(old.engines, new.engines, strict=True):
                cluster.add(after.name, after.config.http_port, ready=False)
                time.sleep(seconds / ENGINES / 2)
                cluster.set_ready(after.name, True)
                router.same(cluster)
                cluster.delete(before.name)
                # What it has begun it ends: the container is stopped only then.
                router.same(cluster)
                before.wait_quiet()
                time.sleep(seconds / ENGINES / 2)
                before.pause()
                cluster.gone(before.name)
            ended = time.monotonic()
            router.same(cluster)
        steady, update = clients.p99(began, updating), clients.p99(updating, ended)
        with capsys.disabled():
            print(
                f"\nrolling update of {ENGINES}: {len(clients.first)} answers, {len(clients.errors)} errors; "
                f"first-token p99 {update * 1000:.0f} ms, {steady * 1000:.0f} ms before: {update / steady:.2f} times"
            )
        assert not clients.errors, clients.errors[:5]
        assert router.taking() == {engine.name for engine in new.engines}
