"""Engines of an InferencePool, as an API server of our own tells of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from tests.support.engine import Engine, vllm
from tests.support.kubernetes import FakeApi, pod, pool
from tests.support.waiting import until

from kvatlas.service import Config, DiscoveryConfig

from .fake_native import FakeNative, Starter, started

SOURCE = "pool:llm/qwen"


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with FakeApi() as api:
        yield api


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Engine(vllm())) for _ in range(3)]


@contextmanager
def following(api: FakeApi, **more: Any) -> Iterator[FakeNative]:
    settings: dict[str, Any] = {"interval": 0.05, "timeout": 60, "request_timeout": 30, "linger": 60} | more
    discovery = DiscoveryConfig(sources=(SOURCE,), kubernetes_url=api.url, **settings)
    start = Starter()
    with started(start, config=Config(discovery=discovery)):
        yield start.native


def workers(native: FakeNative) -> set[str]:
    return {name for name, _rank in native.endpoints()}


def shown(native: FakeNative) -> dict[str, Any]:
    return native.sources.get(SOURCE, {})


def test_the_pods_of_a_pool_are_engines_at_its_ports(api: FakeApi, engines: list[Engine]) -> None:
    one, two, _three = engines
    # What a pod declares does not matter: gateways know the pool's ports.
    api.put(pod("one", "127.0.0.1", ports={"http": 1, "metrics": 2}))
    api.put(pod("other", "127.0.0.1", labels={"app": "sglang"}))
    api.put(pool("qwen", {"app": "vllm"}, one.port, two.port))
    api.put(pool("another", {"app": "sglang"}, 1))
    with following(api) as native:
        until(lambda: workers(native) == {f"one:{one.port}", f"one:{two.port}"}, "an engine at each port")
        until(lambda: shown(native).get("members", {}).get("ready") == 2)
        assert (shown(native)["state"], shown(native)["members"].get("no_pool")) == ("following", None)
        path = "/apis/inference.networking.k8s.io/v1/namespaces/llm/inferencepools"
        assert {query["fieldSelector"] for query in api.seen if query["path"] == path} == {"metadata.name=qwen"}


def test_a_pool_that_changes_keeps_the_engines_that_stay(api: FakeApi, engines: list[Engine]) -> None:
    one, two, three = engines
    api.put(pod("one", "127.0.0.1", labels={"tier": "both"}, annotations={}))
    api.put(pool("qwen", {"app": "vllm"}, one.port))
    with following(api, linger=0) as native:
        until(lambda: workers(native) == {"one"})
        api.put(pod("two", "127.0.0.2"))
        api.put(pool("qwen", {"tier": "both"}, one.port))
        until(lambda: api.queries(labelSelector="tier=both") > 0, "other pods are asked for")
        until(lambda: shown(native)["members"]["ready"] == 1, "the second has left")
        assert workers(native) == {"one"}
        assert not any(entry[0] == "unregister" for entry in native.log)
        # Another port is another engine.
        api.put(pool("qwen", {"tier": "both"}, two.port, three.port))
        until(lambda: workers(native) == {f"one:{two.port}", f"one:{three.port}"})


def test_a_pool_may_come_later_go_and_come_back(
    api: FakeApi, engines: list[Engine], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvatlas")
    api.put(pod("one", "127.0.0.1"))
    with following(api) as native:
        until(lambda: shown(native).get("members", {}).get("no_pool") == 1)
        assert shown(native)["state"] == "following"
        assert not workers(native)
        assert "qwen is left out: there is no such InferencePool" in caplog.text
        api.put(pool("qwen", {"app": "vllm"}, engines[0].port))
        until(lambda: workers(native) == {"one"})
        until(lambda: "no_pool" not in shown(native)["members"])
        api.remove_pool("qwen")
        until(lambda: shown(native)["members"].get("unlisted") == 1, "it is kept for a while")
        assert workers(native) == {"one"}
        api.put(pool("qwen", {"app": "vllm"}, engines[0].port))
        until(lambda: shown(native)["members"]["ready"] == 1)
        assert workers(native) == {"one"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"selector": {}}, "no spec.selector.matchLabels"),
        ({"targetPorts": []}, "from 1 to 8 spec.targetPorts"),
        ({"targetPorts": [{"number": port} for port in range(1, 10)]}, "from 1 to 8 spec.targetPorts"),
        ({"targetPorts": [{"number": "http"}]}, "from 1 to 8 spec.targetPorts"),
        ({"selector": {"matchLabels": {"a b": "c"}}}, "its labels cannot be selected by"),
    ],
)
def test_a_pool_without_sense_leaves_what_was_there(
    api: FakeApi, engines: list[Engine], change: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    api.put(pod("one", "127.0.0.1"))
    about = pool("qwen", {"app": "vllm"}, engines[0].port)
    api.put(about)
    with following(api) as native:
        until(lambda: workers(native) == {"one"})
        wrong = pool("qwen", {"app": "vllm"}, engines[0].port)
        wrong["spec"] |= change
        api.put(wrong)
        until(lambda: shown(native)["members"].get("bad_pool") == 1)
        assert words in caplog.text
        assert workers(native) == {"one"}
        assert shown(native)["members"]["ready"] == 1


def test_a_cluster_without_pools_says_what_to_install(api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    api.has_pools = False
    with following(api) as native:
        until(lambda: shown(native).get("code") == "http_404")
        assert "it knows no InferencePools: install their CustomResourceDefinition" in caplog.text
        api.has_pools = True
        until(lambda: shown(native).get("state") == "following")


def test_a_pod_that_wants_another_port_than_its_pool_is_left_out(
    api: FakeApi, engines: list[Engine], caplog: pytest.LogCaptureFixture
) -> None:
    api.put(pod("one", "127.0.0.1", annotations={"kvatlas.dev/port": "7000"}))
    api.put(pod("two", "127.0.0.1", annotations={"kvatlas.dev/port": str(engines[0].port)}))
    api.put(pool("qwen", {"app": "vllm"}, engines[0].port))
    with following(api) as native:
        until(lambda: workers(native) == {"two"})
        assert "leave the annotation out" in caplog.text
        assert shown(native)["members"]["bad_annotation"] == 1
