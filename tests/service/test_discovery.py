"""Engines that are asked, watched, and listed in a file."""

import asyncio
import json
import logging
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvatlas.errors import ConfigError, DiscoveryError, ServiceError
from kvatlas.service import Config, DiscoveryConfig, Engine
from kvatlas.service.config import StreamConfig
from kvatlas.service.discovery import Found, Source, watch
from kvatlas.service.discovery.endpoints import bound_port, reachable
from kvatlas.service.discovery.http import Asker
from kvatlas.service.discovery.probe import Prober

from .fake_engine import METRICS, FakeEngine, sglang, vllm
from .fake_native import FakeNative, Starter, started, until

FAST = DiscoveryConfig(interval=0.05, timeout=20, request_timeout=5)


def probe(
    engine: Engine | str,
    settings: Config | None = None,
    key: str | None = None,
    allowed: Callable[[str, str], None] = lambda endpoint, host: None,
) -> Found:
    settings = settings or Config(discovery=FAST)

    async def ask() -> Found:
        async with Asker(settings.discovery.request_timeout, key) as asker:
            return await Prober(asker, Engine.of(engine), settings, allowed).whole()

    return asyncio.run(ask())


def problem(answers: dict[str, Any], **settings: Any) -> DiscoveryError:
    with FakeEngine(answers) as engine, pytest.raises(DiscoveryError) as caught:
        probe(engine.url, Config(discovery=FAST, **settings))
    return caught.value


