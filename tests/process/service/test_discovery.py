"""Engines that are asked what they publish and where."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from tests.support.engine import METRICS, closed_port, raw, sglang, vllm
from tests.support.engine import Engine as FakeEngine

from kvatlas.errors import DiscoveryError, ServiceError
from kvatlas.service import Config, DiscoveryConfig, Engine
from kvatlas.service.config import StreamConfig
from kvatlas.service.discovery import EngineDescription, Source
from kvatlas.service.discovery.endpoints import bound_port, reachable
from kvatlas.service.discovery.http import Asker
from kvatlas.service.discovery.probe import Prober

FAST = DiscoveryConfig(interval=0.05, timeout=60, request_timeout=30)


def probe(
    engine: Engine | str,
    settings: Config | None = None,
    key: str | None = None,
    allowed: Callable[[str, str], None] = lambda endpoint, host: None,
) -> EngineDescription:
    settings = settings or Config(discovery=FAST)

    async def ask() -> EngineDescription:
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


# One engine


@pytest.mark.parametrize("ranks", [1025, 2500])
def test_an_engine_has_so_many_ranks_at_most(ranks: int) -> None:
    for answers in (vllm(ranks=ranks, port=1000), sglang(ranks=ranks)):
        caught = problem(answers)
        assert (caught.code, caught.temporary) == ("bad_answer", False)
        assert str(ranks) in str(caught)
    assert len(_found(vllm(ranks=1024, port=1000)).sources) == 1024


def _found(answers: dict[str, Any]) -> EngineDescription:
    with FakeEngine(answers) as engine:
        return probe(engine.url)


def test_vllm() -> None:
    with FakeEngine(vllm(ranks=2, topic="kv")) as engine:
        found = probe(engine.url)
    assert found == EngineDescription(
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
    names = [{"id": f"n{number}"} for number in range(3000)] + [{"id": "x" * 257}, {"id": 7}, {"id": ""}, 7]
    with FakeEngine(vllm() | {"/v1/models": {"data": names}}) as engine:
        found = probe(engine.url)
        assert (found.model, len(found.aliases), found.aliases[-1]) == ("n0", 999, "n999")
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


def test_lengths_of_chunks_are_read_from_metrics() -> None:
    said = vllm(ranks=2)
    chunk = 'vllm:kv_offload_config_info{cpu_blocks_per_chunk="%s",engine="%s"} 1.0\n'
    said["/metrics"] += chunk % (4, 0) + chunk % (8, 1)
    with FakeEngine(said) as engine:
        assert [source.host_chunk for source in probe(engine.url).sources] == [4, 8]
        assert [source.host_chunk for source in probe(Engine(engine.url, host_chunk=2)).sources] == [2, 2]
    said["/metrics"] = said["/metrics"].replace('"4"', '"None"')
    with FakeEngine(said) as engine:
        assert [source.host_chunk for source in probe(engine.url).sources] == [8, 8], "ranks have the same settings"
    with FakeEngine(vllm()) as engine:
        assert probe(engine.url).sources[0].host_chunk is None


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_sglang(path: str) -> None:
    with FakeEngine({path: sglang(ranks=2)["/server_info"]}) as engine:
        found = probe(engine.url)
    assert found == EngineDescription(
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
    assert "it did not answer in HTTP" in str(problem({"/kv_event_sources": raw(b"\xff\0\0\0\0\0\0\0\1\x7f")}))


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
