"""Priorities of requests by the objectives of the cluster that they name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from tests.support.engine import Engine
from tests.support.kubernetes import FakeApi, objective, pod, pool
from tests.support.waiting import until

from kvatlas.errors import ConfigError
from kvatlas.router import Router
from kvatlas.router.config import RouterConfig, RouterHttpConfig, RouterSection
from kvatlas.service import DiscoveryConfig

VERSION = "llm-d.ai/v1alpha2"
NEW, OLD = "x-llm-d-inference-objective", "x-gateway-inference-objective"
SOURCE = "objectives:llm/qwen"


@contextmanager
def routing(api: FakeApi, **own: Any) -> Iterator[Router]:
    discovery = DiscoveryConfig(sources=("pool:llm/qwen",), kubernetes_url=api.url, interval=0.05)
    section = RouterSection(tokenizer="none", no_events=True, objectives=VERSION, **own)
    config = RouterConfig(http=RouterHttpConfig(bind="127.0.0.1:0"), router=section, discovery=discovery)
    with Router(config=config) as router:
        yield router


def ask(router: Router, **headers: str) -> int:
    body = {"model": "m", "prompt": "a", "max_tokens": 1}
    models = httpx.get(f"{router.url}/v1/models").json()["data"]
    if not models:
        return 0
    model = models[0]["id"]
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(
        f"{router.url}/v1/completions", json=body | {"model": model}, headers=named, timeout=60
    ).status_code


def named(router: Router, how: str) -> int:
    text = httpx.get(f"{router.url}/metrics").text
    (found,) = [
        it for it in text.splitlines() if it.startswith(f'kvatlas_router_objective_requests_total{{objective="{how}"')
    ]
    return int(found.rpartition(" ")[2])


def source(router: Router) -> dict[str, Any]:
    (found,) = [it for it in httpx.get(f"{router.url}/router").json()["discovery"] if it["source"] == SOURCE]
    return dict(found)


def test_a_pool_has_its_objectives_and_they_change() -> None:
    with FakeApi() as api, Engine() as engine:
        api.put(pod("one", "127.0.0.1"))
        api.put(pool("qwen", {"app": "vllm"}, engine.port))
        api.put(objective("chat", "qwen", 5))
        api.put(objective("foreign", "another", 7))
        api.put(objective("wrong", "qwen", "high"))
        with routing(api) as router:
            until(lambda: source(router)["state"] == "following", "objectives are followed")
            until(lambda: router.state() and ask(router) == 200, "an engine answers")
            assert (named(router, "known"), named(router, "unknown")) == (0, 0)

            def told(name: str, how: str) -> bool:
                before = named(router, how)
                assert ask(router, **{NEW: name}) == 200
                return named(router, how) == before + 1

            assert told("chat", "known")
            assert told("foreign", "unknown")
            assert told("wrong", "unknown")
            assert source(router)["members"]["bad_objective"] == 1
            assert ask(router, **{OLD: "chat"}) == 200
            assert named(router, "known") == 2
            api.put(objective("batch", "qwen", -3))
            until(lambda: told("batch", "known"), "a new one counts")
            api.remove_objective("chat")
            until(lambda: told("chat", "unknown"), "a deleted one does not")
            api.put(objective("batch", "another"))
            until(lambda: told("batch", "unknown"), "nor one that is another pool's now")


@pytest.mark.parametrize("value", ["llm-d.ai", "LLM/v1", "a/b/v1", "llm-d.ai/1"])
def test_what_is_no_group_and_version_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"router\.objectives must be an API group and version"):
        RouterSection(objectives=value)


def test_objectives_need_a_cluster() -> None:
    with pytest.raises(ConfigError, match="give a source k8s: or pool:"):
        RouterConfig(router=RouterSection(objectives=VERSION))
