"""The HTTP side: who may ask, its limits, what it says of itself, and what it says when it refuses."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import Publisher, stored
from tests.support.waiting import until
from tools.docs.metrics import served

import kvatlas
from kvatlas._native import Service
from kvatlas.service.config import Config, HttpConfig, SitesConfig
from kvatlas.sim.server.ports import free_block
from kvatlas.sites import SitePublisher

from .dialect.tools import DEADLINE, MODEL, Answer, Connection, ask, running
from .http_tools import BYTES, QUERY, TOKENS, query, register

# Who may ask


def test_a_key_is_asked_for() -> None:
    with running(key="secret-key") as service:
        for path in ("/workers", "/dump", "/metrics", "/openapi.json", "/", "/nowhere"):
            answer = ask(service.address, "GET", path)
            assert (answer.status, answer.code) == (401, "unauthorized"), path
            assert answer.headers["www-authenticate"].startswith("Bearer")
        for path in ("/query", "/query_by_hash", "/query_batch", "/register", "/unregister"):
            assert ask(service.address, "POST", path, {}).status == 401, path
        for path in ("/health", "/ready"):
            assert ask(service.address, "GET", path).status == 200, path
        for wrong in (
            "Bearer",
            "Bearer ",
            "Bearer secret-ke",
            "Bearer secret-keyy",
            "Basic secret-key",
            "secret-key",
            "é",
        ):
            assert ask(service.address, "GET", "/workers", headers={"Authorization": wrong}).status == 401, wrong
        for right in ("Bearer secret-key", "bearer secret-key", "BEARER  secret-key "):
            assert ask(service.address, "GET", "/workers", headers={"Authorization": right}).status == 200, right


def test_tls(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed, which makes the certificate for this test")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([openssl, *options.split(), *names], check=True, capture_output=True)
    context = ssl.create_default_context(cafile=str(cert))
    with running(tls={"cert": str(cert), "key": str(key)}) as service:
        with Connection(service.address, lambda raw: context.wrap_socket(raw, server_hostname="localhost")) as client:
            assert client.ask("GET", "/health").status == 200
            tokens = list(range(200_000))
            answer = client.ask("POST", "/query", {"model_name": MODEL, "token_ids": tokens})
            assert (answer.status, answer.code) == (404, "unknown_keyspace")
        with Connection(service.address) as plain:
            plain.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            # TLS says in its own words that this is none.
            assert not plain.rest().startswith(b"HTTP")
        with Connection(service.address, lambda raw: context.wrap_socket(raw, server_hostname="localhost")) as client:
            assert client.ask("GET", "/health").status == 200


# Limits


def test_bodies_have_a_limit() -> None:
    with running(max_body=1000) as service:
        fits = b'{"model_name":"m","token_ids":[' + b" " * (1000 - 33) + b"]}"
        assert len(fits) == 1000
        assert ask(service.address, "POST", "/query", fits).code == "unknown_keyspace"
        for size in (1001, 5000, 100_000):
            answer = ask(service.address, "POST", "/query", b" " * size)
            assert (answer.status, answer.code) == (413, "body_too_large")
        with Connection(service.address) as client:
            client.send(b"POST /query HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            client.send(b"190\r\n" + b" " * 400 + b"\r\n")
            client.send(b"300\r\n" + b" " * 768 + b"\r\n0\r\n\r\n")
            assert client.read().code == "body_too_large"
        with Connection(service.address) as client:
            client.send(b"POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n")
            assert client.read().code == "body_too_large"


def test_slow_clients_do_not_stay() -> None:
    with running(request_timeout=1.0, idle_timeout=1.0) as service:
        with Connection(service.address) as client:
            client.send(
                b"POST /query HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
            )
            answer = client.read()
            assert (answer.status, answer.code) == (408, "request_timeout")
            assert client.is_closed()
        with Connection(service.address) as client:
            client.send(b"GET /hea")
            assert client.is_closed()
        with Connection(service.address) as client:
            assert client.ask("GET", "/health").status == 200
            assert client.is_closed(), "idle for too long"
        with Connection(service.address) as client:
            assert client.is_closed(), "never asked anything"
        assert ask(service.address, "GET", "/health").status == 200


def test_more_connections_than_allowed_wait() -> None:
    with running(max_connections=2) as service:
        first, second, third = (Connection(service.address) for _ in range(3))
        with third:
            with first, second:
                assert first.ask("GET", "/health").status == 200
                assert second.ask("GET", "/health").status == 200
                third.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert third.read().status == 200


def test_one_connection_serves_many(service: Service) -> None:
    register(service, 1)
    with Connection(service.address) as client:
        for _ in range(50):
            assert client.ask("POST", "/query", QUERY).status == 200
            assert client.ask("POST", "/query", b"{").status == 400
            assert client.ask("GET", "/nowhere").status == 404
        client.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
        assert [client.read().status for _ in range(20)] == [200] * 20
        assert client.ask("HEAD", "/health").headers["content-length"] == "18"
        assert client.ask("HEAD", "/dump").status == 200
        assert client.ask("GET", "/health").status == 200


def test_draining_finishes_what_runs_and_takes_no_more() -> None:
    with running() as service:
        body = json.dumps({"model_name": MODEL, "token_ids": []}).encode()
        head = "POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n"
        with Connection(service.address) as busy, Connection(service.address) as idle:
            assert idle.ask("GET", "/ready").status == 200
            # The service says that it waits for the body, so it has begun.
            busy.send(head.encode() + b"Expect: 100-continue\r\n\r\n")
            assert busy.read().status == 100
            busy.send(body[:5])
            assert "kvatlas_http_connections 2" in idle.ask("GET", "/metrics").body.decode()
            in_time = []
            draining = threading.Thread(target=lambda: in_time.append(service.drain(DEADLINE)))
            draining.start()
            assert idle.is_closed()
            # Connections and the door are closed in no particular order. One that comes through the door at that moment
            # is closed before its request is read: the end of the stream instead of an answer.
            last = time.monotonic() + DEADLINE

            def go_on_asking() -> None:
                while time.monotonic() < last:
                    with contextlib.suppress(EOFError):
                        ask(service.address, "GET", "/health")

            with pytest.raises(OSError, match=r"."):
                go_on_asking()
            busy.send(body[5:])
            assert busy.read().code == "unknown_keyspace"
            draining.join()
        assert in_time == [True]


def test_draining_does_not_wait_for_ever() -> None:
    with running() as service, Connection(service.address) as stuck:
        assert stuck.ask("GET", "/health").status == 200
        stuck.send(b"POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
        assert stuck.read().status == 100
        assert service.drain(0.2) is False
        assert stuck.is_closed()


# What it says of itself


def test_ready_says_what_it_waits_for() -> None:
    settings = {"http": {"bind": "127.0.0.1:0"}, "holds": ["discovery"], "log": {"level": "off"}}
    service = Service(json.dumps(settings))
    try:
        answer = ask(service.address, "GET", "/ready")
        waiting = {"holds": ["discovery"], "streams": [], "engines": [], "draining": False}
        assert (answer.status, answer.json) == (503, {"ready": False, "waiting": waiting})
        assert json.loads(service.ready() or "") == waiting
        assert service.release("discovery")
        assert not service.release("discovery")
        assert ask(service.address, "GET", "/ready").json == {"ready": True}
        assert service.ready() is None
        register(service, 1)
        waiting = ask(service.address, "GET", "/ready").json["waiting"]
        assert waiting["streams"] == [{"instance_id": 1, "dp_rank": 0, "state": "connecting"}]
        assert ask(service.address, "GET", "/health").json == {"status": "alive"}
    finally:
        service.close()


SAMPLE = re.compile(r'(?P<name>[a-z_]+)(\{(?P<labels>([a-z_]+="(\\.|[^"\\])*",?)*)\})? (?P<value>-?[0-9.e+-]+)')


def test_metrics_are_as_documented(service: Service, engine: Callable[..., Publisher]) -> None:
    publisher = engine('na"me\n')
    publisher.publish({"type": "Surprise"})
    publisher.publish(stored([1], TOKENS[:4]))
    until(lambda: query(service)["scores"])
    answer = ask(service.address, "GET", "/metrics")
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    lines = answer.body.decode().splitlines()
    assert lines[-1] == "# EOF"
    kinds: dict[str, str] = {}
    values: dict[str, float] = {}
    for line in lines[:-1]:
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in kinds
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            sample = SAMPLE.fullmatch(line)
            assert sample, line
            values[line.rpartition(" ")[0]] = float(sample["value"])
    assert values["kvatlas_queries_matched_total"] >= 1
    assert values['kvatlas_http_requests_total{route="/register",status="2xx"}'] == 1
    assert values['kvatlas_index_blocks{model="m",routing_group="default"}'] == 1
    assert values['kvatlas_streams{state="live"}'] == 1
    assert any(name.startswith("kvatlas_stream_refused_total{") for name in values)
    # The page of the documentation is made from a service without engines.
    assert set(served()) == {name + ("_total" if kind == "counter" else "") for name, kind in kinds.items()}


def test_openapi_names_the_routes_that_exist(service: Service) -> None:
    answer = ask(service.address, "GET", "/openapi.json")
    paths = answer.json["paths"]
    welcome = ask(service.address, "GET", "/").body.decode()
    told = {(method.lower(), path) for method, path in re.findall(r"^(GET|POST) +(/\S*)", welcome, re.MULTILINE)}
    assert {(method, path) for path, methods in paths.items() for method in methods} == told | {("get", "/")}
    for path, methods in paths.items():
        assert ask(service.address, "DELETE", path).headers["allow"].split(", ")[0].lower() in methods


def collect(value: object, key: str) -> Iterator[Any]:
    if isinstance(value, dict):
        for name, inside in value.items():
            if name == key:
                yield inside
            yield from collect(inside, key)
    elif isinstance(value, list):
        for inside in value:
            yield from collect(inside, key)


def test_openapi_refers_to_what_it_has(service: Service) -> None:
    document = ask(service.address, "GET", "/openapi.json").json
    for reference in collect(document, "$ref"):
        place: Any = document
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]
    about = document["components"]["schemas"]["Error"]["properties"]["code"]
    codes = about["enum"]
    by_route = set(itertools.chain.from_iterable(collect(document, "x-error-codes")))
    # These two come from no route of their own: any other path, and a failure of the service.
    assert set(codes) == by_route | {"unknown_path", "internal"}


def test_answers_have_the_documented_fields(service: Service, engine: Callable[..., Publisher]) -> None:
    engine(1).publish(stored([1], TOKENS[:4]), stored([2], TOKENS[4:8], parent=1, medium="CPU"))
    until(lambda: query(service)["scores"])
    register(service, "silent")
    document = ask(service.address, "GET", "/openapi.json").json
    schemas = document["components"]["schemas"]

    def check(value: Any, schema: dict[str, Any], where: str, part: bool = False) -> None:
        if "$ref" in schema:
            check(value, schemas[schema["$ref"].rpartition("/")[2]], where, part)
        for one in schema.get("allOf", []):
            check(value, one, where, part=True)
        if isinstance(value, dict):
            known = schema.get("properties", {})
            for name, inside in value.items():
                if name in known:
                    check(inside, known[name], f"{where}.{name}")
                elif "additionalProperties" in schema:
                    check(inside, schema["additionalProperties"], f"{where}.{name}")
                else:
                    assert not known or part, f"{where}.{name} is not documented"
            assert set(schema.get("required", [])) <= set(value), where
        if isinstance(value, list) and "items" in schema:
            for inside in value:
                check(inside, schema["items"], f"{where}[]")
        if "enum" in schema:
            assert value in schema["enum"], where
        if "const" in schema:
            assert value == schema["const"], where

    full = query(service, levels=True, age=True)
    assert full["untrusted"]
    check(full, schemas["Answer"], "answer")
    check(query(service, "/query_batch", queries=[{"token_ids": TOKENS}]), schemas["BatchAnswer"], "batch")
    for worker in ask(service.address, "GET", "/workers").json:
        check(worker, schemas["Worker"], "worker")
    check(ask(service.address, "GET", "/dump").json, schemas["Dump"], "dump")
    check(ask(service.address, "GET", "/ready").json, schemas["IsReady"], "ready")
    check(ask(service.address, "GET", "/ready?strict=1").json, schemas["NotReady"], "ready")
    check(register(service, "", dp_rank=1).json, schemas["Error"], "error")


def of_sites(address: str) -> list[Answer]:
    """Refusals of digests, and of a service that takes in none."""
    about = f"/digest?model_name={MODEL}&block_size=4"
    config = Config(http=HttpConfig(bind="127.0.0.1:0"), sites=SitesConfig(role="global"))
    with kvatlas.Service(config=config) as top:
        digests = b"", SitePublisher("s", grain=5).whole(), SitePublisher("s").delta()
        answers = [ask(top.address, "POST", about, digest, headers=BYTES) for digest in digests]
    return [*answers, ask(address, "GET", "/sites/status")]


def test_every_code_is_given(engine: Callable[..., Publisher], service: Service) -> None:
    """Each documented code but "internal", which is a bug, and those that a client can hardly time."""
    engine(1).publish(stored([1], TOKENS[:4]), rank=5)
    until(lambda: query(service)["scores"])
    address = service.address

    def post(path: str, body: object, **more: Any) -> Answer:
        given = {"model_name": MODEL} | body if isinstance(body, dict) else body
        return ask(address, "POST", path, given, **more)

    def new(**more: Any) -> Answer:
        return register(service, **({"instance": 3} | more))

    key = (running(key="k"), "GET", "/workers", None)
    in_target = (running(key="a-key"), "GET", "/workers?key=a-key", None)
    both = running(key="k", admin_key="a")
    other_key = (both, "GET", "/dump", None, ("Authorization", "Bearer k"))
    limited = running({"limits": {"workers": 1}})
    small = (running(max_body=10), "POST", "/query", b" " * 11)
    for number in (70, 71):
        assert register(service, number, model_name=f"m{number}", aliases=["both"]).status == 201
    given = {
        answer.code: answer.status
        for answer in [
            post("/query", b"{"),
            post("/query", QUERY | {"top_k": 0}),
            post("/query", QUERY | {"among": [""]}),
            new(block_size=0),
            new(endpoint="tcp://h"),
            new(endpoint="tcp://h:1"),
            new(routing_group=""),
            new(aliases=["x"] * 1025),
            post("/query_by_hash", {"content_hashes": [1], "lora_name": "a"}),
            post("/query_batch", {"queries": [{"content_hashes": [1], "token_ids": [1]}]}),
            post("/query_batch", {"queries": [{"token_ids": []}] * 1025}),
            post("/unregister", b'{"instance_id":1,"routing_group":"default"}'),
            ask(address, "GET", "/nowhere"),
            post("/query", QUERY | {"model_name": "nobody"}),
            post("/query", QUERY | {"model_name": "both"}),
            post("/unregister", {"instance_id": 99}),
            post("/unregister", {"instance_id": 1, "dp_rank": 9}),
            ask(address, "GET", "/query"),
            new(instance=1),
            new(instance=1, dp_rank=5),
            new(instance=1, dp_rank=1, model_name="other"),
            new(instance=1, dp_rank=1, block_size=8),
            post("/query", {"token_ids": "x"}),
            post("/query", QUERY, headers={"Content-Type": "text/plain"}),
            post("/query", QUERY, headers={"Origin": "https://elsewhere.example"}),
            post(f"/query?model_name={MODEL}", b"123", headers=BYTES),
            post("/query?model_name=%ff", b"", headers=BYTES),
            post(f"/query?model_name={MODEL}&x=1", b"", headers=BYTES),
            ask(address, "GET", "/snapshot", headers={"Range": "bytes=999999999-"}),
        ]
    }
    host = ask(address, "GET", "/health", headers={"Host": "elsewhere"})
    given[host.code] = host.status
    for settings, method, path, body, *more in (key, in_target, other_key, small):
        with settings as other:
            answer = ask(other.address, method, path, body, headers=dict(more))
            given[answer.code] = answer.status
    with limited as other:
        assert register(other, 1).status == 201
        full = register(other, 2)
        given[full.code] = full.status
    with running({"keyed_identity": True}) as other:
        assert register(other, 1).status == 201
        keyed = ask(other.address, "POST", "/query_by_hash", {"model_name": MODEL, "content_hashes": [1]})
        given[keyed.code] = keyed.status
    for answer in of_sites(address):
        given[answer.code] = answer.status
    port = free_block("127.0.0.1")
    with running({"bind": [f"127.0.0.1:{port}"]}) as other:
        bound = f"bind://{port}"
        assert register(other, 1, bound).status == 201
        for answer in (register(other, 2, bound), register(other, 2, "bind://1")):
            given[answer.code] = answer.status
    with running(request_timeout=1.5) as other, Connection(other.address) as client:
        client.send(b"POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        answer = client.read()
        given[answer.code] = answer.status
    with Connection(address) as client:
        client.send(b"POST /query HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        answer = client.read()
        given[answer.code] = answer.status
    for head in (
        "",
        "Host: localhost\r\nX: " + "x" * (65 << 10),
        "Host: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 1",
    ):
        with Connection(address) as client:
            client.send(f"GET /health HTTP/1.1\r\n{head}\r\n\r\n".replace("\r\n\r\n\r\n", "\r\n\r\n").encode())
            answer = client.read()
            given[answer.code] = answer.status
    pages = []
    for _ in range(64):
        pages.append(Connection(address))
        pages[-1].send(b"GET /ui/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert pages[-1].socket.recv(1)
    answer = ask(address, "GET", "/ui/events")
    given[answer.code] = answer.status
    for client in pages:
        client.socket.close()
    document = ask(address, "GET", "/openapi.json").json
    about = document["components"]["schemas"]["Error"]["properties"]["code"]
    codes = about["enum"]
    others = {
        "internal": 500,
        "draining": 503,
        "body_memory": 503,
        "snapshot_not_ready": 503,
        "snapshot_failed": 503,
        "too_many_sites": 409,
    }
    assert set(given) == set(codes) - set(others)
    assert all(400 <= status < 500 for status in given.values())
    assert {code: each["status"] for code, each in about["x-codes"].items()} == given | others
