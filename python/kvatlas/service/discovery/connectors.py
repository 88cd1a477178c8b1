"""Facts about an engine's tiers, from its metrics and from the settings that it reports.

No engine reports directly how it offloads. The facts are derived from the names and labels of metrics (vLLM since 0.28,
SGLang with `--enable-metrics`), and from `GET /server_info` of SGLang and of vLLM with `VLLM_SERVER_DEV_MODE=1`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from kvatlas.errors import DiscoveryError
from kvatlas.service.discovery.http import LIST, Asker

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_TIER = re.compile(r"[0-9]{1,4}:([a-z0-9_]{1,40})")
_SHARED = ("fs", "obj")
"""Types of vLLM's tiers that several engines can share."""
_MOST_TIERS = 16


@dataclass(frozen=True, slots=True)
class SharedTier:
    """A tier of vLLM that several engines can share, from its settings.

    Attributes:
        kind: The tier's type, such as "fs".
        announces: True if the tier announces stores.
        locality: Locality in the tier's events; None if they have none.
    """

    kind: str
    announces: bool
    locality: str | None


@dataclass(frozen=True, slots=True)
class Connectors:
    """Facts about an engine's tiers beyond its device. None and empty values: not reported.

    Attributes:
        version: vLLM's version.
        has_metrics: True if the engine's metrics could be read.
        offloads: True if the engine keeps blocks beyond its device.
        tiers: Types of vLLM's tiers behind host memory, such as "p2p", "fs" and "obj".
        host_chunk: Number of blocks in a chunk of host memory.
        chunk_bytes: Size of a chunk in bytes.
        hash_algorithm: Hash function of block hashes.
        has_settings: True if the engine reports the settings from which the remaining attributes come.
        connector: The connector's name.
        describes: True if events of host memory contain tokens.
        shared: Tiers that several engines can share.
        pull: `HOST:PORT` at which others can pull from the engine.
        handshake_timeout: Seconds that the engine waits for a source that does not answer.
        write_policy: SGLang's policy for copying blocks to host memory.
        storage: SGLang's storage behind host memory.
    """

    version: str | None = None
    has_metrics: bool = False
    offloads: bool = False
    tiers: tuple[str, ...] = ()
    host_chunk: int | None = None
    chunk_bytes: int | None = None
    hash_algorithm: str | None = None
    has_settings: bool = False
    connector: str | None = None
    describes: bool | None = None
    shared: tuple[SharedTier, ...] = ()
    pull: str | None = None
    handshake_timeout: float | None = None
    write_policy: str | None = None
    storage: str | None = None


async def ask_connectors(asker: Asker, url: str, engine: str) -> Connectors:
    """Ask an engine about its tiers. Missing answers count as not reported.

    Args:
        asker: Sends the requests.
        url: The engine's address.
        engine: "vllm" or "sglang".
    """
    lines: list[str] = []
    with contextlib.suppress(DiscoveryError):
        lines = await asker.lines(f"{url}/metrics", f"{engine}:")
    settings: Any = None
    path = "/server_info?config_format=json" if engine == "vllm" else "/server_info"
    with contextlib.suppress(DiscoveryError):
        settings = await asker.get_json(url + path, absent=(401, 403, 404, 405), most=LIST)
    if not isinstance(settings, dict):
        settings = {}
    if engine == "sglang":
        return of_sglang(lines, settings)
    said: Any = None
    with contextlib.suppress(DiscoveryError):
        said = await asker.get_json(f"{url}/version", absent=(401, 403, 404, 405))
    version = _text(said.get("version")) if isinstance(said, dict) else None
    return dataclasses.replace(of_vllm(lines, settings), version=version)


