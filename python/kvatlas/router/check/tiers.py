"""Test of the blocks that engines keep on tiers beyond their device: tiers, pools, and pulls between engines.

Engines report few of their settings. So the test uses their announcements after the check's prompts, and their metrics;
settings that neither shows are reported as unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from urllib.parse import urlsplit

from kvatlas.client import StreamStatus
from kvatlas.router.check.common import is_member
from kvatlas.router.check.findings import CheckedEngine, OffloadedBlocks
from kvatlas.service.config.pools import Pool
from kvatlas.service.discovery.connectors import Connectors

_POLL = 0.05
_WAIT = 2.0  # seconds for what is offloaded to be announced: after the copy, with a later step
_CONNECT = 1.0  # seconds for a connection to the port that others pull from
_TIMEOUT = 5.0  # seconds of `VLLM_P2P_HANDSHAKE_TIMEOUT_S` up to which nothing is proposed
_PROPOSED = 3
_OLDEST = (0, 28)  # the first vLLM that is told whom to pull from
_PARTS = re.compile(r"\[?([^\]]*)\]?:([0-9]+)")
_NAMES = {"cpu": "host memory", "disk": "a disk", "external": "a store"}

_DESCRIBE = 'add "self_describing_kv_events": true to kv_connector_extra_config (vLLM since 0.24)'
_EVENTS = 'add "enable_kv_events": true to the tier and "self_describing_kv_events": true to kv_connector_extra_config'
_LOCALITY = 'add "locality": "REMOTE" to the tier'
_ADDRESS = 'give the tier p2p of vLLM a "host" that other engines reach, or set VLLM_P2P_SIDE_CHANNEL_HOST there'


_COUNTERS = {"cpu": "host_blocks", "disk": "disk_blocks", "external": "external_blocks"}


def announced(before: Sequence[StreamStatus], after: Sequence[StreamStatus]) -> OffloadedBlocks:
    """Blocks that an engine announced beyond its device, between two states of its streams."""

    def grown(name: str) -> int:
        count = [sum(stream.counters.get(name, 0) for stream in streams) for streams in (before, after)]
        return count[1] - count[0]

    chunks: dict[str, int] = {}
    for stream in after:
        chunks |= stream.chunks
    return OffloadedBlocks({tier: grown(name) for tier, name in _COUNTERS.items()}, grown("named_blocks"), chunks)


async def listen(
    one: CheckedEngine,
    before: Sequence[StreamStatus],
    streams: Callable[[], Awaitable[Sequence[StreamStatus]]],
    ask_again: Callable[[], Awaitable[object]],
) -> None:
    """Wait until an engine has announced the blocks of its prompts that it should have offloaded.

    Args:
        one: The engine.
        before: State of the engine's streams before the prompts.
        streams: Returns the current state of the engine's streams.
        ask_again: Sends a prompt to the engine, which announces finished copies only with its next step.
    """
    tiers, clock = one.connectors, asyncio.get_running_loop().time
    wanted = {"cpu"} if tiers.offloads or one.entry.pull is not None else set()
    stores = {"disk", "external"} if set(tiers.tiers) & {"fs", "obj"} else set()
    began, has_asked = clock(), False
    while True:
        found = announced(before, await streams())
        missing = {tier for tier in wanted if not found.has(tier)}
        if (not missing and (not stores or any(map(found.has, stores)))) or clock() > min(began + _WAIT, one.until - 1):
            break
        if not has_asked and clock() > began + _WAIT / 4:
            has_asked = True
            await ask_again()
        await asyncio.sleep(_POLL)
    one.announced = found


def report_tiers(one: CheckedEngine, pools: Sequence[Pool]) -> None:
    """Report the tiers in which an engine keeps blocks beyond its device, and how it announces them."""
    tiers, found, report = one.connectors, one.announced, one.report
    if found is None:
        return
    if not tiers.offloads and not any(found.blocks.values()):
        return
    has_host = found.has("cpu")
    if not has_host and tiers.offloads:
        report.add(
            "tiers",
            "warning",
            "it offloads, but has announced no block in host memory: only its device is known",
            "use vLLM's OffloadingConnector of 0.17 or newer with store_threshold 1; other connectors need flags of "
            "their own, which the guide of tiers has",
            code="tier_silent",
        )
    if found.named:
        is_known = (one.entry.host_chunk or tiers.host_chunk) is not None
        report.add(
            "tiers",
            "warning",
            f"it announces offloaded blocks by their block hashes only ({found.named} of them): they count once its "
            f"device has announced their tokens{'' if is_known else ', and chunks of several blocks not at all'}",
            _DESCRIBE if is_known else f"{_DESCRIBE}, or set host_chunk of the engine to its blocks_per_chunk",
            code="tier_names_only",
        )
    _stores(one, pools)
    if tiers.write_policy not in (None, "write_through"):
        report.add(
            "tiers",
            "note",
            f"it copies to host memory late (hicache_write_policy {tiers.write_policy}), so little can be loaded",
            "start SGLang with --hicache-write-policy write_through",
            code="tier_filled_late",
        )
    if tiers.storage is not None:
        report.add(
            "tiers",
            "note",
            f"SGLang announces nothing of its storage ({tiers.storage}): what is there does not count",
            code="storage_unseen",
        )
    if has_host and not found.named:
        report.add("tiers", "ok", f"announces {_kept(found)}")
    if not tiers.has_settings:
        report.add(
            "tiers",
            "note",
            "it does not tell its connector's settings: whether resets empty host memory (--resets) and which engines "
            "share its stores is not known here",
            code="tiers_not_told",
        )


def _kept(found: OffloadedBlocks) -> str:
    """Description of the tiers on which an engine announces blocks."""
    parts = []
    for tier, name in _NAMES.items():
        if found.has(tier):
            chunk = found.chunks.get(tier, 0)
            parts.append(f"blocks in {name}" + (f", {chunk} in a chunk" if chunk > 1 else ""))
    return "; ".join(parts)


def _stores(one: CheckedEngine, pools: Sequence[Pool]) -> None:
    """Report the stores, possibly shared with other engines, in which an engine keeps blocks."""
    tiers, found, report = one.connectors, one.announced or OffloadedBlocks(), one.report
    mine = [pool for pool in pools if is_member(one, pool)]
    kinds = [kind for kind in tiers.tiers if kind in ("fs", "obj")]
    if kinds and not found.has("disk") and not found.has("external"):
        report.add(
            "pool",
            "warning",
            f"it has a tier {kinds[0]}, but has announced nothing of it: what is there does not count",
            _EVENTS,
            code="pool_silent",
        )
    for pool in mine if not kinds else ():
        # What a store holds is asked from the store.
        if not found.has(pool.tier) and pool.mooncake is None:
            report.add(
                "pool",
                "warning",
                f"it is a member of the pool {pool.name}, but has announced no block there (tier {pool.tier})",
                f"{_EVENTS}; {_LOCALITY} if the pool's tier is external",
                code="pool_silent",
            )
    if found.has("disk") and kinds and not any(pool.tier == "disk" for pool in mine):
        report.add(
            "pool",
            "warning" if mine else "note",
            "its events do not say that its store is shared: what it puts there counts for it alone",
            f"if other engines load from there: {_LOCALITY}",
            code="pool_own",
        )
    if found.has("external") and not any(pool.tier == "external" for pool in mine):
        chunk = found.chunks.get("external", 1)
        report.add(
            "pool",
            "warning",
            "it puts blocks into a shared store, which is none of the pools of these settings: they count for it alone",
            f"add [[pool]] with a name, chunk = {chunk} and the members that load from there (here too, by --config)",
            code="pool_unset",
        )
    for pool in mine:
        known = found.chunks.get(pool.tier) or tiers.host_chunk
        if known is not None and found.has(pool.tier) and pool.chunk not in (None, known):
            report.add(
                "pool",
                "problem",
                f"its chunks have {known} blocks, but the pool {pool.name} is set to {pool.chunk}: what can be loaded "
                "is counted wrongly",
                f"set chunk = {known} in the pool's [[pool]] table",
                code="pool_chunk",
            )


# Pulls


async def look_at_pulls(one: CheckedEngine) -> None:
    """Report if other engines can pull blocks from an engine, as far as its answers show."""
    tiers, entry, report = one.connectors, one.entry, one.report
    if entry.pull is None:
        if "p2p" in tiers.tiers:
            where = f' such as pull = "{tiers.pull}"' if tiers.pull else ""
            report.add(
                "pulls",
                "note",
                "it has a tier p2p, but no address is set at which others pull from it",
                f"set pull in its [[engine]] table{where}",
                code="pull_unset",
            )
        return
    if (version := entry.version or tiers.version) is not None and not can_pull(version):
        report.add(
            "pulls",
            "problem",
            f"vLLM {version} cannot be told where to pull from: it pulls nothing, and no engine pulls from it",
            "use vLLM 0.28 or newer; 0.33 limits how long it waits for a source",
            code="pull_old",
        )
        return
    if not tiers.has_metrics:
        report.add(
            "pulls",
            "problem",
            "its metrics cannot be read, by which the router hears of it: while it is idle, no engine pulls from it",
            "let the router read GET /metrics at the engine",
            code="pull_unheard",
        )
    elif "p2p" not in tiers.tiers and (tiers.tiers or tiers.has_settings or not tiers.offloads):
        report.add(
            "pulls",
            "problem",
            "it has an address for pulls, but no tier p2p" + ("" if tiers.offloads else " and offloads nothing"),
            'add {"type": "p2p", "host": "<address that other engines reach>", "port": 5710} to secondary_tiers of its '
            "OffloadingConnector",
            code="pull_no_tier",
        )
    await _address(one)
    _timeout(one)


def can_pull(version: str) -> bool:
    """True if requests to a version of vLLM can name the source of a pull, also for a version that is not numeric."""
    numbers = re.match(r"v?(\d{1,6})\.(\d{1,6})", version)
    return numbers is None or (int(numbers[1]), int(numbers[2])) >= _OLDEST


async def _address(one: CheckedEngine) -> None:
    """Report if the address for pulls can be reached, and equals the address that the engine reports."""
    entry, report = one.entry, one.report
    parts = _PARTS.fullmatch(entry.pull or "")
    if parts is None:
        return
    host, port = parts[1], int(parts[2])
    ranks = len(one.found.sources) if one.found is not None else 1
    closed = [port + rank for rank in range(ranks) if not await _listens(host, port + rank)]
    if closed:
        report.add(
            "pulls",
            "warning",
            f"nothing listens at {host}:{closed[0]}, as seen from here, where others are told to pull from",
            f"set pull to the host and port of its tier p2p, or open the port; {_ADDRESS}",
            code="pull_unreachable",
        )
    elif _is_loopback(host) and not _is_loopback(urlsplit(entry.url).hostname or ""):
        report.add(
            "pulls",
            "warning",
            f"others are told to pull from it at {host}, which is their own host for engines elsewhere",
            _ADDRESS,
            code="pull_address",
        )
    if one.connectors.pull not in (None, entry.pull):
        report.add(
            "pulls",
            "warning",
            f"it says that it can be pulled from at {one.connectors.pull}, but its settings here have {entry.pull}",
            f'set pull = "{one.connectors.pull}"; {_ADDRESS}',
            code="pull_address",
        )


async def _listens(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(_CONNECT):
            _reader, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _timeout(one: CheckedEngine) -> None:
    limit = one.connectors.handshake_timeout
    if limit is not None and limit <= _TIMEOUT:
        return
    now = "it does not say how long it waits" if limit is None else f"it waits {limit:.0f} s"
    one.report.add(
        "pulls",
        "note",
        f"{now} for a source that does not answer, by default 30 s: so late is the first token then",
        f"start it with VLLM_P2P_HANDSHAKE_TIMEOUT_S={_PROPOSED}",
        code="pull_timeout",
    )


def compare_pulls(looked: Iterable[CheckedEngine]) -> None:
    """Report engines that are configured to pull from each other but cannot."""
    groups: dict[str, list[CheckedEngine]] = {}
    for one in looked:
        if one.entry.pull is not None and one.report.role == "both":
            groups.setdefault(one.entry.pull_group or "", []).append(one)
    for group in groups.values():
        for one in group:
            _compare(one, [other for other in group if other is not one])


def _compare(one: CheckedEngine, others: Sequence[CheckedEngine]) -> None:
    report, found = one.report, one.announced
    named = ", ".join(other.report.worker for other in others[:3])
    if not others:
        report.add("pulls", "note", "no other engine is in its pull_group", code="pull_alone")
    if found is not None and not found.has("cpu"):
        report.add(
            "pulls",
            "problem",
            "it has announced no block in host memory, from where others pull: nothing of it can be pulled",
            _DESCRIBE,
            code="pull_no_host",
        )
    chunks = {_chunk(other.connectors, other.announced) for other in (one, *others)} - {None}
    if len(chunks) > 1 and _chunk(one.connectors, found) is not None:
        report.add(
            "pulls",
            "problem",
            f"its chunks of host memory have {_chunk(one.connectors, found)} blocks, and not all of {named} have the "
            "same: they refuse each other's pulls",
            "start all with the same blocks_per_chunk, or give those that differ a pull_group of their own",
            code="chunks_differ",
        )
    _names(one, others)


def compare_pools(looked: Sequence[CheckedEngine], pools: Iterable[Pool]) -> None:
    """Report engines of one pool that do not find each other's blocks in it. LMCache has its own block hashes."""
    for pool in (pool for pool in pools if pool.lmcache is None):
        members = [one for one in looked if is_member(one, pool) and one.block_names]
        for one in members:
            others = [other for other in members if other.model == one.model]  # models have nothing in common
            different = [other.report.worker for other in others if other.block_names[0] != one.block_names[0]]
            if different:
                one.report.add(
                    "pool",
                    "problem",
                    f"it has other block hashes than {', '.join(different[:3])} for the same prompt: they do not find "
                    f"each other's blocks in the pool {pool.name}, and what one has put there counts for all",
                    "start all with the same --prefix-caching-hash-algo, model name and PYTHONHASHSEED, or put them "
                    "into pools of their own",
                    code="pool_names_differ",
                )


