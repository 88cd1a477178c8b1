"""Queries: requests a second and latency, with answers of 32 workers."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any
from urllib.parse import urlencode

import numpy as np

from . import load
from .content import Chain, Engines, wait_for
from .servers import MODEL, Server, hash_query, theirs, token_query
from .servers import ours as start_ours

WORKERS = 32
BLOCKS = 768
BATCH = 64
CONNECTIONS = 32
BYTES = "application/octet-stream"
SEARCH = "?" + urlencode({"model_name": MODEL})


@dataclass(frozen=True, slots=True)
class Side:
    """One request over and over: to whom, what, and how many queries are in it."""

    server: Server
    path: str
    body: bytes
    kind: str = "application/json"
    queries: int = 1

    def load(self, seconds: float) -> load.Load:
        """Load the server for some seconds, and return the result."""
        url = self.server.url + self.path
        return load.run(url, self.body, connections=CONNECTIONS, seconds=seconds, kind=self.kind)


def measure(python: str, rounds: int, seconds: float, note: Callable[[str], None]) -> dict[str, Any]:
    """Both servers at once with the same content; loads on one and the other in turns."""
    chain = Chain.random(np.random.default_rng(0), BLOCKS)
    with start_ours() as mine, theirs(python) as other:
        servers = [mine, other]
        with Engines(WORKERS, servers) as engines:
            for publisher in engines.publishers:
                for start in range(0, BLOCKS, 64):
                    publisher.publish(chain.payload(start, start + 64))
            for server in servers:
                wait_for(server, chain, WORKERS)
            return _loads(mine, other, chain, rounds, seconds, note)


def _loads(
    mine: Server, other: Server, chain: Chain, rounds: int, seconds: float, note: Callable[[str], None]
) -> dict[str, Any]:
    by_hash = hash_query(chain.contents[:24])
    by_token = token_query(chain.tokens.tolist())
    many = json.dumps({"model_name": MODEL, "queries": [{"block_hashes": chain.contents[:24]}] * BATCH}).encode()
    tokens = chain.tokens.astype("<u4").tobytes()
    hashes = np.array(chain.contents, "<u8").tobytes()
    prompt = f"/query, {len(chain.tokens):,} tokens"
    all_of_it = f"/query_by_hash, {BLOCKS} blocks as bytes"
    by_bytes, by_hash_bytes = "/query" + SEARCH, "/query_by_hash" + SEARCH
    json_tokens, their_tokens = (Side(server, "/query", by_token) for server in (mine, other))
    json_hashes, their_hashes = (Side(server, "/query_by_hash", by_hash) for server in (mine, other))
    # The last three are compared with our own JSON: the other service has nothing else.
    cases: list[tuple[str, Side, Side]] = [
        ("/query_by_hash, 24 blocks", json_hashes, their_hashes),
        (prompt, json_tokens, their_tokens),
        (f"{BATCH} queries a request", Side(mine, "/query_batch", many, queries=BATCH), their_hashes),
        (f"{prompt} as bytes", Side(mine, by_bytes, tokens, BYTES), json_tokens),
        (all_of_it, Side(mine, by_hash_bytes, hashes, BYTES), json_tokens),
        ("/query_by_hash, 24 blocks as bytes", Side(mine, by_hash_bytes, hashes[: 24 * 8], BYTES), json_hashes),
    ]
    results: dict[str, Any] = {}
    for name, ours, peer in cases:
        found: dict[Side, list[load.Load]] = defaultdict(list)
        for _ in range(rounds):
            for side in (ours, peer):
                found[side].append(side.load(seconds))
        peers_name = "theirs" if peer.server is other else "as JSON"
        result = {
            "rate": median(one.rate for one in found[ours]) * ours.queries,
            "rate_theirs": median(one.rate for one in found[peer]),
            "p99": median(one.p99 for one in found[ours]),
            "p99_theirs": median(one.p99 for one in found[peer]),
        }
        result["rate_ratio"] = result["rate"] / result["rate_theirs"]
        result["p99_ratio"] = result["p99"] / result["p99_theirs"]
        results[name] = result
        note(
            f"{name}: {result['rate']:,.0f} queries/s, {peers_name} {result['rate_theirs']:,.0f} "
            f"({result['rate_ratio']:.1f}x); "
            f"p99 {result['p99'] * 1e3:.2f} ms, {peers_name} {result['p99_theirs'] * 1e3:.2f} "
            f"({result['p99_ratio']:.2f}x)"
        )
    return results
