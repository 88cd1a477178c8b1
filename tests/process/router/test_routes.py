"""Tests of all routes, and of the keys that they need."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.support.engine import MODEL, Engine, reply

from . import http2
from .running import DEADLINE, MESSAGES, PLAIN, Router

ASK, ADMIN = "k-asks", "k-adm1n"
CHAT = {"model": MODEL, "messages": MESSAGES}
CHANGES = [
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/v1/load_lora_adapter/",
    "/v1/load%5Flora_adapter",
    "/v1/%6c%6fad_lora_adapter",
    "/v1//load_lora_adapter",
    "/v1/anything/new",
]
NEVER = ["/sleep", "/wake_up?level=1", "/flush_cache", "/%73leep", "/v1/../sleep", "/v1/files/%2e%2e/load_lora_adapter"]


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}


def request(
    router: Router, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=DEADLINE)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


@contextlib.contextmanager
def keyed(folder: Path, engine: Engine, *, ask: bool = True, admin: bool = True) -> Iterator[Router]:
    """A router that asks for keys."""
    flags = list(PLAIN)
    for flag, key in (("--key-file", ASK if ask else None), ("--admin-key-file", ADMIN if admin else None)):
        if key is not None:
            (folder / key).write_text(key)
            flags += [flag, str(folder / key)]
    with Router(engine, flags=tuple(flags)) as router:
        yield router


def posted(engine: Engine, path: str) -> bool:
    return any(one.method == "POST" and one.path == path for one in engine.received)


def test_changes_of_engines_need_the_admin_key(engine: Engine, tmp_path: Path) -> None:
    engine.behaviour = reply("200 OK", {})
    with keyed(tmp_path, engine) as router:
        for path in CHANGES:
            assert router.ask({}, path=path).status == 401, path
            assert router.ask({}, path=path, headers=bearer(ASK)).status == 403, path
            assert not posted(engine, path)
            assert router.ask({}, path=path, headers=bearer(ADMIN)).status == 200, path
            assert posted(engine, path.removesuffix("/") if path == "/v1/load_lora_adapter/" else path)
        engine.received.clear()
        for path in NEVER:
            assert router.ask({}, path=path, headers=bearer(ADMIN)).status == 404, path
        assert engine.asked() == 0


def test_one_key_is_enough_for_changes_if_there_is_no_other(engine: Engine, tmp_path: Path) -> None:
    engine.behaviour = reply("200 OK", {})
    with keyed(tmp_path, engine, admin=False) as router:
        assert router.ask({}, path=CHANGES[0], headers=bearer(ASK)).status == 200


def test_nobody_changes_engines_through_a_router_without_keys(engine: Engine) -> None:
    with Router(engine) as router:
        for path in [*CHANGES, *NEVER]:
            refused = router.ask({}, path=path)
            assert refused.status in (403, 404), path
            assert refused.error["code"] in ("forbidden", "unknown_path")
        assert engine.asked() == 0


def test_the_setting_forward_adds_paths(engine: Engine, tmp_path: Path) -> None:
    engine.behaviour = reply("200 OK", {})
    flags = (*PLAIN, "--forward", "/sleep,/custom/*,/v1/new,/v1/load_lora_adapter")
    with Router(engine, flags=flags) as router:
        for path in ("/sleep", "/custom/x", "/v1/new", "/v1/load_lora_adapter"):
            assert router.ask({}, path=path).status == 200, path
        assert router.ask({}, path="/v1/newer").status == 404
    for key in (ASK, ADMIN):
        (tmp_path / key).write_text(key)
    keys = ("--key-file", str(tmp_path / ASK), "--admin-key-file", str(tmp_path / ADMIN))
    with Router(engine, flags=(*PLAIN, *keys, "--forward", "/*")) as router:
        for path in ("/sleep", "/SLEEP", "//sleep", "/%73leep/", "/v1/load_lora_adapter", "/v1/load%5Flora_adapter"):
            assert router.ask({}, path=path, headers=bearer(ASK)).status == 403, path
            assert router.ask({}, path=path, headers=bearer(ADMIN)).status == 200, path
        for path in ("/custom", "/v1/new"):
            assert router.ask({}, path=path, headers=bearer(ASK)).status == 200, path


HIDDEN = [
    ("POST", "/v1/responses/compact", "GET, HEAD, DELETE"),
    ("POST", "/v1/models/load", "GET, HEAD"),
    ("POST", "/v1/models/org/name", "GET, HEAD"),
    ("DELETE", "/v1/models/m", "GET, HEAD"),
    ("PATCH", "/v1/responses/resp_1", "GET, HEAD, DELETE"),
    ("GET", "/v1/responses/resp_1/cancel", "POST"),
]


@pytest.mark.parametrize(("method", "path", "allow"), HIDDEN)
def test_a_row_with_a_parameter_hides_no_other_path(
    engine: Engine, tmp_path: Path, method: str, path: str, allow: str
) -> None:
    engine.behaviour = engine.answers[path] = reply("200 OK", {"from": "the engine"})
    with keyed(tmp_path, engine) as router:
        assert request(router, method, path)[0] == 401
        status, headers, _ = request(router, method, path, bearer(ASK))
        assert (status, headers["allow"]) == (405, allow)
        assert not [one for one in engine.received if one.path == path]
        assert request(router, method, path, bearer(ADMIN), b"{}")[0] == 200
        assert [(one.method, one.path) for one in engine.received if one.path == path] == [(method, path)]
    with Router(engine, flags=(*PLAIN, "--forward", path)) as router:
        assert request(router, method, path)[0] == 200
        assert request(router, method, path + "/..")[0] in (404, 405)
    with Router(engine) as router:
        status, headers, _ = request(router, method, path)
        assert (status, headers["allow"]) == (405, allow)


def test_the_setting_forward_opens_what_own_rows_with_a_parameter_are_for(engine: Engine) -> None:
    engine.behaviour = reply("200 OK", {})
    with Router(engine, flags=(*PLAIN, "--forward", "/models/load")) as router:
        assert router.ask({}, path="/models/load").status == 200
        assert router.ask({}, path="/models/unload").status == 405


SLASHES = [
    ("/v1/chat/completions", CHAT),
    ("/chat/completions", CHAT),
    ("/v1/messages", CHAT),
    ("/v1/rerank", {"model": MODEL, "query": "q", "documents": []}),
    ("/v1/files", {}),
    ("/tokenize", {"model": MODEL, "prompt": "a"}),
]


@pytest.mark.parametrize(("path", "body"), SLASHES)
def test_a_slash_at_the_end_is_taken_off(plain: tuple[Router, Engine], path: str, body: dict[str, object]) -> None:
    router, engine = plain
    engine.behaviour = reply("200 OK", {})
    for written, wanted in ((f"{path}/", path), (f"{path}/?a=/", f"{path}?a=/"), (path, path)):
        assert router.ask(body, path=written).status == 200
        assert engine.last.path == wanted
    for opened in ("/..;/sleep", "/%2e%2e/sleep", "/..%2fsleep", "/%252e%252e/sleep", "%2f..%2fsleep", "/..\\sleep"):
        before = engine.asked()
        assert router.ask(body, path=path + opened).status in (400, 403, 404, 405), opened
        assert engine.asked() == before, opened


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/v1/files/x", "/workers", "/nowhere", "/"])
@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "PROPFIND", "X-OWN"])
def test_other_methods_are_refused_here(plain: tuple[Router, Engine], path: str, method: str) -> None:
    router, engine = plain
    answer = router.talk(f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
    assert answer.startswith((b"HTTP/1.1 405 ", b"HTTP/1.1 400 ")), answer
    if method == "TRACE":
        assert b"405" in answer.split(b"\r\n")[0]
        assert b"\r\nallow: " in answer.lower()
    assert [one.path for one in engine.received if one.method != "GET"] == []


def test_a_refusal_says_which_methods_there_are(plain: tuple[Router, Engine]) -> None:
    router, engine = plain
    for method, path, allow in [
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/models", "GET, HEAD"),
        ("POST", "/workers", "GET, HEAD"),
        ("PUT", "/engines", "GET, HEAD, POST"),
        ("GET", "/engines/e0/drain", "POST"),
        ("GET", "/engines/e0", "DELETE"),
        ("GET", "/explain", "POST"),
    ]:
        status, headers, body = request(router, method, path)
        assert (status, headers["allow"]) == (405, allow), path
        assert json.loads(body)["error"]["code"] == "wrong_method"
    assert [one.path for one in engine.received if one.method != "GET"] == []


def test_options_are_answered_here(plain: tuple[Router, Engine]) -> None:
    router, engine = plain
    asked = {"origin": "https://chat.example", "access-control-request-method": "POST"}
    for path, allow in (("/v1/chat/completions", "POST, OPTIONS"), ("/workers", "GET, HEAD, OPTIONS")):
        status, headers, _ = request(router, "OPTIONS", path, asked)
        assert (status, headers["allow"]) == (200, allow)
        assert not [name for name in headers if name.startswith("access-control-")]
    assert [one.path for one in engine.received if one.method != "GET"] == []


@pytest.mark.parametrize("ask", [True, False])
@pytest.mark.parametrize("admin", [True, False])
def test_no_key_of_the_router_gets_to_an_engine(engine: Engine, tmp_path: Path, ask: bool, admin: bool) -> None:
    if not ask and not admin:
        return
    with keyed(tmp_path, engine, ask=ask, admin=admin) as router:
        for key in [ASK] * ask + [ADMIN] * admin:
            for header in (f"Bearer {key}", f"bearer   {key}", f"BEARER {key}"):
                more = {"x-api-key": key, "api-key": key, "x-forwarded-authorization": f"Bearer {key}"}
                assert router.ask(headers={"authorization": header} | more).status == 200
                text = json.dumps(engine.last.headers) + engine.last.path
                assert key not in text, header
            twice = f"authorization: Bearer {ASK if ask else 'x'}\r\nauthorization: Bearer {key}\r\n"
            body = json.dumps(CHAT)
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n{twice}connection: close\r\n"
            router.talk(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
            assert key not in json.dumps(engine.last.headers)
        if not ask:
            # Without a key for requests, what a client shows is for the engine.
            assert router.ask(headers=bearer("the-engine's")).status == 200
            assert engine.last.headers["authorization"] == "Bearer the-engine's"


@pytest.mark.parametrize("key", ["YWRtaW4ta2V5LTE=", "a,b;c", 'ad"min', "ad:min", "=x/+y=", "a&b"])
def test_no_key_gets_to_an_engine_however_it_is_written(engine: Engine, tmp_path: Path, key: str) -> None:
    (tmp_path / "key").write_text(key)
    flags = (*PLAIN, "--admin-key-file", str(tmp_path / "key"))
    encoded = quote(key, safe="")
    pair = base64.b64encode(f"user:{key}".encode()).decode()
    with Router(engine, flags=flags) as router:
        for value in [
            f"Bearer {key}",
            f"Bearer:{key}",
            f"key={key}; other=1",
            f"'{key}'",
            f"https://a/?key={encoded}",
            f"Basic {pair}",
            f"basic {pair.rstrip('=')}",
        ]:
            for name in ("authorization", "x-key"):
                assert router.ask(headers={name: value, "x-own": "1"}).status == 200
                assert name not in engine.last.headers, value
                assert engine.last.headers["x-own"] == "1"
        asked = engine.passed_on()
        for query in (f"?api_key={encoded}", f"?a=1&key={encoded}&b=2", f"?a=1&Basic+{encoded}"):
            answer = router.ask(path=f"/v1/chat/completions{query}")
            assert (answer.status, answer.error["code"]) == (400, "key_in_target")
        assert engine.passed_on() == asked
        assert router.ask(path="/v1/chat/completions?a=1&b=%20").status == 200
        assert engine.last.path == "/v1/chat/completions?a=1&b=%20"
        assert router.ask(headers={"authorization": "Bearer other", "x-key": f"x{key}x"[1:-2]}).status == 200
        assert engine.last.headers["authorization"] == "Bearer other"
        assert "x-key" in engine.last.headers


def test_requests_go_where_their_model_is() -> None:
    form = (
        b'--x\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n'
        b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nm2\r\n--x--\r\n'
    )
    with Engine(model="m1") as one, Engine(model="m2") as two, Router(one, two) as router:
        one.behaviour = two.behaviour = reply("200 OK", {})
        for path in ("/v1/rerank", "/v1/score", "/v1/audio/speech", "/v1/messages/count_tokens"):
            for _ in range(3):
                assert router.ask({"model": "m2"}, path=path).status == 200
        kind = {"content-type": "multipart/form-data; boundary=x"}
        for _ in range(3):
            assert router.ask(form, path="/v1/audio/transcriptions", headers=kind).status == 200
        assert (one.asked(), two.asked()) == (0, 15)
        assert router.ask({"model": "m3"}, path="/v1/rerank").error["code"] == "model_not_found"


def upgrade(path: str, *fields: str, method: str = "GET", version: str = "HTTP/1.1", body: bytes = b"") -> bytes:
    lines = [f"{method} {path} {version}", "host: 127.0.0.1", *fields, f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


WEBSOCKET = ("connection: Upgrade", "upgrade: websocket", "sec-websocket-version: 13", "sec-websocket-key: AAAA")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/responses", WEBSOCKET),
        ("/v1/responses/", WEBSOCKET),
        ("/v1/realtime?model=m", WEBSOCKET),
        ("/v1/chat/completions", WEBSOCKET),
        ("/v1/models", WEBSOCKET),
        ("/nowhere", WEBSOCKET),
        ("/v1/responses", ("connection: keep-alive, upgrade", "upgrade: h2c,  WebSocket")),
        ("/v1/responses", ("connection: keep-alive", "connection: upgrade", "upgrade: h2c", "upgrade: websocket")),
    ],
)
def test_no_connection_becomes_a_websocket(plain: tuple[Router, Engine], path: str, fields: tuple[str, ...]) -> None:
    router, engine = plain
    with router.connect() as made:
        made.sendall(upgrade(path, *fields))
        first = http.client.HTTPResponse(made)
        first.begin()
        assert (first.status, first.getheader("upgrade")) == (426, "HTTP/1.1")
        assert "upgrade" in (first.getheader("connection") or "").lower()
        error = json.loads(first.read())["error"]
        assert error["code"] == "upgrade_required"
        assert "POST" in error["message"], "what would be right"
        # The connection goes on as it was.
        body = json.dumps(CHAT).encode()
        made.sendall(upgrade("/v1/chat/completions", "content-type: application/json", method="POST", body=body))
        second = http.client.HTTPResponse(made)
        second.begin()
        assert (second.status, json.loads(second.read())["object"]) == (200, "chat.completion")
    assert engine.passed_on() == 1


@pytest.mark.parametrize(
    ("method", "fields", "version"),
    [
        ("POST", ("connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AAA"), "HTTP/1.1"),
        ("POST", WEBSOCKET, "HTTP/1.1"),
        ("POST", WEBSOCKET, "HTTP/1.0"),
        ("POST", ("upgrade: websocket",), "HTTP/1.1"),
    ],
)
def test_other_wishes_for_another_protocol_are_passed_over(
    plain: tuple[Router, Engine], method: str, fields: tuple[str, ...], version: str
) -> None:
    body = json.dumps(CHAT).encode()
    asked = upgrade(
        "/v1/chat/completions", "content-type: application/json", *fields, method=method, version=version, body=body
    )
    with plain[0].connect() as made:
        made.sendall(asked)
        answer = http.client.HTTPResponse(made)
        answer.begin()
        assert answer.status == 200
    assert "upgrade" not in plain[1].last.headers


def test_a_tunnel_over_http2_is_refused(plain: tuple[Router, Engine]) -> None:
    with http2.Connection(plain[0].port) as made:
        number = made.ask("CONNECT", "/v1/responses", b"", (":protocol", "websocket"))
        while (got := made.read()) is not None and got[0] not in (http2.RST_STREAM, http2.GOAWAY):
            assert (got[0], got[2]) != (http2.HEADERS, number)
    assert plain[0].ask().status == 200, "the router is as well as before"
