"""Queries: requests a second and latency, with answers of 32 workers."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from . import load
from .content import Chain, Engines, wait_for
from .servers import MODEL, Server, hash_query, theirs, token_query
from .servers import ours as start_ours

WORKERS = 32
BLOCKS = 768
BATCH = 64
CONNECTIONS = 32


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
    many = {"model_name": MODEL, "queries": [{"block_hashes": chain.contents[:24]}] * BATCH}
    cases: list[tuple[str, list[tuple[Server, str, bytes]]]] = [
        ("/query_by_hash, 24 blocks", [(server, "/query_by_hash", by_hash) for server in (mine, other)]),
        (f"/query, {len(chain.tokens):,} tokens", [(server, "/query", by_token) for server in (mine, other)]),
        (
            f"{BATCH} queries a request",
            [(mine, "/query_batch", json.dumps(many).encode()), (other, "/query_by_hash", by_hash)],
        ),
    ]
    results: dict[str, Any] = {}
    for name, sides in cases:
        found: dict[str, list[load.Load]] = defaultdict(list)
        for _ in range(rounds):
            for server, path, body in sides:
                found[server.name].append(load.run(server.url + path, body, connections=CONNECTIONS, seconds=seconds))
        queries = BATCH if "/query_batch" in (path for _, path, _ in sides) else 1
        result = {
            "rate": median(one.rate for one in found[mine.name]) * queries,
            "rate_theirs": median(one.rate for one in found[other.name]),
            "p99": median(one.p99 for one in found[mine.name]),
            "p99_theirs": median(one.p99 for one in found[other.name]),
        }
        result["rate_ratio"] = result["rate"] / result["rate_theirs"]
        result["p99_ratio"] = result["p99"] / result["p99_theirs"]
        results[name] = result
        note(
            f"{name}: {result['rate']:,.0f} queries/s, theirs {result['rate_theirs']:,.0f} "
            f"({result['rate_ratio']:.1f}x); "
            f"p99 {result['p99'] * 1e3:.2f} ms, theirs {result['p99_theirs'] * 1e3:.2f} ({result['p99_ratio']:.2f}x)"
        )
    return results
