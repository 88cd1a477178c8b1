"""Orders that operators gave over HTTP about single engines, applied to what the sources of engines list.

The last word about an engine counts. An order remembers the entry that the sources had of its engine; once that entry
is another one, its change came later, and the order is void. A drain is a word of its own: it is void once the
entry says otherwise about draining, and outlives any other change.
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
    """Order about one engine.

    Attributes:
        name: The engine's name.
        at: Time of the last word, in seconds since 1970.
        engine: Its settings, if it was added, or changed by adding it again.
        removed: Whether it was removed.
        drained: Whether it gets no new requests; None if nothing was said of that.
        listed: Its entry in the sources when `engine` or `removed` was said; None if they did not list it.
        listed_drain: Whether its entry said `drain` when `drained` was said.
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
        """Read an order.

        Raises:
            ConfigError: It is none; the message says why.
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
        """The order as JSON has it, with the engine's key."""
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
        """The order without what the sources' entry, if there is one, has overruled."""
        order = self
        if member is None:
            return order
        if (order.engine is not None or order.removed) and _table(member) != order.listed:
            order = replace(order, engine=None, removed=False, listed=None)
        if order.drained is not None and bool(member.drained) != order.listed_drain:
            order = replace(order, drained=None, listed_drain=False)
        return order

    def apply(self, member: Member | None) -> Member | None:
        """The member to follow, instead of the sources' own; None for none."""
        if self.removed:
            return None
        if self.engine is not None and (member is not None or self.listed is None):
            member = Member(self.engine) if member is None else replace(member, entry=self.engine)
        if member is not None and self.drained is not None:
            member = replace(member, drained=self.drained)
        return member

    def has_effect(self, member: Member | None) -> bool:
        """True if something is otherwise by the order."""
        return self.apply(member) != member


class Orders:
    """All orders, by the engines' names. Its methods may be called from any thread."""

    def __init__(self, orders: Iterable[Order] = (), *, save: Callable[[list[Order]], None] | None = None) -> None:
        """Make the orders.

        Args:
            orders: Those that hold from the beginning.
            save: Writes them down after each change.
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
        """The order of an engine as far as it holds; an empty one if there is none. `member`: the sources' own."""
        with self._lock:
            return self._all.get(name, Order(name, 0.0)).without_what_is_void(member)

    def set(self, order: Order) -> None:
        """Give an order, in the place of the engine's last one.

        Raises:
            OSError: It cannot be written down, and is not given.
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
        """Take in the orders of another router, of each engine the newer one. Returns the names whose order is new."""
        with self._lock:
            new = [order for order in orders if order.name not in self._all or order.at > self._all[order.name].at]
            if new:
                self._all |= {order.name: order for order in new}
                self._write_if_possible()
            return [order.name for order in new]

    def apply(self, listed: Mapping[Name, Member], /) -> dict[Name, Member]:
        """The members to follow, by name, for those that the sources list. Orders that these overrule are dropped."""
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
        """Forget orders that have had no effect for a day."""
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
    """The sources' entry of an engine, as an order remembers it."""
    return None if member is None else _table(member)


def _table(member: Member) -> dict[str, Any]:
    # A key is not for files and peers that only compare.
    table = member.entry.table() if isinstance(member.entry, Engine) else {}
    return {name: value for name, value in table.items() if name != "key"}
