"""InferenceObjectives of a cluster, which give priorities to the requests that name them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

from kvatlas.errors import DiscoveryError
from kvatlas.service.config import Config
from kvatlas.service.config.sources import PoolName
from kvatlas.service.discovery.sources.account import Account
from kvatlas.service.discovery.sources.kubernetes import ObjectSelection
from kvatlas.service.discovery.sources.watched import WatchedObjects, name_of_object

_LOWEST, _HIGHEST = -(1 << 31), (1 << 31) - 1


class Objectives(WatchedObjects):
    """Source of the InferenceObjectives of a pool, or of a namespace: priorities by objective.

    Attributes:
        tell: Called after each change with the priorities of all objectives in JSON; set before `run`.
    """

    def __init__(self, version: str, pool: PoolName, config: Config, account: Account) -> None:
        """Create a source, without querying the API server yet.

        Args:
            version: API group and version of InferenceObjectives.
            pool: The pool whose objectives count; with an empty name, those of all pools of the namespace.
            config: The configuration.
            account: Address and credentials of the API server.
        """
        super().__init__(f"objectives:{pool.namespace}/{pool.name}", config, account)
        self.tell: Callable[[str], None] = lambda _priorities: None
        self._version_path, self._pool = f"/apis/{version}", pool
        self._priorities: dict[str, int] = {}
        self.first.set()  # requests need not wait for them

    def objects(self) -> ObjectSelection:
        namespace = self._pool.namespace or self._account.namespace()
        return ObjectSelection("InferenceObjectives", "inferenceobjectives", namespace, (), self._version_path)

    def take(self, about: dict[str, Any]) -> None:
        name = name_of_object(about)
        spec = about.get("spec")
        spec = spec if isinstance(spec, dict) else {}
        pool = spec.get("poolRef")
        if self._pool.name and not (isinstance(pool, dict) and pool.get("name") == self._pool.name):
            self._change(name, None)
            return
        priority = spec.get("priority", 0)
        if not isinstance(priority, int) or not _LOWEST <= priority <= _HIGHEST:
            self._change(name, None)
            self.leave_out(name, DiscoveryError("its spec.priority is not an integer of 32 bits", "bad_objective"))
            return
        self.put(name, ())
        self._change(name, priority)

    def deleted(self, about: dict[str, Any]) -> None:
        self.drop(name_of_object(about))
        self._change(name_of_object(about), None)

    def listed(self, names: Collection[str]) -> None:
        for name in [*self._known, *self._left_out]:
            if name not in names:
                self.drop(name)
        self._priorities = {name: priority for name, priority in self._priorities.items() if name in names}
        self._tell()  # that there are none is news, too

    def _change(self, name: str, priority: int | None) -> None:
        if self._priorities.get(name) == priority:
            return
        if priority is None:
            del self._priorities[name]
        else:
            self._priorities[name] = priority
        if self._state == "following":
            self._tell()

    def _tell(self) -> None:
        self.tell(json.dumps(self._priorities))

    def _counted(self) -> str:
        return f"{len(self._priorities)} objectives are known"
