"""Findings of the check on a pool that LMCache fills, by the keys that the coordinator lists."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvatlas.router.check import lmcache
from kvatlas.router.check.codes import CODES
from kvatlas.service.config import Pool

ONE = 1 << 24 | 1 << 8
TWO = 2 << 24 | 2 << 8


def key(model: str = "m", rank: int = ONE, owner: str = "server-a", *, shared: bool = False) -> dict[str, Any]:
    return {"key": {"model_name": model, "kv_rank": rank}, "placements": [{"instance_id": owner, "shared": shared}]}


def of(**more: Any) -> Pool:
    return Pool("cache", lmcache="http://127.0.0.1:9", **more)


@pytest.mark.parametrize(
    ("pool", "keys", "code", "change"),
    [
        (of(), [], "lmcache_empty", "--coordinator-event-reporting"),
        (of(), [key("org/m", shared=True)], "lmcache_model", "set lmcache_model = 'org/m'"),
        (of(lmcache_model="org/m"), [key("org/m", shared=True)], "ok", ""),
        (of(), [key(shared=True), key(rank=TWO, shared=True)], "lmcache_ranks", "set lmcache_ranks"),
        (of(lmcache_ranks=2), [key(shared=True), key(rank=TWO, shared=True)], "ok", ""),
        (of(lmcache_ranks=4), [key(rank=TWO, shared=True)], "lmcache_ranks", "set lmcache_ranks = 2"),
        (of(), [key()], "lmcache_shared", "lmcache_instance = 'server-a'"),
        (of(lmcache_instance="server-b"), [key()], "lmcache_shared", '"shared": true'),
        (of(lmcache_instance="server-a"), [key()], "ok", ""),
    ],
)
def test_what_a_listing_says(pool: Pool, keys: list[Any], code: str, change: str) -> None:
    level, words, fix, found = lmcache.judge(pool, "m", keys)
    assert found == code, words
    assert change in fix
    assert (level == "ok") == (code == "ok")
    assert code in CODES


def test_a_coordinator_that_does_not_answer() -> None:
    keys, problem = asyncio.run(lmcache._keys("http://127.0.0.1:9"))
    assert keys == []
    assert problem is not None
    assert problem[3] == "lmcache_unreachable"
    assert "cannot be reached" in problem[1]
