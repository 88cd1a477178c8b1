"""Requests to a service, and values made from their answers, shared by both clients.

Each function creates a `Call`; a client sends it and passes the answer to `Call.finish`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

import httpx

from kvatlas._http import failure
from kvatlas.client import answers, parse
from kvatlas.client import sites as of_sites
from kvatlas.client.knowledge import Keyspace, Way
from kvatlas.client.prompts import Prompt
from kvatlas.errors import ClientError, InvalidTypeError, UnreachableError

T = TypeVar("T")

DEFAULT_GROUP = "default"
DEFAULT_URL = "http://127.0.0.1:8090"
_MAX_ID = (1 << 64) - 1
_MAX_SEARCH = 2000  # bytes of a query string: longer ones do not get through every proxy


@contextmanager
def errors(url: str, *, closed: bool) -> Iterator[None]:
    """A context that turns errors of httpx into those of kvatlas. Raises an error first if the client is closed."""
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
        """True if the deadline has passed."""
        return time.monotonic() > self._end

    def check(self, ready: answers.Readiness) -> None:
        """Raise `ClientError` if the deadline has passed."""
        if self.passed():
            raise ClientError(f"{self._url} is not ready after {self._timeout:g} s: {ready}", "not_ready")


class Call(Generic[T]):
    """A request: its method, path, and body as bytes or a value to be sent as JSON."""

    def __init__(self, method: str, path: str, body: dict[str, Any] | bytes | None = None) -> None:
        self.method = method
        self.path = path
        self.content = json.dumps(body, separators=(",", ":")).encode() if isinstance(body, dict) else body
        kind = "application/json" if isinstance(body, dict) else "application/octet-stream"
        self.headers = {} if body is None else {"Content-Type": kind}

    def finish(self, answer: httpx.Response) -> T:
        """Convert an answer to its value.

        Raises:
            ClientError: The answer is a refusal, or cannot be understood.
        """
        if not answer.is_success:
            raise parse.refused(answer)
        return self.made(answer)

    def made(self, answer: httpx.Response) -> T:
        """Convert an answer that is not a refusal to its value."""
        raise NotImplementedError


class Json(Call[T]):
    """A request whose JSON answer `make` converts to a value."""

    def __init__(self, make: Any, method: str, path: str, body: dict[str, Any] | bytes | None = None) -> None:
        super().__init__(method, path, body)
        self._make = make

    def made(self, answer: httpx.Response) -> T:
        value: T = parse.parsed(answer.content, self._make, answer.request.url)
        return value


@dataclass(frozen=True, slots=True)
class Scope:
    """Part of the index that a query searches, and the optional parts of the answer that the query requests."""

    keyspace: Keyspace
    top_k: int | None
    among: list[str | int] | None
    age: bool = False
    strict: bool = False

    @classmethod
    def of(
        cls,
        model: str,
        routing_group: str,
        top_k: int | None,
        among: Iterable[str] | None,
        *,
        age: bool = False,
        strict: bool = False,
    ) -> Scope:
        """Create a scope from checked arguments: in a URL, a value of any type would look like a string.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
        """
        for name, text in (("model", model), ("routing_group", routing_group)):
            if not isinstance(text, str):
                raise InvalidTypeError(f"{name} must be a str, got {type(text).__name__}")
        if isinstance(among, str):
            raise InvalidTypeError("among must be a list of names, got str")
        workers = None if among is None else [worker_id(worker) for worker in among]
        return cls(Keyspace(model, routing_group), top_k, workers, age, strict)

    def body(self) -> dict[str, Any]:
        """The fields of a JSON request for the scope."""
        body: dict[str, Any] = {"model_name": self.keyspace.model, "routing_group": self.keyspace.routing_group}
        if self.top_k is not None:
            body["top_k"] = self.top_k
        if self.among is not None:
            body["among"] = self.among
        if self.age:
            body["age"] = True
        if self.strict:
            body["strict"] = True
        return body

    def search(self, prompt: Prompt) -> str | None:
        """The scope as the query string of a URL, with the adapter and salt of the prompt; None if impossible."""
        body = self.body()
        among = body.pop("among", None)
        if among is not None:
            body["among"] = among or [""]
        if self.age:
            body["age"] = "true"
        if self.strict:
            body["strict"] = "true"
        if prompt.lora is not None:
            body["lora_name"] = prompt.lora
        if prompt.hashed_tokens is not None:
            body["prompt_tokens"] = prompt.hashed_tokens
        try:
            search = urlencode(body, doseq=True)
        except UnicodeEncodeError:  # half a surrogate pair: no UTF-8, as the service will say
            return None
        return None if "" in (among or ()) or len(search) > _MAX_SEARCH else search


def query(prompt: Prompt, scope: Scope, way: Way) -> Call[answers.Answer]:
    """Request for the answer to a query: POST /query, or /query_by_hash for content hashes.

    Numbers are sent as bytes, unless a parameter must not be in a URL.
    """
    prompt = prompt.hashed(way.block_size)
    path = "/query_by_hash" if prompt.is_hashed else "/query"
    make = partial(parse.answer, asked=prompt.length)
    # URLs are written to the logs of proxies, where a salt must not appear.
    if way.as_bytes and not prompt.salt and (search := scope.search(prompt)) is not None:
        return Json(make, "POST", f"{path}?{search}", prompt.content())
    return Json(make, "POST", path, prompt.body() | scope.body())


def query_batch(prompts: list[Prompt], scope: Scope, way: Way) -> Call[answers.BatchAnswer]:
    """Request for the answers to a batch of queries: POST /query_batch."""
    body = {"queries": [prompt.hashed(way.block_size).body() for prompt in prompts]} | scope.body()
    asked = [prompt.length for prompt in prompts]
    return Json(partial(parse.batch_answer, asked=asked), "POST", "/query_batch", body)


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
    count_copies: bool,
    host_chunk: int | None = None,
    aliases: Iterable[str] | None = None,
    adapters: Iterable[str] | None = None,
) -> dict[str, Any]:
    """The JSON fields by which a service registers one stream."""
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
    if not count_copies:
        body["count_copies"] = False
    if host_chunk is not None:
        body["host_chunk"] = host_chunk
    for name, names in (("aliases", aliases), ("adapters", adapters)):
        if names is not None:
            if isinstance(names, str):
                raise InvalidTypeError(f"{name} must be a list of names, got str")
            body[name] = list(names)
    return body


def register(stream: Mapping[str, Any]) -> Call[bool]:
    """Request to register a stream, given by `registration`: POST /register. Its value is True if the stream is new."""
    return _Registration("POST", "/register", dict(stream))


class _Registration(Call[bool]):
    def made(self, answer: httpx.Response) -> bool:
        return answer.status_code == httpx.codes.CREATED


def unregister(worker: str, *, model: str | None, routing_group: str | None, rank: int | None) -> Call[None]:
    """Request to unregister a worker: POST /unregister."""
    given = {"model_name": model, "routing_group": routing_group, "dp_rank": rank}
    body = {"instance_id": worker_id(worker)} | {name: value for name, value in given.items() if value is not None}
    return _EmptyAnswer("POST", "/unregister", body)


class _EmptyAnswer(Call[None]):
    def made(self, answer: httpx.Response) -> None:
        return None


def workers(*, model: str | None, routing_group: str | None) -> Call[list[answers.WorkerStatus]]:
    """Request for the registered workers: GET /workers."""
    given = {"model_name": model, "routing_group": routing_group}
    search = urlencode({name: value for name, value in given.items() if value is not None})
    return Json(parse.worker_statuses, "GET", "/workers" + (f"?{search}" if search else ""))


def engines() -> Call[list[answers.EngineStatus]]:
    """Request for the configured engines: GET /engines."""
    return Json(parse.engine_statuses, "GET", "/engines")


def sites(prompt: Prompt, keyspace: Keyspace) -> Call[of_sites.SitesAnswer]:
    """Request for the sites that hold a prompt: POST /sites."""
    body = {"model_name": keyspace.model, "routing_group": keyspace.routing_group, **prompt.body()}
    return Json(of_sites.answer, "POST", "/sites", body)


def compare_site(keyspace: Keyspace, **claim: Any) -> Call[bool]:
    """Request to report how much a site really held: POST /sites/compare."""
    body = {"model_name": keyspace.model, "routing_group": keyspace.routing_group, **claim}
    return Json(of_sites.known, "POST", "/sites/compare", body)


def site_statuses() -> Call[list[of_sites.SiteStatus]]:
    """Request for the status of each site: GET /sites/status."""
    return Json(of_sites.statuses, "GET", "/sites/status")


def dump() -> Call[list[answers.KeyspaceDump]]:
    """Request for all blocks held: GET /dump."""
    return Json(parse.dump, "GET", "/dump")


class _Text(Call[str]):
    def made(self, answer: httpx.Response) -> str:
        return answer.text


def metrics() -> Call[str]:
    """Request for the metrics: GET /metrics."""
    return _Text("GET", "/metrics")


class _Health(Call[bool]):
    def finish(self, answer: httpx.Response) -> bool:
        return answer.is_success


def health() -> Call[bool]:
    """Request that succeeds if the service is alive: GET /health."""
    return _Health("GET", "/health")


class _Ready(Call[answers.Readiness]):
    def finish(self, answer: httpx.Response) -> answers.Readiness:
        if answer.status_code not in (httpx.codes.OK, httpx.codes.SERVICE_UNAVAILABLE):
            raise parse.refused(answer)
        return parse.parsed(answer.content, parse.readiness, answer.request.url)


def ready(*, strict: bool) -> Call[answers.Readiness]:
    """Request for a service's readiness: GET /ready. With `strict`, it is ready only while answers are complete."""
    return _Ready("GET", "/ready?strict=1" if strict else "/ready")


def worker_id(worker: str) -> str | int:
    """A worker's name in the form of the indexer dialect: an int if the name is a number, else the name.

    Services that accept only numbers accept it, too.
    """
    if not isinstance(worker, str):
        raise InvalidTypeError(f"worker must be a str, got {type(worker).__name__}")
    is_number = worker.isascii() and worker.isdecimal() and (worker == "0" or worker[0] != "0")
    return int(worker) if is_number and int(worker) <= _MAX_ID else worker