@contextmanager
def listening() -> Iterator[int]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that nobody listens at, and nobody else gets meanwhile."""
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


# One engine


@pytest.mark.parametrize("ranks", [1025, 5000])
def test_an_engine_has_so_many_ranks_at_most(ranks: int) -> None:
    for answers in (vllm(ranks=ranks, port=1000), sglang(ranks=ranks)):
        caught = problem(answers)
        assert (caught.code, caught.temporary) == ("bad_answer", False)
        assert str(ranks) in str(caught)
    assert len(_found(vllm(ranks=1024, port=1000)).sources) == 1024


def _found(answers: dict[str, Any]) -> Found:
    with FakeEngine(answers) as engine:
        return probe(engine.url)


def test_vllm() -> None:
    with FakeEngine(vllm(ranks=2, topic="kv")) as engine:
        found = probe(engine.url)
    assert found == Found(
        "vllm",
        "m",
        16,
        (
            Source(0, "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5657", "kv"),
            Source(1, "tcp://127.0.0.1:5558", "tcp://127.0.0.1:5658", "kv"),
        ),
        adapters=("adapter",),
    )


def test_all_names_of_the_model_and_of_its_adapters() -> None:
    with FakeEngine(vllm(aliases=("alias", "m", "other"))) as engine:
        found = probe(engine.url)
        assert (found.model, found.aliases, found.adapters) == ("m", ("alias", "other"), ("adapter",))
        # With a name given by hand, those of the engine are others of the same model.
        found = probe(Engine(engine.url, model="mine", aliases=("ours",), adapters=("hidden",)))
        assert (found.model, found.aliases) == ("mine", ("m", "alias", "other", "ours"))
        assert found.adapters == ("adapter", "hidden")
        engine.answers["/v1/models"] = 500
        assert probe(Engine(engine.url, model="mine", aliases=("ours",))).aliases == ("ours",)
    names = [{"id": f"n{number}"} for number in range(3000)] + [{"id": "x" * 1025}, {"id": 7}, {"id": ""}, 7]
    with FakeEngine(vllm() | {"/v1/models": {"data": names}}) as engine:
        found = probe(engine.url)
        assert (found.model, len(found.aliases), found.aliases[-1]) == ("n0", 1024, "n1024")
    cards = [{"id": "m", "parent": None}, {"id": "sql", "parent": "m"}]
    with FakeEngine(sglang() | {"/v1/models": {"data": cards}}) as engine:
        found = probe(engine.url)
        assert (found.model, found.aliases, found.adapters) == ("m", (), ("sql",))


def test_vllm_without_replay_and_with_what_the_settings_say() -> None:
    with FakeEngine(vllm(replay_endpoint=None) | {"/metrics": 500, "/v1/models": 500}) as engine:
        found = probe(engine.url, Config(discovery=FAST, model="mine", block_size=8))
        assert (found.model, found.block_size, found.sources[0].replay_endpoint) == ("mine", 8, None)
        own = Engine(engine.url, model="other", block_size=4)
        found = probe(own, Config(discovery=FAST, model="mine", block_size=8))
        assert (found.model, found.block_size) == ("other", 4)


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_sglang(path: str) -> None:
    with FakeEngine({path: sglang(ranks=2)["/server_info"]}) as engine:
        found = probe(engine.url)
    assert found == Found(
        "sglang",
        "m",
        64,
        (
            Source(0, "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5657", "kv"),
            Source(1, "tcp://127.0.0.1:5558", "tcp://127.0.0.1:5658", "kv"),
        ),
    )


def test_engines_that_report_hits_too() -> None:
    full = {"kv_cache_report_mode": "full"}
    vllm_says, sglang_says = vllm(ranks=2), sglang(ranks=1)
    vllm_says["/kv_event_sources"]["1"] |= full
    sglang_says["/server_info"]["kv_events"] |= full
    with FakeEngine(vllm_says) as engine:
        assert [source.count_copies for source in probe(engine.url).sources] == [True, False]
        found = probe(Engine(engine.url, count_copies=True))
        assert [source.count_copies for source in found.sources] == [True, True]
    with FakeEngine(sglang_says) as engine:
        assert not probe(engine.url).sources[0].count_copies


def test_sglang_that_shows_only_its_flags() -> None:
    config = {"publisher": "zmq", "endpoint": "tcp://*:7000", "replay_endpoint": "tcp://*:7100", "topic": "t"}
    old = sglang(ranks=2, kv_events=None, kv_events_config=json.dumps(config), served_model_name=None)
    with FakeEngine(old) as engine:
        found = probe(engine.url)
    assert (found.model, found.block_size) == ("/models/m", 64)
    assert found.sources[1] == Source(1, "tcp://127.0.0.1:7001", "tcp://127.0.0.1:7101", "t")


def test_sglang_with_ranks_on_several_hosts() -> None:
    with listening() as port:
        answers = sglang(ranks=2)
        there = {"dp_rank": 1, "endpoint": f"tcp://127.0.0.1:{port}"}
        answers["/server_info"]["kv_events"]["publishers"] = [there]
        with FakeEngine(answers) as engine:
            found = probe(engine.url)
    assert [source.endpoint for source in found.sources] == ["tcp://127.0.0.1:5557", f"tcp://127.0.0.1:{port}"]


def test_vllm_that_does_not_say_where_its_events_are() -> None:
    old = vllm(ranks=2)
    del old["/kv_event_sources"]
    with FakeEngine(old) as engine:
        with pytest.raises(DiscoveryError) as caught:
            probe(engine.url)
        assert caught.value.code == "unknown_address"
        assert str(caught.value) == (
            "this engine does not report where its KV events are: it has no GET /kv_event_sources, which vLLM has "
            "since 0.31. Add --events-port 5557 --replay-port 5757 to `kvatlas serve` (or events_port and replay_port "
            "to its [[engine]] table), and start the engine with the same ports: vllm serve MODEL --kv-events-config "
            """'{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", """
            """"replay_endpoint": "tcp://*:5757"}'"""
        )
        engine.answers["/version"] = {"version": "0.22.1"}
        with pytest.raises(DiscoveryError, match=r"^vLLM 0\.22\.1 does not report where its KV events are: "):
            probe(engine.url)
        engine.answers["/version"] = "not JSON"
        with pytest.raises(DiscoveryError, match=r"^this engine does not report"):
            probe(engine.url)
        ports = DiscoveryConfig(interval=0.05, events_port=6000, replay_port=6100)
        found = probe(engine.url, Config(discovery=ports))
        assert found.sources == (
            Source(0, "tcp://127.0.0.1:6000", "tcp://127.0.0.1:6100", ""),
            Source(1, "tcp://127.0.0.1:6001", "tcp://127.0.0.1:6101", ""),
        )
        found = probe(Engine(engine.url, events_port=6200, ranks=3), Config(discovery=FAST))
        assert [source.endpoint[-4:] for source in found.sources] == ["6200", "6201", "6202"]
        assert found.sources[0].replay_endpoint is None


