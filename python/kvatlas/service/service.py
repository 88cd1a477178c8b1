"""A service within this process."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any

from kvatlas._http import ClientCert, tls_context
from kvatlas.client import AsyncClient, Client
from kvatlas.errors import ConfigError, ServiceError
from kvatlas.service import native
from kvatlas.service.config import Config, Engine, Stream
from kvatlas.service.config.kinds import shown
from kvatlas.service.digests import DigestPusher
from kvatlas.service.discovery.watch import HOLD, Discovery
from kvatlas.service.server_handle import ServerHandle, registration_of
from kvatlas.tokenize import AnyTokenizer, Tokenizer


class Service(ServerHandle[native.NativeService]):
    """A service in this process, which answers how much of a prompt each worker holds, like `kvatlas serve`.

    It runs from its creation until `close`, or to the end of a `with` or `async with` block:

        with Service(engines=["http://host-a:8000"]) as service:
            service.wait_ready(60)
            answer = service.client().query(tokens=tokens, model="my-model")
    """

    _what = "service"

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
            engines: Engines that are asked for the addresses of their events, besides those of the configuration:
                `[NAME=]URL`.
            streams: Streams registered by hand, besides those of the configuration:
                `WORKER=tcp://HOST:PORT,model=...,block_size=...`.
            config: All other settings; None for the defaults.
            log: True to write the native part's log to stderr, as set by `config.log`; the first service of a process
                decides. The Python part logs to the logger "kvatlas".

        Raises:
            ConfigError: An argument or a setting is invalid.
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
        discovery = Discovery(config)
        follows = discovery.has_any
        started = native.start(config.for_native(holds=(HOLD,) if follows else (), log=log))
        super().__init__(started, config, discovery)
        self._clients: list[Client] = []
        self._pushing: DigestPusher | None = None
        try:
            self._fetch_snapshot()
            self._push_digests()
            self._read_listings()
            # Here and not only by discovery, so that what cannot be registered is an error now.
            for stream in config.static_streams:
                self._register(stream)
            if follows:
                self._discover(self._native)
        except BaseException:
            self._native.close()
            raise

    def __repr__(self) -> str:
        kinds = {kind: sum(isinstance(entry, kind) for entry in self.entries) for kind in (Engine, Stream)}
        closed = ", closed" if self._closed else ""
        return f"Service(url={self.url!r}, engines={kinds[Engine]:,}, streams={kinds[Stream]:,}{closed})"

    @property
    def config(self) -> Config:
        """The configuration of the service."""
        return self._config

    def client(
        self, *, timeout: float = 30.0, tokenizer: Tokenizer | None = None, client_cert: ClientCert | None = None
    ) -> Client:
        """Create a client of the service, closed together with it.

        Args:
            timeout: Seconds that an answer may take.
            tokenizer: Converts text and messages to tokens.
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
        """Create a client of the service for asyncio, to be closed by the caller.

        Use it as `async with service.async_client() as client`.

        Args:
            timeout: Seconds that an answer may take.
            tokenizer: Converts text and messages to tokens.
            client_cert: The PEM files of a certificate and of its key; needed if the service has `http.tls_client_ca`.

        Raises:
            InvalidArgumentError: The certificate cannot be used (code "invalid_certificate").
            ServiceError: The service is closed (code "closed").
        """
        if self._closed:
            raise ServiceError("the service is closed", "closed")
        return AsyncClient(self.url, timeout=timeout, tokenizer=tokenizer, **self._trust(client_cert))

    def _trust(self, client_cert: ClientCert | None) -> dict[str, Any]:
        """Credentials of a client: the key, and a TLS context with the service's and the client's own certificate."""
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
        host_chunk: int | None = None,
        aliases: Iterable[str] | None = None,
        adapters: Iterable[str] | None = None,
    ) -> bool:
        """Register a rank of a worker with the service, with the arguments of `Client.register`.

        Returns True if the rank is new.

        Raises:
            ConfigError: An argument is not valid.
            ServiceError: The registration was refused, with the code of the HTTP interface.
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
            host_chunk,
        )
        entry.check(model=self._config.model, block_size=self._config.block_size)
        return self._register(entry)

    def unregister(self, worker: str, *, rank: int | None = None) -> int:
        """Unregister a worker, or one rank of it. Returns the number of ranks that were unregistered.

        An engine or stream that is listed in the configuration or in the engines file is registered again at the next
        look.

        Raises:
            ServiceError: The worker or rank is not registered.
        """
        return self._native.unregister(worker, rank)

    def close(self) -> None:
        """Stop the service at once. Further calls have no effect."""
        super().close()
        with self._lock:  # after which no more are made
            clients, self._clients = self._clients, []
        for made in clients:
            made.close()

    def _push_digests(self) -> None:
        if self._config.sites.url is not None:
            self._pushing = DigestPusher(self._config.sites, self._native)

    def _stop_discovery(self) -> None:
        pushing, self._pushing = self._pushing, None
        if pushing is not None:
            pushing.stop()
        super()._stop_discovery()

    def _register(self, stream: Stream) -> bool:
        return self._native.register(registration_of(stream, self._config))


def _replace(config: Config, more: dict[str, Any]) -> Config:
    # Not dataclasses.replace: an equal configuration stays the same object.
    if all(getattr(config, name) == value for name, value in more.items()):
        return config
    return Config(**{**vars(config), **more})
