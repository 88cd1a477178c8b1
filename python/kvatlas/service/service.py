"""A service in this process: the native service, and a thread for discovery."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from kvatlas._http import ClientCert, tls_context
from kvatlas.client import AsyncClient, Client, EngineStatus, WorkerStatus
from kvatlas.client.parse import engine_statuses, worker_statuses
from kvatlas.errors import ConfigError, ServiceError
from kvatlas.service import native
from kvatlas.service.config import Config, Engine, Stream
from kvatlas.service.config.kinds import shown
from kvatlas.service.discovery.watch import HOLD, Discovery
from kvatlas.tokenize import AnyTokenizer, Tokenizer

logger = logging.getLogger("kvatlas.service")

_POLL = 0.02  # seconds between looks at readiness, when somebody waits for it


class Service:
    """Follows engines and answers over HTTP how much of a prompt each worker holds, like `kvatlas serve`.

    It runs from when it is made until `close`, or to the end of a `with` or `async with` block:

        with Service(engines=["http://host-a:8000"]) as service:
            service.wait_ready(60)
            answer = service.client().query(tokens=tokens, model="my-model")
    """

    def __init__(
        self,
        engines: Iterable[Engine | str] = (),
        streams: Iterable[Stream | str] = (),
        config: Config | None = None,
        *,
        log: bool = False,
    ) -> None:
        """Start the service.

        Args:
            engines: Engines that are asked where their events are, besides those of the configuration: `[NAME=]URL`.
            streams: Streams registered by hand, besides those of the configuration:
                `WORKER=tcp://HOST:PORT,model=...,block_size=...`.
            config: All other settings; the defaults if not given.
            log: Whether the native part writes its log to stderr, as `config.log` says; the first service of a process
                decides. What the Python part logs goes to the logger "kvatlas".

        Raises:
            ConfigError: Something given cannot be used.
            ServiceError: The service cannot be started: the port is in use, a certificate cannot be read.
        """
        given = config or Config()
        for name, items in (("engines", engines), ("streams", streams)):
            if isinstance(items, str):
                raise ConfigError(f"{name} must be a list, got a string: [{shown(items)}]")
        more = {
            "engines": (*given.engines, *map(Engine.of, engines)),
            "static_streams": (*given.static_streams, *map(Stream.of, streams)),
        }
        self._config = config = _replace(given, more)
        self._discovery = Discovery(config)
        follows = bool(self._discovery.entries) or config.engines_file is not None
        self._native = native.start(config.for_native(holds=(HOLD,) if follows else (), log=log))
        self._closed = False
        self._lock = threading.Lock()
        self._clients: list[Client] = []
        self._thread: DiscoveryThread | None = None
        try:
            # Here and not only by discovery, so that what cannot be registered is an error now.
            for stream in config.static_streams:
                self._register(stream)
            self._url = url_of(self._native.address, tls=config.http.tls_cert is not None)
            if follows:
                self._thread = DiscoveryThread(self._discovery, self._native)
        except BaseException:
            self._native.close()
            raise

    @property
    def url(self) -> str:
        """The URL of the service, for this machine."""
        return self._url

    def __repr__(self) -> str:
        kinds = {kind: sum(isinstance(entry, kind) for entry in self.entries) for kind in (Engine, Stream)}
        closed = ", closed" if self._closed else ""
        return f"Service(url={self.url!r}, engines={kinds[Engine]:,}, streams={kinds[Stream]:,}{closed})"

    @property
    def address(self) -> str:
        """The IP address and port that the service listens on."""
        return self._native.address

    @property
    def admin_address(self) -> str | None:
        """Where it listens for health, readiness and metrics only: the IP address and port; None if it does not."""
        return self._native.admin_address

    @property
    def config(self) -> Config:
        """Its configuration."""
        return self._config

    @property
    def entries(self) -> tuple[Engine | Stream, ...]:
        """The engines and streams from its configuration and its engines file."""
        return self._discovery.entries

    def client(
        self, *, timeout: float = 30.0, tokenizer: Tokenizer | None = None, client_cert: ClientCert | None = None
    ) -> Client:
        """A client of the service, closed together with it.

        Args:
            timeout: Seconds that an answer may take.
            tokenizer: Makes tokens of text and messages.
            client_cert: The PEM files of a certificate and of its key; needed if the service has `http.tls_client_ca`.

        Raises:
            InvalidArgumentError: The certificate cannot be used (code "invalid_certificate").
            ServiceError: The service is closed (code "closed").
        """
        made = Client(self.url, timeout=timeout, tokenizer=tokenizer, **self._trust(client_cert))
        with self._lock:
            if not self._closed:
                self._clients.append(made)
                return made
        made.close()
        raise ServiceError("the service is closed", "closed")

    def async_client(
        self, *, timeout: float = 30.0, tokenizer: AnyTokenizer | None = None, client_cert: ClientCert | None = None
    ) -> AsyncClient:
        """A client of the service for asyncio. Close it yourself: `async with service.async_client() as client`.

        Args:
            timeout: Seconds that an answer may take.
            tokenizer: Makes tokens of text and messages.
            client_cert: The PEM files of a certificate and of its key; needed if the service has `http.tls_client_ca`.

        Raises:
            InvalidArgumentError: The certificate cannot be used (code "invalid_certificate").
            ServiceError: The service is closed (code "closed").
        """
        if self._closed:
            raise ServiceError("the service is closed", "closed")
        return AsyncClient(self.url, timeout=timeout, tokenizer=tokenizer, **self._trust(client_cert))

    def _trust(self, client_cert: ClientCert | None) -> dict[str, Any]:
        """What a client needs: the key, and a context that trusts the certificate and shows the client's own."""
        context: ssl.SSLContext | None = None
        if self._config.http.tls_cert is not None:
            context = tls_context(client_cert, str(self._config.http.tls_cert))
            context.check_hostname = False  # it is asked by its address; the certificate is its own
        http = self._config.http
        return {"key": http.admin_bearer() or http.bearer(), "ssl_context": context}

    def register(
        self,
        worker: str,
        endpoint: str,
        *,
        model: str | None = None,
        block_size: int | None = None,
        routing_group: str | None = None,
        rank: int = 0,
        replay_endpoint: str | None = None,
        topic: str = "",
        count_copies: bool = True,
        aliases: Iterable[str] | None = None,
        adapters: Iterable[str] | None = None,
    ) -> bool:
        """Register a rank of a worker. Returns True if it is new. The arguments are those of `Client.register`.

        Raises:
            ConfigError: Something given cannot be used.
            ServiceError: It was refused; the code is that of the HTTP interface.
        """
        entry = Stream(
            worker,
            endpoint,
            replay_endpoint,
            rank,
            topic,
            model,
            block_size,
            routing_group,
            count_copies,
            None if aliases is None else tuple(aliases),
            None if adapters is None else tuple(adapters),
        )
        entry.check(model=self._config.model, block_size=self._config.block_size)
        return self._register(entry)

    def unregister(self, worker: str, *, rank: int | None = None) -> int:
        """Unregister a worker, or one rank of it; returns the number of ranks.

        An engine or stream of the configuration or of the file is registered again when it is next looked at.

        Raises:
            ServiceError: It is not registered.
        """
        return self._native.unregister(worker, rank)

    def reload(self) -> None:
        """Read keys and certificates from their files again, as it does by itself a few seconds after they change.

        Raises:
            ServiceError: One of them cannot be used; all stays as it was.
        """
        self._native.reload()

    def workers(self) -> list[WorkerStatus]:
        """The fleet: each worker and the status of its streams."""
        return worker_statuses(json.loads(self._native.workers()))

    def engines(self) -> list[EngineStatus]:
        """The engines and streams of the configuration and the engines file, registered or not, and why not."""
        return engine_statuses(json.loads(self._native.engines()))

    def waiting(self) -> Any | None:
        """What complete answers are waiting for, as in `GET /ready?strict=1`; None if they are complete."""
        text = self._native.ready()
        return None if text is None else json.loads(text)

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait until the first replay of each engine has finished or was given up.

        Raises:
            ServiceError: That took too long (code "not_ready"), or the service was closed (code "closed").
        """
        deadline = time.monotonic() + timeout
        while not self._is_ready(deadline, timeout):
            time.sleep(_POLL)

    async def wait_ready_async(self, timeout: float = 60.0) -> None:
        """The same for asyncio.

        Raises:
            ServiceError: That took too long (code "not_ready"), or the service was closed (code "closed").
        """
        deadline = time.monotonic() + timeout
        while not self._is_ready(deadline, timeout):
            await asyncio.sleep(_POLL)

    def _is_ready(self, deadline: float, timeout: float) -> bool:
        text = self._native.ready()
        if text is None:
            return True
        if self._closed:
            raise ServiceError("the service is closed", "closed")
        if time.monotonic() > deadline:
            raise ServiceError(f"not ready after {timeout:g} s: still waiting for {text}", "not_ready")
        return False

    def drain(self, timeout: float | None = None) -> bool:
        """Stop in order. True if everything ended in time.

        Reports not ready, continues for `config.drain_delay`, then accepts no more connections, finishes open requests
        and ends the streams.

        Args:
            timeout: Time limit in seconds for open requests; `config.drain_timeout` if not given.
        """
        config = self._config
        self._native.leave()
        self._stop_discovery()
        return self._native.drain(config.drain_timeout if timeout is None else timeout, config.drain_delay)

    def close(self) -> None:
        """Stop the service at once. Closing again does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            clients, self._clients = self._clients, []
        self._stop_discovery()
        for made in clients:
            made.close()
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

    def _register(self, stream: Stream) -> bool:
        return self._native.register(
            native.registration(
                stream.worker,
                stream.endpoint,
                model=stream.model or self._config.model or "",
                block_size=stream.block_size or self._config.block_size or 0,
                routing_group=stream.routing_group or self._config.routing_group,
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


class DiscoveryThread:
    """Discovery in its own thread."""

    def __init__(self, discovery: Discovery, to: native.Native) -> None:
        self._discovery = discovery
        self._native = to
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="kvatlas-discovery", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._discovery.run(self._native))
            except Exception:
                logger.exception("discovery has ended by a fault of its own; engines stay registered as they are")
                self._native.release(HOLD)

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may have ended by itself
            self._loop.call_soon_threadsafe(self._discovery.stop)
        self._thread.join()


def _replace(config: Config, more: dict[str, Any]) -> Config:
    # Not dataclasses.replace: an equal configuration stays the same object.
    if all(getattr(config, name) == value for name, value in more.items()):
        return config
    return Config(**{**vars(config), **more})


def url_of(address: str, *, tls: bool) -> str:
    """The URL for this machine of a server that listens at `address`, an IP address and a port."""
    host, _, port = address.rpartition(":")
    # All addresses are no address to ask at.
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104
    return f"{'https' if tls else 'http'}://{host}:{port}"
