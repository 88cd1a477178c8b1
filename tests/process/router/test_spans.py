"""Spans for OpenTelemetry: what is recorded of requests and attempts, what engines are told, and that nothing waits."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator

import pytest
from tests.support.collector import CLIENT, SERVER, Collector, Span
from tests.support.engine import MODEL, Engine, die, hang, reply
from tests.support.waiting import until

from .conftest import QUICK
from .running import MESSAGES, Router, wait_until

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1,other=x"}
UNSAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
SECRET = "a very private question"
USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}
ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": SECRET}}], "usage": USAGE}

Start = Callable[..., Router]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, collector: Collector) -> Iterator[Start]:
    """Starts a router whose spans go to the collector, with more variables of OpenTelemetry."""
    started: list[Router] = []

    def make(*engines: Engine, flags: tuple[str, ...] = QUICK, **variables: str) -> Router:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        started.append(Router(*engines, flags=flags))
        return started[-1]

    yield make
    for router in started:
        router.kill()


def spans(collector: Collector, *, clients: int) -> tuple[Span, list[Span]]:
    """The span of the only request, and those of its attempts in order, once all have come."""
    until(lambda: len(collector.of_kind(CLIENT)) >= clients and collector.of_kind(SERVER), "the spans have come")
    (server,) = collector.of_kind(SERVER)
    attempts = sorted(collector.of_kind(CLIENT), key=lambda span: span.start)
    assert len(attempts) == clients
    assert all(attempt.parent == server.id and attempt.trace == server.trace for attempt in attempts)
    assert all(server.start <= attempt.start <= attempt.end <= server.end for attempt in attempts)
    return server, attempts


def told(engine: Engine) -> dict[str, str]:
    """The headers of the last request that the engine got to answer."""
    posted = [request for request in engine.received if request.method == "POST"]
    return {name.lower(): value for name, value in posted[-1].headers.items()}


def test_a_request_and_its_attempt(start: Start, engine: Engine, collector: Collector) -> None:
    engine.behaviour = reply("200 OK", ANSWER)
    router = start(engine, OTEL_SERVICE_NAME="front", OTEL_EXPORTER_OTLP_HEADERS="x-tenant=blue")
    assert f"spans of requests are sent to {collector.url}/v1/traces" in router.log
    body = {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": SECRET}]}
    assert router.ask(body, headers=SAMPLED).status == 200
    server, (attempt,) = spans(collector, clients=1)
    assert (server.trace, server.parent, server.state) == (TRACE, PARENT, "vendor=1,other=x")
    assert server.name == "POST /v1/chat/completions"
    assert server.resource["service.name"] == "front"
    known = {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "url.path": "/v1/chat/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.max_tokens": 5,
    }
    assert known.items() <= server.attributes.items()
    assert attempt.name == f"chat {MODEL}"
    decided = {
        "kvatlas.engine": "e0",
        "kvatlas.policy": "round-robin",
        "kvatlas.predicted_cached_tokens": 0,
        "server.address": "127.0.0.1",
        "server.port": int(engine.url.rpartition(":")[2]),
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": MODEL,
        "gen_ai.usage.input_tokens": 11,
        "gen_ai.usage.cache_read.input_tokens": 8,
        "gen_ai.usage.output_tokens": 3,
        "http.response.status_code": 200,
    }
    assert decided.items() <= attempt.attributes.items()
    assert attempt.attributes["kvatlas.reason"]
    assert attempt.attributes["kvatlas.prompt_tokens"] > 0
    assert attempt.attributes["kvatlas.decision_seconds"] >= 0
    assert "error.type" not in attempt.attributes | server.attributes
    # The engine's own spans belong below the attempt.
    headers = told(engine)
    assert headers["traceparent"] == f"00-{TRACE}-{attempt.id}-01"
    assert headers["tracestate"] == "vendor=1,other=x"
    assert all(path == "/v1/traces" and names["x-tenant"] == "blue" for path, names, _ in collector.requests)
    assert not any(SECRET.encode() in sent for _, _, sent in collector.requests), "prompts and answers are nobody's"
    wait_until(lambda: router.metric("kvatlas_router_spans_total", result="sent") == 2, "both are counted")


def test_the_first_token_of_a_stream_is_an_event(start: Start, engine: Engine, collector: Collector) -> None:
    router = start(engine)
    assert router.ask({"model": MODEL, "messages": MESSAGES, "stream": True}).status == 200
    server, (attempt,) = spans(collector, clients=1)
    assert attempt.events == ["first_token"]
    assert server.parent == ""
    assert server.resource["service.name"] == "kvatlas-router"


def test_a_retry_says_why(start: Start, engine: Engine, other: Engine, collector: Collector) -> None:
    engine.behaviour = die
    router = start(engine, other)
    for _ in range(2):  # the policy takes turns, so one of them begins with the engine that dies
        collector.spans.clear()
        assert router.ask().status == 200
        until(lambda: bool(collector.of_kind(SERVER)), "the span has come")
        if len(collector.of_kind(CLIENT)) == 2:
            break
    _, (first, second) = spans(collector, clients=2)
    assert (first.attributes["kvatlas.engine"], first.status) == ("e0", 2)
    assert second.attributes["kvatlas.retry_reason"] == first.attributes["error.type"]
    assert (second.attributes["kvatlas.engine"], second.attributes["http.request.resend_count"]) == ("e1", 1)
    assert second.status != 2


def test_a_refusal_and_a_client_that_leaves(start: Start, engine: Engine, collector: Collector) -> None:
    router = start(engine)
    assert router.ask({"model": "made-up", "messages": MESSAGES}).status == 404
    server, _ = spans(collector, clients=0)
    assert (server.attributes["error.type"], server.attributes["http.response.status_code"]) == ("model_not_found", 404)
    collector.spans.clear()
    engine.behaviour = hang
    with router.connect() as left:
        body = json.dumps({"model": MODEL, "messages": MESSAGES}).encode()
        head = f"host: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        head = f"POST /v1/chat/completions HTTP/1.1\r\n{head}"
        left.sendall(head.encode() + body)
        wait_until(lambda: router.in_flight() == 1, "it is at the engine")
    server, (attempt,) = spans(collector, clients=1)
    assert (server.attributes["error.type"], attempt.attributes["error.type"]) == ("client_left", "cancelled")


def test_requests_are_sampled_as_their_parents_are(start: Start, engine: Engine, collector: Collector) -> None:
    router = start(engine, OTEL_TRACES_SAMPLER="parentbased_always_off")
    assert router.ask(headers=UNSAMPLED).status == 200
    assert told(engine)["traceparent"].startswith(f"00-{TRACE}-")
    assert told(engine)["traceparent"].endswith("-00")
    assert PARENT not in told(engine)["traceparent"]
    assert router.ask().status == 200
    assert told(engine)["traceparent"].endswith("-00"), "the engine need not decide anew"
    assert router.ask(headers=SAMPLED).status == 200
    server, _ = spans(collector, clients=1)
    assert server.trace == TRACE


def test_without_an_endpoint_nothing_is_changed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    with Router(engine, flags=QUICK) as router:
        assert router.ask(headers=SAMPLED).status == 200
        assert told(engine)["traceparent"] == SAMPLED["traceparent"]
        assert router.metric("kvatlas_router_spans_total") == 0


def test_a_collector_that_is_not_there_holds_nothing_up(
    start: Start, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nothing listens
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        few = {
            "OTEL_BSP_MAX_QUEUE_SIZE": "8",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "200",
        }
        router = start(engine, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{address}/v1/traces", **few)
        for _ in range(60):
            assert router.ask().status == 200
        wait_until(lambda: router.metric("kvatlas_router_spans_total", result="not_taken") > 4, "counted as lost")
        wait_until(lambda: router.metric("kvatlas_router_spans_total") == 120, "each is counted")
        assert router.metric("kvatlas_router_spans_total", result="sent") == 0
        assert router.log.count("spans cannot be sent") == 1, "it is said once"


def test_a_collector_that_refuses_and_comes_back(start: Start, engine: Engine, collector: Collector) -> None:
    collector.status = 400
    router = start(engine)
    assert router.ask().status == 200
    wait_until(lambda: "answers with status 400" in router.log, "it is said")
    collector.status = 200
    assert router.ask().status == 200
    wait_until(lambda: "again" in router.log, "it is said")
    spans(collector, clients=1)


def test_a_value_that_cannot_be_followed_is_refused(
    start: Start, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AssertionError, match=r"OTEL_EXPORTER_OTLP_PROTOCOL is .*grpc"):
        start(engine, OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
