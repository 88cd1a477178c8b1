"""Test of the pools that LMCache fills: whether the coordinator answers, and whether it lists what members can load."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import httpx

from kvatlas._http import failure, options
from kvatlas.router.check.codes import OK
from kvatlas.router.check.common import is_member
from kvatlas.router.check.findings import CheckedEngine, Level
from kvatlas.service.config.pools import Pool

_TIMEOUT = 10.0  # seconds that the coordinator may take
_KEYS = 1_000  # keys that are looked at

_REPORTING = "start LMCache's servers with --coordinator-url and --coordinator-event-reporting"

Finding = tuple[Level, str, str, str]  # level, words, change, code


async def compare_coordinators(looked: Sequence[CheckedEngine], pools: Iterable[Pool]) -> None:
    """Report for the members of each pool that LMCache fills what its coordinator lists."""
    for pool in pools:
        if pool.lmcache is None:
            continue
        members = [one for one in looked if is_member(one, pool)]
        if not members:
            continue
        keys, problem = await _keys(pool.lmcache)
        for one in members:
            level, words, change, code = problem or judge(pool, one.model or "", keys)
            one.report.add("pool", level, words, change, code=code)


async def _keys(url: str) -> tuple[list[Any], Finding | None]:
    try:
        async with httpx.AsyncClient(**options(url, None, _TIMEOUT)) as client:
            answer = await client.get("/directory/keys", params={"limit": _KEYS})
            answer.raise_for_status()
            keys = answer.json()["keys"]
            if not isinstance(keys, list):
                raise TypeError
            return keys, None
    except httpx.HTTPStatusError as error:
        said = f"answers GET /directory/keys with status {error.response.status_code}"
    except httpx.HTTPError as error:
        said = failure(error)[1]
    except (ValueError, KeyError, TypeError):
        said = "answers GET /directory/keys with no list of keys"
    fix = "start `lmcache coordinator`, LMCache 0.5.6 or newer, or correct the pool's lmcache"
    return [], ("problem", f"LMCache's coordinator at {url} {said}", fix, "lmcache_unreachable")


def judge(pool: Pool, served: str, keys: Sequence[Any]) -> Finding:
    """Judge a pool by a page of its coordinator's keys, for a member that serves the model `served`."""
    called = f"LMCache's coordinator at {pool.lmcache}"
    if not keys:
        return "warning", f"{called} lists nothing yet", f"{_REPORTING}, and send prompts", "lmcache_empty"
    wanted = pool.lmcache_model or served
    names = sorted({str(key["key"]["model_name"]) for key in keys})
    if wanted not in names:
        return (
            "problem",
            f"{called} lists nothing of {wanted!r}, but of {', '.join(map(repr, names[:3]))}",
            f"set lmcache_model = {names[0]!r} in the pool, if that is the same model",
            "lmcache_model",
        )
    its = [key for key in keys if key["key"]["model_name"] == wanted]
    ranks = sorted({int(key["key"]["kv_rank"]) >> 24 for key in its})
    sizes = " and of ".join(map(str, ranks))
    if pool.lmcache_ranks is None and len(ranks) > 1:
        return (
            "problem",
            f"{called} lists chunks for engines of {sizes} ranks: none of them counts",
            "set lmcache_ranks in the pool, and give engines of other sizes a pool of their own",
            "lmcache_ranks",
        )
    if pool.lmcache_ranks is not None and pool.lmcache_ranks not in ranks:
        return (
            "problem",
            f"{called} lists no chunks for engines of {pool.lmcache_ranks} ranks, but of {sizes}",
            f"set lmcache_ranks = {ranks[0]} in the pool, or leave it out",
            "lmcache_ranks",
        )
    owners = {str(copy["instance_id"]) for key in its for copy in key["placements"]}
    if any(copy["shared"] or copy["instance_id"] == pool.lmcache_instance for key in its for copy in key["placements"]):
        return "ok", f"{called} lists what the pool {pool.name} has", "", OK
    one = min(owners) if owners else "the server's --instance-id"
    own = f" or that {pool.lmcache_instance!r} has" if pool.lmcache_instance else ""
    fix = (
        'add "shared": true to the storage that servers share (--l2-adapter), or make a pool for each server, with the '
        f"engines attached to it, and lmcache_instance = {one!r}"
    )
    return "problem", f"{called} lists no chunk that all servers share{own}", fix, "lmcache_shared"
