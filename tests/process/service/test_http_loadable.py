"""Answers over HTTP about host memory, and about a folder that two engines share."""

from __future__ import annotations

from typing import Any

from tests.support.engine import BLOCK_SIZE, Publisher, removed, stored
from tests.support.waiting import until

from kvatlas._native import Service

from .dialect.tools import ask, running
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
    "evicts_used": False,
    "directory": None,
    "mooncake": None,
    "events": None,
    "key_prefix": None,
    "objects": None,
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


def test_chunks_by_the_name_of_their_last_block() -> None:
    """As vLLM announces them by default: how long they are is registered, and what they contain may come later."""
    with running({}) as service, Publisher() as a, Publisher() as b:
        for worker, publisher in (("a", a), ("b", b)):
            registered = register(service, worker, publisher.endpoint, host_chunk=4)
            assert registered.status == 201
            publisher.wait_for_reader()
        assert register(service, "a", a.endpoint, host_chunk=4).status == 200
        refused = register(service, "a", a.endpoint, host_chunk=2)
        assert (refused.status, refused.json["code"]) == (409, "already_registered")
        announce(a, 0, 8, "GPU")
        by_name = {"block_hashes": [NAMES[3], NAMES[7]], "token_ids": [], "block_size": 0, "parent_block_hash": None}
        announce(a, 0, 0, "CPU", **by_name)
        a.publish(removed(NAMES))
        until(lambda: loadable(service, "a") == [(0, 8, "cpu", "a", True)])
        # Pulled by the other one: the device describes it afterwards.
        announce(b, 0, 0, "CPU", **by_name)
        until(lambda: stream_of(service, "b")["undescribed"] == 2)
        assert loadable(service, "b") == []
        announce(b, 0, 5, "GPU")
        b.publish(removed(NAMES[:5]))
        until(lambda: loadable(service, "b") == [(0, 4, "cpu", "b", True)])
        told = stream_of(service, "b")
        assert (told["undescribed"], told["host_chunk"], told["chunks"]) == (1, 4, {"cpu": 4})


def stream_of(service: Service, worker: str) -> Any:
    """The state of a worker's stream."""
    (about,) = [each for each in ask(service.address, "GET", "/workers").json if each["instance_id"] == worker]
    (stream,) = about["streams"].values()
    return stream


def test_chunks_that_lmcache_announces_under_hashes_of_its_own() -> None:
    """Chunks of four blocks, each under one hash: whole ones count, from the prompt's beginning on."""
    with running({}) as service, Publisher() as a:
        assert register(service, "a", a.endpoint).status == 201
        a.wait_for_reader()

        def chunk(number: int) -> Any:
            tokens = PROMPT[(number - 1) * 4 * BLOCK_SIZE : number * 4 * BLOCK_SIZE]
            event = stored([900 + number], tokens, parent=900 + number - 1 if number > 1 else None, medium="CPU")
            return event | {"block_size": 4 * BLOCK_SIZE}

        announce(a, 0, 6, "GPU")
        a.publish(chunk(1))
        a.publish(chunk(2))
        until(lambda: loadable(service, "a") == [(0, 6, "gpu", "a", True), (6, 8, "cpu", "a", True)])
        told = stream_of(service, "a")
        assert (told["chunks"], told["refused"], told["partial"]) == ({"cpu": 4}, {}, False)
        instance = query(service, token_ids=PROMPT)["instances"]["a"]
        assert (instance["cpu"], instance["pullable"], instance["used"]) == (8 * BLOCK_SIZE, 0, 8 * BLOCK_SIZE)
        a.publish(removed(NAMES[:6]))
        until(lambda: loadable(service, "a") == [(0, 8, "cpu", "a", True)])
        a.publish(removed([901], medium="CPU"))
        until(lambda: loadable(service, "a") == [])
        a.publish(chunk(1))
        until(lambda: loadable(service, "a") == [(0, 8, "cpu", "a", True)])
        # With a salt, which LMCache does not say and the device does not show.
        announce(a, 0, 1, "GPU", extra_keys=[["tenant"]])
        a.publish(chunk(2))
        until(lambda: stream_of(service, "a")["refused"] == {"hidden_salt": 1})
        assert stream_of(service, "a")["partial"] is False
        assert loadable(service, "a") == [], "the device has had none of it without the salt"
