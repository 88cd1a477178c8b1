"""Common base of a service and a router in this process: addresses, readiness, and shutdown."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import json
import logging
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from kvatlas._http import tls_context
from kvatlas.client import EngineStatus, WorkerStatus
from kvatlas.client.parse import engine_statuses, worker_statuses
from kvatlas.errors import ServiceError
from kvatlas.service import native
from kvatlas.service.config import Config, Engine, Stream
from kvatlas.service.config.section import keys_of
from kvatlas.service.discovery.watch import HOLD, Discovery
from kvatlas.service.listings import ListingReader
from kvatlas.service.peer import SnapshotFetcher

logger = logging.getLogger("kvatlas.service")

_POLL = 0.02  # seconds between looks at readiness during a wait


N = TypeVar("N", bound=native.Native)


class ServerHandle(Generic[N]):
    """A service or router that runs until `close`, or to the end of a `with` or `async with` block."""

    _what: str  # what messages call it

    def __init__(self, native: N, config: Config, discovery: Discovery) -> None:
        self._native = native
        self._config = config
        self._discovery = discovery
        self._url = _url_of(native.address, tls=config.http.tls_cert is not None)
        self._closed = False
        self._lock = threading.Lock()
        self._thread: DiscoveryThread | None = None
        self._fetching: SnapshotFetcher | None = None
        self._listing: ListingReader | None = None

    @property
    def url(self) -> str:
        """The URL of the server, for this machine."""
        return self._url

    @property
    def address(self) -> str:
        """The IP address and port on which the server listens."""
        return self._native.address

    @property
    def admin_address(self) -> str | None:
        """The IP address and port of health, readiness and metrics; None if they have no separate address."""
        return self._native.admin_address

    @property
    def entries(self) -> tuple[Engine | Stream, ...]:
        """The engines and streams of the configuration and the engines file."""
        return self._discovery.entries

    def workers(self) -> list[WorkerStatus]:
        """Return the workers whose events the server receives, each with the status of its streams."""
        return worker_statuses(json.loads(self._native.workers()))

    def engines(self) -> list[EngineStatus]:
        """Return the configured engines and streams, each with the reason if it is not registered.

        The engines file counts as part of the configuration.
        """
        return engine_statuses(json.loads(self._native.engines()))

    def reload(self) -> None:
        """Read keys and certificates from their files again, which also happens a few seconds after they change.

        Raises:
            ServiceError: A key or certificate cannot be used; the old ones stay in use.
        """
        self._native.reload()

    def change(self, config: Config) -> None:
        """Use another configuration, which may differ only in settings that can change without a restart.

        Raises:
            KvatlasError: A setting is invalid.
        """
        http = {
            name: key.kind.native(getattr(config.http, name))
            for key in keys_of(type(config.http))
            if key.reread == "value" and (name := key.path.rpartition(".")[2])
        }
        self._native.change(json.dumps({"http": http, "log": config.log.for_native()}))
        logging.getLogger("kvatlas").setLevel(config.log.level.upper())
        self._config = config

    def replace_entries(self, config: Config) -> bool:
        """Use the engines and streams of another configuration instead of the present ones.

        Returns:
            False if a restart is needed, because there were none at the start.
        """
        if self._thread is None:
            return False
        self._thread.replace_given(config)
        self._config = dataclasses.replace(self._config, engines=config.engines, static_streams=config.static_streams)
        return True

    def waiting(self) -> Any | None:
        """Return the reasons why answers are incomplete, as in `GET /ready`; None if they are complete."""
        text = self._native.ready()
        return None if text is None else json.loads(text)

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait until the first replay of each engine has ended; for a router, until an engine is usable.

        Raises:
            ServiceError: The time limit passed (code "not_ready"), or the server was closed (code "closed").
        """
        deadline = time.monotonic() + timeout
        while not self._is_ready(deadline, timeout):
            time.sleep(_POLL)

    async def wait_ready_async(self, timeout: float = 60.0) -> None:
        """Wait like `wait_ready`, for asyncio.

        Raises:
            ServiceError: The time limit passed (code "not_ready"), or the server was closed (code "closed").
        """
        deadline = time.monotonic() + timeout
        while not self._is_ready(deadline, timeout):
            await asyncio.sleep(_POLL)

    def _is_ready(self, deadline: float, timeout: float) -> bool:
        text = self._native.ready()
        if text is None:
            return True
        if self._closed:
            raise ServiceError(f"the {self._what} is closed", "closed")
        if time.monotonic() > deadline:
            raise ServiceError(f"not ready after {timeout:g} s: still waiting for {text}", "not_ready")
        return False

    def drain(self, timeout: float | None = None) -> bool:
        """Stop the server in order. Returns True if everything ended in time.

        Reports not ready, continues for `config.drain_delay`, then accepts no more connections, finishes open requests
        and ends the streams.

        Args:
            timeout: Time limit in seconds for open requests; None for `config.drain_timeout`.
        """
        config = self._config
        self._native.leave()
        self._stop_discovery()
        return self._native.drain(config.drain_timeout if timeout is None else timeout, config.drain_delay)

    def close(self) -> None:
        """Stop the server at once. Further calls do nothing."""
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

    def _discover(self, to: native.Native) -> DiscoveryThread:
        self._thread = DiscoveryThread(self._discovery, to)
        return self._thread

    def _fetch_snapshot(self, authorities: Path | None = None) -> None:
        """Start to fetch the snapshot of a peer, if one is configured.

        Certificates are checked against `authorities`.
        """
        peer, http = self._config.snapshot.peer, self._config.http
        if peer is None:
            return
        context = None
        if peer.startswith(("https:", "dns+https:")):
            own = None if http.tls_cert is None or http.tls_key is None else (http.tls_cert, http.tls_key)
            context = tls_context(own, None if authorities is None else str(authorities))
        self._fetching = SnapshotFetcher(self._config.snapshot, self._native, self.address, context)

    def _read_listings(self) -> None:
        """Start to read what coordinators list of pools."""
        self._listing = ListingReader(self._config.pools, self._native)

    def _stop_discovery(self) -> None:
        listing, self._listing = self._listing, None
        if listing is not None:
            listing.stop()
        fetching, self._fetching = self._fetching, None
        if fetching is not None:
            fetching.stop()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()


