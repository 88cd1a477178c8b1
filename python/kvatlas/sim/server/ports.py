"""Free ports outside the system's range of ephemeral ports.

Ephemeral ports serve outgoing connections too. A client that keeps trying to reach a stopped engine could be assigned
the engine's port as its own and connect to itself, and then the engine could not bind the port again.
"""

from __future__ import annotations

import errno
import random
import socket
from pathlib import Path

_LOWEST = 10_000
_EPHEMERAL = 32_768  # where Linux begins, unless told otherwise


def free_block(host: str, count: int = 1) -> int:
    """First of `count` consecutive free ports of `host`. Raises `OSError` if there are none."""
    end = max(_first_ephemeral() - count, _LOWEST + 1)
    chance = random.SystemRandom()
    for _ in range(1_000):
        base = chance.randrange(_LOWEST, end)
        if all(_free(host, base + i) for i in range(count)):
            return base
    raise OSError(f"no {count} neighbouring free ports found from {_LOWEST} to {end}")


def _free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def _first_ephemeral() -> int:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
        return int(text.split()[0])
    except (OSError, ValueError, IndexError):
        return _EPHEMERAL
