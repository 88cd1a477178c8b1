"""Source of the pods of a cluster, as engines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from kvatlas.errors import DiscoveryError
from kvatlas.service.config import Config
from kvatlas.service.config.sources import PodSelection
from kvatlas.service.discovery.sources.account import Account
from kvatlas.service.discovery.sources.base import TERMINATING, name_of
from kvatlas.service.discovery.sources.kubernetes import ObjectApi, ObjectSelection
from kvatlas.service.discovery.sources.pod import Pod, members_of
from kvatlas.service.discovery.sources.watched import WatchedObjects

_MOST_PODS = 10_000


class EnginesOfPods(WatchedObjects):
    """Source of the pods of a namespace with certain labels, as engines.

    A pod is identified by its name; another `uid` under the same name is another life of the engine, whose cache is
    empty.
    """

    def __init__(self, shown: str, pods: PodSelection, config: Config, account: Account, *, qualified: bool) -> None:
        """Create a source, without querying the API server yet.

        Args:
            shown: The source's name in messages.
            pods: Selection of the pods.
            config: The configuration.
            account: Address and credentials of the API server.
            qualified: True if engines' names include the namespace.
        """
        super().__init__(shown, config, account)
        self._pods, self._qualified = pods, qualified
        self._costs: dict[str, int | None] = {}  # deletion costs in the pods' annotations

    def select(self, pods: PodSelection) -> None:
        """Replace the selection of pods. Pods that are in both selections stay in use without interruption."""
        if pods != self._pods:
            self._pods = pods
            self.select_others()

    def objects(self) -> ObjectSelection:
        namespace = self._pods.namespace or self._account.namespace()
        return ObjectSelection("pods", "pods", namespace, (("labelSelector", self._pods.selector),))

    def take(self, about: dict[str, Any]) -> None:
        pod = Pod(about)
        try:
            if pod.name not in self._known and len(self._known) >= _MOST_PODS:
                raise DiscoveryError(f"only {_MOST_PODS} pods are followed", "too_many")
            members = members_of(pod, self._config, qualified=self._qualified, target_ports=self._pods.ports)
            self._costs[pod.name] = pod.deletion_cost
            self.put(pod.name, members)
        except DiscoveryError as why:
            self.leave_out(pod.name, why)

    def deleted(self, about: dict[str, Any]) -> None:
        pod = Pod(about)
        if pod.is_terminating:
            self.drop(pod.name)
        else:  # its labels no longer fit, and may again
            self.unlist(pod.name)

    def drop(self, key: str) -> None:
        super().drop(key)
        self._costs.pop(key, None)

    def costs(self) -> dict[str, tuple[list[str], int | None]]:
        """Workers of each pod that is not ending, and the deletion cost in its annotation; None without one."""
        return {
            pod: ([name_of(member.entry)[0] for member in members], self._costs.get(pod))
            for pod, members in self._known.items()
            if not any(member.state == TERMINATING for member in members)
        }

    @asynccontextmanager
    async def api(self) -> AsyncIterator[tuple[ObjectApi, httpx.AsyncClient]]:
        """Access to the pods at the API server.

        Raises:
            DiscoveryError: The API server does not answer, or refuses.
        """
        api = ObjectApi(self._account, self.objects(), self._config.discovery.request_timeout)
        async with api.connection() as http:
            yield api, http