NOT_EVENTS = "it publishes no KV events: start it with --kv-events-config"
PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({}, "it has none of the HTTP routes of vLLM and SGLang: is this the address of an engine?"),
    (vllm() | {"/kv_event_sources": {}}, NOT_EVENTS),
    (vllm() | {"/kv_event_sources": []}, "did not return a JSON object of ranks"),
    (vllm() | {"/kv_event_sources": {"x": {}}}, "did not return a JSON object of ranks"),
    (vllm() | {"/kv_event_sources": {"0": 3}}, "did not return a JSON object of ranks"),
    (vllm() | {"/kv_event_sources": "<html>"}, "did not return JSON"),
    (vllm() | {"/kv_event_sources": "[" * 100_000}, "did not return JSON"),
    (vllm(enable_kv_cache_events=False), 'rank 0 publishes no events over ZMQ: its --kv-events-config needs "enable'),
    (vllm(publisher="null"), 'and "publisher": "zmq"'),
    (vllm(endpoint="tcp://127.0.0.1:*"), "the engine does not report which port the system chose"),
    (vllm(endpoint="tcp://*:0"), "the engine does not report which port the system chose"),
    (vllm(endpoint="inproc://kv"), "which can only be reached from inside its process"),
    (vllm(endpoint=None), "which is not a ZMQ address"),
    (vllm(endpoint="udp://x:1"), "which is not a ZMQ address"),
    (vllm(replay_endpoint="inproc://kv"), 'start the engine with "replay_endpoint": "tcp://*:PORT"'),
    (vllm() | {"/v1/models": {"data": []}}, "GET /v1/models lists no models: set the model with --model"),
    (vllm() | {"/v1/models": [3]}, "GET /v1/models lists no models"),
    (vllm() | {"/metrics": ""}, "GET /metrics does not report the block size: set it with --block-size"),
    (vllm() | {"/metrics": 404}, "GET /metrics does not report the block size"),
    (vllm(block_size="None"), "GET /metrics does not report the block size"),
    (vllm() | {"/metrics": METRICS % (16, 0) + METRICS % (32, 1)}, "GET /metrics reports several block sizes"),
    (sglang(kv_events=None), NOT_EVENTS),
    (sglang(kv_events=None, kv_events_config="{"), "its --kv-events-config is not JSON"),
    (sglang(kv_events=None, kv_events_config='{"endpoint": "x"}'), "its endpoint is 'x', expected tcp://HOST:PORT"),
    (sglang(kv_events=None, kv_events_config="{}"), 'needs "publisher": "zmq"'),
    (sglang(kv_events={"publisher": "null"}), 'its --kv-events-config needs "publisher": "zmq"'),
    (sglang(served_model_name=None, model_path=3), "does not report the model: set it with --model"),
    (
        sglang(page_size=0, kv_events={"endpoint_port_base": 1}),
        "does not report the block size: set it with --block-size",
    ),
    (sglang(kv_events={"block_size": 1, "endpoint_port_base": 1, "dp_size": -1}), "reports dp_size -1"),
    (sglang(kv_events={"block_size": 1, "endpoint_port_base": 1, "dp_size": 10**9}), "reports dp_size 1000000000"),
    (sglang(kv_events={"block_size": 1}), "rank 0's endpoint is '', which is not a ZMQ address"),
]


@pytest.mark.parametrize(("answers", "message"), PROBLEMS)
def test_what_is_wrong_with_an_engine(answers: dict[str, Any], message: str) -> None:
    caught = problem(answers)
    assert message in str(caught)
    assert not caught.temporary


@pytest.mark.parametrize("path", ["/kv_event_sources", "/v1/models", "/metrics"])
def test_failures_of_the_engine_may_pass(path: str) -> None:
    caught = problem(vllm() | {path: 503})
    assert str(caught) == f"GET {path} returned status 503"
    assert caught.temporary


def test_an_engine_that_is_away_may_come() -> None:
    with (
        closed_port() as port,
        pytest.raises(DiscoveryError, match="it cannot be reached: Connection") as caught,
    ):
        probe(f"http://127.0.0.1:{port}")
    assert caught.value.temporary


def test_an_engine_that_hangs() -> None:
    hasty = DiscoveryConfig(request_timeout=0.05)
    with listening() as port, pytest.raises(DiscoveryError, match="it did not answer in time") as caught:
        probe(f"http://127.0.0.1:{port}", Config(discovery=hasty))
    assert caught.value.temporary


def test_something_that_is_no_http_server() -> None:
    async def run() -> str:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(b"\xff\0\0\0\0\0\0\0\1\x7f")
            writer.close()
            await writer.wait_closed()

        async with await asyncio.start_server(talk, "127.0.0.1", 0) as server, Asker(5) as asker:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(DiscoveryError) as caught:
                await Prober(asker, Engine(url), Config(), lambda endpoint, host: None).whole()
            return str(caught.value)

    assert "it did not answer in HTTP" in asyncio.run(run())


