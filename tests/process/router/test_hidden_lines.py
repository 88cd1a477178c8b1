"""Lines of requests that no engine may see: the router's own keys, however written, and what only proxies write."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest
from tests.support.engine import Engine

from .running import MESSAGES, PLAIN, Router

ASK, ADMIN = "7f3c-ask-KEY", "b81d0-Adm1n-key"
BODY = json.dumps({"messages": MESSAGES}).encode()


def percent(text: str, times: int = 1) -> str:
    """A text with each of its characters written as its number, and that number's sign as its own, again and again."""
    text = "".join(f"%{ord(sign):02x}" for sign in text)
    for _ in range(times - 1):
        text = text.replace("%", "%25")
    return text


def packed(text: str, times: int = 1) -> str:
    for _ in range(times):
        text = base64.b64encode(text.encode()).decode()
    return text


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Router, Engine]]:
    folder = tmp_path_factory.mktemp("keys")
    (folder / "ask").write_text(ASK, encoding="ascii")
    (folder / "admin").write_text(ADMIN, encoding="ascii")
    flags = ("--key-file", str(folder / "ask"), "--admin-key-file", str(folder / "admin"), "--access-log", "on")
    with Engine() as engine, Router(engine, flags=(*PLAIN, *flags)) as router:
        yield router, engine


def send(router: Router, method: str, path: str, fields: dict[str, str]) -> tuple[int, str]:
    """A request with the query key. Returns the status, and the rest of the answer as text."""
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)
    try:
        own = {"content-type": "application/json", "authorization": f"Bearer {ASK}"}
        connection.request(method, path, BODY if method == "POST" else None, own | fields)
        answer = connection.getresponse()
        return answer.status, str(answer.getheaders()) + answer.read().decode()
    finally:
        connection.close()


def told(engine: Engine) -> str:
    """All that the engine was told by clients, in small letters."""
    return json.dumps([[one.path, one.headers] for one in engine.received]).lower()


def are_hidden(router: Router, engine: Engine, answer: str, *texts: str) -> None:
    for text in texts:
        assert text.lower() not in told(engine)
        assert text.lower() not in router.log.lower()
        assert text.lower() not in answer.lower()


WRITTEN: dict[str, Callable[[str], str]] = {
    "plain": lambda key: key,
    "percent": percent,
    "twice": lambda key: percent(key, 2),
    "five times": lambda key: percent(key, 5),
    "a letter, twice": lambda key: f"%25{ord(key[0]):02x}{key[1:]}",
    "unicode": lambda key: "".join(f"%u00{ord(sign):02x}" for sign in key),
    "base64": packed,
    "base64 of a pair": lambda key: packed(f"user:{key}"),
    "base64 twice": lambda key: packed(key, 2),
    "base64 in percent": lambda key: quote(packed(f"{key}:"), safe=""),
    "percent in base64": lambda key: packed(percent(key)),
    "base64 without padding": lambda key: packed(f"x:{key}").rstrip("="),
}


@pytest.mark.parametrize("key", [ASK, ADMIN])
@pytest.mark.parametrize("written", WRITTEN)
def test_a_key_in_a_line_gets_to_no_engine_log_or_answer(keyed: tuple[Router, Engine], written: str, key: str) -> None:
    router, engine = keyed
    engine.received.clear()
    text = WRITTEN[written](key)
    lines = {
        "x-request-id": text,
        "x-own": f"Token {text}",
        "cookie": f"a=b; k={text}",
        "x-list": f"a, {text}, b",
        "proxy-token": f"Digest {text}",
        "traceparent": text,
    }
    for name, value in lines.items():
        status, answer = send(router, "POST", "/v1/chat/completions", {name: value, "x-mine": "1"})
        assert status == 200, name
        assert engine.last.headers["x-mine"] == "1"
        are_hidden(router, engine, answer, key, text)
    for method, path in (
        ("POST", f"/v1/chat/completions?key={text}"),
        ("POST", f"/v1/chat/completions?{text}"),
        ("GET", f"/v1/files/{text}"),
        ("GET", f"/v1/files/{text}/content"),
        ("GET", f"/nowhere/{text}"),
        ("GET", f"/health?{text}"),
        ("GET", f"/v1/models/{text}"),
    ):
        status, answer = send(router, method, path, {})
        assert (status, '"key_in_target"' in answer) == (400, True), path
        are_hidden(router, engine, answer, key, text)


