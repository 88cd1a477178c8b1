"""The HTTP side: what it answers to whom, its limits, and what it says when it refuses."""

from __future__ import annotations

import itertools
import json
import random
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
import zmq
from tests import stable

from kvatlas import BlockIndex, content_hashes
from kvatlas._native import Service
from kvatlas.errors import ServiceError
from kvatlas.types import Tier

from .dialect.tools import (
    BLOCK_SIZE,
    DEADLINE,
    MODEL,
    Answer,
    Connection,
    Publisher,
    ask,
    removed,
    running,
    stored,
    until,
)

TOKENS = list(range(100, 140))
QUERY = {"model_name": MODEL, "token_ids": TOKENS}


@pytest.fixture
def service() -> Iterator[Service]:
    with running() as service:
        yield service


@pytest.fixture(scope="module")
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context


@pytest.fixture
def publishers(context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[Callable[[], Publisher]]:
    made: list[Publisher] = []

    def make() -> Publisher:
        made.append(Publisher(context))
        return made[-1]

    yield make
    for publisher in made:
        publisher.close()


@pytest.fixture
def engine(service: Service, publishers: Callable[[], Publisher]) -> Callable[..., Publisher]:
    """Makes an engine that the service follows."""

    def make(instance: int | str, **more: Any) -> Publisher:
        publisher = publishers()
        assert register(service, instance, publisher.endpoint, **more).status == 201
        publisher.wait_for_subscriber()
        return publisher

    return make


def register(service: Service, instance: object, endpoint: str = "tcp://127.0.0.1:9", **more: Any) -> Answer:
    body = {"instance_id": instance, "endpoint": endpoint, "model_name": MODEL, "block_size": BLOCK_SIZE}
    return ask(service.address, "POST", "/register", body | more)


def query(service: Service, path: str = "/query", **more: Any) -> Any:
    given = QUERY | more if path == "/query" else {"model_name": MODEL} | more
    answer = ask(service.address, "POST", path, given)
    assert answer.status == 200, answer
    return answer.json


def until_scores(service: Service, scores: dict[str, dict[str, int]], **more: Any) -> None:
    until(lambda: query(service, **more)["scores"] == scores)


# Registration


def test_registering_the_same_twice_is_fine(service: Service) -> None:
    assert register(service, 1).status == 201
    again = register(service, 1)
    assert (again.status, again.json) == (200, {"status": "ok"})
    assert register(service, "1").status == 200, "7 and '7' are the same worker"


def test_instances_may_have_names(service: Service) -> None:
    for name in ["pod-a/0", 'a"b', "é", "007", 0, (1 << 64) - 1, str(1 << 64)]:
        assert register(service, name).status == 201
    listed = [worker["instance_id"] for worker in ask(service.address, "GET", "/workers").json]
    assert sorted(map(str, listed)) == sorted(["pod-a/0", 'a"b', "é", "007", "0", str((1 << 64) - 1), str(1 << 64)])
    assert {0, (1 << 64) - 1, "007", str(1 << 64)} <= set(listed)
    for name in ["pod-a/0", "é", "0"]:
        assert ask(service.address, "POST", "/unregister", {"instance_id": name}).status == 200


def test_of_many_that_register_at_once_one_is_first(service: Service) -> None:
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(register(service, 5).status)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200] * 15 + [201]


def test_a_rank_can_be_unregistered_alone(service: Service, engine: Callable[..., Publisher]) -> None:
    for rank in (0, 1):
        engine(1, dp_rank=rank).publish(stored([1], TOKENS[:4]))
    until_scores(service, {"1": {"0": 4, "1": 4}})
    assert ask(service.address, "POST", "/unregister", {"instance_id": 1, "dp_rank": 0}).status == 200
    until_scores(service, {"1": {"1": 4}})
    assert ask(service.address, "POST", "/unregister", {"instance_id": 1, "dp_rank": 0}).code == "unknown_rank"


def test_the_last_worker_leaving_is_no_error(service: Service, engine: Callable[..., Publisher]) -> None:
    engine(1).publish(stored([1], TOKENS[:4]))
    until_scores(service, {"1": {"0": 4}})
    assert ask(service.address, "POST", "/unregister", {"instance_id": 1}).status == 200
    assert query(service)["scores"] == {}
    assert query(service, "/query_by_hash", content_hashes=[1])["instances"] == {}