def test_an_engine_that_wants_a_key() -> None:
    with FakeEngine(vllm(), key="k") as engine:
        with pytest.raises(DiscoveryError, match="set its API key with --engine-key-file or KVATLAS_ENGINE_KEY"):
            probe(engine.url)
        assert probe(engine.url, key="k").model == "m"


def test_an_endpoint_that_the_engine_connects_to() -> None:
    with closed_port() as port, FakeEngine(vllm(endpoint=f"tcp://127.0.0.1:{port}")) as engine:
        with pytest.raises(
            DiscoveryError, match=r"connects to an endpoint without a \* instead of listening"
        ) as caught:
            probe(engine.url)
        assert caught.value.temporary  # it may be one that listens soon
    with listening() as port, FakeEngine(vllm(endpoint=f"tcp://127.0.0.1:{port}")) as engine:
        assert probe(engine.url).sources[0].endpoint == f"tcp://127.0.0.1:{port}"


def test_nothing_is_connected_to_that_is_not_allowed() -> None:
    asked = []

    def refuse(endpoint: str, host: str) -> None:
        asked.append((endpoint, host))
        raise ServiceError(f"{endpoint} is not in streams.allow", "endpoint_not_allowed")

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.3)
        endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        for answers in (vllm(endpoint=endpoint), sglang()):
            if "/server_info" in answers:
                answers["/server_info"]["kv_events"]["publishers"] = [{"dp_rank": 0, "endpoint": endpoint}]
            with FakeEngine(answers) as engine, pytest.raises(DiscoveryError, match=r"streams\.allow") as caught:
                probe(engine.url, allowed=refuse)
            assert (caught.value.code, caught.value.temporary) == ("endpoint_not_allowed", False)
        assert asked == [(endpoint, "127.0.0.1")] * 2
        with pytest.raises(TimeoutError):
            server.accept()


def test_an_engine_that_connects_to_this_service() -> None:
    settings = Config(discovery=FAST, streams=StreamConfig(bind=("0.0.0.0:5557", "0.0.0.0:5558")))
    for endpoint, wanted in [
        ("tcp://index:5557", "bind://5557"),
        ("tcp://10.0.0.1:5558", "bind://5558"),
        ("tcp://127.0.0.1:5557", "bind://5557"),  # this service has the port, so no engine listens there
        ("tcp://*:5557", "tcp://127.0.0.1:5557"),
    ]:
        with FakeEngine(vllm(endpoint=endpoint, topic="kv-a")) as engine:
            (source,) = probe(engine.url, settings).sources
        assert (source.endpoint, source.topic) == (wanted, "kv-a")
    with (
        closed_port() as port,
        FakeEngine(vllm(endpoint=f"tcp://127.0.0.1:{port}")) as engine,
        pytest.raises(DiscoveryError, match=f"--streams-bind 0.0.0.0:{port}"),
    ):
        probe(engine.url, settings)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("tcp://index:5557", "host-a", 5557),
        ("tcp://[fd00::1]:5557", "host-a", 5557),
        ("tcp://*:5557", "host-a", None),
        ("tcp://[::]:5557", "host-a", None),
        ("tcp://index:5559", "host-a", None),
        ("tcp://host-a:5557", "host-a", None),
        ("tcp://localhost:5557", "localhost", 5557),
        ("ipc:///tmp/kv:5557", "localhost", None),
    ],
)
def test_ports_that_engines_connect_to(address: str, host: str, port: int | None) -> None:
    assert bound_port(address, host, ["0.0.0.0:5557", "[::]:5558"]) == port


