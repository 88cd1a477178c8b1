"""Engines that discovery cannot register: named by the real service, and readiness with and without them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from contextlib import ExitStack
from typing import Any

import pytest
from tests.support.engine import Engine, vllm
from tests.support.waiting import until

from kvatlas.errors import ServiceError
from kvatlas.service import Config, DiscoveryConfig, HttpConfig, Service
from kvatlas.sim import EngineConfig
from kvatlas.sim.server import Fleet, ServerConfig

CONFIG = Config(
    http=HttpConfig(bind="127.0.0.1:0"), discovery=DiscoveryConfig(interval=0.05, timeout=60, request_timeout=30)
)
SILENT = vllm() | {"/kv_event_sources": {}}


def get(service: Service, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"{service.url}{path}", timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_without_a_usable_engine_it_is_not_ready() -> None:
    with (
        Engine(SILENT) as silent,
        Engine({}) as other,
        Service([f"silent={silent.url}", f"other={other.url}"], config=CONFIG) as service,
    ):
        until(lambda: not get(service, "/ready")[1]["waiting"]["holds"])
        for path in ("/ready", "/ready?strict=1"):
            status, body = get(service, path)
            assert (status, body["ready"]) == (503, False)
            about = {each["instance_id"]: each for each in body["waiting"]["engines"]}
            assert about["silent"]["state"] == about["silent"]["code"] == "no_events"
            assert about["silent"]["url"] == silent.url
            assert about["silent"]["since_ms"] >= 0
            assert about["other"]["reason"].startswith("it has none of the HTTP routes of vLLM and SGLang")
        with pytest.raises(ServiceError, match="it publishes no KV events") as caught:
            service.wait_ready(0)
        assert caught.value.code == "not_ready"
        client = service.client()
        ready = client.ready()
        assert str(ready) == "not ready; not registered: other (unusable), silent (no_events)"
        assert [(each.worker, each.state) for each in client.engines()] == [
            ("other", "unusable"),
            ("silent", "no_events"),
        ]
        metrics = client.metrics()
        for line in ('engines{state="no_events"} 1', 'engines{state="registered"} 0', "ready 0", "workers 0"):
            assert f"kvatlas_{line}\n" in metrics
        # A registered engine can be queried.
        service.register("by-hand", "tcp://127.0.0.1:9", model="m", block_size=16)
        assert [each.worker for each in client.ready().streams] == ["by-hand"]


def test_one_unusable_engine_does_not_hold_back_the_others() -> None:
    engine = ServerConfig(engine=EngineConfig(block_size=4, blocks=64), model="m")
    with ExitStack() as stack:
        fleet = stack.enter_context(Fleet(1, engine))
        silent = stack.enter_context(Engine(SILENT))
        service = stack.enter_context(Service([f"a={fleet[0].url}", f"silent={silent.url}"], config=CONFIG))
        service.wait_ready(60)
        for path in ("/ready", "/ready?strict=1"):
            status, body = get(service, path)
            assert (status, body["ready"]) == (200, True)
            assert [each["instance_id"] for each in body["waiting"]["engines"]] == ["silent"]
        status, listed = get(service, "/engines")
        states = [(each["instance_id"], each["state"], each["reason"] is None) for each in listed]
        assert states == [("a", "registered", True), ("silent", "no_events", False)]
        assert service.waiting() is None
        assert str(service.client().ready()) == "ready; not registered: silent (no_events)"
        # Once ready, it stays so, even if nothing is left.
        service.unregister("a")
        assert get(service, "/ready")[0] == 200
        silent.answers = vllm()
        until(lambda: all(each.is_registered for each in service.engines()))


def test_a_service_without_engines_is_ready() -> None:
    with Service(config=CONFIG) as service:
        assert get(service, "/ready") == (200, {"ready": True})
        assert get(service, "/engines") == (200, [])


def test_a_stream_that_is_refused_is_named(tmp_path: Any) -> None:
    file = tmp_path / "engines.toml"
    first = """
        [[stream]]
        worker = "a"
        endpoint = "tcp://127.0.0.1:9"
        model = "m"
        block_size = 16
        aliases = ["alias"]
        """
    second = """
        [[stream]]
        worker = "b"
        rank = 1
        endpoint = "tcp://127.0.0.1:9"
        model = "m"
        block_size = 32
        """
    file.write_text(first)
    config = Config(http=CONFIG.http, discovery=CONFIG.discovery, engines_file=file)
    with Service(config=config) as service:
        until(lambda: [each.state for each in service.engines()] == ["registered"])
        # Only now: streams of one list are registered side by side, and the first one's block size counts.
        file.write_text(first + second)
        until(lambda: [each.state for each in service.engines()] == ["registered", "refused"])
        refused = service.engines()[1]
        assert (refused.worker, refused.rank, refused.url) == ("b", 1, "tcp://127.0.0.1:9")
        assert refused.code == "block_size_mismatch"
        assert "routing group of their own" in (refused.reason or "")
        assert service.workers()[0].aliases == ("alias",)
        # Out of the file, out of the list.
        file.write_text(first)
        until(lambda: [each.worker for each in service.engines()] == ["a"])
