"""The client that waits for answers."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self, TypeVar

import httpx

from kvatlas.client import requests
from kvatlas.client.answers import Answer, BatchAnswer, KeyspaceDump, Readiness, WorkerStatus
from kvatlas.client.requests import DEFAULT_GROUP, DEFAULT_URL, Call, Numbers, Query
from kvatlas.client.transport import errors, options
from kvatlas.errors import ClientError, UnreachableError

T = TypeVar("T")
_POLL = 0.1  # seconds between looks at readiness


class Client:
    """Asks a service. Threads may share one.

    Every method raises `ClientError` if the service refuses the request, with the service's code and the HTTP status,
    and `UnreachableError` if nobody answers.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        key: str | None = None,
        timeout: float = 30.0,
        *,
        ssl_context: ssl.SSLContext | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Nothing is sent yet.

        Args:
            url: Where the service is.
            key: Its bearer key.
            timeout: Seconds that connecting, sending and each part of an answer may take.
            ssl_context: What certificates to trust; those of the system if not given.
            transport: Sends the requests instead of httpx's own.

        Raises:
            InvalidArgumentError: The URL, the key or the timeout cannot be used.
        """
        self._http = httpx.Client(**options(url, key, timeout, ssl_context), transport=transport)
        self.url = url.strip().rstrip("/")

    def query(
        self,
        tokens: Numbers,
        *,
        model: str,
        group: str = DEFAULT_GROUP,
        lora: str | None = None,
        salt: str | None = None,
        top_k: int | None = None,
        workers: Iterable[str] | None = None,
        levels: bool = False,
        age: bool = False,
    ) -> Answer:
        """Who holds how much of this prompt?

        Args:
            tokens: The prompt.
            model: The model it is for.
            group: The routing group.
            lora: The LoRA adapter it is for.
            salt: Its cache salt.
            top_k: Only so many workers, the best ones.
            workers: Only these workers.
            levels: Whether to list the workers by depth, too.
            age: Whether to say how far the service is behind each worker.
        """
        asked = requests.query(
            "tokens",
            tokens,
            model=model,
            group=group,
            lora=lora,
            salt=salt,
            top_k=top_k,
            workers=workers,
            levels=levels,
            age=age,
        )
        return self._send(asked)

    def query_by_hash(
        self,
        hashes: Numbers,
        *,
        model: str,
        group: str = DEFAULT_GROUP,
        top_k: int | None = None,
        workers: Iterable[str] | None = None,
        levels: bool = False,
        age: bool = False,
    ) -> Answer:
        """The same for the content hashes of a prompt's blocks, which `kvatlas.content_hashes` makes."""
        asked = requests.query(
            "hashes",
            hashes,
            model=model,
            group=group,
            lora=None,
            salt=None,
            top_k=top_k,
            workers=workers,
            levels=levels,
            age=age,
        )
        return self._send(asked)

    def query_batch(
        self,
        queries: Iterable[Query | Numbers],
        *,
        model: str,
        group: str = DEFAULT_GROUP,
        top_k: int | None = None,
        workers: Iterable[str] | None = None,
    ) -> BatchAnswer:
        """Many prompts in one request, up to 1,024: tokens, or `Query` with more."""
        return self._send(requests.query_batch(queries, model=model, group=group, top_k=top_k, workers=workers))

    def register(
        self,
        worker: str,
        endpoint: str,
        *,
        model: str,
        block_size: int,
        group: str = DEFAULT_GROUP,
        rank: int = 0,
        replay: str | None = None,
        topic: str = "",
    ) -> bool:
        """Have a worker's rank followed. True if it was not registered; saying the same twice is fine."""
        asked = requests.register(
            worker,
            endpoint,
            model=model,
            block_size=block_size,
            group=group,
            rank=rank,
            replay=replay,
            topic=topic,
        )
        return self._send(asked)

    def unregister(
        self, worker: str, *, model: str | None = None, group: str | None = None, rank: int | None = None
    ) -> None:
        """Forget a worker, or one rank of it; with `model` and `group`, only if it is registered for those."""
        self._send(requests.unregister(worker, model=model, group=group, rank=rank))

    def workers(self, *, model: str | None = None, group: str | None = None) -> list[WorkerStatus]:
        """The fleet: each worker, its streams, and how they are."""
        return self._send(requests.workers(model=model, group=group))

    def dump(self) -> list[KeyspaceDump]:
        """Everything held. It may be large."""
        return self._send(requests.dump())

    def health(self) -> bool:
        """Whether the service is alive."""
        return self._send(requests.health())

    def ready(self) -> Readiness:
        """Whether answers are whole, and what they wait for if not."""
        return self._send(requests.ready())

    def metrics(self) -> str:
        """Metrics in Prometheus' text format."""
        return self._send(requests.metrics())

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait until answers are whole, also for a service that is only being started.

        Raises:
            ClientError: That took too long (code "not_ready").
            UnreachableError: Nobody answered until then.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                ready = self.ready()
            except UnreachableError:
                if time.monotonic() > deadline:
                    raise
            else:
                if ready:
                    return
                if time.monotonic() > deadline:
                    raise ClientError(f"{self.url} is not ready after {timeout:g} s: {ready}", "not_ready")
            time.sleep(_POLL)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, call: Call[T]) -> T:
        with errors(self.url, closed=self._http.is_closed):
            answer = self._http.request(call.method, call.path, content=call.content, headers=call.headers)
        return call.finish(answer)
