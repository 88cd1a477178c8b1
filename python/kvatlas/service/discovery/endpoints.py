"""Conversion of the addresses that engines report into addresses to connect to."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Iterable

from kvatlas.errors import DiscoveryError

_CODE = "unusable_address"
_WILD = ("*", "0.0.0.0", "::")  # noqa: S104 - what engines say, not where this listens


def is_loopback(host: str) -> bool:
    """True if the host is the local machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def at(host: str, port: int) -> str:
    """The ZMQ address of a port at a host."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def reachable(address: str, host: str, what: str) -> tuple[str, bool]:
    """Convert an address on which an engine at `host` reports to listen into an address to connect to.

    Args:
        address: The address as the engine reports it.
        host: The host of the engine's URL.
        what: The address's name in messages.

    Returns:
        The address, and True if the engine certainly listens there: to a reported address without a wildcard, the
        engine may connect instead.

    Raises:
        DiscoveryError: The address cannot be reached from this machine.
    """
    if address.startswith("ipc://"):
        if not is_loopback(host):
            raise DiscoveryError(
                f"{what} is {address}, which can only be reached from its own machine; {_bind_wanted(what)}", _CODE
            )
        return address, False
    if address.startswith("inproc://"):
        raise DiscoveryError(
            f"{what} is {address}, which can only be reached from inside its process; {_bind_wanted(what)}", _CODE
        )
    name, colon, port = address.removeprefix("tcp://").rpartition(":")
    if not address.startswith("tcp://") or not colon:
        raise DiscoveryError(f"{what} is {address!r}, which is not a ZMQ address; {_bind_wanted(what)}", _CODE)
    bare = name.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or int(port) == 0:
        raise DiscoveryError(
            f"{what} is {address}: the engine does not report which port the system chose; "
            f"{_bind_wanted(what)}, or give the address with --stream",
            _CODE,
        )
    if bare in _WILD:
        return at(host, int(port)), True
    if is_loopback(bare) and not is_loopback(host):
        raise DiscoveryError(
            f"{what} is {address}, which can only be reached from its own machine; {_bind_wanted(what)}", _CODE
        )
    return at(bare, int(port)), False


def bound_port(address: str, host: str, binds: Iterable[str]) -> int | None:
    """The port of this service to which an engine connects its publisher; None if it does not connect.

    Args:
        address: The address at which the engine publishes.
        host: The host of the engine's URL.
        binds: The addresses at which this service listens for publishers (`streams.bind`).
    """
    name, _, port = address.removeprefix("tcp://").rpartition(":")
    if not address.startswith("tcp://") or port not in {bind.rpartition(":")[2] for bind in binds}:
        return None
    bare = name.removeprefix("[").removesuffix("]")
    # An engine listens on a wildcard or on its own host, but not on loopback, where this service has the port.
    listens = bare in _WILD or (bare == host and not is_loopback(bare))
    return None if listens else int(port)


async def check_listening(address: str, what: str, seconds: float) -> None:
    """Check that a server listens on an address. An engine connects to an address without a wildcard.

    Raises:
        DiscoveryError: No server listens there.
    """
    if not address.startswith("tcp://"):
        return
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    try:
        async with asyncio.timeout(seconds):
            _reader, writer = await asyncio.open_connection(host.removeprefix("[").removesuffix("]"), int(port))
    except (OSError, TimeoutError) as error:
        raise DiscoveryError(
            f"{what} is {address}, but nothing listens there: an engine connects to an endpoint without a * instead of "
            f"listening on it; {_bind_wanted(what)}, or let kvatlas listen (--streams-bind 0.0.0.0:{port}) and give "
            'each engine a "topic" of its own',
            _CODE,
            temporary=True,
        ) from error
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _bind_wanted(what: str) -> str:
    key = "replay_endpoint" if "replay" in what else "endpoint"
    return f'start the engine with "{key}": "tcp://*:PORT" in its --kv-events-config'
