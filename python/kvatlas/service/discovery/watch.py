"""Discovery of engines and streams from all sources: each listed entry gets a follower, which registers it."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

from kvatlas.errors import ServiceError
from kvatlas.service.config import Config, Engine, Pool, Stream
from kvatlas.service.config.sources import HostName, PoolName, selection
from kvatlas.service.discovery.follow import EngineFollower, Follower, StreamFollower, Watcher
from kvatlas.service.discovery.http import Asker
from kvatlas.service.discovery.probe import Prober
from kvatlas.service.discovery.sizes import EmittedSizes
from kvatlas.service.discovery.sources.account import Account
from kvatlas.service.discovery.sources.base import EngineSource, Entry, Member, Name, name_of
from kvatlas.service.discovery.sources.deletion_costs import DeletionCosts
from kvatlas.service.discovery.sources.files import FileOfEngines, GivenEngines
from kvatlas.service.discovery.sources.names import EnginesOfName
from kvatlas.service.discovery.sources.objectives import Objectives
from kvatlas.service.discovery.sources.pods import EnginesOfPods
from kvatlas.service.discovery.sources.pool import EnginesOfPool
from kvatlas.service.discovery.stores import StoreWatch
from kvatlas.service.native import Native

logger = logging.getLogger("kvatlas.discovery")

HOLD = "discovery"  # what readiness waits for, until the first engines were asked
_LOOKS = 25  # looks at engines a second, at most: each costs about 2 ms
_REPORTS = 1.0  # seconds between reports on sources whose list does not change
_RESTARTS = 1.0  # seconds between questions for restarted streams


class Overlay(Protocol):
    """Interface of changes of the listed members: engines added, removed and drained over HTTP."""

    def apply(self, listed: Mapping[Name, Member], /) -> dict[Name, Member]:
        """The members to use, by name, given those that the sources list."""


class Discovery:
    """Discovery of all engines and streams, which keeps their registrations up to date until stopped.

    Attributes:
        watcher: Observer that is notified of engines; set before `run`.
        listed: The members that the sources list, by name, as last read.
        wanted: The members to register: the listed ones with the overlay's changes.
        has_begun: Set once the first members have followers.
    """

    def __init__(self, config: Config, overlay: Overlay | None = None) -> None:
        """Create a discovery, without querying any engine or source yet.

        Args:
            config: The configuration, with the sources of engines.
            overlay: Changes of the listed members; None without changes.

        Raises:
            ConfigError: The engines' file or key file cannot be read or is invalid, or a source cannot be reached.
        """
        self._config = config
        self.watcher: Watcher | None = None
        self._overlay = overlay
        self._key = config.discovery.bearer()
        self._sources = _sources(config)
        self._followers: dict[Name, _Membership] = {}
        self._refused: set[tuple[str, Name]] = set()
        self._reported: dict[str, dict[str, Any]] = {}
        self._sizes = EmittedSizes()
        self._leaving: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._changed = asyncio.Event()
        self.listed: dict[Name, Member] = {}
        self.wanted = self._look()
        self.has_begun = threading.Event()

    @property
    def has_any(self) -> bool:
        """True if there are members or stores to register, or may be later."""
        return len(self._sources) > 1 or bool(self.wanted) or any(pool.mooncake for pool in self._config.pools)

    @property
    def knows_all_lists(self) -> bool:
        """True once each source has reported its list, or is known not to report it soon."""
        return all(source.first.is_set() for source in self._sources)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Engines and streams in use, those of the configuration first."""
        return tuple(member.entry for member in self.wanted.values())

    async def look(self) -> tuple[Entry, ...]:
        """List the entries that get requests, once every source has answered or `discovery.timeout` has passed."""
        running = [asyncio.create_task(self._run(source)) for source in self._sources]
        try:
            async with asyncio.timeout(self._config.discovery.timeout):
                await asyncio.gather(*(source.first.wait() for source in self._sources))
        except TimeoutError:
            away = ", ".join(source.shown for source in self._sources if not source.first.is_set())
            logger.warning("no longer waiting for %s", away)
        finally:
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        self.wanted = self._look()
        return tuple(member.entry for member in self.wanted.values() if member.why_held is None)

    def begin(self, native: Native) -> None:
        """Report all sources to the native part before they are queried, so that its answers include all of them."""
        self._native = native
        self._report()

    async def run(self) -> None:
        """Keep the members registered until `stop`. Must be called after `begin`. The registrations remain."""
        native = self._native
        async with Asker(self._config.discovery.request_timeout, self._key) as asker:
            self._asker = asker
            for source in self._sources:
                source.changed = self._changed.set
                if isinstance(source, Objectives) and self.watcher is not None:
                    source.tell = self.watcher.objectives
            running = [asyncio.create_task(self._run(source)) for source in self._sources]
            if every := self._config.discovery.pod_deletion_cost:
                running.append(asyncio.create_task(DeletionCosts(_pods(self._sources), every).run(native)))
            running += [asyncio.create_task(self._watch(pool)) for pool in self._config.pools if pool.mooncake]
            self._follow()
            self.has_begun.set()
            self._report()
            settle = asyncio.create_task(self._settle())
            restarts = asyncio.create_task(self._notice_restarts())
            try:
                while not await self._stopped_or_changed():
                    self._follow()
                    self._report()
            finally:
                settle.cancel()
                restarts.cancel()
                for each in running:
                    each.cancel()
                for followed in self._followers.values():
                    followed.follower.stop()
                tasks = [followed.task for followed in self._followers.values()]
                await asyncio.gather(settle, restarts, *running, *tasks, *self._leaving, return_exceptions=True)

    def replace_given(self, config: Config) -> None:
        """Replace the configured engines and streams by those of `config`. Must be called in the loop of `run`."""
        for source in self._sources:
            if isinstance(source, GivenEngines):
                source.replace(config)

    def stop(self) -> None:
        """Request `run` to end. Must be called in its loop."""
        self._stop.set()
        self._changed.set()

    async def follow_now(self, name: str) -> None:
        """Apply a change of the overlay, and wait until an engine that it removes is unregistered.

        Raises:
            ServiceError: The discovery was stopped (code "closed").
        """
        if self._stop.is_set():
            raise ServiceError("the router is closing", "closed")
        self._follow()
        await asyncio.gather(*(task for task in self._leaving if task.get_name() == name), return_exceptions=True)

    async def _stopped_or_changed(self) -> bool:
        """Wait for a change, or for the time of the next report. True if `stop` was called."""
        try:
            async with asyncio.timeout(_REPORTS if self._config.discovery.sources else None):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return self._stop.is_set()

    async def _run(self, source: EngineSource) -> None:
        try:
            await source.run()
        except Exception:
            logger.exception(
                "%s is no longer followed, by a fault of kvatlas; its engines stay as they are", source.shown
            )
            source.first.set()

    async def _watch(self, pool: Pool) -> None:
        try:
            await StoreWatch(self._asker.showing(None), self._native, pool).run()
        except Exception:
            logger.exception("pool %s: its store is no longer looked at, by a fault of kvatlas", pool.name)

    async def _settle(self) -> None:
        """Allow readiness once the first engines have answered, or a time limit has passed."""
        away: list[str] = []
        first: list[Follower] = []
        try:
            async with asyncio.timeout(self._config.discovery.timeout):
                for source in self._sources:
                    away = [source.shown]
                    await source.first.wait()
                away = []
                self._follow()
                # Engines that are not ready yet may need many minutes until they answer.
                first = [it.follower for it in self._followers.values() if it.follower.why_held is None]
                await asyncio.gather(*(follower.settled.wait() for follower in first))
        except TimeoutError:
            away += [follower.shown for follower in first if not follower.settled.is_set()]
            more = f" and {len(away) - 3} more" if len(away) > 3 else ""
            logger.warning("no longer waiting for %s%s", ", ".join(away[:3]), more)
        self._native.release(HOLD)
        if self._config.follows_events and first and not any(follower.is_registered for follower in first):
            if self.watcher is None:
                logger.warning("none of the configured engines can be used")
            else:  # it sends them requests all the same
                logger.warning("no configured engine's events can be followed: engines are chosen by load only")

    async def _notice_restarts(self) -> None:
        """Wake the followers of engines whose events show a restart, until cancelled."""
        while True:
            await asyncio.sleep(_RESTARTS)
            restarted = set(await asyncio.to_thread(self._native.restarted))
            for name, its in self._followers.items():
                if name[0] in restarted and isinstance(its.follower, EngineFollower):
                    its.follower.restarted()

    def _report(self) -> None:
        """Report the state of each source to the native part, if it has changed."""
        for source in self._sources:
            report = source.report()
            if report is not None and report != self._reported.get(source.shown):
                self._reported[source.shown] = report
                self._native.report_source(json.dumps(report))

    def _follow(self) -> None:
        """Start and stop followers so that they match the wanted members."""
        wanted = self.wanted = self._look()
        by_hand: dict[str, set[int]] = {}
        for member in wanted.values():
            if isinstance(member.entry, Stream):
                by_hand.setdefault(member.entry.worker, set()).add(member.entry.rank)
        self._drop((name for name, its in self._followers.items() if not its.is_same(wanted.get(name))), wanted)
        self._drop(
            (
                name
                for name, its in self._followers.items()
                if isinstance(its.follower, EngineFollower) and its.follower.registers is (name[0] in by_hand)
            ),
            wanted,
        )
        for name, member in wanted.items():
            if name not in self._followers:
                self._add(name, member, by_hand.get(name[0], set()))
            elif self._followers[name].member != member:
                self._update(self._followers[name], member, by_hand.get(name[0], set()))

    def _look(self) -> dict[Name, Member]:
        """Read the lists of all sources. Returns the members to follow, by name, with the overlay's changes."""
        self.listed = self._listed_once()
        return dict(self.listed) if self._overlay is None else self._overlay.apply(self.listed)

    def _listed_once(self) -> dict[Name, Member]:
        """Members of all sources, by name; a name listed twice counts for the first source."""
        wanted: dict[Name, Member] = {}
        names: dict[str, type[Entry]] = {}
        refused: set[tuple[str, Name]] = set()
        for source in self._sources:
            for member in source.members:
                name = name_of(member.entry)
                kind = type(member.entry)
                is_of_its_kind = self._config.sends_requests or names.setdefault(name[0], kind) is kind
                if name not in wanted and is_of_its_kind:
                    wanted[name] = _without_drain(member)
                    continue
                refused.add((source.shown, name))
                if (source.shown, name) not in self._refused:
                    logger.warning(
                        "%s: ignored %s, which another source has already: give one of them another name",
                        *(source.shown, _shown(member.entry)),
                    )
        self._refused = refused
        return wanted

    def _add(self, name: Name, member: Member, by_hand: set[int]) -> None:
        entry, follower = member.entry, self._follower(member.entry, by_hand)
        follower.hold(member.why_held)
        before = [task for task in self._leaving if task.get_name() == name[0]]
        is_watched = isinstance(entry, Engine) and self.watcher is not None
        if is_watched and not before:
            self._tell(member, by_hand, follower)
        task = asyncio.create_task(self._run_after(before, follower, by_hand if is_watched else None, name))
        self._followers[name] = _Membership(member, follower, task)

    def _follower(self, entry: Entry, by_hand: set[int]) -> Follower:
        if isinstance(entry, Stream):
            return StreamFollower(self._native, self._config, entry)
        check, routes = self._native.check_allowed, self.watcher is not None
        prober = Prober(self._asker.showing(entry.key_of(self._key)), entry, self._config, check, names_ranks=routes)
        return EngineFollower(
            *(self._native, self._config, prober, entry, self.pace, self.watcher),
            registers=not by_hand,
            sizes=self._sizes,
        )

    async def _run_after(
        self, before: list[asyncio.Task[None]], follower: Follower, by_hand: set[int] | None, name: Name
    ) -> None:
        """Run the follower of a changed entry once the old follower has left."""
        if before:
            await asyncio.gather(*before, return_exceptions=True)
            its = self._followers.get(name)
            if by_hand is not None and its is not None:
                self._tell(its.member, by_hand, follower)
        await follower.run()

    def _tell(self, member: Member, by_hand: Collection[int], follower: Follower) -> None:
        """Notify the watcher of an engine that is new to the list."""
        if self.watcher is not None and isinstance(member.entry, Engine):
            if follower.why_held is not None:
                self.watcher.held(member.entry, True)
            self.watcher.listed(member.entry, by_hand, bool(member.drained))

    def _update(self, followed: _Membership, member: Member, by_hand: Collection[int]) -> None:
        """Apply changes of a member that stays followed."""
        before, followed.member = followed.member, member
        followed.follower.hold(member.why_held)
        is_held = member.why_held is not None
        is_news = is_held is not (before.why_held is not None)
        if is_news and self.watcher is not None and isinstance(member.entry, Engine):
            self.watcher.held(member.entry, is_held)
        if isinstance(member.entry, Engine) and isinstance(followed.follower, EngineFollower):
            followed.follower.engine = member.entry
            if self.watcher is not None and (member.entry, member.drained) != (before.entry, before.drained):
                self.watcher.listed(member.entry, by_hand, bool(member.drained))
        if not is_held or before.starts != member.starts:
            followed.follower.wake()

    def pace(self, engines: int | None = None) -> float:
        """Seconds between two requests to an engine, more in large fleets to limit the load."""
        return max(self._config.discovery.interval, (len(self._followers) if engines is None else engines) / _LOOKS)

    def _drop(self, names: Iterable[Name], wanted: Mapping[Name, Member]) -> None:
        for name in list(names):
            followed = self._followers.pop(name)
            comes_back = name in wanted and wanted[name].life == followed.member.life
            leaving = asyncio.create_task(_leave(followed.follower, followed.task, comes_back), name=name[0])
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)


