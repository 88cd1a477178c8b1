"""Record what LMCache's coordinator lists and answers while servers store, evict, restart and leave.

LMCache's own code does everything: its hasher, its event bus's subscriber, its gate, its key directory and its HTTP
application. Only the storage is missing: the events that it would publish are made here. Run it with a Python that has
LMCache's requirements (PyTorch may be missing, since nothing here computes):

    python tests/recordings/lmcache/record.py tests/recordings/lmcache/lmcache-0.5.6.json.gz
"""

from __future__ import annotations

import gzip
import importlib.metadata
import importlib.util
import json
import random
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

CHUNK = 256
MODEL, OTHER = "org/model", "org/other"
RANKS = {MODEL: 2, OTHER: 1}
SALT = "tenant"


class _Names(type):
    """Class whose names are numbers, as those of an enumeration."""

    __members__: ClassVar[dict[str, int]] = {}

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return sum(name.encode())

    def __getitem__(cls, _: Any) -> Any:
        return cls

    def __or__(cls, _: Any) -> Any:
        return cls


class _Stand(types.ModuleType):
    """Stand-in for a module with PyTorch in it, which only needs to be imported."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Names(name, (), {})


def _without_torch() -> None:
    for name in ("torch", "lmcache.lmcache_native"):
        sys.modules[name] = _Stand(name)
    import lmcache  # noqa: PLC0415

    lmcache.device_ops = _Stand("device_ops")


if importlib.util.find_spec("torch") is None:
    _without_torch()

from fastapi.testclient import TestClient  # noqa: E402
from lmcache.v1.distributed.api import L1BackendType, ObjectKey  # noqa: E402
from lmcache.v1.distributed.internal_api import L1ObjectMeta  # noqa: E402
from lmcache.v1.mp_coordinator.app import create_app  # noqa: E402
from lmcache.v1.mp_coordinator.cache_events import (  # noqa: E402
    CacheEventPublishError,
    CacheEventSink,
    CacheEventSubscriber,
)
from lmcache.v1.mp_coordinator.config import MPCoordinatorConfig  # noqa: E402
from lmcache.v1.mp_coordinator.schemas import CacheEventsRequest  # noqa: E402
from lmcache.v1.mp_observability.event import Event, EventType  # noqa: E402
from lmcache.v1.multiprocess.token_hasher import TokenHasher  # noqa: E402


def tokens_of(parts: list[list[int]]) -> list[int]:
    """Tokens of a prompt: `[seed, count]` for each part."""
    return [(seed * 1_000_003 + at * 7_919) % 200_000 for seed, count in parts for at in range(count)]


class Sink(CacheEventSink):  # type: ignore[misc] # of a package that is not installed here
    """Posts batches to the coordinator, unless it cannot be reached."""

    def __init__(self, client: TestClient) -> None:
        self.client, self.is_down = client, False

    def publish(self, batches: list[Any]) -> None:
        if self.is_down:
            raise CacheEventPublishError("the coordinator cannot be reached")
        body = CacheEventsRequest(batches=batches).model_dump(mode="json")
        self.client.post("/events", json=body).raise_for_status()


class Server:
    """An LMCache server as its events show it."""

    def __init__(self, name: str, client: TestClient) -> None:
        self.name, self.sink, self.incarnation = name, Sink(client), 0
        self.l1: set[ObjectKey] = set()
        self.restart()

    def restart(self) -> None:
        self.incarnation += 1
        self.l1.clear()
        self.emitter = CacheEventSubscriber(self.sink, self.name, self.incarnation, flush_interval=3600.0)
        self.tell = dict(self.emitter.get_subscriptions())

    def say(self, kind: EventType, **about: Any) -> None:
        self.tell[kind](Event(kind, metadata=about))

    def store(self, tokens: list[int], hashes: list[bytes], keys: list[ObjectKey]) -> None:
        chunks = [tokens[at * CHUNK : (at + 1) * CHUNK] for at in range(len(hashes))]
        self.say(
            EventType.MP_TOKENS,
            chunk_hashes=hashes,
            token_chunks=chunks,
            token_offsets=[at * CHUNK for at in range(len(hashes))],
            parent_hashes=[None, *hashes[:-1]],
        )
        meta = [L1ObjectMeta(1_000, L1BackendType.DRAM) for _ in keys]
        self.say(EventType.L1_WRITE_FINISHED, keys=keys, meta=meta)
        self.l1.update(keys)

    def evict(self, keys: list[ObjectKey]) -> None:
        self.say(EventType.L1_KEYS_EVICTED, keys=keys, meta=[L1ObjectMeta(1_000, L1BackendType.DRAM) for _ in keys])
        self.l1.difference_update(keys)


def main(to: Path) -> None:
    """Record, and write the recording."""
    chance = random.Random(7)
    hasher = TokenHasher(chunk_size=CHUNK)
    prompts: list[dict[str, Any]] = []
    for number in range(10):
        start = [[chance.randrange(3), chance.choice([512, 600, 1024])]] if number else []
        parts = [*start, [100 + number, chance.choice([200, 300, 700, 1500])]]
        model = OTHER if number == 8 else MODEL
        prompts.append({"parts": parts, "salt": SALT if number == 9 else "", "model": model})
    for prompt in prompts:
        prompt["tokens"] = tokens_of(prompt["parts"])
        prompt["hashes"] = hasher.compute_chunk_hashes(prompt["tokens"])

    def keys_of(prompt: dict[str, Any], upto: int) -> list[ObjectKey]:
        ranks = RANKS[prompt["model"]]
        rank = [ObjectKey.ComputeKVRank(ranks, number, ranks, number) for number in range(ranks)]
        hashes = prompt["hashes"][:upto]
        return [ObjectKey(it, prompt["model"], each, 0, prompt["salt"]) for it in hashes for each in rank]

    steps: list[dict[str, Any]] = []
    with TestClient(create_app(MPCoordinatorConfig(health_check_interval=0, eviction_check_interval=0))) as client:
        servers = [Server(name, client) for name in ("server-a", "server-b")]
        for server in servers:
            client.post("/instances", json={"instance_id": server.name, "ip": "127.0.0.1", "http_port": 1})
        shared: set[ObjectKey] = set()
        for number in range(60):
            server = chance.choice(servers)
            prompt = chance.choice(prompts)
            held = sorted(server.l1, key=repr)
            pooled = sorted(shared, key=repr)
            does = chance.choice(
                ["store", "store", "offload", "offload", "evict", "delete", "lose", "restart", "leave"]
            )
            if number < 6:
                does = "store" if number % 2 else "offload"
            if does in ("store", "offload", "lose"):
                upto = chance.randint(1, max(1, len(prompt["hashes"])))
                keys = keys_of(prompt, upto)
                if chance.random() < 0.2:
                    keys = keys[: len(keys) - 1]  # one rank's part of the last chunk is still on its way
                server.sink.is_down = does == "lose"
                server.store(prompt["tokens"], prompt["hashes"][:upto], keys)
                if does == "offload":
                    server.say(
                        EventType.L2_KEYS_STORED, keys=keys, sizes=[1_000] * len(keys), backend="fs", shared=True
                    )
                    shared.update(keys)
            elif does == "evict" and held:
                server.evict(chance.sample(held, k=min(len(held), chance.randint(1, 6))))
            elif does == "delete" and pooled:
                gone = chance.sample(pooled, k=min(len(pooled), chance.randint(1, 4)))
                server.say(EventType.L2_KEYS_DELETED, keys=gone, backend="fs", shared=True)
                shared.difference_update(gone)
            elif does == "restart":
                server.restart()
                server.store(prompt["tokens"], prompt["hashes"][:1], keys_of(prompt, 1))
            elif does == "leave":
                client.delete(f"/instances/{server.name}")
                server.l1.clear()
            server.emitter.flush()
            server.sink.is_down = False
            pages = client.get("/directory/keys", params={"limit": 10_000}).json()
            lookups = []
            for asked in prompts:
                body = {
                    "token_ids": asked["tokens"],
                    "model_name": asked["model"],
                    "world_size": RANKS[asked["model"]],
                    "cache_salt": asked["salt"],
                }
                answer = client.post("/directory/lookup", json=body).json()
                copies = [
                    [[it["instance_id"], it["tier"], it["shared"]] for it in each["placements"]]
                    for each in answer["results"]
                ]
                lookups.append({"chunks": answer["chunks"], "copies": copies})
            steps.append({"did": does, "listing": pages, "lookups": lookups})
    recording = {
        "lmcache": importlib.metadata.version("lmcache") if _is_installed() else "0.5.6",
        "chunk": CHUNK,
        "ranks": RANKS,
        "prompts": [
            {
                "parts": prompt["parts"],
                "salt": prompt["salt"],
                "model": prompt["model"],
                "hashes": [it.hex() for it in prompt["hashes"]],
            }
            for prompt in prompts
        ],
        "steps": steps,
    }
    to.write_bytes(gzip.compress(json.dumps(recording, separators=(",", ":")).encode(), mtime=0))


def _is_installed() -> bool:
    try:
        importlib.metadata.version("lmcache")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    main(Path(sys.argv[1]))
