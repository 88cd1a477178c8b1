"""Orders of a request about loading its blocks: the part of vLLM's `kv_transfer_params` that concerns offloading.

As in the engine, nothing is validated: what cannot be read is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RemoteSource:
    """Peer to pull from, and the id by which both engines call the request."""

    request_id: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class TransferOrder:
    """Order of a request's sender about loading its blocks.

    Attributes:
        source: The peer to pull from.
        max_load: Largest number of tokens to load after those on the device; None: no limit.
        load_pool: Whether the pool may be used.
    """

    source: RemoteSource | None = None
    max_load: int | None = None
    load_pool: bool = True


def read_order(params: object) -> TransferOrder:
    """Read `kv_transfer_params`."""
    if not isinstance(params, Mapping):
        return TransferOrder()
    tiers = params.get("kv_load_tiers")
    listed = tiers if isinstance(tiers, list) else None
    most = params.get("max_load_tokens")
    return TransferOrder(
        # A peer has neither medium nor locality, so any matcher of the list fits it.
        source=None if listed == [] else _source(params.get("remote_kv_source")),
        max_load=most if isinstance(most, int) and not isinstance(most, bool) and most >= 0 else None,
        load_pool=listed is None or any(_matches(each) for each in listed),
    )


def _source(value: object) -> RemoteSource | None:
    if not isinstance(value, Mapping):
        return None
    name, host, port = (value.get(key) for key in ("kv_request_id", "remote_host", "remote_port"))
    if not (isinstance(name, str) and isinstance(host, str) and isinstance(port, int)):
        return None
    return RemoteSource(name, host, port)


def _matches(tier: object) -> bool:
    """True if a matcher fits the pool, which is a shared folder."""
    if not isinstance(tier, Mapping):
        return False
    return (tier.get("medium", "STORAGE"), tier.get("locality", "REMOTE")) == ("STORAGE", "REMOTE")
