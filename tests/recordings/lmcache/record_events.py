"""Record what LMCache's connector publishes in the event stream of a vLLM engine, and what it would load after that.

LMCache's own code does everything that decides about events: the hasher, the server's module that turns changes of its
memory into records, and of the engine's side the worker's adapter and the connector, with their announced hashes, their
resynchronization and their conversion to vLLM's events. Storage, transport and vLLM's own classes are stand-ins. Run it
with a Python that has LMCache's requirements:

    python tests/recordings/lmcache/record_events.py tests/recordings/lmcache/events-0.5.6.json.gz
"""

from __future__ import annotations

import gzip
import importlib.abc
import importlib.machinery
import json
import random
import sys
import threading
from collections import OrderedDict, defaultdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from record import CHUNK, _Stand, tokens_of  # type: ignore[import-not-found] # beside this script

MODEL = "org/model"
ROOM = 12
"""Keys that a server's memory has room for, of one rank."""


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stand-ins for all modules of vLLM, which are imported for their types only."""

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if f"{name}.".startswith("vllm.") else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        stand: ModuleType = _Stand(spec.name)
        return stand

    def exec_module(self, module: ModuleType) -> None:
        events = {"BlockStored": _Stored, "BlockRemoved": _Removed, "KVEventAggregator": _Aggregator}
        if module.__name__ == "vllm.distributed.kv_events":
            module.__dict__.update(events)
        if module.__name__ == "vllm.v1.core.kv_cache_utils":
            # As vLLM does unless it is told to publish whole digests.
            module.__dict__.update(
                BlockHash=bytes, maybe_convert_block_hash=lambda digest: int.from_bytes(digest, "big") & (1 << 64) - 1
            )


class _Event(dict[str, Any]):
    def __init__(self, **fields: Any) -> None:
        super().__init__({"type": self.KIND} | fields)  # type: ignore[attr-defined] # of the classes below

    def __hash__(self) -> int:  # type: ignore[override] # as vLLM's events, which are not changed
        return hash(json.dumps(self))


class _Stored(_Event):
    KIND = "BlockStored"


class _Removed(_Event):
    KIND = "BlockRemoved"


class _Aggregator:
    """Of one worker, all events are common to all workers."""

    def __init__(self, _workers: int) -> None:
        self.events: list[_Event] = []

    def add_events(self, events: list[_Event]) -> None:
        self.events += events

    def get_all_events(self) -> list[_Event]:
        return self.events

    def clear_events(self) -> None:
        self.events = []

    def reset_workers(self) -> None: ...


sys.meta_path.insert(0, _Finder())

from lmcache.integration.vllm.lmcache_mp_connector import LMCacheMPConnector  # noqa: E402
from lmcache.integration.vllm.vllm_multi_process_adapter import LMCacheMPWorkerAdapter  # noqa: E402
from lmcache.v1.distributed.api import ObjectKey  # noqa: E402
from lmcache.v1.mp_observability.event import Event, EventType  # noqa: E402
from lmcache.v1.multiprocess.modules.kv_events import KVEventModule  # noqa: E402
from lmcache.v1.multiprocess.token_hasher import TokenHasher  # noqa: E402


class Bus:
    """The server's bus of events, which calls its subscribers at once."""

    enabled = True

    def __init__(self) -> None:
        self.subscribers: dict[EventType, list[Any]] = defaultdict(list)
        self.dropped = 0

    def subscribe(self, kind: EventType, subscriber: Any) -> None:
        self.subscribers[kind].append(subscriber)

    def subscribe_drops(self, subscriber: Any) -> None:
        self.on_drop = subscriber

    def dropped_events_count(self) -> int:
        return self.dropped

    def say(self, kind: EventType, **about: Any) -> None:
        for subscriber in self.subscribers[kind]:
            subscriber(Event(kind, metadata=about))


class Server:
    """A server of LMCache, whose memory drops the key that was used longest ago."""

    def __init__(self) -> None:
        self.keys: OrderedDict[ObjectKey, None] = OrderedDict()
        self.restart()

    def restart(self) -> None:
        self.keys.clear()
        self.bus = Bus()
        self.module = KVEventModule(SimpleNamespace(event_bus=self.bus))  # all that it uses

    def store(self, tokens: list[int], hashes: list[bytes], salt: str) -> None:
        chunks = [tokens[at * CHUNK : (at + 1) * CHUNK] for at in range(len(hashes))]
        self.bus.say(
            EventType.MP_TOKENS,
            chunk_hashes=hashes,
            token_chunks=chunks,
            parent_hashes=[None, *hashes[:-1]][: len(hashes)],
        )
        rank = ObjectKey.ComputeKVRank(1, 0, 1, 0)
        keys = [ObjectKey(it, MODEL, rank, 0, salt) for it in hashes]
        new = [key for key in keys if key not in self.keys]
        # The beginning of a prompt is the last to go.
        for key in reversed(keys):
            self.keys[key] = None
            self.keys.move_to_end(key)
        self.bus.say(EventType.L1_WRITE_FINISHED, keys=new)
        gone = [self.keys.popitem(last=False)[0] for _ in range(max(0, len(self.keys) - ROOM))]
        if gone:
            self.bus.say(EventType.L1_KEYS_EVICTED, keys=gone)

    def lose(self, count: int) -> None:
        """Evict without a word: the bus has dropped the event, which is all that it says."""
        for _ in range(min(count, len(self.keys))):
            self.keys.popitem(last=False)
        self.bus.dropped += 1
        self.bus.on_drop()

    def found(self, hashes: list[bytes], salt: str) -> int:
        """Leading chunks of a prompt."""
        held = {(key.chunk_hash, key.cache_salt) for key in self.keys}
        return [*((it, salt) in held for it in hashes), False].index(False)


