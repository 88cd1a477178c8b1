"""Requests that the tests of the HTTP side make."""

from __future__ import annotations

from typing import Any

from tests.support.engine import BLOCK_SIZE
from tests.support.waiting import until

from kvatlas._native import Service

from .dialect.tools import MODEL, Answer, ask

TOKENS = list(range(100, 140))
QUERY = {"model_name": MODEL, "token_ids": TOKENS}
BYTES = {"Content-Type": "application/octet-stream"}  # headers of a query that is not JSON


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
