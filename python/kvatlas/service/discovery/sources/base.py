"""Base of all sources of engines: their lists, and the state of each member."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kvatlas.errors import DiscoveryError
from kvatlas.service.config import Engine, Stream

logger = logging.getLogger("kvatlas.discovery")

Entry = Engine | Stream
Name = tuple[str, int | None]  # an engine's, or a worker's with its rank

READY, NOT_READY, TERMINATING, UNLISTED = "ready", "not_ready", "terminating", "unlisted"
_WHY = {
    NOT_READY: "its source says that it is not ready: it gets no new requests, and its events are followed",
    TERMINATING: "it ends: it gets no new requests, and its events are followed until it is gone",
    UNLISTED: "its source no longer lists it: it gets no new requests, and its events are followed for a while",
}


@dataclass(frozen=True)
class Member:
    """An engine or stream that a source lists.

    Attributes:
        entry: The engine or stream.
        life: Value that changes when another engine, with an empty cache, has replaced this one under the same name.
        starts: Value that changes when the engine has been restarted, as far as the source knows.
        state: `ready` if the engine gets new requests, else the reason why not.
        drained: True if an operator has drained the engine; None if no operator has decided.
    """

    entry: Entry
    life: str = ""
    starts: int = 0
    state: str = READY
    drained: bool | None = None

    @property
    def why_held(self) -> tuple[str, str] | None:
        """Code and reason why the member gets no new requests; None if it gets them."""
        return None if self.state == READY else (self.state, _WHY[self.state])


def name_of(entry: Entry) -> Name:
    """Name by which an entry is identified."""
    return (entry.worker, None) if isinstance(entry, Engine) else (entry.worker, entry.rank)


class EngineSource(ABC):
    """Source: a list of engines that may change.

    Attributes:
        shown: The source's name in messages.
        first: Set once the list is known, or will not be known soon.
    """

    def __init__(self, shown: str) -> None:
        self.shown = shown
        self.first = asyncio.Event()
        self.changed: Callable[[], None] = lambda: None

    @property
    @abstractmethod
    def members(self) -> Iterable[Member]:
        """Engines and streams that the source lists now."""

    @abstractmethod
    async def run(self) -> None:
        """Watch the list until cancelled, calling `changed` after each change."""

    def report(self) -> dict[str, Any] | None:
        """Report about the source for the native part; None if its list is always known."""
        return None


class RemoteSource(EngineSource):
    """A source on another machine, which may not answer; its last known list then stays in use."""

    def __init__(self, shown: str, linger: float) -> None:
        super().__init__(shown)
        self.counts: Counter[str] = Counter()
        self._linger = linger
        self._known: dict[str, tuple[Member, ...]] = {}  # by what identifies them to the source
        self._left_out: dict[str, str] = {}  # why, of what is listed and cannot be used
        self._unlisted: dict[str, asyncio.TimerHandle] = {}
        self._state = "asking"
        self._problem: tuple[str, str] | None = None

    @property
    def members(self) -> Iterable[Member]:
        return [member for members in self._known.values() for member in members]

    def report(self) -> dict[str, Any] | None:
        states = self.states()
        code, reason = self._problem or (None, None)
        return {
            "source": self.shown,
            "state": self._state,
            "code": code,
            "reason": reason,
            "members": {name: states[name] for name in {READY, NOT_READY, TERMINATING, UNLISTED, *states}},
            "counts": dict(self.counts),
        }

    # What the source says

    def put(self, key: str, members: tuple[Member, ...]) -> None:
        """Record the members that the source lists under a key."""
        self._stop_lingering(key)
        self._left_out.pop(key, None)
        before = self._known.get(key)
        if before != members:
            self._known[key] = members
            self.counts["added" if before is None else "changed"] += 1
            self._log(key, before or (), members)
            self.changed()

    def leave_out(self, key: str, why: DiscoveryError) -> None:
        """Record the reason why the members under a key are not used."""
        if self._left_out.get(key) != why.code:
            self.drop(key)
            self._left_out[key] = why.code
            self.counts[f"left_out_{why.code}"] += 1
            level = logging.INFO if why.temporary else logging.WARNING
            logger.log(level, "%s: %s is left out: %s", self.shown, key, why)
            self.changed()

    def drop(self, key: str) -> None:
        """Remove the members under a key for good."""
        self._stop_lingering(key)
        left_out = self._left_out.pop(key, None)
        if self._known.pop(key, None) is not None:
            self.counts["removed"] += 1
            logger.info("%s: %s is gone", self.shown, key)
            self.changed()
        elif left_out is not None:
            self.changed()

    def unlist(self, key: str) -> None:
        """Record that a key is no longer listed, but may come back: its members are kept for a while."""
        members = self._known.get(key)
        if members is None or not self._linger:
            self.drop(key)
        elif key not in self._unlisted:
            self._known[key] = tuple(Member(it.entry, it.life, it.starts, UNLISTED) for it in members)
            self._unlisted[key] = asyncio.get_running_loop().call_later(self._linger, self.drop, key)
            self.counts["unlisted"] += 1
            logger.info("%s: no longer lists %s: kept for %g s without new requests", self.shown, key, self._linger)
            self.changed()

    def only(self, keys: Iterable[str]) -> None:
        """Record that the source lists the given keys and no others."""
        listed = set(keys)
        for key in [*self._known, *self._left_out]:
            if key not in listed:
                self.unlist(key)

    def is_known_now(self) -> None:
        """Record that the list is known and being watched."""
        if self._state != "following":
            again = "answers again; " if self._state == "away" else ""
            logger.info("%s: %s%s", self.shown, again, self._counted())
        if self._state != "following" or self._problem is not None:
            self._state, self._problem = "following", None
            self.changed()
        self.settle()

    def settle(self) -> None:
        """Record that the source has been read for the first time, so that readiness no longer waits for it."""
        self.first.set()

    def is_away(self, code: str, reason: str) -> None:
        """Record that the source does not answer, or refuses. Known members stay in use."""
        self.counts[code] += 1
        if self._problem != (code, reason):
            kept = f"; {self._counted()} stay in use" if self._known else ""
            logger.warning("%s: %s%s", self.shown, reason, kept)
        if self._state == "asking" and not self._known:
            self._problem = (code, reason)
        else:
            self._state, self._problem = "away", (code, reason)
        self.changed()

    def _counted(self) -> str:
        return ", ".join(f"{count} {state}" for state, count in sorted(self.states().items())) or "nothing is listed"

    def states(self) -> Counter[str]:
        """Number of members in each state, and number of keys left out by reason."""
        states = Counter(member.state for member in self.members)
        states.update(self._left_out.values())
        return states

    def _stop_lingering(self, key: str) -> None:
        timer = self._unlisted.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _log(self, key: str, before: tuple[Member, ...], now: tuple[Member, ...]) -> None:
        old, new = {member.life for member in before}, {member.life for member in now}
        states = ", ".join(dict.fromkeys(member.state for member in now))
        if before and old != new:
            self.counts["replaced"] += 1
            logger.info("%s: %s is another one now: %s", self.shown, key, states)
        elif before and [member.starts for member in before] != [member.starts for member in now]:
            self.counts["restarted"] += 1
            logger.info("%s: %s was started again: %s", self.shown, key, states)
        else:
            logger.info("%s: %s: %s", self.shown, key, states)
