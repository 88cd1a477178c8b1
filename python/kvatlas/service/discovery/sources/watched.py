"""Source of objects of the Kubernetes API server, which are listed and then watched."""

from __future__ import annotations

import asyncio
import logging
import random
from abc import abstractmethod
from collections.abc import Collection
from typing import Any

import httpx

from kvatlas.errors import DiscoveryError
from kvatlas.service.config import Config
from kvatlas.service.discovery.sources.account import Account
from kvatlas.service.discovery.sources.base import RemoteSource
from kvatlas.service.discovery.sources.kubernetes import (
    GONE,
    NO_WATCH_LIST,
    OPEN,
    ObjectApi,
    ObjectSelection,
    watch_seconds,
)

logger = logging.getLogger("kvatlas.discovery")

_FIRST_PAUSE, _PAUSE, _LONGEST_PAUSE = 0.1, 0.8, 5.0  # seconds between two attempts
_RETURN = 60.0  # seconds within which a server that went away is expected back
_LASTED = 1.0  # seconds after which an attempt was not in vain
_SILENCE = 30.0  # seconds without an event after which the server is asked whether it is there
_BEYOND = 15.0  # seconds that a watch may last longer than the server was asked to keep it
_END_OF_INITIAL = "k8s.io/initial-events-end"


class WatchedObjects(RemoteSource):
    """Source of objects in a cluster. Subclasses interpret the objects."""

    def __init__(self, shown: str, config: Config, account: Account) -> None:
        """Create a source, without querying the API server yet.

        Args:
            shown: The source's name in messages.
            config: The configuration.
            account: Address and credentials of the API server.
        """
        super().__init__(shown, config.discovery.linger)
        self._config, self._account = config, account
        self._version: str | None = None  # of the last list or event
        self._lists = False  # whether the server cannot begin a watch with what is there
        self._heard = 0.0
        self._others = asyncio.Event()  # other objects are to be followed

    @abstractmethod
    def objects(self) -> ObjectSelection:
        """Selection of the objects to watch now.

        Raises:
            DiscoveryError: The selection is unknown.
        """

    @abstractmethod
    def take(self, about: dict[str, Any]) -> None:
        """Process an object that exists."""

    @abstractmethod
    def deleted(self, about: dict[str, Any]) -> None:
        """Process an object that is gone, or no longer selected."""

    def listed(self, names: Collection[str]) -> None:
        """Process the names of all objects that exist."""
        self.only(names)

    def select_others(self) -> None:
        """Watch the objects that `objects` selects now; known ones stay in use until the new list is complete."""
        self._others.set()

    async def run(self) -> None:
        pause, away = _FIRST_PAUSE, _now()
        while True:
            began = _now()
            after: float | None = None
            try:
                await self._follow()
            except DiscoveryError as error:
                if error.code == NO_WATCH_LIST:
                    self._lists = True
                    self.counts[error.code] += 1
                    continue
                if error.code == GONE:
                    # Known objects stay in use until the new list is complete.
                    self._version = None
                    self.counts[error.code] += 1
                    logger.info("%s: changes are lost (%s): asks for all again", self.shown, error)
                else:
                    after = error.after
                    self.is_away(error.code, str(error))
            # A server that restarts is asked often, so that no change is missed; one that stays away is not.
            if _now() - began > _LASTED:
                pause, away = _FIRST_PAUSE, _now()
            await asyncio.sleep(max(after or 0.0, pause) * random.uniform(1, 1.2))
            pause = min(2 * pause, _PAUSE if _now() - away < _RETURN else _LONGEST_PAUSE)

    async def _follow(self) -> None:
        """Watch the objects until the watch ends, or the selection changes."""
        if self._others.is_set():
            self._others.clear()
            self._version = None
        api = ObjectApi(self._account, self.objects(), self._config.discovery.request_timeout)
        async with api.connection() as http:
            if self._version is None and self._lists:
                await self._list(api, http)
            watch = asyncio.ensure_future(self._watch(api, http))
            pulse = asyncio.ensure_future(self._ask_when_silent(api, http))
            others = asyncio.ensure_future(self._others.wait())
            try:
                done, _pending = await asyncio.wait({watch, pulse, others}, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in (watch, pulse, others):
                    task.cancel()
                await asyncio.gather(watch, pulse, others, return_exceptions=True)

    async def _list(self, api: ObjectApi, http: httpx.AsyncClient) -> None:
        seen: set[str] = set()
        listed = ""
        async for objects, version in api.pages(http):
            listed = version
            for about in objects:
                self._take(about, seen)
        self.counts["list"] += 1
        self._listed(seen, listed)

    async def _watch(self, api: ObjectApi, http: httpx.AsyncClient) -> None:
        seen: set[str] | None = set() if self._version is None else None
        self._heard = _now()
        seconds = watch_seconds()
        events = api.events(http, self._version, seconds)
        self.counts["watch"] += 1
        timeout = self._config.discovery.request_timeout
        try:
            async with asyncio.timeout(seconds + _BEYOND):
                while True:
                    # A server that does not know the wish sends all, and never says that these are all.
                    async with asyncio.timeout(None if seen is None else 2 * timeout) as limit:
                        event = await anext(events, None)
                    if event is None:
                        return
                    kind, about = event
                    self._heard = _now()
                    if kind == OPEN:
                        if seen is None:
                            self.is_known_now()
                        continue
                    version = str((about.get("metadata") or {}).get("resourceVersion", ""))
                    if kind == "BOOKMARK":
                        if seen is not None and _ends_initial(about):
                            self._listed(seen, version)
                            self.counts["list"] += 1
                            seen = None
                    elif kind == "DELETED":
                        self.deleted(about)
                    else:
                        self._take(about, seen)
                    if seen is None:
                        self._version = version
        except TimeoutError:
            if seen is not None and limit.expired():
                raise DiscoveryError("no end of the list", NO_WATCH_LIST) from None
        finally:
            await events.aclose()

    async def _ask_when_silent(self, api: ObjectApi, http: httpx.AsyncClient) -> None:
        while True:
            await asyncio.sleep(max(_SILENCE - (_now() - self._heard), 0.05))
            if _now() - self._heard >= _SILENCE:
                self.counts["silence"] += 1
                await api.is_there(http)
                self._heard = _now()
                if self._version is not None:
                    self.is_known_now()

    def _listed(self, seen: set[str], version: str) -> None:
        self.listed(seen)
        self._version = version
        self.is_known_now()

    def _take(self, about: dict[str, Any], seen: set[str] | None) -> None:
        if seen is not None:
            seen.add(name_of_object(about))
        self.take(about)


def name_of_object(about: dict[str, Any]) -> str:
    """Name of an object; empty if it has none."""
    meta = about.get("metadata")
    name = meta.get("name") if isinstance(meta, dict) else None
    return name if isinstance(name, str) else ""


def _ends_initial(bookmark: dict[str, Any]) -> bool:
    annotations = (bookmark.get("metadata") or {}).get("annotations")
    return isinstance(annotations, dict) and annotations.get(_END_OF_INITIAL) == "true"


def _now() -> float:
    return asyncio.get_running_loop().time()
