"""A stand-in for the native service that remembers what it is told."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kvatlas.errors import ServiceError
from kvatlas.service import Service, native


class FakeNative:
    """A service with the calls of the native one; `refuse` makes registrations of a worker fail."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.address = "127.0.0.1:8090"
        self.admin_address: str | None = None
        self.left = False
        self.holds = set(settings["holds"])
        self.registered: dict[tuple[str, int], dict[str, Any]] = {}
        self.log: list[tuple[str, str, int | None]] = []
        self.refuse: dict[str, str] = {}
        self.reports: dict[tuple[str, int | None], dict[str, Any]] = {}
        self.states: list[tuple[str, str]] = []
        self.sources: dict[str, dict[str, Any]] = {}
        self.announced_by: dict[str, str | None] = {}
        self.forbidden: set[str] = set()
        self.other_sizes: dict[str, int] = {}
        self.restarts: list[str] = []
        self.closed = False
        self.reloads = 0
        self.changes: list[str] = []
        self.drained: float | None = None
        self._lock = threading.Lock()

    def register(self, registration: str, announced_by: str | None = None) -> bool:
        about = json.loads(registration)
        self.announced_by[about["instance_id"]] = announced_by
        name = (about["instance_id"], about["dp_rank"])
        with self._lock:
            if why := self.refuse.get(name[0]):
                raise ServiceError(why, "block_size_mismatch")
            before = self.registered.get(name)
            if before is not None:
                names = {"aliases": about.get("aliases"), "adapters": about.get("adapters")}
                if before | names != about | names:
                    raise ServiceError(f"{name} is registered already", "already_registered")
                before.update(names)
                return False
            self.registered[name] = about
            self.log.append(("register", *name))
            return True

    def check_allowed(self, endpoint: str, announced_by: str) -> None:
        if endpoint in self.forbidden:
            raise ServiceError(f"{endpoint} is not in streams.allow", "endpoint_not_allowed")

    def unregister(self, worker: str, rank: int | None = None) -> int:
        with self._lock:
            gone = [name for name in self.registered if name[0] == worker and rank in (None, name[1])]
            if not gone:
                raise ServiceError(f"worker {worker} is not registered", "unknown_worker")
            for name in gone:
                del self.registered[name]
                self.log.append(("unregister", *name))
            return len(gone)

    def begin_pool_look(self, _pool: str, /) -> bool:
        return False

    def end_pool_look(self, _pool: str, _keys: bytes | None, _publishes: bool, /) -> str | None:
        return None

    def wants_pool_look(self, _pool: str, /) -> bool:
        return False

    def change(self, settings: str, /) -> None:
        self.changes.append(settings)

    def reload(self) -> None:
        self.reloads += 1

    def report_engine(self, report: str) -> None:
        about = json.loads(report)
        with self._lock:
            self.reports[about["worker"], about["rank"]] = about
            self.states.append((about["worker"], about["state"]))

    def report_source(self, report: str) -> None:
        about = json.loads(report)
        with self._lock:
            self.sources[about["source"]] = about

    def forget_engine(self, worker: str, rank: int | None = None) -> bool:
        with self._lock:
            return self.reports.pop((worker, rank), None) is not None

    def other_block_size(self, worker: str) -> int | None:
        return self.other_sizes.get(worker)

    def restarted(self) -> list[str]:
        with self._lock:
            workers, self.restarts = self.restarts, []
        return workers

    def engines(self) -> str:
        listed = [
            {"instance_id": worker, "dp_rank": rank, "since_ms": 0} | about
            for (worker, rank), about in sorted(self.reports.items(), key=str)
        ]
        return json.dumps(listed)

    def workers(self) -> str:
        return "[]"

    def ready(self) -> str | None:
        return json.dumps({"holds": sorted(self.holds), "streams": [], "draining": False}) if self.holds else None

    def release(self, hold: str) -> bool:
        there = hold in self.holds
        self.holds.discard(hold)
        return there

    def leave(self) -> None:
        self.left = True

    def drain(self, timeout: float, delay: float = 0.0) -> bool:
        self.drained = timeout
        return True

    def close(self) -> None:
        self.closed = True

    def endpoints(self) -> dict[tuple[str, int], str]:
        with self._lock:
            return {name: about["endpoint"] for name, about in self.registered.items()}


class Starter:
    """Starts fakes, and has the last one."""

    def __init__(self) -> None:
        self.made: list[FakeNative] = []
        self.refuse: dict[str, str] = {}

    def __call__(self, settings: dict[str, Any]) -> FakeNative:
        self.made.append(FakeNative(settings))
        self.made[-1].refuse.update(self.refuse)
        return self.made[-1]

    @property
    def native(self) -> FakeNative:
        return self.made[-1]


def started(start: Callable[[dict[str, Any]], FakeNative], *args: Any, **kwargs: Any) -> Service:
    """A service whose native part is what `start` makes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "start", start)
        return Service(*args, **kwargs)
