"""The pods of a cluster as engines, listed and then watched."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import httpx

from kvatlas.errors import DiscoveryError
from kvatlas.service.config import Config
from kvatlas.service.config.sources import PodSelection
from kvatlas.service.discovery.sources.account import Account
from kvatlas.service.discovery.sources.base import RemoteSource
from kvatlas.service.discovery.sources.kubernetes import GONE, NO_WATCH_LIST, OPEN, PodApi, watch_seconds
from kvatlas.service.discovery.sources.pod import Pod, members_of

logger = logging.getLogger("kvatlas.discovery")

_FIRST_PAUSE, _PAUSE, _LONGEST_PAUSE = 0.1, 0.8, 5.0  # seconds between two attempts
_RETURN = 60.0  # seconds within which a server that went away is expected back
_LASTED = 1.0  # seconds after which an attempt was not in vain
_SILENCE = 30.0  # seconds without an event after which the server is asked whether it is there
_BEYOND = 15.0  # seconds that a watch may last longer than the server was asked to keep it
_END_OF_INITIAL = "k8s.io/initial-events-end"
_MOST_PODS = 10_000


class EnginesOfPods(RemoteSource):
    """Pods of a namespace with certain labels.

    A pod is known by its name; another `uid` under the same name is another life of the engine, whose cache is empty.
    """

    def __init__(self, shown: str, pods: PodSelection, config: Config, account: Account, *, qualified: bool) -> None:
        """Make a source. Nothing is asked yet.

        Args:
            shown: The source in messages.
            pods: Which pods.
            config: The configuration.
            account: Address and credentials of the API server.
            qualified: Whether engines' names have the namespace.
        """
        super().__init__(shown, config.discovery.linger)
        self._pods, self._config, self._account = pods, config, account
        self._qualified = qualified
        self._version: str | None = None  # of the last list or event
        self._lists = False  # whether the server cannot begin a watch with what is there
        self._heard = 0.0

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
                    # What is known stays in use until the new list is there.
                    self._version = None
                    self.counts[error.code] += 1
                    logger.info("%s: changes are lost (%s): asks for all pods again", self.shown, error)
                else:
                    after = error.after
                    self.is_away(error.code, str(error))
            # A server that is started anew is asked often, so that nothing is missed; one that stays away is not.
            if _now() - began > _LASTED:
                pause, away = _FIRST_PAUSE, _now()
            await asyncio.sleep(max(after or 0.0, pause) * random.uniform(1, 1.2))
            pause = min(2 * pause, _PAUSE if _now() - away < _RETURN else _LONGEST_PAUSE)

    async def _follow(self) -> None:
        """Follow the pods until the watch ends."""
        namespace = self._pods.namespace or self._account.namespace()
        api = PodApi(self._account, namespace, self._pods.selector, self._config.discovery.request_timeout)
        async with api.connection() as http:
            if self._version is None and self._lists:
                await self._list(api, http)
            watch = asyncio.ensure_future(self._watch(api, http))
            pulse = asyncio.ensure_future(self._ask_when_silent(api, http))
            try:
                done, _pending = await asyncio.wait({watch, pulse}, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in (watch, pulse):
                    task.cancel()
                await asyncio.gather(watch, pulse, return_exceptions=True)

    async def _list(self, api: PodApi, http: httpx.AsyncClient) -> None:
        seen: set[str] = set()
        listed = ""
        async for pods, version in api.pages(http):
            listed = version
            for about in pods:
                self._take(about, seen)
        self.counts["list"] += 1
        self._listed(seen, listed)

    async def _watch(self, api: PodApi, http: httpx.AsyncClient) -> None:
        seen: set[str] | None = set() if self._version is None else None
        self._heard = _now()
        seconds = watch_seconds()
        events = api.events(http, self._version, seconds)
        self.counts["watch"] += 1
        timeout = self._config.discovery.request_timeout
        try:
            async with asyncio.timeout(seconds + _BEYOND):
                while True:
                    # A server that does not know the wish sends all pods, and never says that these are all.
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
                        self._deleted(about)
                    else:
                        self._take(about, seen)
                    if seen is None:
                        self._version = version
        except TimeoutError:
            if seen is not None and limit.expired():
                raise DiscoveryError("no end of the list", NO_WATCH_LIST) from None
        finally:
            await events.aclose()

    async def _ask_when_silent(self, api: PodApi, http: httpx.AsyncClient) -> None:
        while True:
            await asyncio.sleep(max(_SILENCE - (_now() - self._heard), 0.05))
            if _now() - self._heard >= _SILENCE:
                self.counts["silence"] += 1
                await api.is_there(http)
                self._heard = _now()
                if self._version is not None:
                    self.is_known_now()

    def _listed(self, seen: set[str], version: str) -> None:
        self.only(seen)
        self._version = version
        self.is_known_now()

    def _take(self, about: dict[str, Any], seen: set[str] | None) -> None:
        pod = Pod(about)
        if seen is not None:
            seen.add(pod.name)
        try:
            if pod.name not in self._known and len(self._known) >= _MOST_PODS:
                raise DiscoveryError(f"only {_MOST_PODS} pods are followed", "too_many")
            self.put(pod.name, members_of(pod, self._config, qualified=self._qualified))
        except DiscoveryError as why:
            self.leave_out(pod.name, why)

    def _deleted(self, about: dict[str, Any]) -> None:
        pod = Pod(about)
        if pod.is_terminating:
            self.drop(pod.name)
        else:  # its labels no longer fit, and may again
            self.unlist(pod.name)


def _ends_initial(bookmark: dict[str, Any]) -> bool:
    annotations = (bookmark.get("metadata") or {}).get("annotations")
    return isinstance(annotations, dict) and annotations.get(_END_OF_INITIAL) == "true"


def _now() -> float:
    return asyncio.get_running_loop().time()
