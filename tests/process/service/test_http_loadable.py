"""Answers over HTTP about host memory, and about a folder that two engines share."""

from __future__ import annotations

from typing import Any

from tests.support.engine import BLOCK_SIZE, Publisher, stored
from tests.support.waiting import until

from kvatlas._native import Service

from .dialect.tools import running
from .http_tools import query, register

PROMPT = list(range(8 * BLOCK_SIZE))
NAMES = list(range(1, 9))
POOL = {
    "name": "folder",
    "members": ["a", "b"],
    "chunk": 2,
    "tier": "external",
    "announces_removals": False,
    "lifetime": None,
    "room": None,
    "directory": None,
    "look_every": 30.0,
}


def announce(publisher: Publisher, start: int, end: int, medium: str, **more: Any) -> None:
    """An engine announces blocks of the prompt."""
    tokens = PROMPT[start * BLOCK_SIZE : end * BLOCK_SIZE]
    event = stored(NAMES[start:end], tokens, parent=NAMES[start - 1] if start else None, medium=medium)
    publisher.publish(event | more)


def loadable(service: Service, worker: str) -> list[tuple[int, int, str, str, bool]]:
    """The parts that a worker can load, in blocks."""
    instance = query(service, token_ids=PROMPT)["instances"].get(worker, {})
    return [
        (it["from"] // BLOCK_SIZE, it["to"] // BLOCK_SIZE, it["tier"], it["source"], it["certain"])
        for it in instance.get("loadable", [])
    ]


def test_host_memory_and_a_shared_folder() -> None:
    with running({"pools": [POOL]}) as service, Publisher() as a, Publisher() as b, Publisher() as c:
        for worker, publisher in (("a", a), ("b", b), ("c", c)):
            assert register(service, worker, publisher.endpoint).status == 201
            publisher.wait_for_reader()
        announce(a, 0, 3, "GPU")
        announce(a, 2, 4, "CPU")
        announce(a, 4, 6, "STORAGE", locality="REMOTE")
        device, host = (0, 3, "gpu", "a", True), (3, 4, "cpu", "a", True)
        until(lambda: loadable(service, "a") == [device, host, (4, 6, "external", "folder", False)])
        assert query(service, token_ids=PROMPT)["instances"]["a"]["pullable"] == 0
        # The other member cannot use what the folder has before it has the beginning.
        assert loadable(service, "b") == []
        announce(b, 0, 4, "GPU")
        until(lambda: loadable(service, "b") == [(0, 4, "gpu", "b", True), (4, 6, "external", "folder", False)])
        announce(c, 0, 4, "GPU")
        until(lambda: "c" in query(service, token_ids=PROMPT)["scores"])
        assert "loadable" not in query(service, token_ids=PROMPT)["instances"]["c"]
        # What was stored by one that has gone stays.
        a.publish({"type": "AllBlocksCleared"})
        until(lambda: query(service, token_ids=PROMPT)["instances"].get("a", {}).get("gpu", 0) == 0)
        announce(b, 0, 2, "STORAGE", locality="REMOTE")
        until(lambda: loadable(service, "a") == [(0, 2, "external", "folder", False)])
        instance = query(service, token_ids=PROMPT)["instances"]["a"]
        assert instance["may_hold_more"] is True
        assert instance["loadable"][0]["age"] >= 0
