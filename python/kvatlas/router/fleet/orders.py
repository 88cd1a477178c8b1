"""Orders: changes of single engines that operators made over HTTP, applied to the engines that the sources list.

The latest change of an engine counts. An order stores the engine's entry in the sources at that time; once the sources
have another entry, their change is later, and the order is void. Draining is separate: it is void once the entry has
another `drain` setting, and is not affected by other changes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvatlas.errors import ConfigError
from kvatlas.service.config import Engine
from kvatlas.service.discovery.sources.base import Member, Name

logger = logging.getLogger("kvatlas.router")

_KEPT = 86_400.0  # seconds for which an order without effect is kept: for peers that were away
_MOST_KEPT = 10_000  # of those
_FIELDS = ("name", "at", "engine", "removed", "drained", "listed", "listed_drain")


@dataclass(frozen=True)
class Order:
    """Order: a change of one engine that an operator made over HTTP.

    Attributes:
        name: The engine's name.
        at: Time of the order, in seconds since 1970.
        engine: The engine's settings, if it was added or changed; None otherwise.
        removed: True if the engine was removed.
        drained: True if the engine gets no new requests; None if the order does not change this.
        listed: The engine's entry in the sources when `engine` or `removed` was set; None if it was not listed.
        listed_drain: True if the engine's entry in the sources had `drain` set when `drained` was set.
    """

    name: str
    at: float
    engine: Engine | None = None
    removed: bool = False
    drained: bool | None = None
    listed: Mapping[str, Any] | None = None
    listed_drain: bool = False

    @classmethod
    def of(cls, value: object) -> Order:
        """Parse an order from its JSON form.

        Raises:
            ConfigError: The value is not an order; the message says why.
        """
        if not isinstance(value, Mapping):
            raise ConfigError(f"an order must be an object, got {type(value).__name__}")
        if unknown := [name for name in value if name not in _FIELDS]:
            raise ConfigError(f"an order has an unknown field {unknown[0]!r}: it must be one of {', '.join(_FIELDS)}")
        kinds: dict[str, tuple[type, ...]] = {
            "name": (str,),
            "at": (int, float),
            "engine": (Mapping, type(None)),
            "removed": (bool,),
            "drained": (bool, type(None)),
            "listed": (Mapping, type(None)),
            "listed_drain": (bool,),
        }
        for name, allowed in kinds.items():
            if name in value and not isinstance(value[name], allowed):
                raise ConfigError(f"an order's {name} has the wrong type: {type(value[name]).__name__}")
        if not value.get("name") or "at" not in value:
            raise ConfigError("an order needs a name and the time `at` which it was given")
        engine = value.get("engine")
        return cls(**{**value, "engine": None if engine is None else Engine.from_table(engine)})

    def table(self) -> dict[str, Any]:
        """JSON form of the order, including the engine's key."""
        return {
            "name": self.name,
            "at": self.at,
            "engine": None if self.engine is None else self.engine.table(),
            "removed": self.removed,
            "drained": self.drained,
            "listed": None if self.listed is None else dict(self.listed),
            "listed_drain": self.listed_drain,
        }

    def without_what_is_void(self, member: Member | None) -> Order:
        """Copy of the order without the parts that a later change of the sources' entry, `member`, has overruled."""
        order = self
        if member is None:
            return order
        if (order.engine is not None or order.removed) and _table(member) != order.listed:
            order = replace(order, engine=None, removed=False, listed=None)
        if order.drained is not None and bool(member.drained) != order.listed_drain:
            order = replace(order, drained=None, listed_drain=False)
        return order

    def apply(self, member: Member | None) -> Member | None:
        """The engine to use instead of the sources' `member`; None if the engine is not to be used."""
        if self.removed:
            return None
        if self.engine is not None and (member is not None or self.listed is None):
            member = Member(self.engine) if member is None else replace(member, entry=self.engine)
        if member is not None and self.drained is not None:
            member = replace(member, drained=self.drained)
        return member

    def has_effect(self, member: Member | None) -> bool:
        """True if the order changes the sources' `member`."""
        return self.apply(member) != member


class Orders:
    """Orders (operators' changes of engines) by the engines' names. All methods may be called from any thread."""

    def __init__(self, orders: Iterable[Order] = (), *, save: Callable[[list[Order]], None] | None = None) -> None:
        """Create the collection of orders.

        Args:
            orders: Orders at the start.
            save: Function that saves all orders after each change; None to save none.
        """
        self._lock = threading.RLock()
        self._all = {order.name: order for order in orders}
        self._save = save
        self._seen: set[str] = set()  # engines that the sources have listed here

    def all(self) -> list[Order]:
        """All orders, by name."""
        with self._lock:
            return [self._all[name] for name in sorted(self._all)]

    def get(self, name: str, member: Member | None) -> Order:
        """The valid part of an engine's order; an empty order if there is none. `member`: the sources' entry."""
        with self._lock:
            return self._all.get(name, Order(name, 0.0)).without_what_is_void(member)

    def set(self, order: Order) -> None:
        """Set the order of an engine, replacing the last one.

        Raises:
            OSError: The orders cannot be saved; the order is not set.
        """
        with self._lock:
            before = dict(self._all)
            self._all[order.name] = order
            try:
                self._write()
            except OSError:
                self._all = before
                raise

    def merge(self, orders: Iterable[Order]) -> list[str]:
        """Merge the orders of another router, for each engine the newer one. Returns the names with new orders."""
        with self._lock:
            new = [order for order in orders if order.name not in self._all or order.at > self._all[order.name].at]
            if new:
                self._all |= {order.name: order for order in new}
                self._write_if_possible()
            return [order.name for order in new]

    def apply(self, listed: Mapping[Name, Member], /) -> dict[Name, Member]:
        """The engines to use, by name, given those that the sources list. Overruled orders are dropped."""
        with self._lock:
            found = dict(listed)
            for order in list(self._all.values()):
                name = (order.name, None)
                holds = order.without_what_is_void(listed.get(name))
                if name in listed:
                    self._seen.add(order.name)
                elif order.name in self._seen and order.listed is not None:
                    holds = replace(holds, engine=None, removed=False, listed=None)
                if holds != order:
                    logger.info("%s: its entry has changed since: what was ordered over HTTP is void", order.name)
                    self._all[order.name] = holds
                    self._write_if_possible()
                member = holds.apply(listed.get(name))
                if member is not None:
                    found[name] = member
                else:
                    found.pop(name, None)
            return found

    def prune(self, listed: Mapping[Name, Member], now: float) -> None:
        """Drop orders that have had no effect for a day."""
        with self._lock:
            idle = [order for order in self._all.values() if not order.has_effect(listed.get((order.name, None)))]
            idle.sort(key=lambda order: order.at)
            for place, order in enumerate(idle):
                if order.at < now - _KEPT or place < len(idle) - _MOST_KEPT:
                    del self._all[order.name]

    def _write(self) -> None:
        if self._save is not None:
            self._save(self.all())

    def _write_if_possible(self) -> None:
        try:
            self._write()
        except OSError as error:
            logger.warning("what was ordered over HTTP cannot be written down: %s", error)


def listed_as(member: Member | None) -> dict[str, Any] | None:
    """The sources' entry of an engine, in the form in which an order stores it."""
    return None if member is None else _table(member)


def _table(member: Member) -> dict[str, Any]:
    # The entry is only compared, in files and at peers, so its key is left out.
    table = member.entry.table() if isinstance(member.entry, Engine) else {}
    return {name: value for name, value in table.items() if name != "key"}
