"""Addresses that can be reached, of those that engines say they listen on."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress

from kvatlas.errors import DiscoveryError

_CODE = "unusable_address"
_WILD = ("*", "0.0.0.0", "::")  # noqa: S104 - what engines say, not where this listens


def is_loopback(host: str) -> bool:
    """Whether it means the machine that says it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def at(host: str, port: int) -> str:
    """The ZMQ address of a port."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def reachable(address: str, host: str, what: str) -> tuple[str, bool]:
    """Where to connect to, for an engine on `host` that says it listens on `address`.

    Args:
        address: As the engine says it.
        host: The host that the engine was asked at.
        what: What the address is called in messages.

    Returns:
        The address, and whether the engine surely listens there: one without a wildcard may be one that it connects to.

    Raises:
        DiscoveryError: It cannot be reached from here.
    """
    if address.startswith("ipc://"):
        if not is_loopback(host):
            raise DiscoveryError(
                f"{what} is {address}, which only its own machine reaches; {_bind_wanted(what)}", _CODE
            )
        return address, False
    if address.startswith("inproc://"):
        raise DiscoveryError(f"{what} is {address}, which is inside its process; {_bind_wanted(what)}", _CODE)
    name, colon, port = address.removeprefix("tcp://").rpartition(":")
    if not address.startswith("tcp://") or not colon:
        raise DiscoveryError(f"{what} is {address!r}, which is no ZMQ address; {_bind_wanted(what)}", _CODE)
    bare = name.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or int(port) == 0:
        raise DiscoveryError(
            f"{what} is {address}: the engine does not say which port the system chose; "
            f"{_bind_wanted(what)}, or name the address by --stream",
            _CODE,
        )
    if bare in _WILD:
        return at(host, int(port)), True
    if is_loopback(bare) and not is_loopback(host):
        raise DiscoveryError(f"{what} is {address}, which only its own machine reaches; {_bind_wanted(what)}", _CODE)
    return at(bare, int(port)), False


async def check_listening(address: str, what: str, seconds: float) -> None:
    """Whether anybody listens at a fixed address. Engines connect to those that have no wildcard in them.

    Raises:
        DiscoveryError: Nobody does.
    """
    if not address.startswith("tcp://"):
        return
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    try:
        async with asyncio.timeout(seconds):
            _reader, writer = await asyncio.open_connection(host.removeprefix("[").removesuffix("]"), int(port))
    except (OSError, TimeoutError) as error:
        raise DiscoveryError(
            f"{what} is {address}, and nobody listens there: an engine whose endpoint has no * in it connects to it "
            f"instead of listening, which kvatlas cannot use; {_bind_wanted(what)}",
            _CODE,
            temporary=True,
        ) from error
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _bind_wanted(what: str) -> str:
    key = "replay_endpoint" if "replay" in what else "endpoint"
    return f'start the engine with "{key}": "tcp://*:PORT" in its --kv-events-config'