def test_from_python(service: Service) -> None:
    body = {"instance_id": "w", "endpoint": "tcp://127.0.0.1:9", "model_name": MODEL, "block_size": 4, "source": "here"}
    assert service.register(json.dumps(body))
    assert not service.register(json.dumps(body))
    (worker,) = json.loads(service.workers())
    assert (worker["instance_id"], worker["source"]) == ("w", "here")
    with pytest.raises(ServiceError) as refused:
        service.register(json.dumps(body | {"block_size": 8}))
    assert refused.value.code == "block_size_mismatch"
    with pytest.raises(ServiceError) as refused:
        service.register("{")
    assert refused.value.code == "malformed_json"
    assert service.unregister("w") == 1
    with pytest.raises(ServiceError) as refused:
        service.unregister("w")
    assert refused.value.code == "unknown_worker"
    assert service.drain(DEADLINE)
    assert service.drain(0), "the second time there is nothing to do"
    with pytest.raises(ServiceError) as refused:
        service.register(json.dumps(body))
    assert refused.value.code == "closed"


def test_what_cannot_be_started(service: Service, tmp_path: Path) -> None:
    for http, words in [
        ({"bind": service.address}, "cannot listen"),
        ({"bind": "127.0.0.1:0", "tls": {"cert": str(tmp_path / "no"), "key": str(tmp_path / "no")}}, "certificate"),
        ({"bind": "nowhere"}, "configuration"),
        ({"max_body": 0}, "max_body"),
    ]:
        with pytest.raises(ServiceError, match=words):
            Service(json.dumps({"http": http}))


# Queries


def test_answers_are_those_of_the_index(service: Service, engine: Callable[..., Publisher]) -> None:
    """Random content, told over ZMQ to the service and directly to an index: every answer the same."""
    random_ = random.Random(7)
    index = BlockIndex(BLOCK_SIZE)
    prompts = [[random_.randrange(5) for _ in range(40)] for _ in range(6)]
    prompts += [prompt[:20] + [random_.randrange(5) for _ in range(20)] for prompt in prompts]
    last: dict[str, tuple[list[int], int]] = {}
    for number, worker in enumerate(["1", "2", "pod", "3"]):
        publisher = engine(worker)
        for prompt in random_.sample(prompts, 6):
            length = random_.randrange(1, 11)
            names = [stable.number(worker, prompt[: BLOCK_SIZE * (i + 1)]) for i in range(length)]
            split = random_.randrange(length + 1)
            parts: list[tuple[slice, str, Tier]] = [
                (slice(split), "GPU", "gpu"),
                (slice(split, length), "CPU", "cpu"),
            ]
            for part, medium, tier in parts:
                if not names[part]:
                    continue
                parent = names[part.start - 1] if part.start else None
                tokens = prompt[BLOCK_SIZE * (part.start or 0) : BLOCK_SIZE * (part.stop or 0)]
                publisher.publish(stored(names[part], tokens, parent=parent, medium=medium))
                index.store(worker, block_hashes=names[part], tokens=tokens, parent=parent, tier=tier)
        end = [1000 + number] * BLOCK_SIZE
        publisher.publish(stored([number + 1], end))
        last[worker] = (end, number)
        until_scores(service, {worker: {"0": BLOCK_SIZE}}, token_ids=end)

    def expected(found: Any) -> dict[str, int]:
        return {worker: depth * BLOCK_SIZE for worker, depth in found.scores().items()}

    matched = 0
    for prompt in prompts:
        found = index.find(tokens=prompt)
        hashes = [int(hash_) for hash_ in content_hashes(prompt, BLOCK_SIZE)]
        for answer in (
            query(service, token_ids=prompt),
            query(service, "/query_by_hash", content_hashes=hashes),
            query(service, "/query_by_hash", content_hashes=[h - 2**64 if h >= 2**63 else h for h in hashes]),
            query(service, "/query_by_hash", block_hashes=hashes),
        ):
            assert {worker: ranks["0"] for worker, ranks in answer["scores"].items()} == expected(found)
            longest = {worker: instance["longest_matched"] for worker, instance in answer["instances"].items()}
            assert longest == expected(found.any_tier)
            assert all(i["gpu"] <= i["cpu"] == i["disk"] == i["longest_matched"] for i in answer["instances"].values())
            assert answer["tiers"] == "cumulative"
            assert list(answer["scores"].values()) == sorted(answer["scores"].values(), key=lambda r: -r["0"])
        matched += len(expected(found))
    assert matched > 10

    queries = [{"token_ids": prompt} for prompt in prompts]
    queries += [{"content_hashes": [int(h) for h in content_hashes(prompt, BLOCK_SIZE)]} for prompt in prompts]
    batch = query(service, "/query_batch", queries=queries)
    assert batch["block_size"] == BLOCK_SIZE
    names_ = [str(rank["instance_id"]) for rank in batch["workers"]]
    assert all(rank["dp_rank"] == 0 for rank in batch["workers"])
    for prompt, answer in zip(prompts * 2, batch["answers"], strict=True):
        found = index.find(tokens=prompt)
        told = dict(zip((names_[rank] for rank in answer["ranks"]), answer["tokens"], strict=True))
        assert {worker: tokens for worker, tokens in told.items() if tokens} == expected(found)
        anywhere = dict(zip(told, answer.get("any_tier", answer["tokens"]), strict=True))
        assert anywhere == expected(found.any_tier)
        assert ("any_tier" in answer) == (list(told.values()) != list(anywhere.values()))


