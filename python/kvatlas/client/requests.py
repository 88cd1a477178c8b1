"""Requests to a service, and what is made of their answers: all that the two clients share.

Each function makes a `Call`; a client sends it and gives `Call.finish` the answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import urlencode

import httpx
import numpy as np
import numpy.typing as npt

from kvatlas.client import answers
from kvatlas.errors import InvalidArgumentError, InvalidTypeError

T = TypeVar("T")

Numbers: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]
DEFAULT_GROUP = "default"
DEFAULT_URL = "http://127.0.0.1:8090"
_MAX_ID = (1 << 64) - 1


@dataclass(frozen=True)
class Query:
    """One query of a batch: tokens with their LoRA and salt, or content hashes, which have those in them already."""

    tokens: Numbers | None = None
    hashes: Numbers | None = None
    lora: str | None = None
    salt: str | None = None


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
            raise answers.refused(answer)
        return self.made(answer)

    def made(self, answer: httpx.Response) -> T:
        """The value of an answer that is no refusal."""
        raise NotImplementedError


class _Json(Call[T]):
    def __init__(self, make: Any, method: str, path: str, body: dict[str, Any] | None = None) -> None:
        super().__init__(method, path, body)
        self._make = make

    def made(self, answer: httpx.Response) -> T:
        value: T = answers.parsed(answer.content, self._make, answer.request.url)
        return value


def query(
    kind: str,
    numbers: Numbers,
    *,
    model: str,
    group: str,
    lora: str | None,
    salt: str | None,
    top_k: int | None,
    workers: Iterable[str] | None,
    levels: bool,
    age: bool,
) -> Call[answers.Answer]:
    """POST /query or /query_by_hash, by `kind`: "tokens" or "hashes"."""
    body = _prompt(Query(**{kind: numbers}, lora=lora, salt=salt), kind)
    body |= _scope(model, group, top_k, workers)
    body |= {name: True for name, wanted in (("levels", levels), ("age", age)) if wanted}
    return _Json(answers.answer, "POST", "/query" if kind == "tokens" else "/query_by_hash", body)


def query_batch(
    queries: Iterable[Query | Numbers],
    *,
    model: str,
    group: str,
    top_k: int | None,
    workers: Iterable[str] | None,
) -> Call[answers.BatchAnswer]:
    """POST /query_batch."""
    prompts = [
        _prompt(each if isinstance(each, Query) else Query(tokens=each), f"queries[{at}]")
        for at, each in enumerate(queries)
    ]
    return _Json(
        answers.batch_answer, "POST", "/query_batch", {"queries": prompts} | _scope(model, group, top_k, workers)
    )


def _scope(model: str, group: str, top_k: int | None, workers: Iterable[str] | None) -> dict[str, Any]:
    scope: dict[str, Any] = {"model_name": model, "routing_group": group}
    if top_k is not None:
        scope["top_k"] = top_k
    if workers is not None:
        if isinstance(workers, str):
            raise InvalidTypeError("workers must be a list of names, got str")
        scope["workers"] = [worker_id(worker) for worker in workers]
    return scope


def _prompt(query: Query, name: str) -> dict[str, Any]:
    if (query.tokens is None) == (query.hashes is None):
        raise InvalidArgumentError(f"{name} must be either tokens or hashes", "conflicting_arguments")
    prompt: dict[str, Any] = {}
    if query.tokens is not None:
        prompt["token_ids"] = _list(query.tokens, name, 0, (1 << 32) - 1)
    elif query.hashes is not None:
        prompt["block_hashes"] = _list(query.hashes, name, -(1 << 63), (1 << 64) - 1)
    if query.lora is not None:
        prompt["lora_name"] = query.lora
    if query.salt is not None:
        prompt["cache_salt"] = query.salt
    return prompt


def _list(numbers: Numbers, name: str, low: int, high: int) -> list[int]:
    """The numbers as JSON takes them, checked here: a float or a bool would be refused there in other words."""
    if isinstance(numbers, np.ndarray):
        if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
            raise InvalidTypeError(
                f"{name} must be a one-dimensional array of integers, got {numbers.dtype}, shape {numbers.shape}"
            )
        listed: list[int] = numbers.tolist()
    elif isinstance(numbers, str | bytes) or not isinstance(numbers, Sequence):
        raise InvalidTypeError(f"{name} must be a list or an array of ints, got {type(numbers).__name__}")
    else:
        listed = list(numbers)
        if not all(type(number) is int for number in listed):
            # NumPy's integers are fine, too; bools are none.
            listed = [_int(number, f"{name}[{at}]") for at, number in enumerate(listed)]
    if listed and (min(listed) < low or max(listed) > high):
        at, wrong = next((at, number) for at, number in enumerate(listed) if not low <= number <= high)
        raise InvalidArgumentError(f"{name}[{at}] must be from {low} to {high}, got {wrong}", "out_of_range")
    return listed


def _int(number: object, name: str) -> int:
    if isinstance(number, bool | np.bool_) or not isinstance(number, int | np.integer):
        raise InvalidTypeError(f"{name} must be an int, got {type(number).__name__}")
    return int(number)


def register(
    worker: str,
    endpoint: str,
    *,
    model: str,
    block_size: int,
    group: str,
    rank: int,
    replay: str | None,
    topic: str,
) -> Call[bool]:
    """POST /register. True if it was not registered."""
    body: dict[str, Any] = {
        "instance_id": worker_id(worker),
        "endpoint": endpoint,
        "model_name": model,
        "block_size": block_size,
        "routing_group": group,
        "dp_rank": rank,
    }
    if replay is not None:
        body["replay_endpoint"] = replay
    if topic:
        body["topic"] = topic
    return _Registered("POST", "/register", body)


class _Registered(Call[bool]):
    def made(self, answer: httpx.Response) -> bool:
        return answer.status_code == httpx.codes.CREATED


def unregister(worker: str, *, model: str | None, group: str | None, rank: int | None) -> Call[None]:
    """POST /unregister."""
    given = {"model_name": model, "routing_group": group, "dp_rank": rank}
    body = {"instance_id": worker_id(worker)} | {name: value for name, value in given.items() if value is not None}
    return _Done("POST", "/unregister", body)


class _Done(Call[None]):
    def made(self, answer: httpx.Response) -> None:
        return None


def workers(*, model: str | None, group: str | None) -> Call[list[answers.WorkerStatus]]:
    """GET /workers."""
    given = {"model_name": model, "routing_group": group}
    search = urlencode({name: value for name, value in given.items() if value is not None})
    return _Json(answers.worker_statuses, "GET", "/workers" + (f"?{search}" if search else ""))


def dump() -> Call[list[answers.KeyspaceDump]]:
    """GET /dump."""
    return _Json(answers.dump, "GET", "/dump")


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
            raise answers.refused(answer)
        return answers.parsed(answer.content, answers.readiness, answer.request.url)


def ready() -> Call[answers.Readiness]:
    """GET /ready: whether answers are whole."""
    return _Ready("GET", "/ready")


def worker_id(worker: str) -> str | int:
    """A name as the dialect has it: a number if it is one, so that services that take only those take it, too."""
    if not isinstance(worker, str):
        raise InvalidTypeError(f"worker must be a str, got {type(worker).__name__}")
    is_number = worker.isascii() and worker.isdecimal() and (worker == "0" or worker[0] != "0")
    return int(worker) if is_number and int(worker) <= _MAX_ID else worker
