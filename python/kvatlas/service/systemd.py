"""Messages to systemd, and the listening sockets that systemd opens for a service."""

from __future__ import annotations

import logging
import os
import socket

from kvatlas._native import adopt_sockets, unused_sockets
from kvatlas.errors import ServiceError

logger = logging.getLogger("kvatlas.service")


def notify(*lines: str) -> None:
    """Send lines such as `READY=1` to systemd, if systemd started this process and waits for them (`Type=notify`)."""
    at = os.environ.get("NOTIFY_SOCKET")
    if not at:
        return
    address = f"\0{at[1:]}" if at.startswith("@") else at
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as made:
            made.sendto("\n".join(lines).encode(), address)
    except OSError as error:
        logger.warning("systemd cannot be notified at NOTIFY_SOCKET=%s: %s", at, error)


def take_sockets() -> None:
    """Take over the listening sockets that systemd started this process with (`LISTEN_FDS`), if there are any.

    Raises:
        ServiceError: A socket cannot be used.
    """
    taken = adopt_sockets()
    if taken:
        logger.info("started with listening sockets at %s", ", ".join(taken))


def check_sockets(*addresses: str | None) -> None:
    """Check that every socket taken over from systemd is in use. `addresses`: addresses at which the server listens.

    Raises:
        ServiceError: A socket is not in use.
    """
    if left := unused_sockets():
        used = ", ".join(address for address in addresses if address is not None)
        raise ServiceError(
            f"systemd passed a listening socket at {', '.join(left)}, where nothing is to listen: the "
            f"settings say {used}; give ListenStream= of the socket unit and --bind (http.bind) the same address",
            "not_started",
        )