def test_best_allowed_and_levels(service: Service, engine: Callable[..., Publisher]) -> None:
    for instance, blocks in [(1, 2), (2, 5), ("pod", 5), (4, 1)]:
        engine(instance).publish(stored(list(range(1, blocks + 1)), TOKENS[: 4 * blocks]))
        until(lambda instance=instance: str(instance) in query(service)["scores"])
    assert set(query(service, top_k=2)["instances"]) == {"2", "pod"}
    assert set(query(service, top_k=3)["scores"]) == {"2", "pod", "1"}
    assert set(query(service, top_k=99)["scores"]) == {"1", "2", "pod", "4"}
    assert set(query(service, among=[1, "4", "nobody"])["scores"]) == {"1", "4"}
    assert set(query(service, among=[1, "4"], top_k=1)["scores"]) == {"1"}
    assert query(service, among=[])["instances"] == {}
    levels = query(service, levels=True)["levels"]
    assert [(level["tokens"], set(level["workers"])) for level in levels] == [(20, {2, "pod"}), (8, {1}), (4, {4})]
    assert query(service, levels=True, top_k=2)["levels"] == levels[:1]
    assert "levels" not in query(service)
    for instance in query(service, age=True)["instances"].values():
        assert instance["state"] == "live"
        assert instance["lag_ms"] is None or instance["lag_ms"] >= 0
    batch = query(service, "/query_batch", queries=[{"token_ids": TOKENS}], top_k=2, among=[1, 2, 4])
    assert [batch["workers"][rank]["instance_id"] for rank in batch["answers"][0]["ranks"]] == [2, 1]


def test_block_hashes_are_an_alias_of_content_hashes(service: Service, engine: Callable[..., Publisher]) -> None:
    engine(1).publish(stored([1, 2], TOKENS[:8]))
    until_scores(service, {"1": {"0": 8}})
    hashes = [int(hash_) for hash_ in content_hashes(TOKENS[:8], BLOCK_SIZE)]
    for name in ("content_hashes", "block_hashes"):
        assert query(service, "/query_by_hash", **{name: hashes})["scores"] == {"1": {"0": 8}}
        assert query(service, "/query_batch", queries=[{name: hashes}])["answers"] == [{"ranks": [0], "tokens": [8]}]
    both = {"content_hashes": hashes, "block_hashes": hashes}
    refused: list[tuple[str, dict[str, Any]]] = [("/query_by_hash", both), ("/query_batch", {"queries": [both]})]
    for path, body in refused:
        answer = ask(service.address, "POST", path, {"model_name": MODEL} | body)
        assert (answer.status, answer.code) == (400, "ambiguous_query"), path
    missing: list[tuple[str, dict[str, Any]]] = [("/query_by_hash", {}), ("/query_batch", {"queries": [{}]})]
    for path, body in missing:
        answer = ask(service.address, "POST", path, {"model_name": MODEL} | body)
        assert (answer.status, answer.code) == (422, "wrong_type"), path
        assert "content_hashes is missing" in answer.json["error"]


def test_who_is_not_trusted_is_named(service: Service, engine: Callable[..., Publisher]) -> None:
    engine(1).publish(stored([1], TOKENS[:4]))
    until_scores(service, {"1": {"0": 4}})
    assert register(service, "silent", dp_rank=3).status == 201
    answer = query(service)
    assert answer["scores"] == {"1": {"0": 4}}
    assert answer["untrusted"] == [{"instance_id": "silent", "dp_rank": 3, "state": "connecting"}]
    assert "untrusted" not in query(service, among=[1])
    assert query(service, "/query_batch", queries=[])["untrusted"] == answer["untrusted"]


