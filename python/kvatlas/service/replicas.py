"""Resolution of one name to the addresses of replicas.

`dns:NAME:PORT` means every address of NAME, as a headless Service of Kubernetes has the addresses of its pods.
"""

from __future__ import annotations

import contextlib
import ipaddress
import random
import re
import socket

_NAME = re.compile(r"dns:([A-Za-z0-9._-]{1,253}):([0-9]{1,5})", re.ASCII)
# Answers that may change when repeated: the name server did not answer, or could not.
_PASSING = (socket.EAI_AGAIN, getattr(socket, "EAI_SYSTEM", socket.EAI_AGAIN))


def is_name(peer: str) -> bool:
    """True if the text is `dns:…`, not a URL."""
    return peer.startswith("dns:")


def checked_name(peer: str) -> tuple[str, int]:
    """The name and the port of `dns:NAME:PORT`.

    Raises:
        ValueError: The text has another form; the message says what is wrong.
    """
    found = _NAME.fullmatch(peer)
    if found is None:
        raise ValueError(f"{peer!r} is not dns:NAME:PORT")
    if not 1 <= int(found[2]) <= 65_535:
        raise ValueError(f"the port must be from 1 to 65535, got {found[2]}")
    return found[1], int(found[2])


def resolve(name: str, port: int) -> list[str]:
    """Every address of a name, IPv4 and IPv6, in random order; none if it has none. Waits for the name server.

    Raises:
        socket.gaierror: The name server did not answer; it may later.
    """
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in _PASSING:
            raise
        return []  # the name does not exist
    except UnicodeError:  # no name at all
        return []
    addresses = list({str(where[0]) for _family, _type, _protocol, _canonical, where in found})
    random.shuffle(addresses)  # so that many replicas that start at once ask different ones
    return addresses


def others(addresses: list[str], port: int, own: str) -> list[str]:
    """The URLs of the services at these addresses, without the one that listens at `own` itself."""
    return [url_at(address, port) for address in addresses if not _is_own(address, port, own)]


def url_at(address: str, port: int, scheme: str = "http") -> str:
    """The URL of a server at an IP address."""
    return f"{scheme}://[{address}]:{port}" if ":" in address else f"{scheme}://{address}:{port}"


def _is_own(address: str, port: int, own: str) -> bool:
    host, _, own_port = own.rpartition(":")
    if port != int(own_port):
        return False
    bound = ipaddress.ip_address(host.strip("[]"))
    if not bound.is_unspecified:
        return bound == ipaddress.ip_address(address.partition("%")[0])
    # It listens at all addresses of this machine: those that a socket can be bound to.
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe,
    ):
        probe.bind((address, 0))
        return True
    return False
