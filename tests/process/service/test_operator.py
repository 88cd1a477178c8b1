"""Tests of what an operator sees of the service: versions, metrics, lags, requests by name, the access log."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator

import pytest
from tests.support.engine import BLOCK_SIZE, Publisher, stored
from tests.support.waiting import until

import kvatlas
from kvatlas._native import Service

from .dialect.tools import DEADLINE, MODEL, Answer, ask, running
from .process import address_of, serving

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TOKENS = list(range(4))


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    with Publisher() as made:
        yield made


def metrics(service: Service) -> dict[str, float]:
    text = ask(service.address, "GET", "/metrics").body.decode()
    assert text.count("# EOF") == 1
    assert text.endswith("# EOF\n")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_everybody_may_know_the_version() -> None:
    with running(key="k", admin_bind="127.0.0.1:0") as service:
        for address in (service.address, service.admin_address or ""):
            answer = ask(address, "GET", "/version")
            assert (answer.status, answer.json) == (200, {"version": kvatlas.__version__})


def test_the_process_and_the_build_are_in_the_metrics() -> None:
    with running() as service:
        found = metrics(service)
    assert found[f'kvatlas_build_info{{version="{kvatlas.__version__}"}}'] == 1
    assert 0 < found["process_cpu_seconds_total"] < 3600
    assert 1 << 20 < found["process_resident_memory_bytes"] <= found["process_virtual_memory_bytes"]
    assert 10 < found["process_open_fds"] <= found["process_max_fds"]
    assert time.time() - 86_400 < found["process_start_time_seconds"] <= time.time() + 2
    assert found["process_threads"] > 3


def test_lags_are_counted_and_grow_while_an_engine_is_silent(publisher: Publisher) -> None:
    about = {"instance_id": 1, "endpoint": publisher.endpoint, "model_name": MODEL, "block_size": BLOCK_SIZE}
    with running({"probe_interval": 0.3, "replay_timeout": 0.1}) as service:
        silent = about | {"replay_endpoint": "tcp://127.0.0.1:9"}
        assert ask(service.address, "POST", "/register", silent).status == 201
        publisher.wait_for_reader()

        def brings() -> bool:
            publisher.publish(stored([publisher.next_seq], TOKENS))
            return metrics(service)["kvatlas_event_lag_seconds_count"] >= 3

        until(brings)
        until(lambda: metrics(service)["kvatlas_event_lag_seconds_count"] == publisher.next_seq)
        found = metrics(service)
        lag = 'kvatlas_stream_lag_seconds{worker="1",rank="0"}'
        assert found['kvatlas_event_lag_seconds_bucket{le="+Inf"}'] == found["kvatlas_event_lag_seconds_count"]
        assert found['kvatlas_event_lag_seconds_bucket{le="60.0"}'] >= 3
        assert found["kvatlas_event_lag_seconds_sum"] < 60
        until(lambda: metrics(service)[lag] > 1)
        before = metrics(service)[lag]
        time.sleep(0.5)
        assert metrics(service)[lag] >= before + 0.4, "it does not answer, and so it falls behind"


def test_requests_keep_their_names() -> None:
    with running() as service:

        def named(**headers: str) -> Answer:
            return ask(service.address, "GET", "/health", headers={k.replace("_", "-"): v for k, v in headers.items()})

        answer = named(X_Request_Id="a-1/b", traceparent=PARENT)
        assert answer.headers["x-request-id"] == "a-1/b"
        assert answer.headers["traceparent"] == PARENT
        refused = ask(service.address, "GET", "/nowhere", headers={"X-Request-Id": "x"})
        assert (refused.status, refused.headers["x-request-id"]) == (404, "x")
        for useless in ({"X_Request_Id": "a b"}, {"X_Request_Id": "x" * 129}, {"traceparent": PARENT.upper()}, {}):
            assert not {"x-request-id", "traceparent"} & named(**useless).headers.keys()


def test_names_have_a_longest() -> None:
    long = "x" * 1025
    with running() as service:
        for path, body in (
            ("/query", {"model_name": long, "token_ids": []}),
            ("/query", {"model_name": MODEL, "token_ids": [], "routing_group": long}),
            ("/query", {"model_name": MODEL, "token_ids": [], "lora_name": long}),
            ("/query_batch", {"model_name": MODEL, "queries": [{"token_ids": [], "lora_name": long}]}),
            ("/unregister", {"instance_id": 1, "model_name": long}),
        ):
            answer = ask(service.address, "POST", path, body)
            assert (answer.status, answer.code) == (422, "wrong_type"), body
            assert len(answer.body) < 200
        fits = ask(service.address, "POST", "/query", {"model_name": long[1:], "token_ids": []})
        assert fits.code == "unknown_keyspace"


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_access_log(form: str) -> None:
    with serving("--access-log", "on", "--log", form) as process:
        address, log = address_of(process)
        about = {"endpoint": "tcp://127.0.0.1:9", "model_name": "m\nforged line", "block_size": 4}
        register = about | {"instance_id": "w\nforged line"}
        assert ask(address, "POST", "/register", register, headers={"X-Request-Id": "my-id"}).status == 201
        assert ask(address, "GET", "/no%0awhere\t?x", headers={"traceparent": PARENT}).status in (400, 404)
        salted = "/query?model_name=m&cache_salt=a-secret&forged%20line"
        assert ask(address, "POST", salted, b"", headers={"Content-Type": "application/octet-stream"}).status == 400
        answer = ask(address, "GET", "/health")
        assert re.fullmatch(r"[0-9a-f]{16}", answer.headers["x-request-id"]), "there is one to look for in the log"
        process.send_signal(signal.SIGTERM)
        log += process.communicate(timeout=DEADLINE)[1]
    lines = log.splitlines()
    assert not any(line.startswith("forged") for line in lines)
    assert "a-secret" not in log, "query strings are not logged"
    assert any("my-id" in line and "/register" in line and "201" in line for line in lines)
    assert any(answer.headers["x-request-id"] in line and "/health" in line for line in lines)
    if form == "json":
        entries = [json.loads(line) for line in lines]
        requests = [entry for entry in entries if entry.get("message") == "request"]
        # Each is logged when its answer is on its way, and another may have begun by then.
        (registered,) = [entry for entry in requests if entry["path"] == "/register"]
        assert registered["microseconds"] >= 0
        assert registered["method"] == "POST"


def test_an_engine_that_restarts_is_a_warning_and_its_return_is_not(publisher: Publisher) -> None:
    about = {"instance_id": "w", "endpoint": publisher.endpoint, "model_name": MODEL, "block_size": BLOCK_SIZE}
    with serving("--log", "json") as process:
        address, log = address_of(process)
        assert ask(address, "POST", "/register", about).status == 201
        publisher.wait_for_reader()

        def stream() -> dict[str, object]:
            return dict(ask(address, "GET", "/workers").json[0]["streams"]["0"])

        for seq in range(5):
            publisher.publish(stored([seq], [seq] * BLOCK_SIZE))
        until(lambda: stream()["seq"] == 4 and stream()["trusted"])
        publisher.restart()
        publisher.publish(stored([100], TOKENS))
        until(lambda: stream()["epoch"] == 1 and stream()["trusted"])
        process.send_signal(signal.SIGTERM)
        log += process.communicate(timeout=DEADLINE)[1]
    entries = [json.loads(line) for line in log.splitlines()]
    (restart,) = [entry for entry in entries if "has restarted" in str(entry.get("message"))]
    assert (restart["level"], restart["worker"], restart["rank"], restart["forgotten"]) == ("WARN", "w", 0, 5)
    last = entries.index(restart)
    returns = [entry for entry in entries[last + 1 :] if "and trusted" in str(entry.get("message"))]
    assert [entry["level"] for entry in returns] == ["INFO"]
