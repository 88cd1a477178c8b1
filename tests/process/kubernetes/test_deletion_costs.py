"""Deletion costs of pods, written at a real API server, which allows it only to those with the right to patch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.waiting import until

from kvatlas.sim import EngineConfig
from kvatlas.sim.server import EngineHandle, Fleet, ServerConfig
from kvatlas.sim.server.ports import free_block

from .cluster import SEE_PODS, Cluster
from .load import MODEL, RouterProcess

BLOCK = 16
ENGINE = EngineConfig(block_size=BLOCK, blocks=2_000, prefill_rate=1e5, decode_rate=200)


@pytest.fixture
def engines() -> Iterator[list[EngineHandle]]:
    with Fleet(2, ServerConfig(engine=ENGINE, model=MODEL), processes=1, name="vllm") as fleet:
        yield fleet.engines


def test_what_would_be_lost_is_written_once_it_is_allowed(
    cluster: Cluster, tmp_path: Path, engines: list[EngineHandle]
) -> None:
    one, two = engines
    for engine in engines:
        cluster.add_engine(engine)
        engine.complete(range(64 * BLOCK), 1)
    one.complete(range(100_000, 100_000 + 32 * BLOCK), 1)
    port = free_block("127.0.0.1")
    with RouterProcess(cluster, tmp_path, port, "--pod-deletion-cost=0.2s") as router:
        refused = "its Role must allow patch of pods there"
        until(lambda: any(refused in line for line in router.log), "a missing right is said")
        assert cluster.deletion_cost(one.name) is None
        cluster.allow(SEE_PODS | {"verbs": ["get", "list", "watch", "patch"]})
        until(lambda: cluster.deletion_cost(one.name) == str(32 * BLOCK), "what only one holds is its cost")
        until(lambda: cluster.deletion_cost(two.name) == "0", "what both hold costs nothing")
        assert router.taking() == {one.name, two.name}
