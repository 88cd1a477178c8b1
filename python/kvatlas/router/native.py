"""Python interface of the native router, and the watcher that passes on changes of its engines."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Collection
from typing import Any, Protocol

from kvatlas.errors import KvatlasError, ServiceError
from kvatlas.router.config import RouterConfig
from kvatlas.service.config import Engine
from kvatlas.service.discovery.probe import EngineDescription
from kvatlas.service.discovery.sources.base import Member
from kvatlas.service.native import Native

logger = logging.getLogger("kvatlas.router")


class NativeRouter(Native, Protocol):
    """Interface of `kvatlas._native.RouterServer`. Every method may be called from any thread."""

    @property
    def follows(self) -> bool: ...
    def set_engine(self, engine: str, for_client: bool = False, /) -> None: ...
    def remove_engine(self, name: str, /) -> None: ...
    def drain_engine(self, name: str, drained: bool, by_discovery: bool = False, /) -> None: ...
    def set_objectives(self, priorities: str, /) -> None: ...
    def state(self) -> str: ...
    def decisions(self, limit: int, /) -> str: ...


def start(
    config: dict[str, Any], policy: object | None = None, keeper: Callable[[str], str] | None = None
) -> NativeRouter:
    """Start the native router.

    Args:
        config: The result of `RouterConfig.router_for_native`.
        policy: An object with `choose(request, candidates)`, instead of a policy by name.
        keeper: Function that makes changes of the fleet for HTTP clients: its argument is a request, its result the
            answer, both as JSON.

    Raises:
        ServiceError: The address cannot be bound, a certificate or a tokenizer cannot be used, or this build has no
            router.
        PolicyError: The policy or one of its options is unknown.
    """
    try:
        from kvatlas._native import RouterServer  # noqa: PLC0415 - the command line works without
    except ImportError as error:
        raise ServiceError("this build of kvatlas has no router", "not_started") from error
    made: NativeRouter = RouterServer(json.dumps(config), policy, keeper)
    return made


class EngineRegistry:
    """Adapter for engines without events: discovery registers their engines only, no streams."""

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

    def restarted(self) -> list[str]:
        return []

    def begin_pool_look(self, pool: str, /) -> bool:
        return False

    def end_pool_look(self, pool: str, keys: bytes | None, publishes: bool, /) -> str | None:
        return None

    def wants_pool_look(self, pool: str, /) -> bool:
        return False

    def release(self, hold: str, /) -> bool:
        return False

    def load_snapshot(self, file: str, url: str, /) -> int:
        return 0

    def no_snapshot(self, why: str | None = None, /) -> None:
        return None

    def begin_listing(self, pool: str, /) -> None:
        return None

    def add_listing_page(self, pool: str, offset: int, limit: int, page: bytes, /) -> int | None:
        return None

    def fail_listing(self, pool: str, why: str, /) -> None:
        return None

    def change(self, settings: str, /) -> None:
        self._native.change(settings)

    def reload(self) -> None:
        self._native.reload()

    def sole_tokens(self) -> str:
        return "{}"

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
    """Watcher that passes engines found by discovery to the native router.

    An engine whose source reports it as not ready gets no requests: it is drained, or, if it was never ready, not added
    to the router yet.
    """

    def __init__(self, native: NativeRouter, config: RouterConfig) -> None:
        self._native = native
        self._config = config
        self._listed: dict[str, dict[str, Any]] = {}  # by their entries
        self._found: dict[str, dict[str, Any]] = {}  # by their own answers; stays until another one comes
        self._told: dict[str, dict[str, Any]] = {}
        self._unready: set[str] = set()  # not in the router yet
        self._lock = threading.RLock()

    def listed(self, engine: Engine, ranks: Collection[int], drained: bool, /) -> None:
        """Add or change a listed engine in the native router. `drained`: True if it gets no new requests."""
        with self._lock:
            self._listed[engine.worker] = self._config.engine_for_native(engine, ranks, drained=drained)
            self._tell(engine.worker)

    def add(self, engine: Engine, drained: bool, *, for_client: bool, is_same: bool) -> None:
        """Add or change an engine at once, before discovery lists it.

        Args:
            engine: The engine.
            drained: True if the engine gets no new requests.
            for_client: True if a client over HTTP adds the engine.
            is_same: True if earlier answers of the engine with this name still apply.

        Raises:
            KvatlasError: The engine cannot be used.
        """
        name = engine.worker
        listed = self._config.engine_for_native(engine, drained=drained)
        with self._lock:
            about = _merged(listed, self._found.get(name, {}) if is_same else {})
            if name not in self._unready:
                self._native.set_engine(json.dumps(about), for_client)
                self._told[name] = about
            self._listed[name] = listed
            if not is_same:
                self._found.pop(name, None)

    def undo(self, engine: Engine, before: Member | None) -> None:
        """Undo the addition of an engine. `before`: the engine that had the name before; None if there was none."""
        if before is not None and isinstance(before.entry, Engine):
            self.listed(before.entry, (), bool(before.drained))
        else:
            self.left(engine, False)

    def found(self, engine: Engine, found: EngineDescription | None, /) -> None:
        """Update an engine with the ranks and the block size that it has reported."""
        name = engine.worker
        with self._lock:
            if found is not None:
                about: dict[str, Any] = {"block_size": found.block_size, "model": found.model}
                # The ranks that requests may name can be configured.
                if not isinstance(engine.ranks, tuple):
                    about["ranks"] = found.ranks
                if found.rank_header is not None and engine.rank_header is None:
                    about["rank_header"] = found.rank_header
                self._found[name] = about
            if name in self._listed:
                self._tell(name)

    def held(self, engine: Engine, held: bool, /) -> None:
        """Stop sending new requests to an engine (`held`), or start again, as the engine's source requests."""
        name = engine.worker
        with self._lock:
            if held and name not in self._told:
                self._unready.add(name)
            elif name in self._unready:
                if not held:
                    self._unready.discard(name)
                    if name in self._listed:
                        self._tell(name)
            else:
                with contextlib.suppress(ServiceError):  # it may not be usable
                    self._native.drain_engine(name, held, True)

    def left(self, engine: Engine, comes_back: bool, /) -> None:
        """Remove an engine that is no longer listed. If it will be listed again, only drop its earlier answers."""
        with self._lock:
            self._found.pop(engine.worker, None)
            if comes_back:
                return
            self._listed.pop(engine.worker, None)
            self._unready.discard(engine.worker)
            if self._told.pop(engine.worker, None) is not None:
                with contextlib.suppress(ServiceError):  # it may be removed already
                    self._native.remove_engine(engine.worker)

    def objectives(self, priorities: str, /) -> None:
        """Set the priorities of requests by the objectives that they name, in JSON."""
        self._native.set_objectives(priorities)

    def _tell(self, name: str) -> None:
        about = _merged(self._listed[name], self._found.get(name, {}))
        before = self._told.get(name)
        if about == before or name in self._unready:
            return
        try:
            if before is not None and {**before, "drain": about["drain"]} == about:
                self._native.drain_engine(name, about["drain"])
            else:
                self._native.set_engine(json.dumps(about))
        except KvatlasError as error:
            logger.warning("engine %s cannot be used: %s", name, error)
            return
        self._told[name] = about


def _merged(listed: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Settings of an engine for the native router: its entry, completed by the engine's own answers."""
    return {**listed, **{name: value for name, value in found.items() if name != "model" or name not in listed}}
