"""200 malformed requests. What an engine says of them is passed on; what the router says itself is a clear 4xx."""

from __future__ import annotations

import gzip
import json
import random
from typing import Any

from tests.support.engine import MODEL, Engine

from .running import MESSAGES, Router

GOOD: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 5, "temperature": 0.5}
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages")
WRONG: tuple[Any, ...] = (
    None,
    True,
    -1,
    1e300,
    "",
    "x",
    [],
    [[]],
    {},
    {"a": {}},
    [None],
    [1, 2],
    [{}],
    "\u0000",
    2**70,
)


def bodies() -> list[tuple[str, bytes]]:
    """The bodies that are sent to each path, each with what is wrong with it."""
    whole = json.dumps(GOOD).encode()
    texts: list[tuple[str, bytes]] = [
        ("empty", b""),
        ("white space", b" \n\t "),
        ("no JSON", b"hello"),
        ("null", b"null"),
        ("a number", b"42"),
        ("a string", b'"hello"'),
        ("a list", b"[1, 2]"),
        ("an empty object", b"{}"),
        ("two objects", whole + whole),
        ("single quotes", whole.replace(b'"', b"'")),
        ("comma at the end", whole[:-1] + b",}"),
        ("comment", b"/* x */" + whole),
        ("not a number", whole.replace(b"0.5", b"NaN")),
        ("no UTF-8", whole.replace(b"hello", b"\xff\xfe\x80")),
        ("UTF-16", json.dumps(GOOD).encode("utf-16")),
        ("byte order mark", b"\xef\xbb\xbf" + whole),
        ("half a surrogate", whole.replace(b"hello", rb"\ud800")),
        ("control character", whole.replace(b"hello", b"a\x01b")),
        ("deep lists", b"[" * 100_000),
        ("deep objects", b'{"messages":' * 20_000 + b"1" + b"}" * 20_000),
        ("deep content", b'{"model":"model","messages":' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
        ("long number", b'{"max_tokens": ' + b"9" * 100_000 + b"}"),
        ("zeros", b"\x00" * 1000),
        ("compressed without saying so", gzip.compress(whole)),
    ]
    choose = random.Random(1)
    for _ in range(10):
        cut = choose.randrange(1, len(whole))
        texts.append((f"cut at {cut}", whole[:cut]))
    for _ in range(10):
        at, byte = choose.randrange(len(whole)), choose.choice(b'{}[]",:\\\x00\xff')
        texts.append((f"byte {byte} at {at}", whole[:at] + bytes([byte]) + whole[at + 1 :]))
    return texts


def fields() -> list[tuple[str, bytes]]:
    """A good request with one field of another kind."""
    made = []
    for name in ("messages", "model", "max_tokens", "stream", "n", "session_id"):
        made += [(f"{name}: {value!r}", json.dumps(GOOD | {name: value}).encode()) for value in WRONG]
    for value in WRONG:
        message = {"role": value, "content": value}
        made.append((f"role and content: {value!r}", json.dumps(GOOD | {"messages": [message]}).encode()))
    return made


def lines() -> list[tuple[str, str, str, dict[str, str]]]:
    """Name, method, path, headers."""
    good = {"content-type": "application/json"}
    odd = ["DELETE", "PUT", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "X" * 40]
    made = [(f"method {method[:10]}", method, PATHS[0], good) for method in odd]
    paths = ["/", "//", "/v1", "/v1/", "/v1/chat", "/v2/chat/completions", "/V1/CHAT/COMPLETIONS", "/../etc/passwd"]
    paths += [
        "/%00",
        "/%zz",
        "/engines/x/drain",
        "/explain/x",
        "/ui/../../x",
        "/v1/models/nobody",
        "*",
        "/" + "a" * 5000,
    ]
    made += [(f"path {path[:20]}", "POST", path, good) for path in paths]
    kinds = ["", "text/plain", "application/json; charset=utf-7", "multipart/form-data", "image/png", "/" * 50, "json"]
    made += [(f"type {kind[:20]!r}", "POST", PATHS[0], {"content-type": kind}) for kind in kinds]
    more = {
        "content-encoding": "gzip",
        "accept": "image/png",
        "x-session-id": "\x7f" * 10,
        "authorization": "Basic x",
        "x-data-parallel-rank": "minus one",
        "expect": "miracles",
        "range": "bytes=5-1",
        "host": "",
        "x-request-id": "a" * 8000,
        "traceparent": "00-nonsense",
    }
    made += [(f"{name}: {value[:20]}", "POST", PATHS[0], good | {name: value}) for name, value in more.items()]
    return made


def test_200_malformed_requests(plain: tuple[Router, Engine]) -> None:
    router, engine = plain
    count = 0
    wrong: list[str] = []

    def check(name: str, raw: bytes) -> None:
        nonlocal count
        count += 1
        before = engine.passed_on()
        answer = router.talk(raw)
        head, _, body = answer.partition(b"\r\n\r\n")
        status = int(head[9:12]) if head.startswith(b"HTTP/1.1 ") else 0
        if status == 200:
            return  # well enough for the engine
        if not 400 <= status < 500:
            wrong.append(f"{name}: {answer[:200]!r}")
            return
        if engine.passed_on() > before:
            return  # the engine's own words
        # The library that reads HTTP says what is no HTTP by its status alone; all else has a message.
        if body:
            error = json.loads(body)["error"]
            if not (error["message"] and error["code"] and error["type"]):
                wrong.append(f"{name}: not clear: {body!r}")
        elif status not in (400, 408, 414, 417, 431):
            wrong.append(f"{name}: {status} without a word")

    def as_sent(path: str, body: bytes, headers: dict[str, str], method: str = "POST") -> bytes:
        wanted = {"host": "127.0.0.1", "content-length": str(len(body)), "connection": "close"} | headers
        text = "".join(f"{name}: {value}\r\n" for name, value in wanted.items())
        return f"{method} {path} HTTP/1.1\r\n{text}\r\n".encode("latin-1") + body

    kind = {"content-type": "application/json"}
    for number, (name, body) in enumerate(bodies() + fields()):
        check(name, as_sent(PATHS[0], body, kind))
        if number % 3 == 0:
            path = PATHS[1 + number // 3 % 4]
            check(f"{path}: {name}", as_sent(path, body, kind))
    good = json.dumps(GOOD).encode()
    for name, method, path, headers in lines():
        check(name, as_sent(path, good, headers, method))
    assert count >= 200
    assert not wrong, "\n".join(wrong)
    assert router.metric("kvatlas_router_panics_total") == 0
    assert router.metric("kvatlas_router_refused_requests_total", status="5xx") == 0
    assert router.ask().status == 200


def test_what_an_engine_says_of_a_malformed_request_is_passed_on_word_for_word(plain: tuple[Router, Engine]) -> None:
    router, engine = plain
    answer = router.ask(b'{"model": "model", "messages": 5}')
    assert answer.status == 400
    assert answer.json["error"]["message"] == "the engine says: neither messages nor prompt"
    assert engine.last.body == b'{"model": "model", "messages": 5}'


def test_unknown_fields_reach_the_engine_byte_for_byte(plain: tuple[Router, Engine]) -> None:
    router, engine = plain
    text = b'{ "messages" : [{"role":"user","content":"\\u00e9"}],\n "new": {"a": 1.0, "a": 2}, "model":"model"}'
    assert router.ask(text).status == 200
    assert engine.last.body == text
