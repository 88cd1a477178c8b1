"""A service in this process: how it starts, what it is told, how it ends."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import until

from kvatlas.errors import ConfigError, ServiceError
from kvatlas.service import Config, DiscoveryConfig, HttpConfig, Service
from kvatlas.service.discovery import Discovery

from .fake_native import FakeNative, Starter, started

BOTH: dict[str, Any] = {"model": "m", "block_size": 16}


def test_what_it_is_told() -> None:
    start = Starter()
    with started(start, config=Config(http=HttpConfig(bind="127.0.0.1:0", key="k"))) as service:
        assert start.native.settings["http"]["bind"] == "127.0.0.1:0"
        assert start.native.settings["http"]["key"] == "k"
        # No engine is to be asked: nothing to wait for.
        assert start.native.settings["holds"] == []
        assert start.native.settings["log"] == {"format": "text", "level": "off"}
        service.wait_ready(0)
        assert service.waiting() is None
        assert service.workers() == []
        assert service.url == "http://127.0.0.1:8090"
        assert repr(service) == "Service(url='http://127.0.0.1:8090', engines=0, streams=0)"
    assert start.native.closed
    assert repr(service).endswith("streams=0, closed)")
    service.close()


@pytest.mark.parametrize(
    ("address", "url"),
    [("0.0.0.0:1", "http://127.0.0.1:1"), ("[::]:1", "http://[::1]:1"), ("10.0.0.1:1", "http://10.0.0.1:1")],
)
def test_where_it_is(address: str, url: str) -> None:
    def start(settings: dict[str, Any]) -> FakeNative:
        native = FakeNative(settings)
        native.address = address
        return native

    with started(start) as service:
        assert (service.address, service.url) == (address, url)


def test_streams_by_hand_are_registered_at_once() -> None:
    start = Starter()
    settings = Config(static_streams=("a=tcp://h:1,topic=t",), routing_group="g", **BOTH)  # type: ignore[arg-type]
    with started(start, streams=["b=tcp://h:2,rank=3,replay_endpoint=tcp://h:4,model=n,block_size=8"], config=settings):
        assert start.native.registered["a", 0] == {
            "instance_id": "a",
            "endpoint": "tcp://h:1",
            "topic": "t",
            "model_name": "m",
            "routing_group": "g",
            "block_size": 16,
            "dp_rank": 0,
            "source": "stream of a",
        }
        b = start.native.registered["b", 3]
        assert (b["model_name"], b["block_size"], b["replay_endpoint"]) == ("n", 8, "tcp://h:4")
        until(lambda: not start.native.holds)


def test_a_stream_that_is_refused_is_an_error_at_the_start() -> None:
    start = Starter()

    def refusing(settings: dict[str, Any]) -> FakeNative:
        native = start(settings)
        native.refuse["a"] = "no"
        return native

    with pytest.raises(ServiceError, match="no") as caught:
        started(refusing, streams=["a=tcp://h:1,model=m,block_size=16"])
    assert caught.value.code == "block_size_mismatch"
    assert start.native.closed


def test_what_cannot_be_used_is_an_error_before_anything_starts(tmp_path: Path) -> None:
    start = Starter()
    makes: list[Callable[[], Service]] = [
        lambda: started(start, ["host:8000"]),
        lambda: started(start, streams=["a=tcp://h:1"]),
        lambda: started(start, ["a=http://h", "a=http://g"]),
        lambda: started(start, "http://h:8000"),
        lambda: started(start, config=Config(http=HttpConfig(key_file=tmp_path / "none"))),
    ]
    for make in makes:
        with pytest.raises(ConfigError):
            make()
    assert not start.made


def test_registering_and_unregistering() -> None:
    start = Starter()
    with started(start, config=Config(**BOTH)) as service:
        assert service.register("a", "tcp://h:1")
        assert not service.register("a", "tcp://h:1")
        assert service.register(
            "a", "tcp://h:2", model="n", block_size=8, routing_group="g", rank=1, replay_endpoint="tcp://h:3", topic="t"
        )
        assert json.dumps(start.native.registered["a", 1]).count("tcp://h") == 2
        assert service.unregister("a", rank=0) == 1
        assert service.unregister("a") == 1
        with pytest.raises(ServiceError, match="is not registered"):
            service.unregister("a")
        with pytest.raises(ConfigError, match="endpoint must be tcp://HOST:PORT"):
            service.register("a", "h:1")
    with started(start) as service, pytest.raises(ConfigError, match="model is missing"):
        service.register("a", "tcp://h:1")


def test_no_client_after_its_end() -> None:
    with started(Starter()) as service:
        service.client()
    with pytest.raises(ServiceError, match="closed") as caught:
        service.client()
    assert caught.value.code == "closed"


def test_waiting_too_long_says_for_what() -> None:
    start = Starter()
    with started(start, ["http://127.0.0.1:9"]) as service:
        with pytest.raises(ServiceError, match="discovery") as caught:
            service.wait_ready(0)
        assert caught.value.code == "not_ready"
        assert service.waiting() == {"holds": ["discovery"], "streams": [], "draining": False}


def test_draining_ends_discovery_first() -> None:
    start = Starter()
    with started(start, ["http://127.0.0.1:9"], config=Config(drain_timeout=3)) as service:
        assert service.drain()
        assert start.native.drained == 3
        assert service.drain(1)
        assert start.native.drained == 1


def test_a_fault_of_discovery_does_not_hold_readiness_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(_discovery: Discovery) -> None:
        raise LookupError("a fault")

    monkeypatch.setattr(Discovery, "run", run)
    with started(Starter(), ["http://127.0.0.1:9"]) as service:
        service.wait_ready(60)
        assert service.drain()
    assert "discovery has ended by a fault of its own" in caplog.text
    assert "a fault" in caplog.text


def test_many_engines_are_looked_at_less_often() -> None:
    settings = Config(discovery=DiscoveryConfig(interval=10))
    discovery = Discovery(settings)
    assert discovery.pace(3) == 10
    assert discovery.pace(1000) == 40


def test_a_service_in_an_event_loop() -> None:
    start = Starter()

    async def run() -> None:
        async with started(start, ["http://127.0.0.1:9"]) as service:
            with pytest.raises(ServiceError, match="not ready after 0 s: still waiting for") as caught:
                await service.wait_ready_async(0)
            assert caught.value.code == "not_ready"
            start.native.release("discovery")
            await service.wait_ready_async(0)
            async with service.async_client() as client:
                assert client.url == service.url
        assert start.native.closed
        with pytest.raises(ServiceError, match="closed"):
            service.async_client()

    asyncio.run(run())
