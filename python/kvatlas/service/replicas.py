"""Resolution of one host name to the addresses of replicas.

`dns:NAME:PORT` means every address of NAME; a headless Service of Kubernetes has those of its pods.
`dns+https:NAME:PORT` means the same with TLS, where each replica has a certificate of NAME.
"""

from __future__ import annotations

import contextlib
import ipaddress
import random
import re
import socket
from typing import NamedTuple

_NAME = re.compile(r"dns(\+https)?:([A-Za-z0-9._-]{1,253}):([0-9]{1,5})", re.ASCII)
PEERS = "http://HOST:PORT, https://HOST:PORT, dns:NAME:PORT or dns+https:NAME:PORT"
"""Description of the valid values of settings that name another service or router."""
# Answers that may change when repeated: the name server did not answer, or could not.
_PASSING = (socket.EAI_AGAIN, getattr(socket, "EAI_SYSTEM", socket.EAI_AGAIN))


class ReplicaName(NamedTuple):
    """A host name that resolves to the addresses of replicas, with their port, and True if they use TLS."""

    host: str
    port: int
    is_https: bool


def is_name(peer: str) -> bool:
    """True if the text is `dns:…` or `dns+https:…`, not a URL."""
    return peer.startswith(("dns:", "dns+https:"))


def checked_name(peer: str) -> ReplicaName:
    """Parse the name in `dns:NAME:PORT` or `dns+https:NAME:PORT`.

    Raises:
        ValueError: The text has another form; the message says what is wrong.
    """
    found = _NAME.fullmatch(peer)
    if found is None:
        raise ValueError(f"{peer!r} is not dns:NAME:PORT or dns+https:NAME:PORT")
    if not 1 <= int(found[3]) <= 65_535:
        raise ValueError(f"the port must be from 1 to 65535, got {found[3]}")
    return ReplicaName(found[2], int(found[3]), found[1] is not None)


def resolve(name: str, port: int) -> list[str]:
    """Every address of a name, IPv4 and IPv6, in random order; an empty list if it has none. Waits for the name server.

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


def others(addresses: list[str], port: int, own: str, scheme: str = "http") -> list[str]:
    """URLs of the services at these addresses, without the one that listens at `own`."""
    return [url_at(address, port, scheme) for address in addresses if not _is_own(address, port, own)]


def url_at(address: str, port: int, scheme: str = "http") -> str:
    """URL of a server at an IP address."""
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
