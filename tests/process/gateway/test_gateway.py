"""The router behind a real Envoy, which asks it over gRPC for the engine of each request."""

from __future__ import annotations

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

from .envoy import Envoy, Gateway, envoy

REQUESTS = 200


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
    envoy()
    port = free_block("127.0.0.1")
    ports = [engine.port for engine in engines]
    with (
        routing(engines, gateway_bind=f"127.0.0.1:{port}") as router,
        Envoy(Gateway(), [port], ports) as gateway,
    ):
        yield router, gateway.url


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