@pytest.mark.parametrize(
    ("address", "host", "wanted"),
    [
        ("tcp://*:5557", "host-a", ("tcp://host-a:5557", True)),
        ("tcp://0.0.0.0:5557", "host-a", ("tcp://host-a:5557", True)),
        ("tcp://[::]:5557", "host-a", ("tcp://host-a:5557", True)),
        ("tcp://*:5557", "fd00::1", ("tcp://[fd00::1]:5557", True)),
        ("tcp://10.0.0.7:4000", "host-a", ("tcp://10.0.0.7:4000", False)),
        ("tcp://[fd00::7]:4000", "host-a", ("tcp://[fd00::7]:4000", False)),
        ("tcp://127.0.0.1:4000", "localhost", ("tcp://127.0.0.1:4000", False)),
        ("ipc:///tmp/kv", "127.0.0.1", ("ipc:///tmp/kv", False)),
    ],
)
def test_addresses_that_can_be_reached(address: str, host: str, wanted: tuple[str, bool]) -> None:
    assert reachable(address, host, "the endpoint") == wanted


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:5557", "tcp://localhost:5557", "ipc:///tmp/kv"])
def test_addresses_of_another_machine_itself(address: str) -> None:
    with pytest.raises(DiscoveryError, match="which can only be reached from its own machine"):
        reachable(address, "host-a", "the endpoint")


# Watching


@contextmanager
def following(engines: list[str], discovery: DiscoveryConfig = FAST, **settings: Any) -> Iterator[FakeNative]:
    start = Starter()
    with started(start, engines, config=Config(discovery=discovery, **settings)):
        yield start.native


def test_engines_are_registered_and_readiness_waits_for_them() -> None:
    with FakeEngine(vllm(ranks=2)) as one, FakeEngine(sglang(port=6000)) as two:
        with following([one.url, f"two={two.url}"], routing_group="blue") as native:
            assert native.settings["holds"] == ["discovery"]
            until(lambda: not native.holds)
            assert native.endpoints() == {
                (f"127.0.0.1:{one.port}", 0): "tcp://127.0.0.1:5557",
                (f"127.0.0.1:{one.port}", 1): "tcp://127.0.0.1:5558",
                ("two", 0): "tcp://127.0.0.1:6000",
            }
            assert set(native.announced_by.values()) == {"127.0.0.1"}, "they may name themselves only"
            assert native.registered["two", 0] == {
                "instance_id": "two",
                "endpoint": "tcp://127.0.0.1:6000",
                "replay_endpoint": "tcp://127.0.0.1:6100",
                "topic": "kv",
                "model_name": "m",
                "routing_group": "blue",
                "block_size": 64,
                "dp_rank": 0,
                "aliases": [],
                "adapters": [],
                "source": f"engine {two.url}",
            }
        assert native.closed
        # What is registered ends with the service, not with discovery.
        assert not [what for what, *_rest in native.log if what == "unregister"]


def told(native: FakeNative, worker: str) -> tuple[str, str | None]:
    about = native.reports.get((worker, None), {"state": "", "code": None})
    return about["state"], about["code"]


def test_engines_that_are_not_registered_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with (
        FakeEngine(vllm()) as good,
        FakeEngine(vllm() | {"/kv_event_sources": {}}) as silent,
        FakeEngine({}) as other,
        FakeEngine(vllm()) as refused,
        closed_port() as port,
    ):
        engines = {"good": good.url, "silent": silent.url, "other": other.url, "refused": refused.url}
        away = f"http://user:secret@127.0.0.1:{port}"
        hasty = DiscoveryConfig(interval=0.05, timeout=0.5)
        start = Starter()
        start.refuse["refused"] = "model 'm' has blocks of 4 tokens, not 16"
        listed = [f"{name}={url}" for name, url in {**engines, "away": away}.items()]
        with started(start, listed, config=Config(discovery=hasty)) as service:
            native = start.native
            until(lambda: not native.holds)
            assert told(native, "good") == ("registered", None)
            assert told(native, "silent") == ("no_events", "no_events")
            assert told(native, "other") == ("unusable", "bad_answer")
            assert told(native, "refused") == ("refused", "block_size_mismatch")
            assert told(native, "away") == ("unreachable", "unreachable")
            about = native.reports["away", None]
            assert about["url"] == f"http://***@127.0.0.1:{port}", "without the password"
            assert about["reason"].startswith("it cannot be reached")
            assert native.reports["refused", None]["reason"] == start.refuse["refused"]
            assert [state for worker, state in native.states if worker == "silent"][:2] == ["asking", "no_events"]
            assert "none of the configured" not in caplog.text
            assert {engine.worker for engine in service.engines() if not engine.is_registered} == {
                *("silent", "other", "refused", "away")
            }
            # What is registered stays so, and its problem is told.
            good.answers = {"/kv_event_sources": 500}
            until(lambda: told(native, "good") == ("registered", "http_500"))
            silent.answers = vllm()
            until(lambda: told(native, "silent") == ("registered", None))


