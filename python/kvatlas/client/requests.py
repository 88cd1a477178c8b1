"""Requests to a service, and what is made of their answers: all that the two clients share.

Each function makes a `Call`; a client sends it and gives `Call.finish` the answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

import httpx

from kvatlas._http import failure
from kvatlas.client import answers, parse
from kvatlas.client.prompts import Query
from kvatlas.errors import ClientError, InvalidTypeError, UnreachableError

T = TypeVar("T")

DEFAULT_GROUP = "default"
DEFAULT_URL = "http://127.0.0.1:8090"
_MAX_ID = (1 << 64) - 1


@contextmanager
def errors(url: str, *, closed: bool) -> Iterator[None]:
    """Turn errors of httpx into those of kvatlas. Refuse first if the client is closed."""
    if closed:
        raise ClientError(f"the client of {url} is closed", "closed")
    try:
        yield
    except httpx.HTTPError as error:
        code, words = failure(error)
        raise UnreachableError(f"{url} {words}", code) from error


class Deadline:
    """The deadline of a wait for readiness."""

    def __init__(self, url: str, timeout: float) -> None:
        self._url = url
        self._timeout = timeout
        self._end = time.monotonic() + timeout

    def passed(self) -> bool:
        """Whether it is over."""
        return time.monotonic() > self._end

    def check(self, ready: answers.Readiness) -> None:
        """Raise `ClientError` if it is over."""
        if self.passed():
            raise ClientError(f"{self._url} is not ready after {self._timeout:g} s: {ready}", "not_ready")


class Call(Generic[T]):
    """A request: its method, its path, its body in JSON."""

    def __init__(self, method: str, path: str, body: dict[str, Any] | None = None) -> None:
        self.method = method
        self.path = path
        self.content = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        self.headers = {} if body is None else {"Content-Type": "application/json"}

    def finish(self, answer: httpx.Response) -> T:
        """What the answer says.

        Raises:
            ClientError: It is a refusal, or cannot be understood.
        """
        if not answer.is_success:
            raise parse.refused(answer)
        return self.made(answer)

    def made(self, answer: httpx.Response) -> T:
        """The value of an answer that is not a refusal."""
        raise NotImplementedError


class _Json(Call[T]):
    def __init__(self, make: Any, method: str, path: str, body: dict[str, Any] | None = None) -> None:
        super().__init__(method, path, body)
        self._make = make

    def made(self, answer: httpx.Response) -> T:
        value: T = parse.parsed(answer.content, self._make, answer.request.url)
        return value


def query(
    prompt: Query,
    *,
    model: str,
    routing_group: str,
    top_k: int | None,
    among: Iterable[str] | None,
    age: bool,
) -> Call[answers.Answer]:
    """POST /query, or /query_by_hash for content hashes."""
    body = prompt.body() | _scope(model, routing_group, top_k, among)
    if age:
        body["age"] = True
    path = "/query" if prompt.content_hashes is None else "/query_by_hash"
    return _Json(partial(parse.answer, asked=prompt.length()), "POST", path, body)


def query_batch(
    prompts: list[Query],
    *,
    model: str,
    routing_group: str,
    top_k: int | None,
    among: Iterable[str] | None,
) -> Call[answers.BatchAnswer]:
    """POST /query_batch."""
    body: dict[str, Any] = {"queries": [prompt.body(f"queries[{at}].") for at, prompt in enumerate(prompts)]}
    body |= _scope(model, routing_group, top_k, among)
    asked = [prompt.length() for prompt in prompts]
    return _Json(partial(parse.batch_answer, asked=asked), "POST", "/query_batch", body)


def _scope(model: str, routing_group: str, top_k: int | None, among: Iterable[str] | None) -> dict[str, Any]:
    scope: dict[str, Any] = {"model_name": model, "routing_group": routing_group}
    if top_k is not None:
        scope["top_k"] = top_k
    if among is not None:
        if isinstance(among, str):
            raise InvalidTypeError("among must be a list of names, got str")
        scope["among"] = [worker_id(worker) for worker in among]
    return scope


def registration(
    worker: str,
    endpoint: str,
    *,
    model: str,
    block_size: int,
    routing_group: str,
    rank: int,
    replay_endpoint: str | None,
    topic: str,
) -> dict[str, Any]:
    """One stream, as the service registers it."""
    body: dict[str, Any] = {
        "instance_id": worker_id(worker),
        "endpoint": endpoint,
        "model_name": model,
        "block_size": block_size,
        "routing_group": routing_group,
        "dp_rank": rank,
    }
    if replay_endpoint is not None:
        body["replay_endpoint"] = replay_endpoint
    if topic:
        body["topic"] = topic
    return body


def register(stream: Mapping[str, Any]) -> Call[bool]:
    """POST /register, with what `registration` made. True if it was not registered."""
    return _Registered("POST", "/register", dict(stream))


class _Registered(Call[bool]):
    def made(self, answer: httpx.Response) -> bool:
        return answer.status_code == httpx.codes.CREATED


def unregister(worker: str, *, model: str | None, routing_group: str | None, rank: int | None) -> Call[None]:
    """POST /unregister."""
    given = {"model_name": model, "routing_group": routing_group, "dp_rank": rank}
    body = {"instance_id": worker_id(worker)} | {name: value for name, value in given.items() if value is not None}
    return _Done("POST", "/unregister", body)


class _Done(Call[None]):
    def made(self, answer: httpx.Response) -> None:
        return None


def workers(*, model: str | None, routing_group: str | None) -> Call[list[answers.WorkerStatus]]:
    """GET /workers."""
    given = {"model_name": model, "routing_group": routing_group}
    search = urlencode({name: value for name, value in given.items() if value is not None})
    return _Json(parse.worker_statuses, "GET", "/workers" + (f"?{search}" if search else ""))


def dump() -> Call[list[answers.KeyspaceDump]]:
    """GET /dump."""
    return _Json(parse.dump, "GET", "/dump")


class _Text(Call[str]):
    def made(self, answer: httpx.Response) -> str:
        return answer.text


def metrics() -> Call[str]:
    """GET /metrics."""
    return _Text("GET", "/metrics")


class _Health(Call[bool]):
    def finish(self, answer: httpx.Response) -> bool:
        return answer.is_success


def health() -> Call[bool]:
    """GET /health: whether it is alive."""
    return _Health("GET", "/health")


class _Ready(Call[answers.Readiness]):
    def finish(self, answer: httpx.Response) -> answers.Readiness:
        if answer.status_code not in (httpx.codes.OK, httpx.codes.SERVICE_UNAVAILABLE):
            raise parse.refused(answer)
        return parse.parsed(answer.content, parse.readiness, answer.request.url)


def ready() -> Call[answers.Readiness]:
    """GET /ready: whether answers are whole."""
    return _Ready("GET", "/ready")


def worker_id(worker: str) -> str | int:
    """A name as the dialect has it: a number if it is one, so that services that take only those take it, too."""
    if not isinstance(worker, str):
        raise InvalidTypeError(f"worker must be a str, got {type(worker).__name__}")
    is_number = worker.isascii() and worker.isdecimal() and (worker == "0" or worker[0] != "0")
    return int(worker) if is_number and int(worker) <= _MAX_ID else worker
