"""Hostile targets, lines of heads and names: keys where they do not belong, paths in disguise, others' sessions."""

from __future__ import annotations

import base64
import json
import random
import threading
from urllib.parse import quote

from tests.process.attack.target import CHAT, STREAMED, Attack, Target, connected, drain, send


def keys_elsewhere(target: Target, choose: random.Random) -> None:
    """A key in the path, the query, a header's name or value, plain and in disguise."""
    key = target.key or "a-key-that-is-none-0123456789"
    encoded = base64.b64encode(b"user:" + key.encode()).decode()
    every = "".join(f"%{byte:02x}" for byte in key.encode())
    if choose.random() < 0.5:
        path = choose.choice(
            (f"/v1/{key}/models", f"/v1/models?key={key}", f"/v1/models?k={every}", f"/v1/{quote(every)}")
        )
        send(target, target.head("GET", path))
        return
    field = choose.choice(
        (
            f"X-Request-Id: {key}",
            f"{key}: 1",
            f"X-Other: Basic {encoded}",
            f"Cookie: session={every}",
            f"Traceparent: {key}",
            f"Referer: http://a/?key={key}",
            f"X-Session-Id: {key}",
        )
    )
    send(target, target.post("/v1/chat/completions", CHAT, field))


PATHS = (
    "/v1/files/..;/engines",
    "/v1/files/%252e%252e/engines",
    "/v1/files/..%5c..%5cengines",
    "/v1/files/%2e%2e%2fload_lora_adapter",
    "/v1/files/..%252fload_lora_adapter",
    "/v1//load_lora_adapter",
    "/v1/chat/completions/../../load_lora_adapter",
    "/v1/files/%c0%ae%c0%ae/sleep",
    "/v1/files/.%00./sleep",
    "/v1/models/%25252e%25252e%25252fengines",
    "//evil.example/v1/models",
    "/v1\\load_lora_adapter",
)
FIELDS = (
    "X-Original-URL: /engines",
    "X-Rewrite-URL: /v1/load_lora_adapter",
    "X-HTTP-Method-Override: DELETE",
    "X-HTTP-Method: PUT",
    "X-Method-Override: DELETE",
    "X-Forwarded-For: 127.0.0.1",
    "X-Forwarded-Host: localhost",
    "X-Forwarded-Prefix: /admin",
    "Forwarded: for=127.0.0.1",
    "X-Real-IP: 127.0.0.1",
)


def paths_in_disguise(target: Target, choose: random.Random) -> None:
    """Paths that become others, and headers that name others."""
    method = choose.choice(("GET", "POST", "DELETE"))
    fields = choose.sample(FIELDS, choose.randrange(3))
    send(target, target.head(method, choose.choice(PATHS), *fields, "Content-Length: 0"))


KEYS = ("a\r\nX: 1", "a\0b", "k" * 60_000, "a b", "é", "")


def bad_engines(target: Target, choose: random.Random) -> None:
    """Engines whose keys, names or addresses would break heads and lines of the log."""
    name, key = f"added-{choose.randrange(1 << 30)}", choose.choice(KEYS)
    about: dict[str, object] = {"url": "http://127.0.0.1:1", "name": name, "key": key}
    odd: tuple[tuple[str, object], ...] = (
        ("key", key),
        ("name", "a\r\nb"),
        ("url", "http://127.0.0.1:1/a\r\nX: 1"),
        ("models", ["m\n"]),
    )
    about |= dict([choose.choice(odd)])
    send(target, target.post("/engines", json.dumps(about).encode()))


def sessions(target: Target, choose: random.Random) -> None:
    """Questions for decisions, and how a prompt of another's session would be placed."""
    session = choose.choice(("0", "client", "a" * 100_000, "\\u0000", "../x"))
    if choose.random() < 0.5:
        limit = choose.choice(("1000000", "-1", "9" * 400))
        send(target, target.head("GET", f"/decisions?limit={limit}"))
    else:
        send(target, target.post("/explain", CHAT, f"X-Session-Id: {session[:60_000]}"))


def slow_streams(target: Target, choose: random.Random) -> None:
    """A hundred streams at once, so that what is sent twice for the late ones shows."""

    def one() -> None:
        with connected(target) as made:
            made.sendall(target.post("/v1/chat/completions", STREAMED))
            drain(made, 1.0 + choose.random())

    threads = [threading.Thread(target=one, daemon=True) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


ATTACKS: tuple[Attack, ...] = (keys_elsewhere, paths_in_disguise, bad_engines, sessions, slow_streams)