def of_vllm(lines: list[str], settings: dict[str, Any]) -> Connectors:
    """Read vLLM's answers: the lines of its metrics, and its settings."""
    offloads, algorithm = False, None
    tiers: dict[str, None] = {}
    info: dict[str, str] = {}
    for line in lines:
        name = line.partition("{")[0]
        if name.startswith("vllm:kv_offload_"):
            offloads = True
            labels = dict(_LABEL.findall(line))
            if name == "vllm:kv_offload_config_info":
                info = labels
            if (tier := _TIER.fullmatch(labels.get("tier", ""))) and len(tiers) < _MOST_TIERS:
                tiers[tier[1]] = None
        elif name == "vllm:cache_config_info":
            algorithm = dict(_LABEL.findall(line)).get("prefix_caching_hash_algo") or algorithm
    tiers.pop("primary", None)
    found = _settings_of_vllm(settings)
    tiers |= dict.fromkeys(found.pop("tiers", ()))
    return Connectors(
        has_metrics=bool(lines),
        offloads=offloads or bool(found.get("connector")),
        tiers=tuple(tiers),
        host_chunk=_count(info.get("cpu_blocks_per_chunk")),
        chunk_bytes=_count(info.get("cpu_kv_bytes_per_chunk")),
        hash_algorithm=algorithm,
        **found,
    )


def _settings_of_vllm(settings: dict[str, Any]) -> dict[str, Any]:
    """Attributes from vLLM's settings, which it reports in development mode only."""
    config = settings.get("vllm_config")
    if not isinstance(config, dict):
        return {}
    found: dict[str, Any] = {"has_settings": True}
    env = settings.get("vllm_env")
    limit = env.get("VLLM_P2P_HANDSHAKE_TIMEOUT_S") if isinstance(env, dict) else None
    if isinstance(limit, int | float) and not isinstance(limit, bool):
        found["handshake_timeout"] = float(limit)
    transfer = config.get("kv_transfer_config")
    if not isinstance(transfer, dict):
        return found
    found["connector"] = _text(transfer.get("kv_connector"))
    extra = transfer.get("kv_connector_extra_config")
    if not isinstance(extra, dict) or found["connector"] != "OffloadingConnector":
        return found
    found["describes"] = extra.get("self_describing_kv_events") is True
    each = extra.get("secondary_tiers")
    given = [tier for tier in each if isinstance(tier, dict)][:_MOST_TIERS] if isinstance(each, list) else []
    kinds = [(kind, tier) for tier in given if (kind := _text(tier.get("type")))]
    found["tiers"] = tuple(kind for kind, _ in kinds)
    found["shared"] = tuple(
        SharedTier(kind, tier.get("enable_kv_events") is True, _text(tier.get("locality")))
        for kind, tier in kinds
        if kind in _SHARED
    )
    for tier in (tier for kind, tier in kinds if kind == "p2p"):
        host = _text(tier.get("host")) or (
            _text(env.get("VLLM_P2P_SIDE_CHANNEL_HOST")) if isinstance(env, dict) else None
        )
        port = tier.get("port") or (env.get("VLLM_P2P_SIDE_CHANNEL_PORT") if isinstance(env, dict) else None)
        if host and isinstance(port, int) and not isinstance(port, bool):
            found["pull"] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return found


def of_sglang(lines: list[str], settings: dict[str, Any]) -> Connectors:
    """Read SGLang's answers: the lines of its metrics, and its settings."""
    by_metrics = any(line.startswith("sglang:hicache_host_total_tokens") and _value(line) > 0 for line in lines)
    if "enable_hierarchical_cache" not in settings:
        return Connectors(has_metrics=bool(lines), offloads=by_metrics)
    return Connectors(
        has_metrics=bool(lines),
        offloads=by_metrics or settings["enable_hierarchical_cache"] is True,
        has_settings=True,
        connector="HiCache" if settings["enable_hierarchical_cache"] is True else None,
        write_policy=_text(settings.get("hicache_write_policy")),
        storage=_text(settings.get("hicache_storage_backend")),
    )


def _value(line: str) -> float:
    try:
        return float(line.rpartition(" ")[2])
    except ValueError:
        return 0.0


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) <= 18 and int(text) else None


def _text(value: object) -> str | None:
    return value[:200] if isinstance(value, str) and value else None
