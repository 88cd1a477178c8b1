"""Engines that clients add: what stands in the heads of requests to them is checked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.engine import Engine

from .running import PLAIN, Router

KEYS = ["a\r\nX: 1", "a\nX: 1", "a\0b", "a b", " a", "", "é", "\u212a", "\x7f", "k" * 8193, "k" * 60_000]


def add(router: Router, **about: Any) -> tuple[int, str]:
    status, said = router.call("POST", "/engines", about)
    return status, json.dumps(said)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{len(key)} {key[:9]!r}".encode("unicode_escape").decode())
def test_a_key_that_is_none_is_refused_and_not_repeated(engine: Engine, other: Engine, key: str) -> None:
    with Router(engine, flags=PLAIN) as router:
        status, said = add(router, url=other.url, name="new", key=key)
        assert status == 400
        assert "visible ASCII characters without white space, 8192 bytes at most" in said
        assert len(said) < 500
        assert len(key) < 3 or key not in router.log
        assert other.received == []
        assert add(router, url=other.url, name="new", key="k" * 8192)[0] == 201


@pytest.mark.parametrize(
    "about",
    [
        {"name": "a\r\nb"},
        {"name": "a\0"},
        {"name": "n" * 257},
        {"name": ""},
        {"models": ["m\nn"]},
        {"models": ["m" * 257]},
        {"aliases": ["a\rb"]},
        {"adapters": ["\x1b[31m"]},
        {"model": "m" * 257},
        {"version": "0.33\r\n"},
        {"url": "http://127.0.0.1:1/a\r\nX: 1"},
        {"url": "http://127.0.0.1:1/a b"},
        {"url": "http://127.0.0.1:1\0/"},
        {"url": "http://a\r\nX: 1@127.0.0.1:1"},
        {"url": "http://127.0.0.1:1/" + "a" * 2048},
        {"url": f"http://{'a' * 3000}:1"},
    ],
    ids=lambda about: f"{next(iter(about))} {str(next(iter(about.values())))[:20]}".encode("unicode_escape").decode(),
)
def test_names_and_addresses_are_checked(engine: Engine, about: dict[str, Any]) -> None:
    with Router(engine, flags=PLAIN) as router:
        status, said = add(router, **({"url": "http://127.0.0.1:1"} | about))
        assert status == 400, said
        assert json.loads(said)["error"]["code"] == "invalid_engine"
        assert len(said) < 5000
        assert len(router.workers()) == 1
