"""Interface of the native service."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Protocol

from kvatlas.client import requests
from kvatlas.errors import ServiceError
from kvatlas.service.config import Config, Stream


class Native(Protocol):
    """Methods of `kvatlas._native.Service` that `RouterServer` has, too. All may be called from any thread."""

    @property
    def address(self) -> str: ...
    @property
    def admin_address(self) -> str | None: ...
    def register(self, registration: str, announced_by: str | None = None, /) -> bool: ...
    def check_allowed(self, endpoint: str, announced_by: str, /) -> None: ...
    def unregister(self, worker: str, rank: int | None = None, /) -> int: ...
    def change(self, settings: str, /) -> None: ...
    def reload(self) -> None: ...
    def report_engine(self, report: str, /) -> None: ...
    def report_source(self, report: str, /) -> None: ...
    def forget_engine(self, worker: str, rank: int | None = None, /) -> bool: ...
    def other_block_size(self, worker: str, /) -> int | None: ...
    def restarted(self) -> list[str]: ...
    def begin_pool_look(self, pool: str, /) -> bool: ...
    def end_pool_look(self, pool: str, keys: bytes | None, publishes: bool, /) -> str | None: ...
    def wants_pool_look(self, pool: str, /) -> bool: ...
    def sole_tokens(self) -> str: ...
    def engines(self) -> str: ...
    def workers(self) -> str: ...
    def ready(self) -> str | None: ...
    def release(self, hold: str, /) -> bool: ...
    def load_snapshot(self, file: str, url: str, /) -> int: ...
    def no_snapshot(self, why: str | None = None, /) -> None: ...
    def leave(self) -> None: ...
    def drain(self, timeout: float, delay: float = 0.0, /) -> bool: ...
    def close(self) -> None: ...


class NativeService(Native, Protocol):
    """Methods of `kvatlas._native.Service` that only the service has."""

    def site_digests(
        self, site: str, whole: Iterable[tuple[str, str]] = (), /
    ) -> list[tuple[str, str, int, bytes]]: ...


def start(config: dict[str, Any]) -> NativeService:
    """Start the native service.

    Raises:
        ServiceError: The address cannot be bound, a certificate cannot be used, or this build has no service.
    """
    try:
        from kvatlas._native import Service  # noqa: PLC0415 - the command line works without
    except ImportError as error:
        raise ServiceError("this build of kvatlas has no service", "not_started") from error
    made: NativeService = Service(json.dumps(config))
    return made


def registration(worker: str, endpoint: str, *, source: str, **about: Any) -> str:
    """Registration of a stream for the native service, in JSON.

    `about`: the fields of a client's registration; `source`: the origin of the registration.
    """
    return json.dumps({**requests.registration(worker, endpoint, **about), "source": source})


def about_stream(stream: Stream, config: Config) -> dict[str, Any]:
    """Fields of a stream's registration without its worker and endpoint. `config` has the default values."""
    return {
        "model": stream.model or config.model or "",
        "block_size": stream.block_size or config.block_size or 0,
        "routing_group": stream.routing_group or config.routing_group,
        "rank": stream.rank,
        "replay_endpoint": stream.replay_endpoint,
        "topic": stream.topic,
        "count_copies": stream.count_copies,
        "host_chunk": stream.host_chunk,
        "aliases": stream.aliases,
        "adapters": stream.adapters,
    }
