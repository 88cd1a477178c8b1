"""A Deployment of eight engines is updated under load: a new pod is ready before an old one begins to end."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.process.gateway.envoy import Envoy, Gateway, envoy
from tests.support.waiting import until

from kvatlas.sim import EngineConfig
from kvatlas.sim.server import Fleet, ServerConfig

from .cluster import Cluster
from .load import MODEL, Clients, PickerProcess, following

ENGINES = 8
ENGINE = EngineConfig(block_size=16, blocks=4_000, prefill_rate=8_000, decode_rate=200)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["pods", "pool"])
def test_a_rolling_update_under_load(
    source: str, cluster: Cluster, minutes: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a pool, a gateway asks where requests go: a real Envoy."""
    config = ServerConfig(engine=ENGINE, model=MODEL)
    old, new = (Fleet(ENGINES, config, processes=2, name=name) for name in ("old", "new"))
    with ExitStack() as stack:
        router = stack.enter_context(following(source, cluster, [old, new], tmp_path))
        stack.enter_context(old)
        stack.enter_context(new)
        for engine in old.engines:
            cluster.add_engine(engine)
        until(router.is_up, "the router is ready")
        router.same(cluster)
        url = router.url
        if isinstance(router, PickerProcess):
            envoy()
            engines = [(it.config.host, it.config.http_port) for it in (*old.engines, *new.engines)]
            url = stack.enter_context(Envoy(Gateway(), [router.gateway_port], engines)).url
        with Clients(url, 8, 0.2) as clients:
            seconds = minutes * 60 / 4
            until(lambda: len(clients.first) > 100, "warm")
            began = time.monotonic()
            time.sleep(seconds)
            updating = time.monotonic()
            for before, after in zip(old.engines, new.engines, strict=True):
                cluster.add_engine(after, ready=False)
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
                f"\nrolling update of {ENGINES} ({source}): {len(clients.first)} answers, "
                f"{len(clients.errors)} errors; first-token p99 {update * 1000:.0f} ms, {steady * 1000:.0f} ms before: "
                f"{update / steady:.2f} times"
            )
        assert not clients.errors, clients.errors[:5]
        assert router.taking() == {engine.name for engine in new.engines}