def _chunk(tiers: Connectors, found: OffloadedBlocks | None) -> int | None:
    return tiers.host_chunk or (found.chunks.get("cpu") if found is not None else None)


def _names(one: CheckedEngine, others: Sequence[CheckedEngine]) -> None:
    """Report if engines have the same block hashes for one prompt, which pulls require."""
    report, algorithm = one.report, one.connectors.hash_algorithm
    compared = [other for other in others if other.block_names and one.block_names]
    different = [other.report.worker for other in compared if other.block_names[0] != one.block_names[0]]
    if different:
        uses = f" (it uses {algorithm})" if algorithm else ""
        report.add(
            "pulls",
            "problem",
            f"it has other block hashes than {', '.join(different[:3])} for the same prompt{uses}: they refuse each "
            "other's pulls",
            "start all with the same --prefix-caching-hash-algo and model name, and with the same PYTHONHASHSEED if "
            "any has one or uses xxhash; or give those that differ a pull_group of their own",
            code="pull_names_differ",
        )
    elif compared:
        report.add("pulls", "ok", f"has the same block hashes as {', '.join(it.report.worker for it in compared[:3])}")
    elif others:
        report.add(
            "pulls",
            "note",
            "whether it has the same block hashes as others for the same prompt could not be compared",
            "start all with the same --prefix-caching-hash-algo and PYTHONHASHSEED",
            code="pull_names_unseen",
        )
