"""Long queries are answered beside the threads that serve, and what they become is bounded."""

from __future__ import annotations

import json
import threading
import time

import pytest

from kvatlas._native import Service

from .dialect.tools import MODEL, ask
from .http_tools import register

MIB = 1 << 20


def query(path: str, field: str, item: str, length: int = 7 * MIB) -> tuple[str, bytes]:
    items = ",".join([item] * (length // (len(item) + 1)))
    return path, f'{{"model_name":"{MODEL}","{field}":[{items}]}}'.encode()


LONG = {
    "tokens": (query("/query", "token_ids", "1"), 200),
    "hashes": (query("/query_by_hash", "content_hashes", "12345678901234567890"), 200),
    "many hashes": (query("/query_by_hash", "content_hashes", "1"), 400),
    "workers": (query("/query", "among", '"a"'), 400),
    "other fields": (query("/query", "others", '{"":0}'), 422),
    "a batch": (query("/query_batch", "queries", '{"token_ids":[1]}'), 400),
    "an observation": (query("/observed", "token_ids", "1"), 422),
}


@pytest.mark.parametrize("kind", LONG)
def test_health_does_not_wait_for_long_queries(service: Service, kind: str) -> None:
    assert register(service, 1).status == 201
    (path, body), expected = LONG[kind]
    took, is_over = [0.0], threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            began = time.monotonic()
            assert ask(service.address, "GET", "/health").status == 200
            took.append(time.monotonic() - began)
            is_over.wait(0.005)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        for _ in range(3):
            answer = ask(service.address, "POST", path, body)
            assert answer.status == expected, answer
            assert expected == 200 or json.loads(answer.body)["error"]
    finally:
        is_over.set()
        watching.join()
    assert max(took) < 2, took
