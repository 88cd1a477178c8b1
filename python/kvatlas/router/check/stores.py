"""Test of the stores that are followed as pools: whether a master answers, publishes events and has readable keys."""

from __future__ import annotations

from collections.abc import Collection

from kvatlas.errors import DiscoveryError
from kvatlas.router.check.findings import STORE, EngineReport
from kvatlas.router.config import RouterConfig
from kvatlas.service.config.pools import Pool
from kvatlas.service.discovery.http import Asker
from kvatlas.service.discovery.stores import list_keys, publishes_events

_SHOWN = 5  # beginnings of keys in a finding, at most


async def look_at_store(config: RouterConfig, pool: Pool, models: Collection[str]) -> EngineReport:
    """Ask the store of a pool for its state and its keys.

    Args:
        config: The router's configuration.
        pool: A pool with the URL of its store.
        models: The models that the engines serve.
    """
    url = pool.mooncake or ""
    report = EngineReport(f"pool {pool.name}", url, role=STORE)
    async with Asker(config.discovery.request_timeout) as asker:
        try:
            publishes = await publishes_events(asker, url)
            keys = await list_keys(asker, url)
        except DiscoveryError as error:
            report.add(
                "store",
                "problem",
                f"the store does not say what it holds: {error}",
                "set mooncake of the pool to http://HOST:PORT of the master's metrics (its --metrics_port, often 9003)",
                code="store_unreachable",
            )
            return report
    _events(report, pool, publishes=publishes)
    _keys(report, pool, keys, models)
    return report


def _events(report: EngineReport, pool: Pool, *, publishes: bool) -> None:
    if publishes and pool.events is None:
        report.add(
            "events",
            "note",
            f"the master publishes events, but the pool has no endpoint of them: its keys are listed every "
            f"{pool.seconds_between_looks:g} s only",
            "set events of the pool to the address of --kv_events_bind_endpoint",
            code="store_events_unset",
        )
    elif not publishes and pool.events is not None:
        report.add(
            "events",
            "warning",
            "the master publishes no events, whatever its flags say: its keys are listed every "
            f"{pool.seconds_between_looks:g} s instead",
            "build Mooncake with -DENABLE_KV_EVENTS=ON and start the master with --enable_kv_events, "
            "--kv_events_bind_endpoint and --kv_events_backend_id; released wheels are built without",
            code="store_no_events",
        )
    else:
        what = (
            "publishes events"
            if publishes
            else f"publishes no events: its keys are listed every {pool.seconds_between_looks:g} s"
        )
        report.add("events", "ok", f"the master {what}")


def _keys(report: EngineReport, pool: Pool, keys: bytes, models: Collection[str]) -> None:
    lines = keys.decode(errors="replace").split()
    bases = sorted({base for key in lines if (base := base_of(key))})
    if not lines:
        report.add(
            "keys", "note", "the store is empty: whether its keys are read rightly is not known", code="store_empty"
        )
        return
    if not bases:
        report.add(
            "keys",
            "problem",
            f"none of the {len(lines)} keys of the store is one of vLLM's or SGLang's: what it holds does not count",
            "keys are those of vLLM's MooncakeStoreConnector, or of SGLang's --hicache-storage-backend mooncake",
            code="store_keys_unread",
        )
        return
    shown = ", ".join(bases[:_SHOWN])
    if pool.key_prefix is not None:
        fitting = [base for base in bases if base == pool.key_prefix]
    else:
        fitting = [base for base in bases if any(names_model(base, model) for model in models)]
        fitting = bases if not fitting and len(bases) == 1 and len(models) <= 1 else fitting
    if not fitting or (pool.key_prefix is None and len(fitting) > max(1, len(models))):
        report.add(
            "keys",
            "problem",
            f"which keys are those of the pool is not clear: they begin with {shown}",
            "set key_prefix of the pool to one of these",
            code="store_keys_unclear",
        )
        return
    report.add("keys", "ok", f"{len(lines)} objects, with keys of {', '.join(fitting[:_SHOWN])}")
    if pool.tier == "cpu" and any("@tp_rank:" not in key for key in lines if base_of(key)):
        report.add(
            "keys",
            "warning",
            "the store has SGLang's keys, but the pool takes events of host memory for its own",
            'set tier = "external" of the pool',
            code="store_tier",
        )


def base_of(key: str) -> str | None:
    """Beginning of a key up to the rank or digest; None for other keys than those of vLLM and SGLang."""
    base, at, rest = key.partition("@tp_rank:")
    if at:
        return base if base and "@group:" in rest else None
    parts = key.split("_")
    digests = [
        at for at, part in enumerate(parts) if len(part) == 64 and all(c in "0123456789abcdefABCDEF" for c in part)
    ]
    if not digests:
        return None
    if digests[-1] == 0:
        return parts[1] if len(parts) > 2 and parts[1].startswith("ukv1-") else None
    return "_".join(parts[: digests[-1]]) if len(parts) > digests[-1] + 1 else None


def names_model(base: str, model: str) -> bool:
    """True if keys that begin so are those of a model."""
    dashed = model.replace("/", "-")
    return model.rpartition("/")[2] in base.split("@") or base == dashed or base.endswith(f"_{dashed}")
