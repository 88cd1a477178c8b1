"""Interface of the native router."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Collection
from typing import Any, Protocol

from kvatlas.errors import ServiceError
from kvatlas.router.config import RouterConfig
from kvatlas.service.config import Engine
from kvatlas.service.discovery.probe import EngineDescription
from kvatlas.service.native import Native


class NativeRouter(Native, Protocol):
    """The interface of `kvatlas._native.RouterServer`. Every call may be made from any thread."""

    @property
    def follows(self) -> bool: ...
    def set_engine(self, engine: str, /) -> None: ...
    def remove_engine(self, name: str, /) -> None: ...
    def drain_engine(self, name: str, drained: bool, by_discovery: bool = False, /) -> None: ...
    def state(self) -> str: ...
    def decisions(self, limit: int, /) -> str: ...


def start(config: dict[str, Any], policy: object | None = None) -> NativeRouter:
    """Start the native router.

    Args:
        config: The result of `RouterConfig.router_for_native`.
        policy: An object with `choose(request, candidates)`, instead of a policy by name.

    Raises:
        ServiceError: The address cannot be bound, a certificate or a tokenizer cannot be used, or this build has no
            router.
        PolicyError: The policy or one of its options is unknown.
    """
    try:
        from kvatlas._native import RouterServer  # noqa: PLC0415 - the command line works without
    except ImportError as error:
        raise ServiceError("this build of kvatlas has no router", "not_started") from error
    made: NativeRouter = RouterServer(json.dumps(config), policy)
    return made


class EngineRegistry:
    """Adapter of the native router for discovery without events: it registers engines only."""

    def __init__(self, native: NativeRouter) -> None:
        self._native = native
        self.address, self.admin_address = native.address, native.admin_address

    def register(self, registration: str, announced_by: str | None = None, /) -> bool:
        return False

    def check_allowed(self, endpoint: str, announced_by: str, /) -> None:
        return None

    def unregister(self, worker: str, rank: int | None = None, /) -> int:
        return 0

    def report_engine(self, report: str, /) -> None:
        return None

    def report_source(self, report: str, /) -> None:
        self._native.report_source(report)

    def forget_engine(self, worker: str, rank: int | None = None, /) -> bool:
        return False

    def other_block_size(self, worker: str, /) -> int | None:
        return None

    def release(self, hold: str, /) -> bool:
        return False

    def load_snapshot(self, file: str, url: str, /) -> int:
        return 0

    def no_snapshot(self, why: str | None = None, /) -> None:
        return None

    def reload(self) -> None:
        self._native.reload()

    def engines(self) -> str:
        return self._native.engines()

    def workers(self) -> str:
        return self._native.workers()

    def ready(self) -> str | None:
        return self._native.ready()

    def leave(self) -> None:
        self._native.leave()

    def drain(self, timeout: float, delay: float = 0.0, /) -> bool:
        return self._native.drain(timeout, delay)

    def close(self) -> None:
        self._native.close()


class Engines:
    """Watcher that keeps the native router's engines as discovery finds them.

    An engine whose source says that it is not ready gets no requests: it is drained, or, if it was never ready, not in
    the router yet.
    """

    def __init__(self, native: NativeRouter, config: RouterConfig) -> None:
        self._native = native
        self._config = config
        self._told: dict[str, dict[str, Any]] = {}
        self._unready: set[str] = set()  # not in the router yet
        self._lock = threading.Lock()

    def listed(self, engine: Engine, ranks: Collection[int], /) -> None:
        """Add or change an engine of the list, so that it gets requests."""
        self._tell(engine.worker, self._config.engine_for_native(engine, ranks))

    def found(self, engine: Engine, found: EngineDescription | None, /) -> None:
        """Update an engine with its ranks and block size, once it has answered."""
        about = dict(self._config.engine_for_native(engine))
        if found is not None:
            about["ranks"] = found.ranks
            if found.rank_header is not None:
                about["rank_header"] = found.rank_header
            about["block_size"] = found.block_size
            about.setdefault("model", found.model)
        elif engine.worker in self._told:
            return  # nothing new
        self._tell(engine.worker, about)

    def held(self, engine: Engine, held: bool, /) -> None:
        """Send an engine no new requests, or new ones again, as its source says."""
        name = engine.worker
        with self._lock:
            if held and name not in self._told:
                self._unready.add(name)
            elif name in self._unready:
                if not held:
                    self._unready.discard(name)
                    self._native.set_engine(json.dumps(self._told[name]))
            else:
                with contextlib.suppress(ServiceError):  # an operator may have removed it
                    self._native.drain_engine(name, held, True)

    def left(self, engine: Engine, /) -> None:
        """Remove an engine that has left the list."""
        with self._lock:
            self._told.pop(engine.worker, None)
            self._unready.discard(engine.worker)
            with contextlib.suppress(ServiceError):  # it may be removed already
                self._native.remove_engine(engine.worker)

    def _tell(self, name: str, about: dict[str, Any]) -> None:
        with self._lock:
            before = self._told.get(name)
            # A description stays until another one is found.
            about = {**(before or {}), **about}
            if about != before:
                self._told[name] = about
                if name not in self._unready:
                    self._native.set_engine(json.dumps(about))