def test_without_a_usable_engine_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with FakeEngine({}) as engine, following([engine.url]) as native:
        until(lambda: not native.holds)
        until(lambda: "none of the configured engines can be used" in caplog.text)


def test_names_that_change_are_registered_without_a_new_stream() -> None:
    with FakeEngine(vllm()) as engine, following([f"a={engine.url}"]) as native:
        until(lambda: native.registered)
        assert native.registered["a", 0]["adapters"] == ["adapter"]
        engine.answers = vllm(aliases=("alias",))
        until(lambda: native.registered["a", 0]["aliases"] == ["alias"])
        assert native.log == [("register", "a", 0)]


def test_readiness_waits_for_an_engine_that_comes_late() -> None:
    with FakeEngine({}) as engine:
        engine.answers = {"/kv_event_sources": 503}
        with following([engine.url]) as native:
            until(lambda: engine.asked["/kv_event_sources"] > 2)
            assert native.holds
            engine.answers = vllm()
            until(lambda: not native.holds)
            assert len(native.registered) == 1


def test_readiness_does_not_wait_for_an_engine_that_cannot_be_registered() -> None:
    with FakeEngine({"/kv_event_sources": {}}) as engine, following([engine.url]) as native:
        until(lambda: not native.holds)
        assert not native.registered
        # It is asked again: it may be started anew with events.
        engine.answers = vllm()
        until(lambda: native.registered)


def test_readiness_does_not_wait_forever(caplog: pytest.LogCaptureFixture) -> None:
    hasty = DiscoveryConfig(interval=0.05, timeout=0.05)
    with closed_port() as port, following([f"http://127.0.0.1:{port}"], hasty) as native:
        until(lambda: not native.holds)
    assert f"no longer waiting for engine http://127.0.0.1:{port}" in caplog.text


def test_an_engine_that_changes_is_registered_anew() -> None:
    with FakeEngine(vllm(ranks=2)) as engine, following([f"a={engine.url}"]) as native:
        until(lambda: len(native.registered) == 2)
        moved = vllm(ranks=2)
        moved["/kv_event_sources"]["1"]["endpoint"] = "tcp://*:7000"
        engine.answers = moved
        until(lambda: native.endpoints().get(("a", 1)) == "tcp://127.0.0.1:7000")
        assert [entry for entry in native.log if entry[2] == 0] == [("register", "a", 0)]
        engine.answers = vllm(ranks=1)
        until(lambda: list(native.registered) == [("a", 0)])
        engine.answers = vllm(ranks=1, model="n")
        until(lambda: [about["model_name"] for about in native.registered.values()] == ["n"])
        engine.answers = vllm(ranks=1, model="n", block_size=32)
        until(lambda: [about["block_size"] for about in native.registered.values()] == [32])


def test_an_engine_that_is_away_stays_registered_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvatlas")
    with FakeEngine(vllm()) as engine, following([f"a={engine.url}"]) as native:
        until(lambda: native.registered)
        before = engine.asked["/kv_event_sources"]
        engine.answers = {"/kv_event_sources": 500}
        until(lambda: engine.asked["/kv_event_sources"] > before + 5)
        assert native.endpoints() == {("a", 0): "tcp://127.0.0.1:5557"}
        assert caplog.text.count("GET /kv_event_sources returned status 500") == 1
        # Another engine may have taken its place: all is asked anew.
        engine.answers = vllm(block_size=8)
        until(lambda: [about["block_size"] for about in native.registered.values()] == [8])
        said = f"engine {engine.url}: recovered; the last problem was: GET /kv_event_sources returned status 500"
        until(lambda: said in caplog.text)


def test_what_somebody_unregistered_comes_back() -> None:
    with FakeEngine(vllm()) as engine, following([f"a={engine.url}"]) as native:
        until(lambda: native.registered)
        native.unregister("a")
        until(lambda: native.registered)


def test_a_refused_registration_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    with FakeEngine(vllm()) as engine:
        start = Starter()

        def refusing(settings: dict[str, Any]) -> FakeNative:
            native = start(settings)
            native.refuse["a"] = "the model has blocks of 32 tokens"
            return native

        with started(refusing, [f"a={engine.url}"], config=Config(discovery=FAST)):
            until(lambda: not start.native.holds)
            until(lambda: "the model has blocks of 32 tokens" in caplog.text)
            assert not start.native.registered
            start.native.refuse.clear()
            until(lambda: start.native.registered)