@pytest.mark.parametrize("key", [ASK, ADMIN])
def test_a_key_in_the_name_of_a_line_gets_to_no_engine(keyed: tuple[Router, Engine], key: str) -> None:
    router, engine = keyed
    engine.received.clear()
    for name in (key, key.lower(), f"x-{key}", f"{key}-x", percent(key)):
        status, answer = send(router, "POST", "/v1/chat/completions", {name: "1", "x-mine": "1"})
        assert status == 200
        are_hidden(router, engine, answer, key)
    status, answer = send(router, key, "/v1/models", {})
    assert status in (400, 405)
    are_hidden(router, engine, answer, key)


def test_what_only_looks_like_a_key_is_passed_on(keyed: tuple[Router, Engine]) -> None:
    router, engine = keyed
    lines = {
        "x-request-id": f"{ASK}0",
        "x-half": ADMIN[:-1],
        "x-base64": packed("something else that is long enough"),
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    }
    status, answer = send(router, "POST", "/v1/chat/completions?a=%20b&c=%2541", lines)
    assert status == 200
    assert {name: engine.last.headers[name] for name in lines} == lines
    assert engine.last.path == "/v1/chat/completions?a=%20b&c=%2541"
    assert f"{ASK}0" in answer


@pytest.mark.parametrize(
    "name",
    [
        "X-Original-URL",
        "X-Original-URI",
        "X-Original-Host",
        "X-Rewrite-URL",
        "X_Original_URL",
        "X-HTTP-Method-Override",
        "X-HTTP-Method",
        "X-Method-Override",
        "X-Forwarded-For",
        "X-Forwarded-Host",
        "X-Forwarded-Proto",
        "X-Forwarded-Prefix",
        "X-Forwarded-Uri",
        "X-Forwarded",
        "X_Forwarded_For",
        "Forwarded",
        "X-Real-IP",
        "True-Client-IP",
        "X-Client-IP",
        "X-Cluster-Client-IP",
        "CF-Connecting-IP",
        "X-Envoy-Original-Path",
        "Proxy",
    ],
)
def test_lines_that_only_proxies_write_are_dropped(keyed: tuple[Router, Engine], name: str) -> None:
    router, engine = keyed
    status, _ = send(router, "POST", "/v1/chat/completions", {name: "/v1/load_lora_adapter", "x-mine": "1"})
    assert status == 200
    assert engine.last.headers["x-mine"] == "1"
    assert not [line for line in engine.last.headers if line.replace("_", "-") == name.lower().replace("_", "-")]


@pytest.mark.parametrize(
    "dots",
    [
        "..",
        ".",
        "..;",
        "..;a=b",
        "%2e%2e",
        "%2E.",
        "%252e%252e",
        "%25252e.",
        "%25%32%65.",
        "..%5c",
        "..%255c..",
        "x%5c..%5cy",
        "x%2f..%2fy",
        "%c0%ae%c0%ae",
        "%e0%80%ae.",
        "%u002e%u002e",
        "x%c0%af..",
        "..%00",
        "..%20",
        "..%3b",
        "..%253bx",
    ],
)
def test_dot_segments_are_refused_however_they_are_written(keyed: tuple[Router, Engine], dots: str) -> None:
    router, engine = keyed
    engine.received.clear()
    for path in (f"/v1/files/{dots}/load_lora_adapter", f"/v1/responses/{dots}", f"/v1/files/x/{dots}/content"):
        for method in ("GET", "POST"):
            status, _ = send(router, method, path, {})
            assert status in (400, 404, 405), path
    assert not [one for one in engine.received if "lora" in one.path or "files" in one.path or "responses" in one.path]
