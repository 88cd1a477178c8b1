"""Follower of one engine or configured stream, which keeps its registration up to date until stopped.

An engine that does not answer stays registered: its stream detects silence itself, and its blocks are right until then.
    It is unregistered when it leaves the list, and registered again when its answers change.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Protocol

from kvatlas.errors import DiscoveryError, KvatlasError
from kvatlas.service.config import Config
from kvatlas.service.config.engines import Engine, Stream
from kvatlas.service.discovery.probe import EngineDescription, Prober, Source
from kvatlas.service.discovery.sizes import EmittedSizes
from kvatlas.service.native import Native, about_stream, registration

logger = logging.getLogger("kvatlas.discovery")

_FIRST_RETRY = 0.25
_WHOLE_EVERY = 6  # every sixth look is a full one; the others ask for the event sources only


class Watcher(Protocol):
    """Interface of an observer of engines besides the service: a router, which sends requests to engines.

    It is notified of engines that publish no events as well.
    """

    def listed(self, engine: Engine, ranks: Collection[int], drained: bool, /) -> None:
        """Record that an engine is listed, or that its entry has changed.

        `ranks`: ranks whose streams the configuration gives. `drained`: True if an operator has drained the engine.
        """

    def found(self, engine: Engine, found: EngineDescription | None, /) -> None:
        """Record an engine's answer. `found`: description to register; None if the engine did not answer."""

    def held(self, engine: Engine, held: bool, /) -> None:
        """Record if an engine shall get no new requests (`held`), according to its source."""

    def left(self, engine: Engine, comes_back: bool, /) -> None:
        """Record that an engine has left the list, or only that it will be listed with other settings."""

    def objectives(self, priorities: str, /) -> None:
        """Replace the priorities of requests by objective, in JSON."""


class Follower(ABC):
    """Base of followers, each of which keeps the registration of one listed entry up to date.

    Attributes:
        is_registered: True if the whole entry is registered.
        why_held: Code and reason, from the entry's source, why it gets no new requests; None if it gets them.
    """

    def __init__(
        self, native: Native, config: Config, name: str, shown: str, url: str, *, rank: int | None = None
    ) -> None:
        self.native = native
        self.config = config
        self.name = name
        self.shown = shown
        self.is_registered = False
        self._url = url
        self._rank = rank
        # Errors about events matter only where events are followed.
        self.warns = config.follows_events
        self.settled = asyncio.Event()  # registered once, or waiting would not help
        self.why_held: tuple[str, str] | None = None
        self._stop = asyncio.Event()
        self._woken = asyncio.Event()
        self._told: tuple[str, str | None, str | None] = ("asking", None, None)
        self._problem: str | None = None

    async def run(self) -> None:
        """Keep the entry's registration up to date until `stop`."""
        retry = 0.0
        self._report("asking")
        while not self._stop.is_set():
            looked = False
            try:
                found = await self._or_stop(self.look())
                if self._stop.is_set():
                    return
                looked = True
                delay = await self.apply(found)
                if self._problem is not None:
                    logger.info("%s: recovered; the last problem was: %s", self.shown, self._problem)
                self._problem, retry = None, 0.0
                self.is_registered = True
                self._report("registered")
                self.settled.set()
            except DiscoveryError as problem:
                self._note(str(problem))
                if looked:  # this service refused
                    self.is_registered = False
                self._report("refused" if looked else _state(problem.code), problem.code, str(problem))
                if not problem.temporary:
                    self.settled.set()
                retry = min(retry * 2 or _FIRST_RETRY, max(self.config.discovery.interval, _FIRST_RETRY))
                delay = retry
            except Exception as error:
                # One engine's unexpected answer must not end its follower.
                logger.debug("%s", self.shown, exc_info=error)
                self._note(f"unexpected answer: {error!r}")
                self._report("unusable", "bad_answer", self._problem)
                self.settled.set()
                delay = self.config.discovery.interval
            # Many engines are followed: this spreads the requests over time.
            if await self._woken_within(delay * random.uniform(0.9, 1.1)):
                retry = 0.0

    async def look(self) -> EngineDescription | None:
        """Find the registrations that the entry needs; None if they have not changed. May be cancelled.

        Raises:
            DiscoveryError: The entry cannot be registered.
        """
        return None

    @abstractmethod
    async def apply(self, found: EngineDescription | None) -> float:
        """Register the result of `look`, uninterrupted, and return the seconds until the next look.

        Raises:
            DiscoveryError: The registration was refused.
        """

    def stop(self) -> None:
        """Ask `run` to end."""
        self._stop.set()
        self._woken.set()

    def wake(self) -> None:
        """Query the entry again now, because its source reports a possible change."""
        self._woken.set()

    def hold(self, why: tuple[str, str] | None) -> None:
        """Record the reason why the entry gets no new requests; None if it gets them."""
        if why != self.why_held:
            self.why_held = why
            self._report(*self._told)

    @abstractmethod
    async def leave(self) -> None:
        """Unregister the entry, after `run` has ended."""

    async def left(self, *, comes_back: bool = False) -> None:
        """Unregister an entry that has left the list, like `leave`, or that will be listed with other settings."""
        await self.leave()
        self.native.forget_engine(self.name, self._rank)

    def _report(self, state: str, code: str | None = None, reason: str | None = None) -> None:
        """Report the entry's state to the native part. The entry remains registered, whatever the state."""
        self._told = state, code, reason
        if self.why_held is not None:
            code, reason = self.why_held
        report = {
            "worker": self.name,
            "rank": self._rank,
            "url": self._url,
            "state": "registered" if self.is_registered else state,
            "code": code,
            "reason": reason,
        }
        self.native.report_engine(json.dumps(report))

    def _note(self, problem: str) -> None:
        """Log a problem, but not the same one again."""
        if problem != self._problem:
            self._problem = problem
            # An engine that is only just starting does not answer yet.
            level = logging.WARNING if self.warns and self.why_held is None else logging.DEBUG
            logger.log(level, "%s: %s", self.shown, problem)

    async def _or_stop(self, work: Coroutine[Any, Any, EngineDescription | None]) -> EngineDescription | None:
        """Return the result of a coroutine, or None if `stop` comes first."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not self._stop.is_set():
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return None

    async def _woken_within(self, seconds: float) -> bool:
        """Wait for `seconds`. True if the wait was ended earlier."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True

    async def register(self, announced_by: str | None = None, **about: Any) -> bool:
        """Register the entry at the native service. Returns True if the registration is new.

        Args:
            announced_by: The host of the engine that reported the addresses; None if they are configured.
            about: The fields of the registration.
        """
        text = registration(self.name, source=self.shown, **about)
        return bool(await self._call(self.native.register, text, announced_by))

    async def unregister(self, rank: int | None = None) -> None:
        """Unregister the entry at the native service, ignoring a refusal."""
        try:
            await self._call(self.native.unregister, self.name, rank)
        except DiscoveryError as problem:
            logger.debug("%s: %s", self.shown, problem)

    async def _call(self, call: Callable[..., object], *args: object) -> object:
        # In a thread, because it waits for streams to end.
        try:
            return await asyncio.to_thread(call, *args)
        except KvatlasError as error:
            raise DiscoveryError(str(error), error.code, temporary=error.code == "closed") from error