class _Membership:
    """An engine or stream in use: the member and its follower."""

    def __init__(self, member: Member, follower: Follower, task: asyncio.Task[None]) -> None:
        self.member, self.follower, self.task = member, follower, task

    def is_same(self, other: Member | None) -> bool:
        """True if `other` is the same engine, not restarted since, with the same settings for events."""
        return other is not None and (_followed(other), other.life) == (_followed(self.member), self.member.life)


def _sources(config: Config) -> list[EngineSource]:
    found: list[EngineSource] = [GivenEngines(config)]
    if config.engines_file is not None:
        found.append(FileOfEngines(config.engines_file, config))
    chosen = [(text, selection(text)) for text in config.discovery.sources]
    namespaces = {it.namespace for _text, it in chosen if not isinstance(it, HostName)}
    account = Account(config.discovery) if namespaces else None
    for text, it in chosen:
        if isinstance(it, HostName):
            found.append(EnginesOfName(text, it, config))
        elif account is not None:
            qualified = len(namespaces) > 1
            if isinstance(it, PoolName):
                found.append(EnginesOfPool(text, it, config, account, qualified=qualified))
            else:
                found.append(EnginesOfPods(text, it, config, account, qualified=qualified))
    if config.objectives and account is not None:
        # Those of the first source: engines of others get the same requests.
        first = next(it for _text, it in chosen if not isinstance(it, HostName))
        pool = first if isinstance(first, PoolName) else PoolName(first.namespace, "")
        found.append(Objectives(config.objectives, pool, config, account))
    return found


def _pods(sources: Iterable[EngineSource]) -> Iterator[EnginesOfPods]:
    for source in sources:
        if isinstance(source, EnginesOfPool):
            yield source.pods
        elif isinstance(source, EnginesOfPods):
            yield source


async def _leave(follower: Follower, task: asyncio.Task[None], comes_back: bool) -> None:
    follower.stop()
    await asyncio.gather(task, return_exceptions=True)
    await follower.left(comes_back=comes_back)
    why = "its entry has changed" if comes_back else "no longer listed"
    logger.info("%s: %s; unregistered", follower.shown, why)


def _without_drain(member: Member) -> Member:
    """Member with `drain` moved from its entry to `drained`, so that draining does not change the entry."""
    entry = member.entry
    if not isinstance(entry, Engine) or entry.drain is None:
        return member
    return replace(member, entry=replace(entry, drain=None), drained=entry.drain)


def _followed(member: Member) -> Entry:
    """The settings of the entry on which receiving its events depends."""
    return member.entry.as_followed() if isinstance(member.entry, Engine) else member.entry


def _shown(entry: Entry) -> str:
    return f"engine {entry.worker}" if isinstance(entry, Engine) else f"stream of {entry.worker}, rank {entry.rank},"
