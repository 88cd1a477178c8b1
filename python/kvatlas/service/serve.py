"""`kvatlas serve`: run a service until it is stopped."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from kvatlas._native import __version__
from kvatlas._signals import StopSignals, stop_signals
from kvatlas._text import counted
from kvatlas.errors import ServiceError
from kvatlas.service import logs, systemd
from kvatlas.service.config import Config, LogConfig
from kvatlas.service.reread import ChangeableServer, SettingsReader
from kvatlas.service.service import Service

logger = logging.getLogger("kvatlas.service")

_POLL = 0.1  # seconds between looks at readiness, until it is there
AFTER_DRAIN = 30.0
"""Time for the last snapshot and the end of threads, after the time limit for open requests, in seconds."""
_CUT_OFF = 1  # the exit status if requests were cut off
_INTERRUPTED = 128 + signal.SIGINT  # and after Ctrl-C, as shells have it
_R = TypeVar("_R", bound="StoppableServer")


class StoppableServer(ChangeableServer, Protocol):
    """Interface of a service or router that can be stopped."""

    @property
    def address(self) -> str: ...
    @property
    def admin_address(self) -> str | None: ...
    def waiting(self) -> Any | None: ...
    def drain(self) -> bool: ...


def _end_at_once(number: int) -> None:
    os.write(2, b"stopped immediately\n")
    os._exit(_INTERRUPTED if number == signal.SIGINT else _CUT_OFF)


def serve(config: Config | None = None, reader: SettingsReader[Config] | None = None) -> int:
    """Run a service until SIGTERM or SIGINT, then drain it. Must be called in the main thread.

    Returns:
        The exit status: 130 after SIGINT; else 0 if all requests were finished, 1 if some were cut off.

    Raises:
        ConfigError: A setting is invalid.
        ServiceError: The service cannot be started.
    """
    config = config or Config()
    return run_until_stopped(config.log, lambda: Service(config=config, log=True), _greet, _ready, reader)


def run_until_stopped(
    log: LogConfig,
    start: Callable[[], AbstractContextManager[_R]],
    greet: Callable[[_R], None],
    ready: Callable[[_R], None],
    reader: SettingsReader[Any] | None = None,
) -> int:
    """Run the server that `start` returns until SIGTERM or SIGINT, then drain it.

    Must be called in the main thread.

    Args:
        log: The settings of the log.
        start: Starts the server.
        greet: Prints that the server listens.
        ready: Prints that the server is ready.
        reader: Reads the settings again on SIGHUP; None to read only keys and certificates.

    Returns:
        The exit status: 130 after SIGINT; else 0 if all requests were finished, 1 if some were cut off.

    Raises:
        ServiceError: The server cannot be started, or systemd passed a socket that it does not use.
    """
    handler = logs.configure(log)
    try:
        with stop_signals(_end_at_once, reload=True) as stop:
            systemd.take_sockets()
            with start() as running:
                systemd.check_sockets(running.address, running.admin_address)
                greet(running)
                if reader is not None:
                    reader.begin(running.config)
                _until_stopped(running, stop, ready, reader)
                status = _drain(running)
                return _INTERRUPTED if stop.number == signal.SIGINT else status
    finally:
        logging.getLogger("kvatlas").removeHandler(handler)


def _greet(service: Service) -> None:
    config = service.config
    if config.log.format == "json":
        logger.info("listening on %s, %s", service.address, counted(len(service.entries), "engine"))
    else:
        entries = [*(entry.show() for entry in service.entries), *config.discovery.sources]
        more = f" and {len(entries) - 8} more" if len(entries) > 8 else ""
        from_whom = ", ".join(entries[:8]) + more or "none yet: POST /register, or start with --engine URL"
        lines = [f"kvatlas {__version__} is listening at {service.url}"]
        if service.admin_address:
            lines.append(f"health, readiness and metrics also at http://{service.admin_address}")
        logs.write_lines(*lines, f"engines: {from_whom}")
    if not config.http.is_loopback() and config.http.bearer() is None:
        logger.warning(
            "listening on %s without a key: anyone who can connect can query it and change what is registered; "
            "set KVATLAS_KEY or --key-file",
            service.address,
        )


def _until_stopped(
    running: _R, stop: StopSignals, say_ready: Callable[[_R], None], reader: SettingsReader[Any] | None
) -> None:
    ready = False
    while not stop.wait(None if ready else _POLL):
        if stop.take_reload():
            if reader is not None:
                reader.reread(running)
            else:
                with contextlib.suppress(ServiceError):  # the native part has logged it
                    running.reload()
        if not ready and running.waiting() is None:
            ready = True
            say_ready(running)
            systemd.notify("READY=1")


def _ready(service: Service) -> None:
    workers = service.workers()
    streams = sum(len(worker.streams) for worker in workers)
    left = [f"{engine.worker} ({engine.state})" for engine in service.engines() if not engine.is_registered]
    more = f" and {len(left) - 8} more" if len(left) > 8 else ""
    without = f"; not registered: {', '.join(left[:8])}{more}" if left else ""
    logger.info("ready: %s, %s%s", counted(len(workers), "worker"), counted(streams, "stream"), without)


def _drain(running: StoppableServer) -> int:
    config = running.config
    # So that the unit need not have the time that these settings give.
    longest = config.drain_delay + config.drain_timeout + AFTER_DRAIN
    systemd.notify("STOPPING=1", f"EXTEND_TIMEOUT_USEC={round(longest * 1e6)}")
    if config.drain_delay:
        logger.info("stopping: not ready, but accepting requests for %g s", config.drain_delay)
    logger.info("stopping: finishing open requests, for at most %g s", config.drain_timeout)
    done: list[bool] = []
    # In a thread, so that a second signal is handled meanwhile: by the main thread, between waits.
    thread = threading.Thread(target=lambda: done.append(running.drain()), name="kvatlas-drain", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.05)
    if done == [True]:
        logger.info("stopped")
        return 0
    logger.warning("stopped; some requests were cut off")
    return _CUT_OFF
