"""Pools in snapshots: engines never announce again what they put into a pool."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from tests.support.engine import Publisher
from tests.support.waiting import until

from kvatlas._native import Service

from .http_tools import register
from .test_http_loadable import NAMES, POOL, announce, loadable

FOLDER = (0, 6, "external", "folder", False)


@contextmanager
def keeping(folder: Path, **pool: object) -> Iterator[Service]:
    """A service with a snapshot each twentieth of a second."""
    service = Service(
        json.dumps(
            {
                "http": {"bind": "127.0.0.1:0"},
                "streams": {"pools": [POOL | pool]},
                "snapshot": {"dir": str(folder), "every": 0.05},
                "log": {"level": "off"},
            }
        )
    )
    try:
        yield service
    finally:
        service.close()


def saved(service: Service) -> None:
    """Wait until a snapshot is written that was begun after this."""

    def writes() -> float:
        lines = httpx.get(f"http://{service.address}/metrics", timeout=60).text.splitlines()
        return next(float(it.split()[-1]) for it in lines if it.startswith("kvatlas_snapshot_writes_total "))

    before = writes()
    until(lambda: writes() >= before + 2, "written")


def save_a_filled_pool(folder: Path, a: Publisher) -> None:
    """A snapshot of a service in which the first member has put six blocks into the pool."""
    with keeping(folder) as service:
        assert register(service, "a", a.endpoint).status == 201
        a.wait_for_reader()
        announce(a, 0, 6, "GPU")
        announce(a, 0, 6, "STORAGE", locality="REMOTE")
        until(lambda: loadable(service, "a") != [], "stored")
        saved(service)


def test_what_a_pool_has_outlives_the_service(tmp_path: Path) -> None:
    with Publisher() as a, Publisher() as b:
        save_a_filled_pool(tmp_path, a)
        # A service that has no member yet passes on what it was given.
        with keeping(tmp_path) as service:
            saved(service)
        with keeping(tmp_path) as service:
            assert register(service, "b", b.endpoint).status == 201
            b.wait_for_reader()
            announce(b, 7, 8, "GPU")
            until(lambda: loadable(service, "b") == [FOLDER], "the other member can load all of it")
            # It goes on from there.
            announce(b, 6, 8, "STORAGE", locality="REMOTE")
            until(lambda: loadable(service, "b") == [(0, 8, "external", "folder", False)])
            gone = {"type": "BlockRemoved", "block_hashes": NAMES[2:4], "medium": "STORAGE", "locality": "REMOTE"}
            b.publish(gone)
            until(lambda: loadable(service, "b") == [(0, 2, "external", "folder", False)])


def test_a_pool_that_is_configured_no_more_is_dropped(tmp_path: Path) -> None:
    with Publisher() as a:
        save_a_filled_pool(tmp_path, a)
        with keeping(tmp_path, name="another") as service:
            assert register(service, "a", a.endpoint).status == 201
            a.wait_for_reader()
            announce(a, 0, 2, "GPU")
            until(lambda: loadable(service, "a") == [(0, 2, "gpu", "a", True)])
