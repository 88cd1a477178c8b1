"""Keeper of a router's fleet: makes the changes of engines that HTTP clients and programs request."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kvatlas.errors import ConfigError, KvatlasError, ServiceError
from kvatlas.router.config import RouterConfig
from kvatlas.router.fleet.orders import Order, Orders, listed_as
from kvatlas.router.fleet.peers import PeerRouters
from kvatlas.service.config import Engine
from kvatlas.service.discovery.sources.base import Member
from kvatlas.service.discovery.watch import Discovery

logger = logging.getLogger("kvatlas.router")

_PATIENCE = 10.0  # seconds for which a change is waited for: an engine's streams may take a while to end
_STATUS = {
    "name_taken": 409,
    "too_many_engines": 409,
    "unknown_engine": 404,
    "state_not_written": 503,
    "not_ready": 503,
    "closed": 503,
}


class Registry(Protocol):
    """Interface to the native router's engines, which get requests."""

    def add(self, engine: Engine, drained: bool, *, for_client: bool, is_same: bool) -> None:
        """Add an engine that gets requests, or change its settings.

        Raises:
            KvatlasError: The engine cannot be used.
        """

    def undo(self, engine: Engine, before: Member | None) -> None:
        """Undo the addition of an engine. `before`: the engine that had the name before; None if there was none."""