class Engine:
    """The connector of an engine, from the server's records to vLLM's events."""

    def __init__(self, server: Server, *, follows: bool) -> None:
        self.server, self.cursor = server, 0
        adapter: Any = LMCacheMPWorkerAdapter.__new__(LMCacheMPWorkerAdapter)
        metric = SimpleNamespace(inc=lambda *_: None, set=lambda *_: None)
        adapter.__dict__.update(
            _kv_events_enabled=True,
            _kv_event_lock=threading.RLock(),
            _kv_events=[],
            _kv_event_server_source=follows,
            _kv_event_subscriber=False,
            _kv_event_receiver=None,
            _kv_event_incarnation=None,
            _announced_kv_hashes=set(),
            _kv_events_buffered=metric,
            _kv_events_generated=metric,
            _kv_events_drained=metric,
            _kv_event_batches=metric,
            _kv_event_resyncs=defaultdict(lambda: metric),
            _kv_event_hasher=TokenHasher(chunk_size=CHUNK),
            _ensure_heartbeat_started=lambda: None,
            _pending_store_kv_events={},
            lmcache_tokens_per_chunk=CHUNK,
        )
        self.adapter, self.follows = adapter, follows
        self.connector: Any = SimpleNamespace(
            _enable_kv_events=True, worker_adapter=adapter, _kv_cache_events=[], lazy_offload=False
        )

    def stored(self, tokens: list[int], start: int, end: int) -> None:
        """Store a request's chunks. A connector that does not follow the server announces them itself."""
        key = SimpleNamespace(token_ids=tokens, start=start * CHUNK, end=end * CHUNK)
        if not self.follows:
            self.adapter._pending_store_kv_events["request"] = self.adapter._build_store_kv_events(key)
            self.adapter._publish_store_kv_events("request")

    def events(self) -> list[dict[str, Any]]:
        """Events of the engine's next step."""
        while self.follows:
            batch = self.server.module.read_kv_events(MODEL, self.cursor, 4)
            is_new = batch.incarnation != self.adapter._kv_event_incarnation
            self.adapter._apply_kv_event_batch(batch)
            self.cursor = batch.next_cursor
            if not batch.events and not is_new:
                break
        output = LMCacheMPConnector.get_kv_connector_kv_cache_events(self.connector)
        LMCacheMPConnector.update_connector_output(self.connector, SimpleNamespace(kv_cache_events=output))
        return list(LMCacheMPConnector.take_events(self.connector))


def record(seed: int, salts: list[str], *, follows: bool) -> dict[str, Any]:
    """One engine's stream. Another engine of the same server stores as well if `salts` has none."""
    chance, hasher = random.Random(seed), TokenHasher(chunk_size=CHUNK)
    prompts: list[dict[str, Any]] = []
    for number in range(10):
        start = [[chance.randrange(3), chance.choice([512, 600, 1024])]] if number else []
        parts = [*start, [100 + number, chance.choice([200, 300, 700, 1500])]]
        prompts += [{"parts": parts, "salt": salt} for salt in chance.sample(salts, chance.randint(1, len(salts)))]
    for prompt in prompts:
        prompt["tokens"] = tokens_of(prompt["parts"])
        prompt["hashes"] = hasher.compute_chunk_hashes(prompt["tokens"])
    server = Server()
    engine = Engine(server, follows=follows)
    steps: list[dict[str, Any]] = []
    for number in range(60):
        prompt = chance.choice(prompts)
        does = chance.choice(["store"] * 8 + ["other", "lose", "restart"]) if number > 10 else "store"
        if does == "other" and salts != [""]:
            does = "store"
        if not follows and does != "other":
            does = "store"
        if does in ("store", "other"):
            upto = chance.randint(1, len(prompt["hashes"])) if prompt["hashes"] else 0
            found = min(upto, server.found(prompt["hashes"], prompt["salt"]))
            server.store(prompt["tokens"], prompt["hashes"][:upto], prompt["salt"])
            if does == "store":
                engine.stored(prompt["tokens"], found, upto)
        elif does == "lose":
            server.lose(3)
        else:
            server.restart()
            engine.cursor = 0
        events = [_short(event) for event in engine.events()]
        steps.append(
            {
                "did": does,
                "prompt": prompts.index(prompt),
                "events": events,
                "found": [server.found(each["hashes"], each["salt"]) for each in prompts],
            }
        )
    told = [{"parts": each["parts"], "salt": each["salt"]} for each in prompts]
    return {"salts": salts, "follows": follows, "prompts": told, "steps": steps}


def _short(event: dict[str, Any]) -> dict[str, Any]:
    """An event with its tokens as runs `[first, count]` of the numbers that `tokens_of` makes."""
    if event["type"] == "BlockRemoved":
        return dict(event)
    runs: list[list[int]] = []
    for token in event["token_ids"]:
        if runs and token == (runs[-1][0] + 7_919 * runs[-1][1]) % 200_000:
            runs[-1][1] += 1
        else:
            runs.append([token, 1])
    return dict(event) | {"token_ids": runs}


def main(to: Path) -> None:
    """Record, and write the recording."""
    streams = [
        record(1, [""], follows=True),
        record(2, ["", "one", "two"], follows=True),
        record(3, [""], follows=False),
    ]
    recording = {"lmcache": "0.5.6", "chunk": CHUNK, "streams": streams}
    to.write_bytes(gzip.compress(json.dumps(recording, separators=(",", ":")).encode(), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
