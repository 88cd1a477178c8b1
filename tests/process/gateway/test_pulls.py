"""Behind a gateway, engines are told what to pull, in the body that the gateway gets back with the pick."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.process.router.deciding import BLOCK, stored, write_tokenizer
from tests.support.engine import MODEL, Engine, whole
from tests.support.waiting import until

from kvatlas.sim.server import Publisher

from .envoy import Envoy, Gateway, Picker, envoy

LENGTH = 3_000 * BLOCK
FIELD = "kv_transfer_params"
METRICS = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
def test_the_field_is_in_the_body_that_the_gateway_sends_on(tmp_path: Path, mode: str) -> None:
    envoy()
    reads = ("--tokenizer", str(write_tokenizer(tmp_path)), "--model", MODEL, "--block-size", str(BLOCK))
    with ExitStack() as stack:
        engines = {name: stack.enter_context(Engine()) for name in "abc"}
        publishers = {name: stack.enter_context(Publisher()) for name in engines}
        for name, engine in engines.items():
            engine.publishers = {0: publishers[name]}
            engine.answers |= {"/version": {"version": "0.33.0"}, "/metrics": METRICS}
            engine.behaviour = whole(prompt=LENGTH, cached=LENGTH - BLOCK)
        more = ("--policy", "kvatlas", "--health-interval", "100ms", "--source-heard", "30s")
        picker = stack.enter_context(Picker([engines["c"]], *more, reads=reads))
        for number, name in enumerate("ab"):
            told = {"url": engines[name].url, "name": name, "pull": f"10.0.0.{number + 1}:5710"}
            assert httpx.post(f"{picker.router_url}/engines", json=told).status_code == 201

        def ranks() -> list[dict[str, Any]]:
            return [rank for row in httpx.get(f"{picker.router_url}/workers").json() for rank in row["ranks"]]

        until(lambda: len(ranks()) == 3 and all(rank["trusted"] for rank in ranks()), "events are followed")
        for name in "ac":  # so that `b` takes it
            assert httpx.post(f"{picker.router_url}/engines/{drained(picker, name, engines)}/drain").status_code == 200
        prompt = "what a has".ljust(LENGTH, "x")
        publishers["a"].publish(stored(prompt, medium="CPU"))
        body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": 1}

        def is_pullable() -> bool:
            rows = httpx.post(f"{picker.router_url}/explain", json=body, timeout=60).json()["candidates"]
            return [(row.get("transfer") or {}).get("action") for row in rows] == ["pull"]

        until(is_pullable, "it can be pulled")
        ports = [engine.port for engine in engines.values()]
        with Envoy(Gateway(request=mode), [picker.port], ports) as at:
            for _ in range(2):
                assert httpx.post(f"{at.url}/v1/chat/completions", json=body, timeout=60).status_code == 200
        first, second = (dict(one.json) for one in engines["b"].received if one.method == "POST")
        source = first.pop(FIELD)["remote_kv_source"]
        assert (source["remote_host"], source["remote_port"]) == ("10.0.0.1", 5710)
        assert first == body
        assert second == body, "what was pulled is there now"


def drained(picker: Picker, name: str, engines: dict[str, Engine]) -> str:
    """The name by which the picker knows an engine: `c` was given to it without one."""
    rows = httpx.get(f"{picker.router_url}/workers").json()
    (found,) = [row["name"] for row in rows if row["url"].rstrip("/") == engines[name].url.rstrip("/")]
    return str(found)