class DiscoveryThread:
    """Thread that runs discovery of engines."""

    def __init__(self, discovery: Discovery, to: native.Native) -> None:
        self._discovery = discovery
        self._native = to
        self._loop = asyncio.new_event_loop()
        discovery.begin(to)
        self._thread = threading.Thread(target=self._run, name="kvatlas-discovery", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._discovery.run())
            except Exception:
                logger.exception("discovery has ended by a fault of its own; engines stay registered as they are")
                self._native.release(HOLD)

    def start(self, work: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Any]:
        """Start a coroutine in the event loop of discovery, from another thread.

        Raises:
            RuntimeError: The loop has ended.
        """
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def replace_given(self, config: Config) -> None:
        """Use the engines and streams of another configuration."""
        self._loop.call_soon_threadsafe(self._discovery.replace_given, config)

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may have ended by itself
            self._loop.call_soon_threadsafe(self._discovery.stop)
        self._thread.join()


def registration_of(stream: Stream, config: Config) -> str:
    """Registration of a stream for the native part, in JSON. `config` has the default values."""
    about = native.about_stream(stream, config)
    return native.registration(stream.worker, stream.endpoint, source=f"stream of {stream.worker}", **about)


def _url_of(address: str, *, tls: bool) -> str:
    """URL, for this machine, of a server that listens at `address`, an IP address and a port."""
    host, _, port = address.rpartition(":")
    # A wildcard address cannot be connected to.
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104
    return f"{'https' if tls else 'http'}://{host}:{port}"
