"""Pools whose directory is looked at, and pools with little room: nothing is announced of what goes."""

from __future__ import annotations

from pathlib import Path

import httpx
from tests.support.engine import Publisher
from tests.support.waiting import until

from kvatlas._native import Service

from .dialect.tools import running
from .http_tools import register
from .test_http_loadable import NAMES, POOL, announce, loadable

SOON = 0.02


def file_of(folder: Path, name: int) -> Path:
    """The file of a chunk as vLLM's `fs` tier names it: by the whole digest; events have the end of it."""
    digest = f"{0xABC:048x}{name:016x}"
    return folder / "model_0123456789ab_r0" / digest[:3] / f"{digest[3:5]}_g0" / f"{digest}.bin"


def write(folder: Path, *names: int) -> None:
    for name in names:
        file = file_of(folder, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")


def metric(service: Service, name: str) -> float:
    lines = httpx.get(f"http://{service.address}/metrics", timeout=60).text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


def follow(service: Service, publisher: Publisher) -> None:
    assert register(service, "a", publisher.endpoint).status == 201
    publisher.wait_for_reader()


def test_what_is_deleted_from_the_directory_counts_no_more(tmp_path: Path) -> None:
    pool = POOL | {"directory": str(tmp_path), "look_every": SOON}
    with running({"pools": [pool]}) as service, Publisher() as a:
        follow(service, a)
        # Chunks of two blocks: the file has the name of the last one.
        write(tmp_path, NAMES[1], NAMES[3], NAMES[5])
        (tmp_path / "model_0123456789ab" / "config.json").parent.mkdir()
        (tmp_path / "model_0123456789ab" / "config.json").write_text("{}")
        announce(a, 0, 6, "STORAGE", locality="REMOTE")
        until(lambda: metric(service, "kvatlas_pool_gone_blocks_total") == 3, "looked at")
        whole = [(0, 6, "external", "folder", False)]
        assert loadable(service, "a") == whole, "only blocks within chunks have no file"
        assert metric(service, "kvatlas_pool_blocks") == 3
        file_of(tmp_path, NAMES[3]).unlink()
        until(lambda: loadable(service, "a") == [(0, 2, "external", "folder", False)], "the second chunk is gone")
        assert metric(service, "kvatlas_pool_gone_blocks_total") == 4
        # Written and announced again, it is there again, and with it what comes after it.
        write(tmp_path, NAMES[3])
        announce(a, 2, 4, "STORAGE", locality="REMOTE")
        until(lambda: loadable(service, "a") == whole, "it is there again")


def test_a_directory_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    with running({"pools": [POOL | {"directory": str(folder), "look_every": SOON}]}) as service, Publisher() as a:
        follow(service, a)
        announce(a, 0, 6, "STORAGE", locality="REMOTE")
        until(lambda: loadable(service, "a") == [(0, 6, "external", "folder", False)], "announced")
        assert metric(service, "kvatlas_pool_gone_blocks_total") == 0
        write(folder, NAMES[1])
        until(lambda: loadable(service, "a") == [(0, 2, "external", "folder", False)], "it can be read now")


def test_a_pool_with_room_for_some_blocks_forgets_the_oldest() -> None:
    with running({"pools": [POOL | {"room": 4}]}) as service, Publisher() as a:
        follow(service, a)
        announce(a, 0, 4, "STORAGE", locality="REMOTE")
        until(lambda: loadable(service, "a") == [(0, 4, "external", "folder", False)], "announced")
        announce(a, 4, 6, "STORAGE", locality="REMOTE")
        # The first chunk is gone, and without it the others are of no use.
        until(lambda: loadable(service, "a") == [], "forgotten")
        announce(a, 0, 2, "STORAGE", locality="REMOTE")
        until(lambda: loadable(service, "a") == [(0, 2, "external", "folder", False)], "announced again")
        assert metric(service, "kvatlas_pool_blocks") == 4
