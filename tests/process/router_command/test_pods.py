"""A router in front of engines in pods: who gets requests, and who no longer does."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from tests.support.engine import Engine
from tests.support.kubernetes import FakeApi, pod
from tests.support.waiting import until

from kvatlas.router import Router
from kvatlas.router.check import check
from kvatlas.router.config import RouterConfig, RouterHttpConfig, RouterSection
from kvatlas.service import DiscoveryConfig

SOURCE = "k8s:llm/app=vllm"


@contextmanager
def routing(api: FakeApi, **own: Any) -> Iterator[Router]:
    discovery = DiscoveryConfig(sources=(SOURCE,), kubernetes_url=api.url, interval=0.05, linger=60)
    section = RouterSection(tokenizer="none", **own)
    config = RouterConfig(http=RouterHttpConfig(bind="127.0.0.1:0"), router=section, discovery=discovery)
    with Router(config=config) as router:
        yield router


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Engine()) for _ in range(2)]


def standings(router: Router) -> dict[str, str]:
    return {engine["name"]: engine["standing"] for engine in router.state()}


def ask(router: Router, times: int = 6) -> None:
    body = {"model": "m", "prompt": "a", "max_tokens": 1}
    for _ in range(times):
        model = httpx.get(f"{router.url}/v1/models").json()["data"][0]["id"]
        answer = httpx.post(f"{router.url}/v1/completions", json=body | {"model": model}, timeout=60)
        assert answer.status_code == 200, answer.text


def asked(engine: Engine) -> int:
    return engine.times("/v1/completions")


@pytest.mark.parametrize("own", [{}, {"no_events": True}])
def test_pods_get_requests_while_they_are_ready(own: dict[str, Any], engines: list[Engine]) -> None:
    with FakeApi() as api, routing(api, **own) as router:
        api.put(pod("one", "127.0.0.1", ports={"http": engines[0].port}))
        api.put(pod("two", "127.0.0.1", ports={"http": engines[1].port}, ready=False))
        until(
            lambda: standings(router) == {"one": "up"} and httpx.get(f"{router.url}/ready").status_code == 200,
            "one in the fleet",
        )
        ask(router)
        assert (asked(engines[0]), asked(engines[1])) == (6, 0), "what was never ready gets nothing"
        api.set_ready("two", True)
        until(lambda: standings(router) == {"one": "up", "two": "up"})
        api.delete("one")
        until(lambda: standings(router) == {"one": "draining", "two": "up"})
        ask(router)
        assert (asked(engines[0]), asked(engines[1])) == (6, 6)
        # Another pod of its name is another engine, and gets requests.
        api.gone("one")
        api.put(pod("one", "127.0.0.1", ports={"http": engines[0].port}, uid="another"))
        until(lambda: standings(router) == {"one": "up", "two": "up"})
        # What an operator drained is not taken back when the pod becomes ready again.
        router.drain_engine("one")
        api.set_ready("one", False)
        api.set_ready("two", False)
        until(lambda: standings(router) == {"one": "draining", "two": "draining"})
        api.set_ready("one", True)
        api.set_ready("two", True)
        until(lambda: standings(router) == {"one": "draining", "two": "up"})
        router.drain_engine("one", drained=False)
        assert standings(router) == {"one": "up", "two": "up"}
        shown = httpx.get(f"{router.url}/router").json()["discovery"][0]
        assert (shown["source"], shown["state"], shown["members"]["ready"]) == (SOURCE, "following", 2)
        assert "kvatlas_discovery_source_known" in httpx.get(f"{router.url}/metrics").text
        api.gone("two")
        until(lambda: standings(router) == {"one": "up"})


@pytest.mark.parametrize("own", [{}, {"no_events": True}])
def test_a_weight_that_changes_leaves_the_engine_as_it_is(
    own: dict[str, Any], engines: list[Engine], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvatlas")

    def weights(router: Router) -> list[float]:
        return [engine["weight"] for engine in router.state()]

    def put(api: FakeApi, **annotations: str) -> None:
        api.put(pod("one", "127.0.0.1", ports={"http": engines[0].port}, annotations=annotations))

    with FakeApi() as api, routing(api, **own) as router:
        put(api)
        until(lambda: standings(router) == {"one": "up"} and httpx.get(f"{router.url}/ready").status_code == 200)
        ask(router, 1)
        assert weights(router) == [1.0]
        put(api, **{"kvatlas.dev/weight": "2.5"})
        until(lambda: weights(router) == [2.5])
        put(api)
        until(lambda: weights(router) == [1.0])
        assert router.state()[0]["answers"] == 1, "what is known of it stays"
        assert "unregistered" not in caplog.text
        put(api, **{"kvatlas.dev/model": "mine"})
        until(lambda: "unregistered" in caplog.text, "another model is another registration")
        until(lambda: standings(router) == {"one": "up"})


def test_a_server_that_is_away_takes_no_engine_away(engines: list[Engine]) -> None:
    with FakeApi() as api, routing(api) as router:
        api.put(pod("one", "127.0.0.1", ports={"http": engines[0].port}))
        until(lambda: standings(router) == {"one": "up"} and httpx.get(f"{router.url}/ready").status_code == 200)
        api.stop()
        until(lambda: httpx.get(f"{router.url}/router").json()["discovery"][0]["state"] == "away")
        ask(router)
        api.start()
        until(lambda: httpx.get(f"{router.url}/router").json()["discovery"][0]["state"] == "following")
        assert standings(router) == {"one": "up"}


def test_the_check_asks_the_engines_in_pods(engines: list[Engine]) -> None:
    with FakeApi() as api:
        api.put(pod("one", "127.0.0.1", ports={"http": engines[0].port}))
        api.put(pod("two", "127.0.0.1", ports={"http": engines[1].port}, ready=False))
        discovery = DiscoveryConfig(sources=(SOURCE,), kubernetes_url=api.url)
        reports = check(RouterConfig(router=RouterSection(tokenizer="none"), discovery=discovery))
    assert [one.worker for one in reports] == ["one"], "those that get requests"
