"""Instructions in a request about loading its blocks: the part of vLLM's `kv_transfer_params` about offloading.

As in vLLM, the values are not validated: parts that cannot be read are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RemoteSource:
    """Peer to pull blocks from, and the id under which both engines know the request."""

    request_id: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class TransferOrder:
    """Instructions of a request's sender about loading the request's blocks.

    Attributes:
        source: Peer to pull blocks from; None for no pull.
        max_load: Maximum number of tokens to load in addition to those in the cache; None for no limit.
        load_pool: True if blocks may be loaded from the shared pool.
    """

    source: RemoteSource | None = None
    max_load: int | None = None
    load_pool: bool = True


def read_order(params: object) -> TransferOrder:
    """Parse the instructions about loads in a request's `kv_transfer_params`. Invalid parts are ignored."""
    if not isinstance(params, Mapping):
        return TransferOrder()
    tiers = params.get("kv_load_tiers")
    listed = tiers if isinstance(tiers, list) else None
    most = params.get("max_load_tokens")
    return TransferOrder(
        # A peer has neither medium nor locality, so that any entry of the list matches it.
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
    """True if an entry of `kv_load_tiers` matches the pool, which is a shared folder."""
    if not isinstance(tier, Mapping):
        return False
    return (tier.get("medium", "STORAGE"), tier.get("locality", "REMOTE")) == ("STORAGE", "REMOTE")