class FleetKeeper:
    """Maker of changes of the fleet, one after the other, once `begin` was called."""

    def __init__(
        self, config: RouterConfig, orders: Orders, discovery: Discovery, peers: PeerRouters | None = None
    ) -> None:
        """Create a keeper, which makes no changes before `begin`.

        Args:
            config: The router's configuration.
            orders: Changes requested so far (orders), which discovery applies to the listed engines.
            discovery: Discovery of the engines.
            peers: The other routers of the group; None if there are none.
        """
        self._config, self._orders, self._discovery, self._peers = config, orders, discovery, peers
        self._registry: Registry | None = None
        self._run: Callable[[Any], Any] | None = None
        self._own = ""
        self._starting = threading.Event()
        self._lock = threading.Lock()

    def begin(self, registry: Registry, run: Callable[[Any], Any], own: str) -> None:
        """Start to make requested changes.

        Args:
            registry: The engines that get requests.
            run: Function that runs a coroutine in discovery's event loop, and returns a future of its result.
            own: The URL of this router.
        """
        self._registry, self._run, self._own = registry, run, own
        self._starting.set()

    def __call__(self, request: str) -> str:
        """Answer a client's request. Request and answer are JSON texts in the native router's form."""
        asked = json.loads(request)
        try:
            return json.dumps(self._answer(asked))
        except KvatlasError as error:
            return json.dumps(_refusal(error))

    def add(self, engine: Engine) -> None:
        """Add an engine, or change the engine of the same name, for the program that runs the router.

        Raises:
            ConfigError: A setting is invalid.
            ServiceError: The engine cannot be added.
        """
        self._add(engine, for_client=False)

    def change(self, action: str, name: str) -> None:
        """Remove, drain or undrain an engine.

        Raises:
            ServiceError: There is no engine of that name (code "unknown_engine"), or the change cannot be written to
                the state file (code "state_not_written").
        """
        self._begun()
        with self._lock:
            member = self._discovery.wanted.get((name, None))
            listed = self._discovery.listed.get((name, None))
            if member is None or not isinstance(member.entry, Engine):
                raise ServiceError(f"there is no engine of the name {json.dumps(name)}", "unknown_engine")
            if action == "remove":
                order = Order(name, time.time(), removed=True, listed=listed_as(listed))
            else:
                order = dataclasses.replace(
                    self._orders.get(name, listed),
                    at=time.time(),
                    drained=action == "drain",
                    listed_drain=bool(listed and listed.drained),
                )
            self._give(order)
            if action == "remove":
                logger.info(
                    "engine %s (%s) was removed: it gets no more requests, and its events are followed no longer",
                    *(name, member.entry.shown_url),
                )
            self._follow(name)

    def merge(self, orders: list[Order]) -> None:
        """Apply the changes of engines (orders) that another router has."""
        names = self._orders.merge(orders)
        if names:
            logger.info("another router has said what was changed over HTTP: %s", ", ".join(sorted(names)))
            self._follow(names[0])

    def _answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        action, name, is_known = asked["action"], asked["name"], bool(asked["is_known"])
        self._begun()
        if action == "list":
            return {"status": 200, "body": self._listed(is_known)}
        refused = None
        try:
            if action == "add":
                name = self._add(_parsed(asked["body"], is_known), for_client=True)
            else:
                self.change(action, name)
        except ServiceError as error:
            # An engine that is unknown here may be known to a peer.
            if error.code != "unknown_engine" or not asked["at_peers"] or self._peers is None:
                raise
            refused = _refusal(error)
        answer = {"status": 201 if action == "add" else 200, "name": name}
        if asked["at_peers"]:
            own = {name: (refused or answer).get(name) for name in ("status", "code", "message")}
            told = [] if self._peers is None else self._peers.tell(action, name, asked["body"] or None)
            answer["routers"] = [{"router": self._own, **own}, *told]
        return answer

    def _listed(self, is_known: bool) -> dict[str, Any]:
        """The changes of engines (orders), for another router.

        Orders that contain an engine's key are left out unless the other router has sent this router's key.
        """
        self._prune()
        orders = self._orders.all()
        told = [order for order in orders if is_known or order.engine is None or order.engine.key is None]
        return {"orders": [order.table() for order in told], "left_out": len(orders) - len(told)}

    def _add(self, engine: Engine, *, for_client: bool) -> str:
        name, (registry, _run) = engine.worker, self._begun()
        with self._lock:
            self._check(engine)
            member = self._discovery.wanted.get((name, None))
            listed = self._discovery.listed.get((name, None))
            before = member.entry if member is not None and isinstance(member.entry, Engine) else None
            if for_client and engine.use_key is None:
                shown = before is not None and before.url == engine.url and before.use_key is not False
                engine = dataclasses.replace(engine, use_key=None if shown else False)
            now = self._orders.get(name, listed)
            order = Order(
                name,
                time.time(),
                engine=dataclasses.replace(engine, drain=None),
                drained=now.drained if engine.drain is None else engine.drain,
                listed=listed_as(listed),
                listed_drain=now.listed_drain if engine.drain is None else bool(listed and listed.drained),
            )
            engine = order.engine or engine
            after = order.apply(listed)
            is_same = before is not None and before.as_followed() == engine.as_followed()
            drained = bool(after is not None and after.drained)
            registry.add(engine, drained, for_client=for_client, is_same=is_same)
            try:
                self._give(order)
            except ServiceError:
                registry.undo(engine, member)
                raise
            done = "added" if before is None else "changed"
            logger.info("engine %s (%s) was %s", name, engine.shown_url, done)
            self._follow(name)
        return name

    def _check(self, engine: Engine) -> None:
        self._config.check_engine(engine)
        for setting, why in self._config.without_effect(engine).items():
            raise ConfigError(f"engine {engine.shown_url}: {setting} {why}")

    def _prune(self) -> None:
        # Orders are kept for engines of sources that have not answered yet.
        if self._discovery.knows_all_lists:
            self._orders.prune(self._discovery.listed, time.time())

    def _give(self, order: Order) -> None:
        self._prune()
        try:
            self._orders.set(order)
        except OSError as error:
            raise ServiceError(
                f"the change cannot be written to the state file, and was not made: {error.strerror or error}",
                "state_not_written",
            ) from error

    def _begun(self) -> tuple[Registry, Callable[[Any], Any]]:
        """The registry of engines and the runner of coroutines. Waits until discovery has listed the first engines."""
        has_begun = self._starting.wait(_PATIENCE) and self._discovery.has_begun.wait(_PATIENCE)
        if not has_begun or self._registry is None or self._run is None:
            raise ServiceError("the router is starting: ask again in a second", "not_ready")
        return self._registry, self._run

    def _follow(self, name: str) -> None:
        """Make discovery apply the change of an engine at once."""
        _registry, run = self._begun()
        following = self._discovery.follow_now(name)
        try:
            future = run(following)
        except RuntimeError:  # the loop has ended
            following.close()
            raise ServiceError("the router is closing", "closed") from None
        try:
            future.result(_PATIENCE)
        except (TimeoutError, concurrent.futures.CancelledError):
            logger.warning("engine %s: the change was made; its streams take long to end", name)


def _parsed(body: str, is_known: bool) -> Engine:
    """Parse the engine in a request's body.

    Raises:
        ConfigError: The body is not a valid engine.
        ServiceError: The client requests the key of all engines without having sent a key (code "forbidden").
    """
    try:
        table = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f'an engine is {{"url": …}}: it is not JSON: {error}') from None
    if not isinstance(table, dict):
        raise ConfigError('an engine is {"url": …}, an object')
    engine = Engine.from_table({name: value for name, value in table.items() if value is not None})
    if engine.use_key and not is_known:
        raise ServiceError(
            "use_key shows the engine the key of all engines: only a client that shows the admin key may ask for that "
            "(http.admin_key_file); give the engine's own key instead",
            "forbidden",
        )
    return engine


def _refusal(error: KvatlasError) -> dict[str, Any]:
    if isinstance(error, ConfigError):
        return {"status": 400, "code": "invalid_engine", "message": str(error)}
    status = 403 if error.code == "forbidden" else _STATUS.get(error.code, 400)
    return {"status": status, "code": error.code, "message": str(error)}
