"""Pools that LMCache fills: the recorded answers of its coordinator, and a coordinator that fails in every way."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from tests.support.engine import Publisher
from tests.support.waiting import until

from kvatlas import Service
from kvatlas.errors import ServiceError
from kvatlas.service.config import Config, Pool, Stream

from .dialect.tools import running
from .http_tools import query, register

RECORDING = Path(__file__).parents[2] / "recordings" / "lmcache" / "lmcache-0.5.6.json.gz"
BLOCK = 16
LMCACHE = {"model": None, "instance": None, "ranks": None, "chunk_tokens": 256, "hash": "blake3", "seed": None}
SERVERS = ("server-a", "server-b")


def pool(name: str, **more: Any) -> dict[str, Any]:
    """A pool as the native service takes it, whose only member has its name."""
    settings = Pool(name, members=(name,), lmcache="http://127.0.0.1:9").for_native()
    return settings | {"lmcache": LMCACHE | more}


def tokens_of(parts: list[list[int]]) -> list[int]:
    return [(seed * 1_000_003 + at * 7_919) % 200_000 for seed, count in parts for at in range(count)]


def depth(copies: list[list[list[Any]]], ranks: int, server: str | None) -> int:
    """Leading chunks whose parts are, for every rank, shared or on a server."""
    has = [any(shared or name == server for name, _, shared in each) for each in copies]
    chunks = [all(has[at : at + ranks]) for at in range(0, len(has), ranks)]
    return (*chunks, False).index(False)


def test_every_recorded_lookup_has_the_same_answer() -> None:
    recording = json.loads(gzip.decompress(RECORDING.read_bytes()))
    pools = [pool("shared"), *(pool(name, instance=name) for name in SERVERS)]
    asked = held = 0
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(running({"pools": pools}))
        for name in ("shared", *SERVERS):
            publisher = stack.enter_context(Publisher())
            about = {"model_name": "org/model", "block_size": BLOCK}
            assert register(service, name, publisher.endpoint, **about).status == 201
            publisher.wait_for_reader()
        for step in recording["steps"]:
            page = json.dumps(step["listing"]).encode()
            for each in pools:
                service.begin_listing(each["name"])
                assert service.add_listing_page(each["name"], 0, 10_000, page) is None
            for prompt, lookup in zip(recording["prompts"], step["lookups"], strict=True):
                if prompt["model"] != "org/model":
                    continue
                asks = {"token_ids": tokens_of(prompt["parts"]), "model_name": prompt["model"]}
                found = query(service, **asks, cache_salt=prompt["salt"] or None)["instances"]
                for name in ("shared", *SERVERS):
                    wanted = depth(lookup["copies"], recording["ranks"][prompt["model"]], name)
                    parts = found.get(name, {}).get("loadable", [])
                    got = [(it["from"], it["to"], it["tier"], it["source"]) for it in parts]
                    assert got == ([(0, 256 * wanted, "external", name)] if wanted else []), (step["did"], prompt, name)
                    asked, held = asked + 1, held + wanted
    assert asked > 1_000
    assert held > asked / 2, "most of the lookups found something"


class Coordinator:
    """Stand-in for LMCache's coordinator, whose keys and faults are set by the test."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = []
        self.fault: str | None = None
        self.asked = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                fault = outer.fault
                if fault == "dead":
                    self.connection.close()
                    return
                if fault == "slow":
                    time.sleep(0.2)
                asked = parse_qs(urlsplit(self.path).query)
                offset, limit = int(asked["offset"][0]), int(asked["limit"][0])
                keys = list(outer.keys)
                body = json.dumps({"total": len(keys), "keys": keys[offset : offset + limit]}).encode()
                if fault == "junk":
                    body = b'{"total": 3, "keys": [{"key": 7}]}'
                if fault == "cut":
                    body = body[: len(body) // 2]
                self.send_response(500 if fault == "error" else 200)
                self.send_header("Content-Length", str(len(body) + (10 if fault == "short" else 0)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def hold(self, hashes: list[str], *, shared: bool = True, incarnation: int = 1, model: str = "m") -> None:
        self.keys = [
            {
                "key": {
                    "chunk_hash_hex": each,
                    "model_name": model,
                    "kv_rank": 1 << 24 | 1 << 8,
                    "object_group_id": 0,
                    "cache_salt": "",
                },
                "placements": [
                    {
                        "instance_id": "server-a",
                        "incarnation": incarnation,
                        "tier": "l2",
                        "backend": "fs",
                        "size_bytes": 1,
                        "shared": shared,
                    }
                ],
                "num_tokens": 256,
                "access_count": 0,
            }
            for each in hashes
        ]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def longest_prompt() -> tuple[list[int], list[str]]:
    recording = json.loads(gzip.decompress(RECORDING.read_bytes()))
    prompt = max(recording["prompts"], key=lambda it: len(it["hashes"]) if not it["salt"] else 0)
    return tokens_of(prompt["parts"]), prompt["hashes"]


@contextlib.contextmanager
def followed(coordinator: Coordinator, publisher: Publisher, **more: Any) -> Iterator[Service]:
    """A service with a pool that a coordinator lists, read again and again."""
    store = Pool("store", members=("w",), lmcache=coordinator.url, look_every=0.02, **more)
    stream = Stream("w", publisher.endpoint, model="m", block_size=BLOCK)
    with Service(streams=[stream], config=Config(pools=(store,))) as service:
        yield service


def metric(service: Service, name: str, **labels: str) -> float:
    lines = httpx.get(f"{service.url}/metrics", timeout=60).text.splitlines()
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    found = [line for line in lines if line.startswith(f"{name}{{") and all(each in line for each in wanted)]
    return float(found[0].split()[-1]) if found else 0.0


def test_a_coordinator_that_is_slow_dies_says_junk_and_starts_again() -> None:
    tokens, hashes = longest_prompt()
    coordinator = Coordinator()
    with contextlib.closing(coordinator), Publisher() as publisher, followed(coordinator, publisher) as service:

        def loadable() -> int:
            body = {"token_ids": tokens, "model_name": "m"}
            found = httpx.post(f"{service.url}/query", json=body, timeout=60).json()["instances"].get("w", {})
            return max((it["to"] // 256 for it in found.get("loadable", [])), default=0)

        def listings(result: str) -> float:
            return metric(service, "kvatlas_pool_listings_total", pool="store", result=result)

        until(lambda: listings("complete") > 0, "an empty directory is one, too")
        assert loadable() == 0
        coordinator.hold(hashes[:2])
        until(lambda: loadable() == 2, "stored")
        coordinator.hold([hashes[0], *hashes[2:]])
        until(lambda: loadable() == 1, "there is a gap")
        coordinator.hold(hashes)
        until(lambda: loadable() == len(hashes), "the gap is closed")
        assert metric(service, "kvatlas_pool_listed_chunks", pool="store") == len(hashes)
        for fault in ("dead", "junk", "cut", "error", "short"):
            coordinator.fault = fault
            failed = listings("failed")
            until(lambda failed=failed: listings("failed") > failed + 1, fault)
            assert loadable() == len(hashes), f"{fault}: what was listed last counts"
        coordinator.fault = "slow"
        coordinator.hold(hashes[:1], incarnation=2)
        until(lambda: loadable() == 1, "it has started again, and most is gone")
        coordinator.fault = None
        coordinator.hold(hashes, shared=False)
        until(lambda: loadable() == 0, "none of it is shared")
        left_out = metric(service, "kvatlas_pool_left_out_keys", pool="store", reason="private")
        assert left_out == len(hashes)


def test_listings_of_unknown_pools_are_refused() -> None:
    with running({"pools": [pool("store")]}) as service:
        with pytest.raises(ServiceError, match="no pool named"):
            service.begin_listing("other")
        with pytest.raises(ServiceError, match="no pool named"):
            service.fail_listing("other", "why")
        with pytest.raises(ServiceError, match="no listing of pool"):
            service.add_listing_page("store", 0, 10, b"{}")
