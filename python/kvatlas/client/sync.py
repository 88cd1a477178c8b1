"""The blocking client. Generated from `aio.py` by `tools/generate_sync.py`: do not edit."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from kvatlas._http import ClientCert, options
from kvatlas.client import at_router, requests
from kvatlas.client.answers import Answer, BatchAnswer, EngineStatus, KeyspaceDump, Readiness, WorkerStatus
from kvatlas.client.knowledge import Keyspace, ServiceKnowledge, Way
from kvatlas.client.prompts import Numbers, Prompt, Query, prepare
from kvatlas.client.requests import DEFAULT_GROUP, DEFAULT_URL, Call, Deadline, Scope, errors
from kvatlas.client.sites import SitesAnswer, SiteStatus
from kvatlas.errors import ClientError, UnreachableError
from kvatlas.tokenize import Message, Tokenizer

T = TypeVar("T")
A = TypeVar("A", Answer, BatchAnswer)
_POLL = 0.1  # seconds between looks at readiness


class Client:
    """A client of a service. Threads may share it.

    Every method raises `ClientError` if the service refuses the request, with the service's code and the HTTP status,
    and `UnreachableError` if the service does not answer.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        key: str | None = None,
        timeout: float = 30.0,
        *,
        ssl_context: ssl.SSLContext | None = None,
        client_cert: ClientCert | None = None,
        tokenizer: Tokenizer | None = None,
        local_hashing: bool = True,
    ) -> None:
        """Create a client. Nothing is sent yet.

        Args:
            url: The service's URL.
            key: The service's bearer key.
            timeout: Seconds that connecting, sending and each part of an answer may take.
            ssl_context: The TLS context; None for one that trusts the system's certificates.
            client_cert: The PEM files of a certificate and its key, for a service that requires one
                (`http.tls_client_ca`). With a context of your own, load them into it.
            tokenizer: Turns `text=` and `messages=` into tokens: one of `kvatlas.tokenize`, or your own. The client
                does not close it.
            local_hashing: True to hash tokens in the client once the service's block size is known, from an answer or
                from `workers()`, and to send the hashes: 8 bytes a block instead of 4 a token. Answers are the same.
                While the service can use tokens to adopt blocks announced before it started, each new prompt is sent as
                tokens. False to send all tokens.

        Raises:
            InvalidArgumentError: The URL, the key, the timeout or the certificate cannot be used.
        """
        self._http = httpx.Client(**options(url, key, timeout, ssl_context, client_cert))
        self._tokenizer = tokenizer
        self._knowledge = ServiceKnowledge(local_hashing=local_hashing)
        self.url = url.strip().rstrip("/")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def query(
        self,
        *,
        tokens: Numbers | None = None,
        content_hashes: Numbers | None = None,
        text: str | None = None,
        messages: Sequence[Message] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        model: str,
        routing_group: str = DEFAULT_GROUP,
        lora: str | None = None,
        salt: str | None = None,
        top_k: int | None = None,
        among: Iterable[str] | None = None,
        age: bool = False,
        strict: bool = False,
    ) -> Answer:
        """Ask how much of a prompt each worker holds.

        The prompt is exactly one of tokens, content hashes, text and messages.

        Args:
            tokens: The prompt's token ids, from 0 to 2**32 - 1.
            content_hashes: The content hashes of the prompt's full blocks, from `kvatlas.content_hashes`.
            text: A completion's prompt. Needs a tokenizer.
            messages: The messages of a chat request. Needs a tokenizer.
            tools: The tools offered in the chat.
            model: The model that the prompt is for.
            routing_group: The routing group.
            lora: The LoRA adapter that the prompt is for. Content hashes already include it.
            salt: The prompt's cache salt. Content hashes already include it.
            top_k: Return only the best `top_k` workers.
            among: Consider only these workers.
            age: True to report how far the service is behind each worker.
            strict: True to leave out ranks that are `unverified`: whose engine may have restarted unnoticed.

        Raises:
            InvalidArgumentError: No prompt or no tokenizer (code "missing_argument"), several prompts (code
                "conflicting_arguments"), a number out of range.
            TokenizerError: The tokenizer failed.
        """
        query = Query(tokens, content_hashes, text, messages, tools, lora, salt)
        prompt = Prompt.of(prepare(query, self._tokenizer))
        scope = Scope.of(model, routing_group, top_k, among, age=age, strict=strict)
        try:
            return self._ask(lambda way: requests.query(prompt, scope, way), scope.keyspace, [prompt])
        except ClientError as error:
            if error.code != "unknown_path":
                raise
        # It is a router.
        explained = self._send(at_router.explain(prompt, scope))
        return at_router.answer(explained, self._send(at_router.streams()), prompt, scope)

    def query_batch(
        self,
        queries: Iterable[Query | Numbers],
        *,
        model: str,
        routing_group: str = DEFAULT_GROUP,
        top_k: int | None = None,
        among: Iterable[str] | None = None,
        strict: bool = False,
    ) -> BatchAnswer:
        """Query up to 1,024 prompts in one request, each given as token ids or as a `Query`.

        Args:
            queries: The prompts.
            model: The model that the prompts are for.
            routing_group: The routing group.
            top_k: Return only the best `top_k` workers for each prompt.
            among: Consider only these workers.
            strict: True to leave out ranks that are `unverified`: whose engine may have restarted unnoticed.

        Raises:
            InvalidArgumentError: For the reasons of `query`.
            TokenizerError: The tokenizer failed.
        """
        prompts = []
        for at, each in enumerate(queries):
            query = each if isinstance(each, Query) else Query(tokens=each)
            name = f"queries[{at}]."
            prompts.append(Prompt.of(prepare(query, self._tokenizer, name), name))
        scope = Scope.of(model, routing_group, top_k, among, strict=strict)
        return self._ask(lambda way: requests.query_batch(prompts, scope, way), scope.keyspace, prompts)

    def register(
        self,
        worker: str,
        endpoint: str,
        *,
        model: str,
        block_size: int,
        routing_group: str = DEFAULT_GROUP,
        rank: int = 0,
        replay_endpoint: str | None = None,
        topic: str = "",
        count_copies: bool = True,
        host_chunk: int | None = None,
        aliases: Iterable[str] | None = None,
        adapters: Iterable[str] | None = None,
    ) -> bool:
        """Register the event stream of a worker's rank.

        Returns True if the stream is new; registering again is allowed.

        Args:
            worker: The worker's name.
            endpoint: The address of the worker's events: `tcp://host:5557`.
            model: The model that the worker serves.
            block_size: Tokens in a block.
            routing_group: The worker's routing group.
            rank: The data-parallel rank.
            replay_endpoint: The replay socket, which is asked for lost batches.
            topic: The topic of the stream's batches, compared as a whole; empty for any.
            count_copies: True if a block announced n times counts as held until removed n times. False for engines that
                announce blocks again without holding another copy.
            host_chunk: Number of blocks that the engine stores together in host memory (`cpu_blocks_per_chunk` in
                vLLM's metrics). None to infer it from the engine's stores, which is impossible if they have block
                hashes only.
            aliases: Other names of the model that queries may give; None for those registered before.
            adapters: LoRA adapters that queries may give as the model; those registered before if None.
        """
        stream = requests.registration(
            worker,
            endpoint,
            model=model,
            block_size=block_size,
            routing_group=routing_group,
            rank=rank,
            replay_endpoint=replay_endpoint,
            topic=topic,
            count_copies=count_copies,
            host_chunk=host_chunk,
            aliases=aliases,
            adapters=adapters,
        )
        return self._send(requests.register(stream))

    def unregister(
        self, worker: str, *, model: str | None = None, routing_group: str | None = None, rank: int | None = None
    ) -> None:
        """Unregister a worker or one of its ranks; with `model` and `routing_group`, only if registered for those."""
        self._send(requests.unregister(worker, model=model, routing_group=routing_group, rank=rank))

    def workers(self, *, model: str | None = None, routing_group: str | None = None) -> list[WorkerStatus]:
        """Return the fleet: each worker and the status of its streams."""
        try:
            fleet = self._send(requests.workers(model=model, routing_group=routing_group))
        except ClientError as error:
            if error.code != "router":
                raise
            engines = self._send(at_router.engines())
            return at_router.workers(engines, self._send(at_router.streams()), model, routing_group)
        self._knowledge.workers(fleet)
        return fleet

    def engines(self) -> list[EngineStatus]:
        """Return the configured engines and streams, with the reason if not registered.

        A router returns its engines.
        """
        try:
            return self._send(requests.engines())
        except ClientError as error:
            if error.code != "router":
                raise
        return self._send(at_router.engine_statuses())

    def explain(self, request: Mapping[str, Any], *, hashes: bool = False) -> dict[str, Any]:
        """Ask a router how its engines compare for a request, without sending the request.

        Args:
            request: The body of a request of any API that the router takes.
            hashes: True to return the content hashes of the prompt's blocks, too.

        Returns:
            The router's answer: `policy`, `model`, `tokens`, `block_size`, `blocks` (0 if the prompt could not be
            read), `terms` and `candidates`, each with `worker`, `rank`, `cached_tokens`, `held_tokens` and `terms`;
            with `hashes` also `content_hashes`, one for each of `blocks`.
        """
        return self._send(at_router.explain_body(request, hashes=hashes))

    def sites(
        self,
        *,
        tokens: Numbers | None = None,
        content_hashes: Numbers | None = None,
        model: str,
        routing_group: str = DEFAULT_GROUP,
        lora: str | None = None,
        salt: str | None = None,
    ) -> SitesAnswer:
        """Ask a service above many sites how much of a prompt each site holds.

        Args:
            tokens: The prompt's token ids, from 0 to 2**32 - 1.
            content_hashes: The content hashes of the prompt's full blocks, from `kvatlas.content_hashes`.
            model: The model that the prompt is for.
            routing_group: The routing group.
            lora: The LoRA adapter that the prompt is for. Content hashes already include it.
            salt: The prompt's cache salt. Content hashes already include it.

        Raises:
            InvalidArgumentError: No prompt (code "missing_argument"), two prompts (code "conflicting_arguments"), a
                number out of range.
        """
        query = Query(tokens, content_hashes, lora=lora, salt=salt)
        query.check()
        return self._send(requests.sites(Prompt.of(query), Keyspace(model, routing_group)))

    def compare_site(
        self,
        site: str,
        *,
        at_least: int,
        at_most: int,
        was: int,
        model: str,
        routing_group: str = DEFAULT_GROUP,
        by_engine: bool = False,
    ) -> bool:
        """Report to a service above many sites how much a queried site really held.

        Returns True if the service knows the site.

        Args:
            site: The site's name.
            at_least: The lower bound from the service's answer, in tokens.
            at_most: The upper bound from the service's answer, in tokens.
            was: The true depth, in tokens.
            model: The model.
            routing_group: The routing group.
            by_engine: True if an engine reported `was` in its answer to the request, False if the site's index did.
        """
        claim = {"site": site, "at_least": at_least, "at_most": at_most, "was": was, "by_engine": by_engine}
        return self._send(requests.compare_site(Keyspace(model, routing_group), **claim))

    def site_statuses(self) -> list[SiteStatus]:
        """Return the status of each site that sends digests to a service above many sites."""
        return self._send(requests.site_statuses())

    def dump(self) -> list[KeyspaceDump]:
        """Return all blocks that the service knows. The result may be large."""
        return self._send(requests.dump())

    def health(self) -> bool:
        """Return True if the service is alive."""
        return self._send(requests.health())

    def ready(self, *, strict: bool = False) -> Readiness:
        """Return whether the service is ready for queries, and what is missing until its answers are complete.

        A service is ready from the first time its answers are complete until it shuts down.

        Args:
            strict: True to count as ready only while answers are complete: not while an engine registered later is
                replayed for the first time.
        """
        return self._send(requests.ready(strict=strict))

    def metrics(self) -> str:
        """Return the metrics in Prometheus' text format."""
        return self._send(requests.metrics())

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait until the service's answers are complete, even if the service is still starting.

        Raises:
            ClientError: The service was not ready within `timeout` seconds (code "not_ready").
            UnreachableError: The service did not answer within `timeout` seconds.
        """
        deadline = Deadline(self.url, timeout)
        while True:
            try:
                ready = self.ready(strict=True)
            except UnreachableError:
                if deadline.passed():
                    raise
            else:
                if ready:
                    return
                deadline.check(ready)
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

    def _ask(self, make: Callable[[Way], Call[A]], keyspace: Keyspace, prompts: list[Prompt]) -> A:
        """Send a query in the best form known, and again in another form if the service requires it."""
        way = self._knowledge.way(keyspace, prompts)
        while True:
            try:
                answer = self._send(make(way))
            except ClientError as error:
                other = self._knowledge.refused(keyspace, way, error)
                if other is None:
                    raise
            else:
                other = self._knowledge.answered(keyspace, way, answer)
                if other is None:
                    return answer
            way = other

    def _send(self, call: Call[T]) -> T:
        with errors(self.url, closed=self._http.is_closed):
            answer = self._http.request(call.method, call.path, content=call.content, headers=call.headers)
        return call.finish(answer)
