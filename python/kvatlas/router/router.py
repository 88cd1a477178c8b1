"""A router in this process: the native router, the service that it embeds, and a thread for discovery."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from kvatlas.client import EngineStatus, WorkerStatus
from kvatlas.client.parse import engine_statuses, worker_statuses
from kvatlas.errors import ConfigError, ServiceError
from kvatlas.router import native
from kvatlas.router.config import RouterConfig
from kvatlas.router.policies import check_name, own_policy
from kvatlas.router.tokenizers import resolve
from kvatlas.service.config import Engine, Stream
from kvatlas.service.config.kinds import shown
from kvatlas.service.discovery.watch import HOLD, Discovery
from kvatlas.service.native import registration
from kvatlas.service.service import DiscoveryThread, url_of

_POLL = 0.02  # seconds between looks at readiness, when somebody waits for it


class Router:
    """Stands in front of engines and sends each request where it does the least harm, like `kvatlas router`.

    It runs from when it is made until `close`, or to the end of a `with` or `async with` block. Point any OpenAI client
    at its `url`:

        with Router(engines=["http://host-a:8000", "http://host-b:8000"]) as router:
            router.wait_ready(60)
            client = openai.OpenAI(base_url=f"{router.url}/v1", api_key="none")
    """

    def __init__(
        self,
        engines: Iterable[Engine | str] = (),
        config: RouterConfig | None = None,
        *,
        prefill: Iterable[Engine | str] = (),
        decode: Iterable[Engine | str] = (),
        policy: object | None = None,
        log: bool = False,
    ) -> None:
        """Start the router.

        Args:
            engines: Engines that requests are sent to, besides those of the configuration: `[NAME=]URL`.
            config: All other settings; the defaults if not given.
            prefill: Engines that only compute prompts, for `decode` engines.
            decode: Engines that only answer prompts that `prefill` engines have computed.
            policy: A policy object of yours with `choose(request, candidates)`, instead of `config.router.policy`.
            log: Whether the native part writes its log to stderr, as `config.log` says; the first service or router of
                a process decides. What the Python part logs goes to the logger "kvatlas".

        Raises:
            ConfigError: Something given cannot be used.
            PolicyError: There is no such policy, or it has no such option.
            ServiceError: The router cannot be started: the port is in use, a certificate cannot be read.
            TokenizerError: A tokenizer cannot be read.
        """
        given = config or RouterConfig()
        added: list[Engine] = []
        for name, items in (("engines", engines), ("prefill", prefill), ("decode", decode)):
            if isinstance(items, str):
                raise ConfigError(f"{name} must be a list, got a string: [{shown(items)}]")
            role = None if name == "engines" else name
            added += [_in_role(Engine.of(item), role) for item in items]
        self._config = config = _replace(given, (*given.engines, *added))
        if policy is None and config.router.is_own_policy:
            policy = own_policy(config.router.policy, config.router.seed, dict(config.router.policy_options))
        elif policy is None:
            check_name(config.router.policy)
        tokenizer, tokenizers = resolve(config.router.tokenizer), dict(config.router.tokenizers)
        self._discovery = Discovery(config)
        asks = bool(self._discovery.entries) or config.engines_file is not None
        self._native = native.start(
            config.router_for_native(
                tokenizer,
                {model: path for model, name in tokenizers.items() if (path := resolve(str(name))) is not None},
                holds=(HOLD,) if asks and config.follows_events else (),
                log=log,
            ),
            policy,
        )
        self._closed = False
        self._lock = threading.Lock()
        self._thread: DiscoveryThread | None = None
        try:
            if config.follows_events:
                for stream in config.static_streams:
                    self._register(stream)
            self._url = url_of(self._native.address, tls=config.http.tls_cert is not None)
            if asks:
                self._discovery.watcher = native.Engines(self._native, config)
                to = self._native if config.follows_events else native.Unfollowed(self._native)
                self._thread = DiscoveryThread(self._discovery, to)
        except BaseException:
            self._native.close()
            raise

    @property
    def url(self) -> str:
        """The URL of the router, for this machine; clients of OpenAI's want `url` + `/v1`."""
        return self._url

    @property
    def address(self) -> str:
        """The IP address and port that it listens on."""
        return self._native.address

    @property
    def admin_address(self) -> str | None:
        """Where it listens for health, readiness and metrics only: the IP address and port; None if it does not."""
        return self._native.admin_address

    @property
    def config(self) -> RouterConfig:
        """Its configuration."""
        return self._config

    @property
    def entries(self) -> tuple[Engine | Stream, ...]:
        """The engines and streams from its configuration and its engines file."""
        return self._discovery.entries

    def __repr__(self) -> str:
        count = sum(isinstance(entry, Engine) for entry in self.entries)
        closed = ", closed" if self._closed else ""
        return f"Router(url={self.url!r}, policy={self._config.router.policy!r}, engines={count:,}{closed})"

    # The fleet

    def add_engine(self, engine: Engine | str, *, role: str | None = None) -> None:
        """Send requests to an engine from now on, besides those of the configuration. Its events are not followed.

        Raises:
            ConfigError: It is not `[NAME=]URL`.
            ServiceError: It cannot be used.
        """
        about = self._config.engine_for_native(_in_role(Engine.of(engine), role))
        self._native.set_engine(json.dumps(about))

    def remove_engine(self, name: str) -> None:
        """Send an engine no more requests; those under way go on.

        Raises:
            ServiceError: There is no such engine (code "unknown_engine").
        """
        self._native.remove_engine(name)

    def drain_engine(self, name: str, *, drained: bool = True) -> None:
        """Send an engine no new requests, or do so again.

        Raises:
            ServiceError: There is no such engine (code "unknown_engine").
        """
        self._native.drain_engine(name, drained)

    def state(self) -> Any:
        """The engines with their health and their work, as in `GET /workers`."""
        return json.loads(self._native.state())

    def decisions(self, limit: int = 100) -> Any:
        """The last decisions, as in `GET /decisions`."""
        return json.loads(self._native.decisions(limit))

    def workers(self) -> list[WorkerStatus]:
        """What is followed: each worker and the status of its event streams. Empty where no events are followed."""
        return worker_statuses(json.loads(self._native.workers()))

    def engines(self) -> list[EngineStatus]:
        """How far discovery is with the engines' events: registered or not, and why not."""
        return engine_statuses(json.loads(self._native.engines()))

    # Life

    def reload(self) -> None:
        """Read keys and certificates from their files again, as it does by itself a few seconds after they change.

        Raises:
            ServiceError: One of them cannot be used; all stays as it was.
        """
        self._native.reload()

    def waiting(self) -> Any | None:
        """What is waited for until decisions are exact: engines, their first replays; None if nothing is."""
        text = self._native.ready()
        return None if text is None else json.loads(text)

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait until an engine can take requests, and the first replay of each has finished or was given up.

        Raises:
            ServiceError: That took too long (code "not_ready"), or the router was closed (code "closed").
        """
        deadline = time.monotonic() + timeout
        while not self._is_ready(deadline, timeout):
            time.sleep(_POLL)

    async def wait_ready_async(self, timeout: float = 60.0) -> None:
        """The same for asyncio.

        Raises:
            ServiceError: That took too long (code "not_ready"), or the router was closed (code "closed").
        """
        deadline = time.monotonic() + timeout
        while not self._is_ready(deadline, timeout):
            await asyncio.sleep(_POLL)

    def _is_ready(self, deadline: float, timeout: float) -> bool:
        text = self._native.ready()
        if text is None:
            return True
        if self._closed:
            raise ServiceError("the router is closed", "closed")
        if time.monotonic() > deadline:
            raise ServiceError(f"not ready after {timeout:g} s: still waiting for {text}", "not_ready")
        return False

    def drain(self, timeout: float | None = None) -> bool:
        """Stop in order. True if everything ended in time.

        Reports not ready, continues for `config.drain_delay`, then accepts no more connections and finishes open
        requests.

        Args:
            timeout: Time limit in seconds for open requests; `config.drain_timeout` if not given.
        """
        config = self._config
        self._native.leave()
        self._stop_discovery()
        return self._native.drain(config.drain_timeout if timeout is None else timeout, config.drain_delay)

    def close(self) -> None:
        """Stop at once. Closing again does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._stop_discovery()
        self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)  # it waits for threads to end

    def _register(self, stream: Stream) -> None:
        config = self._config
        stream.check(model=config.model, block_size=config.block_size)
        self._native.register(
            registration(
                stream.worker,
                stream.endpoint,
                model=stream.model or config.model or "",
                block_size=stream.block_size or config.block_size or 0,
                routing_group=stream.routing_group or config.routing_group,
                rank=stream.rank,
                replay_endpoint=stream.replay_endpoint,
                topic=stream.topic,
                count_copies=stream.count_copies,
                aliases=stream.aliases,
                adapters=stream.adapters,
                source=f"stream of {stream.worker}",
            )
        )

    def _stop_discovery(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()


def _in_role(engine: Engine, role: str | None) -> Engine:
    return engine if role is None else dataclasses.replace(engine, role=role)


def _replace(config: RouterConfig, engines: tuple[Engine, ...]) -> RouterConfig:
    return config if config.engines == engines else RouterConfig(**{**vars(config), "engines": engines})