def test_workers_tell_all_about_their_streams(service: Service, engine: Callable[..., Publisher]) -> None:
    publisher = engine(1, topic="")
    publisher.publish(stored([1, 2], TOKENS[:8]))
    publisher.publish(removed([2]))
    publisher.publish(stored([9], TOKENS[:4], parent=77))
    until(lambda: ask(service.address, "GET", "/workers").json[0]["streams"]["0"]["seq"] == 2)
    stream = ask(service.address, "GET", "/workers").json[0]["streams"]["0"]
    assert stream["endpoint"] == publisher.endpoint
    assert (stream["state"], stream["trusted"], stream["ranks"]) == ("live", True, [0])
    assert (stream["blocks"], stream["unlinked"]) == (2, 1)
    assert (stream["counters"]["batches"], stream["counters"]["stored_blocks"]) == (3, 3)
    assert stream["counters"]["removed_blocks"] == 1


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
    with running(request_timeout=0.3, idle_timeout=0.6) as service:
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
            # Connections and the door are closed in no particular order.
            last = time.monotonic() + DEADLINE

            def go_on_asking() -> None:
                while time.monotonic() < last:
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
        waiting = {"holds": ["discovery"], "streams": [], "draining": False}
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


def test_metrics_are_as_documented(service: Service, engine: Callable[..., Publisher], repository: Path) -> None:
    engine('na"me\n').publish(stored([1], TOKENS[:4]), {"type": "Surprise"})
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
    page = (repository / "docs/reference/metrics.md").read_text()
    documented = set(re.findall(r"^\| `((?:kvatlas|process)_[a-z_]+)`", page, re.MULTILINE))
    assert documented == {name + ("_total" if kind == "counter" else "") for name, kind in kinds.items()}


@pytest.fixture
def repository() -> Path:
    return Path(__file__).resolve().parents[2]


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
    codes = document["components"]["schemas"]["Error"]["properties"]["code"]["enum"]
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
    check(ask(service.address, "GET", "/ready").json, schemas["NotReady"], "ready")
    check(register(service, "", dp_rank=1).json, schemas["Error"], "error")


def test_every_code_is_given(engine: Callable[..., Publisher], service: Service, repository: Path) -> None:
    """Each documented code but "internal", which is a bug, and "draining", which a client can hardly time."""
    engine(1).publish(stored([1], TOKENS[:4]), rank=5)
    until(lambda: query(service)["scores"])
    address = service.address

    def post(path: str, body: object, **more: Any) -> Answer:
        given = {"model_name": MODEL} | body if isinstance(body, dict) else body
        return ask(address, "POST", path, given, **more)

    def new(**more: Any) -> Answer:
        return register(service, **({"instance": 3} | more))

    key = (running(key="k"), "GET", "/workers", None)
    both = running(key="k", admin_key="a")
    other_key = (both, "GET", "/dump", None, ("Authorization", "Bearer k"))
    limited = running({"limits": {"workers": 1}})
    small = (running(max_body=10), "POST", "/query", b" " * 11)
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
            post("/query_by_hash", {"content_hashes": [1], "lora_name": "a"}),
            post("/query_batch", {"queries": [{"content_hashes": [1], "token_ids": [1]}]}),
            post("/query_batch", {"queries": [{"token_ids": []}] * 1025}),
            post("/unregister", b'{"instance_id":1,"routing_group":"default"}'),
            ask(address, "GET", "/nowhere"),
            post("/query", QUERY | {"model_name": "nobody"}),
            post("/unregister", {"instance_id": 99}),
            post("/unregister", {"instance_id": 1, "dp_rank": 9}),
            ask(address, "GET", "/query"),
            new(instance=1),
            new(instance=1, dp_rank=5),
            new(instance=1, dp_rank=1, model_name="other"),
            new(instance=1, dp_rank=1, block_size=8),
            post("/query", {"token_ids": "x"}),
            post("/query", QUERY, headers={"Content-Type": "text/plain"}),
        ]
    }
    host = ask(address, "GET", "/health", headers={"Host": "elsewhere"})
    given[host.code] = host.status
    for settings, method, path, body, *more in (key, other_key, small):
        with settings as other:
            answer = ask(other.address, method, path, body, headers=dict(more))
            given[answer.code] = answer.status
    with limited as other:
        assert register(other, 1).status == 201
        full = register(other, 2)
        given[full.code] = full.status
    with running(request_timeout=0.2) as other, Connection(other.address) as client:
        client.send(b"POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        answer = client.read()
        given[answer.code] = answer.status
    with Connection(address) as client:
        client.send(b"POST /query HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        answer = client.read()
        given[answer.code] = answer.status
    document = ask(address, "GET", "/openapi.json").json
    codes = document["components"]["schemas"]["Error"]["properties"]["code"]["enum"]
    assert set(given) == set(codes) - {"internal", "draining"}
    assert all(400 <= status < 500 for status in given.values())
    table = re.findall(r"^\| (\d{3}) \| `([a-z_]+)`", (repository / "docs/guides/service.md").read_text(), re.MULTILINE)
    assert {code: int(status) for status, code in table} == given | {"internal": 500, "draining": 503}