def test_strange_answers_do_not_end_the_watch(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def whole(self: Prober) -> Found:
        nonlocal asked
        asked += 1
        raise KeyError("x")

    monkeypatch.setattr(Prober, "whole", whole)
    with following(["http://127.0.0.1:9"]) as native:
        until(lambda: asked > 2)
        assert not native.holds
    assert caplog.text.count("unexpected answer: KeyError('x')") == 1


def test_few_requests_for_an_engine_that_stays_the_same() -> None:
    with FakeEngine(vllm()) as engine, following([engine.url]):
        until(lambda: engine.asked["/kv_event_sources"] >= 40)
    # Every sixth check asks for all; that check asks twice for the sources.
    assert engine.asked["/v1/models"] <= 1 + engine.asked["/kv_event_sources"] / 6
    assert engine.asked["/metrics"] == engine.asked["/v1/models"]


# The file


def test_a_file_of_engines_is_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_POLL", 0.05)
    caplog.set_level(logging.INFO, "kvatlas")
    file = tmp_path / "engines.toml"
    with FakeEngine(vllm(port=6000)) as one, FakeEngine(vllm(port=7000)) as two:
        entry = "[[engine]]\nurl = '{}'\nname = '{}'\n"
        first, second = entry.format(one.url, "one"), entry.format(two.url, "two")
        by_hand = "[[stream]]\nworker = 'w'\nendpoint = 'tcp://h:{}'\nmodel = 'm'\nblock_size = 16\nrank = {}\n"
        file.write_text(first)
        with following([], engines_file=file) as native:
            until(lambda: not native.holds)
            assert native.endpoints() == {("one", 0): "tcp://127.0.0.1:6000"}
            # Added.
            file.write_text(first + second + by_hand.format(1, 0) + by_hand.format(2, 1))
            four = {("one", 0): "tcp://127.0.0.1:6000", ("two", 0): "tcp://127.0.0.1:7000"}
            four |= {("w", 0): "tcp://h:1", ("w", 1): "tcp://h:2"}
            until(lambda: native.endpoints() == four)
            # Changed: one rank of the worker, and the engine behind a name.
            file.write_text(entry.format(two.url, "one") + by_hand.format(1, 0) + by_hand.format(3, 1))
            three = {("one", 0): "tcp://127.0.0.1:7000", ("w", 0): "tcp://h:1", ("w", 1): "tcp://h:3"}
            until(lambda: native.endpoints() == three)
            assert ("unregister", "w", 0) not in native.log
            # Broken: the last good one counts.
            before = list(native.log)
            file.write_text("[[engine]]\nurl = 'http://'\n")
            until(lambda: "the host is missing" in caplog.text)
            assert f"{file}, line 1: engine " in caplog.text
            assert "keeping the previous content" in caplog.text
            file.unlink()
            until(lambda: "No such file or directory" in caplog.text)
            assert native.log == before
            # Removed.
            file.write_text(by_hand.format(1, 0))
            until(lambda: native.endpoints() == {("w", 0): "tcp://h:1"})
            assert "removed from the file; unregistered" in caplog.text


def test_what_was_given_at_the_start_comes_before_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "engines.toml"
    with FakeEngine(vllm(port=6000)) as one, FakeEngine(vllm(port=7000)) as two:
        file.write_text(f"engine = ['one={two.url}', 'two={two.url}']")
        with following([f"one={one.url}"], engines_file=file) as native:
            until(lambda: not native.holds)
            assert native.endpoints() == {("one", 0): "tcp://127.0.0.1:6000", ("two", 0): "tcp://127.0.0.1:7000"}
    assert "ignored engine one, which was already configured at the start" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory"),
        (b"\xff\xff", "is not UTF-8 text"),
        (b"x = [", "is not TOML"),
        (b"model = 'm'", "line 1: unknown key model: it must be one of [[engine]], [[stream]]"),
        (b"[[engine]]\n", "line 1: engine: url is missing"),
        (b"engine = ['http://a', 'http://a']", "are both named"),
        (b"\n[[stream]]\nworker = 'w'\nendpoint = 'tcp://h:1'", 'line 2: stream of worker "w": model is missing'),
    ],
)
def test_a_file_that_is_wrong_at_the_start(content: bytes | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "engines.toml"
    if content is not None:
        file.write_bytes(content)
    start = Starter()
    with pytest.raises(ConfigError, match=re.escape(message)):
        started(start, config=Config(engines_file=file))
    assert not start.made
