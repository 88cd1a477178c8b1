"""A service in this process: the native one, and a thread that asks the engines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from kvatlas.client import Client, WorkerStatus
from kvatlas.client.answers import worker_statuses
from kvatlas.errors import ServiceError, SettingsError
from kvatlas.service import native
from kvatlas.service.discovery.watch import HOLD, Discovery
from kvatlas.service.engines import Engine, Worker
from kvatlas.service.kinds import shown
from kvatlas.service.settings import Settings

logger = logging.getLogger("kvatlas.service")

_POLL = 0.02  # seconds between looks at readiness, when somebody waits for it


class Service:
    """Follows engines and answers over HTTP which of them holds how much of a prompt. `kvatlas serve` is this.

    It runs from when it is made until `close`, or to the end of a `with` block:

        with Service(engines=["http://host-a:8000"]) as service:
            service.wait_ready(60)
            answer = service.client().query(tokens, model="my-model")
    """

    def __init__(
        self,
        engines: Iterable[Engine | str] = (),
        workers: Iterable[Worker | str] = (),
        settings: Settings | None = None,
        *,
        log: bool = False,
        start: Callable[[dict[str, Any]], native.Native] = native.start,
    ) -> None:
        """Start it.

        Args:
            engines: Engines to be asked where their events are, besides those of the settings: `[NAME=]URL`.
            workers: Workers registered by hand, besides those: `ID=tcp://HOST:PORT,model=...,block_size=...`.
            settings: All the rest; the defaults if not given.
            log: Whether the native part writes its log to stderr, as the settings have it; the first service of a
                process decides. What this side says goes to the logger "kvatlas".
            start: What starts the native service.

        Raises:
            SettingsError: Something given cannot be used.
            ServiceError: The service cannot be started: the port is in use, a certificate cannot be read.
        """
        given = settings or Settings()
        for name, items in (("engines", engines), ("workers", workers)):
            if isinstance(items, str):
                raise SettingsError(f"{name} must be a list, got a string: [{shown(items)}]")
        more = {
            "engines": (*given.engines, *map(Engine.of, engines)),
            "workers": (*given.workers, *map(Worker.of, workers)),
        }
        self._settings = settings = _replace(given, more)
        self._discovery = Discovery(settings)
        follows = bool(self._discovery.entries) or settings.engines_file is not None
        self._native = start(settings.for_native(holds=(HOLD,) if follows else (), log=log))
        self._closed = False
        self._lock = threading.Lock()
        self._clients: list[Client] = []
        self._thread: _Thread | None = None
        try:
            # Here and not only by discovery, so that what cannot be registered is an error now.
            for worker in settings.workers:
                self._register(worker)
            self._url = _url(self._native.address, tls=settings.http.tls_cert is not None)
            if follows:
                self._thread = _Thread(self._discovery, self._native)
        except BaseException:
            self._native.close()
            raise

    @property
    def url(self) -> str:
        """Where it answers, for this machine."""
        return self._url

    @property
    def address(self) -> str:
        """Where it listens: the IP address and port."""
        return self._native.address

    @property
    def settings(self) -> Settings:
        """What it was told."""
        return self._settings

    @property
    def entries(self) -> tuple[Engine | Worker, ...]:
        """The engines and workers that it follows by its settings and its file."""
        return self._discovery.entries

    def client(self, *, timeout: float = 30.0) -> Client:
        """A client of it, that is closed with it.

        Raises:
            ServiceError: The service is closed (code "closed").
        """
        context: ssl.SSLContext | None = None
        if self._settings.http.tls_cert is not None:
            context = ssl.create_default_context(cafile=str(self._settings.http.tls_cert))
            context.check_hostname = False  # it is asked by its address; the certificate is its own
        made = Client(self.url, key=self._settings.http.bearer(), timeout=timeout, ssl_context=context)
        with self._lock:
            if not self._closed:
                self._clients.append(made)
                return made
        made.close()
        raise ServiceError("the service is closed", "closed")

    def register(
        self,
        worker: str,
        endpoint: str,
        *,
        model: str | None = None,
        block_size: int | None = None,
        group: str | None = None,
        rank: int = 0,
        replay: str | None = None,
        topic: str = "",
    ) -> bool:
        """Register a worker's rank. True if it was not registered.

        Raises:
            SettingsError: Something given cannot be used.
            ServiceError: It was refused; the code is that of the HTTP interface.
        """
        entry = Worker(worker, endpoint, replay, rank, topic, model, block_size, group)
        entry.check(model=self._settings.model, block_size=self._settings.block_size)
        return self._register(entry)

    def unregister(self, worker: str, *, rank: int | None = None) -> int:
        """Unregister a worker, or one rank of it; returns the number of ranks.

        An engine or worker of the settings or of the file is registered again when it is looked at next.

        Raises:
            ServiceError: It is not registered.
        """
        return self._native.unregister(worker, rank)

    def workers(self) -> list[WorkerStatus]:
        """The fleet: each worker, its streams, and how they are."""
        return worker_statuses(json.loads(self._native.workers()))

    def waiting(self) -> Any | None:
        """What readiness waits for, as `GET /ready` has it; None if ready."""
        text = self._native.ready()
        return None if text is None else json.loads(text)

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait until the first replay of each engine is through or given up.

        Raises:
            ServiceError: That took too long (code "not_ready"), or the service was closed (code "closed").
        """
        deadline = time.monotonic() + timeout
        while (text := self._native.ready()) is not None:
            if self._closed:
                raise ServiceError("the service is closed", "closed")
            if time.monotonic() > deadline:
                raise ServiceError(f"not ready after {timeout:g} s: it waits for {text}", "not_ready")
            time.sleep(_POLL)

    def drain(self, timeout: float | None = None) -> bool:
        """Stop taking connections, finish the requests that run, end the streams. True if all ended in time."""
        self._stop_discovery()
        return self._native.drain(self._settings.drain_timeout if timeout is None else timeout)

    def close(self) -> None:
        """End it at once. Doing so twice is fine."""
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

    def _register(self, worker: Worker) -> bool:
        return self._native.register(
            native.registration(
                worker.id,
                worker.endpoint,
                model=worker.model or self._settings.model or "",
                block_size=worker.block_size or self._settings.block_size or 0,
                group=worker.routing_group or self._settings.routing_group,
                rank=worker.rank,
                replay=worker.replay,
                topic=worker.topic,
                source=f"worker {worker.id}",
            )
        )

    def _stop_discovery(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()


class _Thread:
    """Discovery in a thread of its own."""

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


def _replace(settings: Settings, more: dict[str, Any]) -> Settings:
    # Not dataclasses.replace: equal settings stay the same object.
    if all(getattr(settings, name) == value for name, value in more.items()):
        return settings
    return Settings(**{**vars(settings), **more})


def _url(address: str, *, tls: bool) -> str:
    host, _, port = address.rpartition(":")
    # All addresses are no address to ask at.
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104
    return f"{'https' if tls else 'http'}://{host}:{port}"
