"""Deletion costs of pods: the tokens that only one pod holds, in its annotation."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from tests.support.kubernetes import FakeApi, pod, pool
from tests.support.waiting import until

from kvatlas.errors import ConfigError
from kvatlas.router.config import RouterConfig, RouterSection
from kvatlas.service import Config, DiscoveryConfig, Service
from kvatlas.service.config import Engine, HttpConfig
from kvatlas.sim import EngineConfig
from kvatlas.sim.server import EngineHandle, Fleet, ServerConfig

COST = "controller.kubernetes.io/pod-deletion-cost"
BLOCK, GRAIN = 16, 8
ENGINE = EngineConfig(block_size=BLOCK, blocks=2_000, prefill_rate=1e6, decode_rate=1e4)


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with FakeApi() as api:
        yield api


@pytest.fixture
def engines() -> Iterator[list[EngineHandle]]:
    with Fleet(2, ServerConfig(engine=ENGINE), processes=1) as fleet:
        yield fleet.engines


@contextmanager
def following(api: FakeApi, source: str = "k8s:llm/app=vllm") -> Iterator[Service]:
    discovery = DiscoveryConfig(
        sources=(source,), kubernetes_url=api.url, interval=0.05, linger=60, pod_deletion_cost=0.05
    )
    with Service(config=Config(http=HttpConfig(bind="127.0.0.1:0"), discovery=discovery)) as service:
        yield service


def add(api: FakeApi, *engines: EngineHandle) -> None:
    for engine in engines:
        api.put(pod(engine.name, "127.0.0.1", ports={"http": engine.config.http_port}))


def cost(api: FakeApi, engine: EngineHandle) -> int | None:
    text = api.pods[engine.name]["metadata"]["annotations"].get(COST)
    return None if text is None else int(text)


def source(service: Service) -> dict[str, Any]:
    (found,) = httpx.get(f"{service.url}/health").json()["discovery"]
    return dict(found)


def refusals(service: Service) -> int:
    text = httpx.get(f"{service.url}/metrics").text
    found = re.search(r'kvatlas_discovery_source_events_total\{.*event="deletion_cost_http_403"\} (\d+)', text)
    return int(found[1]) if found else 0


def prompt(first: int, blocks: int) -> list[int]:
    return list(range(first, first + blocks * BLOCK))


def test_what_only_one_holds_is_its_cost(api: FakeApi, engines: list[EngineHandle]) -> None:
    one, two = engines
    shared, own = prompt(0, 4 * GRAIN), prompt(10_000, 10 * GRAIN)
    for engine in engines:
        engine.complete(shared, 1)
    one.complete(own, 1)
    add(api, *engines)
    with following(api):
        until(lambda: (cost(api, one), cost(api, two)) == (len(own), 0), "the costs are written")
        # Tokens that two pods hold are lost with neither.
        two.complete(own, 1)
        until(lambda: (cost(api, one), cost(api, two)) == (0, 0), "both hold it now")
        # A cost that is nearly the same is not written again.
        looks, written = api.queries(watch="1"), len(api.patches)
        assert looks
        two.complete(prompt(30_000, 2 * GRAIN), 1)
        until(lambda: cost(api, two) == 2 * GRAIN * BLOCK, "a change is written")
        assert len(api.patches) == written + 1, "and nothing else"


def test_pods_that_end_and_those_of_a_pool(api: FakeApi, engines: list[EngineHandle]) -> None:
    one, _two = engines
    one.complete(prompt(0, GRAIN), 1)
    api.put(pool("qwen", {"app": "vllm"}, one.config.http_port))
    add(api, one)
    api.delete(one.name)
    with following(api, "pool:llm/qwen") as service:
        until(lambda: source(service)["members"]["terminating"] == 1, "its end is known")
        api.put(pod("other", "127.0.0.1"))
        until(lambda: "other" in {name for name, _change in api.patches}, "the other one has a cost")
        assert {name for name, _change in api.patches} == {"other"}


def test_a_missing_right_is_said_once_and_breaks_nothing(
    api: FakeApi, engines: list[EngineHandle], caplog: pytest.LogCaptureFixture
) -> None:
    one, _two = engines
    one.complete(prompt(0, GRAIN), 1)
    caplog.set_level(logging.INFO, "kvatlas")
    api.is_unpatchable = True
    add(api, one)
    with following(api) as service:
        until(lambda: refusals(service) > 2, "refused")
        said = [it for it in caplog.messages if "deletion costs are not written" in it]
        assert len(said) == 1
        assert "its Role must allow patch of pods there" in said[0]
        api.is_unpatchable = False
        until(lambda: cost(api, one) == GRAIN * BLOCK, "written once it is allowed")


def test_costs_need_an_index() -> None:
    with pytest.raises(ConfigError, match=r"discovery\.pod_deletion_cost is for a router that follows events itself"):
        RouterConfig(
            router=RouterSection(no_events=True),
            discovery=DiscoveryConfig(pod_deletion_cost=60),
            engines=(Engine("http://a:1"),),
        )
