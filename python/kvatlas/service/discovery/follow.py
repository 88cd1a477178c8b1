"""Keeps one engine, or one worker named by hand, registered as it is, until told to stop.

An engine that does not answer stays registered: that its stream is silent is found out by the stream itself, and until
then what it holds is still right. It is unregistered when it left the list, and registered anew when it says something
else than before.
"""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.service.discovery.probe import Found, Prober, Problem, Source
from kvatlas.service.engines import Engine, Worker
from kvatlas.service.native import Native, registration
from kvatlas.service.settings import Settings

logger = logging.getLogger("kvatlas.discovery")

_FIRST_RETRY = 0.25
_WHOLE_EVERY = 6  # checks; those between ask for the event sources only


class Follower(ABC):
    """One entry of the list."""

    def __init__(self, native: Native, settings: Settings, name: str, shown: str) -> None:
        self.native = native
        self.settings = settings
        self.name = name
        self.shown = shown
        self.settled = asyncio.Event()  # registered once, or there is no use in waiting
        self._stop = asyncio.Event()
        self._problem: str | None = None

    async def run(self) -> None:
        """Follow, until `stop`."""
        retry = 0.0
        while not self._stop.is_set():
            try:
                found = await self._or_stop(self.look())
                if self._stop.is_set():
                    return
                delay = await self.apply(found)
                if self._problem is not None:
                    logger.info("%s: it is well again; before, %s", self.shown, self._problem)
                self._problem, retry = None, 0.0
                self.settled.set()
            except Problem as problem:
                self._note(str(problem))
                if not problem.temporary:
                    self.settled.set()
                retry = min(retry * 2 or _FIRST_RETRY, max(self.settings.discovery.interval, _FIRST_RETRY))
                delay = retry
            except Exception as error:
                # One engine's strange answer must not end the watch over it.
                logger.debug("%s", self.shown, exc_info=error)
                self._note(f"its answers cannot be understood: {error!r}")
                self.settled.set()
                delay = self.settings.discovery.interval
            # Many engines are followed: not all at the same moment.
            await self._sleep(delay * random.uniform(0.9, 1.1))

    async def look(self) -> Found | None:
        """What there is to be registered; None for what was there before. May be cut short.

        Raises:
            Problem: It cannot be registered.
        """
        return None

    @abstractmethod
    async def apply(self, found: Found | None) -> float:
        """Register it, to the end, and say in how many seconds to look again.

        Raises:
            Problem: It was refused.
        """

    def stop(self) -> None:
        """`run` shall end."""
        self._stop.set()

    @abstractmethod
    async def leave(self) -> None:
        """Unregister what was registered, after `run` has ended."""

    def _note(self, problem: str) -> None:
        """Say it once."""
        if problem != self._problem:
            self._problem = problem
            logger.warning("%s: %s", self.shown, problem)

    async def _or_stop(self, work: Coroutine[Any, Any, Found | None]) -> Found | None:
        """The result, unless told to stop before there is one."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not self._stop.is_set():
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return None

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return

    async def register(self, **about: Any) -> bool:
        """Tell the native service. True if that is news to it."""
        text = registration(self.name, source=self.shown, **about)
        return bool(await self._call(self.native.register, text))

    async def unregister(self, rank: int | None = None) -> None:
        """Tell the native service. It is fine if somebody was faster."""
        try:
            await self._call(self.native.unregister, self.name, rank)
        except Problem as problem:
            logger.debug("%s: %s", self.shown, problem)

    async def _call(self, call: Callable[..., object], *args: object) -> object:
        # In a thread, because it waits for streams to end.
        try:
            return await asyncio.to_thread(call, *args)
        except KvatlasError as error:
            raise Problem(str(error), temporary=error.code == "closed") from error


class WorkerFollower(Follower):
    """A worker's rank that was named by hand."""

    def __init__(self, native: Native, settings: Settings, worker: Worker) -> None:
        super().__init__(native, settings, worker.id, f"worker {worker.id}")
        self.worker = worker
        self._registered = False

    async def apply(self, found: Found | None) -> float:
        # Also later: somebody may have unregistered it over HTTP, and the list says that it is to be there.
        worker, settings = self.worker, self.settings
        await self.register(
            endpoint=worker.endpoint,
            model=worker.model or settings.model or "",
            block_size=worker.block_size or settings.block_size or 0,
            group=worker.routing_group or settings.routing_group,
            rank=worker.rank,
            replay=worker.replay,
            topic=worker.topic,
        )
        self._registered = True
        return settings.discovery.interval * _WHOLE_EVERY

    async def leave(self) -> None:
        if self._registered:
            await self.unregister(self.worker.rank)


class EngineFollower(Follower):
    """An engine that is asked."""

    def __init__(
        self, native: Native, settings: Settings, prober: Prober, engine: Engine, pace: Callable[[], float]
    ) -> None:
        super().__init__(native, settings, engine.worker, f"engine {engine.shown_url}")
        self.engine = engine
        self._prober = prober
        self._pace = pace
        self._found: Found | None = None
        self._registered: dict[int, Source] = {}
        self._light = 0

    async def look(self) -> Found | None:
        light, self._light = self._light, 0  # after a failure all is asked anew: the engine may be another one
        found = await self._prober.whole() if light == 0 or await self._prober.changed() else None
        self._light = light
        return found

    async def apply(self, found: Found | None) -> float:
        light, self._light = self._light, 0
        if found is not None:
            await self._register_all(found)
            light = _WHOLE_EVERY
        self._light = light - 1
        return self._pace()

    async def _register_all(self, found: Found) -> None:
        before = self._found
        if before is not None and (before.model, before.block_size) != (found.model, found.block_size):
            logger.info(
                "%s: now model %s, blocks of %d tokens; it was model %s, blocks of %d",
                *(self.shown, found.model, found.block_size, before.model, before.block_size),
            )
            await self._forget(list(self._registered))
        sources = {source.rank: source for source in found.sources}
        await self._forget([rank for rank, source in self._registered.items() if sources.get(rank) != source])
        self._found = found
        for rank, source in sources.items():
            new = await self.register(
                endpoint=source.endpoint,
                model=found.model,
                block_size=found.block_size,
                group=self.engine.routing_group or self.settings.routing_group,
                rank=rank,
                replay=source.replay,
                topic=source.topic,
            )
            self._registered[rank] = source
            if new and source.replay is None:
                logger.warning(
                    "%s: rank %d has no replay endpoint: what it announced before, or what gets lost, stays unknown",
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