class StreamFollower(Follower):
    """Follower of a stream from the configuration."""

    def __init__(self, native: Native, config: Config, stream: Stream) -> None:
        super().__init__(native, config, stream.worker, f"stream of {stream.worker}", stream.endpoint, rank=stream.rank)
        self.stream = stream
        self._registered = False

    async def apply(self, found: EngineDescription | None) -> float:
        # Repeated, because a client may have unregistered it over HTTP while the list still has it.
        stream, config = self.stream, self.config
        await self.register(endpoint=stream.endpoint, **about_stream(stream, config))
        self._registered = True
        return config.discovery.interval * _WHOLE_EVERY

    async def leave(self) -> None:
        if self._registered:
            await self.unregister(self.stream.rank)


class EngineFollower(Follower):
    """Follower of an engine, which is asked for the addresses of its events."""

    def __init__(
        self,
        native: Native,
        config: Config,
        prober: Prober,
        engine: Engine,
        pace: Callable[[], float],
        watcher: Watcher | None = None,
        *,
        registers: bool = True,
        sizes: EmittedSizes | None = None,
    ) -> None:
        """Create a follower.

        Args:
            native: The service.
            config: The service's configuration.
            prober: Client that queries the engine.
            engine: The engine.
            pace: Returns the seconds between two requests to the engine.
            watcher: Observer that is notified of the engine.
            registers: False if the engine's streams are configured, so that its own answers about them are ignored.
            sizes: Block sizes found in events, shared by the followers of all engines.
        """
        super().__init__(native, config, engine.worker, f"engine {engine.shown_url}", engine.shown_url)
        self.registers = registers
        self.warns = self.warns and registers
        self._watcher = watcher
        self.engine = engine
        self._prober = prober
        self._pace = pace
        self._sizes = EmittedSizes() if sizes is None else sizes
        self._group = engine.routing_group or config.routing_group
        # A configured size stays.
        self._is_size_set = bool(engine.block_size or config.block_size)
        self._said: EngineDescription | None = None  # as the engine describes itself
        self._found: EngineDescription | None = None
        self._registered: dict[int, Source] = {}
        self._light = 0
        self._other_size: int | None = None
        self._asked_size: int | None = None
        self._has_restarted = False

    async def look(self) -> EngineDescription | None:
        size = await self._size_of_events()
        # After a failure, a restart or other events the whole description is read again: the engine may be another
        # one.
        is_other = self._has_restarted or size != self._asked_size
        light, self._light = 0 if is_other else self._light, 0
        self._has_restarted, self._asked_size = False, size
        try:
            found = await self._prober.whole() if light == 0 or await self._prober.changed() else None
        except DiscoveryError:
            await self._tell(None)
            raise
        self._said = found or self._said
        found = self._with_size(found, size)
        if found is not None:
            await self._tell(found)
        self._light = light
        return found

    def restarted(self) -> None:
        """Query the engine for its whole description now, because its events show a restart."""
        self._has_restarted = True
        self.wake()

    async def _size_of_events(self) -> int | None:
        """Block size of most of the engine's events if it differs from the registered one; None otherwise."""
        if self._found is None or self._is_size_set or not self.registers:
            return None
        return await asyncio.to_thread(self.native.other_block_size, self.name)

    def _with_size(self, found: EngineDescription | None, size: int | None) -> EngineDescription | None:
        """The description to register, with the block size found in events instead of the announced one."""
        if self._said is None or self._is_size_set or not self.registers:
            return found
        # Events with the size that the engine announces say nothing about other engines of its model.
        if self._found is not None and size not in (None, self._found.block_size, self._said.block_size):
            self._note_size(size, self._found, self._said)
        wanted = self._sizes.apply(self._said, self._group)
        is_other = self._found is not None and self._found.block_size != wanted.block_size
        return wanted if found is not None or is_other else None

    def _note_size(self, size: int, registered: EngineDescription, said: EngineDescription) -> None:
        if self._sizes.note((said.model, self._group), size, self.name):
            logger.warning(
                "%s: announces blocks of %d tokens, and its events have blocks of %d: %d is taken for model %s",
                *(self.shown, said.block_size, size, size, said.model),
            )
        elif size != self._other_size:
            logger.warning(
                "%s: its events have blocks of %d tokens, and those of other engines of model %s have %d: give it a "
                "routing group of its own",
                *(self.shown, size, said.model, registered.block_size),
            )
        self._other_size = size

    def _report(self, state: str, code: str | None = None, reason: str | None = None) -> None:
        if self.registers:
            super()._report(state, code, reason)

    async def _tell(self, found: EngineDescription | None) -> None:
        if self._watcher is not None:
            await asyncio.to_thread(self._watcher.found, self.engine, found)

    async def left(self, *, comes_back: bool = False) -> None:
        await super().left(comes_back=comes_back)
        self._sizes.forget(self.name)
        if self._watcher is not None:
            await asyncio.to_thread(self._watcher.left, self.engine, comes_back)

    async def apply(self, found: EngineDescription | None) -> float:
        light, self._light = self._light, 0
        if found is not None:
            if self.registers:
                await self._register_all(found)
            light = _WHOLE_EVERY
        self._light = light - 1
        return self._pace()

    async def _register_all(self, found: EngineDescription) -> None:
        before = self._found
        if before is not None and (before.model, before.block_size) != (found.model, found.block_size):
            logger.info(
                "%s: now model %s, blocks of %d tokens; before, model %s, blocks of %d",
                *(self.shown, found.model, found.block_size, before.model, before.block_size),
            )
            await self._forget(list(self._registered))
        sources = {source.rank: source for source in found.sources}
        await self._forget([rank for rank, source in self._registered.items() if sources.get(rank) != source])
        self._found = found
        for rank, source in sources.items():
            new = await self.register(
                announced_by=self._prober.host,
                endpoint=source.endpoint,
                model=found.model,
                block_size=found.block_size,
                routing_group=self._group,
                rank=rank,
                replay_endpoint=source.replay_endpoint,
                topic=source.topic,
                count_copies=source.count_copies,
                host_chunk=source.host_chunk,
                aliases=found.aliases,
                adapters=found.adapters,
            )
            self._registered[rank] = source
            if new and source.replay_endpoint is None:
                logger.warning(
                    "%s: rank %d has no replay endpoint: earlier events and lost batches cannot be recovered",
                    *(self.shown, rank),
                )
        if before != found:
            logger.info(
                "%s: %s with model %s, blocks of %d tokens, rank%s %s",
                *(self.shown, found.engine, found.model, found.block_size, "" if len(sources) == 1 else "s"),
                ", ".join(map(str, sources)),
            )

    async def _forget(self, ranks: list[int]) -> None:
        for rank in ranks:
            await self.unregister(rank)
            self._registered.pop(rank, None)

    async def leave(self) -> None:
        await self._forget(list(self._registered))


def _state(code: str) -> str:
    """State of an engine that could not be queried, from the error's code."""
    if code in ("timeout", "unreachable"):
        return "unreachable"
    return "no_events" if code == "no_events" else "unusable"
