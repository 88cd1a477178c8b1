"""Some two hundred requests that are wrong in as many ways: none is the service's fault, none costs anybody else."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.support.engine import BLOCK_SIZE, Publisher, stored
from tests.support.waiting import until

from kvatlas._native import Service

from .dialect.tools import MODEL, Connection, ask, running

TOKENS = list(range(100, 116))
GOOD = {"model_name": MODEL, "token_ids": TOKENS}
REGISTER: dict[str, object] = {
    "instance_id": 9,
    "endpoint": "tcp://127.0.0.1:9",
    "model_name": MODEL,
    "block_size": BLOCK_SIZE,
}


def request(method: str, path: str, body: bytes = b"", *lines: str) -> bytes:
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *lines]
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in lines):
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


def bodies() -> Iterator[tuple[str, bytes, int]]:
    """Paths, bodies, and the status that is due."""
    texts = [
        *(
            "",
            " ",
            "{",
            "}",
            "[",
            "]",
            '"',
            "{]",
            "[}",
            "nul",
            "tru",
            "{}{}",
            "{},",
            "{} {}",
            "\ufeff{}",
            "\0",
            "{'a':1}",
        ),
        *('{"model_name"', '{"model_name":', '{"model_name":"m"', '{"model_name":"m",', '{"model_name":"m",}', "{,}"),
        *('{"model_name":"m"}}', '{"model_name":"\\x"}', '{"model_name":"\\ud800"}', '{"model_name":"a\nb"}', "{1:2}"),
        *('{"x":NaN}', '{"x":Infinity}', '{"x":-Infinity}', '{"x":+1}', '{"x":01}', '{"x":1.}', '{"x":.1}', '{"x":1e}'),
        *('{"x":0x1}', '{"x":1_0}', '{"x":tRUE}', '{"x" 1}', '{"x":1 "y":2}', '{"x"::1}', "/* */{}", "{} // c", "a=b"),
        '{"x":' * 70_000,
        '{"x":' + "[" * 200_000 + "]" * 200_000 + "}",
        '{"x":' + "[" * 5000,
    ]
    for path in ("/query", "/query_by_hash", "/query_batch", "/register", "/unregister"):
        for text in texts if path == "/query" else texts[:20:3]:
            # A general parser of objects sees first that fields are missing, and then that something follows.
            first_missing = text.startswith("{}") and not path.startswith("/query")
            yield path, text.encode(), 422 if first_missing else 400
        yield path, b'{"model_name":"\xff"}', 400
        yield path, b'{"\xc3\x28":1}' if path.startswith("/query") else b'{"model_name":"\xc0"}', 400
        for other in ("null", "true", "1", '"m"', "[]", "[{}]", "{}", '{"model_name":1}', '{"model_name":null}'):
            yield path, other.encode(), 422
        yield path, b'{"model_name":"m","model_name":"m","instance_id":1,"endpoint":"tcp://h:1","block_size":4}', 422
    items = ["-1", "1.5", "1e3", "1E400", "4294967296", "1" + "0" * 400, '"1"', "null", "true", "[1]", "{}", "-0.0"]
    for item in items:
        yield "/query", f'{{"model_name":"m","token_ids":[1,{item}]}}'.encode(), 422
        if item not in ("-1", "4294967296"):
            yield "/query_by_hash", f'{{"model_name":"m","content_hashes":[1,{item}]}}'.encode(), 422
        yield "/query_batch", f'{{"model_name":"m","queries":[{{"token_ids":[1,{item}]}}]}}'.encode(), 422
    yield "/query_by_hash", b'{"model_name":"m","content_hashes":[18446744073709551616]}', 422
    yield "/query_by_hash", b'{"model_name":"m","content_hashes":[-9223372036854775809]}', 422
    for item in ("[1,]", "[,]", "[1 2]", "[01]", "[-]", "[1", "[1,2", "[NaN]", "[--1]", "[1]]"):
        yield "/query", f'{{"model_name":"m","token_ids":{item}}}'.encode(), 400
        yield "/query_by_hash", f'{{"model_name":"m","content_hashes":{item}}}'.encode(), 400
        yield "/query_by_hash", f'{{"model_name":"m","block_hashes":{item}}}'.encode(), 400
    yield "/query_by_hash", b'{"model_name":"m","content_hashes":[1],"block_hashes":[1]}', 400
    for member, status in [
        ('"token_ids":[1],"token_ids":[2]', 422),
        ('"token_ids":{"0":1}', 422),
        ('"token_ids":[],"cache_salt":7', 422),
        ('"token_ids":[],"lora_name":[]', 422),
        ('"token_ids":[],"routing_group":7', 422),
        ('"token_ids":[],"top_k":"1"', 422),
        ('"token_ids":[],"top_k":-1', 422),
        ('"token_ids":[],"top_k":1.5', 422),
        ('"token_ids":[],"top_k":0', 400),
        ('"token_ids":[],"among":1', 422),
        ('"token_ids":[],"among":[null]', 422),
        ('"token_ids":[],"among":[""]', 400),
        ('"token_ids":[],"levels":1', 422),
        ('"token_ids":[],"age":"yes"', 422),
        ('"token_ids":[],"routing_group":"\\u0000"', 404),
    ]:
        yield "/query", f'{{"model_name":"m",{member}}}'.encode(), status
    changes: list[tuple[dict[str, object], int]] = [
        ({"instance_id": -1}, 422),
        ({"instance_id": 1 << 64}, 422),
        ({"instance_id": 1.5}, 422),
        ({"instance_id": None}, 422),
        ({"instance_id": True}, 422),
        ({"instance_id": []}, 422),
        ({"instance_id": ""}, 400),
        ({"instance_id": "x" * 257}, 400),
        ({"block_size": 0}, 400),
        ({"block_size": -4}, 422),
        ({"block_size": 1 << 32}, 422),
        ({"block_size": 4.0}, 422),
        ({"dp_rank": -1}, 422),
        ({"dp_rank": 1 << 32}, 422),
        ({"dp_rank": "0"}, 422),
        ({"endpoint": ""}, 400),
        ({"endpoint": "tcp://"}, 400),
        ({"endpoint": "tcp://h:0"}, 400),
        ({"endpoint": "tcp://h:99999"}, 400),
        ({"endpoint": "tcp://*:1"}, 400),
        ({"endpoint": "http://h:1"}, 400),
        ({"endpoint": "tcp://h:1\n"}, 400),
        ({"endpoint": "inproc://x"}, 400),
        ({"endpoint": 7}, 422),
        ({"replay_endpoint": "nope"}, 400),
        ({"replay_endpoint": 7}, 422),
        ({"topic": 7}, 422),
        ({"model_name": ""}, 400),
        ({"routing_group": ""}, 400),
    ]
    for change, status in changes:
        yield "/register", json.dumps(REGISTER | change).encode(), status


def raw() -> Iterator[tuple[bytes, set[int]]]:
    """Requests as bytes, and the statuses that are due; 0 for a connection closed without one."""
    good = json.dumps(GOOD).encode()
    closed = {0, 400}
    for method, path, status in [
        ("GET", "/query", 405),
        ("PUT", "/query", 405),
        ("DELETE", "/register", 405),
        ("POST", "/health", 405),
        ("POST", "/workers", 405),
        ("OPTIONS", "/query", 405),
        ("TRACE", "/", 405),
        ("BREW", "/query", 405),
        ("POST", "/nowhere", 404),
        ("GET", "/query/", 404),
        ("GET", "//", 404),
        ("GET", "/%00", 404),
        ("GET", "/health%00", 404),
        ("GET", "/%2e%2e/%2e%2e/etc/passwd", 404),
        ("GET", "/../health", 404),
        ("GET", "/HEALTH", 404),
        ("GET", "/" + "a" * 9000, 404),
        ("GET", "/workers?" + "&" * 5000, 200),
        ("GET", "/workers?model_name=%ff%00%zz&=&&a", 200),
        ("GET", "/health?x=%", 200),
        ("GET", "http://127.0.0.1/health", 200),
        ("GET", "*", 404),
    ]:
        yield request(method, path), {status}
    yield request("POST", "/query", good, "Content-Length: nonsense"), closed
    yield request("POST", "/query", good, "Content-Length: -1"), closed
    yield request("POST", "/query", good, "Content-Length: 99999999999999999999999"), closed
    yield request("POST", "/query", good, "Content-Length: 5", "Content-Length: 6"), closed
    yield request("POST", "/query", good, "Content-Length: 3"), {400}
    yield request("POST", "/query", b"zz\r\n" + good, "Transfer-Encoding: chunked"), {400}
    yield request("POST", "/query", b"-1\r\n" + good, "Transfer-Encoding: chunked"), {400}
    yield request("POST", "/query", b"ffffffffffffffffff\r\n" + good, "Transfer-Encoding: chunked"), {400}
    yield request("POST", "/query", b"2\r\n{}garbage", "Transfer-Encoding: chunked"), {400}
    yield request("POST", "/query", b"0\r\n\r\n", "Transfer-Encoding: chunked"), {400}
    yield request("POST", "/query", good, "Transfer-Encoding: gzip"), closed
    yield request("POST", "/query", good, "Transfer-Encoding: identity, chunked, nonsense"), closed
    yield request("POST", "/query", good, "Expect: nonsense"), {200}
    yield request("POST", "/query", good, "Content-Encoding: gzip"), {200}
    yield request("GET", "/health", b"", "X: " + "a" * 1_000_000), {0, 400, 431}
    yield request("GET", "/health", b"", *(f"X{i}: y" for i in range(1000))), {0, 400, 431}
    yield request("GET", "/health", b"", "Bad Header: x"), closed
    yield request("GET", "/health", b"", ": x"), closed
    yield request("GET", "/health", b"", "X: \0"), closed
    yield request("GET", "/health", b"", "Authorization: \xff\xfe"), {200}
    yield b"GET /health HTTP/1.1\r\n\r\n", {200, 400}
    yield b"GET /health HTTP/9.9\r\n\r\n", closed
    yield b"GET /health\r\n\r\n", closed
    yield b"GET  /health  HTTP/1.1\r\n\r\n", closed
    yield b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n", closed | {404}
    yield b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n", closed
    yield b"\r\n\r\n\r\n", closed
    yield b"\0" * 1000, closed
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xaa" * 100, closed
    yield b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", closed
    yield b"a" * 500_000, {0, 400, 414, 431}
    for cut in range(1, len(request("POST", "/query", good)), 11):
        yield request("POST", "/query", good)[:cut], {0, 400}
    yield b"", {0}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running() as service, Publisher() as engine:
        ask(service.address, "POST", "/register", REGISTER | {"instance_id": 1, "endpoint": engine.endpoint})
        engine.wait_for_reader()
        engine.publish(stored([1, 2, 3], TOKENS[:12]))
        until(lambda: is_right(service))
        yield service


def is_right(service: Service) -> bool:
    scores: object = ask(service.address, "POST", "/query", GOOD).json["scores"]
    return scores == {"1": {"0": 12}}


BODIES = list(bodies())
RAW = list(raw())


def test_there_are_enough() -> None:
    assert len(set(BODIES)) + len(RAW) >= 200


def test_bodies(service: Service) -> None:
    with Connection(service.address) as connection:
        for path, body, status in BODIES:
            answer = connection.ask("POST", path, body)
            assert answer.status == status, (path, body[:100], answer)
            assert answer.headers["content-type"] == "application/json"
            assert set(answer.json) == {"code", "error"}
            assert len(answer.body) < 1500, "nothing of the body's length comes back"
            assert connection.ask("POST", "/query", GOOD).json["scores"] == {"1": {"0": 12}}
    assert [worker["instance_id"] for worker in ask(service.address, "GET", "/workers").json] == [1]


def test_requests(service: Service) -> None:
    for data, statuses in RAW:
        with Connection(service.address) as connection:
            try:
                connection.send(data)
                connection.finish()
                status = connection.read().status
            except (EOFError, ConnectionError):
                status = 0
            assert status in statuses, (data[:100], status)
        assert is_right(service), data[:100]


def test_clients_that_leave_without_waiting(service: Service) -> None:
    body = json.dumps(GOOD).encode()
    for path in ("/query", "/dump", "/metrics", "/workers"):
        for _ in range(20):
            with Connection(service.address) as connection:
                connection.send(request("POST" if path == "/query" else "GET", path, body) * 3)
    assert is_right(service)


def test_nothing_was_our_fault(service: Service) -> None:
    metrics = ask(service.address, "GET", "/metrics").body.decode()
    faults = [line for line in metrics.splitlines() if 'status="5xx"' in line and not line.endswith(" 0")]
    assert faults == []
