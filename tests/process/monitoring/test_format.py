"""The text of `GET /metrics`, of a router as of a service, by the rules of Prometheus."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import httpx
import pytest

pytest.importorskip("zmq")
pytest.importorskip("aiohttp")

from tests.support.waiting import until

from kvatlas import Service
from kvatlas.router import Router, RouterConfig, RouterHttpConfig, RouterSection
from kvatlas.sim import EngineConfig
from kvatlas.sim.server import Fleet, ServerConfig

from .tools import tool

TEXT = {"accept": "text/plain;version=0.0.4"}
FAST = EngineConfig(prefill_rate=1e6, decode_rate=1e4, blocks=4_000)


@pytest.fixture(params=["router", "service"])
def scraped(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a process that follows an engine which has done some work."""
    with Fleet(1, ServerConfig(engine=FAST), processes=1) as fleet:
        (engine,) = fleet.engines
        if request.param == "service":
            with Service(engines=[engine.url]) as service:
                yield service.url
            return
        config = RouterConfig(http=RouterHttpConfig(bind="127.0.0.1:0"), router=RouterSection(tokenizer="engine"))
        with Router(engines=[engine.url], config=config) as router:
            body = {"model": "sim-model", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}
            until(lambda: httpx.post(f"{router.url}/v1/chat/completions", json=body).status_code == 200, "answered")
            yield router.url


def test_promtool_has_nothing_to_say(scraped: str) -> None:
    answer = httpx.get(f"{scraped}/metrics", headers=TEXT)
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    checked = subprocess.run(
        [tool("promtool"), "check", "metrics"], input=answer.content, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b""), checked.stderr.decode()
