"""Source of the pods of an InferencePool, as engines at the pool's ports."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

from kvatlas.errors import DiscoveryError
from kvatlas.service.config import Config
from kvatlas.service.config.sources import PodSelection, PoolName, pods
from kvatlas.service.discovery.sources.account import Account
from kvatlas.service.discovery.sources.base import Member
from kvatlas.service.discovery.sources.kubernetes import ObjectSelection
from kvatlas.service.discovery.sources.pods import EnginesOfPods
from kvatlas.service.discovery.sources.watched import WatchedObjects, name_of_object

_GROUP = "/apis/inference.networking.k8s.io/v1"
_MOST_PORTS = 8


class EnginesOfPool(WatchedObjects):
    """Source of the pods of an InferencePool: an engine at each of the pool's ports.

    Engines that a change of the pool keeps stay in use.
    """

    def __init__(self, shown: str, pool: PoolName, config: Config, account: Account, *, qualified: bool) -> None:
        """Create a source, without querying the API server yet.

        Args:
            shown: The source's name in messages.
            pool: Name of the pool.
            config: The configuration.
            account: Address and credentials of the API server.
            qualified: True if engines' names include the namespace.
        """
        super().__init__(shown, config, account)
        self._pool = pool
        self._selected: PodSelection | None = None
        self._engines = EnginesOfPods(shown, PodSelection(pool.namespace, ""), config, account, qualified=qualified)
        self._running: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None

    @property
    def pods(self) -> EnginesOfPods:
        """Source of the pods that the pool selects."""
        return self._engines

    @property
    def members(self) -> Iterable[Member]:
        return self._engines.members

    def report(self) -> dict[str, Any] | None:
        own, pods = super().report(), self._engines.report()
        if own is None or pods is None:
            return own
        if own["state"] == "following" and self._selected is not None:
            own |= {name: pods[name] for name in ("state", "code", "reason")}
        own["counts"] = dict(self.counts + self._engines.counts)
        return own

    def states(self) -> Counter[str]:
        return self._engines.states() + Counter(self._left_out.values())

    async def run(self) -> None:
        self._engines.changed = self.changed
        try:
            await super().run()
        finally:
            await self._stop(self._settling)
            await self._stop(self._running)

    def objects(self) -> ObjectSelection:
        namespace = self._pool.namespace or self._account.namespace()
        query = (("fieldSelector", f"metadata.name={self._pool.name}"),)
        return ObjectSelection("InferencePools", "inferencepools", namespace, query, _GROUP)

    def take(self, about: dict[str, Any]) -> None:
        if name_of_object(about) != self._pool.name:
            return
        try:
            selected = self._selection(about.get("spec"))
        except DiscoveryError as why:
            self.leave_out(self._pool.name, why)  # what it selected before stays
            return
        self._left_out.pop(self._pool.name, None)
        self._engines.select(selected)
        self._selected = selected
        if self._running is None:
            self._engines.select_others()
            self._running = asyncio.ensure_future(self._engines.run())

    def deleted(self, about: dict[str, Any]) -> None:
        if name_of_object(about) == self._pool.name:
            self._gone()

    def listed(self, names: Collection[str]) -> None:
        if self._pool.name not in names:
            self._gone()

    def settle(self) -> None:
        if self._running is None:
            self.first.set()
        elif self._settling is None:
            self._settling = asyncio.ensure_future(self._settle())

    async def _settle(self) -> None:
        await self._engines.first.wait()
        self.first.set()

    def _gone(self) -> None:
        """Keep the engines of a deleted pool for a while, because it may come back."""
        self.leave_out(self._pool.name, DiscoveryError("there is no such InferencePool", "no_pool"))
        running, self._running, self._selected = self._running, None, None
        if running is not None:
            running.cancel()
        self._engines.only(())

    def _selection(self, spec: object) -> PodSelection:
        """Selection of a pool's pods, from the pool's specification.

        Raises:
            DiscoveryError: The pool selects no pods.
        """
        about = spec if isinstance(spec, dict) else {}
        labels = about.get("selector")
        labels = labels.get("matchLabels") if isinstance(labels, dict) else None
        ports = about.get("targetPorts")
        numbers = [it.get("number") for it in ports if isinstance(it, dict)] if isinstance(ports, list) else []
        if not isinstance(labels, dict) or not labels:
            raise DiscoveryError("it has no spec.selector.matchLabels, and so no pods", "bad_pool")
        if not 1 <= len(numbers) <= _MOST_PORTS or not all(isinstance(it, int) and 0 < it < 1 << 16 for it in numbers):
            raise DiscoveryError(f"it must have from 1 to {_MOST_PORTS} spec.targetPorts, each a number", "bad_pool")
        wanted = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        try:
            return pods(self._pool.namespace, f"{wanted}:{','.join(map(str, numbers))}")
        except ValueError as error:
            raise DiscoveryError(f"its labels cannot be selected by: {error}", "bad_pool") from error

    def _counted(self) -> str:
        selected = self._selected
        if selected is None:
            return "no pods are selected"
        return f"selects pods with {selected.selector}, ports {', '.join(map(str, selected.ports))}"

    async def _stop(self, task: asyncio.Task[None] | None) -> None:
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
