"""Tests of what web pages in a user's browser can do with a router, and engines with the router's own page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.engine import MODEL, Engine, reply, usual

from .running import MESSAGES, PLAIN, Router
from .test_routes import request

CHAT = {"model": MODEL, "messages": MESSAGES}
JSON = {"content-type": "application/json"}
FOREIGN = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
]


def requests(url: str) -> list[tuple[str, str, bytes]]:
    """Whatever changes or tells something, and what an engine computes."""
    report = {"router": 1, "seconds": 1.0, "number": 1, "after": 0, "changes": {"sent": [], "begun": [], "ended": []}}
    return [
        ("POST", "/engines", json.dumps({"url": url, "name": "mine"}).encode()),
        ("POST", "/engines/e0/drain", b"{}"),
        ("POST", "/engines/e0/undrain", b""),
        ("DELETE", "/engines/e0", b""),
        ("POST", "/peers/requests", json.dumps(report).encode()),
        ("POST", "/explain", json.dumps(CHAT).encode()),
        ("POST", "/v1/chat/completions", json.dumps(CHAT).encode()),
        ("POST", "/v1/files", b"{}"),
        ("DELETE", "/v1/files/x", b""),
        ("POST", "/generate", b"{}"),
    ]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
@pytest.mark.parametrize("kind", [JSON, {"content-type": "text/plain"}, {}], ids=["json", "text", "none"])
def test_pages_of_others_are_refused(
    plain: tuple[Router, Engine], headers: dict[str, str], kind: dict[str, str]
) -> None:
    router, engine = plain
    for method, path, body in requests("http://127.0.0.1:9"):
        status, _, answer = request(router, method, path, headers | kind, body)
        assert status == 403, path
        assert json.loads(answer)["error"]["code"] == "foreign_origin"
    assert [one.path for one in engine.received if one.method != "GET"] == []
    assert [(worker["name"], worker["standing"]) for worker in router.workers()] == [("e0", "up")]
    assert router.metric("kvatlas_router_refused_requests_total", status="4xx", reason="foreign_origin") >= 10


def test_bodies_for_the_router_must_be_json(plain: tuple[Router, Engine]) -> None:
    router, _ = plain
    own = [each for each in requests("http://127.0.0.1:9") if not each[1].startswith(("/v1/", "/generate"))]
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/json"):
        for method, path, body in own:
            status, _, answer = request(router, method, path, {"content-type": kind}, body)
            assert status == 415, path
            assert json.loads(answer)["error"]["code"] == "wrong_content_type"
    for path in ("/engines", "/peers/requests", "/explain"):
        assert request(router, "POST", path, {}, b"{}")[0] == 415
    assert request(router, "POST", "/engines/e0/drain", {}, b"{}")[0] == 415
    assert [worker["name"] for worker in router.workers()] == ["e0"]
    # Without a body there is nothing to be said of it.
    assert request(router, "POST", "/engines/e0/drain")[0] == 200
    assert request(router, "POST", "/engines/e0/undrain")[0] == 200


def test_the_own_page_and_programs_are_let_in(plain: tuple[Router, Engine]) -> None:
    router, _ = plain
    own = f"http://127.0.0.1:{router.port}"
    for headers in [
        {},
        {"origin": own},
        {"origin": own, "sec-fetch-site": "same-origin"},
        {"origin": f"https://localhost:{router.port}", "host": f"localhost:{router.port}"},
        {"sec-fetch-site": "none"},
    ]:
        assert router.ask(CHAT, headers=headers).status == 200, headers
        assert router.ask(CHAT, path="/explain", headers=headers).status == 200, headers
    # A link on another page may lead to the router's own.
    assert request(router, "GET", "/ui", {"sec-fetch-site": "cross-site"})[0] == 200


def test_clients_that_show_a_key_may_be_pages(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k")
    with Router(engine, flags=(*PLAIN, "--key-file", str(tmp_path / "key"))) as router:
        headers = {"authorization": "Bearer k", "origin": "app://chat", "sec-fetch-site": "cross-site"}
        assert router.ask(CHAT, headers=headers).status == 200
        assert router.ask({"url": "http://127.0.0.1:9"}, path="/engines", headers=headers).status == 403


def test_origins_that_the_setting_names(engine: Engine) -> None:
    friend = "https://chat.example"
    with Router(engine, flags=(*PLAIN, "--origins", friend)) as router:
        asked = {
            "origin": friend,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        status, headers, _ = request(router, "OPTIONS", "/v1/chat/completions", asked)
        assert status == 200
        assert headers["access-control-allow-origin"] == friend
        assert headers["access-control-allow-methods"] == "POST, OPTIONS"
        assert headers["access-control-allow-headers"] == "authorization,content-type"
        answer = router.ask(CHAT, headers={"origin": friend, "sec-fetch-site": "cross-site"})
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, friend)
        refused = router.ask(CHAT, path="/nowhere", headers={"origin": friend})
        assert (refused.status, refused.headers["access-control-allow-origin"]) == (404, friend)
        stranger = router.ask(CHAT, headers={"origin": "https://evil.example"})
        assert stranger.status == 403
        assert "access-control-allow-origin" not in stranger.headers
        status, headers, _ = request(router, "OPTIONS", "/workers", asked | {"origin": "https://evil.example"})
        assert status == 200
        assert "access-control-allow-origin" not in headers
        assert "access-control-allow-origin" not in router.ask(CHAT).headers


def test_a_name_is_not_taken_from_an_engine(engine: Engine, other: Engine) -> None:
    with Router(engine) as router:
        refused = router.ask({"name": "e0", "url": other.url}, path="/engines")
        assert (refused.status, refused.error["code"]) == (409, "name_taken")
        assert router.workers()[0]["url"] == engine.url
        # The same engine with other settings, and another engine under another name.
        assert router.ask({"name": "e0", "url": engine.url, "weight": 2.0}, path="/engines").status == 201
        assert router.ask({"name": "e1", "url": other.url}, path="/engines").status == 201
        assert [(worker["name"], worker["weight"]) for worker in router.workers()] == [("e0", 2.0), ("e1", 1.0)]


def test_the_key_of_all_engines_goes_to_those_that_the_operator_names(
    engine: Engine, other: Engine, tmp_path: Path
) -> None:
    for name, key in (("engines", "fleet"), ("admin", "adm1n")):
        (tmp_path / name).write_text(key)
    flags = (*PLAIN, "--policy", "round-robin", "--engine-key-file", str(tmp_path / "engines"))

    def shown(one: Engine) -> set[str | None]:
        return {request.headers.get("authorization") for request in one.received}

    with Router(engine, flags=flags) as router:
        refused = router.ask({"name": "e1", "url": other.url, "use_key": True}, path="/engines")
        assert (refused.status, refused.error["code"]) == (403, "forbidden")
        assert router.ask({"name": "e1", "url": other.url, "models": [MODEL]}, path="/engines").status == 201
        assert router.ask({"name": "e0", "url": engine.url}, path="/engines").status == 201
        for _ in range(4):
            assert router.ask(CHAT).status == 200
        assert (engine.asked() > 0, other.asked() > 0) == (True, True)
        assert shown(engine) == {"Bearer fleet"}
        assert shown(other) == {None}
    other.received.clear()
    with Router(engine, flags=(*flags, "--admin-key-file", str(tmp_path / "admin"))) as router:
        about = {"name": "e1", "url": other.url, "models": [MODEL], "use_key": True}
        assert router.ask(about, path="/engines", headers={"authorization": "Bearer adm1n"}).status == 201
        for _ in range(4):
            assert router.ask(CHAT).status == 200
        assert shown(other) == {"Bearer fleet"}


def test_clients_can_add_so_many_engines(engine: Engine) -> None:
    with Router(engine, flags=(*PLAIN, "--max-ranks", "10")) as router:
        for number in range(9):
            about = {"url": f"http://127.0.0.1:{number + 1}", "models": [MODEL]}
            assert router.ask(about, path="/engines").status == 201
        refused = router.ask({"url": "http://127.0.0.1:99"}, path="/engines")
        assert (refused.status, refused.error["code"]) == (409, "too_many_engines")
        assert router.ask({"name": "e0", "url": engine.url, "ranks": 2}, path="/engines").status == 409
        assert router.ask({"name": "e0", "url": engine.url, "weight": 2}, path="/engines").status == 201
        assert len(router.workers()) == 10
        assert request(router, "DELETE", "/engines/127.0.0.1:1")[0] == 200
        assert router.ask({"url": "http://127.0.0.1:99"}, path="/engines").status == 201


def test_hosts_are_checked_wherever_names_are_configured(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k")
    key = {"authorization": "Bearer k"}
    for more in ((), ("--key-file", str(tmp_path / "key"))):
        with Router(engine, flags=(*PLAIN, "--hosts", "router.internal", *more)) as router:
            for host in ("router.internal", "Router.Internal:8080", "localhost:1", "127.0.0.1", "[::1]:9"):
                assert router.ask(CHAT, headers=key | {"host": host}).status == 200, host
            for host in ("evil.example", "router.internal.evil.example:8080", "127.0.0.1.evil.example"):
                refused = router.ask(CHAT, headers=key | {"host": host})
                assert (refused.status, refused.error["code"]) == (421, "wrong_host"), host
            # Probes and links name what they like.
            assert request(router, "GET", "/health", {"host": "evil.example"})[0] == 200


UNWANTED = {
    "access-control-allow-origin": "*",
    "access-control-allow-credentials": "true",
    "set-cookie": "a=b",
    "clear-site-data": '"*"',
    "strict-transport-security": "max-age=1",
    "service-worker-allowed": "/",
    "refresh": "0; url=https://evil.example",
    "link": "<https://evil.example>; rel=preload",
    "location": "https://evil.example",
    "alt-svc": 'h3=":1"',
    "www-authenticate": "Basic",
    "x-accel-redirect": "/etc/passwd",
}


@pytest.mark.parametrize("kind", ["text/html", "image/svg+xml", "application/json", "text/event-stream", "text/plain"])
def test_answers_of_engines_are_harmless_in_a_browser(plain: tuple[Router, Engine], kind: str) -> None:
    router, engine = plain
    fields = [f"{name}: {value}" for name, value in UNWANTED.items()]
    for status in ("200 OK", "400 Bad Request", "307 Temporary Redirect", "401 Unauthorized"):
        engine.behaviour = reply(status, b"<script>alert(1)</script>", *fields, "x-own: 1", kind=kind)
        for path in ("/v1/chat/completions", "/generate"):
            answer = router.ask(CHAT, path=path)
            assert answer.status == int(status[:3])
            assert not UNWANTED.keys() & answer.headers.keys()
            assert (answer.headers["content-type"], answer.headers["x-own"]) == (kind, "1")
            assert answer.headers["x-content-type-options"] == "nosniff"
            is_page = kind not in ("application/json", "text/event-stream")
            assert answer.headers.get("content-security-policy") == ("sandbox; default-src 'none'" if is_page else None)
    engine.behaviour = usual


def test_an_answer_with_several_types_is_caged(plain: tuple[Router, Engine]) -> None:
    router, engine = plain
    for kind in (
        "application/json, text/html",
        "application/json; charset=utf-8, text/html",
        "text/event-stream;,text/html",
    ):
        engine.behaviour = reply("200 OK", b"<script>alert(1)</script>", kind=kind)
        assert router.ask(CHAT).headers["content-security-policy"] == "sandbox; default-src 'none'", kind
    engine.behaviour = usual
